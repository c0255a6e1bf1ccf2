# SPDX-License-Identifier: Apache-2.0
"""The claims protocol over every driver, on the real engines."""

from __future__ import annotations

import tempfile
from typing import ClassVar

from nova_nodb_scheduler.synchronizer.drivers import etcd, memcached, redis
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from nova_nodb_scheduler.testing import conformance_claims, etcd_server, redis_server, servers
from tests.functional.synchronizer.drivers import emptied_case


class TestMemcached(conformance_claims.ClaimsConformance):
    def setUp(self) -> None:
        super().setUp()
        self.server = self.enterContext(servers.Memcached("-m", "64", "-M"))

    def make_synchronizer(self) -> memcached.MemcachedSynchronizer:
        return memcached.MemcachedSynchronizer(
            memcached.MemcachedOptions(servers=(self.server.address,))
        )


class TestRedis(conformance_claims.ClaimsConformance):
    def setUp(self) -> None:
        super().setUp()
        self.server = self.enterContext(redis_server.Redis())

    def make_synchronizer(self) -> redis.RedisSynchronizer:
        return redis.RedisSynchronizer(redis.RedisOptions(url=self.server.url))


class TestEtcd(conformance_claims.ClaimsConformance):
    def setUp(self) -> None:
        super().setUp()
        self.etcd = self.enterContext(etcd_server.Etcd())

    def make_synchronizer(self) -> etcd.EtcdSynchronizer:
        return etcd.EtcdSynchronizer(
            etcd.EtcdOptions(endpoints=(self.etcd.url,), key_prefix=self.etcd.key_prefix)
        )


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
