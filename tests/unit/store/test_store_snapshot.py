# SPDX-License-Identifier: Apache-2.0
"""What readers see of a store: columns, look-ups, differences; never a change."""

import itertools
import math

import numpy as np
import testtools

from nova_nodb_scheduler.model import namespaces
from tests.unit.store import store_samples


class TestSnapshots(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = store_samples.store()

    def pools(self):
        return self.store.snapshot().namespace("pools")

    def test_nothing_changed_gives_the_same_snapshot(self):
        self.store.apply(store_samples.change("a", 2, {}))
        first = self.store.snapshot()
        self.store.apply(store_samples.change("a", 1, {}))
        self.store.retain("pools", ["a"], 99)

        self.assertIs(first, self.store.snapshot())

    def test_a_namespace_that_did_not_change_keeps_its_view_and_its_arrays(self):
        self.store.apply(store_samples.change("a", 1, {}))
        first = self.store.snapshot()
        column = first.namespace("pools").column("ratio")

        self.store.apply(store_samples.change("s", 1, {}, namespace="shelves"))
        second = self.store.snapshot()

        self.assertGreater(second.number, first.number)
        self.assertIs(column, second.namespace("pools").column("ratio"))
        self.assertIsNot(first.namespace("shelves"), second.namespace("shelves"))

    def test_what_was_made_of_steady_columns_holds_until_one_of_them_changes(self):
        shelf = namespaces.Namespace(
            "books",
            "library",
            store_samples.V1,
            columns=(
                namespaces.Column("place", namespaces.Kind.CATEGORY, ("place",), "", steady=True),
                namespaces.Column("weight", namespaces.Kind.FLOAT, ("weight",), steady=True),
                namespaces.Column("read", namespaces.Kind.INT, ("read",)),
            ),
        )
        store = store_samples.store(shelf)
        revisions = itertools.count(1)

        def marked(*states):
            changes = [
                store_samples.change(key, next(revisions), state, namespace="books")
                for key, state in states
            ]
            store.apply_page(changes)
            return store.snapshot().namespace("books").steady_mark

        first = marked(*((f"b{number}", {"place": "x"}) for number in range(600)))
        self.assertIs(first, marked(("b7", {"place": "x", "read": 1})))
        self.assertIs(first, marked(*((f"b{n}", {"place": "x", "read": 2}) for n in range(300))))
        marks = [
            first,
            marked(("b7", {"place": "y"})),
            marked(("b8", {"place": "x", "read": 3}), ("b9", {"place": "x", "weight": 2.0})),
            marked(("new", {"place": "x"})),
            marked(("b7", None)),
            # In the row that became free, with what stood there.
            marked(("b7", {"place": "y"})),
        ]
        store.retain("books", ["b1"], 10**6)
        marks.append(store.snapshot().namespace("books").steady_mark)
        store.begin_epoch()
        marks.append(store.snapshot().namespace("books").steady_mark)
        self.assertEqual(len(marks), len(set(map(id, marks))))

    def test_columns_cannot_be_written(self):
        self.store.apply(store_samples.change("a", 1, {"tags": ["x"]}))
        for column in store_samples.POOLS.columns:
            array = self.pools().column(column.name)
            self.assertFalse(array.flags.writeable)
            self.assertRaises(ValueError, array.fill, 0)

    def test_each_kind_of_column_has_its_type_and_stands_in_the_order_of_the_keys(self):
        self.store.apply(
            store_samples.change(
                "a",
                1,
                {
                    "pool": {"free_gb": -7},
                    "ratio": 0.25,
                    "thin": True,
                    "backend": "lvm",
                    "tags": ["x", "y"],
                },
            )
        )
        self.store.apply(store_samples.change("b", 1, {"backend": "ceph", "tags": ["y"]}))
        view = self.pools()

        self.assertEqual(("a", "b"), view.row_keys())
        for name, dtype, values in (
            ("free_gb", np.int64, [-7, 0]),
            ("ratio", np.float64, [0.25, 1.5]),
            ("thin", np.bool_, [True, False]),
            ("backend", np.int32, [0, 1]),
            ("tags", np.uint64, [[3], [2]]),
        ):
            self.assertEqual(dtype, view.column(name).dtype)
            self.assertEqual(values, view.column(name).tolist())
        self.assertEqual((0.25, -7), view.numbers("a", "ratio", "free_gb"))
        self.assertEqual((True,), view.numbers("a", "thin"))
        for key, name in (("c", "ratio"), ("a", "none")):
            self.assertRaises(KeyError, view.numbers, key, name)
        self.assertEqual(("lvm", "ceph"), view.vocabulary("backend").texts())
        self.assertEqual("y", view.vocabulary("tags").text(1))
        self.assertEqual(1, view.vocabulary("tags").code("y"))
        self.assertIsNone(view.vocabulary("tags").code("z"))
        self.assertRaises(IndexError, view.vocabulary("tags").text, 2)

    def test_absent_none_and_misplaced_values_are_the_default(self):
        for key, state in (("a", {}), ("b", {"ratio": None, "pool": None}), ("c", {"pool": 3})):
            self.store.apply(store_samples.change(key, 1, state))

        self.assertEqual([0, 0, 0], self.pools().column("free_gb").tolist())
        self.assertEqual([1.5] * 3, self.pools().column("ratio").tolist())

    def test_nan_is_a_value_of_a_float_column(self):
        change = store_samples.change("a", 1, {})
        change = type(change)(change.record, {"ratio": math.nan})

        self.store.apply(change)

        self.assertTrue(np.isnan(self.pools().column("ratio")).all())

    def test_an_empty_namespace_has_empty_columns_of_the_right_shape(self):
        view = self.pools()

        self.assertEqual((0,), view.column("free_gb").shape)
        self.assertEqual((0, 1), view.column("tags").shape)
        self.assertEqual((), view.row_keys())
        self.assertEqual(0, len(view))

    def test_sets_written_under_a_smaller_vocabulary_are_read_padded(self):
        self.store.apply(store_samples.change("first", 1, {"tags": ["t0"]}))
        for number in range(300):  # fills the first chunk and a second one
            self.store.apply(store_samples.change(f"n{number:03}", 1, {"tags": [f"t{number}"]}))
        small = self.store.snapshot().namespace("pools")
        self.store.apply(store_samples.change("last", 1, {"tags": [f"u{n}" for n in range(100)]}))

        view = self.pools()

        self.assertEqual((302, 7), view.column("tags").shape)
        self.assertEqual((301, 5), small.column("tags").shape)
        self.assertEqual(300, len(small.vocabulary("tags")))
        self.assertIsNone(small.vocabulary("tags").code("u0"))
        counts = [sum(bin(word).count("1") for word in row) for row in view.column("tags").tolist()]
        self.assertEqual([1] * 301 + [100], counts)

    def test_rows_of_removed_records_are_used_again(self):
        for number in range(1000):
            self.store.apply(store_samples.change(f"k{number}", 1, {}))
        held = self.pools()
        for number in range(1000):
            self.store.apply(store_samples.change(f"k{number}", 2))
        for number in range(256):
            self.store.apply(store_samples.change(f"m{number}", 1, {}))

        view = self.pools()

        self.assertEqual({f"m{number}" for number in range(256)}, set(view.row_keys()))
        self.assertEqual(1, len(view._chunks))
        self.assertEqual(1000, len(held.row_keys()))

    def test_lookup_finds_exact_matches_sorted(self):
        for key, backend, zone in (
            ("c", "lvm", 1),
            ("a", "lvm", 2),
            ("b", "lvm", 1),
            ("d", "ceph", 1),
            ("e", "ceph", None),
        ):
            self.store.apply(store_samples.change(key, 1, {"backend": backend, "zone": zone}))
        view = self.pools()

        self.assertEqual(("a", "b", "c"), view.lookup("backend", "lvm"))
        self.assertEqual(("b", "c"), view.lookup("backend_zone", "lvm", "1"))
        self.assertEqual(("d",), view.lookup("backend_zone", "ceph", "1"))
        self.assertEqual((), view.lookup("backend_zone", "ceph", "2"))
        self.assertRaises(ValueError, view.lookup, "backend_zone", "lvm")
        error = self.assertRaises(KeyError, view.lookup, "colour", "red")
        self.assertIn("backend, backend_zone", str(error))

    def test_lookup_follows_records_that_move_and_go(self):
        for key in "abc":
            self.store.apply(store_samples.change(key, 1, {"backend": "lvm"}))
        held = self.pools()
        self.store.apply(store_samples.change("a", 2, {"backend": "ceph"}))
        self.store.apply(store_samples.change("b", 2))

        self.assertEqual(("c",), self.pools().lookup("backend", "lvm"))
        self.assertEqual(("a",), self.pools().lookup("backend", "ceph"))
        self.assertEqual(("a", "b", "c"), held.lookup("backend", "lvm"))

    def test_unknown_columns_are_named_with_the_declared_ones(self):
        error = self.assertRaises(KeyError, self.pools().column, "colour")
        self.assertIn("free_gb, ratio", str(error))
        self.assertRaises(KeyError, self.pools().vocabulary, "ratio")


class TestChangedSince(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = store_samples.store()
        for number in range(600):
            self.store.apply(store_samples.change(f"k{number}", 1, {}))
        self.older = self.store.snapshot().namespace("pools")

    def changed(self):
        return self.store.snapshot().namespace("pools").changed_since(self.older)

    def test_nothing_changed(self):
        self.assertEqual(set(), self.changed())
        self.store.apply(store_samples.change("s", 1, {}, namespace="shelves"))
        self.assertEqual(set(), self.changed())

    def test_what_changed_came_and_went_is_told_both_ways(self):
        self.store.apply(store_samples.change("k1", 2, {}))
        self.store.apply(store_samples.change("k300", 2))
        self.store.apply(store_samples.change("new", 1, {}))
        newer = self.store.snapshot().namespace("pools")

        self.assertEqual({"k1", "k300", "new"}, newer.changed_since(self.older))
        self.assertEqual({"k1", "k300", "new"}, self.older.changed_since(newer))

    def test_a_record_in_another_row_with_its_old_revision_did_not_change(self):
        self.store.retain("pools", {f"k{number}" for number in range(2, 600)}, 9)
        self.store.apply(store_samples.change("k1", 1, {}))  # into the row of k0
        self.store.apply(store_samples.change("k0", 1, {}))

        self.assertEqual(set(), self.changed())

    def test_a_record_that_took_over_a_row_with_an_equal_revision_is_told(self):
        self.store.apply(store_samples.change("k1", 2))
        self.store.apply(store_samples.change("new", 1, {}))  # into the row of k1

        self.assertEqual({"k1", "new"}, self.changed())

    def test_across_an_epoch_everything_changed(self):
        self.store.begin_epoch()
        self.store.apply(store_samples.change("k1", 1, {}))
        self.store.apply(store_samples.change("new", 1, {}))

        self.assertEqual({*self.older.keys(), "new"}, self.changed())

    def test_views_of_two_namespaces_do_not_compare(self):
        shelves = self.store.snapshot().namespace("shelves")
        self.assertRaises(ValueError, self.older.changed_since, shelves)

    def test_the_values_of_an_index_are_told_without_decoding(self):
        self.store.apply(store_samples.change("a", 1, {"backend": "lvm", "zone": 3}))
        self.store.apply(store_samples.change("b", 2, {"backend": "lvm"}))
        view = self.store.snapshot().namespace("pools")

        self.assertEqual(("lvm", "3"), view.indexed("a", "backend_zone"))
        self.assertIsNone(view.indexed("b", "backend_zone"))
        self.assertIsNone(view.indexed("c", "backend_zone"))
        self.assertRaises(KeyError, view.indexed, "a", "nonsense")
