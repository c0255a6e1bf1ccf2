# SPDX-License-Identifier: Apache-2.0
"""The etcd driver under crashes, pauses, losses and full disks, on a real etcd."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from unittest import mock

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import etcd
from nova_nodb_scheduler.synchronizer.drivers.etcd import epochs, following
from nova_nodb_scheduler.synchronizer.drivers.support import clocks
from nova_nodb_scheduler.synchronizer.records import leases
from nova_nodb_scheduler.testing import etcd_server, proxy, server_processes
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import step_case
from tests.functional.synchronizer.drivers.etcd import etcd_case

Step = etcd.Step
Verdict = records.Verdict

#: The steps that each kind of write passes.
STEPS = {
    "create": (Step.EPOCH, Step.SEND, Step.DONE),
    "create again": (Step.EPOCH, Step.SEND, Step.TOMBSTONE, Step.DONE),
    "update": (Step.EPOCH, Step.SEND, Step.DONE),
    "delete": (Step.EPOCH, Step.SEND, Step.DONE),
}


class TestSlowClients(step_case.SlowClients, etcd_case.EtcdCase):
    """Clients that die or stand still at every step, longer than time-outs."""

    def patient_client(self) -> etcd.EtcdSynchronizer:
        return self.opened(timeout_seconds=30.0)

    def test_every_step_has_its_case_here(self) -> None:
        of_writes = {step for steps in STEPS.values() for step in steps}
        self.assertEqual({*of_writes, Step.SWEEP, Step.COLLECT}, set(Step))
        self.assertEqual(tuple(step.value for step in Step), etcd.EtcdSynchronizer.STEPS)

    def test_a_writer_killed_at_any_step_blocks_nobody_and_misleads_nobody(self) -> None:
        for kind, step in _kinds_and_steps():
            with self.subTest(kind=kind, step=step.name):
                write = self._prepare(kind, step)
                before = self.writer.read([write.key]).get(write.key)
                self.die(step, lambda client, write=write: client.write([write]))
                after = self.writer.read([write.key]).get(write.key)
                self.assertEqual(step is Step.DONE, before != after)
                self.assert_reader_is_right(self.reader)
                self.rewrite(write.key)
                self.assert_reader_is_right(self.reader)

    def test_a_writer_paused_at_any_step_wins_where_it_is_alone(self) -> None:
        paused = []
        for kind, step in _kinds_and_steps():
            paused.append((kind, step, self.pause(step, self._prepare(kind, step))))
        self.put(self.writer, "other", b"later")
        time.sleep(etcd_case.TIMEOUT_SECONDS * 1.2)
        self.assert_reader_is_right(self.reader)
        for kind, step, client in paused:
            with self.subTest(kind=kind, step=step.name):
                result = client.let_go()
                self.assertIs(Verdict.WON, result.verdict if result else None)
                self.assert_reader_is_right(self.reader)

    def test_a_writer_paused_before_it_sends_loses_against_who_wrote_meanwhile(self) -> None:
        for kind, step in _kinds_and_steps():
            if step is Step.DONE:
                continue
            with self.subTest(kind=kind, step=step.name):
                write = self._prepare(kind, step)
                paused = self.pause(step, write)
                winner = self.rewrite(write.key)
                self.assertEqual(records.WriteResult(Verdict.LOST, winner), paused.let_go())
                self.assert_reader_is_right(self.reader)

    def test_a_writer_paused_over_a_new_epoch_leaves_nothing_in_it(self) -> None:
        for kind in ("update", "delete"):
            with self.subTest(kind=kind):
                paused = self.pause(Step.SEND, self._prepare(kind, Step.SEND))
                self.writer.reset()
                self.assertEqual(records.WriteResult(Verdict.LOST, None), paused.let_go())
                self.assertEqual({}, contract_case.everything(self.writer))

    def test_a_creator_paused_over_a_new_epoch_creates_in_that_one(self) -> None:
        paused = self.pause(Step.SEND, self._prepare("create", Step.SEND))
        self.writer.reset()
        result = paused.let_go()
        assert result is not None and result.record is not None
        self.assertEqual(
            {result.record.key: result.record},
            contract_case.everything(self.writer),
            result.verdict,
        )

    def test_a_collector_killed_before_it_drops_leaves_all_to_the_next(self) -> None:
        tombstone = self.drop(self.writer, self.put(self.writer, "a", b"one"))
        time.sleep(1.1)
        self.die(Step.COLLECT, lambda client: client.collect(0.0))
        self.assertEqual({tombstone.key: tombstone}, self.writer.read([tombstone.key]))
        self.assertEqual(1, self.writer.collect(0.0).tombstones)
        self.assertEqual({}, self.writer.read([tombstone.key]))

    def test_a_collector_frozen_over_a_new_life_of_the_record_spares_it(self) -> None:
        self.drop(self.writer, self.put(self.writer, "a", b"one"))
        time.sleep(1.1)
        reached, released = threading.Event(), threading.Event()
        collector = self.opened()
        collector.on_step = step_case.at(
            Step.COLLECT, lambda: (reached.set(), released.wait(contract_case.PATIENCE_SECONDS))
        )
        again: list[records.Record] = []

        def revive() -> None:
            reached.wait(contract_case.PATIENCE_SECONDS)
            again.append(self.put(self.writer, "a", b"two"))
            released.set()

        self.in_threads([revive, lambda: collector.collect(0.0)])
        self.assertEqual({again[0].key: again[0]}, contract_case.everything(self.writer))
        self.assertEqual(0, self.writer.statistics()["tombstones"])

    def test_a_client_killed_while_it_resets_leaves_the_rest_to_a_collector(self) -> None:
        self.fill(self.writer, 20)
        self.die(Step.SWEEP, lambda client: client.reset())
        self.assertEqual({}, contract_case.everything(self.writer))
        written = self.put(self.writer, "a", b"new")
        self.assertGreater(self.writer.statistics()["keys"], 20)
        self.writer.collect(3600.0)
        self.assertLess(self.writer.statistics()["keys"], 6)
        self.assertEqual({written.key: written}, contract_case.everything(self.writer))

    def test_a_sweeper_frozen_over_another_reset_drops_nothing_of_the_new_epoch(self) -> None:
        self.fill(self.writer, 3)
        written: list[records.Record] = []

        def reset_too() -> None:
            self.writer.reset()
            written.append(self.put(self.writer, "a", b"new"))

        late = self.opened()
        late.on_step = step_case.at(Step.SWEEP, reset_too)
        late.reset()
        self.assertEqual({written[0].key: written[0]}, contract_case.everything(self.writer))

    def _prepare(self, kind: str, step: Step) -> records.Write:
        """Return a write of a kind that will win if nobody else writes."""
        name = f"{kind}-{step.name}-{time.monotonic_ns()}"
        revision = 0
        if kind != "create":
            before = self.put(self.writer, name, b"before")
            revision = before.revision
            if kind == "create again":
                self.drop(self.writer, before)
                revision = 0
        return records.Write(
            contract_case.key(name), revision, b"written", deleted=kind == "delete"
        )


class TestUnknownOutcomes(etcd_case.EtcdCase):
    """A reply that does not come is neither a win nor a loss."""

    private = True

    def setUp(self) -> None:
        super().setUp()
        self.keeper = self.client()
        self.before = self.put(self.keeper, "a", b"one")
        self.update = records.Write(self.before.key, self.before.revision, b"two")
        self.proxy = self.enterContext(proxy.Proxy(self.server.port))

    def test_a_reply_lost_after_the_write_is_settled_by_reading(self) -> None:
        writer = self.through(self.proxy.address)
        writer.on_step = step_case.at(Step.SEND, self.proxy.lose_replies)
        self.assertEqual([records.WriteResult(Verdict.UNKNOWN)], writer.write([self.update]))
        self.proxy.heal()
        self.assertEqual(b"two", writer.read([self.before.key])[self.before.key].payload)

    def test_a_request_that_never_arrived_is_settled_by_reading(self) -> None:
        writer = self.through(self.proxy.address)
        writer.on_step = step_case.at(Step.SEND, self.proxy.lose_requests)
        self.assertEqual([records.WriteResult(Verdict.UNKNOWN)], writer.write([self.update]))
        self.proxy.heal()
        self.assertEqual({self.before.key: self.before}, writer.read([self.before.key]))
        self.put(writer, "a", b"three", self.before.revision)

    def test_a_win_tells_its_epoch(self) -> None:
        [result] = self.keeper.write([self.update])
        self.assertEqual(self.keeper.head().epoch, result.epoch)

    def test_a_connection_cut_before_the_write_is_sent_is_no_news_to_the_caller(self) -> None:
        writer = self.through(self.proxy.address)
        writer.on_step = step_case.at(Step.SEND, self.proxy.cut)
        [result] = writer.write([self.update])
        # A cut that the client has not learnt of yet loses the reply.
        self.assertIn(result.verdict, (Verdict.WON, Verdict.UNKNOWN))
        after = writer.read([self.before.key])[self.before.key]
        self.assertIn(after.payload, (b"one", b"two"))
        self.assertTrue(result.verdict is Verdict.UNKNOWN or after == result.record)

    def test_a_reply_lost_in_a_batch_leaves_what_came_before_it_known(self) -> None:
        writer = self.through(self.proxy.address)
        rounds = iter([lambda: None, self.proxy.lose_replies])

        def observe(step: str) -> None:
            if step == Step.SEND.value:
                next(rounds)()

        writer.on_step = observe
        results = writer.write(
            [records.Write(contract_case.key(f"k{number}"), 0, b"x") for number in range(250)]
        )
        self.assertEqual([Verdict.WON] * 100, [result.verdict for result in results[:100]])
        self.assertEqual([Verdict.UNKNOWN] * 150, [result.verdict for result in results[100:]])
        self.proxy.heal()
        self.assertEqual(201, len(contract_case.everything(self.keeper)))

    def test_a_server_that_stops_in_mid_write_leaves_the_outcome_unknown(self) -> None:
        reader = contract_case.FeedReader(self.client())
        writer = self.opened()
        writer.on_step = step_case.at(Step.SEND, self.server.pause)
        self.addCleanup(self.server.resume)
        self.assertEqual([records.WriteResult(Verdict.UNKNOWN)], writer.write([self.update]))
        self.server.resume()
        self.assert_reader_is_right(reader)
        after = self.keeper.read([self.before.key])[self.before.key]
        self.put(self.keeper, "a", b"three", after.revision)
        self.assert_reader_is_right(reader)

    def test_a_server_that_stands_still_is_unavailable_within_the_time_out(self) -> None:
        client = self.client()
        head = client.head()
        client.fetch(head)
        time.sleep(1.1)  # so that a write has to ask for the epoch again
        self.server.pause()
        self.addCleanup(self.server.resume)
        for call in (
            lambda: client.write([self.update]),
            lambda: client.read([self.before.key]),
            lambda: client.fetch(head),
            client.head,
            client.now_seconds,
            client.statistics,
        ):
            self.assert_gives_up(call, etcd_case.TIMEOUT_SECONDS * 1.5)
        self.server.resume()
        self.assertEqual({self.before.key: self.before}, client.read([self.before.key]))

    def test_the_clock_does_not_step_back_for_an_answer_that_was_long_on_its_way(self) -> None:
        client = self.opened(timeout_seconds=20.0)
        before = client.now_seconds()
        self.server.pause()
        self.addCleanup(self.server.resume)
        resumer = threading.Timer(4.0, self.server.resume)
        resumer.start()
        client.head()
        resumer.join()
        self.assertGreaterEqual(client.now_seconds(), before + 3.0)

    def test_a_server_that_stops_telling_its_time_ends_no_lease(self) -> None:
        """The client's own clock, which may be hours before the others', is asked for nothing."""
        switch = self.enterContext(proxy.Proxy(self.server.port))
        client = self.through(switch.address)
        waiting = leases.LeaseKeeper(client, "duty", "two", ttl_seconds=1.0)
        holding = leases.LeaseKeeper(self.client(), "duty", "one", ttl_seconds=60.0)
        self.assertIsInstance(holding.acquire(), leases.Lease)
        switch.rename_in_replies(b"\nDate: ", b"\nXate: ")
        # Nor what was known of the server's before, for ever.
        time.sleep(clocks.CACHE_SECONDS * 1.1)
        with mock.patch.object(time, "time", autospec=True, return_value=time.time() + 1e6):
            for _ in range(2):
                for call in (client.now_seconds, waiting.acquire, waiting.holder):
                    with self.assertRaises(errors.BackendUnavailable) as caught:
                        call()
                    self.assertIn("Date", str(caught.exception))
        # What needs no time goes on.
        [result] = client.write([self.update])
        self.assertIs(Verdict.WON, result.verdict)
        self.assertEqual(6, client.statistics()["times_not_told"])
        switch.heal()
        self.assertIsInstance(waiting.acquire(), leases.NotHeld)

    def test_a_server_that_never_tells_its_time_is_refused_with_the_remedy(self) -> None:
        switch = self.enterContext(proxy.Proxy(self.server.port))
        switch.rename_in_replies(b"\nDate: ", b"\nXate: ")
        with self.assertRaises(errors.ConfigurationError) as caught:
            self.through(switch.address)
        self.assertIn("Date", str(caught.exception))

    def test_a_dead_server_is_unavailable_and_comes_back(self) -> None:
        client = self.client()
        self.server.kill()
        for call in (client.head, lambda: client.write([self.update])):
            with self.assertRaises(errors.BackendUnavailable) as caught:
                call()
            self.assertIn(self.etcd.url, str(caught.exception))
        self.server.start()
        self.assertEqual({self.before.key: self.before}, client.read([self.before.key]))
        self.put(client, "b", b"two")

    def test_another_member_is_asked_when_one_does_not_answer(self) -> None:
        dead = f"http://127.0.0.1:{server_processes.free_port()}"
        client = self.opened(endpoints=(dead, self.etcd.url))
        self.put(client, "b", b"two")
        through = self.opened(endpoints=(f"http://{self.proxy.address}", self.etcd.url))
        self.put(through, "c", b"three")
        self.proxy.lose_requests()
        with self.assertRaises(errors.BackendUnavailable):
            through.head()
        self.put(through, "d", b"four")


class CrashCase(etcd_case.EtcdCase):
    """Writers and readers that go on whatever happens to the engine."""

    private = True

    def setUp(self) -> None:
        super().setUp()
        self.done = threading.Event()

    def assert_nothing_is_lost_by(self, accidents: Sequence[Callable[[], None]]) -> None:
        """Let accidents happen while everybody writes and reads, and look after them."""
        keeper = self.client()
        epoch = keeper.head().epoch
        clients = [self.client() for _ in range(2)]
        readers = [contract_case.FeedReader(client) for client in clients]
        writers = [self.client() for _ in range(3)]
        acknowledged: list[records.Record] = []
        self.in_threads(
            [
                functools.partial(self._happen, accidents, acknowledged),
                *(
                    functools.partial(self._write, number, writer, acknowledged)
                    for number, writer in enumerate(writers)
                ),
                *map(functools.partial(functools.partial, self._follow), readers, clients),
            ]
        )
        held = contract_case.everything(keeper)
        for record in acknowledged:
            self.assertEqual(record, held[record.key])
        self.assertEqual(epoch, keeper.head().epoch)
        for reader in readers:
            self.assert_reader_is_right(reader)
            self.assertEqual(0, reader.resyncs)

    def _happen(
        self, accidents: Sequence[Callable[[], None]], acknowledged: Sequence[records.Record]
    ) -> None:
        try:
            for accident in accidents:
                time.sleep(1.0)
                accident()
            time.sleep(1.0)
            self.eventually(lambda: len(acknowledged) > 50, "writers are acknowledged")
        finally:
            self.done.set()

    def _write(
        self, number: int, writer: contract.Synchronizer, acknowledged: list[records.Record]
    ) -> None:
        count = 0
        while not self.done.is_set():
            count += 1
            write = records.Write(contract_case.key(f"w{number}-{count}"), 0, b"x")
            with contextlib.suppress(errors.BackendUnavailable):
                [result] = writer.write([write])
                if result.record is not None:
                    acknowledged.append(result.record)

    def _follow(self, reader: contract_case.FeedReader, client: contract.Synchronizer) -> None:
        while not self.done.is_set():
            try:
                if not reader.step():
                    client.wait(reader.cursor, 0.05)
            except errors.BackendUnavailable:
                self.done.wait(0.05)


class TestCrashes(CrashCase):
    def test_acknowledged_writes_outlive_crashes_and_readers_miss_nothing(self) -> None:
        self.assert_nothing_is_lost_by([self.server.restart] * 3)


class TestCluster(CrashCase):
    """Three members, of which one at a time is killed or stands still."""

    def setUp(self) -> None:
        super().setUp()
        self.cluster = self.enterContext(etcd_server.EtcdCluster())

    def make_synchronizer(self) -> etcd.EtcdSynchronizer:
        return self.make(endpoints=self.cluster.urls)

    def test_members_killed_in_turn_lose_nothing(self) -> None:
        self.assert_nothing_is_lost_by([server.restart for server in self.cluster.servers])

    def test_leaders_that_stand_still_lose_nothing(self) -> None:
        self.assert_nothing_is_lost_by([self._freeze_leader] * 2)

    def test_a_member_without_the_others_is_not_listened_to(self) -> None:
        client = self.client()
        self.put(client, "a", b"one")
        for server in self.cluster.servers[1:]:
            server.kill()
        with self.assertRaises(errors.BackendUnavailable):
            client.head()
        self.cluster.servers[1].start()
        self.eventually(lambda: self._answers(client), "two of three answer again")
        self.put(client, "b", b"two")

    def _freeze_leader(self) -> None:
        leader = self.cluster.leader()
        leader.pause()
        self.addCleanup(leader.resume)
        time.sleep(etcd_case.TIMEOUT_SECONDS * 2)
        leader.resume()

    def _answers(self, client: contract.Synchronizer) -> bool:
        try:
            client.head()
        except errors.BackendUnavailable:
            return False
        return True


class TestWatch(etcd_case.EtcdCase):
    """A feed that dies is noticed; one that only breaks goes on where it stood."""

    private = True

    def setUp(self) -> None:
        super().setUp()
        self.writer = self.client()
        self.proxy = self.enterContext(proxy.Proxy(self.server.port))

    def test_a_cut_watch_goes_on_where_it_stood(self) -> None:
        reader = contract_case.FeedReader(self.through(self.proxy.address))
        for number in range(5):
            self.put(self.writer, f"k{number}", b"x")
            self.proxy.cut()
            self.assert_reader_is_right(reader)
        self.assertEqual(5, len(reader.held))

    def test_a_fetch_that_meets_a_close_leaves_no_watch_behind(self) -> None:
        client = self.client()
        ended = threading.Event()

        def fetch() -> None:
            while not ended.is_set():
                with contextlib.suppress(errors.BackendUnavailable):
                    client.fetch(client.head())

        readers = [threading.Thread(target=fetch, daemon=True) for _ in range(4)]
        for reader in readers:
            reader.start()
        left: list[str] = []
        for _ in range(30):
            client.open()
            time.sleep(0.03)
            client.close()
            time.sleep(0.03)
            left += [each.name for each in threading.enumerate() if "etcd-watch" in each.name]
        ended.set()
        for reader in readers:
            reader.join(contract_case.PATIENCE_SECONDS)
        self.assertEqual([], left)

    def test_a_watch_open_on_one_side_only_is_noticed_by_the_next_fetch(self) -> None:
        client = self.through(self.proxy.address)
        cursor = client.head()
        self.assertFalse(client.wait(cursor, 0.3))
        self.proxy.numb()
        written = self.put(self.writer, "a", b"one")
        with self.assertRaises(errors.BackendUnavailable):
            client.head()  # by a connection that is as dead
        began = time.monotonic()
        self.assertEqual((written,), self.changes(client, cursor).records)
        self.assertLess(time.monotonic() - began, etcd_case.TIMEOUT_SECONDS)
        self.assertGreater(client.statistics()["watches"], 1)

    def test_a_watch_that_was_made_after_a_pause_has_its_time(self) -> None:
        """Who waited through the pause must not break it off as soon as it is there."""
        for name in ("RETRY_MIN_SECONDS", "RETRY_MAX_SECONDS"):
            self.addCleanup(setattr, following, name, getattr(following, name))
            setattr(following, name, 0.8)
        client = self.through(self.proxy.address, timeout_seconds=1.0)
        cursor = client.head()
        self.assertFalse(client.wait(cursor, 0.3))
        for _ in range(2):
            # The second time in a row it pauses before it goes on.
            begun = client._feed.watches
            self.proxy.cut()
            # Counted is one that is not there yet: a cut would pass it by.
            self.eventually(
                lambda n=begun: client._feed.watches > n and client._feed.is_watching(cursor),
                "it is made anew",
            )
        before = client._feed.watches
        self.proxy.cut()
        written = self.put(self.writer, "a", b"one")
        self.eventually(lambda: self._fetched(client, cursor) == (written,), "it is brought")
        self.assertEqual(before + 1, client._feed.watches)

    def _fetched(
        self, client: etcd.EtcdSynchronizer, cursor: records.Cursor
    ) -> tuple[records.Record, ...]:
        try:
            return self.changes(client, cursor).records
        except errors.BackendUnavailable:
            return ()

    def test_compaction_past_the_cursor_needs_a_resync(self) -> None:
        client = self.client()
        start = client.head()
        written = self.fill(self.writer, 5)
        for record in written:
            self.put(self.writer, record.key.key, b"new", record.revision)
        self.server.compact()
        self.assert_resync(records.ResyncReason.HISTORY_TRUNCATED, client.fetch(start))
        reader = contract_case.FeedReader(client)
        self.put(self.writer, "after", b"one")
        self.assert_reader_is_right(reader)

    def test_a_compaction_does_not_silence_a_watch_that_is_up_to_date(self) -> None:
        reader = contract_case.FeedReader(self.client())
        self.assertFalse(reader._synchronizer.wait(reader.cursor, 0.2))
        for number in range(5):
            self.put(self.writer, f"k{number}", b"x")
            self.server.compact()
            self.assert_reader_is_right(reader)
        self.assertEqual(5, len(reader.held))

    def test_a_reader_frozen_past_a_compaction_takes_a_snapshot(self) -> None:
        reader = contract_case.FeedReader(self.through(self.proxy.address))
        self.assertFalse(reader._synchronizer.wait(reader.cursor, 0.2))
        self.proxy.lose_replies()
        record = self.put(self.writer, "a", b"0")
        for number in range(5):
            record = self.put(self.writer, "a", b"%d" % number, record.revision)
        self.server.compact()
        self.proxy.heal()
        reader.catch_up()
        self.assertEqual(1, reader.resyncs)
        self.assertEqual({record.key: record}, reader.held)

    def test_a_watch_that_is_quiet_for_too_long_is_made_anew(self) -> None:
        quiet_seconds = following.QUIET_SECONDS
        following.QUIET_SECONDS = 0.3
        self.addCleanup(setattr, following, "QUIET_SECONDS", quiet_seconds)
        client = self.client()
        cursor = client.head()
        self.assertFalse(client.wait(cursor, 1.5))
        self.assertGreater(client.statistics()["watches"], 2)
        written = self.put(self.writer, "a", b"one")
        self.assertEqual((written,), self.changes(client, cursor).records)

    def test_readers_of_one_client_may_be_far_apart(self) -> None:
        client = self.client()
        start = client.head()
        written = self.fill(self.writer, 30)
        late, early = contract_case.FeedReader(client, limit=3), contract_case.FeedReader(client)
        late.cursor, late.held = start, {}
        for number in range(10):
            written.append(self.put(self.writer, f"new-{number}", b"x"))
            late.step()
            early.step()
        for reader in (late, early):
            self.assert_reader_is_right(reader)
            self.assertEqual(len(written), len(reader.held))

    def test_readers_of_one_client_do_not_take_away_from_one_another(self) -> None:
        kept = following.KEPT_RECORDS
        following.KEPT_RECORDS = 5
        self.addCleanup(setattr, following, "KEPT_RECORDS", kept)
        # Each may have the watch made anew several times before it has its turn.
        client = self.opened(timeout_seconds=15.0)
        readers = [contract_case.FeedReader(client, limit=limit) for limit in (2, 7, 1000)]
        done = threading.Event()

        def write() -> None:
            try:
                for number in range(60):
                    names = [f"{number}-{place}" for place in range(8)]
                    self.writer.write(
                        [records.Write(contract_case.key(name), 0, b"x") for name in names]
                    )
            finally:
                done.set()

        self.in_threads([write, *(functools.partial(r.follow, done) for r in readers)])
        for reader in readers:
            self.assert_reader_is_right(reader)
            self.assertEqual(0, reader.resyncs)
            self.assertEqual(480, len(reader.held))

    def test_a_key_that_somebody_wrote_among_the_records_is_named(self) -> None:
        client = self.client()
        epoch = client.head().epoch.partition("-")[2]
        key = f"{self.etcd.key_prefix}/r/{epoch}/mine"
        self.server.put(key, b"!")
        with self.assertRaises(errors.BackendUnavailable) as caught:
            contract_case.everything(client)
        self.assertIn(key, str(caught.exception))
        self.assertIn("etcdctl del", str(caught.exception))

    def test_a_killed_server_does_not_silence_a_waiter(self) -> None:
        client = self.client()
        cursor = client.head()
        self.assertFalse(client.wait(cursor, 0.2))
        self.server.restart()
        woken: list[bool] = []
        written: list[records.Record] = []

        def write() -> None:
            time.sleep(0.5)
            written.append(self.put(self.writer, "a", b"one"))

        self.in_threads([write, lambda: woken.append(client.wait(cursor, 20.0))])
        self.assertEqual([True], woken)
        self.assertEqual(tuple(written), self.changes(client, cursor).records)

    def test_a_compaction_of_what_others_wrote_is_no_loss(self) -> None:
        reader = contract_case.FeedReader(self.through(self.proxy.address))
        self.put(self.writer, "a", b"one")
        self.assert_reader_is_right(reader)
        for cut in (False, True):
            self.server.put("somebody-elses")
            self.server.compact(self.server.put("somebody-elses"))
            if cut:
                self.proxy.cut()
            self.assert_reader_is_right(reader)
            self.assert_reader_is_right(contract_case.FeedReader(self.client()))
        cursor = reader.cursor
        newcomer = self.client()
        self.assertEqual(records.Changes((), cursor), self.changes(newcomer, cursor))

    def test_writes_of_others_in_the_same_etcd_wake_and_move_nobody(self) -> None:
        client = self.client()
        cursor = client.head()
        self.server.put("somebody-elses")
        self.assertFalse(client.wait(cursor, 0.5))
        self.assertEqual(records.Changes((), cursor), self.changes(client, cursor))

    def test_a_snapshot_read_across_a_compaction_is_whole(self) -> None:
        written = {record.key: record for record in self.fill(self.writer, 1500)}
        taken = self.client().snapshot()
        held = {record.key: record for record in next(taken.pages)}
        self.put(self.writer, "later", b"x")
        self.server.compact()
        for page in taken.pages:
            held.update((record.key, record) for record in page)
        held.pop(contract_case.key("later"), None)
        self.assertEqual(written, held)

    def test_more_than_the_buffer_holds_is_fed_without_loss(self) -> None:
        # On a busy machine etcd ends a watch that brings so much, and it is made anew;
        # and its disk holds up a write of so much.
        # 150 MiB through etcd take ten seconds of a processor: else the buffer is a smaller one.
        share = 1 if os.environ.get("NODB_PROPERTY_EXAMPLES") else 8
        for name in ("BUFFERED_BYTES", "KEPT_BYTES"):
            part = getattr(following, name) // share
            self.enterContext(mock.patch.object(following, name, part))
        client, writer = self.opened(timeout_seconds=15.0), self.opened(timeout_seconds=30.0)
        start = client.head()
        client.fetch(start)
        payload = os.urandom(900_000)
        count = following.BUFFERED_BYTES * 6 // 5 // len(payload)
        names = [f"large-{number}" for number in range(count)]
        for name in names:
            self.put(writer, name, payload)
        fed: list[str] = []
        cursor, more = start, True
        while more or cursor != client.head():
            fetched = self.changes(client, cursor, limit=50)
            fed += [record.key.key for record in fetched.records]
            cursor, more = fetched.cursor, fetched.more
        self.assertEqual(names, fed)


class _LedAtTheHead(etcd.EtcdSynchronizer):
    """Whose address may lead elsewhere before it asks for the head."""

    before_head: Callable[[], None] | None = None

    def head(self) -> records.Cursor:
        if self.before_head is not None:
            self.before_head()
        return super().head()


class TestOtherStores(etcd_case.EtcdCase):
    """Another cluster behind the same address is another epoch."""

    private = True

    def test_an_emptied_etcd_is_a_new_epoch(self) -> None:
        client = self.client()
        reader = contract_case.FeedReader(self.client())
        old = self.fill(client, 20)[0]
        reader.catch_up()
        self.server.kill()
        self.server.empty()
        self.server.start()
        self.assert_resync(records.ResyncReason.EPOCH_CHANGED, client.fetch(reader.cursor))
        late = records.Write(old.key, old.revision, b"late")
        self.assertEqual([records.WriteResult(Verdict.LOST, None)], client.write([late]))
        again = self.put(client, old.key.key, b"new")
        self.assertNotEqual(again.revision, old.revision)
        reader.catch_up()
        self.assertEqual({again.key: again}, reader.held)

    def test_a_new_cluster_behind_the_same_address_is_a_new_epoch(self) -> None:
        other = self.enterContext(etcd_server.Etcd(private=True))
        switch = self.enterContext(proxy.Proxy(self.server.port))
        client = self.through(switch.address)
        self.put(client, "a", b"one")
        cursor = client.head()
        self.assertFalse(client.wait(cursor, 0.2))
        switch.redirect(other.server.port)
        self.assertTrue(client.wait(cursor, 5.0))
        self.assert_resync(records.ResyncReason.EPOCH_CHANGED, client.fetch(cursor))
        self.assertEqual({}, contract_case.everything(client))

    def test_a_restored_backup_is_a_new_epoch_and_gives_nothing_of_it(self) -> None:
        client = self.client()
        record = self.put(client, "a", b"0")
        head = client.head()
        backup = self._save()
        for number in range(5):
            record = self.put(client, "a", b"%d" % number, record.revision)
        self._restore(backup, "restored")
        other = self.client()
        self.assertNotEqual(head.epoch, other.head().epoch)
        self.assertEqual({}, contract_case.everything(other))
        for number in range(10):
            self.put(other, f"other-{number}", b"new")
        self.put(other, "a", b"new")
        [late] = client.write([records.Write(record.key, record.revision, b"late")])
        self.assertIs(Verdict.LOST, late.verdict)
        self.assert_resync(records.ResyncReason.EPOCH_CHANGED, client.fetch(head))

    def test_a_backup_restored_with_the_token_of_its_cluster_is_a_new_epoch(self) -> None:
        """Whoever saw what it lost says so, whether it reads, writes or follows first."""
        looks: dict[str, Callable[[etcd.EtcdSynchronizer, records.Record], object]] = {
            "fetch": lambda client, _: client.fetch(records.Cursor("", 0)),
            "head": lambda client, _: client.head(),
            "write": lambda client, lost: client.write(
                [records.Write(lost.key, lost.revision, b"late")]
            ),
            "create": lambda client, _: client.write(
                [records.Write(contract_case.key("new"), 0, b"new")]
            ),
            "batch": lambda client, lost: client.write(
                [
                    records.Write(lost.key, lost.revision, b"late"),
                    records.Write(contract_case.key("new"), 0, b"new"),
                ]
            ),
            "delete": lambda client, lost: client.write(
                [records.Write(lost.key, lost.revision, deleted=True)]
            ),
        }
        for name, look in looks.items():
            # Whether the restored store has passed what was seen of the lost history.
            for passes in (True, False):
                with self.subTest(name, passes=passes):
                    client = self.client()
                    kept = self.put(client, f"kept-{name}-{passes}", b"kept")
                    head, backup = client.head(), self._save()
                    lost = self.put(client, f"lost-{name}-{passes}", b"claimed")
                    cursor = client.head()
                    self._restore(backup)
                    beside = self.client()
                    self.assertEqual(head.epoch, beside.head().epoch)
                    if passes:
                        for number in range(10):
                            self.put(beside, f"passing-{name}-{number}", b"granted again")
                        self.put(beside, lost.key.key, b"granted again")
                        self.assertGreater(beside.head().version, cursor.version)
                    # Within a second of its last answer it would not ask for the epoch.
                    client._connection.answered_at = time.monotonic()
                    outcome = look(client, lost)
                    if isinstance(outcome, list):
                        verdicts = {result.verdict for result in outcome}
                        late_won = [r for r in outcome if r.won and r.epoch == head.epoch]
                        self.assertEqual([], late_won, verdicts)
                    self.assert_resync(records.ResyncReason.EPOCH_CHANGED, client.fetch(cursor))
                    self.assert_resync(records.ResyncReason.EPOCH_CHANGED, beside.fetch(head))
                    self.assertEqual({}, client.read([kept.key]))
                    again = self.put(client, f"kept-{name}-{passes}", b"again")
                    self.assertGreater(again.revision, lost.revision)

    def test_records_are_not_read_of_a_store_that_was_put_back(self) -> None:
        """As a machine is to a snapshot: cluster, epoch and the members' log are as they were."""
        for passes in (True, False):
            with self.subTest(passes=passes):
                client = self.client()
                kept = self.put(client, f"kept-{passes}", b"before")
                epoch, copy = client.head().epoch, self._copy_data()
                lost = self.put(client, f"kept-{passes}", b"claimed", kept.revision)
                self._put_back(copy)
                beside = self.client()
                # Nobody who has seen nothing can tell.
                self.assertEqual({kept.key: kept}, beside.read([kept.key]))
                if passes:
                    for number in range(10):
                        self.put(beside, f"passing-{passes}-{number}", b"granted again")
                # Within a second of its last answer it would not ask for the epoch.
                client._connection.answered_at = time.monotonic()
                self.assertEqual({}, client.read([kept.key]))
                self.assertNotEqual(epoch, client.head().epoch)
                self.assertEqual({}, beside.read([kept.key]))
                [late] = client.write([records.Write(lost.key, lost.revision, b"late")])
                self.assertEqual(records.WriteResult(Verdict.LOST, None), late)

    def test_records_are_read_across_a_compaction(self) -> None:
        client = self.client()
        record = self.put(client, "a", b"one")
        epoch = client.head().epoch
        self.server.put("elsewhere")
        self.server.compact()
        self.assertEqual({record.key: record}, client.read([record.key]))
        self.assertEqual(epoch, client.head().epoch)

    def test_a_backup_restored_while_all_services_stood_still_is_a_new_epoch(self) -> None:
        """Nobody remembers anything, but the members' log began anew."""
        client = self.client()
        epoch = client.head().epoch
        for number in range(60):
            self.server.put(f"elsewhere-{number}")
        backup = self._save()
        self.put(client, "lost", b"claimed")
        client.close()
        self._restore(backup)
        with mock.patch.object(epochs, "LEAD_MARGIN", 50):
            started = self.client()
            self.assertNotEqual(epoch, started.head().epoch)
            # Once: the next one finds that the epoch began in this life.
            self.assertEqual(started.head(), self.client().head())

    def test_a_restart_of_etcd_is_no_new_epoch(self) -> None:
        client = self.client()
        self.put(client, "a", b"one")
        cursor = client.head()
        self.server.kill()
        self.server.start()
        with mock.patch.object(epochs, "LEAD_MARGIN", 0):
            self.assertEqual(cursor, self.client().head())
        self.assertEqual(cursor, client.head())
        self.assertEqual((), self.changes(client, cursor).records)

    def test_a_history_that_was_compacted_meanwhile_is_gone_on_with(self) -> None:
        client = self.client()
        record = self.put(client, "a", b"one")
        cursor = client.head()
        self.server.put("elsewhere")
        self.server.compact()
        [result] = client.write([records.Write(record.key, record.revision, b"two")])
        self.assertIs(Verdict.WON, result.verdict)
        self.assertEqual(cursor.epoch, client.head().epoch)
        self.server.put("elsewhere")
        self.server.compact()
        self.assertEqual(cursor.epoch, client.head().epoch)

    def test_a_snapshot_with_a_page_of_another_cluster_is_interrupted(self) -> None:
        """An address that goes from A to B and back to A, while pages are read."""
        other = self.enterContext(etcd_server.Etcd(private=True))
        switch = self.enterContext(proxy.Proxy(self.server.port))
        settings = etcd.EtcdOptions(
            endpoints=(f"http://{switch.address}",), key_prefix=self.etcd.key_prefix
        )
        client = _LedAtTheHead(settings)
        client.open()
        self.addCleanup(client.close)
        self.fill(client, 300)
        pages = client.snapshot().pages
        next(pages)
        switch.redirect(other.server.port)
        client.before_head = lambda: switch.redirect(self.server.port)
        with self.assertRaises(contract.SnapshotInterrupted):
            for _ in pages:
                pass

    def test_an_epoch_older_than_one_seen_is_never_adopted(self) -> None:
        """An address that goes from A to B and back to A."""
        other = self.enterContext(etcd_server.Etcd(private=True))
        switch = self.enterContext(proxy.Proxy(self.server.port))
        client = self.through(switch.address)
        old = self.put(client, "a", b"in A")
        first = client.head()
        # It goes on in A, where nobody knows of B.
        beside = self.client()
        switch.redirect(other.server.port)
        self.put(client, "a", b"in B")
        second = client.head()
        self.put(beside, "b", b"still in A")
        switch.redirect(self.server.port)
        third = client.head()
        self.assertNotIn(third.epoch, (first.epoch, second.epoch))
        self.assert_resync(records.ResyncReason.EPOCH_CHANGED, client.fetch(second))
        self.assert_resync(records.ResyncReason.EPOCH_CHANGED, beside.fetch(first))
        self.assertEqual(third.epoch, beside.head().epoch)
        [late] = beside.write([records.Write(old.key, old.revision, b"late")])
        self.assertEqual(records.WriteResult(Verdict.LOST, None), late)

    def _copy_data(self) -> pathlib.Path:
        """Return a copy of all the server holds, as if its machine stood still meanwhile."""
        copy = self.server.directory / f"copy-{time.monotonic_ns()}"
        self.server.kill()
        shutil.copytree(self.server.directory / "data", copy)
        self.server.start()
        return copy

    def _put_back(self, copy: pathlib.Path) -> None:
        """Put the server back to a copy of its data."""
        self.server.kill()
        self.server.empty()
        shutil.copytree(copy, self.server.directory / "data")
        self.server.start()

    def _save(self) -> pathlib.Path:
        backup = self.server.directory / f"backup-{time.monotonic_ns()}"
        self._etcdctl("snapshot", "save", str(backup))
        return backup

    def _restore(self, backup: pathlib.Path, token: str = "etcd-cluster") -> None:
        """Put a backup in the place of what is there; the default is etcd's own token."""
        self.server.kill()
        self.server.empty()
        self._etcdctl(
            "snapshot",
            "restore",
            str(backup),
            f"--data-dir={self.server.directory / 'data'}",
            f"--name={self.server.name}",
            f"--initial-cluster-token={token}",
            f"--initial-cluster={self.server.name}={self.server.peer_url}",
            f"--initial-advertise-peer-urls={self.server.peer_url}",
        )
        self.server.start()

    def test_a_write_that_reaches_a_restored_backup_first_is_not_told_as_won(self) -> None:
        """Within a second of an answer nobody asks for the epoch again."""
        client = self.client()
        record = self.put(client, "a", b"0")
        client._connection.cluster = client._epochs._known.cluster
        # As if the key had come with the backup of another cluster.
        client._epochs._known = attrs.evolve(client._epochs._known, cluster="1")
        client._connection.cluster = "1"
        [result] = client.write([records.Write(record.key, record.revision, b"1")])
        self.assertEqual(records.WriteResult(Verdict.UNKNOWN), result)

    def test_deleted_keys_of_the_driver_are_a_new_epoch(self) -> None:
        client = self.client()
        self.put(client, "a", b"one")
        cursor = client.head()
        self._etcdctl("del", "--prefix", f"{self.etcd.key_prefix}/m/")
        self.assert_resync(records.ResyncReason.EPOCH_CHANGED, client.fetch(cursor))
        self.assertEqual({}, contract_case.everything(client))

    def _etcdctl(self, *arguments: str) -> None:
        program = server_processes.find_program("etcdctl")
        subprocess.run(
            [program, "--endpoints", self.etcd.url, *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            check=True,
            capture_output=True,
        )


class TestFullServer(etcd_case.EtcdCase):
    """A full etcd refuses, loses nothing, and says how to get on."""

    options = ("--quota-backend-bytes=2000000", "--auto-compaction-retention=1h")

    def test_a_full_server_refuses_and_keeps_what_it_holds(self) -> None:
        client = self.client()
        written: dict[records.RecordKey, bytes] = {}
        unknown: dict[records.RecordKey, bytes] = {}
        payload = os.urandom(20_000)
        with self.assertRaises(errors.BackendUnavailable) as caught:
            for number in range(500):
                key = contract_case.key(f"k{number}")
                [result] = client.write([records.Write(key, 0, payload)])
                # The write that fills etcd is now and then carried out, and
                # answered as those that are refused.
                (written if result.won else unknown)[key] = payload
        text = str(caught.exception)
        for words in ("database space exceeded", "alarm disarm", "memberID", "defrag"):
            self.assertIn(words, text)
        member = self.server.post("/maintenance/status", {})["header"]["member_id"]
        self.assertIn(member, text)
        held = {key: record.payload for key, record in contract_case.everything(client).items()}
        self.assertEqual({**written, **unknown}, held)
        self.assertLessEqual(len(unknown), 1)
        self.assertEqual((), self.changes(client, client.head()).records)
        with self.assertRaises(errors.BackendUnavailable):
            client.write([records.Write(contract_case.key(f"n{n}"), 0, payload) for n in range(3)])
        self._make_room(client, member)
        self.put(client, "again", b"x")

    def _make_room(self, client: etcd.EtcdSynchronizer, member: str) -> None:
        """Do what the error says."""
        self.server.post("/kv/deleterange", {"key": "AA==", "range_end": "AA=="})
        self.server.compact()
        self.server.post("/maintenance/defragment", {})
        disarm = {"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member}
        self.server.post("/maintenance/alarm", disarm)


class TestCompaction(etcd_case.EtcdCase):
    """What the option ``compact`` does behind collect()."""

    private = True

    def test_history_behind_the_kept_time_goes_and_readers_in_it_go_on(self) -> None:
        client = self.opened(compact=True)
        reader = contract_case.FeedReader(self.client())
        start = client.head()
        record = self.put(client, "a", b"0")
        deadline = time.monotonic() + contract_case.PATIENCE_SECONDS
        compacted = 0
        while compacted <= start.version >> 8:
            record = self.put(client, "a", b"x", record.revision)
            client.collect(1.0)
            self.assert_reader_is_right(reader)
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
            compacted = self._compacted_at()
        self.assert_resync(records.ResyncReason.HISTORY_TRUNCATED, self.client().fetch(start))

    def test_without_the_option_history_is_left_alone(self) -> None:
        client = self.client()
        record = self.put(client, "a", b"0")
        for _ in range(5):
            record = self.put(client, "a", b"x", record.revision)
            client.collect(0.0)
        self.assertEqual(-1, self._compacted_at())

    def _compacted_at(self) -> int:
        with urllib.request.urlopen(f"{self.etcd.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        name = "etcd_debugging_mvcc_compact_revision "
        [line] = (line for line in lines if line.startswith(name))
        return int(float(line.split()[1]))


def _kinds_and_steps() -> list[tuple[str, Step]]:
    return [(kind, step) for kind, steps in STEPS.items() for step in steps]
