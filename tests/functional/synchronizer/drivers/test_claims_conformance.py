# SPDX-License-Identifier: Apache-2.0
"""The claims protocol over every driver, on the real engines."""

from __future__ import annotations

import tempfile
from typing import ClassVar

from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from nova_nodb_scheduler.testing import conformance_claims, servers
from tests.functional.synchronizer.drivers import emptied_case, engine_cases


class TestMemcached(engine_cases.OnMemcached, conformance_claims.ClaimsConformance):
    pass


class TestRedis(engine_cases.OnRedis, conformance_claims.ClaimsConformance):
    pass


class TestEtcd(engine_cases.OnEtcd, conformance_claims.ClaimsConformance):
    pass


class TestSQLite(emptied_case.EmptiedCase):
    url: ClassVar[str]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.url = cls.make_database()

    @classmethod
    def make_database(cls) -> str:
        directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        return f"sqlite:///{directory}/nodb.sqlite"

    def make_synchronizer(self) -> sql.SQLAlchemySynchronizer:
        return sql.SQLAlchemySynchronizer(
            sql.SQLOptions(
                self.url, poll_interval_seconds=0.02, timeout_seconds=20.0, auto_upgrade=True
            )
        )


class TestMariaDB(TestSQLite):
    @classmethod
    def make_database(cls) -> str:
        return cls.enterClassContext(servers.MariaDB()).url


class TestPostgreSQL(TestSQLite):
    @classmethod
    def make_database(cls) -> str:
        return cls.enterClassContext(servers.PostgreSQL()).url
