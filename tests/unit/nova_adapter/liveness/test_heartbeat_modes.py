# SPDX-License-Identifier: Apache-2.0
"""A cell's mode follows its conductors, a step at a time, and leaves nobody behind."""

import itertools
import threading
import unittest

from hypothesis import given
from hypothesis import strategies as st

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.liveness import heartbeat_modes
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers.memory import driver, hub
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.wire import codec

MODES = list(heartbeat_modes.HeartbeatMode)
DATABASE, BOTH, STORE = MODES
CELL = "11111111-1111-4111-8111-111111111111"
_DOWN_SECONDS = 60.0


def neighbour(mode, *, writes_cell: bool = True):  # type: ignore[no-untyped-def]
    return heartbeat_modes.Neighbour("other", writes_cell, mode)


def step(wanted, recorded, *neighbours, recorded_for: float = 1e6):  # type: ignore[no-untyped-def]
    return heartbeat_modes.next_step(wanted, recorded, recorded_for, neighbours, _DOWN_SECONDS)


class NextStepTest(unittest.TestCase):
    def test_from_database_to_store_and_back_both_lies_between(self) -> None:
        self.assertEqual(BOTH, step(STORE, DATABASE).mode)
        self.assertEqual(STORE, step(STORE, BOTH).mode)
        self.assertEqual(BOTH, step(DATABASE, STORE).mode)
        self.assertEqual(DATABASE, step(DATABASE, BOTH).mode)

    def test_where_it_is_wanted_nothing_is_done(self) -> None:
        for mode in MODES:
            self.assertEqual(heartbeat_modes.ModeStep(), step(mode, mode))

    def test_nobody_stores_beside_who_reads_rows_alone(self) -> None:
        for mode, writes_cell in itertools.product((DATABASE, None), (True, False)):
            found = step(STORE, BOTH, neighbour(mode, writes_cell=writes_cell), neighbour(STORE))
            self.assertEqual((None, ("other",)), (found.mode, found.waits_for))

    def test_nobody_says_both_while_a_conductor_stores(self) -> None:
        self.assertEqual(("other",), step(BOTH, STORE, neighbour(STORE)).waits_for)
        # An API writes no heartbeats.
        self.assertEqual(BOTH, step(BOTH, STORE, neighbour(STORE, writes_cell=False)).mode)

    def test_rows_are_written_for_a_while_before_they_count_alone(self) -> None:
        self.assertIsNone(step(DATABASE, BOTH, recorded_for=59.0).mode)

    def test_two_conductors_never_pull_to_and_fro(self) -> None:
        for first, second, recorded in itertools.product(MODES, repeat=3):
            seen = set()
            for wanted, other in itertools.cycle(((first, second), (second, first))):
                if (recorded, wanted) in seen:
                    break
                seen.add((recorded, wanted))
                made = step(wanted, recorded, neighbour(other)).mode
                recorded = made or recorded
            for wanted, other in ((first, second), (second, first)):
                self.assertIsNone(step(wanted, recorded, neighbour(other)).mode, (first, second))

    @given(
        st.sampled_from(MODES),
        st.sampled_from(MODES),
        st.lists(st.builds(neighbour, st.sampled_from([*MODES, None])), max_size=3),
    )
    def test_no_step_is_of_two(self, wanted, recorded, others) -> None:  # type: ignore[no-untyped-def]
        made = step(wanted, recorded, *others).mode
        if made is not None:
            self.assertEqual(1, abs(MODES.index(made) - MODES.index(recorded)))


class KeeperTest(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.hub = hub.MemoryHub(clock=lambda: 50_000.0 + self.now)
        self.back_end = self.client()

    def client(self) -> driver.MemorySynchronizer:
        made = driver.MemorySynchronizer(shared_hub=self.hub)
        made.open()
        self.addCleanup(made.close)
        return made

    def publisher(self, synchronizer):  # type: ignore[no-untyped-def]
        declared = {each.name: each for each in known_namespaces.BUILT_IN}
        return publisher.Publisher(synchronizer, declared, known_namespaces.NODB)

    def keeper(self, wanted) -> heartbeat_modes.ModeKeeper:  # type: ignore[no-untyped-def]
        return heartbeat_modes.ModeKeeper(
            wanted,
            lambda: CELL,
            self.publisher,
            trust_seconds=9.0,
            alive_seconds=15.0,
            renewed_seconds=_DOWN_SECONDS,
            clock=lambda: self.now,
        )

    def beat(self, name: str, mode: str | None, **more: object) -> None:
        state = {
            "cell": CELL,
            "guards": [CELL],
            "binary": "conductor",
            "host": name,
            "pid": 1,
            "beat_at": 50_000.0 + self.now,
            **({} if mode is None else {"service_heartbeats": mode}),
            **more,
        }
        key = records.RecordKey(known_namespaces.REPORTERS.name, name)
        self.publisher(self.back_end).publish({key: lambda current: state})

    def recorded(self) -> str | None:
        key = heartbeat_modes.mode_key(CELL)
        found = self.back_end.read([key]).get(key)
        return None if found is None else codec.decode_state(found.payload)["mode"]

    def test_a_conductor_stores_two_beats_later(self) -> None:
        keeper = self.keeper(STORE)
        self.assertFalse(keeper.may_store(CELL))
        with self.assertLogs(heartbeat_modes.LOG, "WARNING"):
            for expected in ("both", "store"):
                keeper.keep(self.back_end, "own")
                self.assertEqual(expected, self.recorded())
                # Only what was read counts.
                self.assertFalse(keeper.may_store(CELL))
        keeper.keep(self.back_end, "own")
        self.assertTrue(keeper.may_store(CELL))
        self.assertFalse(keeper.may_store("elsewhere"))

    def test_what_was_read_holds_for_a_while_and_not_longer(self) -> None:
        keeper = self.stored()
        self.now += 8.9
        self.assertTrue(keeper.may_store(CELL))
        self.now += 0.1
        self.assertFalse(keeper.may_store(CELL))

    def stored(self) -> heartbeat_modes.ModeKeeper:
        keeper = self.keeper(STORE)
        with self.assertLogs(heartbeat_modes.LOG, "WARNING"):
            for _ in range(3):
                keeper.keep(self.back_end, "own")
        self.assertTrue(keeper.may_store(CELL))
        return keeper

    def test_a_failure_forbids_until_the_record_is_read_again(self) -> None:
        keeper = self.stored()
        keeper.forbid()
        self.assertFalse(keeper.may_store(CELL))
        keeper.keep(self.back_end, "own")
        self.assertTrue(keeper.may_store(CELL))

    def test_it_waits_for_a_release_that_knows_no_modes_and_names_it_once(self) -> None:
        keeper = self.keeper(STORE)
        self.beat("old", None)
        with self.assertLogs(heartbeat_modes.LOG, "WARNING") as logged:
            for _ in range(4):
                keeper.keep(self.back_end, "own")
        self.assertEqual("both", self.recorded())
        self.assertEqual(1, sum("conductor on old (process 1)" in line for line in logged.output))
        self.now += 16.0
        with self.assertLogs(heartbeat_modes.LOG, "WARNING"):
            keeper.keep(self.back_end, "own")
        self.assertEqual("store", self.recorded())

    def test_a_conductor_of_another_cell_is_nobodys_neighbour(self) -> None:
        self.beat("far", None, cell="other", guards=["other"])
        self.stored()

    def test_an_api_that_cannot_live_with_it_is_waited_for(self) -> None:
        self.beat("api", "database", cell="*", guards=[], binary="api")
        keeper = self.keeper(STORE)
        with self.assertLogs(heartbeat_modes.LOG, "WARNING"):
            for _ in range(3):
                keeper.keep(self.back_end, "own")
        self.assertEqual("both", self.recorded())

    def test_an_emptied_back_end_is_stored_to_only_when_the_record_stands_again(self) -> None:
        keeper = self.stored()
        self.back_end.reset()
        with self.assertLogs(heartbeat_modes.LOG, "WARNING"):
            keeper.keep(self.back_end, "own")
        self.assertFalse(keeper.may_store(CELL))

    def test_a_damaged_record_is_mended(self) -> None:
        key = heartbeat_modes.mode_key(CELL)
        payload = codec.encode({"mode": "odd"}, known_namespaces.HEARTBEAT_MODES.schema)
        self.assertTrue(self.back_end.write([records.Write(key, 0, payload)])[0].won)
        self.stored()

    def test_of_two_that_step_at_once_one_wins(self) -> None:
        keepers = [self.keeper(BOTH) for _ in range(8)]
        threads = [
            threading.Thread(target=each.keep, args=(self.client(), f"own-{number}"))
            for number, each in enumerate(keepers)
        ]
        with self.assertLogs(heartbeat_modes.LOG, "WARNING") as logged:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(("both", 1), (self.recorded(), len(logged.output)))
