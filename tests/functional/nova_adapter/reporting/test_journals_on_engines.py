# SPDX-License-Identifier: Apache-2.0
"""A conductor's journal on every driver, on the real engines."""

from __future__ import annotations

from typing import ClassVar

from nova_nodb_scheduler.synchronizer.drivers import etcd, memcached, redis
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from nova_nodb_scheduler.testing import etcd_server, redis_server, servers
from tests.unit.nova_adapter.reporting import journal_case


class MemcachedTest(journal_case.DriverCases):
    def setUp(self) -> None:
        self.server = self.enterContext(servers.Memcached("-m", "64", "-M"))
        super().setUp()

    def make_synchronizer(self) -> memcached.MemcachedSynchronizer:
        return memcached.MemcachedSynchronizer(
            memcached.MemcachedOptions(servers=(self.server.address,))
        )


class RedisTest(journal_case.DriverCases):
    def setUp(self) -> None:
        self.server = self.enterContext(redis_server.Redis())
        super().setUp()

    def make_synchronizer(self) -> redis.RedisSynchronizer:
        return redis.RedisSynchronizer(redis.RedisOptions(url=self.server.url))


class EtcdTest(journal_case.DriverCases):
    def setUp(self) -> None:
        self.etcd = self.enterContext(etcd_server.Etcd())
        super().setUp()

    def make_synchronizer(self) -> etcd.EtcdSynchronizer:
        return etcd.EtcdSynchronizer(
            etcd.EtcdOptions(endpoints=(self.etcd.url,), key_prefix=self.etcd.key_prefix)
        )


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
