# SPDX-License-Identifier: Apache-2.0
"""A conductor's journal on every driver, on the real engines."""

from __future__ import annotations

from typing import ClassVar

from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from nova_nodb_scheduler.testing import servers
from tests.functional.synchronizer.drivers import engine_cases
from tests.unit.synchronizer.records import journal_case


class MemcachedTest(engine_cases.OnMemcached, journal_case.DriverCases):
    pass


class RedisTest(engine_cases.OnRedis, journal_case.DriverCases):
    pass


class EtcdTest(engine_cases.OnEtcd, journal_case.DriverCases):
    pass


class MariaDBTest(journal_case.DriverCases):
    url: ClassVar[str]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.url = cls.make_database()

    @classmethod
    def make_database(cls) -> str:
        return cls.enterClassContext(servers.MariaDB()).url

    def setUp(self) -> None:
        super().setUp()
        # One server for all tests of the class: what another one left goes.
        self.back_end.reset()

    def make_synchronizer(self) -> sql.SQLAlchemySynchronizer:
        return sql.SQLAlchemySynchronizer(
            sql.SQLOptions(self.url, timeout_seconds=20.0, auto_upgrade=True)
        )


class PostgreSQLTest(MariaDBTest):
    @classmethod
    def make_database(cls) -> str:
        return cls.enterClassContext(servers.PostgreSQL()).url
