# SPDX-License-Identifier: Apache-2.0
"""What is said of conditions is understood as it was meant, and nothing else is."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import attrs
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
MARKS = st.builds(
    tree_conditions.TreeMark,
    st.sampled_from(
        [tree_conditions.mark(number, below) for number in (0, 7, 2**40) for below in ([], _BELOW)]
    ),
    st.sampled_from(["0123456789abcdef", "f" * 16]),
)
#: What a provider's record says, and, behind it, what does not count.
NUMBERS = st.fixed_dictionaries(
    {
        **dict.fromkeys(("total", "reserved", "min_unit"), st.integers(0, 2)),
        **dict.fromkeys(("max_unit", "step_size"), st.integers(1, 2)),
        "allocation_ratio": st.sampled_from([1, 1.0, 1.5]),
    }
)
SETS = st.sets(st.sampled_from("abc"), max_size=2)
CONTENTS = st.dictionaries(
    NAMES,
    st.builds(
        tree_conditions.ProviderContents,
        st.none() | NAMES,
        st.dictionaries(st.sampled_from(["VCPU", "DISK_GB"]), NUMBERS, max_size=2),
        SETS,
        SETS,
    ),
    max_size=2,
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

    @given(CONTENTS, CONTENTS)
    def test_two_trees_have_one_digest_where_they_consist_of_the_same(
        self,
        one: dict[str, tree_conditions.ProviderContents],
        other: dict[str, tree_conditions.ProviderContents],
    ) -> None:
        same = one == other
        self.assertEqual(same, tree_conditions.contents(one) == tree_conditions.contents(other))
        turned = {
            uuid: attrs.evolve(
                each,
                inventories=dict(reversed(each.inventories.items())),
                traits=sorted(each.traits, reverse=True),
                aggregates=sorted(each.aggregates),
            )
            for uuid, each in reversed(one.items())
        }
        self.assertEqual(tree_conditions.contents(one), tree_conditions.contents(turned))


def _read(headers: Mapping[str, str]) -> Mapping[str, tree_conditions.TreeMark]:
    return tree_conditions.read_request(
        headers.get(tree_conditions.REQUEST), headers.get(tree_conditions.CONTENTS)
    )


class HeadersTest(testtools.TestCase):
    @given(TREES)
    def test_a_request_is_read_as_it_was_written(
        self, trees: dict[str, tree_conditions.TreeMark]
    ) -> None:
        self.assertEqual(trees, _read(tree_conditions.requested(trees)))

    @given(TREES, st.text(max_size=20))
    def test_an_older_one_and_one_that_cannot_read_contents_has_the_generations(
        self, trees: dict[str, tree_conditions.TreeMark], text: str
    ) -> None:
        wanted = {root: tree_conditions.TreeMark(mark.generations) for root, mark in trees.items()}
        headers = tree_conditions.requested(trees)
        self.assertEqual(wanted, _read({**headers, tree_conditions.CONTENTS: text}))
        headers.pop(tree_conditions.CONTENTS, None)
        self.assertEqual(wanted, _read(headers))
        unknown = {**trees, "another": tree_conditions.TreeMark("1")}
        self.assertEqual({tree_conditions.REQUEST}, set(tree_conditions.requested(unknown)))

    def test_as_many_trees_as_may_be_named_leave_room_for_a_token(self) -> None:
        """All headers of a request have 4,096 bytes with uWSGI."""
        mark = tree_conditions.TreeMark(tree_conditions.mark(2**20, _BELOW), "0" * 16)
        for most in (tree_conditions.MOST_TREES, tree_conditions.MOST_CONTENTS):
            trees = {str(uuid.UUID(int=number)): mark for number in range(most)}
            headers = tree_conditions.requested(trees)
            self.assertEqual(set(trees), set(_read(headers)))
            self.assertEqual(most == tree_conditions.MOST_CONTENTS, trees == _read(headers))
            self.assertLess(len("".join([*headers, *headers.values()])), 2500)

    @given(TREES, st.text(max_size=20), st.integers(0, 100))
    def test_what_is_not_understood_whole_asks_for_nothing(
        self, trees: dict[str, tree_conditions.TreeMark], more: str, at: int
    ) -> None:
        text = tree_conditions.requested(trees).get(tree_conditions.REQUEST, "")
        found = tree_conditions.read_request(text[:at] + more + text[at:])
        for root, mark in found.items():
            text_of = f"{root}={mark.generations}"
            self.assertEqual({root: mark}, tree_conditions.read_request(text_of))
        if found:
            self.assertEqual(len(found), len((text[:at] + more + text[at:]).split(",")))

    def test_more_trees_than_may_be_named_are_not_judged(self) -> None:
        mark = tree_conditions.TreeMark("1")
        trees = {f"{number:08d}": mark for number in range(tree_conditions.MOST_TREES + 1)}
        self.assertEqual({}, _read(tree_conditions.requested(trees)))

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
