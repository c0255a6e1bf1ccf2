# SPDX-License-Identifier: Apache-2.0
"""Beats that are odd to whoever decides by them are odd to whoever looks, and others besides."""

import testtools
from hypothesis import given
from hypothesis import strategies as st

from nova_nodb_scheduler.cmd.overview import beats
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, reporter_facts

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
_BEATS = st.dictionaries(
    st.sampled_from(("guards", "late_seconds", "behind_seconds")), _VALUES, max_size=3
)


class OddBeatsTest(testtools.TestCase):
    @given(beat=_BEATS)
    def test_status_names_each_reporter_that_keeps_a_cell_from_its_journal(self, beat):
        if not reporter_facts.is_readable(beat):
            self.assertIsNotNone(beats.oddity(known_namespaces.REPORTERS.name, beat))

    def test_what_nobody_decides_by_keeps_no_cell_from_its_journal(self):
        beat = {"guards": ["c"], "late_seconds": {"c": 0.5}, "pid": "many", "since": "long ago"}
        self.assertTrue(reporter_facts.is_readable(beat))
        self.assertIsNotNone(beats.oddity(known_namespaces.REPORTERS.name, beat))
