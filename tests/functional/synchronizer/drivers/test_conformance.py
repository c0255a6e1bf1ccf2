# SPDX-License-Identifier: Apache-2.0
"""Every driver against the whole conformance suite, on the real engines."""

from __future__ import annotations

from collections.abc import Callable

from nova_nodb_scheduler.synchronizer.drivers import etcd, memcached, memory, redis
from nova_nodb_scheduler.testing import conformance, etcd_server, redis_server, servers
from nova_nodb_scheduler.testing.conformance import contract_case, feed, races, writes
from tests.functional.synchronizer.drivers import swapping


class _Memory(contract_case.Case):
    single_key = False

    def setUp(self) -> None:
        super().setUp()
        self.hub = memory.MemoryHub()

    def make_synchronizer(self) -> memory.MemorySynchronizer:
        return memory.MemorySynchronizer(memory.MemoryOptions(single_key=self.single_key), self.hub)

    def make_swappable(self) -> Callable[[], None]:
        return swapping.hub(self.hub)


class TestMemory(_Memory, conformance.ConformanceSuite):
    pass


class TestMemoryOneKey(_Memory, writes.CompareAndSet, feed.FeedOrder, races.Races):
    """What bears on records that are carried one by one; the rest of the driver is the same."""

    single_key = True


class TestMemcached(conformance.ConformanceSuite):
    def setUp(self) -> None:
        super().setUp()
        self.server = self.enterContext(servers.Memcached("-m", "128", "-M"))
        self.address = self.server.address

    def make_synchronizer(self) -> memcached.MemcachedSynchronizer:
        return memcached.MemcachedSynchronizer(memcached.MemcachedOptions(servers=(self.address,)))

    def make_swappable(self) -> Callable[[], None]:
        second = self.enterContext(servers.Memcached("-m", "64", "-M"))
        front, swap = swapping.front(self, self.server.server.port, second.server.port)
        self.address = front
        return swap


class TestRedis(conformance.ConformanceSuite):
    def setUp(self) -> None:
        super().setUp()
        self.server = self.enterContext(redis_server.Redis())
        self.address = self.server.address

    def make_synchronizer(self) -> redis.RedisSynchronizer:
        return redis.RedisSynchronizer(redis.RedisOptions(url=f"redis://{self.address}"))

    def make_swappable(self) -> Callable[[], None]:
        second = self.enterContext(redis_server.Redis())
        front, swap = swapping.front(self, self.server.server.port, second.server.port)
        self.address = front
        return swap


class TestEtcd(conformance.ConformanceSuite):
    def setUp(self) -> None:
        super().setUp()
        self.etcd = self.enterContext(etcd_server.Etcd())

    def make_synchronizer(self) -> etcd.EtcdSynchronizer:
        return etcd.EtcdSynchronizer(
            etcd.EtcdOptions(endpoints=(self.etcd.url,), key_prefix=self.etcd.key_prefix)
        )

    def restart_backend(self) -> None:
        self.etcd.server.restart()
