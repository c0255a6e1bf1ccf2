# SPDX-License-Identifier: Apache-2.0
"""What claims in one scheduler worker: made together, over what the worker runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection

from nova import context as nova_context

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter import fitted
from nova_nodb_scheduler.observe import claim_metrics
from nova_nodb_scheduler.scheduling import claimed, host_facts
from nova_nodb_scheduler.scheduling import engine as engine_module
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import (
    claim_batches,
    claim_views,
    claimer,
    contract,
    latest_records,
    replicator,
)

#: The filter that keeps each policy.
_KEEPERS = {
    "ServerGroupAffinityFilter": claimer.STRICT[0],
    "ServerGroupAntiAffinityFilter": claimer.STRICT[1],
}


def make_claimer(
    synchronizer: contract.Synchronizer,
    store: host_state_store.HostStateStore,
    follower: replicator.Replicator,
    engine: engine_module.Engine,
    now_seconds: Callable[[], float],
    lease_seconds: float,
    meter: claim_metrics.ClaimMetrics,
    latest: latest_records.LatestRecords,
) -> claimer.LedgerClaimer:
    """Return a worker's claimer.

    :param now_seconds: the back end's clock, without I/O
    :param latest: shared with who settles in this worker
    """
    views = claim_views.StoreViews(store, follower, _Fits(engine).make)
    batches = claim_batches.ClaimBatches(
        synchronizer,
        follower.status().identity,
        lambda: str(uuid.uuid4()),
        lease_seconds,
        views.claimable,
        now_seconds=now_seconds,
        count_lost=meter.lost,
        count_absorbed=meter.absorbed,
        latest=latest,
        shown=views.shown,
    )
    return claimer.LedgerClaimer(
        batches, views, strict=strict_policies(engine.settings.enabled_filters), meter=meter
    )


def strict_policies(filters: Collection[str]) -> frozenset[claimer.Policy]:
    """Return the group policies that some enabled filters enforce, by the filters' names."""
    return frozenset(policy for name, policy in _KEEPERS.items() if name in filters)


class _Fits:
    """Makes what tells whether a request's claims fit, from the worker's own view."""

    def __init__(self, engine: engine_module.Engine) -> None:
        self._engine = engine
        self._bounds = claimed.Bounds.of(engine.settings)

    def make(self, snapshot: snapshot_module.Snapshot, request: requests.Request) -> claimed.Fits:
        forced = (request.force_hosts or request.force_nodes) and not request.check_type
        # As in Nova no filter looks at a forced host: Placement's capacity alone holds.
        bounds = claimed.Bounds() if forced else self._bounds
        filters = () if forced else self._engine.settings.enabled_filters
        fitting = fitted.Fitting(snapshot, filters, nova_context.get_admin_context())
        return claimed.make_fits(snapshot, bounds, self._aggregates_of, fitting.fits)

    def _aggregates_of(self, node: str) -> tuple[host_facts.Aggregate, ...]:
        frame = self._engine.frame
        with self._engine.lock:
            row = frame.row_of(node)
            if row is None:
                return ()
            known = frame.aggregates
            return tuple(known[each] for each in frame.facts(row).aggregates if each in known)
