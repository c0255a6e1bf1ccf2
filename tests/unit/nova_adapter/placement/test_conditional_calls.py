# SPDX-License-Identifier: Apache-2.0
"""Whose the refusal of a shared call is where trees differ, and what answers are believed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import attrs
import testtools
from hypothesis import given
from hypothesis import strategies as st

from nova_nodb_scheduler import tree_conditions
from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    conditional_writes,
    placement_replies,
    shared_calls,
)

TREES = ("a", "b", "c")
TreeMark = tree_conditions.TreeMark


@attrs.define(eq=False)
class _Condition:
    """What one request was chosen for; what a process's calls showed is all conditions'."""

    wanted: Mapping[str, TreeMark]
    shown: dict[str, TreeMark]
    ever: set[tuple[str, TreeMark]] = attrs.field(factory=set)

    def marks(self) -> Mapping[str, TreeMark]:
        return {root: mark for root, mark in self.wanted.items() if self.shown.get(root) != mark}

    def held(self, marks: Mapping[str, TreeMark]) -> None:
        self.shown.update(marks)
        self.ever.update(marks.items())


@attrs.define(eq=False)
class _Placement:
    """Trees by their generations, each moved by one with each call that writes to it.

    :param judges: of each call that comes whether its process knows conditions
    :param contents: of all trees
    """

    generations: dict[str, int]
    judges: list[bool]
    contents: str = "now"
    calls: int = 0
    #: Of each server its tree's generation when it was written.
    written: dict[str, int] = attrs.field(factory=dict)

    def post(
        self,
        servers: Sequence[placement_replies.NewServer],
        request_id: str | None = None,
        marks: Mapping[str, TreeMark] | None = None,
    ) -> placement_replies.Reply:
        self.calls += 1
        judges = bool(marks) and (not self.judges or self.judges.pop(0))
        differing = {
            root
            for root, mark in (marks or {}).items()
            if str(self.generations[root]) != mark.generations and mark.contents != self.contents
        }
        if judges and differing:
            return placement_replies.DifferingTrees(frozenset(differing), "")
        trees = {server.consumer: next(iter(server.request["allocations"])) for server in servers}
        self.written.update((name, self.generations[tree]) for name, tree in trees.items())
        for tree in set(trees.values()):
            self.generations[tree] += 1
        return placement_replies.DoneReply(judges)


def _server(tree: str) -> placement_replies.NewServer:
    request = {"allocations": {tree: {"resources": {"VCPU": 1}}}}
    return placement_replies.NewServer(str(uuid.uuid4()), request, "project", "user")


def _only(tree: str) -> dict[str, TreeMark]:
    return {tree: TreeMark("1")}


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(TREES), min_size=1, max_size=3),
        st.builds(TreeMark, st.sampled_from("012"), st.sampled_from(["", "before", "now"])),
    ),
    min_size=1,
    max_size=6,
)


class SharedCallsTest(testtools.TestCase):
    @given(REQUESTS, st.lists(st.booleans(), max_size=4))
    def test_each_is_written_for_what_it_was_chosen_for_or_is_told(
        self, requests: list[tuple[list[str], TreeMark]], judges: list[bool]
    ) -> None:
        shown: dict[str, TreeMark] = {}
        ever: set[tuple[str, TreeMark]] = set()
        placement = _Placement(dict.fromkeys(TREES, 1), list(judges))
        parts = [
            shared_calls.RequestPart(
                tuple(_server(tree) for tree in trees),
                None,
                _Condition(dict.fromkeys(trees, mark), shown, ever),
            )
            for trees, mark in requests
        ]
        replies = shared_calls.write_batch(placement.post, parts)
        for part, reply, (trees, mark) in zip(parts, replies, requests, strict=True):
            written = [server.consumer in placement.written for server in part.servers]
            if isinstance(reply, placement_replies.DifferingTrees):
                self.assertFalse(any(written))
                self.assertFalse(reply.roots.isdisjoint(trees))
                continue
            assert isinstance(reply, placement_replies.DoneReply)
            self.assertTrue(all(written))
            if reply.compared:
                # As it was written, or as one of these that was chosen for the same was.
                self.assertLessEqual({(tree, mark) for tree in trees}, ever)
        if all(judges):
            marks = {mark for _, mark in requests}
            if marks == {TreeMark("1")} or {mark.contents for mark in marks} == {"now"}:
                self.assertEqual(1, placement.calls)
        self.assertLessEqual(placement.calls, 2 * len(requests))

    def test_one_stale_tree_refuses_only_those_that_were_chosen_for_it(self) -> None:
        shown: dict[str, TreeMark] = {}
        placement = _Placement({"a": 1, "b": 2, "c": 1}, [])
        parts = [
            shared_calls.RequestPart((_server(tree),), None, _Condition(_only(tree), shown))
            for tree in TREES
        ]
        replies = shared_calls.write_batch(placement.post, parts)
        self.assertEqual(
            ["DoneReply", "DifferingTrees", "DoneReply"],
            [type(reply).__name__ for reply in replies],
        )
        self.assertEqual(2, placement.calls)

    def test_a_call_names_no_more_trees_than_may_be_named(self) -> None:
        names = [f"tree-{number}" for number in range(2 * tree_conditions.MOST_TREES)]
        placement = _Placement(dict.fromkeys(names, 1), [])
        parts = [
            shared_calls.RequestPart((_server(tree),), None, _Condition(_only(tree), {}))
            for tree in names
        ]
        shared_calls.write_batch(placement.post, parts)
        self.assertEqual(2, placement.calls)


@attrs.frozen
class _Response:
    status_code: int
    headers: Mapping[str, str]


def _response(status: int, said: str | None) -> _Response:
    return _Response(status, {} if said is None else {tree_conditions.ANSWER: said})


#: Of a call: whether it has a condition, its status, and what is said of conditions.
ANSWERS = st.tuples(
    st.booleans(),
    st.sampled_from((204, 409, 503)),
    st.sampled_from((None, "compares", "same", "differ a", "nonsense")),
    st.integers(0, 100),
)


class ConditionTrustTest(testtools.TestCase):
    @given(st.lists(ANSWERS))
    def test_conditions_are_sent_while_all_answers_of_a_minute_bear_them_out(
        self, answers: list[tuple[bool, int, str | None, int]]
    ) -> None:
        now = 0
        trust = conditional_writes.ConditionTrust(lambda: now)
        self.assertFalse(trust.holds())
        bad_at: list[int] = []
        for conditional, status, said, later in answers:
            now += later
            trust.note(_response(status, said), is_conditional=conditional)
            known = said in ("compares", "same", "differ a")
            if not known or (conditional and status == 204 and said != "same"):
                bad_at.append(now)
            self.assertEqual(known and all(now - at >= 60 for at in bad_at), trust.holds())

    def test_an_answer_without_headers_knows_nothing(self) -> None:
        trust = conditional_writes.ConditionTrust(lambda: 0.0)
        trust.note(object.__new__(type("Bare", (), {"status_code": 204})), is_conditional=False)
        self.assertFalse(trust.holds())
