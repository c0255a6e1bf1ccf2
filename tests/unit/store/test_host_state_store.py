# SPDX-License-Identifier: Apache-2.0
"""What a store takes over, what it refuses, and what it forgets."""

import itertools
import threading

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec
from tests.unit.store import store_samples


def contents(store, namespace="pools"):
    view = store.snapshot().namespace(namespace)
    return {key: (view.get(key).revision, dict(view.get(key).state)) for key in view.row_keys()}


class TestOrderOfChanges(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = store_samples.store()

    def test_a_newer_revision_replaces_and_the_same_or_an_older_does_not(self):
        self.assertTrue(self.store.apply(store_samples.change("a", 5, {"ratio": 1.0})))
        self.assertFalse(self.store.apply(store_samples.change("a", 5, {"ratio": 2.0}, version=99)))
        self.assertFalse(self.store.apply(store_samples.change("a", 4, {"ratio": 3.0}, version=99)))
        self.assertTrue(self.store.apply(store_samples.change("a", 6, {"ratio": 4.0}, version=1)))

        self.assertEqual({"a": (6, {"ratio": 4.0})}, contents(self.store))

    def test_records_of_one_key_in_two_namespaces_are_two_records(self):
        self.store.apply(store_samples.change("a", 9, {"x": 1}))
        self.store.apply(store_samples.change("a", 1, {"y": 2}, namespace="shelves"))

        self.assertEqual({"a": (9, {"x": 1})}, contents(self.store))
        self.assertEqual({"a": (1, {"y": 2})}, contents(self.store, "shelves"))

    def test_a_late_older_change_does_not_bring_a_removed_record_back(self):
        self.store.apply(store_samples.change("a", 5, {}))
        self.assertTrue(self.store.apply(store_samples.change("a", 6)))
        self.assertFalse(self.store.apply(store_samples.change("a", 6)))
        self.assertFalse(self.store.apply(store_samples.change("a", 5, {})))
        self.assertEqual({}, contents(self.store))

        self.assertTrue(self.store.apply(store_samples.change("a", 7, {})))
        self.assertEqual({"a": (7, {})}, contents(self.store))
        self.assertEqual(0, self.store.tombstone_count)

    def test_a_tombstone_of_an_unknown_record_is_remembered_too(self):
        before = self.store.snapshot()

        self.assertTrue(self.store.apply(store_samples.change("a", 6)))

        self.assertFalse(self.store.apply(store_samples.change("a", 5, {})))
        self.assertIs(before, self.store.snapshot())

    def test_tombstones_below_a_version_are_forgotten_and_those_above_are_not(self):
        self.store.apply(store_samples.change("a", 6, version=10))
        self.store.apply(store_samples.change("b", 6, version=20))

        self.assertEqual(1, self.store.forget_tombstones(20))

        self.assertEqual(1, self.store.tombstone_count)
        self.assertTrue(self.store.apply(store_samples.change("a", 1, {})))
        self.assertFalse(self.store.apply(store_samples.change("b", 1, {})))

    def test_a_new_epoch_begins_empty_and_with_any_revision(self):
        self.store.apply(store_samples.change("a", 50, {"ratio": 1.0}))
        self.store.apply(store_samples.change("b", 50))
        held = self.store.snapshot()

        self.store.begin_epoch()

        self.assertEqual({}, contents(self.store))
        self.assertTrue(self.store.apply(store_samples.change("a", 1, {"ratio": 2.0})))
        self.assertTrue(self.store.apply(store_samples.change("b", 1, {})))
        self.assertEqual({"ratio": 1.0}, held.namespace("pools").get("a").state)

    def test_retain_drops_what_a_snapshot_of_the_back_end_no_longer_held(self):
        for key, version in (("kept", 1), ("gone", 2), ("written since", 9)):
            self.store.apply(store_samples.change(key, 3, {}, version=version))

        self.assertEqual(1, self.store.retain("pools", ["kept"], version=8))

        self.assertEqual({"kept", "written since"}, contents(self.store).keys())

    def test_what_retain_dropped_may_come_back_as_it_was(self):
        self.store.apply(store_samples.change("a", 3, {}))
        self.store.retain("pools", [], version=8)

        self.assertTrue(self.store.apply(store_samples.change("a", 3, {})))


class TestRefusals(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = store_samples.store()
        self.store.apply(store_samples.change("a", 1, {"backend": "ceph", "tags": ["ssd"]}))
        self.before = self.store.snapshot()

    def assertRefused(self, change, field):
        error = self.assertRaises(errors.InvalidRecord, self.store.apply, change)
        self.assertEqual((str(change.record.key), field), (error.record, error.field))
        self.assertIs(self.before, self.store.snapshot())

    def test_a_value_that_its_column_cannot_hold_changes_nothing(self):
        for state, field in (
            ({"pool": {"free_gb": "many"}}, "pool.free_gb"),
            ({"pool": {"free_gb": 1.5}}, "pool.free_gb"),
            ({"pool": {"free_gb": float("nan")}}, "pool.free_gb"),
            ({"pool": {"free_gb": [1]}}, "pool.free_gb"),
            ({"pool": {"free_gb": 2**63}}, "pool.free_gb"),
            ({"pool": {"free_gb": 10**5000}}, "pool.free_gb"),
            ({"pool": {"free_gb": "9" * 5000}}, "pool.free_gb"),
            ({"ratio": "half"}, "ratio"),
            ({"ratio": {}}, "ratio"),
            ({"ratio": 10**400}, "ratio"),
            ({"thin": "False"}, "thin"),
            ({"thin": 2}, "thin"),
            ({"backend": ["lvm"]}, "backend"),
            ({"tags": "ssd"}, "tags"),
            ({"tags": {"ssd": 1}}, "tags"),
            ({"tags": ["new", 1]}, "tags"),
            ({"backend": "new", "zone": {}}, "zone"),
        ):
            record = store_samples.change("a", 2, {}).record
            self.assertRefused(records.Change(record, state), field)
            self.assertRefused(
                records.Change(store_samples.change("b", 2, {}).record, state),
                field,
            )
        # No text of a refused record is left behind in a vocabulary.
        self.store.apply(store_samples.change("b", 1, {}))
        after = self.store.snapshot().namespace("pools")
        self.assertEqual(("ceph", ""), after.vocabulary("backend").texts())
        self.assertEqual(("ssd",), after.vocabulary("tags").texts())

    def test_a_refused_recreation_leaves_its_tombstone(self):
        self.store.apply(store_samples.change("gone", 5))
        bad = records.Change(store_samples.change("gone", 6, {}).record, {"thin": "x"})

        self.assertRefused(bad, "thin")

        self.assertFalse(self.store.apply(store_samples.change("gone", 4, {})))

    def test_records_without_a_state_or_a_sound_revision_are_refused(self):
        sound = store_samples.change("a", 2, {}).record
        self.assertRefused(records.Change(sound, None), "(state)")
        self.assertRefused(records.Change(sound, ["x"]), "(state)")
        for revision in (0, -1, 2**63, "x"):
            record = records.Record(sound.key, revision, 2, b"")
            self.assertRefused(records.Change(record, {}), "(revision)")
        self.assertRefused(
            records.Change(records.Record(sound.key, 2, 2**63, b""), {}), "(version)"
        )

    def test_an_undeclared_namespace_is_named_with_the_declared_ones(self):
        unknown = store_samples.change("a", 1, {}, namespace="clouds")
        for call in (
            lambda: self.store.apply(unknown),
            lambda: self.store.retain("clouds", [], 1),
            lambda: self.store.snapshot().namespace("clouds"),
        ):
            error = self.assertRaises(errors.UnknownNamespace, call)
            self.assertEqual(("clouds", "pools, shelves"), (error.namespace, error.known))

    def test_of_a_page_the_refused_are_told_and_the_rest_applied(self):
        bad = records.Change(store_samples.change("b", 1, {}).record, {"thin": "x"})
        unknown = store_samples.change("d", 1, {}, namespace="clouds")
        changes = [bad, store_samples.change("a", 1, {}), unknown, store_samples.change("c", 1, {})]

        invalid, first, undeclared, second = self.store.apply_page(changes)

        # The first was there before.
        self.assertEqual([False, True], [first, second])
        self.assertEqual({"a", "c"}, contents(self.store).keys())
        self.assertIsInstance(invalid, errors.InvalidRecord)
        self.assertEqual("thin", invalid.field)
        self.assertIsInstance(undeclared, errors.UnknownNamespace)

    def test_declarations_that_cannot_work_are_refused(self):
        column = namespaces.Column("n", store_samples.Kind.INT, ("n",))
        index = namespaces.Index("i", (("n",),))
        no_path = namespaces.Column("n", store_samples.Kind.INT, ())
        no_paths = namespaces.Index("i", ())
        bad_default = namespaces.Column("n", store_samples.Kind.INT, ("n",), "many")
        for declared in (
            (store_samples.POOLS, store_samples.POOLS),
            (namespaces.Namespace("x", "o", store_samples.V1, (column, column)),),
            (namespaces.Namespace("x", "o", store_samples.V1, (), (index, index)),),
            (namespaces.Namespace("x", "o", store_samples.V1, (bad_default,)),),
            (namespaces.Namespace("x", "o", store_samples.V1, (no_path,)),),
            (namespaces.Namespace("x", "o", store_samples.V1, (), (no_paths,)),),
        ):
            self.assertRaises(errors.ConfigurationError, store_samples.store, *declared)


class TestDecoding(testtools.TestCase):
    def test_states_are_those_of_all_records_and_of_none_that_is_absent(self):
        store = store_samples.store()
        for key in "ab":
            store.apply(store_samples.change(key, 1, {"backend": key}))
        view = store.snapshot().namespace("pools")

        self.assertEqual({"a": {"backend": "a"}, "b": {"backend": "b"}}, dict(view.states()))
        self.assertEqual({"backend": "b"}, view.state("b"))
        self.assertIsNone(view.state("c"))

    def test_states_are_decoded_when_asked_for_and_the_recent_ones_kept(self):
        decoded = []

        def decode(payload):
            decoded.append(payload)
            return codec.decode_state(payload)

        store = host_state_store.HostStateStore([store_samples.POOLS], decode, decoded_states=2)
        for key in "abc":
            store.apply(store_samples.change(key, 1, {"backend": key}))
        self.assertEqual([], decoded)

        for key in "aabba":
            self.assertEqual(key, store.snapshot().namespace("pools").get(key).state["backend"])
        self.assertEqual(2, len(decoded))

        for key in "ca":
            store.snapshot().namespace("pools").get(key).state  # noqa: B018
        self.assertEqual(3, len(decoded))
        for key in "b":
            store.snapshot().namespace("pools").get(key).state  # noqa: B018
        self.assertEqual(4, len(decoded))


class TestThreads(testtools.TestCase):
    def test_snapshots_taken_while_a_writer_works_are_each_of_one_moment(self):
        """Each record of a pair is written in order, so no snapshot may see b ahead of a."""
        store = store_samples.store()
        keys = [f"k{number}" for number in range(600)]
        torn, taken, done = [], [], threading.Event()

        def read():
            while not done.is_set():
                view = store.snapshot().namespace("pools")
                free = dict(zip(view.row_keys(), view.column("free_gb").tolist(), strict=True))
                ordered = [free.get(key, 0) for key in keys]
                # Keys are written front to back: rounds only fall along the list.
                torn.extend(x for x, y in itertools.pairwise(ordered) if x < y)
                torn.extend([ordered] if ordered[0] - ordered[-1] > 1 else [])
                taken.append(view.version)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for lap in range(1, 2001):
            store.apply_page(
                store_samples.change(key, lap, {"pool": {"free_gb": lap}}) for key in keys
            )
            if lap >= 20 and len(set(taken)) > 3:
                break
        done.set()
        for reader in readers:
            reader.join(30)

        self.assertEqual([], torn)
        self.assertGreater(len(set(taken)), 3)
