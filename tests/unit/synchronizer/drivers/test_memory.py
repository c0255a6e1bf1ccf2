# SPDX-License-Identifier: Apache-2.0
"""The memory driver: its order, its bounds, and the faults that can be ordered."""

from __future__ import annotations

import os
import threading
import time
import unittest

from hypothesis import settings, stateful
from hypothesis import strategies as st
from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.testing.conformance import contract_case

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "75"))

A = contract_case.key("a")
LOST = records.Verdict.LOST
UNKNOWN = records.WriteResult(records.Verdict.UNKNOWN)


class MadeClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class MemoryCase(contract_case.Case):
    def setUp(self) -> None:
        super().setUp()
        self.clock = MadeClock()
        self.hub = memory.MemoryHub(history_entries=10, clock=self.clock)
        self.synchronizer = self.client()

    def make_synchronizer(self) -> memory.MemorySynchronizer:
        return memory.MemorySynchronizer(None, self.hub)


class TestFaults(MemoryCase):
    def test_an_unavailable_back_end_has_written_nothing(self) -> None:
        self.hub.faults.fail_next(memory.Fault.UNAVAILABLE)
        with self.assertRaises(errors.BackendUnavailable):
            self.synchronizer.write([records.Write(A, 0, b"x")])
        self.assertEqual({}, self.synchronizer.read([A]))
        self.put(self.synchronizer, "a", b"x")

    def test_a_write_whose_reply_is_lost_was_carried_out(self) -> None:
        self.hub.faults.fail_next(memory.Fault.REPLY_LOST)
        self.assertEqual([UNKNOWN], self.synchronizer.write([records.Write(A, 0, b"x")]))
        self.assertEqual(b"x", self.synchronizer.read([A])[A].payload)

    def test_a_write_whose_request_is_lost_was_not_carried_out(self) -> None:
        self.hub.faults.fail_next(memory.Fault.REQUEST_LOST)
        self.assertEqual([UNKNOWN], self.synchronizer.write([records.Write(A, 0, b"x")]))
        self.assertEqual({}, self.synchronizer.read([A]))

    def test_a_late_write_arrives_when_told_to(self) -> None:
        self.hub.faults.fail_next(memory.Fault.LATE)
        self.assertEqual([UNKNOWN], self.synchronizer.write([records.Write(A, 0, b"x")]))
        self.assertEqual({}, self.synchronizer.read([A]))
        [result] = self.hub.deliver_late()
        self.assertTrue(result.won)
        self.assertEqual([], self.hub.deliver_late())

    def test_a_late_write_loses_against_who_wrote_meanwhile(self) -> None:
        self.hub.faults.fail_next(memory.Fault.LATE)
        self.synchronizer.write([records.Write(A, 0, b"late")])
        standing = self.put(self.synchronizer, "a", b"meanwhile")
        self.assertEqual([records.WriteResult(LOST, standing)], self.hub.deliver_late())

    def test_faults_are_used_up_one_per_call(self) -> None:
        self.hub.faults.fail_next(memory.Fault.UNAVAILABLE, count=2, operation="read")
        for _ in range(2):
            with self.assertRaises(errors.BackendUnavailable):
                self.synchronizer.read([A])
        self.assertEqual({}, self.synchronizer.read([A]))

    def test_only_a_write_can_end_unknown(self) -> None:
        with self.assertRaises(ValueError):
            self.hub.faults.fail_next(memory.Fault.REPLY_LOST, operation="read")
        with self.assertRaises(ValueError):
            self.hub.faults.fail_next(memory.Fault.UNAVAILABLE, operation="reed")

    def test_a_fault_of_one_client_spares_the_others(self) -> None:
        other = self.client()
        self.synchronizer.faults.go_down()
        with self.assertRaises(errors.BackendUnavailable):
            self.synchronizer.head()
        self.put(other, "a", b"x")
        self.synchronizer.faults.come_up()
        self.assertIn(A, self.synchronizer.read([A]))

    def test_a_back_end_that_goes_down_ends_the_wait(self) -> None:
        head = self.synchronizer.head()
        timer = threading.Timer(0.1, self.hub.faults.go_down)
        timer.start()
        self.addCleanup(timer.join)
        began = time.monotonic()
        with self.assertRaises(errors.BackendUnavailable):
            self.synchronizer.wait(head, 10.0)
        self.assertLess(time.monotonic() - began, 5.0)

    def test_a_frozen_feed_brings_nothing_until_it_thaws(self) -> None:
        start = self.synchronizer.head()
        self.hub.faults.freeze()
        written = self.put(self.synchronizer, "a", b"x")
        self.assertEqual(records.Changes((), start), self.synchronizer.fetch(start))
        self.assertFalse(self.synchronizer.wait(start, 0.05))
        self.assertEqual(written.version, self.synchronizer.head().version)
        timer = threading.Timer(0.1, self.hub.faults.thaw)
        timer.start()
        self.addCleanup(timer.join)
        self.assertTrue(self.synchronizer.wait(start, 10.0))
        self.assertEqual((written,), self.changes(self.synchronizer, start).records)

    def test_closing_ends_the_wait(self) -> None:
        waiter = self.client()
        head = waiter.head()
        timer = threading.Timer(0.1, waiter.close)
        timer.start()
        self.addCleanup(timer.join)
        began = time.monotonic()
        self.assertFalse(waiter.wait(head, 10.0))
        self.assertLess(time.monotonic() - began, 5.0)

    def test_a_client_that_is_not_open_is_unavailable(self) -> None:
        with self.assertRaises(errors.BackendUnavailable):
            self.make_synchronizer().head()


class TestBounds(MemoryCase):
    def test_history_beyond_its_bound_needs_a_resync(self) -> None:
        start = self.synchronizer.head()
        record = self.put(self.synchronizer, "a", b"0")
        after_first = self.synchronizer.head()
        for number in range(10):
            record = self.put(self.synchronizer, "a", b"%d" % number, record.revision)
        answer = self.synchronizer.fetch(start)
        self.assertIsInstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.HISTORY_TRUNCATED, answer.reason)
        self.assertEqual((record,), self.changes(self.synchronizer, after_first).records)
        self.assertEqual(10, self.synchronizer.statistics()["history"])

    def test_tombstones_are_kept_to_the_second_by_the_hub_s_clock(self) -> None:
        self.drop(self.synchronizer, self.put(self.synchronizer, "a", b"x"))
        self.clock.seconds += 59.0
        self.assertEqual(0, self.synchronizer.collect(60.0).tombstones)
        self.clock.seconds += 1.0
        collected = self.synchronizer.collect(60.0)
        self.assertEqual((1, 2), (collected.tombstones, collected.floor))

    def test_the_clock_of_the_hub_is_the_clock_of_all(self) -> None:
        self.clock.seconds = 7.5
        self.assertEqual(7.5, self.synchronizer.now_seconds())

    def test_a_restored_backup_stands_behind_cursors(self) -> None:
        self.put(self.synchronizer, "a", b"kept")
        backup = self.hub.backup()
        self.put(self.synchronizer, "b", b"lost")
        cursor = self.synchronizer.head()
        self.hub.restore(backup)
        answer = self.synchronizer.fetch(cursor)
        self.assertIsInstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.HEAD_BEHIND_CURSOR, answer.reason)
        self.assertEqual([A], list(contract_case.everything(self.synchronizer)))

    def test_a_backup_does_not_change_with_its_hub(self) -> None:
        record = self.put(self.synchronizer, "a", b"kept")
        backup = self.hub.backup()
        self.put(self.synchronizer, "a", b"later", record.revision)
        self.hub.restore(backup)
        self.assertEqual({A: record}, contract_case.everything(self.synchronizer))

    def test_revisions_go_on_over_epochs(self) -> None:
        record = self.put(self.synchronizer, "a", b"x")
        self.hub.begin_epoch()
        again = self.put(self.synchronizer, "a", b"y")
        self.assertGreater(again.revision, record.revision)


class TestOptions(unittest.TestCase):
    def test_hubs_of_one_name_are_one_in_a_process(self) -> None:
        self.addCleanup(memory.MemoryHub.forget, "of-this-test")
        one, two = (
            memory.MemorySynchronizer(memory.MemoryOptions(hub_name="of-this-test"))
            for _ in range(2)
        )
        other = memory.MemorySynchronizer(memory.MemoryOptions(hub_name="of-another"))
        self.addCleanup(memory.MemoryHub.forget, "of-another")
        self.assertIs(one.hub, two.hub)
        self.assertIsNot(one.hub, other.hub)

    def test_options_come_from_configuration(self) -> None:
        conf = cfg.ConfigOpts()
        memory.MemorySynchronizer.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override("hub_name", "configured", group="nodb_memory")
        self.addCleanup(memory.MemoryHub.forget, "configured")
        synchronizer = memory.MemorySynchronizer.from_config(conf)
        self.assertIs(memory.MemoryHub.named("configured"), synchronizer.hub)

    def test_history_has_a_lower_bound(self) -> None:
        conf = cfg.ConfigOpts()
        memory.MemorySynchronizer.register_opts(conf)
        conf([], default_config_files=[])
        with self.assertRaises(ValueError):
            conf.set_override("history_entries", 0, group="nodb_memory")


class ModelComparison(stateful.RuleBasedStateMachine):
    """Any sequence of calls against a dictionary, and a reader beside it."""

    single_key = False

    def __init__(self) -> None:
        super().__init__()
        self.clock = MadeClock()
        hub = memory.MemoryHub(history_entries=6, clock=self.clock)
        self.hub = hub
        self.synchronizer = memory.MemorySynchronizer(
            memory.MemoryOptions(single_key=self.single_key), hub
        )
        self.synchronizer.open()
        self.reader = contract_case.FeedReader(self.synchronizer, limit=2)
        self.model: dict[records.RecordKey, bytes] = {}
        self.revisions: dict[records.RecordKey, int] = {}

    @stateful.rule(
        names=st.sets(st.sampled_from("abc"), min_size=1),
        stale=st.booleans(),
        deleted=st.booleans(),
        payload=st.binary(min_size=1, max_size=4),
    )
    def write(self, names: set[str], stale: bool, deleted: bool, payload: bytes) -> None:
        keys = [contract_case.key(name) for name in sorted(names)]
        standing = self.synchronizer.read(keys)
        writes = []
        for key in keys:
            record = standing.get(key)
            revision = record.revision if record and not record.deleted else 0
            writes.append(records.Write(key, revision + stale, payload, deleted))
        for write, result in zip(writes, self.synchronizer.write(writes), strict=True):
            record = standing.get(write.key)
            # A revision that is wrong by one may still be a tombstone's own.
            fits = not stale or (record is not None and record.revision == write.expected_revision)
            assert result.won == fits
            if not fits:
                continue
            assert result.record is not None
            assert result.record.revision > self.revisions.get(write.key, 0)
            self.revisions[write.key] = result.record.revision
            if deleted:
                self.model.pop(write.key, None)
            else:
                self.model[write.key] = payload

    @stateful.rule(seconds=st.integers(0, 30))
    def collect(self, seconds: int) -> None:
        self.clock.seconds += 10
        self.synchronizer.collect(float(seconds))

    @stateful.rule()
    def read_feed(self) -> None:
        self.reader.step()

    @stateful.rule()
    def lose_everything(self) -> None:
        self.hub.begin_epoch()
        self.model.clear()

    @stateful.invariant()
    def the_back_end_equals_the_model(self) -> None:
        held = contract_case.everything(self.synchronizer)
        assert {key: record.payload for key, record in held.items()} == self.model

    @stateful.invariant()
    def history_is_bounded(self) -> None:
        assert int(self.synchronizer.statistics()["history"]) <= 6

    def teardown(self) -> None:
        self.reader.catch_up()
        held = {key: record.payload for key, record in self.reader.held.items()}
        assert held == self.model
        self.synchronizer.close()


class ModelComparisonOneKey(ModelComparison):
    single_key = True


class TestAgainstModel(unittest.TestCase):
    def test_any_sequence_of_calls_equals_a_dictionary(self) -> None:
        for machine in (ModelComparison, ModelComparisonOneKey):
            with self.subTest(machine=machine.__name__):
                stateful.run_state_machine_as_test(
                    machine, settings=settings(max_examples=EXAMPLES, deadline=None)
                )


class TestContract(unittest.TestCase):
    def test_a_memory_hub_pushes_and_is_not_durable(self) -> None:
        capabilities = memory.MemorySynchronizer(None, memory.MemoryHub()).capabilities
        self.assertIs(contract.Feed.PUSH, capabilities.feed)
        self.assertFalse(capabilities.durable)
        self.assertFalse(capabilities.shared)
