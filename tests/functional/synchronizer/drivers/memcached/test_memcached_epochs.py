# SPDX-License-Identifier: Apache-2.0
"""The memcached driver where an epoch began or ended half: its writes, and what it left."""

from __future__ import annotations

import itertools
import random
import socket
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import memcached
from nova_nodb_scheduler.synchronizer.drivers.memcached import connection, layout, leftovers
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import step_case
from tests.functional.synchronizer.drivers.memcached import memcached_case

Step = memcached.Step
Verdict = records.Verdict

#: Where who begins an epoch leaves something behind, and what that is.
LEAVING = {
    Step.LIST: "nothing",
    Step.REPLACE: "an epoch that was laid down and never named",
    Step.SWEEP: "the epoch that ended, whole",
    Step.DELIST: "the name of the epoch that ended",
}


class TestWritesOfAnEndedEpoch(memcached_case.MemcachedCase):
    def test_a_write_is_told_its_epoch_and_looking_for_it_costs_no_exchange(self) -> None:
        client = self.client()
        record = self.put(client, "host", b"one")
        exchanges: list[str] = []
        pool: Any = client._connection._pool
        for name in ("get_many", "gets_many", "incr", "pipeline"):
            self._count(pool, name, exchanges)
        [result] = client.write([records.Write(record.key, record.revision, b"two")])
        self.assertEqual(["gets_many", "incr", "pipeline", "pipeline"], exchanges)
        self.assertEqual((Verdict.WON, client.head().epoch), (result.verdict, result.epoch))

    def test_a_write_in_an_epoch_that_was_not_swept_is_unknown_in_all_its_records(self) -> None:
        client, late = self.client(), self.opened(timeout_seconds=60.0)
        written = self.fill(client, 20)
        reached, released = threading.Event(), threading.Event()

        def stand_still() -> None:
            reached.set()
            released.wait(contract_case.PATIENCE_SECONDS)

        late.on_step = step_case.at(Step.RECORD, stand_still)
        results: list[records.WriteResult] = []
        writes = [records.Write(each.key, each.revision, b"late") for each in written]
        thread = threading.Thread(target=lambda: results.extend(late.write(writes)))
        thread.start()
        self.assertTrue(reached.wait(contract_case.PATIENCE_SECONDS))
        self.die(Step.SWEEP, lambda other: other.reset())
        granted = self.put(client, written[0].key.key, b"granted in the next epoch")
        released.set()
        thread.join(contract_case.PATIENCE_SECONDS)
        self.assertEqual([records.WriteResult(Verdict.UNKNOWN)] * 20, results)
        self.assertEqual({granted.key: granted}, contract_case.everything(late))

    def test_a_write_whose_look_at_the_epoch_was_not_answered_is_unknown(self) -> None:
        client = self.client()
        record = self.put(client, "host", b"one")
        cut = mock.patch.object(
            connection, "_value", autospec=True, side_effect=ConnectionResetError("cut")
        )
        with cut:
            [result] = client.write([records.Write(record.key, record.revision, b"two")])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)
        self.assertEqual(b"two", client.read([record.key])[record.key].payload)

    def test_a_write_to_an_older_server_than_was_seen_is_not_won(self) -> None:
        client, other = self.client(), self.client()
        record = self.put(client, "host", b"one")

        def see_a_later_epoch() -> None:
            """As another thread does, while the address leads elsewhere."""
            rank = client._epochs.current().rank
            later = layout.Epoch(b"nodb", "later", rank.number + 1)
            self.assertTrue(client._epochs.memory.admits(later.rank))

        client.on_step = step_case.at(Step.RECORD, see_a_later_epoch)
        [result] = client.write([records.Write(record.key, record.revision, b"two")])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)
        self.assertEqual(b"two", other.read([record.key])[record.key].payload)

    def _count(self, pool: Any, name: str, exchanges: list[str]) -> None:
        whole = getattr(pool, name)

        def counted(*arguments: Any) -> Any:
            exchanges.append(name)
            return whole(*arguments)

        setattr(pool, name, counted)


class TestLeftovers(memcached_case.MemcachedCase):
    """Whoever collects gives back what an epoch left that began or ended half."""

    def test_what_was_left_by_one_who_died_at_any_step_is_collected(self) -> None:
        client = self.client()
        for step, left in LEAVING.items():
            with self.subTest(step=step.name, left=left):
                written = self.fill(client, 300)
                self.die(step, lambda other: other.reset())
                # The next who begins one is none who sweeps it.
                held = contract_case.everything(client)
                self.assertIn(len(held), (0, len(written)))
                client.collect(3600.0)
                self.assert_nothing_is_left(client)
                self.assertEqual(held, contract_case.everything(client))
                client.reset()

    def test_what_was_left_by_one_who_died_beginning_the_first_epoch_is_collected(self) -> None:
        for step in (Step.LIST, Step.EPOCH):
            with self.subTest(step=step.name):
                self.server.flush_all()
                self.die(step, lambda other: other.head())
                client = self.client()
                self.put(client, "host", b"one")
                client.collect(3600.0)
                self.assert_nothing_is_left(client)

    def test_what_was_left_before_another_epoch_began_is_collected(self) -> None:
        client = self.client()
        self.fill(client, 300)
        self.die(Step.SWEEP, lambda other: other.reset())
        self.die(Step.REPLACE, lambda other: other.reset())
        client.reset()
        written = self.put(client, "host", b"one")
        client.collect(3600.0)
        self.assert_nothing_is_left(client)
        self.assertEqual({written.key: written}, contract_case.everything(client))

    def test_a_collection_removes_no_more_than_its_share_and_the_next_goes_on(self) -> None:
        client = self.client()
        self.fill(client, 2000)
        self.die(Step.SWEEP, lambda other: other.reset())
        limit = 400
        with mock.patch.object(leftovers, "SWEEP_LIMIT", limit):
            counts = [self._items()]
            while len(self._epochs_with_keys()) > 1:
                client.collect(3600.0)
                counts.append(self._items())
                self.assertLess(len(counts), 30)
        gone = [before - after for before, after in itertools.pairwise(counts)]
        # A page of the index more, and what every epoch has beside that.
        self.assertLess(max(gone), limit + 50)
        self.assertGreater(len(gone), 4)
        self.assert_nothing_is_left(client)

    def test_one_that_stood_still_before_it_named_its_epoch_names_none_that_was_swept(
        self,
    ) -> None:
        client, slow = self.client(), self.opened(timeout_seconds=60.0)
        self.put(client, "host", b"one")
        resetting, released = self._held_up(slow, Step.REPLACE, slow.reset)
        client.collect(3600.0)
        self.assert_nothing_is_left(client)
        written = self.put(client, "other", b"two")
        epoch = client.head().epoch
        with self.assertLogs("nova_nodb_scheduler", "WARNING") as logs:
            released.set()
            resetting.join(contract_case.PATIENCE_SECONDS)
            self.put(client, "host", b"three")
        # It began another, once, and that is whole.
        self.assertEqual(["an operator asked for it"], [_why(line) for line in logs.output])
        self.assertNotEqual(epoch, client.head().epoch)
        self.assertEqual({}, client.read([written.key]))
        client.collect(3600.0)
        self.assert_nothing_is_left(client)

    def test_a_collector_that_stood_still_takes_nothing_from_the_epoch_in_force(self) -> None:
        for left_at, step in (
            (Step.REPLACE, Step.BAR),
            (Step.REPLACE, Step.SWEEP),
            (Step.SWEEP, Step.SWEEP),
            (Step.SWEEP, Step.DELIST),
        ):
            with self.subTest(left_at=left_at.name, held_up_at=step.name):
                client, slow = self.client(), self.opened(timeout_seconds=60.0)
                self.put(client, "host", b"one")
                self.die(left_at, lambda other: other.reset())
                collecting, released = self._held_up(slow, step, lambda who=slow: who.collect(9e9))
                client.reset()
                written = {each.key: each for each in self.fill(client, 300)}
                cursor = client.head()
                released.set()
                collecting.join(contract_case.PATIENCE_SECONDS)
                self.assertEqual(cursor, client.head())
                self.assertEqual(written, contract_case.everything(client))
                client.collect(3600.0)
                self.assert_nothing_is_left(client)
                client.reset()

    def assert_nothing_is_left(self, client: memcached.MemcachedSynchronizer) -> None:
        epoch = client.head().epoch
        self.assertEqual({epoch}, self._epochs_with_keys())
        listed = layout.decode_epochs(self.raw().get(layout.epoch_list_key(b"nodb")))
        self.assertEqual([epoch], list(listed))

    def _held_up(
        self, client: memcached.MemcachedSynchronizer, step: memcached.Step, job: Callable[[], Any]
    ) -> tuple[threading.Thread, threading.Event]:
        """Have a client do a job in a thread, and stand still at a step until an event."""
        reached, released = threading.Event(), threading.Event()

        def stand_still() -> None:
            reached.set()
            released.wait(contract_case.PATIENCE_SECONDS)

        client.on_step = step_case.at(step, stand_still)
        thread = threading.Thread(target=job, daemon=True)
        thread.start()
        self.addCleanup(released.set)
        self.assertTrue(reached.wait(contract_case.PATIENCE_SECONDS))
        return thread, released

    def _epochs_with_keys(self) -> set[str]:
        """Return which epochs have keys that do not expire."""
        return {
            name
            for name, kind in (key.split(":")[1:3] for key in self._keys() if key.count(":") > 1)
            if kind != "l"
        }

    def _items(self) -> int:
        return sum(":l:" not in key for key in self._keys())

    def _keys(self) -> list[str]:
        with socket.create_connection(("127.0.0.1", self.server.port)) as operator:
            operator.sendall(b"lru_crawler metadump all\r\n")
            answer = b""
            while not answer.endswith(b"END\r\n"):
                answer += operator.recv(65536)
        lines = answer.decode().splitlines()[:-1]
        return [line.split()[0].removeprefix("key=").replace("%3A", ":") for line in lines]


class TestInAFullServer(memcached_case.MemcachedCase):
    """Epochs begin, and are swept, where the list of them finds no room."""

    options = ("-m", "8", "-M")

    def test_an_epoch_begins_and_another_in_its_place(self) -> None:
        client = self.client()
        self._fill_past_full(client)
        before = client.head().epoch
        client.reset()
        after = client.head().epoch
        self.assertNotEqual(before, after)
        self._fill_past_full(client)
        epoch = layout.Epoch.decode(b"nodb", self.raw().get(b"nodb:epoch"))
        self.raw().delete(epoch.sequence_key, noreply=False)
        self.assertNotEqual(after, client.head().epoch)

    def test_what_two_left_fails_no_collection(self) -> None:
        client = self.client()
        for _ in range(2):
            self.die(Step.SWEEP, lambda other: other.reset())
        self._fill_past_full(client)
        for _ in range(3):
            client.collect(3600.0)

    def _fill_past_full(self, client: memcached.MemcachedSynchronizer) -> None:
        """Write and rewrite records of all sizes until none finds room any more."""
        rng = random.Random(1)
        revisions: dict[records.RecordKey, int] = {}
        refused = 0
        for number in itertools.count():
            key = contract_case.key(f"compute-{number:06}.rack-12.region-one.example.org")
            if revisions and number % 3 == 0:
                key = rng.choice(list(revisions))
            payload = bytes(rng.choice((100, 500, 1000, 3000)))
            try:
                [result] = client.write([records.Write(key, revisions.get(key, 0), payload)])
            except errors.BackendUnavailable:
                refused += 1
                if refused == 15:
                    return
                continue
            refused = 0
            if result.won and result.record is not None:
                revisions[key] = result.record.revision
            else:
                revisions.pop(key, None)


def _why(line: str) -> str:
    return line.rpartition(": ")[2]
