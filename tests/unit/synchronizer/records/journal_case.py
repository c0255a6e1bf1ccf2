# SPDX-License-Identifier: Apache-2.0
"""What a journal's ring owes on any driver; unit tests run it, and functional ones on servers."""

import itertools
import unittest
import uuid

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring
from nova_nodb_scheduler.wire import codec

NAMESPACE = known_namespaces.HEARTBEAT_JOURNALS.name
LOG = heartbeat_ring.LOG.name
START = 1_790_000_000.0
KEEP = 10.0
SERVICES = [str(uuid.UUID(int=each)) for each in range(1, 4)]


def beats_in(client):
    """Return (id, count) of all that stands in journals, by the slot's key."""
    found = {}
    for page in client.snapshot([NAMESPACE]).pages:
        for record in page:
            slot = heartbeat_journals.read(record.key.key, codec.decode(record.payload).state)
            beats = zip(slot.ids.tolist(), slot.counts.tolist(), strict=True)
            found[record.key.key] = set(beats)
    return found


def numbers(entries):
    return {(heartbeat_journals.service_id(each.service), each.report_count) for each in entries}


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class RingCase(unittest.TestCase):
    """A back end, a clock, and rings on it."""

    def setUp(self):
        self.clock = Clock()
        self.counts = itertools.count(1)
        self.back_end = self.client()

    def make_synchronizer(self):
        """Return a new client of this test's back end, unopened."""
        raise NotImplementedError

    def client(self):
        made = self.make_synchronizer()
        made.open()
        self.addCleanup(made.close)
        return made

    def ring(self, client=None, names=None, **bounds):
        names = names or (f"ring-{number}" for number in itertools.count())
        options = heartbeat_ring.RingOptions(**{"keep_seconds": KEEP, **bounds})
        return heartbeat_ring.HeartbeatRing(
            client or self.back_end, "c", lambda: next(names), options, self.clock
        )

    def entries(self, count=1, service=SERVICES[0]):
        return [
            heartbeat_ring.JournalEntry(service, next(self.counts), START + self.clock.seconds)
            for _ in range(count)
        ]

    def tell(self, ring, count=1, service=SERVICES[0]):
        """Have a ring write new heartbeats; return them."""
        entries = self.entries(count, service)
        self.assertEqual([], ring.add(entries))
        flushed = ring.flush()
        self.assertEqual((count, 0, 0), (flushed.written, flushed.waiting, flushed.lost))
        return entries

    def keys(self):
        return sorted(beats_in(self.back_end))

    def all_beats(self):
        return set().union(*beats_in(self.back_end).values())


class DriverCases(RingCase):
    """What holds with every driver."""

    def test_each_flush_is_a_slot_and_one_that_is_old_enough_is_overwritten(self):
        ring = self.ring()
        for _ in range(4):
            self.tell(ring)
            self.clock.seconds += 4.0
        # The first was 12 s old when the fourth took its place; the second is so now.
        last = self.tell(ring)
        found = beats_in(self.back_end)
        self.assertEqual([f"ring-0.{number}" for number in range(3)], sorted(found))
        self.assertEqual(numbers(last), found["ring-0.1"])
        self.assertEqual(3, len(self.all_beats()))

    def test_a_slot_that_is_young_is_never_overwritten_and_a_ring_has_an_end(self):
        ring = self.ring(max_slots=2)
        self.tell(ring)
        self.tell(ring)
        ring.add(self.entries(5))
        self.assertEqual((0, 5), attrs.astuple(ring.flush())[0::2])
        self.clock.seconds += KEEP
        self.assertEqual((5, 0), attrs.astuple(ring.flush())[0::2])
        self.assertEqual(["ring-0.0", "ring-0.1"], self.keys())

    def test_what_one_slot_cannot_hold_goes_on_in_others_in_the_same_write(self):
        ring = self.ring()
        entries = self.tell(ring, 3 * heartbeat_journals.MOST_OF_ONE - 1)
        self.assertEqual(3, len(self.keys()))
        self.assertEqual(numbers(entries), self.all_beats())
        apart = [
            heartbeat_ring.JournalEntry(SERVICES[1], 1, 1000.0),
            heartbeat_ring.JournalEntry(SERVICES[2], 1, START),
        ]
        ring.add(apart)
        self.assertEqual(2, ring.flush().written)
        self.assertEqual(5, len(self.keys()))

    def test_a_flush_of_all_services_of_a_large_cell_stands_there_whole(self):
        services = [str(uuid.uuid4()) for _ in range(heartbeat_journals.MOST_HEARTBEATS + 1000)]
        entries = [heartbeat_ring.JournalEntry(each, next(self.counts), START) for each in services]
        ring = self.ring()
        ring.add(entries)
        self.assertEqual(len(entries), ring.flush().written)
        self.assertEqual(2, len(self.keys()))
        self.assertEqual(numbers(entries), self.all_beats())

    def test_a_rival_of_the_same_name_is_noticed_and_nobodys_heartbeats_are_overwritten(self):
        first, second = self.ring(names=iter("ab")), self.ring(self.client(), names=iter("ac"))
        told = self.tell(first)
        with self.assertLogs(LOG, "WARNING") as logged:
            told += self.tell(second)
        self.assertIn("a.0", logged.output[0])
        self.assertEqual(["a.0", "c.0"], self.keys())
        told += self.tell(first) + self.tell(second)
        self.assertEqual(["a.0", "a.1", "c.0", "c.1"], self.keys())
        self.assertEqual(numbers(told), self.all_beats())
        self.assertEqual((0, 1), (first.given_up, second.given_up))

    def test_a_ring_that_was_dropped_for_dead_goes_on_under_a_new_name(self):
        ring = self.ring()
        self.tell(ring)
        left = self.tell(ring)
        [record] = self.back_end.read([records.RecordKey(NAMESPACE, "ring-0.0")]).values()
        self.back_end.write([records.Write(record.key, record.revision, deleted=True)])
        self.clock.seconds += KEEP
        with self.assertLogs(LOG, "WARNING"):
            entries = self.tell(ring)
        # What else it had is left to whoever drops it.
        more = self.tell(ring)
        expected = {"ring-0.1": left, "ring-1.0": entries, "ring-1.1": more}
        self.assertEqual(
            {key: numbers(each) for key, each in expected.items()}, beats_in(self.back_end)
        )

    def test_a_new_epoch_begins_a_new_ring(self):
        ring = self.ring()
        self.tell(ring)
        self.client().reset()
        self.clock.seconds += KEEP
        with self.assertLogs(LOG, "WARNING"):
            entries = self.tell(ring)
        self.assertEqual({"ring-1.0": numbers(entries)}, beats_in(self.back_end))

    def test_versions_are_told_and_grow(self):
        ring = self.ring()
        told = []
        for _ in range(3):
            ring.add(self.entries())
            told.append(ring.flush().version)
        self.assertEqual(told, sorted(set(told)))
        found = itertools.chain.from_iterable(self.back_end.snapshot([NAMESPACE]).pages)
        self.assertEqual(told, sorted(record.version for record in found))
