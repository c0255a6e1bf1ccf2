# SPDX-License-Identifier: Apache-2.0
"""A sorted sequence, short and long."""

from __future__ import annotations

import random

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.waiting.order import ordered_items


class OrderedItemsTest(testtools.TestCase):
    @settings(deadline=None, max_examples=50)
    @given(st.integers(0, 2**32), st.sampled_from([20, 1500]))
    def test_it_is_a_sorted_list(self, seed, size):
        chance = random.Random(seed)
        items: ordered_items.OrderedItems[int] = ordered_items.OrderedItems()
        plain: list[int] = []
        for item in chance.sample(range(2 * size), size):
            items.add(item)
            plain.append(item)
        for item in chance.sample(plain, size // 3):
            items.remove(item)
            plain.remove(item)
        plain.sort()

        self.assertEqual(plain, list(items))
        self.assertEqual(len(plain), len(items))
        self.assertEqual(plain[0], items.first())
        for item in chance.sample(range(-1, 2 * size + 1), 20):
            self.assertEqual([each for each in plain if each > item], list(items.after(item)))

    def test_what_is_not_there_cannot_be_removed(self):
        items: ordered_items.OrderedItems[int] = ordered_items.OrderedItems()
        items.add(2)

        for absent in (1, 3):
            self.assertRaises(ValueError, items.remove, absent)
        items.remove(2)
        self.assertIsNone(items.first())
