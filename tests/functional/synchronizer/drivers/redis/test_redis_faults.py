# SPDX-License-Identifier: Apache-2.0
"""The redis driver under crashes, pauses, losses and failovers, on real servers."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import redis
from nova_nodb_scheduler.synchronizer.drivers.redis import epochs, scripts
from nova_nodb_scheduler.testing import proxy, redis_server
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import step_case
from tests.functional.synchronizer.drivers.redis import redis_case

Step = redis.Step
Verdict = records.Verdict

WRITE_STEPS = (Step.COMMIT, Step.REPLY, Step.DONE)
KINDS = ("create", "update", "delete")


class TestSlowClients(step_case.SlowClients, redis_case.RedisCase):
    """Clients that die or stand still at every step, longer than time-outs."""

    def test_every_step_has_its_case_here(self) -> None:
        self.assertEqual({*WRITE_STEPS, Step.EPOCH, Step.COLLECT}, set(Step))
        self.assertEqual(tuple(step.value for step in Step), redis.RedisSynchronizer.STEPS)

    def test_a_writer_killed_at_any_step_blocks_nobody_and_misleads_nobody(self) -> None:
        for kind, step in _kinds_and_steps():
            with self.subTest(kind=kind, step=step.name):
                write = self._prepare(kind, step)
                before = self.writer.read([write.key]).get(write.key)
                self.die(step, lambda client, write=write: client.write([write]))
                self.assert_reader_is_right(self.reader)
                if step is Step.COMMIT:
                    self.assertEqual(before, self.writer.read([write.key]).get(write.key))
                if step is Step.DONE:
                    self.assertNotEqual(before, self.writer.read([write.key]).get(write.key))
                self.rewrite(write.key)
                self.assert_reader_is_right(self.reader)

    def test_a_writer_paused_at_any_step_wins_where_it_is_alone(self) -> None:
        paused = []
        for kind, step in _kinds_and_steps():
            paused.append((kind, step, self.pause(step, self._prepare(kind, step))))
            self.put(self.writer, f"other-{kind}-{step.name}", b"later")
        time.sleep(redis_case.TIMEOUT_SECONDS * 1.2)
        for kind, step, client in paused:
            with self.subTest(kind=kind, step=step.name):
                result = client.let_go()
                self.assertIs(Verdict.WON, result.verdict if result else None)
                self.assert_reader_is_right(self.reader)

    def test_a_writer_paused_before_it_sends_loses_against_who_wrote_meanwhile(self) -> None:
        for kind in KINDS:
            with self.subTest(kind=kind):
                write = self._prepare(kind, Step.COMMIT)
                paused = self.pause(Step.COMMIT, write)
                winner = self.rewrite(write.key)
                self.assertEqual(records.WriteResult(Verdict.LOST, winner), paused.let_go())
                self.assert_reader_is_right(self.reader)

    def test_a_client_killed_before_it_begins_an_epoch_leaves_that_to_the_next(self) -> None:
        self.server.flush_all()
        self.die(Step.EPOCH, lambda client: client.head())
        written = self.put(self.client(), "a", b"one")
        self.reader.catch_up()
        self.assertEqual({written.key: written}, self.reader.held)

    def test_clients_that_pause_before_they_begin_an_epoch_begin_one_together(self) -> None:
        barrier = threading.Barrier(4)
        heads: list[records.Cursor] = []
        self.server.flush_all()

        def begin() -> None:
            client = self.make()
            client.on_step = step_case.at(Step.EPOCH, barrier.wait)
            client.open()
            heads.append(client.head())
            client.close()

        self.in_threads([begin] * 4)
        self.assertEqual(1, len(set(heads)))

    def test_a_collector_killed_or_paused_harms_nobody(self) -> None:
        self.drop(self.writer, self.put(self.writer, "a", b"one"))
        self.reader.catch_up()
        time.sleep(0.01)
        self.die(Step.COLLECT, lambda client: client.collect(0.0))
        self.assertEqual(1, self.writer.statistics()["tombstones"])
        slow = self.opened()
        again: list[records.Record] = []
        slow.on_step = step_case.at(
            Step.COLLECT, lambda: again.append(self.put(self.writer, "a", b"two"))
        )
        self.assertEqual(0, slow.collect(0.0).tombstones)
        self.assert_reader_is_right(self.reader)
        self.assertEqual({again[0].key: again[0]}, self.reader.held)

    def test_a_reader_paused_past_a_collection_takes_a_snapshot(self) -> None:
        record = self.put(self.writer, "a", b"one")
        self.reader.catch_up()
        self.drop(self.writer, record)
        again = self.put(self.writer, "a", b"two")
        self.drop(self.writer, again)
        kept = self.put(self.writer, "b", b"kept")
        time.sleep(0.01)
        self.writer.collect(0.0)
        again = self.put(self.writer, "a", b"three")
        self.reader.catch_up()
        self.assertEqual(1, self.reader.resyncs)
        self.assertEqual({again.key: again, kept.key: kept}, self.reader.held)

    def _prepare(self, kind: str, step: Step) -> records.Write:
        """Return a write of a kind that will win if nobody else writes."""
        name = f"{kind}-{step.name}-{time.monotonic_ns()}"
        revision = 0 if kind == "create" else self.put(self.writer, name, b"before").revision
        return records.Write(contract_case.key(name), revision, b"paused", deleted=kind == "delete")


class TestLosses(redis_case.RedisCase):
    """What the server loses shows as a new epoch, whatever it holds afterwards."""

    def test_a_flush_begins_a_new_epoch(self) -> None:
        self._lose_by(self.server.flush_all)

    def test_a_loss_in_mid_run_is_a_warning_and_a_first_start_is_none(self) -> None:
        with self.assertNoLogs(epochs.__name__, logging.WARNING):
            client = self.client()
        self.server.flush_all()
        with self.assertLogs(epochs.__name__, logging.WARNING) as logged:
            client.head()
        self.assertIn("the server held none", "".join(logged.output))

    def test_a_restart_without_persistence_begins_a_new_epoch(self) -> None:
        self._lose_by(self.server.restart)

    def test_any_lost_key_begins_a_new_epoch(self) -> None:
        for part in ("meta", "records", "order"):
            with self.subTest(part=part):
                self._lose_by(lambda part=part: self.raw().unlink(f"{{nodb}}:{part}"))

    def test_lost_tombstones_begin_a_new_epoch(self) -> None:
        client = self.client()
        self.drop(client, self.put(client, "dead", b"x"))
        self._lose_by(lambda: self.raw().unlink("{nodb}:graves"))

    def test_a_lost_stream_of_wake_ups_loses_nothing(self) -> None:
        client, reader = self.client(), contract_case.FeedReader(self.client())
        self.raw().unlink("{nodb}:wake")
        self.put(client, "a", b"one")
        self.assert_reader_is_right(reader)

    def test_a_stream_that_takes_no_wake_up_keeps_no_write_from_being_told(self) -> None:
        client, waiter = self.client(), self.opened(wake_check_seconds=90.0, timeout_seconds=180.0)
        reader = contract_case.FeedReader(self.client())
        epoch = client.head().epoch
        # As an operator's hand does, or the stream of a later epoch beside keys put back.
        self.raw().xadd("{nodb}:wake", {"by": "hand"}, id="9999999999999-0")
        try:
            self.put(client, "a", b"one")
        except errors.BackendUnavailable as error:
            self.fail(f"told as not written: {error}")
        self.assert_reader_is_right(reader)
        # From then on it wakes again.
        head = waiter.head()
        self.assertEqual(epoch, head.epoch)
        threading.Timer(0.3, lambda: self.put(client, "b", b"two")).start()
        began = time.monotonic()
        self.assertTrue(waiter.wait(head, 80.0))
        self.assertLess(time.monotonic() - began, 40.0)
        self.assert_reader_is_right(reader)

    def test_nothing_is_left_of_a_write_that_is_refused_half_way(self) -> None:
        """A right that is taken away in mid-run, at whatever command it is missed."""
        raw = self.raw()
        raw.acl_setuser("admin", enabled=True, nopass=True, commands=["+@all"], keys=["*"])
        raw.auth(username="admin", password="any")
        for right in ("hset", "hdel", "zadd", "zrem", "hexists", "xadd"):
            for deleted in (False, True):
                with self.subTest(right=right, deleted=deleted):
                    self._refuse_half_way(raw, right, deleted)

    def _refuse_half_way(self, raw: Any, right: str, deleted: bool) -> None:
        client = self.client()
        client.reset()
        before = self.put(client, "a", b"before")
        reader = contract_case.FeedReader(self.client())
        raw.execute_command("ACL", "SETUSER", "default", f"-{right}")
        late = records.Write(before.key, before.revision, b"refused", deleted=deleted)
        result = None
        try:
            [result] = client.write([late])
        except errors.BackendUnavailable:
            pass
        finally:
            raw.execute_command("ACL", "SETUSER", "default", f"+{right}")
        reader.catch_up()
        held = contract_case.everything(self.client())
        self.assertEqual(contract_case.states(held), contract_case.states(reader.held))
        if result is None:
            # It was told that nothing was written: the record stands, or its epoch ended.
            self.assertIn(held, ({before.key: before}, {}))
        else:
            self.assertTrue(result.won)

    def test_a_writer_paused_over_a_flush_does_not_bring_the_old_epoch_back(self) -> None:
        writer = self.client()
        record = self.put(writer, "a", b"one")
        paused = step_case.PausedWriter(
            self.opened(), Step.COMMIT, records.Write(record.key, record.revision, b"late")
        )
        self.assertTrue(paused.reached.wait(contract_case.PATIENCE_SECONDS))
        self.server.flush_all()
        reader = contract_case.FeedReader(self.client())
        self.assertEqual(records.WriteResult(Verdict.LOST, None), paused.let_go())
        self.assert_reader_is_right(reader)
        self.assertEqual({}, reader.held)

    def test_a_waiter_that_is_blocked_while_the_epoch_changes_is_woken(self) -> None:
        waiter, other = self.opened(wake_check_seconds=90.0, timeout_seconds=180.0), self.client()
        for change in (other.reset, lambda: (self.server.flush_all(), other.head())):
            woken: list[bool] = []
            cursor = waiter.head()
            thread = threading.Thread(
                target=lambda cursor=cursor, woken=woken: woken.append(waiter.wait(cursor, 80.0))
            )
            thread.start()
            time.sleep(0.3)
            change()
            # Long before it looks by itself.
            thread.join(40.0)
            self.assertEqual([True], woken)

    def _lose_by(self, accident: Callable[[], object]) -> None:
        client = self.client()
        old = self.fill(client, 20)[0]
        reader = contract_case.FeedReader(self.client())
        accident()
        answer = client.fetch(reader.cursor)
        self.assertIsInstance(answer, records.ResyncNeeded)
        assert isinstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.EPOCH_CHANGED, answer.reason)
        [late] = client.write([records.Write(old.key, old.revision, b"late")])
        self.assertEqual(records.WriteResult(Verdict.LOST, None), late)
        again = self.put(client, old.key.key, b"new")
        self.assertGreater(again.revision, old.revision)
        reader.catch_up()
        self.assertEqual({again.key: again}, reader.held)
        client.reset()


class TestRestoredData(redis_case.RedisCase):
    """A server that comes back with data, complete or not: nobody can tell which."""

    options = ("--appendonly", "yes", "--appendfsync", "always", "--save", "3600", "1000000")

    def test_a_restart_with_persistence_begins_a_new_epoch(self) -> None:
        self._restart(lambda: None)

    def test_a_restored_old_dump_begins_a_new_epoch(self) -> None:
        self.put(self.client(), "before", b"the dump")
        self.raw().save()
        dump = self.server.directory / "dump.rdb"
        kept = self.server.directory / "kept.rdb"
        shutil.copy(dump, kept)

        def restore() -> None:
            # A directory from Redis 7 on, a file before.
            shutil.rmtree(self.server.directory / "appendonlydir", ignore_errors=True)
            (self.server.directory / "appendonly.aof").unlink(missing_ok=True)
            shutil.copy(kept, dump)
            # With an append-only file switched on, a dump alone is not read.
            self.server._options = ("--save", "3600", "1000000")

        self._restart(restore)

    def _restart(self, meanwhile: Callable[[], None]) -> None:
        client = self.client()
        reader = contract_case.FeedReader(self.client())
        claim = self.put(client, "claim", b"acknowledged")
        reader.catch_up()
        self.server.kill()
        meanwhile()
        self.server.start()
        self.assertTrue(self.raw().exists("{nodb}:records"), "the server kept nothing")
        answer = client.fetch(reader.cursor)
        self.assertIsInstance(answer, records.ResyncNeeded)
        self.assertEqual({}, contract_case.everything(client))
        [late] = client.write([records.Write(claim.key, claim.revision, b"late")])
        self.assertIs(Verdict.LOST, late.verdict)
        written = self.put(client, "claim", b"published anew")
        reader.catch_up()
        self.assertEqual({written.key: written}, reader.held)


class TestReplication(redis_case.RedisCase):
    """A primary and a replica, behind an address that moves as a failover's does."""

    def setUp(self) -> None:
        super().setUp()
        self.feed = self.enterContext(proxy.Proxy(self.server.port))
        self.front = self.enterContext(proxy.Proxy(self.server.port))
        self.replica = self.enterContext(redis_server.Redis()).server

    def make_synchronizer(self) -> redis.RedisSynchronizer:
        return self.make(url=f"redis://{self.front.address}")

    def test_a_stale_replica_that_is_promoted_is_noticed(self) -> None:
        client, reader, cursor = self._lose_writes_by_failover()
        answer = client.fetch(cursor)
        self.assertIsInstance(answer, records.ResyncNeeded)
        assert isinstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.EPOCH_CHANGED, answer.reason)
        # What the replica holds grants nothing: hosts are published anew.
        self.assertEqual({}, contract_case.everything(client))
        written = self.put(client, "a", b"anew")
        reader.catch_up()
        self.assertEqual({written.key: written}, reader.held)

    def test_a_promoted_replica_that_was_written_past_the_cursor_is_noticed(self) -> None:
        client, reader, cursor = self._lose_writes_by_failover()
        other = self.client()
        self.fill(other, 50)
        self.assertGreater(other.head().version, cursor.version)
        self.assertIsInstance(client.fetch(cursor), records.ResyncNeeded)
        reader.catch_up()
        self.assertEqual(contract_case.everything(other), reader.held)

    def test_a_replica_at_the_address_is_unavailable_and_serves_nothing(self) -> None:
        client = self.client()
        record = self.put(client, "a", b"one")
        head = client.head()
        self._replicate()
        self.front.redirect(self.replica.port)
        for call in (
            client.head,
            lambda: client.fetch(head),
            lambda: client.read([record.key]),
            lambda: client.write([records.Write(record.key, record.revision, b"two")]),
            lambda: client.wait(head, 1.0),
            lambda: client.collect(0.0),
        ):
            with self.assertRaises(errors.BackendUnavailable) as caught:
                call()
            self.assertIn("primary", str(caught.exception))

    def test_a_primary_demoted_and_promoted_again_on_an_open_connection_is_noticed(self) -> None:
        """The connection never breaks, so looking at every connect would miss it."""
        client = self.client()
        self._replicate()
        self.feed.lose_replies()
        cursor = self._acknowledge(client)
        with self.server.client() as primary, self.replica.client() as replica:
            replica.replicaof("NO", "ONE")
            primary.replicaof("127.0.0.1", self.replica.port)
            self.eventually(
                lambda: primary.info("replication")["master_link_status"] == "up", "a full sync"
            )
            self.assertEqual(1, primary.hlen("{nodb}:records"))
            primary.replicaof("NO", "ONE")
        self.assertIsInstance(client.fetch(cursor), records.ResyncNeeded)
        self.assertEqual({}, contract_case.everything(client))

    def test_a_first_replica_and_the_end_of_the_last_one_keep_the_epoch(self) -> None:
        client = self.client()
        self.put(client, "a", b"one")
        head = client.head()
        with self.server.client() as raw:
            raw.config_set("repl-backlog-ttl", 1)
            identities = {raw.info("replication")["master_replid"]}
            self._replicate()
            identities.add(raw.info("replication")["master_replid"])
            self.assertEqual(head.epoch, client.head().epoch)
            with self.replica.client() as replica:
                replica.replicaof("NO", "ONE")
            self.eventually(
                lambda: raw.info("replication")["master_replid"] not in identities,
                "the backlog is given up",
            )
        self.assertEqual(2, len(identities))
        self.assertEqual(1, self.changes(client, head).records[0].version - head.version)
        self.put(client, "b", b"two")

    def test_a_primary_without_the_replicas_it_is_told_to_have_refuses_and_loses_nothing(
        self,
    ) -> None:
        client = self.client()
        record = self.put(client, "a", b"one")
        with self.server.client() as raw:
            raw.config_set("min-replicas-to-write", 1)
            with self.assertRaises(errors.BackendUnavailable) as caught:
                client.write([records.Write(record.key, record.revision, b"two")])
            self.assertIn("min-replicas-to-write", str(caught.exception))
            self.assertEqual({record.key: record}, contract_case.everything(client))
            raw.config_set("min-replicas-to-write", 0)
        self.put(client, "a", b"two", record.revision)

    def _lose_writes_by_failover(
        self,
    ) -> tuple[redis.RedisSynchronizer, contract_case.FeedReader, records.Cursor]:
        client = self.client()
        reader = contract_case.FeedReader(self.client())
        self._replicate()
        self.feed.lose_replies()
        cursor = self._acknowledge(client)
        reader.catch_up()
        self.server.kill()
        with self.replica.client() as replica:
            self.assertEqual(1, replica.hlen("{nodb}:records"))
            replica.replicaof("NO", "ONE")
        self.front.redirect(self.replica.port)
        return client, reader, cursor

    def _acknowledge(self, client: redis.RedisSynchronizer) -> records.Cursor:
        """Write what the replica does not hear of."""
        self.fill(client, 20)
        return client.head()

    def _replicate(self) -> None:
        """Let the replica follow the primary, and hear of one record."""
        client = self.client()
        self.put(client, "replicated", b"one")
        with self.replica.client() as replica:
            replica.replicaof("127.0.0.1", int(self.feed.address.rpartition(":")[2]))
            self.eventually(lambda: replica.hlen("{nodb}:records") > 0, "the replica follows")


class TestFullServer(redis_case.RedisCase):
    """A server that is full refuses, loses nothing, and can be emptied."""

    options = ("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")

    def test_a_full_server_refuses_by_name_and_keeps_what_it_acknowledged(self) -> None:
        client = self.client()
        reader = contract_case.FeedReader(self.client())
        held, refusal = self._fill_up(client)
        self.assertIn("raise its maxmemory", refusal)
        self.assertGreater(len(held), 200)
        self.assertEqual(held, contract_case.everything(client))
        self.assert_reader_is_right(reader)

    def test_deletion_and_collection_make_room_in_a_full_server(self) -> None:
        client = self.client()
        held, _refusal = self._fill_up(client)
        reader = contract_case.FeedReader(self.client())
        dropped = list(held.values())[:100]
        results = client.write(
            [records.Write(each.key, each.revision, deleted=True) for each in dropped]
        )
        self.assertTrue(all(result.won for result in results))
        self.assert_reader_is_right(reader)
        time.sleep(0.01)
        self.assertEqual(100, client.collect(0.0).tombstones)
        self.put(client, "again", bytes(5000))
        self.assert_reader_is_right(reader)

    def test_a_batch_that_is_refused_in_a_full_server_leaves_nothing_of_it(self) -> None:
        client = self.client()
        held, _refusal = self._fill_up(client)
        victim = next(iter(held.values()))
        head = client.head()
        with self.assertRaises(errors.BackendUnavailable):
            client.write(
                [
                    records.Write(victim.key, victim.revision, deleted=True),
                    records.Write(contract_case.key("new"), 0, bytes(5000)),
                ]
            )
        self.assertEqual(head, client.head())
        self.assertEqual(held, contract_case.everything(client))

    def _fill_up(
        self, client: redis.RedisSynchronizer
    ) -> tuple[dict[records.RecordKey, records.Record], str]:
        held: dict[records.RecordKey, records.Record] = {}
        for number in range(5000):
            try:
                record = self.put(client, f"k{number}", b"%d" % number + bytes(5000))
            except errors.BackendUnavailable as error:
                return held, str(error)
            held[record.key] = record
        raise AssertionError("the server takes everything")


class TestFailingDisk(redis_case.RedisCase):
    options = ("--save", "3600", "1000000", "--stop-writes-on-bgsave-error", "yes")

    def test_a_server_that_cannot_save_refuses_by_name_and_loses_nothing(self) -> None:
        client = self.client()
        record = self.put(client, "a", b"one")
        # Its working directory: what the dump would be written to is gone.
        shutil.rmtree(self.server.directory)
        self.addCleanup(self.server.directory.mkdir, exist_ok=True)
        with self.server.client() as raw:
            raw.bgsave()
            self.eventually(
                lambda: raw.info("persistence")["rdb_last_bgsave_status"] == "err", "a failure"
            )
        with self.assertRaises(errors.BackendUnavailable) as caught:
            client.write([records.Write(record.key, record.revision, b"two")])
        self.assertIn("to disk", str(caught.exception))
        self.assertEqual({record.key: record}, contract_case.everything(client))


class TestUnknownOutcomes(redis_case.RedisCase):
    """A reply that does not come is neither a win nor a loss."""

    def setUp(self) -> None:
        super().setUp()
        self.lossy = self.enterContext(proxy.Proxy(self.server.port))
        self.before = self.put(self.client(), "a", b"one")
        self.update = records.Write(self.before.key, self.before.revision, b"two")

    def test_a_reply_lost_after_the_write_is_unknown_and_settled_by_reading(self) -> None:
        writer = self.through(self.lossy.address)
        writer.on_step = step_case.at(Step.COMMIT, self.lossy.lose_replies)
        [result] = writer.write([self.update])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)
        self.lossy.heal()
        after = writer.read([self.before.key])[self.before.key]
        self.assertEqual(b"two", after.payload)
        # Once: a second try would have taken a version, or said LOST.
        self.assertEqual(self.before.version + 1, after.version)

    def test_a_request_that_never_arrived_is_unknown_and_settled_by_reading(self) -> None:
        writer = self.through(self.lossy.address)
        writer.on_step = step_case.at(Step.COMMIT, self.lossy.lose_requests)
        [result] = writer.write([self.update])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)
        self.lossy.heal()
        self.assertEqual({self.before.key: self.before}, writer.read([self.before.key]))

    def test_a_connection_cut_after_the_write_is_unknown_and_not_tried_again(self) -> None:
        writer = self.through(self.lossy.address)

        def cut(step: str) -> None:
            if step == Step.COMMIT.value:
                self.lossy.lose_replies()
            if step == Step.REPLY.value:
                time.sleep(0.3)
                self.lossy.heal()

        writer.on_step = cut
        [result] = writer.write([self.update])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)
        after = self.client().read([self.before.key])[self.before.key]
        self.assertEqual(b"two", after.payload)

    def test_what_was_not_sent_behind_a_lost_reply_is_unknown_too(self) -> None:
        writer = self.through(self.lossy.address)
        calls: list[str] = []

        def second(step: str) -> None:
            calls.append(step)
            if calls.count(Step.COMMIT.value) == 2:
                self.lossy.lose_replies()

        writer.on_step = second
        results = writer.write(
            [records.Write(contract_case.key(f"k{number}"), 0, b"x") for number in range(1200)]
        )
        verdicts = [result.verdict for result in results]
        self.assertEqual([Verdict.WON] * 500 + [Verdict.UNKNOWN] * 700, verdicts)
        self.lossy.heal()
        self.assertEqual(1001, len(contract_case.everything(self.client())))

    def test_a_server_killed_in_mid_write_leaves_the_outcome_unknown(self) -> None:
        writer = self.client()
        self.server.pause()
        process = self.server._process
        # Without waking it first, as Server.kill() does.
        writer.on_step = step_case.at(Step.REPLY, process.kill)
        [result] = writer.write([self.update])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)
        process.wait()
        self.server.start()
        self.assertEqual({}, writer.read([self.before.key]))

    def test_idle_connections_that_broke_are_no_news_to_the_caller(self) -> None:
        client = self.through(self.lossy.address)
        for call in (
            lambda: client.read([self.before.key]),
            client.head,
            client.now_seconds,
            lambda: self.put(client, "b", b"x"),
        ):
            self.lossy.cut()
            time.sleep(0.05)
            call()

    def test_a_server_that_stands_still_is_unavailable_within_the_time_out(self) -> None:
        client = self.client()
        head = client.head()
        self.server.pause()
        self.addCleanup(self.server.resume)
        for call in (
            lambda: client.read([self.before.key]),
            lambda: client.fetch(head),
            lambda: client.wait(head, 30.0),
            client.head,
            client.now_seconds,
        ):
            self.assert_gives_up(call, redis_case.TIMEOUT_SECONDS * 1.5)
        self.server.resume()
        self.assertEqual({self.before.key: self.before}, client.read([self.before.key]))

    def test_a_server_that_stands_still_in_mid_write_leaves_the_outcome_unknown(self) -> None:
        reader, writer = contract_case.FeedReader(self.client()), self.client()
        self.addCleanup(self.server.resume)
        writer.on_step = step_case.at(Step.COMMIT, self.server.pause)
        [result] = writer.write([self.update])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)
        self.server.resume()
        after = writer.read([self.before.key])[self.before.key]
        self.put(writer, "a", b"three", after.revision)
        self.assert_reader_is_right(reader)

    def test_a_dead_server_is_unavailable_and_comes_back_as_a_new_epoch(self) -> None:
        client = self.client()
        head = client.head()
        self.server.kill()
        with self.assertRaises(errors.BackendUnavailable) as caught:
            client.head()
        self.assertIn(self.redis.address, str(caught.exception))
        with self.assertRaises(errors.BackendUnavailable):
            client.write([self.update])
        self.server.start()
        self.put(client, "a", b"two")
        self.assertNotEqual(head.epoch, client.head().epoch)


class TestWakeUps(redis_case.RedisCase):
    """A wait that is not woken ends by itself, one that cannot be is an error."""

    def test_a_lost_wake_up_costs_no_more_than_the_next_look(self) -> None:
        waiter = self.opened(wake_check_seconds=0.5, timeout_seconds=60.0)
        cursor = waiter.head()
        written_at: list[float] = []

        def write_silently() -> None:
            time.sleep(0.2)
            # As a write whose stream entry wakes nobody.
            with self.server.client() as raw:
                text = scripts.WRITE.text.decode()
                silent = text[: text.index("local woken")] + "return results"
                keys = [f"{{nodb}}:{part}" for part in _PARTS]
                arguments = [cursor.epoch, "1", "suite\x1fa", "0", "P", "x"]
                raw.eval(silent, len(keys), *keys, *arguments)
            written_at.append(time.monotonic())

        thread = threading.Thread(target=write_silently)
        thread.start()
        self.assertTrue(waiter.wait(cursor, 30.0))
        woken_at = time.monotonic()
        thread.join()
        # Long before half a time-out, at which it would look for the connection's sake.
        self.assertLess(woken_at - written_at[0], 10.0)
        self.assertEqual(1, len(self.changes(waiter, cursor).records))

    def test_waiting_on_a_half_open_connection_is_an_error_within_the_time_out(self) -> None:
        lossy = self.enterContext(proxy.Proxy(self.server.port))
        waiter = self.through(lossy.address)
        cursor = waiter.head()
        silence = threading.Timer(0.2, lossy.lose_requests)
        silence.start()
        lost = threading.Timer(0.2, lossy.lose_replies)
        lost.start()
        began = time.monotonic()
        with self.assertRaises(errors.BackendUnavailable):
            waiter.wait(cursor, 60.0)
        self.assertLess(time.monotonic() - began, 20.0)
        lossy.heal()
        self.put(self.client(), "a", b"one")
        self.assertTrue(waiter.wait(cursor, 10.0))

    def test_a_waiter_is_woken_at_once_and_by_its_server_not_by_looking(self) -> None:
        waiter = self.opened(wake_check_seconds=20.0, timeout_seconds=40.0)
        writer = self.client()
        for number in range(5):
            cursor = waiter.head()
            written_at: list[float] = []

            def write(number: int = number, written_at: list[float] = written_at) -> None:
                time.sleep(0.1)
                written_at.append(time.monotonic())
                self.put(writer, f"k{number}", b"x")

            thread = threading.Thread(target=write)
            thread.start()
            self.assertTrue(waiter.wait(cursor, 60.0))
            woken_at = time.monotonic()
            thread.join()
            self.assertLess(woken_at - written_at[0], 10.0)

    def test_a_client_that_is_closed_waits_no_longer(self) -> None:
        waiter = self.opened(wake_check_seconds=0.2)
        cursor = waiter.head()
        threading.Timer(0.3, waiter.close).start()
        began = time.monotonic()
        self.assertFalse(self._waits(waiter, cursor))
        self.assertLess(time.monotonic() - began, 10.0)

    @staticmethod
    def _waits(waiter: redis.RedisSynchronizer, cursor: records.Cursor) -> bool:
        try:
            return waiter.wait(cursor, 30.0)
        except errors.BackendUnavailable:
            return False


_PARTS = ("meta", "records", "order", "graves", "wake")


def _kinds_and_steps() -> list[tuple[str, Step]]:
    return [(kind, step) for kind in KINDS for step in WRITE_STEPS]
