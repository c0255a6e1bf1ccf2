# SPDX-License-Identifier: Apache-2.0
"""The comparer names what the store missed, holds stale, or holds extra."""

import json

import testtools
from hypothesis import given
from hypothesis import strategies as st

from nova_nodb_scheduler.observe import state_comparer

STATES = st.dictionaries(
    st.sampled_from("abcd"),
    st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 2)),
)


def compare(*args):
    return state_comparer.differences(*args).comparison()


class TestCompare(testtools.TestCase):
    def test_equal_sides_are_clean(self):
        truth = {"a": {"row": {"vcpus": 4}}, "b": {"row": {"vcpus": 8}}}
        found = compare(truth.items(), dict(truth))
        self.assertTrue(found.clean)
        self.assertEqual(2, found.compared)
        self.assertEqual([], found.rows())

    def test_missed_stale_and_extra_are_told_apart(self):
        found = compare(
            [("a", {"v": 1}), ("b", {"v": 2}), ("c", {"v": 3})],
            {"a": {"v": 1}, "b": {"v": 0}, "d": {"v": 4}},
        )
        self.assertFalse(found.clean)
        self.assertEqual(
            [("missed", "c", ""), ("stale", "b", "v"), ("extra", "d", "")], found.rows()
        )

    def test_differences_are_counted_by_dotted_field(self):
        found = compare(
            [("a", {"row": {"x": 1, "y": 1}}), ("b", {"row": {"x": 1, "y": 1}})],
            {"a": {"row": {"x": 2, "y": 2}}, "b": {"row": {"x": 1, "y": 2}}},
        )
        self.assertEqual({"row.x": 1, "row.y": 2}, found.stale_by_field)
        self.assertEqual(
            (state_comparer.Stale("a", ("row.x", "row.y")), state_comparer.Stale("b", ("row.y",))),
            found.stale,
        )

    def test_ignored_fields_and_what_is_below_them_do_not_count(self):
        found = compare(
            [("a", {"row": {"updated_at": 1, "x": 1}, "meta": {"by": "me"}})],
            {"a": {"row": {"updated_at": 2, "x": 1}, "meta": {"by": "you"}}},
            ["row.updated_at", "meta"],
        )
        self.assertTrue(found.clean)

    def test_absent_and_none_are_the_same(self):
        found = compare([("a", {"x": None, "y": 1})], {"a": {"y": 1, "z": None}})
        self.assertTrue(found.clean)

    def test_examples_are_bounded_and_counts_are_not(self):
        found = state_comparer.differences(
            ((str(number), {"v": 1}) for number in range(1000)),
            {str(number): {"v": 2} for number in range(500, 2000)},
        ).comparison(examples=3)
        self.assertEqual(
            (500, 500, 1000), (found.missed_count, found.stale_count, found.extra_count)
        )
        self.assertEqual((3, 3, 3), (len(found.missed), len(found.stale), len(found.extra)))
        self.assertEqual({"v": 500}, found.stale_by_field)

    def test_the_result_is_json(self):
        found = compare([("a", {"v": 1}), ("b", {})], {"a": {"v": 2}})
        again = json.loads(json.dumps(found.as_dict()))
        self.assertEqual([{"key": "a", "fields": ["v"]}], again["stale"])
        self.assertIs(False, again["clean"])

    @given(STATES, STATES)
    def test_it_agrees_with_set_arithmetic(self, truth, held):
        found = compare(truth.items(), held)
        self.assertEqual(tuple(sorted(truth.keys() - held.keys())), found.missed)
        self.assertEqual(tuple(sorted(held.keys() - truth.keys())), found.extra)
        self.assertEqual(
            tuple(sorted(key for key in truth.keys() & held.keys() if truth[key] != held[key])),
            tuple(each.key for each in found.stale),
        )

    @given(STATES, STATES, STATES, STATES)
    def test_what_is_looked_at_again_counts_as_it_is_now(
        self, truth, held, later_truth, later_held
    ):
        found = state_comparer.differences(truth.items(), held)
        differed = {key for key in truth.keys() | held.keys() if key in found}
        for key in differed:
            found.look_again(key, later_truth.get(key), later_held.get(key))
        now = state_comparer.differences(
            ((key, later_truth[key]) for key in differed & later_truth.keys()),
            {key: later_held[key] for key in differed & later_held.keys()},
        )
        self.assertEqual(
            (now.missed, now.stale, now.extra), (found.missed, found.stale, found.extra)
        )
        self.assertEqual(differed - now.missed - now.stale.keys() - now.extra, found.settled)
