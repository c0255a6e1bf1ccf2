# SPDX-License-Identifier: Apache-2.0
"""Records below a value against plain sets, across the number from which they stand in a map."""

import sys

import fixtures
import hypothesis
import immutables
import numpy as np
import testtools
from hypothesis import strategies as st

from nova_nodb_scheduler.store import record_index, vocabulary
from tests import counted_calls

#: Enough of one value to make a map of its records, and to have that become a tuple again.
MANY = 3 * record_index._FEW


def filled(count):
    entries = immutables.Map().mutate()
    for row in range(count):
        record_index.add(entries, 7, row)
    return entries


class PostingsTest(testtools.TestCase):
    @hypothesis.settings(deadline=None, max_examples=60)
    @hypothesis.given(
        count=st.integers(1, MANY),
        turns=st.lists(st.tuples(st.booleans(), st.integers(0, MANY - 1)), max_size=80),
        left=st.integers(0, MANY),
    )
    def test_any_history_finds_what_a_set_holds_and_a_frozen_map_stays(self, count, turns, left):
        entries, model = filled(count), set(range(count))
        frozen, then = entries.finish(), set(model)
        entries = frozen.mutate()
        turns += [(False, row) for row in range(left, MANY)]
        for enters, row in turns:
            if enters and row not in model:
                record_index.add(entries, 7, row)
                model.add(row)
            elif not enters and row in model:
                record_index.discard(entries, 7, row)
                model.discard(row)
        found = record_index.lookup(entries.finish(), 7)
        self.assertEqual(sorted(model), sorted(found))
        self.assertEqual(sorted(then), sorted(record_index.lookup(frozen, 7)))

    def test_the_servers_of_a_usual_host_cost_no_map(self):
        held = filled(20).finish()[7]
        self.assertIsInstance(held, bytes)
        self.assertLess(sys.getsizeof(held) / 20, 6)


class LedRowsTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.useFixture(
            fixtures.MonkeyPatch("nova_nodb_scheduler.store.record_index._LEAST_TOGETHER", 8)
        )

    @hypothesis.settings(deadline=None, max_examples=100)
    @hypothesis.given(
        st.lists(
            st.one_of(
                st.lists(st.integers(0, 3) | st.none(), min_size=1, max_size=MANY),
                st.tuples(st.integers(0, 2 * MANY), st.integers(0, 3) | st.none()),
                st.just("look"),
            ),
            max_size=20,
        )
    )
    def test_rows_that_gather_are_found_as_if_each_had_been_entered(self, steps):
        led, model = record_index.LedRows(int), {}
        seen = []
        for step in [*steps, "look"]:
            if step == "look":
                seen.append((led.freeze(), dict(model)))
            elif isinstance(step, list):
                rows = np.arange(len(model), len(model) + len(step))
                has = np.array([code is not None for code in step])
                codes = np.array([code or 0 for code in step], np.int32)
                led.enter(codes[has], rows[has])
                model.update(zip(rows.tolist(), step, strict=True))
            elif step[0] in model:
                row, code = step
                if model[row] != code:
                    led.move(row, model[row], code)
                    model[row] = code
        for held, then in seen:
            for code in range(4):
                expected = {row for row, own in then.items() if own == code}
                self.assertEqual(sorted(expected), sorted(held.rows(code)))

    def test_servers_that_come_in_any_order_take_six_bytes_each_below_their_hosts(self):
        led = record_index.LedRows(int)
        hosts = np.random.default_rng(1).permutation(np.arange(20_000, dtype=np.int32) % 1000)
        for first in range(0, 20_000, 256):
            part = hosts[first : first + 256]
            led.enter(part, np.arange(first, first + len(part)))
        held = led.freeze()
        self.assertEqual({20}, {len(held.rows(host)) for host in range(1000)})
        self.assertLess(held.loaded.nbytes / 20_000, 6)

    def test_rows_of_a_load_are_found_by_no_call_for_each_of_them(self):
        codes = np.random.default_rng(2).permutation(np.arange(20_000, dtype=np.int32))
        led = record_index.LedRows(vocabulary.shared_number)

        def load():
            for first in range(0, 20_000, 2048):
                part = codes[first : first + 2048]
                led.enter(part, np.arange(first, first + len(part)))
            led.freeze()

        self.assertLess(counted_calls.count(load), 200)
        self.assertEqual((7,), led.freeze().rows(codes.item(7)))

    def test_what_came_before_a_look_and_much_behind_it_stand_together(self):
        led = record_index.LedRows(int)
        for first in (0, 100, 1000):
            led.enter(np.arange(50, dtype=np.int32), np.arange(first, first + 50))
            self.assertEqual((first + 7,), led.freeze().rows(7)[-1:])
            if first == 0:
                before = led.freeze()
        self.assertEqual((7,), before.rows(7))
        self.assertEqual({7, 107, 1007}, set(led.freeze().rows(7)))

    def test_a_code_with_very_many_rows_is_not_copied_when_one_of_them_moves(self):
        led = record_index.LedRows(vocabulary.shared_number)
        codes = np.where(np.arange(50_000) % 2, 7, np.arange(50_000)).astype(np.int32)
        led.enter(codes, np.arange(50_000))
        self.assertEqual(25_000, len(led.freeze().rows(7)))
        self.assertLess(counted_calls.count(led.move, 1, 7, 9), 40)
        self.assertEqual((24_999, (1,)), (len(led.freeze().rows(7)), led.freeze().rows(9)))

    def test_few_rows_of_codes_far_between_take_no_place_for_each_code(self):
        led = record_index.LedRows(int)
        led.enter(np.arange(0, 10**6, 10**5, dtype=np.int32), np.arange(10))
        held = led.freeze()
        self.assertIsNone(held.loaded)
        self.assertEqual((3,), held.rows(3 * 10**5))
