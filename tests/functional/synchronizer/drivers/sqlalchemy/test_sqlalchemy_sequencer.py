# SPDX-License-Identifier: Apache-2.0
"""Sequencer mode of the SQL driver: claims, and what only this mode has to keep."""

from __future__ import annotations

import threading
import time

import sqlalchemy as sa
from alembic import command

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, migration
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import test_claims_conformance
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases, test_sqlalchemy_faults

KEY = test_sqlalchemy_faults.KEY
OTHER = test_sqlalchemy_faults.OTHER


class _Sequencer:
    """Claims over the sequencer."""

    url: str

    def make_synchronizer(self) -> driver.SQLAlchemySynchronizer:
        return driver.SQLAlchemySynchronizer(
            driver.SQLOptions(
                self.url,
                poll_interval_seconds=0.02,
                timeout_seconds=20.0,
                auto_upgrade=True,
                ordering="sequencer",
            )
        )


class TestClaimsSQLite(_Sequencer, test_claims_conformance.TestSQLite):
    pass


class TestClaimsMariaDB(_Sequencer, test_claims_conformance.TestMariaDB):
    pass


class TestClaimsPostgreSQL(_Sequencer, test_claims_conformance.TestPostgreSQL):
    pass


class _SequencerFaults:
    """What the fault tests are told of the sequencer's protocol, and tests of its own."""

    ordering = "sequencer"
    steps = (*("epoch", "lock", "upsert", "commit"), *("number", "assign", "publish", "reply"))
    committed_at = "number"
    replaced_at = ()
    write_statements = 8
    write_questions = 0
    writes_whole = False
    write_transactions = 2


class TestFaultsSQLite(_SequencerFaults, test_sqlalchemy_faults.TestFaultsSQLite):
    def held_at(
        self, step: str, write: records.Write
    ) -> tuple[threading.Event, threading.Event, list[records.WriteResult], threading.Thread]:
        """Write in a thread that waits at a step until it may go on."""
        client = self.client()
        reached, go_on = threading.Event(), threading.Event()
        results: list[records.WriteResult] = []

        def wait() -> None:
            reached.set()
            go_on.wait(60.0)

        self.at_step(client, step, wait)
        thread = threading.Thread(target=lambda: results.extend(client.write([write])))
        thread.start()
        self.addCleanup(thread.join, 60.0)
        self.addCleanup(go_on.set)
        self.assertTrue(reached.wait(60.0))
        return reached, go_on, results, thread

    def test_a_write_overtaken_before_its_number_gets_one_that_brings_it(self) -> None:
        other, reader = self.client(), self.client()
        cursor = reader.head()
        first = records.Write(KEY, 0, b"first")
        _, go_on, results, thread = self.held_at("number", first)
        [standing] = other.read([KEY]).values()
        [second] = other.write([records.Write(KEY, standing.revision, b"second")])
        assert second.record is not None
        go_on.set()
        thread.join(60.0)
        [result] = results
        assert result.record is not None
        self.assertTrue(result.won)
        self.assertGreaterEqual(result.record.version, standing.version)
        fed = reader.fetch(cursor)
        assert isinstance(fed, records.Changes)
        self.assertGreaterEqual(fed.cursor.version, result.record.version)
        self.assertEqual([b"second"], [record.payload for record in fed.records])

    def test_a_record_is_never_shown_without_a_version(self) -> None:
        reader = self.client()
        cursor = reader.head()
        self.held_at("number", records.Write(KEY, 0, b"written"))
        [read] = reader.read([KEY]).values()
        self.assertGreater(read.version, cursor.version)
        [listed] = contract_case.everything(reader).values()
        self.assertEqual(read, listed)

    def test_readers_number_what_a_dead_writer_left(self) -> None:
        reader = self.client()
        self.put(reader, b"old")
        cursor = reader.head()
        self._write_and_die("number")
        started = time.monotonic()
        fed: list[records.Record] = []
        while not fed and time.monotonic() < started + contract_case.PATIENCE_SECONDS:
            reader.wait(cursor, 1.0)
            fetched = reader.fetch(cursor)
            assert isinstance(fetched, records.Changes)
            fed += fetched.records
        self.assertEqual([b"new"], [record.payload for record in fed])

    def test_a_writer_that_sleeps_on_its_record_holds_up_no_other(self) -> None:
        if self.dialect == "sqlite":
            self.skipTest("SQLite has one writer at a time")
        other = self.client()
        self.put(other, b"old")
        [standing] = other.read([KEY]).values()
        self.held_at("commit", records.Write(KEY, standing.revision, b"slow"))
        started = time.monotonic()
        self.assertTrue(other.write([records.Write(OTHER, 0, b"quick")])[0].won)
        self.assertLess(time.monotonic() - started, 10.0)

    def test_another_ordering_than_the_databases_is_refused_with_the_remedy(self) -> None:
        self.put(self.client(), b"one")
        counter = driver.SQLAlchemySynchronizer(self.sql_options(ordering="counter"))
        with self.assertRaisesRegex(errors.ConfigurationError, "ordering = sequencer"):
            counter.open()
        with self.assertRaises(errors.BackendUnavailable):
            counter.head()

    def test_a_counter_database_with_records_is_not_taken_over(self) -> None:
        self.put(self.client(ordering="counter"), b"one")
        with self.assertRaisesRegex(errors.ConfigurationError, "synchronizer move"):
            self.client()

    def test_who_counts_on_is_stopped_when_an_empty_database_is_taken_over(self) -> None:
        counter = self.client(ordering="counter")
        counter.head()
        self.put(self.client(), b"one")
        for call in (counter.head, lambda: counter.write([records.Write(OTHER, 0, b"two")])):
            with self.assertRaisesRegex(errors.BackendUnavailable, "ordering = sequencer"):
                call()

    def test_a_counter_database_goes_on_while_its_schema_is_expanded(self) -> None:
        engine = engines.create_for_migration(self.sql_options(ordering="counter"))
        self.addCleanup(engine.dispose)
        with engine.connect() as connection, engines.as_writer(connection).begin():
            settings = migration._config()
            settings.attributes["connection"] = connection
            command.upgrade(settings, "expand_0001")
            command.upgrade(settings, "contract@head")
            self._write_as_the_former_release(connection, "before", 1)
        client = self.client(ordering="counter")  # migrates
        cursor = client.head()
        self.assertEqual(1, cursor.version)
        with engine.connect() as connection, engines.as_writer(connection).begin():
            self._write_as_the_former_release(connection, "after", 2)
        fed = client.fetch(cursor)
        assert isinstance(fed, records.Changes)
        self.assertEqual([("after", 2)], [(r.key.key, r.revision) for r in fed.records])
        self.assertEqual(
            1, client.read([records.RecordKey("suite", "before")]).popitem()[1].revision
        )
        self.put(client, b"goes on")

    def _write_as_the_former_release(
        self, connection: sa.Connection, name: str, version: int
    ) -> None:
        payload = {"sqlite": "x'31'", "mysql": "x'31'", "postgresql": "'\\x31'"}[self.dialect]
        if version == 1:
            connection.exec_driver_sql(
                "INSERT INTO nodb_sequence (id, epoch, version, floor) VALUES (1, 'e', 0, 0)"
            )
        connection.exec_driver_sql(
            "INSERT INTO nodb_record (namespace, record_key, version, payload) "
            f"VALUES ('suite', '{name}', {version}, {payload})"
        )
        connection.exec_driver_sql(f"UPDATE nodb_sequence SET version = {version}")


class TestFaultsMariaDB(TestFaultsSQLite, test_sqlalchemy_faults.TestFaultsMariaDB):
    setUp = sql_databases.MariaDBCase.setUp
    dialect = "mysql"


class TestFaultsPostgreSQL(TestFaultsSQLite, test_sqlalchemy_faults.TestFaultsPostgreSQL):
    setUp = sql_databases.PostgreSQLCase.setUp
    dialect = "postgresql"
