# SPDX-License-Identifier: Apache-2.0
"""A journal keeps what it was told, and never writes where somebody else did."""

import collections
import itertools
import pathlib
import tempfile
import unittest

import attrs
from hypothesis import stateful
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from nova_nodb_scheduler.synchronizer.drivers.memory import driver, faults, hub
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring
from nova_nodb_scheduler.wire import codec
from tests import machine_runs
from tests.unit.synchronizer.records import journal_case


class SmallPayloads(driver.MemorySynchronizer):
    """Three heartbeats are all that one of its records can hold."""

    capabilities = attrs.evolve(driver.MemorySynchronizer.capabilities, max_payload_bytes=1090)


class MemoryTest(journal_case.DriverCases):
    def setUp(self):
        self.hub = hub.MemoryHub()
        super().setUp()

    def make_synchronizer(self):
        return driver.MemorySynchronizer(shared_hub=self.hub)


class OneKeyAtATimeTest(MemoryTest):
    def make_synchronizer(self):
        return driver.MemorySynchronizer(driver.MemoryOptions(single_key=True), self.hub)


class SQLiteTest(journal_case.DriverCases):
    def make_synchronizer(self):
        if not hasattr(self, "path"):
            self.path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        return sql.SQLAlchemySynchronizer(sql.SQLOptions(f"sqlite:///{self.path}/nodb.sqlite"))


class RingTest(journal_case.RingCase):
    def setUp(self):
        self.hub = hub.MemoryHub()
        super().setUp()

    def make_synchronizer(self):
        return driver.MemorySynchronizer(shared_hub=self.hub)

    def calls(self, client):
        """Count a client's requests from here on."""
        counted = collections.Counter()

        def enter(operation, before=client._enter):
            counted[operation] += 1
            return before(operation)

        client._enter = enter
        return counted

    def test_a_flush_is_one_request_and_none_where_nothing_waits(self):
        ring = self.ring()
        counted = self.calls(self.back_end)
        ring.flush()
        self.assertEqual({}, counted)
        self.assertIsNone(ring.name)
        self.tell(ring, 200)
        self.tell(ring)
        self.assertEqual({"write": 2}, counted)

    def test_what_no_journal_can_hold_is_handed_back(self):
        good = heartbeat_ring.JournalEntry(journal_case.SERVICES[0], 1, journal_case.START)
        bad = [
            good._replace(service="no-uuid"),
            good._replace(report_count=2**31),
            good._replace(report_count=-(2**31) - 1),
            good._replace(heard_at=float("nan")),
            good._replace(heard_at=float("inf")),
            good._replace(heard_at=-1.0),
        ]
        ring = self.ring()
        self.assertEqual(bad, ring.add([bad[0], good, *bad[1:]]))
        self.assertEqual(1, ring.flush().written)

    def test_a_lost_reply_is_settled_by_a_read_and_the_slot_is_not_written_twice(self):
        ring = self.ring()
        self.back_end.faults.fail_next(faults.Fault.REPLY_LOST)
        entries = self.entries()
        ring.add(entries)
        self.assertEqual((0, 1), attrs.astuple(ring.flush())[0::2])
        counted = self.calls(self.back_end)
        self.assertEqual((1, 0), attrs.astuple(ring.flush())[0::2])
        self.assertEqual({"read": 1}, counted)
        self.assertEqual(
            {"ring-0.0": journal_case.numbers(entries)}, journal_case.beats_in(self.back_end)
        )
        self.assertEqual(0, ring.given_up)

    def test_a_request_that_was_lost_or_is_late_is_sent_again_as_it_was(self):
        for fault in (faults.Fault.REQUEST_LOST, faults.Fault.LATE):
            ring = self.ring(names=iter([fault.value]))
            self.back_end.faults.fail_next(fault)
            entries = self.entries()
            ring.add(entries)
            ring.flush()
            more = self.tell_behind(ring)
            self.hub.deliver_late()
            found = journal_case.beats_in(self.back_end)
            self.assertEqual(journal_case.numbers(entries), found[f"{fault.value}.0"])
            self.assertEqual(journal_case.numbers(more), found[f"{fault.value}.1"])
            self.clock.seconds += journal_case.KEEP
            self.tell(ring)
            self.assertEqual(0, ring.given_up)

    def tell_behind(self, ring):
        entries = self.entries()
        ring.add(entries)
        self.assertEqual((2, 0), attrs.astuple(ring.flush())[0::2])
        return entries

    def test_what_is_in_doubt_goes_to_the_new_ring_when_the_old_one_is_given_up(self):
        ring = self.ring()
        self.back_end.faults.fail_next(faults.Fault.REQUEST_LOST)
        entries = self.entries()
        ring.add(entries)
        ring.flush()
        rival = self.ring(self.client(), names=iter(["ring-0"]))
        theirs = self.tell(rival)
        with self.assertLogs(journal_case.LOG, "WARNING"):
            entries += self.tell_behind(ring)
        self.assertEqual(
            {"ring-0.0": journal_case.numbers(theirs), "ring-1.0": journal_case.numbers(entries)},
            journal_case.beats_in(self.back_end),
        )

    def test_of_several_slots_in_doubt_one_that_is_anothers_takes_all_to_the_new_ring(self):
        ring = self.ring()
        self.back_end.faults.fail_next(faults.Fault.REQUEST_LOST)
        entries = self.entries(heartbeat_journals.MOST_OF_ONE + 1)
        ring.add(entries)
        ring.flush()
        key = records.RecordKey(journal_case.NAMESPACE, "ring-0.1")
        state = heartbeat_journals.state_of(heartbeat_journals.slot_of("c", 1, [9], [9], [9]))
        theirs = codec.encode(state, known_namespaces.HEARTBEAT_JOURNALS.schema)
        self.client().write([records.Write(key, 0, theirs)])
        with self.assertLogs(journal_case.LOG, "WARNING"):
            self.assertEqual((65, 0), attrs.astuple(ring.flush())[0::2])
        found = journal_case.beats_in(self.back_end)
        self.assertEqual(["ring-0.1", "ring-1.0", "ring-1.1"], sorted(found))
        self.assertEqual(journal_case.numbers(entries), found["ring-1.0"] | found["ring-1.1"])
        self.assertEqual(1, ring.given_up)

    def test_while_the_back_end_is_down_heartbeats_wait_and_the_oldest_are_lost_at_the_bound(self):
        ring = self.ring(max_waiting=5)
        self.hub.faults.go_down()
        entries = []
        for each in range(8):
            entries += self.entries(service=journal_case.SERVICES[each % 3])
            ring.add(entries[-1:])
            with self.assertRaises(errors.BackendUnavailable):
                ring.flush()
        self.hub.faults.come_up()
        flushed = ring.flush()
        # What was sent at first is in doubt, and not among those that wait.
        self.assertEqual(8, flushed.written + flushed.lost)
        self.assertEqual((0, 2), (flushed.waiting, flushed.lost))
        self.assertLess(journal_case.numbers(entries[3:]), self.all_beats())
        self.assertEqual(0, self.ring_flush_lost(ring))

    def ring_flush_lost(self, ring):
        ring.add(self.entries())
        return ring.flush().lost

    def test_while_the_back_end_only_answers_reads_no_slot_is_taken_for_each_attempt(self):
        ring = self.ring(max_slots=4, max_waiting=5)
        self.back_end.faults.fail_next(faults.Fault.UNAVAILABLE, 8)
        entries = []
        for _ in range(8):
            entries += self.entries(2)
            ring.add(entries[-2:])
            with self.assertRaises(errors.BackendUnavailable):
                ring.flush()
            # What was sent at first, and as many as may wait.
            self.assertLessEqual(ring.waiting, 2 + 5)
        flushed = ring.flush()
        self.assertEqual((7, 0, 9), (flushed.written, flushed.waiting, flushed.lost))
        self.assertEqual(
            journal_case.numbers(entries[:2] + entries[-5:]), self.all_beats(), "the latest wait"
        )
        self.assertEqual(2, len(self.keys()))
        # There is room for what comes next.
        self.tell(ring)

    def test_a_service_that_says_very_many_counts_crowds_no_other_out(self):
        ring = self.ring(max_waiting=300)
        honest = self.entries(service=journal_case.SERVICES[1])
        ring.add(honest)
        ring.add(self.entries(10_000))
        flushed = ring.flush()
        self.assertEqual((0, 10_001 - flushed.written), (flushed.lost, ring.dropped))
        self.assertLess(journal_case.numbers(honest), self.all_beats())
        # Its own latest are there.
        self.assertEqual(10_001, max(count for _, count in self.all_beats()))

    def test_a_name_that_no_record_may_have_is_said(self):
        for name in ("a\nb", "n" * 255):
            ring = self.ring(names=iter([name]))
            ring.add(self.entries())
            with self.assertRaises(errors.InvalidRecord):
                ring.flush()
            self.assertEqual(1, ring.waiting)

    def test_slots_fit_the_back_ends_largest_payload(self):
        client = SmallPayloads(shared_hub=self.hub)
        client.open()
        self.addCleanup(client.close)
        entries = self.tell(self.ring(client), 10)
        self.assertEqual(4, len(self.keys()))
        self.assertEqual(journal_case.numbers(entries), self.all_beats())


class Machine(stateful.RuleBasedStateMachine):
    """A ring that others come in between with, and what must stand in the back end."""

    met: collections.Counter = collections.Counter()

    @stateful.initialize(single_key=st.booleans())
    def begin(self, single_key):
        self.hub = hub.MemoryHub()
        self.back_end = SmallPayloads(driver.MemoryOptions(single_key=single_key), self.hub)
        self.rival = driver.MemorySynchronizer(shared_hub=self.hub)
        self.back_end.open()
        self.rival.open()
        self.clock = journal_case.Clock()
        names = itertools.count()
        self.ring = heartbeat_ring.HeartbeatRing(
            self.back_end,
            "c",
            lambda: f"ring-{next(names)}",
            heartbeat_ring.RingOptions(journal_case.KEEP, max_slots=5, max_waiting=12),
            self.clock,
        )
        self.count = 0
        self.added, self.lost = set(), 0
        self.since = {}
        self.excused = set()
        self.foreign = {}

    @stateful.rule(service=st.sampled_from(journal_case.SERVICES), times=st.integers(1, 6))
    def beat(self, service, times):
        for _ in range(times):
            self.count += 1
            entry = heartbeat_ring.JournalEntry(
                service, self.count, journal_case.START + self.clock.seconds
            )
            self.ring.add([entry])
            self.added |= journal_case.numbers([entry])

    @stateful.rule(
        fault=st.sampled_from([None, None, None, *faults.Fault]),
        on_read=st.booleans(),
    )
    def flush(self, fault, on_read):
        if fault is not None:
            is_read = on_read and fault is faults.Fault.UNAVAILABLE
            self.back_end.faults.fail_next(fault, operation="read" if is_read else "write")
        given_up = self.ring.given_up
        try:
            flushed = self.ring.flush()
        except errors.BackendUnavailable:
            self.met["unavailable"] += 1
        else:
            self.lost += flushed.lost
            self.met["lost"] += bool(flushed.lost)
            self.met["no room"] += bool(flushed.waiting and fault is None)
        self.met["given up"] += self.ring.given_up > given_up
        # What was not met stays for the next flush; it is ordered anew then.
        self.back_end.faults = faults.Faults(lambda: None)

    @stateful.rule()
    def deliver_late(self):
        won = [each for each in self.hub.deliver_late() if each.won]
        self.met["late and won"] += bool(won)

    @stateful.rule(seconds=st.sampled_from([1.0, 4.0, journal_case.KEEP]))
    def pass_time(self, seconds):
        self.clock.seconds += seconds

    def _excuse(self, key):
        self.excused |= journal_case.beats_in(self.rival).get(key, set())

    @stateful.rule(at=st.integers(0, 5), deleted=st.booleans())
    def come_between(self, at, deleted):
        """Write or drop a slot of the ring's, as one of the same name or a collector does."""
        if self.ring.name is None:
            return
        key = records.RecordKey(journal_case.NAMESPACE, f"{self.ring.name}.{at}")
        standing = self.rival.read([key]).get(key)
        revision = 0 if standing is None or standing.deleted else standing.revision
        if deleted and not revision:
            return
        self._excuse(key.key)
        slot = heartbeat_journals.slot_of("c", 1, [99], [self.count], [1])
        payload = codec.encode(
            heartbeat_journals.state_of(slot), known_namespaces.HEARTBEAT_JOURNALS.schema
        )
        [result] = self.rival.write([records.Write(key, revision, payload, deleted)])
        assert result.won
        self.foreign.pop(key, None)
        if not deleted:
            self.met["rival"] += 1
            self.foreign[key] = result.record

    @stateful.rule()
    def begin_an_epoch(self):
        self.met["epoch"] += 1
        for key in journal_case.beats_in(self.rival):
            self._excuse(key)
        self.foreign.clear()
        self.rival.reset()

    @stateful.invariant()
    def nothing_is_gone_before_its_time(self):
        present = set().union(*journal_case.beats_in(self.rival).values())
        for beat in present:
            self.since.setdefault(beat, self.clock.seconds)
        for beat, since in self.since.items():
            if beat not in present and beat not in self.excused:
                assert self.clock.seconds - since >= journal_case.KEEP, beat
                self.met["overwritten"] += 1
        never = self.added - self.since.keys()
        # The ring tells what it lost with its next flush.
        assert len(never) <= self.ring.waiting + self.lost + self.ring._lost, never
        assert self.ring._lost + self.ring.waiting <= self.count

    @stateful.invariant()
    def nobody_elses_slot_is_overwritten(self):
        found = self.rival.read(list(self.foreign))
        assert dict(found) == self.foreign

    def teardown(self):
        for _ in range(8):
            self.clock.seconds += journal_case.KEEP
            self.lost += self.ring.flush().lost
            self.nothing_is_gone_before_its_time()
        assert self.ring.waiting == 0
        self.nobody_elses_slot_is_overwritten()
        self.back_end.close()
        self.rival.close()


CASES = (
    "unavailable",
    "lost",
    "no room",
    "given up",
    "late and won",
    "rival",
    "epoch",
    "overwritten",
)


class PropertyTest(unittest.TestCase):
    def test_whatever_comes_between_nothing_told_is_lost_unsaid(self):
        machine_runs.run(Machine, Machine.met, CASES, max_examples=150, stateful_step_count=40)
