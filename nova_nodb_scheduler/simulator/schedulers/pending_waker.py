# SPDX-License-Identifier: Apache-2.0
"""A scheduler's part in the queue of a run: the plugin's own worker, with made requests, timed."""

from __future__ import annotations

import collections
import time
import uuid
from collections.abc import Callable, Collection
from typing import Any

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.scheduling.waiting import wait_queues
from nova_nodb_scheduler.simulator.scenario import made_hosts, queue_scenario, workload
from nova_nodb_scheduler.simulator.schedulers import pipe_messages
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.synchronizer.waking import (
    followed_requests,
    hold_upkeep,
    newcomer_gate,
    pending_fit,
    queue_grants,
    queue_owners,
    queue_worker,
    usage_upkeep,
)

_INSTANCES = known_namespaces.INSTANCES.name


def flavor_of(request: pending.PendingRequest) -> workload.MadeFlavor:
    """Return the VM type of a request that waits, by its record."""
    needs = request.needs
    return workload.MadeFlavor(
        request.flavor,
        needs.get(made_hosts.VCPU, 0),
        needs.get(made_hosts.MEMORY_MB, 0),
        needs.get(made_hosts.DISK_GB, 0),
    )


class MadePlans:
    """Says whether made requests would find hosts; fulfils :class:`.pending_fit.FitPlanner`.

    :param note: told how long each took, seconds
    """

    def __init__(self, engine: engine_module.Engine, note: Callable[[float], None]) -> None:
        self._engine = engine
        self._note = note

    def view(self) -> None:
        """See :class:`.pending_fit.FitPlanner`: made hosts are always proved."""

    def fit(
        self,
        request: pending.PendingRequest,
        view: Any,
        *,
        among: Collection[str] | None = None,
        charged: pending_fit.Amounts | None = None,
    ) -> pending_fit.Fit:
        """See :class:`.pending_fit.FitPlanner`."""
        began = time.perf_counter()
        servers = request.unsent
        asked = workload.request(flavor_of(request), servers[0], request.project_id)

        def place(without: frozenset[str]) -> tuple[str, ...] | None:
            plan = self._engine.plan(asked, servers=len(servers), among=among, without=without)
            return pending_fit.walk(plan, servers, lambda _server: None)

        found = pending_fit.fit_beside(self._engine, request, charged or {}, place)
        self._note(time.perf_counter() - began)
        return found

    def shortage(
        self, request: pending.PendingRequest, most: int = pending_fit.MOST_HOSTS
    ) -> pending_fit.RoomShortage:
        """See :class:`.pending_fit.FitPlanner`."""
        asked = workload.request(flavor_of(request), request.key, request.project_id)
        return pending_fit.shortage(self._engine, asked, request.needs, most)


class WakeTimes:
    """Notes what a worker does and how long it takes; fulfils its meter. One thread at a time."""

    def __init__(self) -> None:
        self._rounds: collections.deque[float] = collections.deque()
        self._fits: collections.deque[float] = collections.deque()
        self._results: collections.Counter[str] = collections.Counter()
        self._candidates = 0
        self._backend_seconds = 0.0
        self._parked = 0

    def left(self, priority_class: str, ending: str, waited_seconds: float) -> None:
        """See the worker's meter: the world knows better."""

    def looked_at(self, result: str) -> None:
        """See the worker's meter."""
        self._results[result] += 1
        self._candidates += 1

    def round_took(self, seconds: float) -> None:
        """See the worker's meter."""
        if self._candidates:
            self._rounds.append(seconds - self._backend_seconds)
        self._candidates, self._backend_seconds = 0, 0.0

    def failed(self) -> None:
        """See the worker's meter."""
        self._results["failed"] += 1

    def fitted(self, seconds: float) -> None:
        """Note how long it took to see whether a request fits."""
        self._fits.append(seconds)

    def wrote(self, seconds: float) -> None:
        """Note how long a grant's write took: the back end's part of a round."""
        self._backend_seconds += seconds

    def count(self, known: int) -> None:
        """Note how many requests are known."""
        self._parked = max(self._parked, known)

    def take(self) -> pipe_messages.WakeNotes:
        """Return what was noted since the last call; any thread."""
        results, self._results = self._results, collections.Counter()
        return pipe_messages.WakeNotes(
            rounds=_taken(self._rounds),
            fits=_taken(self._fits),
            results=dict(results),
            parked=self._parked,
        )


def _taken(noted: collections.deque[float]) -> tuple[float, ...]:
    return tuple(noted.popleft() for _ in range(len(noted)))


class _TimedGrants(queue_grants.QueueGrants):
    """The plugin's grants, whose writes are told apart from what is decided."""

    def __init__(
        self,
        ledger: pending_ledger.PendingLedger,
        conductors: queue_grants.Conductors,
        times: WakeTimes,
    ) -> None:
        super().__init__(ledger, conductors, lambda: str(uuid.uuid4()))
        self._times = times

    def grant(
        self,
        request: pending.PendingRequest,
        purpose: pending.Purpose = pending.Purpose.PLACE,
        host: str = "",
    ) -> pending.PendingRequest | None:
        """See :class:`.queue_grants.QueueGrants`."""
        began = time.perf_counter()
        try:
            return super().grant(request, purpose, host)
        finally:
            self._times.wrote(time.perf_counter() - began)


class PendingWaker:
    """The worker of one scheduler, and the gate for requests that come to it.

    :param clock: the back end's seconds, as the run has them
    :param catch_up: brings the engine's hosts to the store's present
    :param conductors: told of grants
    """

    def __init__(
        self,
        identity: str,
        scenario: queue_scenario.QueueScenario,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        follower: replicator.Replicator,
        engine: engine_module.Engine,
        *,
        clock: Callable[[], float],
        catch_up: Callable[[], object],
        conductors: queue_grants.Conductors,
        silent_seconds: float,
    ) -> None:
        settings = scenario.settings()
        ledger = pending_ledger.PendingLedger(synchronizer, scenario.lease_seconds, clock)
        self.times = WakeTimes()
        self._store = store
        self._clock = clock
        self._followed = followed_requests.FollowedRequests(
            store, lambda: wait_queues.WaitQueues(settings)
        )
        owners = queue_owners.QueueOwners(store, identity, silent_seconds, lambda: True)
        plans = MadePlans(engine, self.times.fitted)
        usage = usage_upkeep.UsageUpkeep(self._followed, store, engine, self._places)
        holds = hold_upkeep.HoldUpkeep(
            self._followed, plans, ledger, scenario.hold_seconds, owners.is_own
        )
        self._worker = queue_worker.QueueWorker(
            queue_worker.WorkerParts(
                followed=self._followed,
                plans=plans,
                grants=_TimedGrants(ledger, conductors, self.times),
                owners=owners,
                engine=engine,
                catch_up=catch_up,
                is_following=lambda: follower.status().state is replicator_contract.State.FOLLOWING,
                meter=self.times,
                granted=(),
                observed=(),
                clock=clock,
                holds=hold_upkeep.HeldHosts(self._followed, engine),
                proved_upkeep=(holds,),
                usages=(usage,),
            )
        )
        self._gate = newcomer_gate.NewcomerGate(self._followed, ledger.read, clock)

    def start(self) -> None:
        """Wake in a thread; the feed is followed already."""
        self._worker.start()

    def stop(self) -> None:
        """End the thread."""
        self._worker.stop()

    def news(self) -> None:
        """Say that the feed brought something."""
        self._worker.wake()

    def round(self) -> float | None:
        """Look whom what happened helps; return when time alone has something to do next.

        :returns: by the clock
        """
        followed = self._followed
        self._worker.round()
        with followed.lock:
            return followed.queues.next_due_at()

    def ask(self, key: str, attempt: int) -> newcomer_gate.Admission:
        """Say whether an attempt of a request may look for hosts."""
        with self._followed.lock:
            self.times.count(len(self._followed.queues))
        return self._gate.ask(key, attempt)

    def _places(self, server: str) -> Collection[str]:
        """Return the host that a server is known to stand on."""
        view = self._store.snapshot().namespace(_INSTANCES)
        found = view.texts(made_hosts.instance_key(server), "host")
        return found if found is not None and found[0] else ()
