# SPDX-License-Identifier: Apache-2.0
"""An order by tier, share and age, of which some rows are read while shares grow.

Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

from __future__ import annotations

import os
import random

import attrs
import numpy as np
import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.waiting.order import order_reader, shape_index, standings

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "30"))
IS_LONG = "NODB_PROPERTY_EXAMPLES" in os.environ

ROWS = 6
TIERS = (-65537, -65536, -1, 0)


@attrs.define(eq=False)
class Thing:
    """What stands in the order, and where it should."""

    group: standings.ShareGroup
    tier: int
    item: standings.Item

    def key(self) -> tuple[int, float, float, str]:
        """Return its place in a plain sorted list."""
        return self.tier, self.group.share, self.item[0], self.item[1]


class Both:
    """The order, and a list of all that is in it."""

    def __init__(self, chance: random.Random, groups: int, things: int) -> None:
        self.chance = chance
        self.order = standings.Standings()
        # Many of one share, and many of another each.
        self.groups = [standings.ShareGroup(self.share()) for _ in range(groups)]
        self.things: list[Thing] = []
        self._number = 0
        for _ in range(things):
            self.add()

    def share(self) -> float:
        return self.chance.choice([0.0, 0.0, 0.5, self.chance.random()])

    def add(self) -> None:
        self._number += 1
        thing = Thing(self.chance.choice(self.groups), self.chance.choice(TIERS), None)  # type: ignore[arg-type]
        thing.item = self._item(thing)
        self.order.add(thing.group, thing.tier, thing.item)
        self.things.append(thing)

    def remove(self, thing: Thing) -> None:
        self.things.remove(thing)
        self.order.remove(thing.group, thing.tier, thing.item)

    def replace(self, thing: Thing) -> None:
        self._number += 1
        old, thing.item = thing.item, self._item(thing)
        self.order.replace(thing.group, thing.tier, old, thing.item)

    def change(self) -> None:
        match self.chance.randrange(4):
            case 0:
                self.add()
            case 1 if self.things:
                self.remove(self.chance.choice(self.things))
            case 2 if self.things:
                self.replace(self.chance.choice(self.things))
            case _:
                standings.reshare(self.chance.choice(self.groups), self.share())

    def _item(self, thing: Thing) -> standings.Item:
        asked_at = float(self.chance.randrange(20))
        return asked_at, f"{self._number:05}", self.chance.randrange(ROWS), thing


class StandingsTest(testtools.TestCase):
    def rows(self, chance: random.Random) -> tuple[shape_index.ShapeRows, list[bool]]:
        are_in = [chance.random() < 0.5 for _ in range(ROWS)]
        return shape_index.ShapeRows.of(np.array(are_in)), are_in

    @settings(deadline=None, max_examples=EXAMPLES, derandomize=not IS_LONG)
    @given(st.integers(0, 2**32), st.sampled_from([3, 40, 900]))
    def test_it_is_read_as_a_sorted_list_whatever_was_changed(self, seed, groups):
        chance = random.Random(seed)
        both = Both(chance, groups, 2 * groups)
        for _ in range(3):
            for _ in range(groups):
                both.change()
            rows, are_in = self.rows(chance)
            level = chance.choice([None, 0, 1])
            reader = order_reader.OrderReader(both.order, level=level)
            found = []
            while (thing := reader.next(rows, lambda thing: thing.item[0] != 7.0)) is not None:
                found.append(thing.key())
            expected = [
                each.key()
                for each in both.things
                if are_in[each.item[2]]
                and each.item[0] != 7.0
                and (level is None or -each.tier % 65536 == level)
            ]
            self.assertEqual(sorted(expected), found)

    @settings(deadline=None, max_examples=EXAMPLES, derandomize=not IS_LONG)
    @given(st.integers(0, 2**32), st.sampled_from([3, 40, 400]))
    def test_what_only_gets_worse_places_meanwhile_is_met_in_turn(self, seed, groups):
        chance = random.Random(seed)
        both = Both(chance, groups, 3 * groups)
        rows, are_in = self.rows(chance)
        passed = set()
        reader = order_reader.OrderReader(both.order)
        for _ in range(min(4 * groups, 120)):
            thing = reader.next(rows, lambda thing: thing not in passed)
            left = [each for each in both.things if are_in[each.item[2]] and each not in passed]
            self.assertIs(min(left, key=Thing.key, default=None), thing)
            if thing is None:
                return
            match chance.randrange(4):
                case 0:
                    both.remove(thing)
                case 1:
                    both.remove(thing)
                    standings.reshare(thing.group, thing.group.share + chance.choice([0.0, 0.1, 1]))
                case 2:
                    # The next of its line is younger.
                    both.remove(thing)
                    asked_at, key, row, _ = thing.item
                    thing.item = asked_at + chance.choice([0.0, 3.0]), key + "x", row, thing
                    both.order.add(thing.group, thing.tier, thing.item)
                    both.things.append(thing)
                case _:
                    passed.add(thing)
                    row = chance.randrange(ROWS)
                    if chance.random() < 0.1:
                        rows.drop(row)
                        are_in[row] = False

    @settings(deadline=None, max_examples=EXAMPLES, derandomize=not IS_LONG)
    @given(st.integers(0, 2**32), st.sampled_from([3, 40]), st.sampled_from([1, 3, 100]))
    def test_whatever_changes_meanwhile_the_first_that_was_not_given_is(self, seed, groups, most):
        chance = random.Random(seed)
        both = Both(chance, groups, 3 * groups)
        rows, are_in = self.rows(chance)
        level = chance.choice([None, None, 0, 1])
        # Those that were given, by what they were then: who is put anew is given again.
        passed = set()
        reader = order_reader.OrderReader(both.order, level=level)
        for _ in range(60):
            thing = reader.next(rows, lambda thing: thing.item not in passed)
            left = [
                each
                for each in both.things
                if are_in[each.item[2]]
                and each.item not in passed
                and (level is None or -each.tier % 65536 == level)
            ]
            self.assertIs(min(left, key=Thing.key, default=None), thing)
            if thing is not None:
                passed.add(thing.item)
            for _ in range(chance.randrange(most + 1)):
                both.change()

    def test_a_share_moves_one_standing_a_tier_however_many_things_there_are(self):
        order = standings.Standings()
        group = standings.ShareGroup(0.0)
        for number in range(500):
            order.add(group, number % 2, (float(number), f"{number}", number % 50, None))

        self.assertEqual(2, standings.reshare(group, 0.5))
        self.assertEqual(0, standings.reshare(group, 0.5))
