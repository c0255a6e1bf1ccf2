# SPDX-License-Identifier: Apache-2.0
"""Every driver against the whole conformance suite, on the real engines."""

from __future__ import annotations

from collections.abc import Callable

from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.testing import conformance
from nova_nodb_scheduler.testing.conformance import contract_case, feed, races, writes
from tests.functional.synchronizer.drivers import engine_cases, swapping


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


class TestMemcached(engine_cases.OnMemcached, conformance.ConformanceSuite):
    pass


class TestRedis(engine_cases.OnRedis, conformance.ConformanceSuite):
    pass


class TestEtcd(engine_cases.OnEtcd, conformance.ConformanceSuite):
    def restart_backend(self) -> None:
        self.etcd.server.restart()
