# SPDX-License-Identifier: Apache-2.0
"""Changes applied a page at a time leave what the same changes leave one by one."""

import itertools

import attrs
import fixtures
import testtools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.model import record_columns, records
from nova_nodb_scheduler.store import host_state_store, namespace_table, record_chunks
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec, payload_packing
from tests.unit.store import store_samples, test_store_against_model, test_stored_pages

KEYS = [f"k{number}" for number in range(24)]

#: A digest that some states make fail.
SIZES = st.sampled_from([1, 2, None])

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["pools", "drives", "pools", "nobody"]),
        st.sampled_from(KEYS),
        st.integers(0, 3),
        test_store_against_model.STATES | st.none(),
        st.sampled_from([{}, {}, {}, {"thin": "x"}, {"tags": [1]}, {"zone": {}}, {"backend": {}}]),
        st.booleans(),
    ),
    max_size=60,
)


def change(version, namespace, key, step, state, bad, with_text):
    """A change whose revision may be old, and whose state may be refused."""
    made = store_samples.change(
        key,
        max(1, version // 3 + step),
        None if state is None else test_store_against_model.carried(state),
        version=version,
        namespace=namespace,
    )
    if state is None:
        return made
    text = codec.decode(made.record.payload).text if with_text else None
    return records.Change(made.record, {**state, **bad}, text)


def store():
    return host_state_store.HostStateStore(
        (store_samples.POOLS, store_samples.DRIVES),
        codec.decode_state,
        packing=payload_packing.DictionaryPacking,
    )


def described(made):
    """Return all that a snapshot shows, without the order of rows."""
    shown = {"tombstones": made.tombstone_count}
    for declared in (store_samples.POOLS, store_samples.DRIVES):
        view = made.snapshot().namespace(declared.name)
        keys = sorted(view.keys())
        shown[declared.name] = [
            (
                key,
                (record := view.get(key)).revision,
                record.version,
                record.payload,
                record.state,
                view.digest(key) if declared.digest else None,
                [view.indexed(key, index.name) for index in declared.indexes],
            )
            for key in keys
        ]
        shown[declared.name, "lookups"] = [
            view.lookup(index.name, *texts)
            for index in declared.indexes
            for texts in ((a, b)[: len(index.paths)] for a in TEXTS for b in TEXTS)
        ]
    shown["columns"] = test_store_against_model.actual_rows(made.snapshot().namespace("pools"))
    return shown


TEXTS = ("lvm", "ceph", "1", "none", "")


class PagesTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.useFixture(
            fixtures.MonkeyPatch("nova_nodb_scheduler.store.record_chunks.CHUNK_ROWS", 4)
        )
        self.useFixture(
            fixtures.MonkeyPatch("nova_nodb_scheduler.store.record_chunks.ENOUGH_TOGETHER", 3)
        )

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn=CHANGES, cuts=st.sets(st.integers(0, 60)), packed=st.booleans())
    def test_pages_leave_what_single_changes_leave(self, drawn, cuts, packed):
        changes = [change(version, *each) for version, each in enumerate(drawn, 1)]
        paged, single = store(), store()
        held = []
        outcomes = []
        edges = [0, *sorted(cut for cut in cuts if cut < len(changes)), len(changes)]
        for begin, end in itertools.pairwise(edges):
            outcomes += paged.apply_page(changes[begin:end])
            held.append((paged.snapshot().namespace("pools"), described(paged)["pools"]))
            if packed:
                while paged.pack(5):
                    pass
        expected = []
        for each in changes:
            try:
                expected.append(single.apply(each))
            except Exception as error:
                expected.append(error)

        self.assertEqual(list(map(repr, expected)), list(map(repr, outcomes)))
        self.assertEqual(described(single), described(paged))
        for view, then in held:
            now = [(key, view.get(key).revision, view.get(key).payload) for key, *_ in then]
            self.assertEqual(
                [(key, revision, payload) for key, revision, _, payload, *_ in then], now
            )

    def test_all_of_a_long_page_is_applied_and_told(self):
        changes = [store_samples.change(f"k{number}", 1, {}) for number in range(1000)]
        made = store()
        subscription = made.subscribe(["pools"])
        subscription.drain()

        self.assertEqual([True] * 1000, made.apply_page(changes))
        self.assertEqual(1000, len(subscription.drain()["pools"]))
        self.assertEqual(1000, len(made.snapshot().namespace("pools")))


class ColumnsTest(testtools.TestCase):
    """Columns leave what their changes leave one by one, whatever is odd among them."""

    def setUp(self):
        super().setUp()
        self.store, self.subscription = self.begun()

    def begun(self):
        made = store()
        made.apply_page(self.first())
        subscription = made.subscribe(["drives"])
        subscription.drain()
        return made, subscription

    @staticmethod
    def first():
        """A record that is here, and one that was."""
        return [
            store_samples.change("here", 1, {"zone": "a"}, namespace="drives"),
            store_samples.change("gone", 3, namespace="drives"),
        ]

    def columns(self, count=record_chunks.ENOUGH_TOGETHER, **changed):
        """New records in columns, with one place of some of them changed."""
        state = {"backend": "lvm", "zone": "b"}
        each = [
            store_samples.change(f"k{at}", at + 1, state, namespace="drives") for at in range(count)
        ]
        page = store_samples.in_columns([change.record for change in each])
        columns = {name: list(getattr(page, name)) for name in ("keys", "revisions", "versions")}
        columns["states"] = [dict(state) for _ in each]
        columns["texts"] = [codec.text_of(payload) for payload in page.payloads]
        for name, value in changed.items():
            columns[name][7] = value
        states, texts = columns.pop("states"), columns.pop("texts")
        page = attrs.evolve(page, **columns)
        return record_columns.ChangeColumns(page, states, texts)

    def test_new_records_are_taken_and_told_and_no_object_is_made_of_them(self):
        page = self.columns()
        self.assertEqual([True] * len(page), self.store.apply_page(self.Unread(page)))
        self.assertEqual(set(page.page.keys), set(self.subscription.drain()["drives"]))
        other = store()
        for change in (*self.first(), *page):
            other.apply(change)
        self.assertEqual(described(other), described(self.store))

    class Unread(record_columns.ChangeColumns):
        """Columns that are read as such alone."""

        def __init__(self, page):
            super().__init__(page.page, page.states, page.texts)

        def __iter__(self):
            raise AssertionError("each of them is looked at")

        __getitem__ = __iter__

    def test_what_is_odd_among_them_is_looked_at_one_by_one(self):
        for page in (
            self.columns(keys="here"),
            self.columns(keys="gone"),
            self.columns(keys="k6"),
            self.columns(revisions=0),
            self.columns(revisions=True),
            self.columns(versions=2**63),
            self.columns(states=None),
            self.columns(states={"zone": {}}),
            self.columns(texts=None),
            self.columns(record_chunks.ENOUGH_TOGETHER - 1),
            self.columns(host_state_store.CHANGES_PER_TURN + 1),
            self.columns()[:0],
        ):
            made, told = self.begun()
            single, expected = self.begun()
            outcomes = list(map(repr, made.apply_page(page)))
            self.assertEqual([repr(self.outcome(single, each)) for each in page], outcomes)
            self.assertEqual(
                *(
                    {name: set(keys) for name, keys in each.drain().items()}
                    for each in (expected, told)
                )
            )
            self.assertEqual(described(single), described(made))

    @staticmethod
    def outcome(made, change):
        try:
            return made.apply(change)
        except Exception as error:
            return error

    def test_what_is_here_already_is_tried_as_columns_once(self):
        page = self.columns()
        self.store.apply_page(page)
        tried = []
        table = namespace_table.NamespaceTable
        take_new = table._take_new
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_nodb_scheduler.store.namespace_table.NamespaceTable._take_new",
                lambda own, page: tried.append(page) or take_new(own, page),
            )
        )
        ingester = ingest.Ingester(
            self.store, (store_samples.POOLS, store_samples.DRIVES), ingest.Quarantine(10)
        )
        [taken] = ingester.take(page.page)
        self.assertEqual((len(page), 0, 1), (len(taken.readable), len(taken.applied), len(tried)))

    def test_a_namespace_that_nobody_declared_is_named(self):
        page = self.columns()
        page = attrs.evolve(page, page=attrs.evolve(page.page, namespace="nobody"))
        [fault] = set(map(repr, self.store.apply_page(page)))
        self.assertIn("nobody", fault)


#: Some records of one namespace each: numbers of keys, versions that may be old, states.
LOADS = st.lists(
    st.tuples(
        st.sampled_from(sorted(test_stored_pages.STATES, key=lambda each: each.name)),
        st.dictionaries(
            st.sampled_from(test_stored_pages.KEYS),
            st.tuples(st.integers(-4, 4), st.integers(0, 5), st.integers(0, 4) | st.none()),
            min_size=1,
        ),
    ),
    max_size=12,
)
#: What stands in the place of a payload.
FAULTS = st.sampled_from([b"", b"\x01{", b'\x01{"s":"2.0","d":{}}', b'\x01{"s":"1.0","d":1}'])


class FirstLoadTest(test_stored_pages.SameStores):
    """Records of the built-in namespaces, read by pages, by columns and one by one."""

    def setUp(self):
        super().setUp()
        for name, value in (("CHUNK_ROWS", 4), ("ENOUGH_TOGETHER", 2)):
            self.useFixture(
                fixtures.MonkeyPatch(f"nova_nodb_scheduler.store.record_chunks.{name}", value)
            )

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(loads=LOADS, faults=st.dictionaries(st.integers(0, 60), FAULTS, max_size=2))
    def test_pages_leave_what_single_records_leave(self, loads, faults):
        stores = [test_stored_pages.make_store() for _ in range(3)]
        paged, columns, single = stores
        by_page, by_column, by_one = map(test_stored_pages.make_ingester, stores)
        version = 0
        model = {}
        for namespace, drawn in loads:
            page = []
            for key, (step, number, kind) in drawn.items():
                version += 1
                payload = b""
                if kind is not None:
                    states = test_stored_pages.STATES[namespace]
                    state = states[kind % len(states)](key, number)
                    payload = faults.get(version, codec.encode(state, namespace.schema))
                name = records.RecordKey(namespace.name, key)
                placed = max(1, version + step)
                page.append(records.Record(name, placed, placed, payload, deleted=kind is None))
            each = [part for one in page for part in by_one.take([one])]
            in_columns = store_samples.in_columns(page)
            for ingester, taken in ((by_page, page), (by_column, in_columns)):
                self.assertEqual(self.told(each), self.told(ingester.take(taken)))
            self.check_same(single, paged)
            self.check_same(single, columns)
            self.note(model, each)
            self.check_model(model, columns)
        for other, ingester in ((paged, by_page), (columns, by_column)):
            self.assertEqual(single.tombstone_count, other.tombstone_count)
            self.assertEqual(set(by_one._quarantine.entries()), set(ingester._quarantine.entries()))

    @staticmethod
    def note(model, parts):
        """Enter what was applied into a plain dict, tombstones as None."""
        for change in (change for part in parts for change in part.applied):
            model[change.key] = None if change.record.deleted else change.record

    def check_model(self, model, store):
        snapshot = store.snapshot()
        live = {key: record for key, record in model.items() if record is not None}
        held = {
            records.RecordKey(name, key): snapshot.namespace(name).get(key)
            for name in snapshot.namespaces()
            for key in snapshot.namespace(name).row_keys()
        }
        self.assertEqual(live.keys(), held.keys())
        for key, record in live.items():
            shown = (held[key].revision, held[key].version, held[key].payload)
            self.assertEqual((record.revision, record.version, record.payload), shown)
            self.assertEqual(codec.decode_state(record.payload), held[key].state)

    @staticmethod
    def told(parts):
        """Return what was readable, and what was applied, by parts."""
        parts = list(parts)
        return [
            list(itertools.chain.from_iterable(part.readable for part in parts)),
            list(itertools.chain.from_iterable(part.applied for part in parts)),
        ]
