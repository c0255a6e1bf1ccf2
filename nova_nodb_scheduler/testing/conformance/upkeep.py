# SPDX-License-Identifier: Apache-2.0
"""Conformance of upkeep: collection, epochs, opening and closing, clock, statistics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.support import driver_base, epoch_memory
from nova_nodb_scheduler.testing.conformance import contract_case, held_up


class Collection(contract_case.Case):
    """Tombstones and history go, and nobody is misled by it."""

    def test_a_young_tombstone_is_kept(self) -> None:
        client = self.client()
        tombstone = self.drop(client, self.put(client, "a", b"one"))
        self.assertEqual(0, client.collect(3600.0).tombstones)
        self.assertEqual({tombstone.key: tombstone}, client.read([tombstone.key]))

    def test_an_old_tombstone_is_dropped_and_live_records_stay(self) -> None:
        client = self.client()
        written = self.fill(client, 10)
        dropped = self.drop(client, written[0])
        self._collect_tombstones(client, 1)
        self.assertEqual({}, client.read([dropped.key]))
        self.assertEqual(
            {record.key: record for record in written[1:]}, contract_case.everything(client)
        )

    def test_a_cursor_from_before_a_collected_tombstone_needs_a_resync(self) -> None:
        client = self.client()
        written = self.fill(client, 3)
        before = client.head()
        self.drop(client, written[0])
        floor = self._collect_tombstones(client, 1)
        self.assertGreater(floor, before.version)
        answer = client.fetch(before)
        self.assertIsInstance(answer, records.ResyncNeeded)
        assert isinstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.HISTORY_TRUNCATED, answer.reason)

    def test_a_reader_at_the_head_does_not_notice_a_collection(self) -> None:
        client = self.client()
        reader = contract_case.FeedReader(client)
        self.drop(client, self.put(client, "a", b"one"))
        reader.catch_up()
        self._collect_tombstones(client, 1)
        added = self.put(client, "b", b"two")
        reader.catch_up()
        self.assertEqual(0, reader.resyncs)
        self.assertEqual({added.key: added}, reader.held)

    def test_a_floor_is_never_above_the_head(self) -> None:
        client = self.client()
        self.drop(client, self.put(client, "a", b"one"))
        floor = self._collect_tombstones(client, 1)
        head = client.head()
        self.assertLessEqual(floor, head.version)
        self.assertEqual((), self.changes(client, head).records)

    def test_a_record_created_again_after_collection_has_a_greater_revision(self) -> None:
        client = self.client()
        record = self.put(client, "a", b"0")
        for number in range(5):
            record = self.put(client, "a", b"%d" % number, record.revision)
        tombstone = self.drop(client, record)
        self._collect_tombstones(client, 1)
        again = self.put(client, "a", b"again")
        self.assertGreater(again.revision, tombstone.revision)
        [late] = client.write([records.Write(record.key, record.revision, b"late")])
        self.assertEqual(records.WriteResult(records.Verdict.LOST, again), late)

    def test_a_revision_of_a_collected_record_loses(self) -> None:
        client = self.client()
        record = self.put(client, "a", b"0")
        self.drop(client, record)
        self._collect_tombstones(client, 1)
        [late] = client.write([records.Write(record.key, record.revision, b"late")])
        self.assertEqual(records.WriteResult(records.Verdict.LOST, None), late)

    def test_a_recreated_record_is_not_taken_for_its_old_tombstone(self) -> None:
        client = self.client()
        self.drop(client, self.put(client, "a", b"one"))
        again = self.put(client, "a", b"two")
        time.sleep(1.1)
        client.collect(0.0)
        self.assertEqual({again.key: again}, contract_case.everything(client))

    def test_several_processes_may_collect_at_once(self) -> None:
        client = self.client()
        for record in self.fill(client, 60)[:30]:
            self.drop(client, record)
        time.sleep(1.1)
        collectors = [self.client() for _ in range(3)]

        def collect(collector: contract.Synchronizer) -> None:
            for _ in range(5):
                collector.collect(0.0)

        self.in_threads([lambda who=who: collect(who) for who in collectors])  # type: ignore[misc]
        self._collect_tombstones(client, 0)
        self.assertEqual(30, len(contract_case.everything(client)))
        self.assertEqual(0, client.statistics()["tombstones"])

    def _collect_tombstones(self, client: contract.Synchronizer, at_least: int) -> int:
        """Collect until that many tombstones went; an engine may count whole seconds."""
        collected, floor = 0, 0
        deadline = time.monotonic() + contract_case.PATIENCE_SECONDS
        while True:
            done = client.collect(0.0)
            collected, floor = collected + done.tombstones, done.floor
            if collected >= at_least:
                return floor
            if time.monotonic() > deadline:
                self.fail(f"{collected} tombstones of {at_least} were collected")
            time.sleep(0.2)


class EpochChanges(contract_case.Case):
    """A new epoch is a new order; nothing of the old one counts."""

    def test_a_reset_drops_everything_and_begins_another_epoch(self) -> None:
        client, other = self.client(), self.client()
        self.fill(client, 20)
        old = other.head()
        client.reset()
        self.assertNotEqual(old.epoch, other.head().epoch)
        self.assertEqual(client.head(), other.head())
        self.assertEqual({}, contract_case.everything(other))

    def test_cursors_of_the_old_epoch_need_a_resync(self) -> None:
        client, other = self.client(), self.client()
        self.fill(client, 20)
        old = other.head()
        client.reset()
        for cursor in (old, records.Cursor(old.epoch, 0)):
            answer = other.fetch(cursor)
            self.assertIsInstance(answer, records.ResyncNeeded)
            assert isinstance(answer, records.ResyncNeeded)
            self.assertIs(records.ResyncReason.EPOCH_CHANGED, answer.reason)

    def test_a_waiter_learns_of_a_new_epoch(self) -> None:
        client, other = self.client(), self.client()
        self.put(client, "a", b"one")
        old = other.head()
        client.reset()
        self.assertTrue(other.wait(old, 5.0))

    def test_writes_go_on_in_the_new_epoch(self) -> None:
        client, other = self.client(), self.client()
        old = self.put(other, "a", b"old")
        client.reset()
        [late] = other.write([records.Write(old.key, old.revision, b"late")])
        self.assertIs(records.Verdict.LOST, late.verdict)
        start = other.head()
        written = self.put(other, "a", b"new")
        self.assertEqual((written,), self.changes(client, start).records)

    def test_a_follower_ends_up_with_the_new_epoch_alone(self) -> None:
        client = self.client()
        self.fill(client, 20)
        reader = contract_case.FeedReader(self.client())
        client.reset()
        written = self.put(client, "only", b"new")
        reader.catch_up()
        self.assertEqual({written.key: written}, reader.held)
        self.assertEqual(1, reader.resyncs)

    def test_a_write_held_up_over_a_new_epoch_that_began_half_is_not_won(self) -> None:
        """Wherever it stood still, and wherever who began the epoch died."""
        client = self.client()
        of_reset = held_up.steps_of(client, client.reset)
        self.put(client, "first", b"of its epoch")
        passed = {
            "create": held_up.steps_of(client, lambda: self.put(client, "steps", b"one")),
            "update": held_up.steps_of(client, lambda: self._update(client, "steps")),
        }
        if not any(passed.values()):
            self.skipTest("the driver has no steps")
        for kind, write_step in ((kind, step) for kind, of in passed.items() for step in of):
            # The whole of a reset first: whom it waits for stands in the way of its parts, too.
            for reset_step in (None, *of_reset):
                with self.subTest(kind=kind, held_up_at=write_step, died_at=reset_step):
                    try:
                        self._hold_up(kind, write_step, reset_step)
                    except TimeoutError:
                        break

    def _hold_up(self, kind: str, write_step: str, reset_step: str | None) -> None:
        """See the case.

        :raises TimeoutError: no epoch begins while the write stands still there
        """
        clients = witness, beginner, late = self.client(), self.client(), self.client()
        name = f"{kind} {write_step} {reset_step}"
        written = self.put(witness, name, b"before") if kind == "update" else None
        write = records.Write(contract_case.key(name), written.revision if written else 0, b"late")
        epoch = witness.head().epoch
        writer = held_up.HeldUp(late, write_step, lambda: late.write([write]))
        self.addCleanup(writer.let_go)
        writer.stands_still()

        def grant_in_next_epoch() -> records.Record | None:
            """Write, where an epoch begins before the one held up has written."""
            standing = witness.read([write.key]).get(write.key)
            held_up.begin_epoch(beginner, reset_step)
            was_in_time = standing is not None and standing.payload == b"late"
            if was_in_time or witness.head().epoch == epoch:
                return None
            return self.put(witness, name, b"granted in the next epoch")

        granted = held_up.beside(writer, grant_in_next_epoch)
        results = writer.let_go()
        if granted is not None:
            if isinstance(results, list):
                self.assertIsNot(records.Verdict.WON, results[0].verdict)
            self.assertEqual({granted.key: granted}, witness.read([granted.key]))
        for client in clients:
            # An engine may take some connections only.
            client.close()

    def _update(self, client: contract.Synchronizer, name: str) -> records.Record:
        standing = client.read([contract_case.key(name)])[contract_case.key(name)]
        return self.put(client, name, b"updated", standing.revision)


class EpochOrder(contract_case.Case):
    """An epoch that was left never comes back, wherever an address leads."""

    def test_an_address_that_led_elsewhere_and_back_brings_no_old_epoch_back(self) -> None:
        swap = self._swappable()
        client = self.client()
        old = self.put(client, "claims", b"stale")
        left = client.head()
        reader = contract_case.FeedReader(client)
        swap()
        self.put(client, "claims", b"granted")
        between = client.head()
        swap()
        now = client.head()
        self.assertNotIn(now.epoch, (left.epoch, between.epoch))
        for cursor in (left, between):
            self.assert_resync(records.ResyncReason.EPOCH_CHANGED, client.fetch(cursor))
        self.assertEqual({}, client.read([old.key]))
        self.assertEqual({}, contract_case.everything(client))
        written = self.put(client, "claims", b"published anew")
        reader.catch_up()
        self.assertEqual({written.key: written}, reader.held)

    def test_a_write_is_not_the_call_that_brings_an_old_epoch_back(self) -> None:
        swap = self._swappable()
        client = self.client()
        old = self.put(client, "claims", b"stale")
        swap()
        self.put(client, "claims", b"granted")
        swap()
        [late] = client.write([records.Write(old.key, old.revision, b"late")])
        self.assertEqual(records.WriteResult(records.Verdict.LOST, None), late)
        self.assertEqual({}, contract_case.everything(client))

    def test_a_revision_of_one_server_wins_on_no_other(self) -> None:
        swap = self._swappable()
        client = self.client()
        old = self.fill(client, 5)
        swap()
        standing = self.fill(client, 5)
        late = client.write([records.Write(record.key, record.revision, b"late") for record in old])
        self.assertEqual(
            [records.WriteResult(records.Verdict.LOST, record) for record in standing], late
        )

    def test_a_snapshot_read_from_two_servers_in_turn_is_interrupted(self) -> None:
        swap = self._swappable()
        client = self.client()
        written = self.fill(client, 3000)
        swap()
        elsewhere = self.client()
        self.fill(elsewhere, 1500)
        elsewhere.close()
        swap()
        found: list[records.Record] = []
        try:
            pages = client.snapshot().pages
            found.extend(next(pages))
            self.assertLess(len(found), len(written), "one page holds all: nothing is tested")
            swap()
            found.extend(next(pages, ()))
            swap()
            for page in pages:
                found.extend(page)
        except (contract.SnapshotInterrupted, errors.BackendUnavailable):
            return
        self.assertEqual({each.key: each for each in written}, {each.key: each for each in found})

    def test_closing_and_opening_forgets_no_epoch(self) -> None:
        swap = self._swappable()
        client = self.client()
        self.put(client, "claims", b"stale")
        left = client.head().epoch
        swap()
        between = client.head().epoch
        client.close()
        swap()
        client.open()
        self.assertNotIn(client.head().epoch, (left, between))
        self.assertEqual({}, contract_case.everything(client))

    def test_clients_that_slept_and_new_ones_agree_with_the_one_that_saw(self) -> None:
        swap = self._swappable()
        client, asleep = self.client(), self.client()
        self.put(asleep, "claims", b"stale")
        swap()
        client.head()
        swap()
        written = self.put(client, "claims", b"anew")
        new = self.client()
        for each in (client, asleep, new):
            self.assertEqual(client.head(), each.head())
            self.assertEqual({written.key: written}, contract_case.everything(each))

    def test_an_address_that_leads_to_two_servers_in_turn_ends_few_epochs_and_says_so(
        self,
    ) -> None:
        swap = self._swappable()
        client = self.client()
        began = time.monotonic()
        epochs = [client.head().epoch]
        refusals: list[str] = []

        def look() -> bool:
            try:
                epochs.append(client.head().epoch)
                return True
            except errors.BackendUnavailable as error:
                refusals.append(str(error))
                return False

        for _ in range(12):
            swap()
            look()
        # One each, and a first turn; what comes back then is the newest. More only
        # where the machine is so slow that a pause passes meanwhile.
        pauses = (time.monotonic() - began) / epoch_memory.PAUSE_SECONDS
        self.assertLessEqual(len(set(epochs)), 3 + pauses, epochs)
        self.assertGreaterEqual(len(refusals), 5 - pauses, refusals)
        self.assertIn("different servers", refusals[0])
        newest = epochs[-1]
        while look():
            swap()
        for call in (
            lambda: client.read([contract_case.key("a")]),
            lambda: client.write([records.Write(contract_case.key("a"), 0, b"one")]),
            lambda: client.fetch(records.Cursor(newest, 0)),
            lambda: contract_case.everything(client),
        ):
            with self.assertRaises(errors.BackendUnavailable):
                call()
        # An operator's word ends it.
        client.reset()
        written = self.put(client, "a", b"one")
        self.assertEqual({written.key: written}, contract_case.everything(self.client()))

    def _swappable(self) -> Callable[[], None]:
        swap = self.make_swappable()
        if swap is None:
            self.skipTest("this test class has no address that can be moved")
        return swap


class Life(contract_case.Case):
    """Opening, closing, clock, statistics, durability."""

    def test_a_client_may_be_opened_twice_and_closed_twice(self) -> None:
        client = self.make_synchronizer()
        client.open()
        client.open()
        self.put(client, "a", b"one")
        client.close()
        client.close()

    def test_a_client_that_was_never_opened_may_be_closed(self) -> None:
        self.make_synchronizer().close()

    def test_a_closed_client_may_be_opened_again(self) -> None:
        client = self.client()
        written = self.put(client, "a", b"one")
        keeper = self.client()
        client.close()
        client.open()
        self.assertEqual({written.key: written}, client.read([written.key]))
        self.assertEqual(keeper.head(), client.head())

    def test_a_call_beside_an_opening_that_is_refused_is_refused_and_writes_nothing(
        self,
    ) -> None:
        """The back end is reached by then, and turns out to be another cloud's, say."""
        keeper = self.client()
        standing = self.put(keeper, "a", b"one")
        at = keeper.head()
        connected, refuse = threading.Event(), threading.Event()
        client = self._refused(connected, refuse)
        self.addCleanup(client.close)
        refusals: list[BaseException] = []

        def opened() -> None:
            try:
                client.open()
            except errors.ConfigurationError as error:
                refusals.append(error)

        opening = threading.Thread(target=opened, name="suite-opening", daemon=True)
        opening.start()
        self.addCleanup(refuse.set)
        self.assertTrue(connected.wait(contract_case.PATIENCE_SECONDS))
        self._assert_all_refused(client, standing, at)
        refuse.set()
        opening.join(contract_case.PATIENCE_SECONDS)
        self.assertEqual(1, len(refusals))
        self._assert_all_refused(client, standing, at)
        self.assertEqual(at, keeper.head())
        self.assertEqual({standing.key: standing}, contract_case.everything(keeper))

    def test_a_client_that_is_not_open_refuses_every_call(self) -> None:
        keeper = self.client()
        standing = self.put(keeper, "a", b"one")
        at = keeper.head()
        client = self.make_synchronizer()
        self._assert_all_refused(client, standing, at)
        client.open()
        client.close()
        self._assert_all_refused(client, standing, at)
        self.assertEqual(at, keeper.head())

    def test_pages_of_a_snapshot_end_with_their_client(self) -> None:
        keeper, client = self.client(), self.client()
        self.fill(keeper, 1500)
        pages = client.snapshot().pages
        next(pages)
        client.close()
        with self.assertRaises(errors.BackendUnavailable):
            list(pages)

    def _refused(
        self, connected: threading.Event, refuse: threading.Event
    ) -> contract.Synchronizer:
        """Return a client, unopened, whose opening connects, waits and is then refused."""
        client = self.make_synchronizer()
        made = getattr(client, "inner", client)
        if not isinstance(made, driver_base.Driver):
            self.skipTest("this driver opens by itself")

        def check() -> None:
            connected.set()
            refuse.wait(contract_case.PATIENCE_SECONDS)
            raise errors.ConfigurationError("[suite] cloud_name", "ours", "it is another's")

        made._check = check  # type: ignore[method-assign]
        return client

    def _assert_all_refused(
        self, client: contract.Synchronizer, standing: records.Record, at: records.Cursor
    ) -> None:
        new = records.Write(contract_case.key("new"), 0, b"two")
        over = records.Write(standing.key, standing.revision, b"two")
        calls: dict[str, Callable[[], object]] = {
            "head": client.head,
            "snapshot": lambda: list(client.snapshot().pages),
            "fetch": lambda: client.fetch(at),
            "wait": lambda: client.wait(records.Cursor(at.epoch, at.version - 1), 5.0),
            "read": lambda: client.read([standing.key]),
            "read nothing": lambda: client.read([]),
            "write": lambda: client.write([new, over]),
            "now_seconds": client.now_seconds,
            "collect": lambda: client.collect(0.0),
            "statistics": client.statistics,
            "reset": client.reset,
        }
        for name, call in calls.items():
            with self.subTest(name), self.assertRaises(errors.BackendUnavailable):
                call()

    def test_records_outlive_the_client_that_wrote_them(self) -> None:
        keeper, client = self.client(), self.client()
        written = self.put(client, "a", b"one")
        client.close()
        self.assertEqual({written.key: written}, keeper.read([written.key]))

    def test_capabilities_are_known_before_opening_and_stay(self) -> None:
        client = self.make_synchronizer()
        before = client.capabilities
        self.assertGreater(before.max_payload_bytes, 100_000)
        client.open()
        self.addCleanup(client.close)
        self.assertEqual(before, client.capabilities)

    def test_a_driver_has_a_name(self) -> None:
        self.assertRegex(self.make_synchronizer().name, r"^[a-z0-9_]+$")

    def test_the_clock_is_one_for_all_clients(self) -> None:
        first, second = self.client(), self.client()
        for _ in range(3):
            began = time.monotonic()
            apart = abs(first.now_seconds() - second.now_seconds())
            self.assertLessEqual(apart, 1.5 + time.monotonic() - began)

    def test_the_clock_goes_on_and_not_back(self) -> None:
        client = self.client()
        began = time.monotonic()
        seen = [client.now_seconds()]
        while time.monotonic() < began + 2.5:
            seen.append(client.now_seconds())
            time.sleep(0.05)
        self.assertGreaterEqual(seen[-1] - seen[0], 1.0)
        self.assertLess(seen[-1] - seen[0], 2.0 + time.monotonic() - began)
        backward = max(max(seen[:n]) - seen[n] for n in range(1, len(seen)))
        self.assertLessEqual(backward, 0.0)

    def test_statistics_count_records_and_tombstones(self) -> None:
        client = self.client()
        written = self.fill(client, 12)
        self.drop(client, written[0])
        statistics = client.statistics()
        self.assertEqual(11, statistics["records"])
        self.assertEqual(1, statistics["tombstones"])
        self.assertGreater(int(statistics["bytes"]), 0)
        self.assertLessEqual(int(statistics["floor"]), client.head().version)

    def test_a_durable_engine_keeps_records_order_and_epoch_over_a_restart(self) -> None:
        client = self.client()
        if not client.capabilities.durable:
            self.skipTest("the driver is not durable")
        written = {record.key: record for record in self.fill(client, 30)}
        head = client.head()
        self.restart_backend()
        again = self.client()
        self.assertEqual(head, again.head())
        self.assertEqual(written, contract_case.everything(again))
        self.assertEqual((), self.changes(again, head).records)
