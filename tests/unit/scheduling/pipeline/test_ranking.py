# SPDX-License-Identifier: Apache-2.0
"""Best first, against sorting, through any history of changed scores."""

import collections
import itertools
import math
import random

import numpy as np
import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.pipeline import weighing

SCORES = st.sampled_from([-math.inf, weighing.LOWEST_SCORE, -2.0, 0.0, 0.5, 1.0, 7.25])
CHANGES = st.lists(st.lists(st.tuples(st.integers(0, 699), SCORES), max_size=5), max_size=5)


def ranked(scores, count, **known):
    rows = weighing.Ranking(np.array(scores)).best_first(random.Random(0), **known)
    return list(itertools.islice(rows, count))


class RankingTest(testtools.TestCase):
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**32), CHANGES, st.booleans(), st.integers(1, 700))
    def test_any_history_comes_out_in_order(self, seed, changes, shuffled, count):
        rng = random.Random(seed)
        scores = [rng.choice([-math.inf, -2.0, 0.5, 3.0]) for _ in range(700)]
        patched = weighing.Ranking(np.array(scores))
        for change in changes:
            rows = np.array([row for row, _ in change], np.intp)
            for row, score in change:
                scores[row] = patched.scores[row] = score
            patched.patch(np.unique(rows // 256))
        found = list(itertools.islice(patched.best_first(rng, shuffled=shuffled), count))
        expected = sorted((score for score in scores if score > -math.inf), reverse=True)
        self.assertEqual(expected[:count], [scores[row] for row in found])
        self.assertEqual(len(set(found)), len(found))
        self.assertEqual(expected[:count], [scores[row] for row in self.among(patched, count, rng)])

    def among(self, patched, count, rng):
        return patched.among(np.arange(700), count, rng)

    def test_nobody_is_found_where_nobody_may_be_chosen(self):
        self.assertEqual([], ranked([-math.inf] * 300, 5))
        self.assertEqual([], ranked([-math.inf] * 300, 5, shuffled=True))
        self.assertEqual([], ranked([], 5))

    def test_equal_scores_do_not_all_begin_with_the_same_row(self):
        scores = weighing.Ranking(np.zeros(1000))
        rng = random.Random(0)
        firsts = {next(scores.best_first(rng)) for _ in range(50)}
        self.assertGreater(len(firsts), 30)
        self.assertTrue(all(row < 1000 for row in firsts))

    def test_a_shuffled_tie_gives_each_host_its_turn(self):
        scores = np.zeros(600)
        scores[[3, 300, 599]] = 1.0
        found = weighing.Ranking(scores)
        rng = random.Random(0)
        firsts = collections.Counter(
            next(found.best_first(rng, shuffled=True)) for _ in range(3000)
        )
        self.assertEqual({3, 300, 599}, set(firsts))
        self.assertGreater(min(firsts.values()), 850)

    def test_the_last_number_comes_after_all_others(self):
        self.assertEqual([2, 0, 1], ranked([-1e300, weighing.LOWEST_SCORE, 0.0], 5))

    def test_looking_does_not_change_what_the_next_one_sees(self):
        scores = weighing.Ranking(np.arange(600.0))
        for _ in range(2):
            self.assertEqual(599, next(scores.best_first(random.Random(0))))
            self.assertEqual(600, len(list(scores.best_first(random.Random(0), shuffled=True))))
