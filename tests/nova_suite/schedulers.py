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
import time
import uuid
from collections.abc import Callable
from typing import Any
from unittest import mock

import attrs
import fixtures
from nova import objects
from nova import service as nova_service
from nova.scheduler import manager as nova_manager
from oslo_config import cfg

from nova_nodb_scheduler.nova_adapter.reporting import scopes
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.replication import replicator
from nova_nodb_scheduler.wire import codec
from tests.nova_suite import feed, reporters, statements
from tests.nova_suite.modes import waiting

#: "scheduler": ours instead of Nova's. "reporter": Nova's decides, and the
#: reporters' and the feed's word is compared with its tables each time.
MODE_VARIABLE = "NOVA_SUITE_PLUGIN"

#: How long the first request waits for the first proof of life.
PROOF_SECONDS = 3.0

#: How long one waits for a Placement that did not answer before.
SILENCE_SECONDS = 1.0


def manager_class() -> type[Any]:
    """Return the scheduler manager that the tests run with."""
    if os.environ[MODE_VARIABLE] == "reporter":
        return nova_manager.SchedulerManager
    module, _, name = waiting.manager().rpartition(".")
    found: type[Any] = getattr(importlib.import_module(module), name)
    return found


class SchedulersFixture(fixtures.Fixture):
    """The schedulers of one test, with their waits.

    A test may stop its scheduler and start another one.
    """

    def __init__(self, process: reporters.Reporters, waits: feed.FeedWaits) -> None:
        super().__init__()
        self._reporters = process
        self._waits = waits
        self._lock = threading.Lock()
        self._seen: dict[int, Any] = {}
        self._latest: Any = None

    def _setUp(self) -> None:
        chosen = manager_class()
        if os.environ[MODE_VARIABLE] == "reporter":
            before = self._follow()
        else:
            before = self._wait_for_feed
            self._statements = self.useFixture(statements.StatementsFixture())
            self.addCleanup(self._account)
            managers = {**nova_service.SERVICE_MANAGERS, "nova-scheduler": waiting.manager()}
            self.useFixture(fixtures.MonkeyPatch("nova.service.SERVICE_MANAGERS", managers))
        original = chosen.select_destinations

        @functools.wraps(original)
        def select_destinations(manager: Any, *args: Any, **kwargs: Any) -> Any:
            before(manager)
            answer = original(manager, *args, **kwargs)
            # A test that fails a request after its allocations replaces a step of Nova's
            # that is not taken where memory decides.
            if isinstance(manager._ensure_sufficient_hosts, mock.NonCallableMock):
                manager._ensure_sufficient_hosts()
            return answer

        self.useFixture(
            fixtures.MonkeyPatch(
                f"{chosen.__module__}.{chosen.__qualname__}.select_destinations",
                select_destinations,
            )
        )

    # -- with the plugin's scheduler ------------------------------------------

    def runtimes(self) -> list[Any]:
        """Return what the schedulers run that decided in this test."""
        return [manager.nodb for manager in self._seen.values()]

    def catch_up(self) -> None:
        """Wait for the feed of the scheduler that decided last, before another decides."""
        if self._latest is not None:
            runtime = self._latest.nodb
            self._waits.wait(lambda: self._caught_up(runtime))

    def _wait_for_feed(self, manager: Any) -> None:
        with self._lock:
            self._seen[id(manager)] = manager
            self._latest = manager
        self._waits.wait(lambda: self._caught_up(manager.nodb))

    def _caught_up(self, runtime: Any) -> bool:
        version = self._reporters.drain()
        if not runtime.replicator.wait_until(version, feed.WAIT_SECONDS):
            return False
        deadline = time.monotonic() + PROOF_SECONDS
        while self._unproved(runtime) and time.monotonic() < deadline:
            # Not a failed wait: the request counts its fallback itself.
            time.sleep(0.01)
        return self._mirrored(runtime)

    @staticmethod
    def _mirrored(runtime: Any) -> bool:
        """Have Placement's mirror compared now: Nova's tests write to Placement directly."""
        if runtime.decisions is None:
            return True
        keeper = runtime.decisions.mirror_keeper
        keeper._options = attrs.evolve(keeper._options, turn_seconds=0.01)
        try:
            compared = SchedulersFixture._compared(keeper)
        finally:
            # Between decisions it need not look a hundred times a second.
            keeper._options = attrs.evolve(keeper._options, turn_seconds=0.1)
        if not compared:
            # Without Placement, in the test or just now, the request finds that out itself.
            return compared is None
        version = runtime.synchronizer.head().version
        return bool(runtime.replicator.wait_until(version, feed.WAIT_SECONDS))

    @staticmethod
    def _compared(keeper: Any) -> bool | None:
        """Wait for a comparison that begins now; None where Placement does not answer."""
        # One that is under way may have listed before the last write.
        needed = keeper.status.sweeps + (2 if keeper._sweep is not None else 1)
        started, failed = time.monotonic(), keeper.status.failures
        while keeper.status.sweeps < needed:
            waited = time.monotonic() - started
            if failed < keeper.status.failures or (failed and waited > SILENCE_SECONDS):
                return None
            if waited > feed.WAIT_SECONDS:
                return False
            keeper._sweep_at = float("-inf")
            time.sleep(0.005)
        return True

    @staticmethod
    def _unproved(runtime: Any) -> bool:
        snapshot = runtime.store.snapshot()
        every_cell = {*snapshot.namespace(known_namespaces.CELLS.name).keys()}
        wanted = every_cell | {objects.CellMapping.CELL0_UUID, scopes.API}
        return bool(runtime.judge.judge(snapshot, sorted(wanted)).missing)

    def _account(self) -> None:
        for manager in self._seen.values():
            self._waits.fallbacks.update(manager.nodb.fallbacks())
            self._waits.decisions.update(manager.nodb.outcomes())
            self._waits.candidates.update(manager.nodb.candidates())
            self._waits.claims.update(manager.nodb.claim_metrics.figures())
            ends_claims = manager.nodb.decisions or manager.nodb.upkeep
            if ends_claims is not None:
                ended = ends_claims.claim_duty.figures()
                for name in ("settled", "expired", "reconciled"):
                    self._waits.claims[name] += int(ended[name])
            # Service.stop() does not wait for the manager's own shutdown.
            manager.nodb.stop()
        self._waits.reads.update(self._statements.counts)

    # -- with Nova's scheduler --------------------------------------------------

    def _follow(self) -> Callable[[Any], None]:
        """Follow the feed as a scheduler would; return what to do before a decision."""
        store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        synchronizer = loader.load("sqlalchemy", cfg.CONF)
        follower = replicator.Replicator(
            synchronizer, store, known_namespaces.BUILT_IN, identity=f"nova-suite-{uuid.uuid4()}"
        )
        follower.start()
        self.addCleanup(synchronizer.close)
        self.addCleanup(follower.stop)

        def compare(manager: Any) -> None:
            self._waits.wait(
                lambda: follower.wait_until(self._reporters.drain(), feed.WAIT_SECONDS)
            )
            self._waits.add_differences(self._reporters.differences())

        return compare
