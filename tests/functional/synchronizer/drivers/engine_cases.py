# SPDX-License-Identifier: Apache-2.0
"""Clients of one engine that a test has to itself: a base beside the cases that are its test's.

Stands before them among the bases: the engine runs when their own ``setUp`` begins.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable

from nova_nodb_scheduler.synchronizer.drivers import etcd, memcached, redis
from nova_nodb_scheduler.testing import etcd_server, redis_server, servers
from tests.functional.synchronizer.drivers import swapping


class OnMemcached(unittest.TestCase):
    def setUp(self) -> None:
        self.server = self._start()
        self.address = self.server.address
        super().setUp()

    def _start(self) -> servers.Memcached:
        return self.enterContext(servers.Memcached("-m", "128", "-M"))

    def make_synchronizer(self) -> memcached.MemcachedSynchronizer:
        return memcached.MemcachedSynchronizer(memcached.MemcachedOptions(servers=(self.address,)))

    def make_swappable(self) -> Callable[[], None]:
        """See :meth:`.contract_case.Case.make_swappable`."""
        first, second = self.server.server.port, self._start().server.port
        self.address, swap = swapping.front(self, first, second)
        return swap


class OnRedis(unittest.TestCase):
    def setUp(self) -> None:
        self.server = self._start()
        self.address = self.server.address
        super().setUp()

    def _start(self) -> redis_server.Redis:
        return self.enterContext(redis_server.Redis())

    def make_synchronizer(self) -> redis.RedisSynchronizer:
        return redis.RedisSynchronizer(redis.RedisOptions(url=f"redis://{self.address}"))

    def make_swappable(self) -> Callable[[], None]:
        """See :meth:`.contract_case.Case.make_swappable`."""
        first, second = self.server.server.port, self._start().server.port
        self.address, swap = swapping.front(self, first, second)
        return swap


class OnEtcd(unittest.TestCase):
    def setUp(self) -> None:
        self.etcd = self.enterContext(etcd_server.Etcd())
        super().setUp()

    def make_synchronizer(self) -> etcd.EtcdSynchronizer:
        return etcd.EtcdSynchronizer(
            etcd.EtcdOptions(endpoints=(self.etcd.url,), key_prefix=self.etcd.key_prefix)
        )
