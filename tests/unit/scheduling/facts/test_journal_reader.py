# SPDX-License-Identifier: Apache-2.0
"""Readers of a store tell when services were heard of last by records and journals together."""

import collections
import datetime
import os
import random
import sys
import unittest
import uuid
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.facts import (
    heard_services,
    journal_follower,
    journal_reader,
)
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from tests.unit.scheduling import hosts

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "50"))
BEGAN = 1_790_000_000.0
GRACE, HORIZON = 3.0, 1e6
A, B = "cell-a", "cell-b"
SERVICES = [str(uuid.UUID(int=each)) for each in (1, 2, 3)]
TWIN = str(uuid.UUID(int=(1 << 64) + 1))
LIVENESS = known_namespaces.SERVICE_LIVENESS
JOURNALS = known_namespaces.HEARTBEAT_JOURNALS


def text_of(seconds):
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.replace(tzinfo=None).isoformat()


class World(hosts.Hosts):
    """A store with records and journals, and a reader of it."""

    def __init__(self):
        super().__init__()
        self.epoch, self.now = "e1", 0.0
        self.flushes = 0
        self.reader = self.new_reader()

    def new_reader(self):
        return journal_reader.JournalReader(
            lambda: journal_follower.JournalFollower(GRACE, HORIZON, lambda: BEGAN + self.now),
            lambda: self.epoch,
            lambda: self.now,
        )

    def record(self, key, count, seconds, cell=A, **more):
        seen = None if seconds is None else text_of(BEGAN + seconds)
        state = {"cell": cell, "report_count": count, "last_seen_up": seen, "unreported": 0}
        counted = {} if seconds is None else {"counted_at": BEGAN + seconds}
        self.put(LIVENESS, key, {**state, **counted, **more})

    def slot(self, key, *beats, cell=A, name="ring.0"):
        """Write a slot of (count, seconds) of one service."""
        self.flushes += 1
        number = heartbeat_journals.service_id(key)
        slot = heartbeat_journals.slot_of(
            cell,
            self.flushes,
            [number] * len(beats),
            [count for count, _ in beats],
            [heartbeat_journals.tick_of(BEGAN + seconds) for _, seconds in beats],
        )
        self.put(JOURNALS, name, heartbeat_journals.state_of(slot))

    def swept(self, version, cell=A, epoch="e1"):
        state = {"cell": cell, "epoch": epoch, "swept_from": 1.0, "swept_version": version}
        self.put(known_namespaces.CELLS, cell, state)

    def look(self):
        return self.reader.look(self.store.snapshot())

    def seconds(self, key):
        """Return when a service was heard of, seconds behind the beginning; None for no journal."""
        times = self.look()
        heard = None if times is None else times.of(key)
        return None if heard is None else round(heard.seconds - BEGAN, 3)

    def unreported(self):
        return dict(self.reader.unreported(self.store.snapshot()))


class ReaderTest(unittest.TestCase):
    def setUp(self):
        self.world = World()
        for key in SERVICES:
            self.world.record(key, 100, 0.0)

    def test_without_a_journal_nothing_is_read_and_nothing_is_called(self):
        self.world.look()
        snapshot = self.world.store.snapshot()
        called = []
        modules = (journal_reader, journal_follower, heard_services)
        files = tuple(module.__file__ for module in modules)

        def note(frame, event, _argument):
            if event == "call" and frame.f_code.co_filename in files:
                called.append(frame.f_code.co_qualname)

        sys.setprofile(note)
        try:
            self.world.reader.look(snapshot)
            self.world.reader.unreported(snapshot)
        finally:
            sys.setprofile(None)
        self.assertEqual(["JournalReader.look", "JournalReader.unreported"], called)

    def test_a_look_that_fails_in_its_middle_leaves_nothing_noted_that_nobody_took_in(self):
        for at in (
            "JournalFollower.change",
            "JournalFollower.catch_up",
            "JournalFollower._take",
            "JournalFollower.settle",
            "JournalFollower.take_touched",
            "JournalFollower.last_heard",
        ):
            world = World()
            for key in SERVICES:
                world.record(key, 100, 0.0)
            world.slot(SERVICES[0], (101, 10.0))
            world.swept(0)
            world.look()
            world.record(SERVICES[1], 105, 15.0)
            world.slot(SERVICES[0], (102, 20.0), name="ring.1")
            world.slot(SERVICES[1], (106, 25.0), name="ring.2")
            world.swept(1)
            name, _, method = at.partition(".")
            owner = getattr(journal_follower, name)
            with (
                self.subTest(at),
                mock.patch.object(owner, method, autospec=True, side_effect=MemoryError),
                self.assertRaises(MemoryError),
            ):
                world.look()
            self.assertEqual(20.0, world.seconds(SERVICES[0]), at)
            self.assertEqual(25.0, world.seconds(SERVICES[1]), at)
            self.assertEqual({}, world.unreported(), at)

    def test_a_service_that_no_journal_names_is_its_records_alone(self):
        self.world.slot(SERVICES[0], (101, 10.0))
        self.assertEqual(10.0, self.world.seconds(SERVICES[0]))
        self.assertIsNone(self.world.seconds(SERVICES[1]))
        self.assertEqual({SERVICES[0]}, self.world.look().told())

    def test_of_record_and_journal_the_higher_count_of_the_later_one_tells(self):
        world = self.world
        # Told by a clock that is far ahead, and put right by the next heartbeat.
        world.record(SERVICES[0], 101, 500.0)
        world.slot(SERVICES[0], (102, 20.0))
        self.assertEqual(20.0, world.seconds(SERVICES[0]))
        world.record(SERVICES[0], 103, 30.0)
        self.assertEqual(30.0, world.seconds(SERVICES[0]))
        # What is told late changes nothing.
        world.slot(SERVICES[0], (101, 10.0), name="ring.1")
        self.assertEqual(30.0, world.seconds(SERVICES[0]))

    def test_a_service_that_counts_anew_in_journals_is_alive(self):
        world = self.world
        world.record(SERVICES[0], 1000, 0.0)
        world.slot(SERVICES[0], (1001, 10.0))
        for count in range(1, 80):
            world.slot(SERVICES[0], (count, 10.0 + 10 * count), name=f"ring.{count}")
            self.assertEqual(10.0 + 10 * count, world.seconds(SERVICES[0]))

    def test_one_that_counts_anew_in_its_record_is_alive(self):
        world = self.world
        world.slot(SERVICES[0], (1001, 10.0))
        world.look()
        world.record(SERVICES[0], 7, 60.0)
        self.assertEqual(60.0, world.seconds(SERVICES[0]))
        # And for a reader that begins then, too.
        world.reader = world.new_reader()
        self.assertEqual(60.0, world.seconds(SERVICES[0]))

    def test_a_sweep_settles_by_the_version_it_began_at_and_in_its_epoch_alone(self):
        world = self.world
        world.slot(SERVICES[0], (101, 10.0))
        world.slot(SERVICES[0], (103, 30.0), name="ring.1")
        shown = world.version
        world.look()
        world.now = 100.0
        self.assertEqual({A: 1}, world.unreported())
        for version, epoch in ((shown - 1, "e1"), (shown, "e0"), ("many", "e1"), (True, "e1")):
            world.swept(version, epoch=epoch)
            self.assertEqual({A: 1}, world.unreported(), (version, epoch))
        world.swept(shown, cell=B)
        self.assertEqual({A: 1}, world.unreported())
        world.swept(shown)
        self.assertEqual({}, world.unreported())

    def test_what_changed_is_told_by_key_whatever_came_and_went(self):
        world = self.world
        before = world.look()
        self.assertIsNone(before)
        world.slot(SERVICES[0], (101, 10.0))
        first = world.look()
        self.assertEqual({SERVICES[0]}, journal_reader.changed_times(None, first))
        self.assertEqual({SERVICES[0]}, journal_reader.changed_times(first, None))
        self.assertIs(first, world.look())
        self.assertEqual(frozenset(), journal_reader.changed_times(first, first))
        world.slot(SERVICES[1], (101, 11.0), name="ring.1")
        second = world.look()
        self.assertEqual({SERVICES[1]}, journal_reader.changed_times(first, second))
        # Another one came: the arrays are others.
        world.record(str(uuid.uuid4()), 1, 0.0)
        world.slot(SERVICES[2], (101, 12.0), name="ring.2")
        self.assertEqual({SERVICES[2]}, journal_reader.changed_times(second, world.look()))

    def test_services_come_go_and_change_their_cell(self):
        world = self.world
        world.slot(SERVICES[0], (101, 10.0))
        world.look()
        other = str(uuid.uuid4())
        # Before its record, it is nobody's.
        world.slot(other, (1, 11.0), name="ring.1")
        self.assertIsNone(world.seconds(other))
        world.record(other, 0, None)
        world.slot(other, (2, 21.0), name="ring.2")
        self.assertEqual(21.0, world.seconds(other))
        self.assertEqual(10.0, world.seconds(SERVICES[0]))
        world.put(LIVENESS, other, None)
        self.assertIsNone(world.seconds(other))
        world.record(SERVICES[0], 100, 0.0, cell=B)
        self.assertIsNone(world.seconds(SERVICES[0]))

    def test_two_services_with_one_id_are_told_by_records_and_nobody_decides_by_it(self):
        world = self.world
        world.record(TWIN, 100, 5.0)
        world.slot(SERVICES[0], (101, 10.0))
        self.assertIsNone(world.seconds(SERVICES[0]))
        self.assertIsNone(world.seconds(TWIN))
        self.assertEqual({A: 2}, world.unreported())
        world.put(LIVENESS, TWIN, None)
        self.assertEqual({}, world.unreported())

    def test_a_key_that_is_no_uuid_is_no_ones_twin(self):
        self.world.record("no-uuid", 1, 5.0)
        self.world.slot(SERVICES[0], (101, 10.0))
        self.assertIsNone(self.world.seconds("no-uuid"))
        self.assertEqual({}, self.world.unreported())

    def test_when_the_last_slot_is_gone_records_tell_alone_and_nothing_is_read(self):
        world = self.world
        world.slot(SERVICES[0], (101, 10.0))
        world.slot(SERVICES[0], (103, 30.0), name="ring.1")
        shown = world.version
        world.look()
        for name in ("ring.0", "ring.1"):
            world.put(JOURNALS, name, None)
        # Somebody has to sweep for what is missing: it is not forgotten.
        self.assertEqual(30.0, world.seconds(SERVICES[0]))
        world.swept(shown)
        world.look()
        self.assertIsNone(world.look())

    def test_a_new_epoch_begins_everything_anew(self):
        world = self.world
        world.slot(SERVICES[0], (101, 10.0))
        world.slot(SERVICES[0], (103, 30.0), name="ring.1")
        world.look()
        world.store.begin_epoch()
        world.version, world.epoch = 0, "e2"
        self.assertIsNone(world.look())
        world.record(SERVICES[0], 100, 40.0)
        world.slot(SERVICES[0], (101, 41.0))
        self.assertEqual(41.0, world.seconds(SERVICES[0]))
        world.now = 1000.0
        self.assertEqual({}, world.unreported())

    def test_an_older_snapshot_tells_what_is_known(self):
        world = self.world
        world.slot(SERVICES[0], (101, 10.0))
        old = world.store.snapshot()
        world.slot(SERVICES[0], (102, 20.0), name="ring.1")
        times = world.look()
        self.assertIs(times, world.reader.look(old))

    def test_a_service_that_comes_or_goes_costs_as_many_calls_whatever_others_there_are(self):
        calls = {}
        for others in (10, 400):
            world = World()
            for number in range(others):
                world.record(str(uuid.UUID(int=(1 << 70) + 1000 + number)), 1, 0.0)
            for key in SERVICES:
                world.record(key, 100, 0.0)
                world.slot(key, (101, 10.0), name=f"ring.{key}")
            times = world.look()
            for state in (None, 102):
                if state is None:
                    world.put(LIVENESS, SERVICES[0], None)
                else:
                    world.record(SERVICES[0], state, 20.0)
                snapshot = world.store.snapshot()
                now, calls[others, state] = self.calls_of(lambda: world.reader.look(snapshot))  # noqa: B023
                changed, more = self.calls_of(lambda: journal_reader.changed_times(times, now))  # noqa: B023
                calls[others, state] += more
                self.assertEqual({SERVICES[0]} if state is None else set(), set(changed))
                times = now
        for state in (None, 102):
            self.assertLess(calls[400, state], calls[10, state] + 40)

    def calls_of(self, ask):
        """Return what it returns, and how many functions of Python it called."""
        calls = 0

        def note(_frame, event, _argument):
            nonlocal calls
            calls += event == "call"

        sys.setprofile(note)
        try:
            found = ask()
        finally:
            sys.setprofile(None)
        return found, calls

    def test_very_many_changed_records_are_read(self):
        world = self.world
        world.slot(SERVICES[0], (101, 10.0))
        world.look()
        for number in range(1100):
            world.record(str(uuid.UUID(int=(1 << 70) + 1000 + number)), 1, 0.0)
        world.record(SERVICES[0], 105, 50.0)
        self.assertEqual(50.0, world.seconds(SERVICES[0]))
        self.assertEqual(1103, len(world.look().places))


#: What conductors' clocks differ by, at most.
SKEW = 20.0


class PropertyTest(unittest.TestCase):
    """Whatever way heartbeats take, times are those of the latest, but for clocks."""

    met = collections.Counter()

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(st.integers(0, 2**32), st.booleans())
    def test_times_are_those_of_the_latest_heartbeat_that_was_told(self, seed, renumbers):
        # Drawn here: what fails is not made smaller by drawing less of it.
        dice, world = random.Random(seed), World()
        counts = dict.fromkeys(SERVICES, 100)
        record: dict[str, tuple[int, float]] = {}
        for key in SERVICES:
            record[key] = (100, 0.0)
            world.record(key, 100, 0.0)
        #: Not told yet: (key, count, true time).
        waiting: list[tuple[str, int, float]] = []
        latest = dict.fromkeys(SERVICES, 0.0)
        journaled: set[str] = set()
        for step in range(dice.randrange(5, 60)):
            world.now += 10.0
            for key in SERVICES:
                counts[key] += 1
                if renumbers and dice.random() < 0.05:
                    counts[key] = max(counts[key] + dice.choice((-300, -50, -5, 5, 30)), 0)
                    self.met["renumbered"] += 1
                waiting.append((key, counts[key], world.now))
            if not renumbers:
                dice.shuffle(waiting)
            for _ in range(dice.randrange(len(waiting) + 1)):
                key, count, seconds = waiting.pop(0)
                latest[key] = max(latest[key], seconds)
                heard = seconds + dice.uniform(-SKEW, SKEW)
                if self.tell(world, dice, record, (key, count, heard)):
                    journaled.add(key)
            if dice.random() < 0.1:
                self.met["began"] += 1
                world.reader = world.new_reader()
            if dice.random() < 0.1:
                self.met["came"] += 1
                world.record(str(uuid.UUID(int=dice.getrandbits(120) << 1)), 1, 0.0)
            times = world.look()
            for key in SERVICES:
                heard = None if times is None else times.of(key)
                self.assertEqual(heard is None, key not in journaled)
                if heard is not None:
                    apart = heard.seconds - BEGAN - latest[key]
                    # Journals tell tenths of seconds. Of two numberings a time may be of the
                    # one heartbeat where the other's clock was ahead of it.
                    most = SKEW * (1 + renumbers) + 0.2
                    self.assertLessEqual(abs(apart), most, (key, step))

    def tell(self, world, dice, record, beat):
        """Have a heartbeat told in a record or a journal; return whether in a journal."""
        key, count, heard = beat
        is_journal = dice.random() >= 0.3
        self.met["journal" if is_journal else "record"] += 1
        if is_journal:
            world.slot(key, (count, heard), name=f"ring.{dice.random()}")
        else:
            known, before = record[key]
            record[key] = (max(known, count), heard if count > known else max(before, heard))
            world.record(key, *record[key])
        if dice.random() < 0.5:
            world.look()
        return is_journal

    @classmethod
    def tearDownClass(cls):
        assert min(cls.met[each] for each in ("renumbered", "record", "journal", "began")), cls.met
