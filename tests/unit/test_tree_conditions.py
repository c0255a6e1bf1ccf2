# SPDX-License-Identifier: Apache-2.0
"""What is said of conditions is understood as it was meant, and nothing else is."""

from __future__ import annotations

import uuid

import testtools
from hypothesis import given
from hypothesis import strategies as st

from nova_nodb_scheduler import tree_conditions

NAMES = st.sampled_from([str(number) * 8 for number in range(4)])
MEMBERS = st.dictionaries(NAMES, st.tuples(st.none() | NAMES, st.integers(0, 3)), max_size=3).map(
    lambda found: [
        tree_conditions.TreeMember(uuid, parent, generation)
        for uuid, (parent, generation) in found.items()
    ]
)
_BELOW = [tree_conditions.TreeMember("below", None, 3)]
MARKS = st.sampled_from(
    [tree_conditions.mark(number, below) for number in (0, 7, 2**40) for below in ([], _BELOW)]
)
#: By numbers, which are cheaper to draw than uuids.
TREES = st.dictionaries(
    st.integers(0, 2**128 - 1).map(lambda number: str(uuid.UUID(int=number))), MARKS, max_size=4
)


class MarksTest(testtools.TestCase):
    @given(st.integers(0, 3), MEMBERS, st.integers(0, 3), MEMBERS)
    def test_two_states_of_a_tree_have_one_mark_where_they_are_the_same(
        self,
        one: int,
        members: list[tree_conditions.TreeMember],
        other: int,
        others: list[tree_conditions.TreeMember],
    ) -> None:
        same = (one, set(members)) == (other, set(others))
        self.assertEqual(
            same, tree_conditions.mark(one, members) == tree_conditions.mark(other, others)
        )
        self.assertEqual(
            tree_conditions.mark(one, members), tree_conditions.mark(one, reversed(members))
        )


class HeadersTest(testtools.TestCase):
    @given(TREES)
    def test_a_request_is_read_as_it_was_written(self, trees: dict[str, str]) -> None:
        text = tree_conditions.requested(trees)
        self.assertEqual(trees, tree_conditions.read_request(text))

    def test_as_many_trees_as_may_be_named_leave_room_for_a_token(self) -> None:
        """All headers of a request have 4,096 bytes with uWSGI."""
        mark = tree_conditions.mark(2**20, _BELOW)
        trees = {str(uuid.UUID(int=number)): mark for number in range(tree_conditions.MOST_TREES)}
        text = tree_conditions.requested(trees)
        self.assertEqual(trees, tree_conditions.read_request(text))
        self.assertLess(len(text), 2500)

    @given(TREES, st.text(max_size=20), st.integers(0, 100))
    def test_what_is_not_understood_whole_asks_for_nothing(
        self, trees: dict[str, str], more: str, at: int
    ) -> None:
        text = tree_conditions.requested(trees)
        found = tree_conditions.read_request(text[:at] + more + text[at:])
        for root, mark in found.items():
            self.assertEqual({root: mark}, tree_conditions.read_request(f"{root}={mark}"))
        if found:
            self.assertEqual(len(found), len((text[:at] + more + text[at:]).split(",")))

    def test_more_trees_than_may_be_named_are_not_judged(self) -> None:
        trees = {f"{number:08d}": "1" for number in range(tree_conditions.MOST_TREES + 1)}
        self.assertEqual({}, tree_conditions.read_request(tree_conditions.requested(trees)))

    @given(st.none() | st.frozensets(st.uuids().map(str), max_size=5))
    def test_an_answer_is_read_as_it_was_written(self, differing: frozenset[str] | None) -> None:
        answer = tree_conditions.read_answer(
            {tree_conditions.ANSWER: tree_conditions.answered(differing)}
        )
        self.assertEqual(
            (True, differing == frozenset(), differing or frozenset()),
            (answer.is_known, answer.is_same, answer.differing),
        )

    @given(st.text(max_size=30))
    def test_of_another_answer_nothing_is_believed(self, text: str) -> None:
        if text.split()[:1] not in (["compares"], ["same"], ["differ"]):
            self.assertEqual(
                tree_conditions.ConditionAnswer(),
                tree_conditions.read_answer({tree_conditions.ANSWER: text}),
            )

    def test_an_answer_without_the_header_knows_none(self) -> None:
        self.assertEqual(tree_conditions.ConditionAnswer(), tree_conditions.read_answer({}))
