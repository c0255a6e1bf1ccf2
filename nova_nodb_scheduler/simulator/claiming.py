# SPDX-License-Identifier: Apache-2.0
"""A scheduler's claims in a run: the plugin's own, or nobody who claims."""

from __future__ import annotations

import uuid

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import claimed
from nova_nodb_scheduler.scheduling import claimer as contract
from nova_nodb_scheduler.scheduling import options as options_module
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import (
    claim_batches,
    claim_rules,
    claim_views,
    claimer,
    replicator,
)
from nova_nodb_scheduler.synchronizer import contract as synchronizer_contract


def make(
    synchronizer: synchronizer_contract.Synchronizer,
    store: host_state_store.HostStateStore,
    follower: replicator.Replicator,
    settings: options_module.SchedulingOptions,
    *,
    identity: str,
    lease_seconds: float,
) -> contract.Claimer:
    """Return the claimer that the plugin makes of the same parts.

    :param lease_seconds: how long a pending claim is held
    """
    bounds = claimed.Bounds.of(settings)

    def fits(snapshot: snapshot_module.Snapshot, _request: requests.Request) -> claim_rules.Fits:
        return claimed.make_fits(snapshot, bounds)

    views = claim_views.StoreViews(store, follower, fits)
    batches = claim_batches.ClaimBatches(
        synchronizer, identity, lambda: str(uuid.uuid4()), lease_seconds, views.claimable
    )
    return claimer.LedgerClaimer(batches, views)
