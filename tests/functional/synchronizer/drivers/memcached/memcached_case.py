# SPDX-License-Identifier: Apache-2.0
"""A memcached of its own, and clients of it."""

from __future__ import annotations

from typing import Any

from pymemcache.client import base as pymemcache

from nova_nodb_scheduler.synchronizer.drivers import memcached
from nova_nodb_scheduler.testing import servers
from tests.functional.synchronizer.drivers import step_case

FENCE_AFTER_SECONDS = 0.2
TIMEOUT_SECONDS = 2.0


class MemcachedCase(step_case.StepCase[memcached.MemcachedSynchronizer]):
    options: tuple[str, ...] = ("-m", "64", "-M")
    driver_class = memcached.MemcachedSynchronizer

    def setUp(self) -> None:
        super().setUp()
        self.memcached = self.enterContext(servers.Memcached(*self.options))
        self.server = self.memcached.server

    def make(self, **changes: Any) -> memcached.MemcachedSynchronizer:
        """Return a new client, not open."""
        settings = {
            "servers": (self.memcached.address,),
            "timeout_seconds": TIMEOUT_SECONDS,
            "fence_after_seconds": FENCE_AFTER_SECONDS,
            "poll_interval_seconds": 0.02,
            **changes,
        }
        return self.driver_class(memcached.MemcachedOptions(**settings))

    def through(self, address: str) -> memcached.MemcachedSynchronizer:
        """Return an open client of another address."""
        return self.opened(servers=(address,))

    def raw(self) -> pymemcache.Client:
        """Return a client that knows nothing of the driver's protocol."""
        client = pymemcache.Client(self.memcached.address)
        self.addCleanup(client.close)
        return client
