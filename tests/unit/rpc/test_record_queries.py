# SPDX-License-Identifier: Apache-2.0
"""Queries of records: conditions on columns, and pages in order of key.

Conditions on columns: the same rows as a plain loop finds, and clear refusals.

Pages of a query: in order, whole, and stable while records come and go.
"""

import operator

import hypothesis
import testtools
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.rpc import record_queries
from tests.unit.store import store_samples

_COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXTS = st.sampled_from(["lvm", "ceph", "nfs", "never held"])
_NUMBERS = st.integers(-3, 3)

STATES = st.lists(
    st.builds(
        lambda free, ratio, thin, backend, tags: {
            "pool": {"free_gb": free},
            "ratio": ratio,
            "thin": thin,
            "backend": backend,
            "tags": tags,
        },
        _NUMBERS,
        st.sampled_from([0.5, 1.0, 1.5]),
        st.booleans(),
        st.sampled_from(["lvm", "ceph", "nfs"]),
        # More texts than one word of 64 bits holds.
        st.lists(st.integers(0, 80).map(str), max_size=4, unique=True),
    ),
    max_size=12,
)
_ORDERED = st.sampled_from(sorted(_COMPARE))
_EQUAL = st.sampled_from(["==", "!="])
CONDITIONS = st.one_of(
    st.tuples(st.just("free_gb"), _ORDERED, _NUMBERS),
    st.tuples(st.just("free_gb"), st.just("in"), st.lists(_NUMBERS, max_size=3)),
    st.tuples(st.just("ratio"), _ORDERED, st.sampled_from([0.5, 1, 1.25])),
    st.tuples(st.just("thin"), _EQUAL, st.booleans()),
    st.tuples(st.just("thin"), st.just("in"), st.lists(st.booleans(), max_size=2)),
    st.tuples(st.just("backend"), _EQUAL, _TEXTS),
    st.tuples(st.just("backend"), st.just("in"), st.lists(_TEXTS, max_size=3)),
    st.tuples(st.just("tags"), _EQUAL, st.integers(0, 90).map(str)),
    st.tuples(st.just("tags"), st.just("in"), st.lists(st.integers(0, 90).map(str), max_size=3)),
)


def view_of(states):
    store = store_samples.store()
    for number, state in enumerate(states):
        store.apply(store_samples.change(f"p{number:02}", number + 1, state))
    return store.snapshot().namespace("pools")


def plainly(state, condition):
    """The same by a plain loop."""
    column, op, value = condition
    found = state["pool"]["free_gb"] if column == "free_gb" else state[column]
    if column == "tags":
        if op == "in":
            return bool(set(found) & set(value))
        return (value in found) is (op == "==")
    return found in value if op == "in" else _COMPARE[op](found, value)


class EvaluationTest(testtools.TestCase):
    @hypothesis.settings(max_examples=300, deadline=None)
    @hypothesis.given(STATES, st.lists(CONDITIONS, max_size=3))
    def test_a_mask_says_what_a_plain_loop_says(self, states, conditions):
        view = view_of(states)

        mask = record_queries.mask(view, [list(each) for each in conditions])

        found = {key for key, wanted in zip(view.row_keys(), mask, strict=True) if wanted}
        expected = {
            f"p{number:02}"
            for number, state in enumerate(states)
            if all(plainly(state, condition) for condition in conditions)
        }
        self.assertEqual(expected, found)

    def test_values_may_be_typed_as_text(self):
        view = view_of([{"pool": {"free_gb": 4}, "ratio": 2.5, "thin": True}])

        for condition in (
            ["free_gb", ">=", "4"],
            ["ratio", "<", "2.75"],
            ["thin", "==", "True"],
            ["free_gb", "in", ["1", "4"]],
        ):
            with self.subTest(condition):
                self.assertEqual([True], record_queries.mask(view, [condition]).tolist())

    def test_every_kind_of_column_says_its_operators(self):
        for kind in namespaces.Kind:
            self.assertIn("in", record_queries.operators_of(kind))


class RefusalTest(testtools.TestCase):
    def refuse(self, predicate, *texts):
        error = self.assertRaises(
            errors.InvalidPredicate, record_queries.mask, view_of([{"backend": "lvm"}]), predicate
        )
        for text in texts:
            self.assertIn(text, str(error))

    def test_an_unknown_column_is_named_with_the_choices(self):
        self.refuse([["size", "==", 1]], "'size'", "free_gb, ratio, thin, backend, tags")

    def test_an_unknown_operator_is_named_with_the_choices(self):
        self.refuse([["free_gb", "like", 1]], "'like'", "== != < <= > >= in")

    def test_texts_have_no_order(self):
        self.refuse([["backend", "<", "lvm"]], "category", "== != in")

    def test_a_value_of_another_kind_is_named(self):
        self.refuse([["free_gb", "==", "many"]], "'many'")
        self.refuse([["free_gb", "==", 2**63]], "64 bits")
        self.refuse([["ratio", "==", True]], "no number")
        self.refuse([["thin", "==", 1]], "neither true nor false")
        self.refuse([["thin", "==", ["true"]]], "neither true nor false")
        self.refuse([["backend", "==", 7]], "no text")
        self.refuse([["backend", "in", "lvm"]], "list")

    def test_what_is_no_condition_is_refused(self):
        for predicate in ("free_gb == 1", [["free_gb", "=="]], ["free_gb"], [7], {"a": 1}):
            with self.subTest(predicate):
                self.refuse(predicate, "[column, operator, value]")

    def test_the_size_is_bounded(self):
        self.refuse([["free_gb", "==", 1]] * 101, "at most 100")
        self.refuse([["free_gb", "in", [1] * 1001]], "at most 1000")


class PagesTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = store_samples.store()
        self.revision = 0
        for key in "dbecaf":
            self.write(key, {"pool": {"free_gb": ord(key) - ord("a")}})

    def write(self, key, state):
        self.revision += 1
        self.store.apply(store_samples.change(key, self.revision, state))

    def cut(self, limit=2, marker=None, keys=None, predicate=()):
        view = self.store.snapshot().namespace("pools")
        page = record_queries.page_of(view, keys, predicate, limit, marker)
        return [record.key for record in page.records], page.next_marker

    def test_pages_follow_one_another_in_order_of_key(self):
        self.assertEqual((["a", "b"], "b"), self.cut())
        self.assertEqual((["c", "d"], "d"), self.cut(marker="b"))
        self.assertEqual((["e", "f"], None), self.cut(marker="d"))

    def test_a_last_page_that_is_not_full_is_the_last(self):
        self.assertEqual((["e", "f"], None), self.cut(limit=4, marker="d"))

    def test_a_marker_whose_record_went_still_stands_for_its_place(self):
        self.write("b", None)

        self.assertEqual((["c", "d"], "d"), self.cut(marker="b"))

    def test_a_record_that_comes_before_the_marker_shifts_nothing(self):
        self.write("aa", {})

        self.assertEqual((["c", "d"], "d"), self.cut(marker="b"))

    def test_only_asked_keys_that_exist_are_given(self):
        self.assertEqual((["b", "f"], None), self.cut(keys=["f", "b", "absent"], limit=5))

    def test_keys_and_a_predicate_must_both_hold(self):
        self.assertEqual((["e"], None), self.cut(keys=["a", "e"], predicate=[["free_gb", ">", 2]]))

    def test_a_predicate_is_paged_too(self):
        predicate = [["free_gb", ">=", 1]]

        self.assertEqual((["b", "c"], "c"), self.cut(predicate=predicate))
        self.assertEqual((["d", "e"], "e"), self.cut(predicate=predicate, marker="c"))
        self.assertEqual((["f"], None), self.cut(predicate=predicate, marker="e"))

    def test_nothing_found_is_an_empty_last_page(self):
        self.assertEqual(([], None), self.cut(keys=[]))
