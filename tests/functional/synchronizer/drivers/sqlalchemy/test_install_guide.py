# SPDX-License-Identifier: Apache-2.0
"""The install guide's database user can do what the plugin does, and nothing else."""

from __future__ import annotations

import pathlib
import time
import unittest
import uuid

import sqlalchemy as sa

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, migration, schema
from nova_nodb_scheduler.testing import servers

GUIDE = pathlib.Path(__file__).parents[5] / "doc" / "source" / "install"
PASSWORD = "of-the-guide"


class TestGuideMariaDB(unittest.TestCase):
    """The file that the guide shows is the file that is carried out here."""

    file = "database-mysql.sql"
    fixture: type[servers.MariaDB | servers.PostgreSQL] = servers.MariaDB
    ordering = schema.COUNTER

    def setUp(self) -> None:
        super().setUp()
        #: Somebody else's database on the same server, with a table.
        self.other = self.enterContext(self.fixture())
        engine = sa.create_engine(self.other.url)
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE services (id INTEGER)"))
        engine.dispose()
        self.server = self.other.server
        name = f"nodb_{uuid.uuid4().hex[:12]}"
        self.name = name
        text = (GUIDE / self.file).read_text()
        text = text.replace("nova_nodb", name).replace("PASSWORD'", f"{PASSWORD}'")
        for statement in filter(str.strip, text.split(";")):
            self.server.execute(statement)
        self.addCleanup(self.clean)
        root = sa.make_url(self.server.url(name))
        self.url = root.set(username=name, password=PASSWORD)
        self.settings = driver.SQLOptions(
            self.url.render_as_string(hide_password=False),
            ordering=self.ordering,
            cloud_name="east",
            timeout_seconds=20.0,
        )

    def clean(self) -> None:
        self.server.execute(f"DROP DATABASE {self.name}")
        self.server.execute(f"DROP USER {self.name}@'%'")

    def opened(self) -> driver.SQLAlchemySynchronizer:
        synchronizer = driver.SQLAlchemySynchronizer(self.settings)
        self.addCleanup(synchronizer.close)
        synchronizer.open()
        return synchronizer

    def synced(self) -> None:
        engine = engines.create_for_migration(self.settings)
        self.addCleanup(engine.dispose)
        migration.sync(engine)
        self.assertEqual([], migration.check(engine))

    def test_it_makes_the_schema_runs_and_compacts(self) -> None:
        self.synced()
        one, two = self.opened(), self.opened()
        keys = [records.RecordKey("suite", str(number)) for number in range(20)]
        cursor = two.head()
        written = one.write([records.Write(key, 0, b"x") for key in keys])
        self.assertTrue(all(each.won for each in written))
        fed: set[records.RecordKey] = set()
        deadline = time.monotonic() + 60
        while len(fed) < len(keys) and time.monotonic() < deadline:
            changes = two.fetch(cursor)
            assert isinstance(changes, records.Changes)
            fed |= {record.key for record in changes.records}
            cursor = changes.cursor
        self.assertEqual(set(keys), fed)
        found = one.read(keys[:1])[keys[0]]
        [deleted] = two.write([records.Write(keys[0], found.revision, deleted=True)])
        self.assertTrue(deleted.won)
        one.head()
        one.collect(0.0)
        self.assertEqual(19, sum(not each.deleted for each in two.read(keys).values()))
        one.reset()

    def test_it_reaches_no_other_database(self) -> None:
        elsewhere = sa.make_url(self.other.url).set(username=self.name, password=PASSWORD)
        for url, statement in self.forbidden(elsewhere):
            engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
            self.addCleanup(engine.dispose)
            with (
                self.subTest(statement),
                self.assertRaises(sa.exc.DBAPIError) as refused,
                engine.connect() as connection,
            ):
                connection.execute(sa.text(statement))
            self.assertRegex(str(refused.exception), "(?i)denied|permission|must be")

    def forbidden(self, elsewhere: sa.URL) -> list[tuple[sa.URL, str]]:
        return [
            (elsewhere, "SELECT * FROM services"),
            (self.url, f"SELECT * FROM {elsewhere.database}.services"),
            (self.url, "CREATE DATABASE of_a_thief"),
            (self.url, "CREATE USER thief IDENTIFIED BY 'thief'"),
        ]


class TestGuideMariaDBSequencer(TestGuideMariaDB):
    ordering = schema.SEQUENCER


class TestGuidePostgreSQL(TestGuideMariaDB):
    file = "database-postgresql.sql"
    fixture = servers.PostgreSQL

    def clean(self) -> None:
        self.server.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
        self.server.execute(f"DROP ROLE {self.name}")

    def forbidden(self, elsewhere: sa.URL) -> list[tuple[sa.URL, str]]:
        return [
            (elsewhere, "SELECT * FROM services"),
            (self.url, "CREATE DATABASE of_a_thief"),
            (self.url, "CREATE ROLE thief"),
        ]


class TestGuidePostgreSQLSequencer(TestGuidePostgreSQL):
    ordering = schema.SEQUENCER
