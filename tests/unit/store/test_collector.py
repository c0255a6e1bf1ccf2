# SPDX-License-Identifier: Apache-2.0
"""The collector of cycles does not walk over what a load has made."""

from __future__ import annotations

import gc
import unittest
import weakref
from unittest import mock

from nova_nodb_scheduler.store import collector


class _Node:
    """Refers to itself once it is tied."""

    def __init__(self) -> None:
        self.myself: _Node | None = None

    def tie(self) -> weakref.ref[_Node]:
        self.myself = self
        return weakref.ref(self)


class TestSettle(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(mock.patch.object(collector, "_settled_at", None))
        self.addCleanup(gc.collect)
        self.addCleanup(gc.unfreeze)
        self.addCleanup(gc.set_threshold, *gc.get_threshold())

    def test_what_is_young_is_looked_at_less_often_from_then_on(self) -> None:
        for own, expected in ((700, 10_000), (50_000, 50_000), (0, 0)):
            with self.subTest(own=own), mock.patch.object(collector, "_settled_at", None):
                gc.set_threshold(own, 11, 12)
                collector.settle()
                self.assertEqual((expected, 11, 12), gc.get_threshold())

    def test_what_lives_is_out_of_sight_until_the_next_call(self) -> None:
        node = _Node()
        seen = node.tie()
        collector.settle()
        self.assertGreater(gc.get_freeze_count(), 10_000)
        del node
        gc.collect()
        self.assertIsNotNone(seen())
        collector._settled_at = None
        collector.settle()
        self.assertIsNone(seen())

    def test_what_is_made_later_is_looked_at(self) -> None:
        collector.settle()
        seen = _Node().tie()
        self.assertIsNotNone(seen())
        gc.collect()
        self.assertIsNone(seen())

    def test_a_second_call_within_a_minute_does_nothing(self) -> None:
        collector.settle()
        frozen = gc.get_freeze_count()
        kept = [_Node() for _ in range(100)]
        collector.settle()
        self.assertLess(gc.get_freeze_count(), frozen + len(kept))


class TestAtRest(unittest.TestCase):
    def setUp(self) -> None:
        self.addCleanup(gc.collect)
        self.addCleanup(gc.unfreeze)

    def test_nothing_is_looked_at_meanwhile_and_it_goes_on_behind(self) -> None:
        with collector.at_rest():
            self.assertFalse(gc.isenabled())
            with collector.at_rest():
                pass
            self.assertFalse(gc.isenabled())
        self.assertTrue(gc.isenabled())

    def test_pieces_of_a_load_are_out_of_sight_behind_it(self) -> None:
        gc.unfreeze()
        with collector.at_rest():
            node = _Node()
        self.assertEqual(0, gc.get_freeze_count())
        with collector.at_rest(loading=True):
            seen = node.tie()
        self.assertGreater(gc.get_freeze_count(), 10_000)
        del node
        gc.collect()
        self.assertIsNotNone(seen())
        collector.loaded()
        gc.collect()
        self.assertIsNone(seen())

    def test_a_load_is_to_be_settled(self) -> None:
        with mock.patch.object(collector, "_settled_at", None):
            collector.settle()
            self.assertTrue(collector.is_settled())
            collector.loaded()
            self.assertFalse(collector.is_settled())
            # Within a minute it is put off.
            collector.settle()
            self.assertFalse(collector.is_settled())

    def test_what_is_made_at_rest_is_to_be_settled_by_whomever(self) -> None:
        with mock.patch.object(collector, "_settled_at", None):
            collector.settle()
            with collector.at_rest(loading=True):
                pass
            self.assertTrue(collector.is_settled())  # its end is told
            with collector.at_rest(), collector.at_rest():
                collector._is_settled = True
            self.assertFalse(collector.is_settled())
            collector._settled_at = None
            collector.settle()
            self.assertTrue(collector.is_settled())
