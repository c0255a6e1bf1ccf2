# SPDX-License-Identifier: Apache-2.0
"""A Redis of its own, and clients of it."""

from __future__ import annotations

from typing import Any

from nova_nodb_scheduler.synchronizer.drivers import redis
from nova_nodb_scheduler.testing import redis_server
from tests.functional.synchronizer.drivers import step_case

Step = redis.Step

TIMEOUT_SECONDS = 2.0


class RedisCase(step_case.StepCase[redis.RedisSynchronizer]):
    #: Added to the server's command line.
    options: tuple[str, ...] = ()
    driver_class = redis.RedisSynchronizer

    def setUp(self) -> None:
        super().setUp()
        self.redis = self.enterContext(redis_server.Redis(*self.options))
        self.server = self.redis.server

    def make(self, **changes: Any) -> redis.RedisSynchronizer:
        """Return a new client, not open."""
        settings = {"url": self.redis.url, "timeout_seconds": TIMEOUT_SECONDS, **changes}
        return self.driver_class(redis.RedisOptions(**settings))

    def through(self, address: str, **changes: Any) -> redis.RedisSynchronizer:
        """Return an open client of another address."""
        return self.opened(url=f"redis://{address}", **changes)

    def raw(self) -> Any:
        """Return a client that knows nothing of the driver's protocol."""
        client = self.server.client()
        self.addCleanup(client.close)
        return client
