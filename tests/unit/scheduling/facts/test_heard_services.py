# SPDX-License-Identifier: Apache-2.0
"""What journals tell of services is what was heard, whatever happens to their conductors."""

import collections
import math
import os
import unittest
import uuid

import numpy as np
from hypothesis import stateful
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.facts import heard_services
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals
from tests import machine_runs
from tests.unit.scheduling.facts import plain_heard

GRACE = 3.0
BEGAN = 1_790_000_000.0
CELL, OTHER_CELL = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
PLAIN = [str(uuid.UUID(int=(7 << 64) + each)) for each in (1, 2, 2**63, 2**64 - 1)]
TWINS = [str(uuid.UUID(int=(each << 64) + 5)) for each in (1, 2)]
UNNAMED = "a-key-that-is-no-uuid"
CELLS = dict.fromkeys((*PLAIN, *TWINS, UNNAMED), CELL) | {PLAIN[3]: OTHER_CELL}
COUNT = 100


def known(keys, counts=None, counted_at=BEGAN):
    counts = [COUNT] * len(keys) if counts is None else counts
    return heard_services.KnownServices(
        keys,
        [CELLS[key] for key in keys],
        np.array(counts, np.int64),
        np.full(len(keys), counted_at),
    )


def slot(*beats, cell=CELL):
    """Return a slot of (key, count, seconds behind the beginning)."""
    ids = [heartbeat_journals.service_id(key) for key, _, _ in beats]
    ticks = [heartbeat_journals.tick_of(BEGAN + seconds) for _, _, seconds in beats]
    return heartbeat_journals.slot_of(cell, 1, ids, [count for _, count, _ in beats], ticks)


class HeardTest(unittest.TestCase):
    def setUp(self):
        self.heard = heard_services.HeardServices(GRACE)
        self.heard.know(known(PLAIN))
        self.version = 0

    def take(self, *beats, now=0.0, cell=CELL):
        self.version += 1
        return self.heard.take(slot(*beats, cell=cell), self.version, now)

    def last(self, key=PLAIN[0]):
        heard = self.heard.last_heard()
        at = heard.keys.index(key)
        return int(heard.counts[at]), float(heard.heard_at[at]) - BEGAN

    def test_a_service_that_no_journal_names_is_its_records_alone(self):
        count, seconds = self.last()
        self.assertEqual(COUNT, count)
        self.assertTrue(math.isnan(seconds))
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_the_first_heartbeat_of_a_reader_that_begins_leaves_nothing_unreported(self):
        self.take((PLAIN[0], COUNT + 40, 400.0))
        self.assertEqual((COUNT + 40, 400.0), self.last())
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_a_missing_count_is_unreported_after_the_grace(self):
        self.take((PLAIN[0], 101, 10.0), (PLAIN[1], 101, 10.0))
        self.take((PLAIN[0], 103, 30.0), (PLAIN[1], 102, 20.0), now=30.0)
        self.assertEqual({}, self.heard.unreported(30.0 + GRACE))
        self.assertEqual({CELL: 1}, self.heard.unreported(30.1 + GRACE))

    def test_a_count_that_crossed_another_fills_the_gap_in(self):
        self.take((PLAIN[0], 101, 10.0))
        self.take((PLAIN[0], 103, 30.0))
        self.take((PLAIN[0], 102, 20.0), now=1.0)
        self.assertEqual({}, self.heard.unreported(1e9))
        self.assertEqual((103, 30.0), self.last())

    def test_all_counts_of_one_slot_count(self):
        self.take(*((PLAIN[0], count, 10.0) for count in (101, 102, 103, 105)))
        self.take((PLAIN[0], 104, 10.0), (PLAIN[0], 106, 10.0))
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_a_sweep_settles_what_was_shown_before_it_began_and_no_more(self):
        self.take((PLAIN[0], 101, 10.0), (PLAIN[1], 101, 10.0))
        self.take((PLAIN[0], 103, 30.0))
        began = self.version
        self.take((PLAIN[1], 103, 30.0))
        self.heard.settle(OTHER_CELL, began)
        self.assertEqual({CELL: 2}, self.heard.unreported(1e9))
        self.heard.settle(CELL, began - 1)
        self.assertEqual({CELL: 2}, self.heard.unreported(1e9))
        self.heard.settle(CELL, began)
        self.assertEqual({CELL: 1}, self.heard.unreported(1e9))
        self.heard.settle(CELL, self.version)
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_one_true_gap_of_a_service_whose_heartbeats_cross_on_and_on_can_be_settled(self):
        self.take((PLAIN[0], 101, 10.0))
        self.take((PLAIN[0], 103, 30.0))
        began = self.version
        for count in range(104, 124, 2):
            self.take((PLAIN[0], count + 1, 30.0))
            self.take((PLAIN[0], count, 30.0))
        self.assertEqual({CELL: 1}, self.heard.unreported(1e9))
        self.heard.settle(CELL, began)
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_what_left_the_window_stays_unreported_until_a_sweep(self):
        self.take((PLAIN[0], 101, 10.0))
        self.take((PLAIN[0], 103, 30.0))
        for count in range(104, 200):
            self.take((PLAIN[0], count, 30.0 + count))
        self.take((PLAIN[0], 102, 20.0))
        self.assertEqual({CELL: 1}, self.heard.unreported(1e9))
        self.heard.settle(CELL, 1)
        self.assertEqual({CELL: 1}, self.heard.unreported(1e9))
        self.heard.settle(CELL, 2)
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_the_window_is_of_64_counts_and_not_of_one_more_or_less(self):
        first, next_one, all_of_64 = (PLAIN[0], 100, 0.0), (PLAIN[0], 101, 10.0), range(103, 167)
        # The lowest of 64 missing ones is filled in still.
        self.take(first, next_one)
        self.take(*((PLAIN[0], count, 80.0) for count in all_of_64))
        self.take((PLAIN[0], 102, 20.0))
        self.assertEqual({}, self.heard.unreported(1e9))
        # What was known before a step of 64 is remembered.
        self.heard.forget()
        self.take(first, next_one)
        self.take((PLAIN[0], 165, 80.0))
        self.take(*((PLAIN[0], count, 80.0) for count in range(102, 165)))
        self.assertEqual({}, self.heard.unreported(1e9))
        # Of 65 missing ones the lowest is not waited for.
        self.heard.forget()
        self.take(first, next_one)
        self.take((PLAIN[0], 167, 80.0))
        self.take(*((PLAIN[0], count, 80.0) for count in all_of_64))
        self.assertEqual({CELL: 1}, self.heard.unreported(1e9))

    def test_a_gap_that_was_filled_in_does_not_put_off_what_a_new_numbering_left(self):
        self.take((PLAIN[0], 400, 310.0))
        self.take((PLAIN[0], 402, 330.0))
        began = self.version
        self.take((PLAIN[0], 404, 350.0))
        self.take((PLAIN[0], 403, 340.0))
        self.take((PLAIN[0], 5, 700.0))
        self.heard.settle(CELL, began)
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_a_service_that_came_to_another_cell_is_known_anew(self):
        self.take((PLAIN[0], 101, 10.0))
        services = known(PLAIN)
        self.heard.know(
            heard_services.KnownServices(
                services.keys,
                [OTHER_CELL, *services.cells[1:]],
                services.counts,
                services.counted_at,
            )
        )
        self.assertTrue(math.isnan(self.last()[1]))
        self.take((PLAIN[0], 103, 30.0), cell=OTHER_CELL)
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_a_count_that_no_service_can_have_come_to_raises_the_time_and_is_told(self):
        self.take((PLAIN[0], 101, 10.0))
        taken = self.take((PLAIN[0], 2**31 - 1, 20.0))
        self.assertEqual(
            (heard_services.ImplausibleCount(PLAIN[0], 101, 2**31 - 1),), taken.implausible
        )
        self.assertEqual((101, 20.0), self.last())
        self.take((PLAIN[0], 102, 30.0))
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_a_forged_first_count_is_held_against_the_record(self):
        taken = self.take((PLAIN[0], 2**31 - 1, 20.0))
        self.assertEqual(1, len(taken.implausible))
        self.assertEqual((COUNT, 20.0), self.last())
        # Nor is the time forgotten when services come or go.
        self.heard.know(known(PLAIN[:2]))
        self.assertEqual((COUNT, 20.0), self.last())

    def test_a_service_that_counts_anew_is_alive_at_once_and_followed_later(self):
        self.take((PLAIN[0], 400, 310.0))
        self.take((PLAIN[0], 1, 330.0))
        self.assertEqual((400, 330.0), self.last())
        self.take((PLAIN[0], 30, 620.0))
        self.assertEqual((30, 620.0), self.last())
        self.take((PLAIN[0], 31, 630.0))
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_what_was_missing_stays_so_when_a_service_counts_anew(self):
        self.take((PLAIN[0], 400, 310.0))
        self.take((PLAIN[0], 402, 330.0))
        self.take((PLAIN[0], 5, 700.0))
        self.assertEqual({CELL: 1}, self.heard.unreported(1e9))
        self.heard.settle(CELL, 2)
        self.assertEqual({}, self.heard.unreported(1e9))

    def test_a_reader_that_begins_anew_asks_for_nothing_it_missed_and_forgets_nothing(self):
        self.take((PLAIN[0], 101, 10.0), (PLAIN[1], 101, 10.0), (PLAIN[2], 101, 10.0))
        self.take((PLAIN[0], 103, 30.0))
        began = self.version
        self.heard.begin_anew(BEGAN + 50.0)
        self.heard.know(known(PLAIN))
        self.take((PLAIN[1], 104, 40.0))
        self.assertEqual((101, 40.0), self.last(PLAIN[1]))
        self.assertEqual((103, 30.0), self.last())
        self.take((PLAIN[0], 110, 100.0), (PLAIN[1], 110, 100.0), (PLAIN[2], 2**31 - 1, 100.0))
        # Missing is what was so before, and counts are held against those that were known.
        self.assertEqual({CELL: 1}, self.heard.unreported(1e9))
        self.assertEqual((101, 100.0), self.last(PLAIN[2]))
        self.heard.settle(CELL, began)
        self.assertEqual({}, self.heard.unreported(1e9))
        self.take((PLAIN[1], 112, 120.0))
        self.assertEqual({CELL: 1}, self.heard.unreported(1e9))

    def test_an_id_that_two_services_have_is_neithers_and_nor_is_an_unknown_one(self):
        self.heard.know(known([*PLAIN, *TWINS, UNNAMED]))
        self.assertEqual({CELL: 2}, self.heard.twins())
        taken = self.take((TWINS[0], 101, 1.0), (PLAIN[0], 101, 1.0), (str(uuid.uuid4()), 1, 1.0))
        self.assertEqual(2, taken.unknown)
        self.heard.know(known([*PLAIN, TWINS[0]]))
        self.assertEqual({}, self.heard.twins())
        self.assertEqual(0, self.take((TWINS[0], 102, 1.0)).unknown)
        self.assertEqual((102, 1.0), self.last(TWINS[0]))
        # The other one is another service: nothing that was told of this one is its.
        self.heard.know(known([*PLAIN, TWINS[1]]))
        self.assertTrue(math.isnan(self.last(TWINS[1])[1]))

    def test_a_conductor_of_another_cell_tells_nothing_of_a_service(self):
        self.assertEqual(1, self.take((PLAIN[0], 101, 1.0), cell=OTHER_CELL).unknown)
        self.assertEqual(1, self.take((PLAIN[0], 101, 1.0), cell="unheard of").unknown)
        self.assertTrue(math.isnan(self.last()[1]))

    def test_nothing_is_known_of_no_services(self):
        for heard in (heard_services.HeardServices(GRACE), self.heard):
            heard.know(known([]))
            self.assertEqual(1, heard.take(slot((PLAIN[0], 101, 1.0)), 1, 0.0).unknown)
            heard.settle(CELL, 5)
            self.assertEqual({}, heard.unreported(1e9))
            self.assertEqual(0, len(heard.last_heard().keys))

    def test_records_with_absurd_counts_break_nothing(self):
        for count in (2**63 - 1, -(2**63)):
            self.heard.know(known([TWINS[0]], [count], counted_at=math.nan))
            self.take((TWINS[0], 5, 1.0), (PLAIN[0], 101, 1.0))
            self.assertEqual(1.0, self.last(TWINS[0])[1])


class Service:
    def __init__(self):
        self.count = COUNT


class Conductor:
    """A process with a queue, a clock of its own and a journal of three slots."""

    def __init__(self, name, ahead_seconds, cell=CELL):
        self.name, self.ahead_seconds, self.cell = name, ahead_seconds, cell
        self.queue = []
        self.flushed = 0
        self.sent = None


class Machine(stateful.RuleBasedStateMachine):
    """Services, conductors, a back end that keeps what it holds, and a reader of it."""

    met: collections.Counter = collections.Counter()

    @stateful.initialize()
    def begin(self):
        self.now = 0.0
        self.keys = [*PLAIN, *TWINS, UNNAMED]
        self.services = {key: Service() for key in self.keys}
        # The last two have one name: they overwrite one another's slots.
        self.conductors = [
            Conductor("a", 0.0),
            Conductor("b", -20.0),
            Conductor("c", 45.0),
            Conductor("c", 0.0),
            Conductor("d", 0.0, OTHER_CELL),
        ]
        self.head = 0
        self.slots = {}
        self.swept_from = None
        self.restart()

    def plain(self, key):
        return plain_heard.PlainService(COUNT, BEGAN, self.met, self.since)

    @stateful.rule()
    def restart(self):
        self.met["restart"] += 1
        self.since = -math.inf
        self.heard = heard_services.HeardServices(GRACE)
        self.heard.know(known(self.keys))
        #: By place what was told of it when it was touched last.
        self.told = {}
        self.models = {key: self.plain(key) for key in self.keys if key not in (*TWINS, UNNAMED)}
        self.seen = 0
        self.catch_up()

    # --- services -----------------------------------------------------------

    def _heard(self, conductor, key, count):
        number = heartbeat_journals.service_id(key)
        if number is not None:
            seconds = BEGAN + self.now + conductor.ahead_seconds
            conductor.queue.append((number, count, heartbeat_journals.tick_of(seconds)))

    @stateful.rule(
        key=st.sampled_from([*PLAIN[:3] * 3, *TWINS, PLAIN[3], UNNAMED]),
        through=st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 4, None]), min_size=1, max_size=8),
        times=st.sampled_from([1, 1, 1, 20]),
    )
    def beat(self, key, through, times):
        for at in through * times:
            self.now += 1.0
            self.services[key].count += 1
            if at is not None:
                self._heard(self.conductors[at], key, self.services[key].count)

    @stateful.rule(key=st.sampled_from(PLAIN), count=st.integers(-(2**31), 2**31 - 1))
    def forge(self, key, count):
        self._heard(self.conductors[1], key, count)

    @stateful.rule(key=st.sampled_from(PLAIN), by=st.sampled_from([-10_000, -200, -50, 90, 10_000]))
    def count_anew(self, key, by):
        self.services[key].count += by

    @stateful.rule(seconds=st.sampled_from([0.5, 2.0, 10.0, 61.0, 301.0]))
    def pass_time(self, seconds):
        self.now += seconds

    # --- conductors ---------------------------------------------------------

    def _write(self, conductor, made):
        key = conductor.name, conductor.flushed % 3
        conductor.flushed += 1
        if self.slots.get(key, (0,))[0] > self.seen:
            self.met["overwritten unread"] += 1
        self.head += 1
        self.slots[key] = (self.head, heartbeat_journals.state_of(made))

    @stateful.rule(number=st.integers(0, 4))
    def flush(self, number):
        conductor = self.conductors[number]
        while conductor.queue:
            counts = collections.Counter()
            part, rest = [], []
            newest = max(tick for _, _, tick in conductor.queue)
            for beat in conductor.queue:
                counts[beat[0]] += 1
                fits = counts[beat[0]] <= heartbeat_journals.MOST_OF_ONE
                fits &= newest - beat[2] <= heartbeat_journals.MOST_AGE_TICKS
                (part if fits else rest).append(beat)
            made = heartbeat_journals.slot_of(
                conductor.cell, conductor.flushed, *zip(*part, strict=True)
            )
            conductor.queue, conductor.sent = rest, made
            self._write(conductor, made)

    @stateful.rule(number=st.integers(0, 4))
    def lose_a_reply(self, number):
        conductor = self.conductors[number]
        if conductor.sent is not None:
            self.met["written twice"] += 1
            self._write(conductor, conductor.sent)

    @stateful.rule(number=st.integers(0, 4))
    def die(self, number):
        self.conductors[number].queue.clear()
        self.conductors[number].sent = None

    # --- the reader ---------------------------------------------------------

    @stateful.rule()
    def catch_up(self):
        for version, state in sorted(self.slots.values(), key=lambda each: each[0]):
            if version > self.seen:
                self._take(heartbeat_journals.read("r.0", state), version)
        self.seen = self.head

    def _take(self, made, version):
        self.heard.take(made, version, self.now)
        for number, count, tick in zip(
            made.ids.tolist(), made.counts.tolist(), made.ticks.tolist(), strict=True
        ):
            for key, model in self.models.items():
                if heartbeat_journals.service_id(key) == number and CELLS[key] == made.cell:
                    heard_at = tick / heartbeat_journals.TICKS_PER_SECOND
                    model.take(count, heard_at, version, self.now)

    @stateful.rule(back=st.sampled_from([0.0, 5.0, 100.0]))
    def begin_anew(self, back):
        self.since = BEGAN + self.now - back
        self.heard.begin_anew(self.since)
        for model in self.models.values():
            model.begin_anew(self.since)

    @stateful.rule()
    def begin_or_end_a_sweep(self):
        if self.swept_from is None:
            self.swept_from = self.head
        elif self.seen >= self.swept_from:
            self.heard.settle(CELL, self.swept_from)
            for key, model in self.models.items():
                if CELLS[key] == CELL:
                    model.settle(self.swept_from)
            self.swept_from = None

    @stateful.rule(
        key=st.sampled_from(PLAIN[:3]),
        through=st.lists(st.sampled_from([0, 1, None]), min_size=2, max_size=6),
    )
    def beat_and_be_read_at_once(self, key, through):
        for at in through:
            self.beat(key, [at], 1)
            if at is not None:
                self.flush(at)
        self.catch_up()

    @stateful.rule(key=st.sampled_from(PLAIN[:3]))
    def sweep_between_two_gaps(self, key):
        self.beat_and_be_read_at_once(key, [0, None, 0])
        self.swept_from = self.head
        self.beat_and_be_read_at_once(key, [0, None, 0])
        self.begin_or_end_a_sweep()

    @stateful.rule(key=st.sampled_from(PLAIN[:3]), count=st.integers(1, 30))
    def count_anew_for_long(self, key, count):
        self.services[key].count = count
        self.pass_time(301.0)
        self.beat_and_be_read_at_once(key, [0, 0])

    @stateful.rule(key=st.sampled_from(PLAIN), all_anew=st.booleans())
    def delete_or_make_a_service(self, key, all_anew):
        if key in self.keys:
            self.keys.remove(key)
            del self.models[key]
        else:
            self.met["made again"] += 1
            self.keys.append(key)
            self.models[key] = self.plain(key)
        if all_anew:
            self.heard.know(known(self.keys))
        else:
            self.heard.change(known([key] if key in self.keys else []), [key])

    @stateful.invariant()
    def arrays_are_what_the_sets_are(self):
        heard = self.heard.last_heard()
        found = {
            key: (count, None if math.isnan(seconds) else seconds)
            for key, count, seconds in zip(
                heard.keys, heard.counts.tolist(), heard.heard_at.tolist(), strict=True
            )
        }
        expected = {
            key: (model.highest, None if math.isnan(model.heard_at) else model.heard_at)
            for key, model in self.models.items()
        }
        assert found == expected, (found, expected)
        unreported = collections.Counter(
            CELLS[key] for key, model in self.models.items() if model.is_unreported(self.now, GRACE)
        )
        assert self.heard.unreported(self.now) == dict(unreported)
        touched = self.heard.take_touched()
        told = self.heard.last_heard(touched)
        for place, key, count, seconds in zip(
            touched.tolist(), told.keys, told.counts, told.heard_at, strict=True
        ):
            self.told[place] = key, int(count), None if math.isnan(seconds) else float(seconds)
        now = {key: self.told[place] for key, place in self.heard.places.items()}
        assert {key: now[key][1:] for key in expected} == expected
        assert all(seconds is None for key, _, seconds in now.values() if key in TWINS)


CASES = (
    "gap",
    "filled in",
    "wide gap",
    "fallen",
    "merged",
    "settled",
    "settled in part",
    "ignored",
    "renumbered",
    "restart",
    "written twice",
    "overwritten unread",
    "made again",
    "begun anew",
    "too old to begin with",
    "begun from its record",
    "begun anew with a gap",
)


class PropertyTest(unittest.TestCase):
    def test_arrays_tell_what_sets_tell_whatever_happens(self):
        examples = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "60"))
        machine_runs.run(Machine, Machine.met, CASES, max_examples=examples, stateful_step_count=50)

    def test_a_gap_that_is_made_good_is_told_until_what_was_open_beside_it_is_settled(self):
        machine = Machine()
        machine.begin()

        def then(step, *arguments):
            step(*arguments)
            machine.arrays_are_what_the_sets_are()

        def is_told():
            return machine.models[PLAIN[0]].is_unreported(machine.now, GRACE)

        then(machine.beat_and_be_read_at_once, PLAIN[0], [0, None, 0])
        then(machine.begin_or_end_a_sweep)
        # Two counts wait with another conductor, each while a later one is read.
        for through in (1, 0, 1, 0):
            then(machine.beat, PLAIN[0], [through], 1)
            then(machine.flush, 0)
            then(machine.catch_up)
        then(machine.flush, 1)
        then(machine.catch_up)
        then(machine.pass_time, 10.0)
        then(machine.begin_or_end_a_sweep)
        self.assertTrue(is_told())
        self.assertEqual({COUNT + 2}, machine.models[PLAIN[0]].held)
        then(machine.begin_or_end_a_sweep)
        then(machine.begin_or_end_a_sweep)
        self.assertFalse(is_told())
