# SPDX-License-Identifier: Apache-2.0
"""Have nova-scheduler wait for the feed before it decides, and account for it.

In a deployment a request may be decided on states that are a feed's lag old,
and claims make that safe. Nova's tests expect what the last API call wrote to
be seen by the next one, so each select_destinations of a test first publishes
what is dirty and waits until it is in the scheduler's memory. The waits are
counted: their length is the lag.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
import uuid
from collections.abc import Callable
from typing import Any

import fixtures
from nova import service as nova_service
from nova.scheduler import manager as nova_manager
from oslo_config import cfg

from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import loader, replication, replicator
from nova_nodb_scheduler.wire import codec
from tests.nova_suite import feed, reporters

#: "scheduler": ours instead of Nova's. "reporter": Nova's decides, and the
#: reporters' and the feed's word is compared with its tables each time.
MODE_VARIABLE = "NOVA_SUITE_PLUGIN"

_MANAGER = "nova_nodb_scheduler.nova_adapter.manager.SchedulerManager"


def manager_class() -> type[Any]:
    """Return the scheduler manager that the tests run with."""
    if os.environ[MODE_VARIABLE] == "reporter":
        return nova_manager.SchedulerManager
    module, _, name = _MANAGER.rpartition(".")
    found: type[Any] = getattr(importlib.import_module(module), name)
    return found


class SchedulersFixture(fixtures.Fixture):
    """The scheduler of one test, with its waits.

    A test may stop its scheduler and start another one.
    """

    def __init__(self, process: reporters.Reporters, waits: feed.FeedWaits) -> None:
        super().__init__()
        self._reporters = process
        self._waits = waits
        self._lock = threading.Lock()
        self._seen: dict[int, Any] = {}

    def _setUp(self) -> None:
        chosen = manager_class()
        if os.environ[MODE_VARIABLE] == "reporter":
            before = self._watch_reporters()
        else:
            before = self._wait_for_feed
            self.useFixture(
                fixtures.MonkeyPatch(
                    "nova.service.SERVICE_MANAGERS",
                    {**nova_service.SERVICE_MANAGERS, "nova-scheduler": _MANAGER},
                )
            )
        original = chosen.select_destinations

        @functools.wraps(original)
        def select_destinations(manager: Any, *args: Any, **kwargs: Any) -> Any:
            before(manager)
            return original(manager, *args, **kwargs)

        self.useFixture(
            fixtures.MonkeyPatch(
                f"{chosen.__module__}.{chosen.__qualname__}.select_destinations",
                select_destinations,
            )
        )
        self.addCleanup(self._leave)

    def _wait_for_feed(self, manager: Any) -> None:
        with self._lock:
            self._seen[id(manager)] = manager
        drained = self._reporters.drain()
        self._waits.wait(
            lambda: manager.nodb.replicator.wait_until(drained.version, feed.WAIT_SECONDS)
        )

    def _leave(self) -> None:
        for manager in self._seen.values():
            self._waits.fallbacks.update(manager.nodb.fallbacks())
            # Service.stop() does not wait for the manager's own shutdown.
            manager.nodb.stop()

    def _watch_reporters(self) -> Callable[[Any], None]:
        """Follow the feed as a scheduler would; return what to do before a decision."""
        store = host_state_store.HostStateStore(
            namespaces.BUILT_IN, lambda payload: codec.decode(payload).state
        )
        synchronizer = loader.load("sqlalchemy", cfg.CONF)
        follower = replicator.Replicator(
            synchronizer,
            store,
            namespaces.BUILT_IN,
            identity=f"nova-suite-{uuid.uuid4()}",
            options=replication.ReplicatorOptions(wait_seconds=0.2),
        )
        follower.start()
        self.addCleanup(synchronizer.close)
        self.addCleanup(follower.stop)

        def watch(manager: Any) -> None:
            drained = self._reporters.drain()
            self._waits.wait(lambda: follower.wait_until(drained.version, feed.WAIT_SECONDS))
            self._waits.add_missed(self._reporters.missed())

        return watch
