# SPDX-License-Identifier: Apache-2.0
"""Records below a value against plain sets, across the number from which they stand in a map."""

import sys

import hypothesis
import immutables
import testtools
from hypothesis import strategies as st

from nova_nodb_scheduler.store import record_index

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
