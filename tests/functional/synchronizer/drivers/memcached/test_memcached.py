# SPDX-License-Identifier: Apache-2.0
"""The memcached driver under crashes, pauses and losses, on a real memcached."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast
from unittest import mock

from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import memcached
from nova_nodb_scheduler.synchronizer.drivers.memcached import collection, connection, layout
from nova_nodb_scheduler.synchronizer.drivers.memcached import options as memcached_options
from nova_nodb_scheduler.synchronizer.drivers.support import record_names
from nova_nodb_scheduler.testing import proxy, servers
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import step_case
from tests.functional.synchronizer.drivers.memcached import memcached_case

Step = memcached.Step
Verdict = records.Verdict

#: The steps that each kind of write passes.
STEPS = {
    "create": [
        *(Step.READ, Step.PLACEHOLDER, Step.INDEX),
        *(Step.SEQUENCE, Step.SLOT, Step.RECORD, Step.DONE),
    ],
    "update": [Step.READ, Step.SEQUENCE, Step.SLOT, Step.RECORD, Step.DONE],
    "delete": [Step.READ, Step.ANNOUNCE, Step.SEQUENCE, Step.SLOT, Step.RECORD, Step.DONE],
}


class TestSlowWriters(step_case.SlowClients, memcached_case.MemcachedCase):
    """Writers that die or stand still at every step, longer than readers wait."""

    def test_a_writer_killed_at_any_step_blocks_nobody_and_misleads_nobody(self) -> None:
        for kind, step in _kinds_and_steps():
            with self.subTest(kind=kind, step=step.name):
                write = self._prepare(kind, step)
                self.die(step, lambda client, write=write: client.write([write]))
                other = self.put(self.writer, f"other-{kind}-{step.name}", b"later")
                self.assert_reader_is_right(self.reader)
                self.assertIn(other.key, self.reader.held)
                self.rewrite(write.key)
                self.assert_reader_is_right(self.reader)

    def test_a_writer_paused_at_any_step_wins_in_the_end_where_it_is_alone(self) -> None:
        for kind, step in _kinds_and_steps():
            with self.subTest(kind=kind, step=step.name):
                paused = self.pause(step, self._prepare(kind, step))
                self.put(self.writer, f"other-{kind}-{step.name}", b"later")
                self.assert_reader_is_right(self.reader)
                self.assertIs(Verdict.WON, paused.verdict())
                self.assert_reader_is_right(self.reader)

    def test_a_writer_paused_at_any_step_loses_against_who_wrote_meanwhile(self) -> None:
        for kind, step in _kinds_and_steps():
            if step is Step.DONE:
                continue
            with self.subTest(kind=kind, step=step.name):
                write = self._prepare(kind, step)
                paused = self.pause(step, write)
                winner = self.rewrite(write.key)
                self.assert_reader_is_right(self.reader)
                self.assertEqual(records.WriteResult(Verdict.LOST, winner), paused.let_go())
                self.assert_reader_is_right(self.reader)
                self.assertEqual(winner, self.reader.held[write.key])

    def test_two_paused_creators_of_one_record_give_one_winner(self) -> None:
        for step in STEPS["create"][:-1]:
            with self.subTest(step=step.name):
                write = self._prepare("create", step)
                first, second = self.pause(step, write), self.pause(step, write)
                verdicts = {first.verdict(), second.verdict()}
                self.assertEqual({Verdict.WON, Verdict.LOST}, verdicts)
                self.assert_reader_is_right(self.reader)

    def test_a_snapshot_taken_while_a_writer_is_paused_misses_nothing_of_it(self) -> None:
        for kind, step in _kinds_and_steps():
            with self.subTest(kind=kind, step=step.name):
                paused = self.pause(step, self._prepare(kind, step))
                late = contract_case.FeedReader(self.client())
                paused.let_go()
                self.assert_reader_is_right(late)

    def test_a_version_that_nobody_uses_is_voided(self) -> None:
        client = self.client()
        start = client.head()
        raw = self.raw()
        raw.incr(f"nodb:{start.epoch}:seq", 3)
        written = self.put(self.writer, "after", b"the hole")
        self.assertEqual((), self.changes(client, start).records)
        self.assertTrue(client.wait(start, 5.0))
        time.sleep(memcached_case.FENCE_AFTER_SECONDS)
        fetched = self.changes(client, start)
        self.assertEqual((written,), fetched.records)
        self.assertEqual(3, client.statistics()["voids"])
        self.assertEqual((written,), self.changes(self.writer, start).records)

    def test_a_stalled_feed_is_waited_for_without_spinning(self) -> None:
        client = self.client()
        start = client.head()
        self.raw().incr(f"nodb:{start.epoch}:seq", 1)
        rounds = 0
        while self.changes(client, start).cursor == start:
            client.wait(start, 1.0)
            rounds += 1
        # Each round but the first is as long as the poll interval, 20 ms.
        self.assertLess(rounds, 15)

    def _prepare(self, kind: str, step: memcached.Step) -> records.Write:
        """Return a write of a kind that will win if nobody else writes."""
        name = f"{kind}-{step.name}-{time.monotonic_ns()}"
        revision = 0
        if kind != "create":
            revision = self.put(self.writer, name, b"before").revision
        return records.Write(contract_case.key(name), revision, b"paused", deleted=kind == "delete")


class TestReadsHeldUp(memcached_case.MemcachedCase):
    """The server takes the keys of a request one by one, and serves others between two."""

    def held_up(
        self, client: memcached.MemcachedSynchronizer, place: int, action: Callable[[], object]
    ) -> None:
        """Have something done when the client's next read has got to a key."""
        pool: Any = client._connection._pool
        whole = pool.get_many

        def get_many(keys: list[bytes]) -> dict[bytes, bytes]:
            pool.get_many = whole
            found: dict[bytes, bytes] = whole(keys[:place])
            action()
            found.update(whole(keys[place:]))
            return found

        pool.get_many = get_many

    def test_what_was_read_in_an_epoch_is_not_shown_with_what_its_end_took_away(self) -> None:
        # Two records, the counter and the epoch.
        for place in range(5):
            with self.subTest(place=place):
                client, other = self.client(), self.client()
                written = {each.key: each for each in (self.put(client, n, b"one") for n in "ab")}
                self.held_up(client, place, other.reset)
                self.assertIn(client.read(list(written)), ({}, written))

    def test_a_record_is_not_read_of_data_that_were_put_back_meanwhile(self) -> None:
        raw, name = self.raw(), record_names.encode(contract_case.key("a"))
        for place in range(4):
            with self.subTest(place=place):
                client = self.client()
                before = self.put(client, "a", b"before")
                held = raw.get(b"nodb:epoch")
                epoch = layout.Epoch.decode(b"nodb", held)
                kept = raw.get_many([b"nodb:epoch", epoch.sequence_key, epoch.record_key(name)])
                now = self.put(client, "a", b"granted", before.revision)
                self.held_up(client, place, lambda kept=kept: raw.set_many(kept, noreply=False))
                self.assertIn(client.read([now.key]), ({}, {now.key: now}))
                client.reset()

    def test_hundreds_of_records_are_not_read_of_two_servers(self) -> None:
        """An address that leads from A to B, and back."""
        second = self.enterContext(servers.Memcached(*self.options)).server
        switch = self.enterContext(proxy.Proxy(self.server.port))
        client = self.through(switch.address)
        written = {each.key: each for each in self.fill(client, connection.KEYS_PER_GET)}
        pool: Any = client._connection._pool
        whole, ports = pool.get_many, iter((self.server.port, second.port, self.server.port))

        def get_many(keys: list[bytes]) -> dict[bytes, bytes]:
            if len(keys) > 1 or not keys[0].endswith(b":epoch"):
                switch.redirect(next(ports, self.server.port))
            found: dict[bytes, bytes] = whole(keys)
            return found

        with mock.patch.object(pool, "get_many", get_many):
            self.assertIn(client.read(list(written)), ({}, written))


class TestCollectionInterrupted(memcached_case.MemcachedCase):
    """A collector may die between its steps; whoever comes next ends them."""

    def setUp(self) -> None:
        super().setUp()
        self.writer = self.client()
        self.tombstone = self.drop(self.writer, self.put(self.writer, "a", b"one"))
        self._leave_as_collected(self.tombstone)

    def test_a_collected_tombstone_is_nobody_s_record(self) -> None:
        self.assertEqual({}, self.writer.read([self.tombstone.key]))
        self.assertEqual({}, contract_case.everything(self.writer))
        late = records.Write(self.tombstone.key, self.tombstone.revision, b"late")
        self.assertEqual([records.WriteResult(Verdict.LOST, None)], self.writer.write([late]))

    def test_a_creator_ends_the_burial_and_goes_on(self) -> None:
        again = self.put(self.writer, "a", b"two")
        self.assertGreater(again.revision, self.tombstone.revision)
        self.assertEqual({again.key: again}, contract_case.everything(self.client()))

    def test_the_next_collector_ends_the_burial(self) -> None:
        self.writer.collect(3600.0)
        raw = self.raw()
        self.assertIsNone(raw.get(self._item_key(self.tombstone)))
        self.assertEqual(0, self.writer.statistics()["records"])
        self.assertEqual(0, self.writer.statistics()["tombstones"])

    def test_statistics_count_no_collected_tombstone(self) -> None:
        statistics = self.writer.statistics()
        self.assertEqual((0, 0), (statistics["records"], statistics["tombstones"]))

    def _item_key(self, record: records.Record) -> bytes:
        epoch = layout.Epoch(b"nodb", self.writer.head().epoch, 0)
        return epoch.record_key(record_names.encode(record.key))

    def _leave_as_collected(self, record: records.Record) -> None:
        raw = self.raw()
        item = layout.Item(
            record.key, layout.Kind.COLLECTED, record.version, record.revision, time.time()
        )
        raw.set(self._item_key(record), item.encode(), noreply=False)


class TestCollectionOfMany(memcached_case.MemcachedCase):
    def test_young_tombstones_keep_no_old_ones_from_being_collected(self) -> None:
        client = self.client()
        old = self.fill(client, 64)
        for each in old:
            self.drop(client, each)
        time.sleep(5.0)
        young = [self.put(client, f"young-{number}", b"one") for number in range(64)]
        for each in young:
            self.drop(client, each)
        with mock.patch.object(collection, "COLLECTION_LIMIT", 10):
            for _ in range(2 * layout.DELETION_LOG_PAGES):
                client.collect(3.5)
        found = client.read([each.key for each in old])
        self.assertEqual({}, found)


class TestLosses(memcached_case.MemcachedCase):
    """What memcached itself loses is noticed, and shows as a new epoch."""

    def test_after_a_flush_there_is_a_new_epoch_and_writes_go_on(self) -> None:
        self._lose_all_by(self.server.flush_all)

    def test_after_a_restart_there_is_a_new_epoch_and_writes_go_on(self) -> None:
        self._lose_all_by(self.server.restart)

    def test_a_writer_paused_over_a_flush_leaves_nothing_half_done(self) -> None:
        for step in STEPS["update"][1:-1]:
            with self.subTest(step=step.name):
                writer = self.client()
                record = self.put(writer, f"k-{step.name}", b"one")
                paused = step_case.PausedWriter(
                    self.opened(), step, records.Write(record.key, record.revision, b"two")
                )
                self.assertTrue(paused.reached.wait(contract_case.PATIENCE_SECONDS))
                # One that saw the old epoch: a new client may begin another in the
                # very second of the old one, which others would then replace.
                late = self.client()
                self.server.flush_all()
                reader = contract_case.FeedReader(late)
                self.assertIn(paused.verdict(), (Verdict.LOST, None))
                self.assert_reader_is_right(reader)
                self.assertEqual({}, reader.held)

    def test_a_lost_counter_begins_a_new_epoch(self) -> None:
        self._lose_item(lambda epoch: epoch.sequence_key)

    def test_a_lost_page_of_the_index_begins_a_new_epoch(self) -> None:
        self._lose_item(
            lambda epoch: epoch.index_key(record_names.encode(contract_case.key("key-00003")))
        )

    def test_a_lost_record_begins_a_new_epoch(self) -> None:
        self._lose_item(
            lambda epoch: epoch.record_key(record_names.encode(contract_case.key("key-00003")))
        )

    def test_a_lost_record_is_not_taken_for_an_absent_one_by_its_writer(self) -> None:
        client = self.client()
        record = self.fill(client, 5)[3]
        epoch = self._forget(lambda epoch: epoch.record_key(record_names.encode(record.key)))
        with self.assertRaises(errors.BackendUnavailable):
            client.write([records.Write(record.key, 0, b"new")])
        self.assertNotEqual(epoch, client.head().epoch)

    def test_a_lost_record_shows_though_another_is_created_on_its_page_meanwhile(self) -> None:
        asked: dict[str, Callable[[contract.Synchronizer, records.RecordKey], object]] = {
            "write": lambda client, key: client.write([records.Write(key, 0, b"granted again")]),
            "snapshot": lambda client, _key: list(client.snapshot().pages),
        }
        for name, ask in asked.items():
            with self.subTest(name=name):
                client = self.client()
                lost = self.fill(client, 5)[3]
                epoch = self._forget_beside_creations(client, lost, 1)
                with self.assertRaises((errors.BackendUnavailable, contract.SnapshotInterrupted)):
                    ask(client, lost.key)
                self.assertNotEqual(epoch, client.head().epoch)

    def test_a_lost_record_on_a_page_that_changes_all_the_time_is_not_created_anew(self) -> None:
        client = self.client()
        lost = self.fill(client, 5)[3]
        self._forget_beside_creations(client, lost, 1000)
        with self.assertRaises(errors.BackendUnavailable):
            client.write([records.Write(lost.key, 0, b"granted again")])

    def _forget_beside_creations(
        self, client: memcached.MemcachedSynchronizer, lost: records.Record, times: int
    ) -> str:
        """Lose a record, and have others put on its page when a client looks for it alone.

        Returns the epoch's name.
        """
        other, name = self.client(), record_names.encode(lost.key)
        epoch = layout.Epoch.decode(b"nodb", self.raw().get(b"nodb:epoch"))
        beside = (
            each
            for each in (f"beside-{number}" for number in itertools.count())
            if epoch.index_key(record_names.encode(contract_case.key(each)))
            == epoch.index_key(name)
        )
        creations = itertools.islice(beside, times)
        connected: Any = client._connection
        get = connected.get

        def get_beside_creations(keys: Sequence[bytes]) -> dict[bytes, bytes]:
            if list(keys) == [epoch.record_key(name)]:
                for each in itertools.islice(creations, 1):
                    self.put(other, each, b"beside")
            return cast(dict[bytes, bytes], get(keys))

        connected.get = get_beside_creations
        return self._forget(lambda epoch: epoch.record_key(name))

    def test_a_record_that_the_server_dropped_to_move_a_page_is_not_read_as_absent(self) -> None:
        """Items that a client's unread reply holds are dropped in the end, and told nowhere."""
        client = self.client()
        written = [self.put(client, f"large-{number}", bytes(50_000)) for number in range(40)]
        epoch = layout.Epoch.decode(b"nodb", self.raw().get(b"nodb:epoch"))
        keys = [epoch.record_key(record_names.encode(each.key)) for each in written]
        with (
            socket.socket() as frozen,
            socket.create_connection(("127.0.0.1", self.server.port)) as operator,
        ):
            frozen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            frozen.connect(("127.0.0.1", self.server.port))
            frozen.sendall(b"get " + b" ".join(keys * 5) + b"\r\n")
            raw = self.raw()
            classes = {name.split(b":")[1] for name in raw.stats("items")}
            largest = max(map(int, classes))
            self.eventually(
                lambda: (
                    self._moves_a_page(operator, largest)
                    or raw.stats()[b"slab_reassign_busy_items"]
                ),
                "a page is moved that holds what a client reads",
            )
            lost = written[7].key
            # As the server does it after a thousand looks; its count of those comes later yet.
            self._forget(lambda epoch: epoch.record_key(record_names.encode(lost)))
            self.assertEqual(0, raw.stats()[b"evictions"])
            self.assertEqual({}, client.read([lost, written[8].key]))
        self.assertNotEqual(epoch.name, client.head().epoch)

    def _moves_a_page(self, operator: socket.socket, slab_class: int) -> bool:
        operator.sendall(b"slabs reassign %d 10\r\n" % slab_class)
        operator.recv(100)
        return False

    def test_an_item_that_somebody_else_wrote_is_told_with_the_remedy(self) -> None:
        client = self.client()
        start = client.head()
        record = self.put(client, "a", b"one")
        epoch, raw = layout.Epoch.decode(b"nodb", self.raw().get(b"nodb:epoch")), self.raw()
        key = epoch.record_key(record_names.encode(record.key))
        whole = raw.get(key)
        asked: tuple[Callable[[], object], ...] = (
            lambda: client.read([record.key]),
            lambda: client.write([records.Write(record.key, record.revision, b"two")]),
            lambda: client.fetch(start),
            lambda: contract_case.everything(client),
        )
        for foreign in (b"", b"garbage", b"\x01\x09" + whole[2:]):
            with self.subTest(foreign=foreign):
                raw.set(key, foreign, noreply=False)
                for ask in asked:
                    with self.assertRaisesRegex(errors.BackendUnavailable, "not written by"):
                        ask()

    def test_a_lost_record_in_the_feed_needs_a_resync(self) -> None:
        client = self.client()
        start = client.head()
        record = self.put(client, "a", b"one")
        self._forget(lambda epoch: epoch.record_key(record_names.encode(record.key)))
        answer = client.fetch(start)
        self.assertIsInstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.RECORD_MISSING, answer.reason)
        self.assertNotEqual(start.epoch, client.head().epoch)

    def test_an_expired_log_is_not_taken_for_writers_that_gave_up(self) -> None:
        reader, writer = self.opened(log_ttl_seconds=2), self.opened(log_ttl_seconds=2)
        start = reader.head()
        self.put(writer, "a", b"one")
        time.sleep(3.5)
        answer = reader.fetch(start)
        if isinstance(answer, records.Changes):
            # The reader begins to wait; it must not end in skipping.
            self.assertEqual(start, answer.cursor)
            time.sleep(memcached_case.FENCE_AFTER_SECONDS)
            answer = reader.fetch(start)
        self.assertIsInstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.HISTORY_TRUNCATED, answer.reason)

    def test_a_writer_paused_for_longer_than_the_log_is_kept_is_shut_out(self) -> None:
        writer = self.opened(log_ttl_seconds=2)
        record = self.put(writer, "a", b"one")
        paused = step_case.PausedWriter(
            self.opened(log_ttl_seconds=2),
            Step.RECORD,
            records.Write(record.key, record.revision, b"late"),
        )
        self.assertTrue(paused.reached.wait(contract_case.PATIENCE_SECONDS))
        time.sleep(3.5)
        late = self.opened(log_ttl_seconds=2)
        # The first settling begins to wait for the slot, the second knows
        # that it expired and rewrites what may be written with an old token.
        late.snapshot()
        time.sleep(memcached_case.FENCE_AFTER_SECONDS)
        reader = contract_case.FeedReader(late)
        self.assertEqual(b"one", reader.held[record.key].payload)
        # It is past its time-out as well, so it does not try again.
        self.assertIsNone(paused.verdict())
        self.assert_reader_is_right(reader)
        self.assertEqual(b"one", reader.held[record.key].payload)

    def _lose_all_by(self, accident) -> None:  # type: ignore[no-untyped-def]
        client = self.client()
        reader = contract_case.FeedReader(self.client())
        old = self.fill(client, 20)[0]
        reader.catch_up()
        accident()
        answer = client.fetch(reader.cursor)
        self.assertIsInstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.EPOCH_CHANGED, answer.reason)
        [late] = client.write([records.Write(old.key, old.revision, b"late")])
        self.assertEqual(records.WriteResult(Verdict.LOST, None), late)
        again = self.put(client, old.key.key, b"new")
        self.assertNotEqual(again.revision, old.revision)
        reader.catch_up()
        self.assertEqual({again.key: again}, reader.held)

    def _forget(self, key_of) -> str:  # type: ignore[no-untyped-def]
        """Delete one item, as an eviction does; returns the epoch's name."""
        raw = self.raw()
        epoch = layout.Epoch.decode(b"nodb", raw.get(b"nodb:epoch"))
        self.assertTrue(raw.delete(key_of(epoch), noreply=False))
        return epoch.name

    def _lose_item(self, key_of) -> None:  # type: ignore[no-untyped-def]
        client = self.client()
        self.fill(client, 20)
        reader = contract_case.FeedReader(self.client())
        epoch = self._forget(key_of)
        reader.load()
        self.assertNotEqual(epoch, reader.cursor.epoch)
        self.assertEqual({}, reader.held)
        written = self.put(client, "key-00003", b"new")
        self.assert_reader_is_right(reader)
        self.assertEqual({written.key: written}, reader.held)


class TestFullServer(memcached_case.MemcachedCase):
    """A server that is full refuses or evicts; neither is silent."""

    options = ("-m", "8", "-M")

    def test_a_full_server_refuses_and_keeps_what_it_holds(self) -> None:
        client = self.client()
        written: dict[records.RecordKey, bytes] = {}
        with self.assertRaises(errors.BackendUnavailable) as caught:
            for number in range(4000):
                payload = b"%d" % number + bytes(5000)
                [result] = client.write(
                    [records.Write(contract_case.key(f"k{number}"), 0, payload)]
                )
                if result.won:
                    written[contract_case.key(f"k{number}")] = payload
        self.assertIn("out of memory", str(caught.exception))
        self.assertGreater(len(written), 500)
        held = {key: record.payload for key, record in contract_case.everything(client).items()}
        self.assertEqual(written, held)


class TestEvictingServer(memcached_case.MemcachedCase):
    options = ("-m", "8")

    def write_until_evicted(
        self, client: memcached.MemcachedSynchronizer
    ) -> dict[records.RecordKey, records.Record]:
        """Write more than the server holds; returns what was acknowledged."""
        raw = self.raw()
        number = 0
        written = {}
        while not raw.stats()[b"evictions"]:
            batch = [
                records.Write(contract_case.key(f"k{number + i}"), 0, bytes(5000))
                for i in range(50)
            ]
            number += 50
            try:
                results = client.write(batch)
            except errors.BackendUnavailable:
                break
            written.update((each.record.key, each.record) for each in results if each.record)
        return written

    def test_an_evicted_record_is_not_read_as_absent(self) -> None:
        client = self.client()
        epoch = client.head().epoch
        written = self.write_until_evicted(client)
        found = client.read(list(written))
        self.assertEqual(written if client.head().epoch == epoch else {}, found)

    def test_evicted_records_end_the_epoch_instead_of_going_missing(self) -> None:
        client = self.client()
        epoch = client.head().epoch
        self.write_until_evicted(client)
        reader = contract_case.FeedReader(self.client())
        self.assertNotEqual(epoch, reader.cursor.epoch)
        self.assert_reader_is_right(reader)


class TestUnknownOutcomes(memcached_case.MemcachedCase):
    """A reply that does not come is neither a win nor a loss."""

    def test_a_reply_lost_after_the_write_is_settled_by_reading(self) -> None:
        before = self.put(self.client(), "a", b"one")
        lossy = self.enterContext(proxy.Proxy(self.server.port))
        writer = self.through(lossy.address)
        writer.on_step = step_case.at(Step.RECORD, lossy.lose_replies)
        [result] = writer.write([records.Write(before.key, before.revision, b"two")])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)
        lossy.heal()
        self.assertEqual(b"two", writer.read([before.key])[before.key].payload)

    def test_a_request_that_never_arrived_is_settled_by_reading(self) -> None:
        before = self.put(self.client(), "a", b"one")
        lossy = self.enterContext(proxy.Proxy(self.server.port))
        writer = self.through(lossy.address)
        writer.on_step = step_case.at(Step.RECORD, lossy.lose_requests)
        reader = contract_case.FeedReader(self.client())
        [result] = writer.write([records.Write(before.key, before.revision, b"two")])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)
        lossy.heal()
        self.assertEqual({before.key: before}, writer.read([before.key]))
        after = self.put(writer, "a", b"three", before.revision)
        self.assert_reader_is_right(reader)
        self.assertEqual({after.key: after}, reader.held)

    def test_a_connection_cut_before_the_record_is_sent_means_nothing_was_written(self) -> None:
        before = self.put(self.client(), "a", b"one")
        lossy = self.enterContext(proxy.Proxy(self.server.port))
        for step in (Step.SEQUENCE, Step.SLOT):
            with self.subTest(step=step.name):
                writer = self.through(lossy.address)
                writer.on_step = step_case.at(step, lossy.lose_requests)
                with self.assertRaises(errors.BackendUnavailable):
                    writer.write([records.Write(before.key, before.revision, b"two")])
                lossy.heal()
                self.assertEqual({before.key: before}, self.client().read([before.key]))

    def test_idle_connections_that_broke_are_no_news_to_the_caller(self) -> None:
        lossy = self.enterContext(proxy.Proxy(self.server.port))
        client = self.through(lossy.address)
        before = self.put(client, "a", b"one")
        lossy.cut()
        self.assertEqual({before.key: before}, client.read([before.key]))
        lossy.cut()
        self.put(client, "a", b"two", before.revision)

    def test_a_broken_connection_of_one_thread_takes_no_other_threads_away(self) -> None:
        edge = connection.Connection(
            memcached_options.MemcachedOptions((self.memcached.address,), timeout_seconds=60.0)
        )
        edge.open()
        self.addCleanup(edge.close)
        self.addCleanup(self.server.resume)
        pool = edge._pool.client_pool
        answers: list[object] = []

        def ask() -> None:
            try:
                answers.append(edge.get([b"absent"]))
            except Exception as error:
                answers.append(error)

        def asking(count: int) -> list[threading.Thread]:
            """Return threads that wait for the server, which stands still."""
            self.server.pause()
            threads = [threading.Thread(target=ask) for _ in range(count)]
            for number, thread in enumerate(threads, 1):
                thread.start()
                self.eventually(
                    lambda number=number: (
                        len(pool.used) == number
                        and all(  # type: ignore[misc]
                            each.sock for each in pool.used
                        )
                    ),
                    "the threads ask",
                )
            return threads

        def answered(threads: list[threading.Thread]) -> None:
            self.server.resume()
            for thread in threads:
                thread.join(contract_case.PATIENCE_SECONDS)

        answered(asking(2))
        self.assertEqual(2, len(pool.free))
        threads = asking(1)
        [idle] = pool.free
        idle.sock.shutdown(socket.SHUT_RDWR)
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
        self.eventually(lambda: idle.sock is None, "the broken connection is noticed")
        answered(threads)
        self.assertEqual([{}] * 4, answers)

    def test_a_server_that_stands_still_is_unavailable_within_the_time_out(self) -> None:
        client = self.client()
        before = self.put(client, "a", b"one")
        head = client.head()
        self.server.pause()
        self.addCleanup(self.server.resume)
        for call in (
            lambda: client.write([records.Write(before.key, before.revision, b"two")]),
            lambda: client.read([before.key]),
            lambda: client.fetch(head),
            client.head,
        ):
            self.assert_gives_up(call, memcached_case.TIMEOUT_SECONDS * 1.5)
        self.server.resume()
        self.assertEqual({before.key: before}, client.read([before.key]))

    def test_a_server_that_stops_in_mid_write_leaves_the_outcome_unknown(self) -> None:
        client = self.client()
        before = self.put(client, "a", b"one")
        reader = contract_case.FeedReader(self.client())
        writer = self.opened()
        writer.on_step = step_case.at(Step.RECORD, self.server.pause)
        self.addCleanup(self.server.resume)
        [result] = writer.write([records.Write(before.key, before.revision, b"two")])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)
        self.server.resume()
        self.assert_reader_is_right(reader)
        after = client.read([before.key])[before.key]
        self.put(client, "a", b"three", after.revision)
        self.assert_reader_is_right(reader)

    def test_a_dead_server_is_unavailable_and_comes_back(self) -> None:
        client = self.client()
        self.put(client, "a", b"one")
        self.server.kill()
        with self.assertRaises(errors.BackendUnavailable) as caught:
            client.head()
        self.assertIn(self.memcached.address, str(caught.exception))
        self.server.start()
        self.put(client, "a", b"two")


class TestConfiguration(memcached_case.MemcachedCase):
    def test_several_servers_are_refused_with_a_remedy(self) -> None:
        options = memcached.MemcachedOptions(servers=("one:11211", "two:11211"))
        with self.assertRaises(errors.ConfigurationError) as caught:
            memcached.MemcachedSynchronizer(options)
        self.assertIn("exactly one", str(caught.exception))
        self.assertIn("[nodb_memcached] servers", str(caught.exception))

    def test_a_prefix_that_is_no_key_is_refused(self) -> None:
        with self.assertRaises(errors.ConfigurationError):
            memcached.MemcachedSynchronizer(memcached.MemcachedOptions(key_prefix="a b"))

    def test_a_server_without_cas_is_refused(self) -> None:
        server = self.enterContext(servers.Memcached("-C"))
        client = self.make(servers=(server.address,))
        with self.assertRaises(errors.ConfigurationError) as caught:
            client.open()
        self.assertIn("-C", str(caught.exception))

    def test_a_server_with_small_items_is_refused(self) -> None:
        server = self.enterContext(servers.Memcached("-I", "512k"))
        with self.assertRaises(errors.ConfigurationError):
            self.make(servers=(server.address,)).open()

    def test_an_evicting_server_is_warned_of_once(self) -> None:
        server = self.enterContext(servers.Memcached())
        client = self.make(servers=(server.address,))
        with self.assertLogs("nova_nodb_scheduler", "WARNING") as logs:
            client.open()
            client.open()
        self.addCleanup(client.close)
        self.assertEqual(1, sum("-M" in line for line in logs.output))

    def test_two_prefixes_share_a_server_without_meeting(self) -> None:
        one = self.client()
        two = memcached.MemcachedSynchronizer(
            memcached.MemcachedOptions(servers=(self.memcached.address,), key_prefix="two")
        )
        two.open()
        self.addCleanup(two.close)
        written = self.put(one, "a", b"one")
        self.assertEqual({}, contract_case.everything(two))
        two.reset()
        self.assertEqual({written.key: written}, contract_case.everything(one))

    def test_another_clouds_prefix_is_refused_and_left_as_it_is(self) -> None:
        client = self.opened(cloud_name="the east")
        written = self.put(client, "a", b"one")
        for name in ("west", ""):
            with self.assertRaises(errors.ConfigurationError) as caught:
                self.make(cloud_name=name).open()
            self.assertIn("[nodb_memcached] key_prefix", str(caught.exception))
            self.assertIn("'the east'", str(caught.exception))
            self.assertIn(repr(name), str(caught.exception))
        self.assertEqual(
            {written.key: written}, contract_case.everything(self.opened(cloud_name="the east"))
        )

    def test_a_prefix_stays_its_clouds_after_a_reset(self) -> None:
        client = self.opened(cloud_name="east")
        client.reset()
        self.put(client, "a", b"one")
        with self.assertRaises(errors.ConfigurationError):
            self.make(cloud_name="west").open()

    def test_names_with_control_characters_are_refused(self) -> None:
        for key in (records.RecordKey("n", "a\nb"), records.RecordKey("a\x1fb", "c")):
            [refused] = self.client().write([records.Write(key, 0, b"x")])
            self.assertIs(records.Verdict.REFUSED, refused.verdict)

    def test_a_client_is_made_from_configuration(self) -> None:
        conf = cfg.ConfigOpts()
        memcached.MemcachedSynchronizer.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override("servers", [self.memcached.address], group="nodb_memcached")
        client = memcached.MemcachedSynchronizer.from_config(conf)
        client.open()
        self.addCleanup(client.close)
        self.put(client, "a", b"one")


def _kinds_and_steps() -> list[tuple[str, memcached.Step]]:
    return [(kind, step) for kind, steps in STEPS.items() for step in steps]
