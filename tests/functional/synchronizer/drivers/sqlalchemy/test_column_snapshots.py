# SPDX-License-Identifier: Apache-2.0
"""Snapshots that are read as columns leave in a store what stands in the back end."""

from __future__ import annotations

import contextlib
import cProfile
import random
import threading
import unittest.mock
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, record_columns, records
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import reading
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import statements as statements_module
from nova_nodb_scheduler.synchronizer.replication import ingest, rebuild
from nova_nodb_scheduler.wire import codec, payload_packing
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases

V1 = namespaces.SchemaVersion(1, 0)
POOLS, DRIVES = (
    namespaces.Namespace(
        name=name,
        owner="test",
        schema=V1,
        columns=(namespaces.Column("free", namespaces.Kind.INT, ("free",)),),
        digest=lambda key, state: (key, 0 + state.get("free")),
    )
    for name in ("pools", "drives")
)
#: With blanks and letters of several bytes, as MariaDB's pages hold them in one text.
KEYS = ["a", " b", "b ", "c d", "\u00e9", "\u4e16 1", "e", "f", "g", "h", "i", "j"]
#: What cannot be decoded, is of another schema, has no digest, or does not fit its column.
FAULTY = [
    b"\x01{",
    b'\x01{"s":"2.0","d":{"free":1}}',
    codec.encode({"size": 1}, V1),
    codec.encode({"free": "much"}, V1),
]
NAMES = st.builds(
    records.RecordKey,
    st.sampled_from(["pools", "pools", "drives", "nobody"]),
    st.sampled_from(KEYS),
)
WRITES = st.tuples(
    st.just("write"), NAMES, st.integers(0, 20) | st.none() | st.sampled_from(FAULTY)
)
#: Pages are read between writes; a snapshot may be begun again, and an epoch.
STEPS = st.lists(
    WRITES
    | WRITES
    | st.tuples(st.sampled_from(["page", "page", "page", "again", "epoch"]), st.none(), st.none()),
    max_size=40,
)
FIRST = st.dictionaries(NAMES, st.integers(0, 20) | st.sampled_from(FAULTY), max_size=30)


class Replica:
    """A store, and what brings snapshots and the feed into it."""

    def __init__(self, synchronizer: driver.SQLAlchemySynchronizer) -> None:
        self.synchronizer = synchronizer
        declared = (POOLS, DRIVES)
        self.store = host_state_store.HostStateStore(
            declared, codec.decode_state, packing=payload_packing.DictionaryPacking
        )
        self.quarantine = ingest.Quarantine(100)
        self.ingester = ingest.Ingester(self.store, declared, self.quarantine)
        self.rebuild = rebuild.Rebuild(
            synchronizer, self.store, declared, self.ingester, self.quarantine
        )
        self.begin()

    def begin(self) -> None:
        self.rebuild.abandon()
        self.rebuild.begin()

    def read_page(self) -> records.Cursor | None:
        """Read one page; return the cursor behind the last."""
        try:
            found = self.rebuild.read_page()
        except contract.SnapshotInterrupted:
            self.begin()
            return None
        return found if isinstance(found, records.Cursor) else None

    def catch_up(self) -> None:
        while (cursor := self.read_page()) is None:
            pass
        changes = self.synchronizer.fetch(cursor)
        if isinstance(changes, records.ResyncNeeded):
            self.begin()
            return self.catch_up()
        for _ in self.ingester.take(changes.records):
            pass
        return None


class TestColumnsSQLite(sql_databases.SQLiteCase):
    migrated = True

    def setUp(self) -> None:
        super().setUp()
        for name, value in (
            ("nova_nodb_scheduler.store.record_chunks.ENOUGH_TOGETHER", 2),
            ("nova_nodb_scheduler.store.record_chunks.CHUNK_ROWS", 4),
            (f"{reading.__name__}.PAGE_RECORDS", 5),
        ):
            self.enterContext(unittest.mock.patch(name, value))
        self.synchronizer = driver.SQLAlchemySynchronizer(driver.SQLOptions(self.url))
        self.addCleanup(self.synchronizer.close)
        self.synchronizer.open()

    def write(self, key: records.RecordKey, value: Any) -> None:
        """Write a number, some bytes or, for None, a tombstone, whatever stands there."""
        payload = codec.encode({"free": value}, V1) if isinstance(value, int) else value or b""
        standing = self.synchronizer.read([key]).get(key)
        live = standing is not None and not standing.deleted
        if live or value is not None:
            expected = standing.revision if standing is not None and live else 0
            [told] = self.synchronizer.write([records.Write(key, expected, payload, value is None)])
            self.assertTrue(told.won)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(first=FIRST, steps=STEPS)
    def test_what_stands_in_the_back_end_stands_in_the_store(
        self, first: dict[records.RecordKey, Any], steps: list[tuple[str, Any, Any]]
    ) -> None:
        self.synchronizer.reset()
        for key, value in first.items():
            self.write(key, value)
        replica = Replica(self.synchronizer)
        for step, key, value in steps:
            if step == "write":
                self.write(key, value)
            elif step == "epoch":
                self.synchronizer.reset()
            elif step == "again" or not replica.rebuild.in_progress:
                replica.begin()
            else:
                replica.read_page()
        if not replica.rebuild.in_progress:
            replica.begin()
        replica.catch_up()
        self.check(replica)

    def check(self, replica: Replica) -> None:
        there = [
            records.RecordKey(name, key) for name in ("pools", "drives", "nobody") for key in KEYS
        ]
        found = self.synchronizer.read(there)
        live = {key: record for key, record in found.items() if not record.deleted}
        aside = {
            key
            for key, record in live.items()
            if key.namespace == "nobody" or record.payload in FAULTY
        }
        self.assertEqual(aside, {each.key for each in replica.quarantine.entries()})
        snapshot = replica.store.snapshot()
        for namespace in (POOLS, DRIVES):
            view = snapshot.namespace(namespace.name)
            # Of what is kept aside the store may show what stood there before.
            held = {records.RecordKey(namespace.name, key) for key in view.row_keys()} - aside
            sound = {key for key in live if key.namespace == namespace.name} - aside
            self.assertEqual(sound, held)
            for name in sound:
                record, stored = live[name], view.get(name.key)
                assert stored is not None
                self.assertEqual(
                    (record.revision, record.version, record.payload),
                    (stored.revision, stored.version, stored.payload),
                )
                free = codec.decode_state(record.payload)["free"]
                self.assertEqual((name.key, free), view.digest(name.key))

    def test_pages_are_columns(self) -> None:
        for key in KEYS:
            self.write(records.RecordKey("pools", key), 1)
        pages = list(self.synchronizer.snapshot(["pools"]).pages)
        self.assertEqual({record_columns.RecordColumns}, set(map(type, pages)))
        self.assertEqual(sorted(KEYS), [record.key.key for page in pages for record in page])
        for page in pages:
            read = self.synchronizer.read([record.key for record in page])
            self.assertEqual([read[record.key] for record in page], list(page))


def _is_read_ahead() -> bool:
    return any(each.name == "nodb-sql-snapshot" for each in threading.enumerate())


class TestColumnsMariaDB(TestColumnsSQLite, sql_databases.MariaDBCase):
    def test_pages_that_the_server_cuts_short_are_read_by_rows(self) -> None:
        """At each byte of a page: in numbers, keys, payloads, and between them."""
        for number, key in enumerate(KEYS[:3]):
            self.write(records.RecordKey("pools", key), number)
        [expected] = self.synchronizer.snapshot(["pools"]).pages
        self.assertEqual(sorted(KEYS[:3]), expected.keys)
        whole = sum(map(len, expected.payloads)) + len("".join(expected.keys).encode()) + 3 * 24
        _writers, readers = self.synchronizer.engines
        for most_bytes in range(4, whole + 2):
            with readers.connect() as connection:
                connection.exec_driver_sql(f"SET SESSION group_concat_max_len = {most_bytes}")
                with unittest.mock.patch.object(
                    statements_module, "_columns_by_rows", wraps=statements_module._columns_by_rows
                ) as by_rows:
                    page = statements_module.page(connection, "pools", "", 5)
            self.assertEqual(list(expected), list(page), most_bytes)
            self.assertEqual(most_bytes < whole, by_rows.called, most_bytes)

    def test_records_of_many_sizes_are_read_once_and_come_in_the_order_of_their_keys(self) -> None:
        """The server puts them together as they lie in a table of its own, small ones in gaps."""
        sizes = random.Random(1)
        written = [
            records.Write(
                records.RecordKey("pools", f"host-{number:03}"), 0, bytes(sizes.randint(300, 3000))
            )
            for number in range(200)
        ]
        self.assertTrue(all(each.won for each in self.synchronizer.write(written)))
        _writers, readers = self.synchronizer.engines
        with (
            readers.connect() as connection,
            unittest.mock.patch.object(
                statements_module, "_columns_by_rows", wraps=statements_module._columns_by_rows
            ) as by_rows,
        ):
            page = statements_module.page(connection, "pools", "", 150)
        self.assertFalse(by_rows.called)
        read = self.synchronizer.read([each.key for each in written[:150]])
        self.assertEqual([read[each.key] for each in written[:150]], list(page))

    def test_a_snapshot_that_is_dropped_leaves_no_thread_behind(self) -> None:
        there = [records.RecordKey(name, key) for name in ("drives", "pools") for key in KEYS]
        for key in there:
            self.write(key, 1)
        pages = self.synchronizer.snapshot().pages
        taken = [next(pages) for _ in range(3)]
        self.assertTrue(_is_read_ahead())
        del pages
        self.assertFalse(_is_read_ahead())
        whole = [record for page in self.synchronizer.snapshot().pages for record in page]
        self.assertEqual(sorted(there), sorted(record.key for record in whole))
        self.assertEqual([record for page in taken for record in page], whole[:12])
        self.assertFalse(_is_read_ahead())

    def test_connections_that_end_meanwhile_cost_no_record(self) -> None:
        """A page is read anew, or the snapshot ends with what says so: never without a page."""
        there = {records.RecordKey(name, key) for name in ("drives", "pools") for key in KEYS}
        for key in there:
            self.write(key, 1)
        found: set[records.RecordKey] = set()
        pages = self.synchronizer.snapshot().pages
        with contextlib.suppress(errors.BackendUnavailable):
            for page in pages:
                found |= {record.key for record in page}
                self.kill_connections()
            self.assertEqual(there, found)
        self.assertFalse(_is_read_ahead())
        whole = [record.key for page in self.synchronizer.snapshot().pages for record in page]
        self.assertEqual(sorted(there), sorted(whole))

    def test_a_value_of_many_records_is_smaller_than_the_server_s_packets(self) -> None:
        """What is larger it would not cut short, but end the connection."""
        _writers, readers = self.synchronizer.engines
        query = "SELECT @@group_concat_max_len, @@max_allowed_packet"
        with readers.connect() as connection:
            [(together_bytes, packet_bytes)] = connection.exec_driver_sql(query)
        self.assertLess(2 << 20, together_bytes)
        self.assertLessEqual(together_bytes, packet_bytes // 2)

    def test_a_page_comes_as_one_row(self) -> None:
        for key in KEYS:
            self.write(records.RecordKey("pools", key), 1)
        _writers, readers = self.synchronizer.engines
        with readers.connect() as connection:
            for count in (2, 12):
                profile = cProfile.Profile()
                page = profile.runcall(statements_module.page, connection, "pools", "", count)
                self.assertEqual(count, len(page))
                calls = sum(each.callcount for each in profile.getstats())
                if count == 2:
                    few = calls
        # One to read numbers, one to decode the key, and four to enter what was read.
        self.assertLessEqual(calls - few, 10 * 7)


class TestColumnsPostgreSQL(TestColumnsSQLite, sql_databases.PostgreSQLCase):
    pass
