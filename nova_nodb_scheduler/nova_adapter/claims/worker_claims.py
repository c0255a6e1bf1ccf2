# SPDX-License-Identifier: Apache-2.0
"""What a scheduler worker claims and settles with: its claimer, and its duty of settling."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from nova import context as nova_context

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter.conversion import numa_pci_claims
from nova_nodb_scheduler.nova_adapter.placement.mirror import placement_reader
from nova_nodb_scheduler.observe import claim_metrics
from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.scheduling.reservations import claim_fit
from nova_nodb_scheduler.store import host_state_store, store_snapshot
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import claim_views, group_places, ledger_claimer
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.replication import replicator
from nova_nodb_scheduler.synchronizer.settlement import (
    claim_proof,
    claim_reaper,
    settlement_rules,
    settlement_worker,
)

LOG = logging.getLogger(__name__)

#: The filter that keeps each policy.
_KEEPERS = {
    "ServerGroupAffinityFilter": ledger_claimer.STRICT[0],
    "ServerGroupAntiAffinityFilter": ledger_claimer.STRICT[1],
}


def make_claimer(
    synchronizer: contract.Synchronizer,
    store: host_state_store.HostStateStore,
    follower: replicator.Replicator,
    engine: engine_module.Engine,
    now_seconds: Callable[[], float],
    lease_seconds: float,
    meter: claim_metrics.ClaimMetrics,
    cache: record_editor.RecordCache,
    memory: group_places.MemberMemory,
) -> ledger_claimer.LedgerClaimer:
    """Return a worker's claimer.

    :param now_seconds: the back end's clock, without I/O
    :param cache: shared with who settles in this worker
    :param memory: see :class:`ledger_claimer.ClaimBatches`
    """
    views = claim_views.StoreViews(store, follower, _Fits(engine).make)
    batches = ledger_claimer.ClaimBatches(
        synchronizer,
        follower.status().identity,
        lambda: str(uuid.uuid4()),
        lease_seconds,
        views.claimable,
        now_seconds=now_seconds,
        count_lost=meter.lost,
        count_absorbed=meter.absorbed,
        cache=cache,
        shown=views.shown,
        memory=memory,
    )
    return ledger_claimer.LedgerClaimer(
        batches, views, strict=strict_policies(engine.settings.enabled_filters), meter=meter
    )


def strict_policies(filters: Collection[str]) -> frozenset[ledger_claimer.Policy]:
    """Return the group policies that some enabled filters enforce, by the filters' names."""
    return frozenset(policy for name, policy in _KEEPERS.items() if name in filters)


class _Fits:
    """Makes what tells whether a request's claims fit, from the worker's own view."""

    def __init__(self, engine: engine_module.Engine) -> None:
        self._engine = engine
        self._filters = tuple(engine.settings.enabled_filters)
        self._bounds = claim_fit.InstanceLimits.of(engine.settings)

    def make(self, snapshot: store_snapshot.Snapshot, request: requests.Request) -> claim_fit.Fits:
        forced = (request.force_hosts or request.force_nodes) and not request.check_type
        # As in Nova no filter looks at a forced host: Placement's capacity alone holds.
        bounds = claim_fit.InstanceLimits() if forced else self._bounds
        filters = () if forced else self._filters

        def fitted(uuid: str, wanted: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
            context = nova_context.get_admin_context()
            fitting = numa_pci_claims.NumaPciFitting(snapshot, filters, context)
            return fitting.fits(uuid, wanted, others)

        return claim_fit.make_fits(snapshot, bounds, self._aggregates_of, fitted)

    def _aggregates_of(self, node: str) -> tuple[host_facts.HostAggregate, ...]:
        frame = self._engine.frame
        with self._engine.lock:
            row = frame.row_of(node)
            if row is None:
                return ()
            known = frame.aggregates
            return tuple(known[each] for each in frame.facts(row).aggregates if each in known)


class ClaimDuty:
    """Started and stopped with its worker, which settles its own; one of all settles the rest.

    :param now_seconds: the back end's clock, without I/O
    :param lease_seconds: how long a pending claim is held
    :param options: by which it settles; None: the settler's own
    :param is_own: whether this worker prefers a host, by its uuid; None: no worker does
    :param is_judged: see :class:`settlement_rules.SettlementEvidence`
    :param cache: shared with who claims in this worker
    :param wait_for: blocks until a version is in the worker's store; raises a NodbError
        where that takes too long
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        follower: replicator.Replicator,
        now_seconds: Callable[[], float],
        lease_seconds: float,
        host: str,
        get: placement_reader.Get = placement_reader.get_from_placement,
        *,
        options: settlement_worker.SettlementOptions | None = None,
        is_own: Callable[[str], bool] | None = None,
        is_judged: settlement_rules.IsJudged = settlement_rules.always_judged,
        cache: record_editor.RecordCache | None = None,
        wait_for: Callable[[int], None] = lambda version: None,
    ) -> None:
        self._store = store
        self._wait_for = wait_for
        self._now_seconds = now_seconds
        self._lease_seconds = lease_seconds
        self._reader = placement_reader.PlacementReader(get)
        cache = cache or record_editor.RecordCache()
        self.settler = settlement_worker.Settler(
            synchronizer,
            store,
            follower.followed,
            self._allocations,
            now_seconds,
            options,
            is_own=is_own,
            cache=cache,
            is_judged=is_judged,
        )
        #: Ends claims that nothing stands behind, before a request is refused for them.
        self.proof = claim_proof.ClaimProof(
            synchronizer,
            store,
            follower.followed,
            self._allocations,
            now_seconds,
            cache,
            time.monotonic,
        )
        self._duty = settlement_worker.SettlementWorker(
            synchronizer, self.settler, f"{host}:{os.getpid()}:{uuid.uuid4()}"
        )

    def start(self) -> None:
        """Start the thread; in the worker, after the feed was started."""
        self._duty.start()

    def stop(self) -> None:
        """End the thread; before the synchronizer is closed. Idempotent."""
        self._duty.stop()

    def end_former_claims(self, servers: Collection[str]) -> None:
        """End what servers claimed before that a request comes for, where nothing stands behind.

        One that moves again within seconds would be refused room that it holds itself, or
        be sent elsewhere. Whatever fails here, the request is decided all the same.
        """
        try:
            ended = self.proof.prove_of(servers)
            if ended:
                self._wait_for(ended)
        except errors.NodbError as error:
            LOG.info("Former claims of servers stay: %(error)s", {"error": error})
        except Exception:
            LOG.exception("Former claims of servers cannot be looked at.")

    def some_ended(
        self,
        before: store_snapshot.NamespaceView,
        servers: Collection[str],
        decided_at: float | None = None,
        group: str | None = None,
    ) -> bool:
        """Say whether claims kept hosts full for nothing, where Nova's own code found none.

        As far as the mirror shows; those of the request's servers are asked for anyway.
        Where nobody can tell they stand.

        :param before: claim records as the request saw them
        :param decided_at: when that was, by the monotonic clock
        :param group: uuid of the servers' group
        :raises NodbError: some did, and did not come back with the feed in time
        """
        ended = False
        # A group's places are looked at behind the claims of its members.
        for _ in range(1 if group is None else 2):
            try:
                found = self.proof.prove(before, servers, decided_at=decided_at, group=group)
            except errors.NodbError as error:
                LOG.warning(
                    "Whether claims keep hosts full cannot be proved: %(error)s", {"error": error}
                )
                break
            if found.version:
                self._wait_for(found.version)
                ended = True
            if found.complete:
                break
        return ended

    @property
    def settles(self) -> bool:
        """Whether this process settles for all; any thread."""
        return self._duty.settles

    def look_anew(self) -> None:
        """Look at all claims in the next turn; called by the thread that takes turns."""
        self.settler.look_anew()

    def figures(self) -> dict[str, float]:
        """Return what is claimed now and what was ended here, by what is counted."""
        status, proof = self._duty.status, self.proof.status
        return {
            "settles": float(self._duty.settles),
            **claim_reaper.claim_counts(
                self._store.snapshot(), self._now_seconds(), self._lease_seconds
            ),
            "settled": float(status.settled + proof.settled),
            "expired": float(status.expired + proof.expired),
            "reconciled": float(status.reconciled + proof.reconciled),
            "asked": float(status.asked + proof.asked),
            "unanswered": float(status.unanswered + proof.unanswered),
            "unreadable": float(status.unreadable + proof.unreadable),
            "removed": float(status.removed),
            "failures": float(self._duty.failures),
        }

    def _allocations(self, consumer: str) -> settlement_rules.Allocations | None:
        try:
            return self._reader.consumer(consumer)
        except placement_reader.PlacementUnanswered as error:
            LOG.debug("Whether claims have allocations is not known: %(error)s", {"error": error})
            return None
