# SPDX-License-Identifier: Apache-2.0
"""Extremes of blocks that follow changed rows, against those of an evaluation made anew."""

import math

import fixtures
import numpy as np
import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.pipeline import evaluation

#: Rows of a block, and blocks.
BLOCK, BLOCKS = 4, 4
ROWS = BLOCK * BLOCKS


class Weigher:
    """Weighs rows by a row of a matrix."""

    minval = maxval = None

    def __init__(self, weights):
        self._weights = weights

    def raw(self, _request, _frame, rows):
        return self._weights[rows]

    def multiplier(self, _request, _frame, _rows):
        return 1.0


class Cloud:
    """Rows that pass or do not, with weights of two weighers; is its own frame and steps."""

    filters = ()
    request = None
    sequence = 0

    def __init__(self, rows=ROWS):
        self.rows = rows
        self.updated = np.ones(rows, bool)
        self.passing = np.ones(rows, bool)
        self.weights = np.array([[0.0], [math.nan]]).repeat(rows, axis=1)
        self.weighers_on_columns = [(Weigher(each), None) for each in self.weights]

    def known(self, _frame, rows):
        return self.passing[rows].copy()

    def offered(self, _frame, rows):
        return np.ones(self.rows, bool)[rows]

    def evaluation(self):
        return evaluation.Evaluation(self, self)


weights = st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.0, math.nan, math.inf, -math.inf])
changes = st.dictionaries(
    st.integers(0, ROWS - 1), st.tuples(st.booleans(), weights, weights), min_size=1
)


class SmallBlocksTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        block = "nova_nodb_scheduler.scheduling.pipeline.evaluation._BLOCK"
        self.useFixture(fixtures.MonkeyPatch(block, BLOCK))

    @settings(max_examples=300, deadline=None)
    @given(st.lists(changes, min_size=1, max_size=8))
    def test_any_history_leaves_the_scale_that_a_look_at_all_rows_gives(self, history):
        cloud = Cloud()
        kept = cloud.evaluation()
        for changed in history:
            for row, (passes, one, other) in changed.items():
                cloud.passing[row], cloud.weights[:, row] = passes, (one, other)
            kept.patch(cloud, cloud, np.array(sorted(changed)))
            anew = cloud.evaluation()
            self.assertEqual(anew.passed, kept.passed)
            # As texts: what is not a number is as good as itself.
            self.assertEqual(repr(anew.scale()), repr(kept.scale()))


class LargeBlocksTest(testtools.TestCase):
    def test_hosts_that_make_no_extreme_cost_no_look_at_their_blocks(self):
        cloud = Cloud(rows=64 * evaluation._BLOCK)
        rng = np.random.default_rng(1)
        cloud.weights[:] = rng.random(cloud.weights.shape)
        kept = cloud.evaluation()
        rounds = 50
        for _ in range(rounds):
            rows = np.sort(rng.choice(cloud.rows, 40, replace=False))
            cloud.weights[:, rows] = rng.random((2, 40))
            kept.patch(cloud, cloud, rows)
        # Two weighers, two extremes each: four rows of 256 make one. All blocks would be 1,500.
        self.assertLess(kept.blocks_renewed, 40 * rounds * 4 / 256 * 2)
        self.assertGreater(kept.blocks_renewed, 0)
