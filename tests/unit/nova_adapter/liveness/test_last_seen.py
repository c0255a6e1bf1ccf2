# SPDX-License-Identifier: Apache-2.0
"""Which of two sources heard of a service last, and what a blind reader says."""

import math
import unittest

from hypothesis import given
from hypothesis import strategies as st

from nova_nodb_scheduler.nova_adapter.liveness import last_seen

_COUNTS = st.integers(0, 10_000)
_AGES = st.floats(0, 100_000)


def seen(count: int, age_seconds: float) -> last_seen.LastSeen:
    return last_seen.LastSeen(count, age_seconds)


class LaterHeartbeatTest(unittest.TestCase):
    def test_the_highest_count_is_the_latest_whatever_the_clocks_say(self) -> None:
        # The conductor that wrote the row was ten minutes ahead, and the service died since.
        row, stored = seen(100, -600.0), seen(101, 90.0)
        self.assertTrue(stored.is_later_than(row))
        self.assertFalse(row.is_later_than(stored))
        # And one whose clock is behind.
        self.assertTrue(seen(101, 400.0).is_later_than(seen(100, 1.0)))

    def test_of_two_numberings_the_later_one_counts(self) -> None:
        began_again, before = seen(3, 5.0), seen(5_000, 300.0)
        self.assertTrue(began_again.is_later_than(before))
        self.assertFalse(before.is_later_than(began_again))

    def test_a_forged_row_hides_no_true_heartbeat(self) -> None:
        forged, true = seen(2**31 - 1, 40.0), seen(500, 2.0)
        self.assertTrue(true.is_later_than(forged))
        self.assertFalse(forged.is_later_than(true))

    def test_of_two_numberings_a_time_to_come_is_no_later_one(self) -> None:
        self.assertFalse(seen(5_000, -600.0).is_later_than(seen(3, 5.0)))

    def test_nothing_is_later_than_itself(self) -> None:
        self.assertFalse(seen(7, 1.0).is_later_than(seen(7, 2.0)))

    @given(_COUNTS, _AGES, _COUNTS, _AGES)
    def test_never_are_both_later(self, count: int, age: float, other: int, its: float) -> None:
        first, second = seen(count, age), seen(other, its)
        self.assertFalse(first.is_later_than(second) and second.is_later_than(first))


class BlindReaderTest(unittest.TestCase):
    def setUp(self) -> None:
        self.memory = last_seen.SightMemory()

    def test_a_living_service_grows_no_older(self) -> None:
        self.memory.remember("s", seen(100, 4.0))
        for row_age in (50.0, 5_000.0, 500_000.0):
            self.assertEqual(seen(100, 4.0), self.memory.blindly("s", seen(7, row_age)))

    def test_a_dead_service_stays_dead(self) -> None:
        self.memory.remember("s", seen(100, 4_000.0))
        self.assertEqual(4_000.0, self.memory.blindly("s", seen(7, 9_000.0)).age_seconds)

    def test_a_dead_service_whose_row_is_written_lives(self) -> None:
        self.memory.remember("s", seen(100, 4_000.0))
        self.assertEqual(seen(101, 2.0), self.memory.blindly("s", seen(101, 2.0)))
        # And grows no older behind it: its heartbeats may be stored again.
        self.assertEqual(seen(101, 2.0), self.memory.blindly("s", seen(101, 900.0)))

    def test_a_service_that_counts_anew_in_its_row_lives(self) -> None:
        self.memory.remember("s", seen(9_000, 80.0))
        self.assertEqual(seen(3, 1.0), self.memory.blindly("s", seen(3, 1.0)))

    def test_one_that_was_never_seen_is_taken_to_live(self) -> None:
        self.assertEqual(0.0, self.memory.blindly("s", seen(7, math.inf)).age_seconds)
        self.assertEqual(0.0, self.memory.blindly("s", seen(7, 9e9)).age_seconds)

    def test_what_is_remembered_has_a_bound(self) -> None:
        memory = last_seen.SightMemory(2)
        for name in "abc":
            memory.remember(name, seen(1, 500.0))
        self.assertEqual(
            [None, None, 500.0],
            [getattr(memory.known(name), "age_seconds", None) for name in "abc"],
        )
