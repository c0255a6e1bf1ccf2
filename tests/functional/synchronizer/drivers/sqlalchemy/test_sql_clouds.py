# SPDX-License-Identifier: Apache-2.0
"""Two clouds that were given one database are told apart."""

from __future__ import annotations

import threading

import sqlalchemy as sa

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases

KEY = records.RecordKey("suite", "a")


class TestCloudsSQLite(sql_databases.SQLiteCase):
    def make(self, cloud: str) -> driver.SQLAlchemySynchronizer:
        synchronizer = driver.SQLAlchemySynchronizer(self.sql_options(cloud_name=cloud))
        self.addCleanup(synchronizer.close)
        return synchronizer

    def opened(self, cloud: str) -> driver.SQLAlchemySynchronizer:
        synchronizer = self.make(cloud)
        synchronizer.open()
        return synchronizer

    def assert_refused(self, cloud: str, owner: str) -> None:
        for name in ("open", "open_existing"):
            with self.assertRaises(errors.ConfigurationError) as refused:
                getattr(self.make(cloud), name)()
            text = str(refused.exception)
            self.assertIn(f"[nodb_sqlalchemy] cloud_name = {cloud!r}", text)
            self.assertIn(repr(owner), text)

    def test_the_second_cloud_is_refused_and_both_are_named(self) -> None:
        self.opened("east").write([records.Write(KEY, 0, b"east")])

        self.assert_refused("west", "east")
        self.assert_refused("", "east")

        self.assertEqual(b"east", self.opened("east").read([KEY])[KEY].payload)

    def test_a_call_beside_an_opening_that_is_refused_reaches_nothing(self) -> None:
        east = self.opened("east")
        west = self.make("west")
        beside: list[str] = []

        def write() -> None:
            try:
                west.write([records.Write(KEY, 0, b"west")])
                beside.append("written")
            except errors.BackendUnavailable as error:
                beside.append(str(error))

        def meanwhile(_connection: object, _cursor: object, text: str, *_rest: object) -> None:
            if "nodb_cloud" in text and not beside:
                thread = threading.Thread(target=write)
                thread.start()
                thread.join(30)

        sa.event.listen(sa.Engine, "before_cursor_execute", meanwhile)
        self.addCleanup(sa.event.remove, sa.Engine, "before_cursor_execute", meanwhile)
        with self.assertRaises(errors.ConfigurationError):
            west.open()
        self.assertEqual(1, len(beside))
        self.assertIn("not open", beside[0])
        self.assertEqual({}, east.read([KEY]))

    def test_a_database_of_before_takes_the_first_name(self) -> None:
        self.opened("").write([records.Write(KEY, 0, b"one")])
        # Who only looks leaves none.
        self.make("north").open_existing()
        self.opened("")

        self.assertEqual(b"one", self.opened("east").read([KEY])[KEY].payload)

        self.assert_refused("west", "east")

    def test_of_two_clouds_that_open_it_at_once_one_wins(self) -> None:
        self.opened("").close()
        barrier = threading.Barrier(6)
        found: list[tuple[str, bool]] = []

        def race(cloud: str) -> None:
            synchronizer = self.make(cloud)
            barrier.wait(30)
            try:
                synchronizer.open()
            except errors.ConfigurationError:
                found.append((cloud, False))
            else:
                found.append((cloud, True))

        threads = [threading.Thread(target=race, args=(cloud,)) for cloud in ("east", "west") * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        winners = {cloud for cloud, won in found if won}
        self.assertEqual(1, len(winners), found)
        self.assertEqual((6, 3), (len(found), sum(won for _cloud, won in found)))

    def test_the_name_outlives_emptied_records(self) -> None:
        self.opened("east").write([records.Write(KEY, 0, b"one")])
        self.execute("DELETE FROM nodb_record", "DELETE FROM nodb_sequence")

        self.assert_refused("west", "east")


class TestCloudsMariaDB(TestCloudsSQLite):
    dialect = "mysql"
    execute = sql_databases.SQLiteCase.execute

    def setUp(self) -> None:
        sql_databases.MariaDBCase.setUp(self)


class TestCloudsPostgreSQL(TestCloudsSQLite):
    dialect = "postgresql"

    def setUp(self) -> None:
        sql_databases.PostgreSQLCase.setUp(self)
