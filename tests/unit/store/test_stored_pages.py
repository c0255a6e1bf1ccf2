# SPDX-License-Identifier: Apache-2.0
"""Whatever a store came to hold, another one takes it over and shows the same."""

import itertools
import math
import os
import uuid

import attrs
import fixtures
import numpy as np
import testtools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import (
    declarations,
    host_state_store,
    key_rows,
    stored_pages,
    vocabulary,
)
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_format
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec, payload_packing
from tests import counted_calls
from tests.unit.scheduling import hosts

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "60"))
KEYS = [f"k{number}" for number in range(6)]
#: A server's, in two cells, and what looks like it.
KEYS += [
    f"{uuid.UUID(int=number)}{suffix}"
    for number in (1, 2**100)
    for suffix in ("@cell", "@another", "")
]
KEYS += [f"{uuid.UUID(int=255)}@cell".upper(), f"{uuid.UUID(int=3).hex}@cell"]
#: Calls to restore a record: nothing is done row by row but payloads and facts are made. A server
#: took 58 when its key was a text in between, and 25 when each key was entered by itself; a
#: compute node 46, a service 29 and a provider 16 when each key and each code was.
CALLS_A_RECORD = {
    known_namespaces.INSTANCES: 5,
    known_namespaces.COMPUTE_NODES: 5,
    known_namespaces.SERVICES: 7,
    known_namespaces.PROVIDERS: 10,
}
#: Longer than a payload that stays as it is.
TEXT = "x" * 400


def _migration(key, host):
    row = {"instance_uuid": f"i-{host}", "source_compute": host, "dest_compute": None}
    return {"cell": hosts.CELL, "row": {"status": "running", **row, "text": TEXT}}


#: By namespace: states of a key, sound and odd.
STATES = {
    known_namespaces.COMPUTE_NODES: [
        lambda key, n: hosts.node(key, f"h{n}", free_ram_mb=n),
        lambda key, n: hosts.node(key, None, cell=hosts.OTHER_CELL, vcpus=n),
        lambda key, n: hosts.node(key, f"h{n}", free_disk_gb=None),
        lambda key, n: hosts.node("another", f"h{n}"),
        lambda key, n: {"row": {}},
    ],
    known_namespaces.SERVICES: [
        lambda key, n: hosts.service(key, f"h{n}", disabled=bool(n % 2)),
        lambda key, n: hosts.service(key, f"h{n}", created_at="nonsense", forced_down=None),
    ],
    known_namespaces.SERVICE_LIVENESS: [
        lambda key, n: {**hosts.liveness(n), "unreported": n},
        lambda key, n: hosts.liveness(None),
        lambda key, n: {"last_seen_up": 5},
    ],
    known_namespaces.INSTANCES: [
        lambda key, n: {"cell": hosts.CELL, "row": {"host": f"h{n}", "vcpus": n, "text": TEXT}},
        lambda key, n: {"cell": None, "row": {"node": f"n{n}", "host": None}},
    ],
    known_namespaces.MIGRATIONS: [
        lambda key, n: _migration(key, f"h{n}"),
        lambda key, n: {"row": {}},
    ],
    known_namespaces.AGGREGATES: [
        lambda key, n: hosts.aggregate(key, n, [f"h{n}", f"h{n + 1}"]),
        lambda key, n: hosts.aggregate(key, n, metadata="m"),
    ],
    known_namespaces.PROVIDERS: [
        lambda key, n: hosts.provider(generation=n, text=TEXT),
        lambda key, n: hosts.provider(allocations={"c": {"VCPU": n + 0.5}}, whole_at=math.pi),
        lambda key, n: {"broken": f"reason {n}"},
        lambda key, n: {},
    ],
    known_namespaces.CLAIM_RECORDS: [
        lambda key, n: {"claims": {}},
        lambda key, n: {"claims": "none"},
    ],
    known_namespaces.HOST_MAPPINGS: [lambda key, n: {"cell": f"c{n}", "row": {"host": key}}],
    known_namespaces.LEASES: [lambda key, n: {"owner": f"o{n}"}],
}

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(sorted(STATES, key=lambda each: each.name)),
        st.sampled_from(KEYS),
        st.integers(0, 5),
        st.integers(0, 3) | st.none(),
    ),
    max_size=60,
)


def make_store():
    return host_state_store.HostStateStore(
        declarations.followed(known_namespaces.BUILT_IN),
        codec.decode_state,
        packing=payload_packing.DictionaryPacking,
    )


def make_ingester(store):
    return ingest.Ingester(store, known_namespaces.BUILT_IN, ingest.Quarantine(100))


def carry(store):
    """Return another store that took over what one holds."""
    other = make_store()
    ingester = make_ingester(other)
    snapshot = store.snapshot()
    for name in snapshot.namespaces():
        for page in snapshot.namespace(name).pages():
            if isinstance(page, list):
                list(ingester.take(page))
            else:
                other.restore(name, page)
    return other


class SameStores(testtools.TestCase):
    """Compares all that two stores show."""

    def check_same(self, store, other):
        for namespace in declarations.followed(known_namespaces.BUILT_IN):
            mine = store.snapshot().namespace(namespace.name)
            its = other.snapshot().namespace(namespace.name)
            self.assertEqual(set(mine.keys()), set(its.keys()))
            for key in mine.row_keys():
                one, two = mine.get(key), its.get(key)
                self.assertEqual(one, two)
                self.assertEqual(one.payload, two.payload)
                self.assertEqual(one.state, two.state)
                self.assertEqual(str(mine.digest(key)), str(its.digest(key))) if (
                    namespace.digest
                ) else None
                for index in namespace.indexes:
                    if not index.few_values:
                        self.assertEqual(
                            mine.indexed(key, index.name), its.indexed(key, index.name)
                        )
            for column in namespace.columns:
                self.assertEqual(self.values(mine, column), self.values(its, column))
            for index in namespace.indexes:
                for texts in itertools.product(
                    *([hosts.CELL, "", *(f"h{n}" for n in range(6))] for _ in index.paths)
                ):
                    self.assertEqual(
                        mine.lookup(index.name, *texts), its.lookup(index.name, *texts)
                    )

    @staticmethod
    def values(view, column):
        found = view.column(column.name)
        if column.kind is namespaces.Kind.CATEGORY:
            told = [view.vocabulary(column.name).text(code) for code in found.tolist()]
        elif column.kind is namespaces.Kind.BITS:
            words = view.vocabulary(column.name)
            told = [
                frozenset(
                    words.text(code)
                    for code in range(len(words))
                    if row[code // 64] >> np.uint64(code % 64) & np.uint64(1)
                )
                for row in found
            ]
        else:
            told = list(map(repr, found.tolist()))
        return dict(zip(view.row_keys(), told, strict=True))


class CarriedTest(SameStores):
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(CHANGES, CHANGES)
    def test_any_history_is_carried_and_goes_on_alike(self, before, after):
        store = make_store()
        version = self.play(store, before, 0)
        other = carry(store)
        self.check_same(store, other)
        # What comes then finds the same.
        self.play(store, after, version)
        self.play(other, after, version)
        self.check_same(store, other)
        self.check_same(store, carry(other))

    @staticmethod
    def play(store, changes, version):
        ingester = make_ingester(store)
        batch = []
        for namespace, key, number, kind in changes:
            version += 1
            payload = b""
            if kind is not None:
                states = STATES[namespace]
                payload = codec.encode(states[kind % len(states)](key, number), namespace.schema)
            name = records.RecordKey(namespace.name, key)
            batch.append(records.Record(name, version, version, payload, deleted=kind is None))
            if version % 7 == 0:
                list(ingester.take(batch))
                batch = []
        list(ingester.take(batch))
        return version

    def test_many_records_fill_pages_and_share_their_bundles(self):
        store = make_store()
        changes = [(known_namespaces.INSTANCES, f"s{n}", n % 6, 0) for n in range(5000)]
        self.play(store, changes, 0)
        pages = list(store.snapshot().namespace("instances").pages())
        self.assertEqual(3, len(pages))
        self.assertEqual(5000, sum(map(len, pages)))
        other = carry(store)
        self.check_same(store, other)
        self.assertEqual([], [page for page in pages if isinstance(page, list)])


class RefusedTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = make_store()
        changes = [(known_namespaces.INSTANCES, f"s{n}", n % 6, 0) for n in range(100)]
        CarriedTest.play(self.store, changes, 0)
        [self.page] = self.store.snapshot().namespace("instances").pages()

    def test_a_page_whose_keys_are_here_or_were_removed_changes_nothing(self):
        before = self.store.snapshot()
        self.assertRaises(ValueError, self.store.restore, "instances", self.page)
        self.assertIs(before, self.store.snapshot())
        other = make_store()
        gone = records.Record(records.RecordKey("instances", "s5"), 900, 900, b"", deleted=True)
        other.apply(records.Change(gone, None))
        self.assertRaises(ValueError, other.restore, "instances", self.page)
        self.assertEqual(0, len(other.snapshot().namespace("instances")))

    def test_a_page_of_a_namespace_that_nobody_declared_is_refused(self):
        self.assertRaises(errors.UnknownNamespace, self.store.restore, "nobody", self.page)
        self.assertTrue(issubclass(errors.UnknownNamespace, stored_pages.UNFIT))

    def test_payloads_of_another_dictionary_are_refused(self):
        other = make_store()
        lone = records.RecordKey("instances", "lone")
        state = {"cell": hosts.CELL, "row": {"text": "another " * 100}}
        record = records.Record(
            lone, 1, 1, codec.encode(state, codec.namespaces.SchemaVersion(1, 0))
        )
        list(make_ingester(other).take([record]))
        self.assertRaises(ValueError, other.restore, "instances", self.page)

    def test_a_subscriber_is_told_of_what_was_restored(self):
        other = make_store()
        told = other.subscribe(["instances"])
        told.drain()
        other.restore("instances", self.page)
        self.assertEqual({f"s{n}" for n in range(100)}, set(told.drain()["instances"]))

    def test_snapshots_taken_before_do_not_see_what_was_restored(self):
        other = make_store()
        before = other.snapshot()
        other.restore("instances", self.page)
        self.assertEqual(0, len(before.namespace("instances")))
        self.assertEqual(100, len(other.snapshot().namespace("instances")))

    def test_the_newest_records_are_those_of_the_highest_versions(self):
        view = self.store.snapshot().namespace("instances")
        newest = view.newest(3)
        self.assertEqual([100, 99, 98], [each.version for each in newest])
        self.assertEqual(100, len(view.newest(1000)))


class PackedMeanwhileTest(testtools.TestCase):
    def test_payloads_that_are_packed_while_a_page_is_made_stay_their_records_own(self):
        store = make_store()
        namespace = known_namespaces.INSTANCES
        for number in range(300):
            state = {"cell": hosts.CELL, "row": {"host": f"h{number}", "text": f"{number:04}" * 40}}
            payload = codec.encode(state, namespace.schema)
            name = records.RecordKey(namespace.name, f"s{number}")
            # Without its text, as from a program's own decoder: packed when there is time.
            store.apply(records.Change(records.Record(name, 1, 1, payload), state))
        view = store.snapshot().namespace(namespace.name)
        expected = dict(view.states())
        own, packing = view._packing.dump, view._packing
        dumped = []

        def dump(held):
            # The thread of the feed has time now, and makes objects of the sizes of those it frees.
            dumped.append(own(held))
            payloads, at = view._chunks[0].payloads, len(dumped)
            if 2 <= at < 250:
                payloads[at - 2] = b""
                payloads[at + 1] = bytes(bytearray(payloads[at + 1]))
            return dumped[-1]

        packing.dump = dump
        [page] = view.pages()
        del packing.dump
        self.assertEqual(300, len(dumped))
        other = make_store()
        other.restore(namespace.name, page)
        after = other.snapshot().namespace(namespace.name)
        self.assertEqual(expected, dict(after.states()))


def servers(count, cells=("cell", "another")):
    """Return a store of servers with the keys that reporters give them."""
    store = make_store()
    changes = [
        (
            known_namespaces.INSTANCES,
            f"{uuid.UUID(int=n << 64 | 7)}@{cells[n % len(cells)]}",
            n % 200,
            0,
        )
        for n in range(count)
    ]
    CarriedTest.play(store, changes, 0)
    return store


class ServersTest(testtools.TestCase):
    def test_a_file_holds_seventeen_bytes_of_a_key(self):
        store = servers(2000)
        [page] = store.snapshot().namespace("instances").pages()
        self.assertIsInstance(page.keys, key_rows.UuidKeys)
        self.assertEqual(17 * 2000, page.keys.uuids.nbytes + page.keys.codes.nbytes)
        kind, body = checkpoint_format.PageWriter().frame("instances", page)
        _name, read = checkpoint_format.PageReader().page(kind, body)
        self.assertEqual(list(page.keys), list(read.keys))
        CarriedTest("check_same").check_same(store, carry(store))

    def test_cells_without_a_code_here_keep_their_texts(self):
        store = servers(300, cells=[f"c{number}" for number in range(5)])
        [page] = store.snapshot().namespace("instances").pages()
        self.useFixture(
            fixtures.MonkeyPatch("nova_nodb_scheduler.store.key_rows._MOST_SUFFIXES", 3)
        )
        other = make_store()
        self.assertRaises(ValueError, other.restore, "instances", page)
        other.restore("instances", attrs.evolve(page, keys=list(page.keys)))
        CarriedTest("check_same").check_same(store, other)
        # And one that has no codes left for what comes.
        third = make_store()
        full = [(known_namespaces.INSTANCES, f"{uuid.UUID(int=n)}@x{n}", n, 0) for n in range(3)]
        version = CarriedTest.play(third, full, 0)
        self.useFixture(
            fixtures.MonkeyPatch("nova_nodb_scheduler.store.key_rows._MOST_SUFFIXES", 9)
        )
        packing = third._tables["instances"]._contents.rows.key_packing
        packing._codes.update({f"@y{n}": 99 for n in range(9)})
        third.restore("instances", page)
        view = third.snapshot().namespace("instances")
        self.assertEqual(version + 300, len(set(view.keys())))
        self.assertEqual(set(page.keys), set(filter(lambda key: "@c" in key, view.keys())))

    def test_keys_that_cannot_be_believed_change_nothing(self):
        store = servers(100)
        [page] = store.snapshot().namespace("instances").pages()
        keys = page.keys
        twice = keys.uuids.copy()
        twice[2] = twice[0]
        here = make_store()
        here.restore("instances", page)
        before = here.snapshot()
        for changed in (
            attrs.evolve(keys, uuids=twice),
            attrs.evolve(keys, uuids=keys.uuids[:, :15]),
            attrs.evolve(keys, uuids=keys.uuids.astype(np.int64)),
            attrs.evolve(keys, codes=keys.codes[1:]),
            attrs.evolve(keys, codes=keys.codes.astype(np.int32)),
            attrs.evolve(keys, codes=keys.codes + np.uint8(1)),
            attrs.evolve(keys, suffixes=["@cell", "@cell"]),
            attrs.evolve(keys, suffixes=["@cell", 5]),
            attrs.evolve(keys, suffixes=["@cell", "@a\x00b"]),
            attrs.evolve(keys, suffixes=["@cell", "@" * 255]),
            attrs.evolve(keys, suffixes=[f"@{number}" for number in range(300)]),
            attrs.evolve(keys, uuids=keys.uuids[1:], codes=keys.codes[1:]),
            keys,
        ):
            evolved = attrs.evolve(page, keys=changed)
            other = here if changed is keys else make_store()
            self.assertRaises(stored_pages.UNFIT, other.restore, "instances", evolved)
            expected = 100 if changed is keys else 0
            self.assertEqual(expected, len(other.snapshot().namespace("instances")))
        self.assertIs(before, here.snapshot())

    def test_a_server_that_came_with_two_pages_is_refused_in_the_end(self):
        [page] = servers(100).snapshot().namespace("instances").pages()
        other = make_store()
        other.restore("instances", page)
        other.check_restored()
        other = make_store()
        for _ in range(2):
            other.restore("instances", page)
        self.assertRaises(stored_pages.UNFIT, other.check_restored)

    def test_a_text_stands_in_the_first_page_that_has_it_and_is_looked_up_once(self):
        store = servers(6000)
        writer, reader = checkpoint_format.PageWriter(), checkpoint_format.PageReader()
        frames = [
            writer.frame("instances", page)
            for page in store.snapshot().namespace("instances").pages()
        ]
        self.assertEqual(3, len(frames))
        bodies = b"".join(body for _kind, body in frames)
        for number in range(1, 200):  # the first one stands in what payloads are packed by
            self.assertEqual(1, bodies.count(f'"h{number}"'.encode()))
        asked = []
        codes = vocabulary.Vocabulary.codes
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_nodb_scheduler.store.vocabulary.Vocabulary.codes",
                lambda own, texts: asked.extend(texts) or codes(own, texts),
            )
        )
        other = make_store()
        for kind, body in frames:
            other.restore(*reader.page(kind, body))
        self.assertEqual(1, asked.count("h7"))
        CarriedTest("check_same").check_same(store, other)

    def test_a_page_whose_texts_stand_in_none_before_it_is_damage(self):
        writer = checkpoint_format.PageWriter()
        frames = [
            writer.frame("instances", page)
            for page in servers(6000).snapshot().namespace("instances").pages()
        ]
        reader = checkpoint_format.PageReader()
        self.assertRaises(checkpoint_format.Damaged, reader.page, *frames[1])

    def test_a_namespace_that_keeps_texts_takes_texts(self):
        [page] = servers(100).snapshot().namespace("instances").pages()
        plain = attrs.evolve(known_namespaces.INSTANCES, uuid_keys=False)
        other = host_state_store.HostStateStore(
            [plain], codec.decode_state, packing=payload_packing.DictionaryPacking
        )
        other.restore("instances", page)
        self.assertEqual(set(page.keys), set(other.snapshot().namespace("instances").keys()))

    def test_a_record_is_restored_by_few_calls(self):
        count = 4096
        for namespace, bound in CALLS_A_RECORD.items():
            store = make_store()
            suffix = "@cell" if namespace.uuid_keys else ""
            changes = [
                (namespace, f"{uuid.UUID(int=n << 64 | 7)}{suffix}", n, 0) for n in range(count)
            ]
            CarriedTest.play(store, changes, 0)
            pages = list(store.snapshot().namespace(namespace.name).pages())
            other = make_store()
            calls = counted_calls.count(self.restore, other, namespace.name, pages)
            self.assertEqual(count, len(other.snapshot().namespace(namespace.name)))
            self.assertLess(calls / count, bound, namespace.name)

    @staticmethod
    def restore(store, name, pages):
        for page in pages:
            store.restore(name, page)
        store.check_restored()
        store.snapshot()
