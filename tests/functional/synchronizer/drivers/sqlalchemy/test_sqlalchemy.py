# SPDX-License-Identifier: Apache-2.0
"""The SQL driver against the conformance suite, on the three databases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.testing import conformance
from nova_nodb_scheduler.testing.conformance import feed, races, snapshots, upkeep
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases, writing_processes


class TestConformanceSQLite(sql_databases.SQLiteCase, conformance.ConformanceSuite):
    migrated = True

    def make_synchronizer(self) -> driver.SQLAlchemySynchronizer:
        return driver.SQLAlchemySynchronizer(self.sql_options())

    def restart_backend(self) -> None:
        """Do nothing: the engine ended with its last client."""

    def _run_in_processes(
        self, jobs: Sequence[Callable[[contract.Synchronizer], int]]
    ) -> list[int]:
        # The suite forks while its readers read. SQLite forbids to carry an
        # open database across a fork.
        return writing_processes.run(self.sql_options(), jobs)


class TestConformanceSQLiteSequencer(
    sql_databases.SQLiteCase, feed.FeedOrder, snapshots.Snapshots, upkeep.Collection, races.Races
):
    """What the order of records bears on; MariaDB and PostgreSQL go through the whole suite."""

    migrated = True
    ordering = "sequencer"
    make_synchronizer = TestConformanceSQLite.make_synchronizer
    _run_in_processes = TestConformanceSQLite._run_in_processes


class TestConformanceMariaDB(sql_databases.MariaDBCase, conformance.ConformanceSuite):
    migrated = True
    make_synchronizer = TestConformanceSQLite.make_synchronizer

    def restart_backend(self) -> None:
        self.database.server.restart()


class TestConformancePostgreSQL(sql_databases.PostgreSQLCase, conformance.ConformanceSuite):
    migrated = True
    make_synchronizer = TestConformanceSQLite.make_synchronizer

    def restart_backend(self) -> None:
        self.database.server.restart()


class TestConformanceMariaDBSequencer(TestConformanceMariaDB):
    ordering = "sequencer"


class TestConformancePostgreSQLSequencer(TestConformancePostgreSQL):
    ordering = "sequencer"
