# SPDX-License-Identifier: Apache-2.0
"""Counts are judged alike, one by one and many at once."""

import math
import unittest

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.namespaces import report_counts

COUNTS = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-150, 550))
SECONDS = st.one_of(
    st.sampled_from([0.0, 60.0, 299.9, 300.0, 300.1, 86_400.0]), st.floats(-1000.0, 1e6)
)
BEATS = st.tuples(COUNTS, st.none() | SECONDS, COUNTS, SECONDS)


class JudgementTest(unittest.TestCase):
    @given(st.lists(BEATS, min_size=1, max_size=20))
    @example([(0, 0.0, 61, 0.0), (0, 0.0, 62, 0.0), (0, 0.0, -60, 301.0), (0, 0.0, -61, 301.0)])
    @example([(0, 0.0, 362, 301.0), (0, None, 86_461, 0.0), (0, None, 86_462, 0.0)])
    def test_many_at_once_are_judged_as_each_by_itself(self, beats):
        known, counted_at, counts, heard_at = zip(*beats, strict=True)
        found = report_counts.judge_counts(
            np.array(known, np.int64),
            np.array([math.nan if each is None else each for each in counted_at]),
            np.array(counts, np.int64),
            np.array(heard_at),
        )
        for at, (before, counted, count, heard) in enumerate(beats):
            current = {"report_count": before}
            if counted is not None:
                current["counted_at"] = counted
            step = report_counts.judge_count(current, count, 1, heard)
            self.assertEqual(step is report_counts.CountStep.TAKEN, found.taken[at], beats[at])
            self.assertEqual(
                step is report_counts.CountStep.RENUMBERED, found.renumbered[at], beats[at]
            )
