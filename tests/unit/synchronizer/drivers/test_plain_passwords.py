# SPDX-License-Identifier: Apache-2.0
"""Passwords that go over a network as they are."""

import contextlib
import unittest
from collections.abc import Callable
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers import etcd, redis, sqlalchemy
from nova_nodb_scheduler.synchronizer.drivers.etcd import options as etcd_options
from nova_nodb_scheduler.synchronizer.drivers.redis import options as redis_options
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import options as sql_options
from nova_nodb_scheduler.synchronizer.drivers.support import transport_security

SECRET = "5ecret-of-the-test"


def sql(url: str) -> Callable[[], None]:
    return lambda: engines.warn_of_plain_password(sql_options.SQLOptions(url))


def of_redis(url: str, password: str | None = SECRET) -> Callable[[], None]:
    return redis_options.RedisOptions(url=url, password=password).warn_of_plain_password


def of_etcd(*endpoints: str, password: str | None = SECRET) -> Callable[[], None]:
    name = None if password is None else "nova"
    settings = etcd_options.EtcdOptions(endpoints=endpoints, username=name, password=password)
    return settings.warn_of_plain_password


WARNED = {
    "redis": of_redis("redis://192.0.2.1:6379/0"),
    "redis by name": of_redis("redis://cache.example/0"),
    "redis over IPv6": of_redis("redis://[2001:db8::1]/0"),
    "etcd": of_etcd("http://192.0.2.2:2379"),
    "one member of etcd": of_etcd("https://192.0.2.2:2379", "http://192.0.2.3:2379"),
    "MariaDB": sql(f"mysql+pymysql://nova:{SECRET}@192.0.2.4/nodb"),
    "PostgreSQL": sql(f"postgresql+psycopg://nova:{SECRET}@192.0.2.5/nodb"),
    "PostgreSQL that may do without": sql(
        f"postgresql+psycopg://nova:{SECRET}@192.0.2.6/nodb?sslmode=prefer"
    ),
}
SILENT = {
    "redis with TLS": of_redis("rediss://192.0.2.1:6379/0"),
    "redis on this host": of_redis("redis://127.0.0.1:6379/0"),
    "redis on this host over IPv6": of_redis("redis://[::1]:6379/0"),
    "redis on a socket": of_redis("unix:///run/redis.sock"),
    "redis without a password": of_redis("redis://192.0.2.1:6379/0", None),
    "etcd with TLS": of_etcd("https://192.0.2.2:2379"),
    "etcd on this host": of_etcd("http://localhost:2379"),
    "etcd without a password": of_etcd("http://192.0.2.2:2379", password=None),
    "MariaDB with TLS": sql(f"mysql+pymysql://nova:{SECRET}@192.0.2.4/nodb?ssl_ca=/ca.pem"),
    "MariaDB on this host": sql(f"mysql+pymysql://nova:{SECRET}@127.0.0.1/nodb"),
    "MariaDB on a socket": sql(f"mysql+pymysql://nova:{SECRET}@/nodb?unix_socket=/run/m.sock"),
    "PostgreSQL with TLS": sql(
        f"postgresql+psycopg://nova:{SECRET}@192.0.2.5/nodb?sslmode=verify-full"
    ),
    "SQLite": sql("sqlite:////tmp/x.sqlite"),
}


class PlainPasswordsTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        transport_security._warned.clear()
        self.addCleanup(transport_security._warned.clear)

    def test_a_password_that_leaves_this_host_unencrypted_is_warned_of_once(self) -> None:
        for name, warn in WARNED.items():
            with self.subTest(name):
                with self.assertLogs(transport_security.__name__, "WARNING") as logged:
                    warn()
                    warn()
                [line] = logged.output
                self.assertIn("for TLS", line)
                self.assertNotIn(SECRET, line)

    def test_nothing_is_said_where_nothing_is_wrong(self) -> None:
        for name, warn in SILENT.items():
            with self.subTest(name), self.assertNoLogs(transport_security.__name__, "WARNING"):
                warn()

    def test_each_driver_says_so_as_it_opens(self) -> None:
        """192.0.2.0/24 is nobody's; that it does not answer comes after the warning."""
        drivers: dict[str, Any] = {
            "redis": redis.RedisSynchronizer(
                redis_options.RedisOptions(
                    url="redis://192.0.2.1/0", password=SECRET, timeout_seconds=0.1
                )
            ),
            "etcd": etcd.EtcdSynchronizer(
                etcd_options.EtcdOptions(
                    endpoints=["http://192.0.2.2:2379"],
                    username="nova",
                    password=SECRET,
                    timeout_seconds=0.1,
                )
            ),
            "sql": sqlalchemy.SQLAlchemySynchronizer(
                sql_options.SQLOptions(
                    f"mysql+pymysql://nova:{SECRET}@192.0.2.4/nodb", timeout_seconds=1.0
                )
            ),
        }
        for name, driver in drivers.items():
            with (
                self.subTest(name),
                self.assertLogs(transport_security.__name__, "WARNING"),
                contextlib.suppress(errors.NodbError),
            ):
                driver.open()
