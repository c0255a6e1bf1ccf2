# SPDX-License-Identifier: Apache-2.0
"""One client of a real engine, of a scheduler's feed and of its requests; the engine freezes.

Each request opens the client before it uses it, and the feed holds it for open
meanwhile: what a request meets must not end the feed.
"""

from __future__ import annotations

import subprocess
import sys
import time
import unittest
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import memcached, redis, sqlalchemy
from nova_nodb_scheduler.synchronizer.migration import migration_fence
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.testing import patience, server_processes, servers
from nova_nodb_scheduler.testing.conformance import contract_case
from nova_nodb_scheduler.wire import codec
from tests.functional.synchronizer.drivers import step_case
from tests.functional.synchronizer.drivers.etcd import etcd_case
from tests.functional.synchronizer.drivers.memcached import memcached_case
from tests.functional.synchronizer.drivers.redis import redis_case
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases

PATIENCE_SECONDS = 60.0
TIMEOUT_SECONDS = 1.0
REQUESTS = 3
FREEZES = 2
DECLARED = (known_namespaces.SCHEDULERS,)


class SharedClients:
    """To be mixed into a case of an engine, which is its own."""

    server: server_processes.ServerProcess

    def guarded(self) -> contract.Synchronizer:
        return migration_fence.FencedSynchronizer(self.make(timeout_seconds=TIMEOUT_SECONDS))

    def freeze(self, server: server_processes.ServerProcess) -> None:
        server.pause()

    def thaw(self, server: server_processes.ServerProcess) -> None:
        server.resume()

    def test_requests_that_open_a_frozen_engine_leave_the_feed_to_come_back(self) -> None:
        client = self.guarded()
        self.addCleanup(client.close)
        feed = replicator.Replicator(
            client,
            host_state_store.HostStateStore(DECLARED, codec.decode_state),
            DECLARED,
            identity="scheduler",
            options=replicator_contract.ReplicatorOptions(
                canary_interval_seconds=0.2, reconnect_max_seconds=0.5
            ),
        )
        self.addCleanup(feed.stop)
        feed.start()
        self.await_proof(feed, time.monotonic())

        def request() -> None:
            with self.assertRaises(errors.BackendUnavailable):
                client.open()

        for _ in range(FREEZES):
            self.freeze(self.server)
            try:
                self.in_threads([request] * REQUESTS)
                patience.wait_until(
                    lambda: feed.status().state is replicator_contract.State.DISCONNECTED,
                    PATIENCE_SECONDS,
                    feed.status,
                    0.05,
                )
                self.in_threads([request] * REQUESTS)
            finally:
                self.thaw(self.server)
            self.await_proof(feed, time.monotonic())

    def await_proof(self, feed: replicator.Replicator, since: float) -> None:
        """Wait until what is in the store is proved to be newer than a moment."""
        patience.wait_until(
            lambda: feed.alive(time.monotonic() - since), PATIENCE_SECONDS, feed.status, 0.05
        )


class TestRedis(SharedClients, redis_case.RedisCase):
    pass


class TestMemcached(SharedClients, memcached_case.MemcachedCase):
    pass


class TestEtcd(SharedClients, etcd_case.EtcdCase):
    private = True


class SQLClients(SharedClients):
    def make(self, **changes: Any) -> contract.Synchronizer:
        return sqlalchemy.SQLAlchemySynchronizer(self.sql_options(**changes))


class TestMariaDB(sql_databases.MariaDBCase, SQLClients, contract_case.Case):
    def setUp(self) -> None:
        contract_case.Case.setUp(self)
        self.database = self.enterContext(servers.MariaDB(private=True))
        self.url, self.server = self.database.url, self.database.server


class TestPostgreSQL(sql_databases.PostgreSQLCase, SQLClients, contract_case.Case):
    def setUp(self) -> None:
        contract_case.Case.setUp(self)
        self.database = self.enterContext(servers.PostgreSQL(private=True))
        self.url, self.server = self.database.url, self.database.server


class TestGreenThreads(unittest.TestCase):
    def test_green_threads_share_a_client_as_others_do(self) -> None:
        test = f"{__name__}.{TestRedis.__name__}"
        script = (
            "import eventlet; eventlet.monkey_patch(); import unittest; "
            f"unittest.main(module=None, argv=['', '{test}'])"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE_SECONDS,
            check=False,
        )
        self.assertEqual(0, done.returncode, done.stderr)


class OverlappingOpenings:
    """An opening fails while another one is held up between two of its exchanges."""

    step: Any

    def test_an_opening_that_fails_beside_another_takes_nothing_from_it(self) -> None:
        client = self.make(timeout_seconds=TIMEOUT_SECONDS)
        self.addCleanup(client.close)
        openings: list[str] = []

        def fail() -> None:
            openings.append("held up")
            client.on_step = lambda step: None
            self.server.pause()
            try:
                with self.assertRaises(errors.BackendUnavailable):
                    client.open()
            finally:
                self.server.resume()

        client.on_step = step_case.at(self.step, fail)
        client.open()
        self.assertEqual(["held up"], openings)
        client.head()


class TestOverlappingRedis(OverlappingOpenings, redis_case.RedisCase):
    step = redis.Step.EPOCH


class TestOverlappingMemcached(OverlappingOpenings, memcached_case.MemcachedCase):
    step = memcached.Step.EPOCH
