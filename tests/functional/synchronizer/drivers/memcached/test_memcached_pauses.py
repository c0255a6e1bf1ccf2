# SPDX-License-Identifier: Apache-2.0
"""The memcached driver where a client stands still for longer than the log is kept,
or meets what others did meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import memcached
from nova_nodb_scheduler.synchronizer.drivers.memcached import layout
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import step_case
from tests.functional.synchronizer.drivers.memcached import memcached_case

Step = memcached.Step
Verdict = records.Verdict

LOG_TTL_SECONDS = 2
#: The server counts whole seconds.
BEYOND_TTL_SECONDS = LOG_TTL_SECONDS + 1.5
#: Of clients that nothing must make wait.
NEVER_SECONDS = 600.0


class TestRefusedWriters(step_case.SlowClients, memcached_case.MemcachedCase):
    """What a writer does with a version that its record refused."""

    def test_a_refused_writer_leaves_the_slot_that_a_reader_fenced_its_record_to(self) -> None:
        behind = contract_case.FeedReader(self.client())
        acknowledged = self.put(self.writer, "host", b"acknowledged")
        self.reader.catch_up()
        paused = self.pause(
            Step.RECORD, records.Write(acknowledged.key, acknowledged.revision, b"late")
        )
        # Shuts the paused one out: the record stands at its version from now on.
        self.reader.catch_up()
        # What it does next is not to hide what it did with its first version.
        self.writer.write([records.Write(acknowledged.key, acknowledged.revision, deleted=True)])
        again = self.put(self.writer, "host", b"again")
        self.assertIs(Verdict.LOST, paused.verdict())
        self.assert_reader_is_right(behind)
        self.assertEqual(again.revision, behind.held[again.key].revision)

    def test_a_writer_that_gives_up_hides_no_acknowledged_change(self) -> None:
        behind = contract_case.FeedReader(self.client())
        acknowledged = self.put(self.writer, "host", b"acknowledged")
        self.reader.catch_up()
        client = self.opened(timeout_seconds=0.5)
        paused = step_case.PausedWriter(
            client, Step.RECORD, records.Write(acknowledged.key, acknowledged.revision, b"late")
        )
        self.assertTrue(paused.reached.wait(contract_case.PATIENCE_SECONDS))
        time.sleep(0.6)
        self.reader.catch_up()
        # It is beyond its time-out, and does not write again.
        self.assertIsNone(paused.verdict())
        self.assert_reader_is_right(behind)
        self.assertEqual(b"acknowledged", behind.held[acknowledged.key].payload)

    def test_a_loser_with_the_later_version_makes_no_reader_wait(self) -> None:
        record = self.put(self.writer, "host", b"one")
        reader = contract_case.FeedReader(self.opened(fence_after_seconds=NEVER_SECONDS))
        winner = self.pause(Step.SLOT, records.Write(record.key, record.revision, b"won"))
        loser = self.pause(Step.RECORD, records.Write(record.key, record.revision, b"lost"))
        self.assertIs(Verdict.WON, winner.verdict())
        self.assertIs(Verdict.LOST, loser.verdict())
        self.assert_reader_is_right(reader)
        self.assertEqual(b"won", reader.held[record.key].payload)

    def test_writers_of_one_record_all_end_and_make_no_reader_wait(self) -> None:
        record = self.put(self.writer, "host", b"0")
        reader = contract_case.FeedReader(self.opened(fence_after_seconds=NEVER_SECONDS))
        won: list[int] = []

        def count(client: memcached.MemcachedSynchronizer) -> None:
            for _ in range(25):
                standing = client.read([record.key])[record.key]
                higher = b"%d" % (int(standing.payload) + 1)
                [result] = client.write([records.Write(record.key, standing.revision, higher)])
                if result.won:
                    won.append(1)

        clients = [self.opened() for _ in range(6)]
        self.in_threads([lambda who=who: count(who) for who in clients])  # type: ignore[misc]
        self.assert_reader_is_right(reader)
        self.assertEqual(b"%d" % len(won), reader.held[record.key].payload)
        self.assertGreaterEqual(len(won), 25)


class TestBeyondTheLog(memcached_case.MemcachedCase):
    """Pauses that are longer than the log is kept."""

    def make(self, **changes: object) -> memcached.MemcachedSynchronizer:
        return super().make(**{"log_ttl_seconds": LOG_TTL_SECONDS, **changes})

    def test_a_writer_whose_void_outlived_the_log_does_not_win_with_a_passed_version(self) -> None:
        writer, reader = self.client(), contract_case.FeedReader(self.client())
        record = self.put(writer, "host", b"one")
        client = self.opened(timeout_seconds=60.0)
        paused = step_case.PausedWriter(
            client, Step.SLOT, records.Write(record.key, record.revision, b"late")
        )
        self.assertTrue(paused.reached.wait(contract_case.PATIENCE_SECONDS))
        self._keep_following(reader, writer)
        self.assertIs(Verdict.WON, paused.verdict())
        self.assert_reader_is_right(reader)
        self.assertEqual(b"late", reader.held[record.key].payload)

    def test_a_creator_whose_void_outlived_the_log_is_met_by_readers(self) -> None:
        writer, reader = self.client(), contract_case.FeedReader(self.client())
        client = self.opened(timeout_seconds=60.0)
        paused = step_case.PausedWriter(
            client, Step.SLOT, records.Write(contract_case.key("new"), 0, b"late")
        )
        self.assertTrue(paused.reached.wait(contract_case.PATIENCE_SECONDS))
        self._keep_following(reader, writer)
        self.assertIs(Verdict.WON, paused.verdict())
        self.assert_reader_is_right(reader)

    def test_a_reader_that_stood_still_before_a_void_skips_no_slot_that_expired(self) -> None:
        writer, slow = self.client(), self.opened()
        record = self.put(writer, "host", b"one")
        reader = contract_case.FeedReader(slow)
        written = self._pause_before_slot(records.Write(record.key, record.revision, b"two"))
        reached, released = threading.Event(), threading.Event()

        def stand_still() -> None:
            reached.set()
            released.wait(contract_case.PATIENCE_SECONDS)

        slow.on_step = step_case.at(Step.VOID, stand_still)
        following = threading.Thread(target=reader.catch_up)
        following.start()
        self.assertTrue(reached.wait(contract_case.PATIENCE_SECONDS))
        # The writer was slow, not dead; and by now its slot expires.
        self.assertIs(Verdict.WON, written.verdict())
        time.sleep(BEYOND_TTL_SECONDS)
        released.set()
        following.join(contract_case.PATIENCE_SECONDS)
        reader.catch_up()
        self.assertEqual(contract_case.everything(writer), reader.held)
        self.assertEqual(b"two", reader.held[record.key].payload)
        # Nor does the void that came too late hide it from anybody else.
        epoch = layout.Epoch.decode(b"nodb", self.raw().get(b"nodb:epoch"))
        self.assertIsNone(self.raw().get(epoch.slot_key(reader.held[record.key].version)))

    def _pause_before_slot(self, write: records.Write) -> step_case.PausedWriter:
        paused = step_case.PausedWriter(self.opened(), Step.SLOT, write)
        self.assertTrue(paused.reached.wait(contract_case.PATIENCE_SECONDS))
        return paused

    def _keep_following(
        self, reader: contract_case.FeedReader, writer: memcached.MemcachedSynchronizer
    ) -> None:
        """Follow for longer than the log is kept, while another record changes."""
        beat = self.put(writer, "beat", b"0")
        until = time.monotonic() + BEYOND_TTL_SECONDS
        while time.monotonic() < until:
            beat = self.put(writer, "beat", b"on", beat.revision)
            reader.step()
            time.sleep(0.1)
        self.assertEqual(0, reader.resyncs)


class TestPausedAtTheIndex(memcached_case.MemcachedCase):
    def test_a_creator_paused_at_the_index_while_its_record_comes_and_goes_ends_no_epoch(
        self,
    ) -> None:
        def ending(writer: memcached.MemcachedSynchronizer, _name: str) -> None:
            del writer

        self._come_and_go(Verdict.WON, ending)

    def test_a_creator_paused_at_the_index_while_its_record_came_again_loses(self) -> None:
        def ending(writer: memcached.MemcachedSynchronizer, name: str) -> None:
            self.put(writer, name, b"again")

        self._come_and_go(Verdict.LOST, ending)

    def _come_and_go(
        self,
        verdict: Verdict,
        ending: Callable[[memcached.MemcachedSynchronizer, str], None],
    ) -> None:
        writer = self.client()
        kept = self.put(writer, "claims-of-others", b"granted")
        epoch = writer.head().epoch
        for step in (Step.PLACEHOLDER, Step.INDEX):
            with self.subTest(step=step.name):
                name = f"host-{step.name}"
                paused = step_case.PausedWriter(
                    self.opened(timeout_seconds=60.0),
                    step,
                    records.Write(contract_case.key(name), 0, b"late"),
                )
                self.assertTrue(paused.reached.wait(contract_case.PATIENCE_SECONDS))
                self.drop(writer, self.put(writer, name, b"one"))
                self.eventually(
                    lambda: writer.collect(0.0).tombstones > 0, "the tombstone is collected"
                )
                ending(writer, name)
                self.assertIs(verdict, paused.verdict())
                self.assertEqual(epoch, writer.head().epoch)
                held = contract_case.everything(self.client())
                self.assertEqual(kept, held[kept.key])
                self.assertIn(contract_case.key(name), held)


class TestFilledPastFull(memcached_case.MemcachedCase):
    """A server that refuses (-M) loses nothing and ends nothing, however full."""

    options = ("-m", "8", "-M")

    def test_a_server_filled_well_past_full_keeps_every_record_and_its_epoch(self) -> None:
        client = self.client()
        epoch = client.head().epoch
        # Small ones: then it is a page of the index that finds no memory.
        held = self._fill_past_full(client, 200)
        self.assertEqual(epoch, client.head().epoch)
        self.assertEqual(held, contract_case.states(contract_case.everything(client)))
        self.assertEqual(0, client.statistics()["evictions"])

    def test_updates_and_deletions_in_a_full_server_lose_nothing(self) -> None:
        client = self.client()
        epoch = client.head().epoch
        reader = contract_case.FeedReader(self.client())
        held = self._fill_past_full(client, 1500)
        for number, (key, (revision, _payload)) in enumerate(sorted(held.items())[:400]):
            deleted = bool(number % 2)
            try:
                [result] = client.write([records.Write(key, revision, b"x" * 1500, deleted)])
            except errors.BackendUnavailable:
                continue
            if result.won and result.record is not None:
                held[key] = (result.record.revision, result.record.payload)
                if deleted:
                    del held[key]
        self.assertEqual(epoch, client.head().epoch)
        self.assertEqual(held, contract_case.states(contract_case.everything(client)))
        # Where there is room again, the feed goes on from where it stood.
        self.raw().cache_memlimit(64)
        reader.catch_up()
        self.assertEqual((0, held), (reader.resyncs, contract_case.states(reader.held)))

    def test_a_full_page_of_the_deletion_log_is_not_taken_for_a_lost_one(self) -> None:
        client = self.client()
        record = self.put(client, "host", b"one")
        epoch = layout.Epoch.decode(b"nodb", self.raw().get(b"nodb:epoch"))
        raw = self.raw()
        # Pages as long as memory allows: appending a line finds no room for a longer one.
        filler = b"n" * 100_000 + b"\x1e1\n"
        for page in epoch.deletion_log_pages:
            while raw.append(page, filler, noreply=False):
                if len(raw.get(page)) > 900_000:
                    break
        self._take_all_memory()
        with self.assertRaises(errors.BackendUnavailable) as caught:
            client.write([records.Write(record.key, record.revision, deleted=True)])
        self.assertIn("memory", str(caught.exception))
        self.assertEqual(epoch.name, client.head().epoch)
        self.assertEqual({record.key: record}, client.read([record.key]))

    def test_an_epoch_that_cannot_be_begun_for_want_of_memory_leaves_nothing(self) -> None:
        client = self.client()
        record = self.put(client, "host", b"one")
        head = client.head()
        self._take_all_memory()
        raw = self.raw()
        for number in range(50):
            raw.delete(f"filler-1-{number}", noreply=False)
        before = raw.stats()[b"curr_items"]
        with self.assertRaises(errors.BackendUnavailable):
            client.reset()
        self.assertEqual(before, raw.stats()[b"curr_items"])
        self.assertEqual(head, client.head())
        self.assertEqual({record.key: record}, client.read([record.key]))
        # What the documents tell an operator to do.
        raw.cache_memlimit(64)
        client.reset()
        self.assertNotEqual(head.epoch, client.head().epoch)

    def _fill_past_full(
        self, client: memcached.MemcachedSynchronizer, size: int
    ) -> dict[records.RecordKey, tuple[int, bytes]]:
        """Create records until 300 calls were refused; returns what was acknowledged."""
        held: dict[records.RecordKey, tuple[int, bytes]] = {}
        refused = number = 0
        while refused < 300:
            some = [
                records.Write(contract_case.key(f"instance-{number + each:08}"), 0, bytes(size))
                for each in range(25)
            ]
            number += len(some)
            try:
                results = client.write(some)
            except errors.BackendUnavailable:
                refused += 1
                continue
            refused += any(result.verdict is Verdict.UNKNOWN for result in results)
            for result in results:
                if result.won and result.record is not None:
                    held[result.record.key] = (result.record.revision, result.record.payload)
        return held

    def _take_all_memory(self) -> None:
        """Fill every size of item, from large to small, by what is none of the driver's."""
        raw = self.raw()
        for size in (400_000, 100_000, 20_000, 4_000, 1_000, 300, 100, 30, 10, 1):
            for number in range(100_000):
                try:
                    raw.add(f"filler-{size}-{number}", bytes(size), noreply=False)
                except Exception:
                    break
