# SPDX-License-Identifier: Apache-2.0
"""The SQL driver against the conformance suite, on the three databases."""

from __future__ import annotations

import functools
import multiprocessing
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from concurrent import futures

from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.testing import conformance, servers


def _work(options: driver.SQLOptions, job: Callable[[contract.Synchronizer], int]) -> int:
    """Do a job of the suite in a process of its own."""
    synchronizer = driver.SQLAlchemySynchronizer(options)
    synchronizer.open()
    try:
        return job(synchronizer)
    finally:
        synchronizer.close()


class SQLConformance(conformance.ConformanceSuite):
    """What the three have in common."""

    url = ""

    def sql_options(self) -> driver.SQLOptions:
        return driver.SQLOptions(
            self.url, poll_interval_seconds=0.02, timeout_seconds=20.0, auto_upgrade=True
        )

    def make_synchronizer(self) -> driver.SQLAlchemySynchronizer:
        return driver.SQLAlchemySynchronizer(self.sql_options())

    def _run_in_processes(
        self, jobs: Sequence[Callable[[contract.Synchronizer], int]]
    ) -> list[int]:
        # The suite forks while its readers read. SQLite forbids to carry an
        # open database across a fork, so these processes start from scratch.
        context = multiprocessing.get_context("spawn")
        with futures.ProcessPoolExecutor(len(jobs), context) as pool:
            return list(pool.map(functools.partial(_work, self.sql_options()), jobs))


class TestConformanceSQLite(SQLConformance):
    def setUp(self) -> None:
        super().setUp()
        directory = self.enterContext(tempfile.TemporaryDirectory())
        self.url = f"sqlite:///{pathlib.Path(directory) / 'nodb.sqlite'}"

    def restart_backend(self) -> None:
        """Do nothing: the engine ended with its last client."""


class TestConformanceMariaDB(SQLConformance):
    def setUp(self) -> None:
        super().setUp()
        self.database = self.enterContext(servers.MariaDB())
        self.url = self.database.url

    def restart_backend(self) -> None:
        self.database.server.restart()


class TestConformancePostgreSQL(SQLConformance):
    def setUp(self) -> None:
        super().setUp()
        self.database = self.enterContext(servers.PostgreSQL())
        self.url = self.database.url

    def restart_backend(self) -> None:
        self.database.server.restart()


# The base is not a test by itself.
del SQLConformance
