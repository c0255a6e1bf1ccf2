# SPDX-License-Identifier: Apache-2.0
"""The queue's share of a scheduler worker: what wakes requests, the gate, the desk."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending, records
from nova_nodb_scheduler.nova_adapter.decisions import decision_assembly
from nova_nodb_scheduler.nova_adapter.service import scheduler_runtime as runtime_module
from nova_nodb_scheduler.nova_adapter.waiting import conductor_rpc
from nova_nodb_scheduler.nova_adapter.waiting.waking import (
    build_requests,
    pending_plans,
    queue_desk,
    queue_reconciler,
)
from nova_nodb_scheduler.observe import queue_metrics
from nova_nodb_scheduler.scheduling.frame import host_places
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.waiting import backlog, queue_settings, wait_queues
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.synchronizer.waking import (
    arrivals,
    followed_requests,
    hold_upkeep,
    newcomer_gate,
    queue_grants,
    queue_owners,
    queue_worker,
    usage_upkeep,
    waiting_events,
)

LOG = logging.getLogger(__name__)

_PENDING = known_namespaces.PENDING.name

#: What may help somebody who waits: records of requests, and what hosts are made of, but for
#: heartbeats. A service that is up again is found by the next look.
_TELLING = frozenset(
    each.name
    for each in (
        known_namespaces.PENDING,
        known_namespaces.COMPUTE_NODES,
        known_namespaces.SERVICES,
        known_namespaces.AGGREGATES,
        known_namespaces.PROVIDERS,
        known_namespaces.CLAIM_RECORDS,
    )
)

#: How long the figures of one scrape serve: it asks for a dozen metrics.
_SCRAPE_SECONDS = 2.0


@attrs.frozen
class QueueOptions:
    """See the options of the same names.

    :param silent_scheduler_seconds: how old a living scheduler's heartbeat is at most
    """

    settings: queue_settings.QueueSettings
    max_wait_seconds: float
    silent_scheduler_seconds: float


@attrs.frozen
class QueueSinks:
    """Who is told of what becomes of requests.

    :param granted: of those that this worker dispatched
    :param observed: of those that are this worker's, by what it sees
    """

    granted: Sequence[waiting_events.EventSink] = ()
    observed: Sequence[waiting_events.EventSink] = ()


def make_desk(
    runtime: runtime_module.SchedulerRuntime, lease_seconds: float
) -> queue_desk.QueueDesk:
    """Return the desk of a scheduler that wakes nobody."""
    ledger = pending_ledger.PendingLedger(runtime.synchronizer, lease_seconds)
    return queue_desk.QueueDesk(_desk_parts(runtime, ledger, _grants(ledger)))


class QueueRuntime:
    """Made with a worker's runtime, started and stopped by it.

    :param read: reads payloads
    """

    def __init__(
        self,
        runtime: runtime_module.SchedulerRuntime,
        decisions: decision_assembly.DecisionAssembly,
        read: Callable[[pending_ledger.PendingLedger], pending_plans.ReadRequest],
        options: QueueOptions,
        sinks: QueueSinks,
    ) -> None:
        self._runtime = runtime
        self._options = options
        settings = options.settings
        clock = runtime.clock.now_seconds
        self.ledger = pending_ledger.PendingLedger(runtime.synchronizer, settings.lease_seconds)
        self.followed = followed_requests.FollowedRequests(
            runtime.store, lambda: wait_queues.WaitQueues(settings)
        )
        grants = self._grants = _grants(self.ledger)
        read_request = read(self.ledger)
        plans = pending_plans.PendingPlans(decisions, runtime.views, read_request)
        self.meter = queue_metrics.QueueMetrics(runtime.metrics.registry)
        identity = runtime.replicator.status().identity
        self.owners = queue_owners.QueueOwners(
            runtime.store, identity, options.silent_scheduler_seconds, self.works
        )
        usage = usage_upkeep.UsageUpkeep(
            self.followed, runtime.store, decisions.engine, decisions.parts.places
        )
        self.worker = queue_worker.QueueWorker(
            queue_worker.WorkerParts(
                followed=self.followed,
                plans=plans,
                grants=grants,
                owners=self.owners,
                engine=decisions.engine,
                catch_up=lambda: decisions.frame_keeper.catch_up(time.time()),
                is_following=lambda: runtime.replicator.followed() is not None,
                meter=self.meter,
                granted=sinks.granted,
                observed=sinks.observed,
                clock=clock,
                holds=hold_upkeep.HeldHosts(self.followed, decisions.engine),
                proved_upkeep=(
                    hold_upkeep.HoldUpkeep(
                        self.followed,
                        plans,
                        self.ledger,
                        settings.hold_seconds,
                        self.owners.is_own,
                    ),
                ),
                usages=(usage,),
                arrivals=arrivals.ArrivedRequests(
                    self.followed, decisions.parts.places, self.ledger, self.owners.is_own
                ),
            )
        )
        self.reconciler = queue_reconciler.QueueReconciler(
            queue_reconciler.ReconcilerParts(
                synchronizer=runtime.synchronizer,
                ledger=self.ledger,
                followed=self.followed,
                holder=identity,
                unreadable=self._unreadable,
                made_at=build_requests.made_at,
                in_cells=build_requests.in_cells,
                servers_of=functools.partial(_servers_of, read_request),
                max_wait_seconds=options.max_wait_seconds,
                meter=self.meter,
                clock=clock,
            )
        )
        self.gate = newcomer_gate.NewcomerGate(self.followed, self.ledger.read, clock)
        self.desk = queue_desk.QueueDesk(
            _desk_parts(runtime, self.ledger, grants, plans=plans, followed=self.followed)
        )
        self.meter.watch(
            queue_metrics.cached(self._figures, _SCRAPE_SECONDS, time.monotonic),
            self.worker.is_running,
        )
        runtime.replicator.subscribe(self._look_at, self.worker.wake)
        decisions.orphan_duty.tell(self._try_who_holds_room)
        self._sinks = sinks

    def start(self) -> None:
        """Start the threads; after the feed and what decides."""
        self.worker.start()
        self.reconciler.start()

    def stop(self) -> None:
        """Stop the threads; before what decides, and the feed. Idempotent."""
        self.reconciler.stop()
        self.worker.stop()
        for sink in (*self._sinks.granted, *self._sinks.observed):
            sink.stop()

    def _look_at(self, changes: Sequence[records.Change]) -> None:
        if any(each.key.namespace in _TELLING for each in changes):
            self.worker.wake()

    def _try_who_holds_room(self, server: str) -> None:
        """Have a request tried that waits, and for which room is allocated all the same.

        Its scheduler was killed, or slept, and wrote for an attempt that its conductor had given
        up. In a full cloud it would wait for that very room. Whoever tries it clears that away.
        """
        # Of the store, not of the order: each request that comes asks for its lock, and many may
        # wait.
        store = self._runtime.store
        view = store.snapshot().namespace(_PENDING)
        request = next(
            (
                each
                for each in itertools.chain([view.digest(server)], view.digests())
                # What was sent has room by right, though not all see its server yet.
                if isinstance(each, pending.PendingRequest) and server in each.unsent
            ),
            None,
        )
        if request is not None and request.state is pending.PendingState.WAITING:
            LOG.info(
                "Request %(key)s is granted again: it waits, and %(server)s holds room already.",
                {"key": request.key, "server": server},
            )
            self._grants.grant(request)

    def works(self) -> bool:
        """Say whether this worker wakes requests: others leave some to it."""
        return self.worker.is_running() and self.worker.proved

    def _unreadable(self) -> Iterable[str]:
        runtime = self._runtime
        return (*self.followed.unreadable, *runtime.replicator.quarantine.keys(_PENDING))

    def _figures(self) -> queue_metrics.WaitingFigures:
        options = self._options
        runtime = self._runtime
        now = runtime.clock.now_seconds()
        unreadable = _quarantined(self._runtime)
        with self.followed.lock:
            queues = self.followed.queues
            waiting = queues.backlog
            by_class, by_project = waiting.by_class(), waiting.by_project()
            by_flavor, total = waiting.by_flavor(), waiting.total()
            held_hosts = len(queues.held_hosts(now))
            unreadable += len(self.followed.unreadable)
        # A class that nobody waits of has a series, too: it falls to 0, and does not end.
        none = dict.fromkeys(options.settings.class_names, 0)
        return queue_metrics.WaitingFigures(
            servers_by_class=none | {name: each.servers for name, each in by_class.items()},
            servers_by_project={name: each.servers for name, each in by_project.items()},
            servers_by_flavor={name: each.servers for name, each in by_flavor.items()},
            requests=total.requests,
            oldest_seconds=dict.fromkeys(none, 0.0) | self._ages(now),
            amounts=total.amounts,
            unreadable=unreadable,
            held_hosts=held_hosts,
        )

    def _ages(self, now: float) -> dict[str, float]:
        """Return the greatest age of requests that wait, by class: one pass over the records."""
        runtime = self._runtime
        oldest: dict[str, float] = {}
        for each in runtime.store.snapshot().namespace(_PENDING).digests():
            if isinstance(each, pending.PendingRequest) and backlog.is_parked(each):
                age = max(0.0, now - each.asked_at)
                oldest[each.priority_class] = max(age, oldest.get(each.priority_class, 0.0))
        return oldest


def _servers_of(read: pending_plans.ReadRequest, key: str) -> tuple[str, ...]:
    """Return the servers of a request by its payload; none where that cannot be read."""
    with contextlib.suppress(errors.UndecodableRecord):
        restored = read(key)
        if restored is not None:
            return restored.servers
    return ()


def _grants(ledger: pending_ledger.PendingLedger) -> queue_grants.QueueGrants:
    return queue_grants.QueueGrants(ledger, conductor_rpc.ConductorApi(), lambda: str(uuid.uuid4()))


def _quarantined(runtime: runtime_module.SchedulerRuntime) -> int:
    quarantine = runtime.replicator.quarantine
    return quarantine.count_by_namespace().get(_PENDING, 0)


def _desk_parts(
    runtime: runtime_module.SchedulerRuntime,
    ledger: pending_ledger.PendingLedger,
    grants: queue_grants.QueueGrants,
    **more: Any,
) -> queue_desk.DeskParts:
    def place(uuid_: str) -> host_places.HostPlace | None:
        if runtime.decisions is None:
            return None
        engine = runtime.decisions.engine
        with engine.lock:
            row = engine.frame.row_of(uuid_)
            return None if row is None else engine.frame.place(row)

    return queue_desk.DeskParts(
        host=runtime.facts.host,
        store=runtime.store,
        ledger=ledger,
        grants=grants,
        clock=runtime.clock.now_seconds,
        quarantined=lambda: _quarantined(runtime),
        proof_age_seconds=lambda: runtime.replicator.status().proof_age_seconds,
        place=place,
        **more,
    )
