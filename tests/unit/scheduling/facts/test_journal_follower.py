# SPDX-License-Identifier: Apache-2.0
"""A follower takes in each slot of a store once, and goes on past those that it cannot read."""

import unittest
import uuid

import numpy as np

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.facts import heard_services, journal_follower
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec

NAMESPACE = known_namespaces.HEARTBEAT_JOURNALS
SERVICES = [str(uuid.UUID(int=each)) for each in (1, 2)]
BEGAN = 1_790_000_000.0
LATER = 1e9


class Case(unittest.TestCase):
    def setUp(self):
        declared = (NAMESPACE,)
        self.store = host_state_store.HostStateStore(declared, codec.decode_state)
        self.quarantine = ingest.Quarantine(10)
        self.ingester = ingest.Ingester(self.store, declared, self.quarantine)
        self.version = 0
        self.epoch = "one"
        self.wall = BEGAN + 100
        self.follower = journal_follower.JournalFollower(3.0, 120.0, lambda: self.wall)
        self.know()

    def know(self):
        known = len(SERVICES)
        self.follower.know(
            heard_services.KnownServices(
                SERVICES, ["c"] * known, np.full(known, 100), np.full(known, BEGAN)
            )
        )

    def put(self, key, payload):
        self.version += 1
        record = records.Record(
            records.RecordKey(NAMESPACE.name, key), self.version, self.version, payload
        )
        for _ in self.ingester.take([record]):
            pass

    def write(self, key, *counts, service=SERVICES[0], flush=1):
        number = heartbeat_journals.service_id(service)
        ticks = [heartbeat_journals.tick_of(BEGAN + min(count, 120)) for count in counts]
        slot = heartbeat_journals.slot_of("c", flush, [number] * len(counts), counts, ticks)
        self.put(key, codec.encode(heartbeat_journals.state_of(slot), NAMESPACE.schema))

    def catch_up(self):
        return self.follower.catch_up(self.store.snapshot(), self.epoch, 0.0)

    def heard(self):
        last = self.follower.last_heard()
        return dict(zip(last.keys, last.counts.tolist(), strict=True))[SERVICES[0]]


class FollowerTest(Case):
    def test_who_began_by_a_clock_that_was_ahead_begins_when_it_is_set_back(self):
        self.wall = BEGAN + 86_400
        self.write("a.0", 101)
        self.catch_up()
        self.wall = BEGAN + 110
        self.write("a.1", 102)
        self.write("a.2", 104)
        self.catch_up()
        self.assertEqual({"c": 1}, self.follower.unreported(1e9))

    def test_each_slot_is_read_once_and_those_of_one_look_by_their_versions(self):
        self.write("b.0", 101)
        self.write("a.0", 102, 103)
        self.assertEqual(2, self.catch_up().slots)
        self.write("b.1", 104)
        self.assertEqual(1, self.catch_up().slots)
        self.assertEqual(0, self.catch_up().slots)
        self.assertEqual(104, self.heard())
        # Read by name, the second slot would have been the beginning, and the first no gap.
        self.write("b.0", 106)
        self.catch_up()
        self.assertEqual({"c": 1}, self.follower.unreported(LATER))
        self.follower.settle("c", self.version)
        self.assertEqual({}, self.follower.unreported(LATER))

    def test_a_follower_that_begins_takes_the_lowest_version_for_the_beginning(self):
        self.write("a.0", 100)
        self.write("b.0", 101)
        # In the row that the first one had, before the other's.
        self.write("a.0", 103)
        self.catch_up()
        self.assertEqual({"c": 1}, self.follower.unreported(LATER))

    def test_who_begins_counts_from_a_record_that_is_as_young_as_rings_are_whole(self):
        self.write("a.0", 102)
        self.catch_up()
        self.assertEqual({"c": 1}, self.follower.unreported(LATER))
        # What is told late is there.
        self.write("b.0", 101)
        self.catch_up()
        self.assertEqual({}, self.follower.unreported(LATER))
        # The record is older than that.
        self.wall = BEGAN + 121
        self.follower = journal_follower.JournalFollower(3.0, 120.0, lambda: self.wall)
        self.know()
        self.write("a.0", 102)
        self.write("b.0", 104)
        self.catch_up()
        self.assertEqual({"c": 1}, self.follower.unreported(LATER))
        self.write("a.1", 103)
        self.catch_up()
        self.assertEqual({}, self.follower.unreported(LATER))

    def test_a_slot_that_cannot_be_read_is_counted_and_named_once_and_others_go_on(self):
        self.write("a.0", 101)
        self.put("a.1", codec.encode({"cell": "c", "flush": 2}, NAMESPACE.schema))
        self.write("a.2", 103)
        with self.assertLogs(journal_follower.LOG, "WARNING") as logged:
            followed = self.catch_up()
        self.assertEqual((2, 1), (followed.slots, followed.unreadable))
        self.assertIn("slot a.1 of a", logged.output[0])
        self.assertEqual(frozenset(["a.1"]), self.follower.unreadable)
        self.assertEqual({"c": 1}, self.follower.unreported(LATER))
        self.put("a.1", codec.encode({"cell": 1}, NAMESPACE.schema))
        with self.assertNoLogs(journal_follower.LOG):
            self.assertEqual(1, self.catch_up().unreadable)
        self.write("a.1", 102)
        self.catch_up()
        self.assertEqual(frozenset(), self.follower.unreadable)
        self.assertEqual({}, self.follower.unreported(LATER))

    def test_bytes_of_another_release_are_kept_aside_by_the_store_and_stop_nobody(self):
        newer = type(NAMESPACE.schema)(NAMESPACE.schema.major + 1, 0)
        self.put("a.0", codec.encode({"cell": "c"}, newer))
        self.put("a.1", b"\x02damaged")
        self.write("a.2", 101)
        self.assertEqual(1, self.catch_up().slots)
        self.assertEqual(2, len(self.quarantine))

    def test_a_new_epoch_begins_everything_anew_and_services_stay_known(self):
        self.write("a.0", 101)
        self.write("a.1", 103)
        self.catch_up()
        self.store.begin_epoch()
        self.epoch, self.version = "two", 0
        self.assertEqual(0, self.catch_up().slots)
        self.assertEqual({}, self.follower.unreported(LATER))
        self.write("a.0", 101)
        followed = self.catch_up()
        self.assertEqual((1, 0), (followed.slots, followed.unknown))
        self.assertEqual(101, self.heard())
        self.assertEqual({}, self.follower.unreported(LATER))

    def test_a_snapshot_that_is_older_than_another_threads_changes_nothing(self):
        self.write("a.0", 101)
        old = self.store.snapshot()
        self.write("a.1", 102)
        self.catch_up()
        self.assertEqual(
            journal_follower.FollowedSlots(), self.follower.catch_up(old, self.epoch, 0.0)
        )
        self.write("a.0", 103)
        self.assertEqual(1, self.catch_up().slots)
        old = self.store.snapshot()
        self.store.begin_epoch()
        self.epoch = "two"
        self.catch_up()
        self.assertEqual(journal_follower.FollowedSlots(), self.follower.catch_up(old, "one", 0.0))

    def test_a_slot_that_was_dropped_leaves_what_it_told(self):
        self.write("a.0", 101)
        self.catch_up()
        self.version += 1
        gone = records.Record(
            records.RecordKey(NAMESPACE.name, "a.0"), self.version, self.version, b"", True
        )
        list(self.ingester.take([gone]))
        self.assertEqual(journal_follower.FollowedSlots(), self.catch_up())
        self.assertEqual(101, self.heard())

    def test_what_no_service_can_have_come_to_is_handed_on(self):
        self.write("a.0", 2**31 - 1)
        self.write("a.1", 5, service=str(uuid.uuid4()))
        followed = self.catch_up()
        self.assertEqual(1, followed.unknown)
        self.assertEqual(
            (heard_services.ImplausibleCount(SERVICES[0], 100, 2**31 - 1),), followed.implausible
        )


class HeldUpTest(Case):
    """A ring of three slots."""

    def flush(self, *numbers):
        for number in numbers:
            self.write(f"host.example.{number % 3}", 100 + number, flush=number)

    def test_a_follower_whose_slots_were_overwritten_once_goes_on(self):
        self.flush(1, 2, 3)
        self.catch_up()
        for number in range(4, 11, 3):
            self.flush(number, number + 1, number + 2)
            self.assertEqual(
                journal_follower.FollowedSlots(slots=3), self.catch_up(), f"flush {number}"
            )
        self.assertEqual({}, self.follower.unreported(LATER))

    def test_one_that_slots_passed_by_begins_anew(self):
        self.flush(1, 2, 3)
        self.catch_up()
        self.flush(*range(4, 8))
        followed = self.catch_up()
        self.assertTrue(followed.held_up)
        self.assertEqual(107, self.heard())
        self.assertEqual({}, self.follower.unreported(LATER))
        self.flush(9)
        self.assertFalse(self.catch_up().held_up)
        self.assertEqual({"c": 1}, self.follower.unreported(LATER))

    def test_what_was_unreported_before_stays_so_until_a_sweep(self):
        self.flush(1, 3)
        self.catch_up()
        shown = self.version
        self.flush(*range(4, 12))
        self.assertTrue(self.catch_up().held_up)
        self.assertEqual({"c": 1}, self.follower.unreported(LATER))
        self.follower.settle("c", shown)
        self.assertEqual({}, self.follower.unreported(LATER))

    def test_a_slot_that_nobody_can_read_is_one_of_its_ring(self):
        self.flush(1, 2)
        self.put("host.example.0", codec.encode({"cell": "c"}, NAMESPACE.schema))
        self.put("host.example.3", codec.encode({"cell": "c"}, NAMESPACE.schema))
        self.catch_up()
        self.flush(6)
        self.put("host.example.0", codec.encode({"cell": "c"}, NAMESPACE.schema))
        self.write("host.example.1", 105, flush=5)
        self.assertFalse(self.catch_up().held_up)
        self.assertEqual({"c": 1}, self.follower.unreported(LATER))

    def test_a_ring_that_grows_has_not_passed_by(self):
        self.flush(1, 2, 3)
        self.catch_up()
        # An outage: the ring got two slots more before it overwrote the first.
        self.write("host.example.3", 104, flush=4)
        self.write("host.example.4", 105, flush=5)
        self.write("host.example.1", 106, flush=6)
        self.assertFalse(self.catch_up().held_up)
        self.assertEqual({}, self.follower.unreported(LATER))

    def test_a_beginning_looks_back_no_farther_than_rings_are_whole(self):
        # Of a ring that has little to write an old slot is left; what came behind it stood
        # in another, which has overwritten it.
        self.write("idle.0", 1, 101)
        self.wall = BEGAN + 101 + 100
        self.write("busy.0", 101 + 19, flush=70)
        followed = self.catch_up()
        self.assertEqual(2, followed.slots)
        self.assertEqual({"c": 1}, self.follower.unreported(LATER))
        self.wall = BEGAN + 102 + 120
        again = journal_follower.JournalFollower(3.0, 120.0, lambda: self.wall)
        self.follower = again
        self.know()
        self.catch_up()
        self.assertEqual({}, self.follower.unreported(LATER))
        self.assertEqual(120, self.heard())
        # Later on nothing is left out, however late it is told.
        self.write("busy.1", 122, flush=71)
        self.write("late.0", 119, 121)
        self.wall += 500
        self.catch_up()
        self.assertEqual({}, self.follower.unreported(LATER))
        self.assertEqual(122, self.heard())

    def test_what_it_finds_when_it_was_held_up_is_looked_at_by_the_same_horizon(self):
        self.flush(1, 2, 3)
        self.catch_up()
        self.wall = BEGAN + 115 + 119
        # Told late, by a conductor that waited for the back end.
        self.write("late.0", 110)
        self.flush(*range(15, 21))
        self.assertTrue(self.catch_up().held_up)
        self.assertEqual({}, self.follower.unreported(LATER))
