# SPDX-License-Identifier: Apache-2.0
"""What a scheduler's own store shows to whoever claims."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.scheduling import claim_facts, group_members, namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import (
    claim_batches,
    claim_rules,
    group_rules,
    replication,
    replicator,
)

#: Of a request decided on a snapshot, what tells whether a claim fits.
MakeFits = Callable[[snapshot_module.Snapshot, requests.Request], claim_rules.Fits]


class StoreViews:
    """Views of a store that a replicator keeps; any thread, no I/O."""

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        follower: replicator.Replicator,
        make_fits: MakeFits,
    ) -> None:
        self._store = store
        self._follower = follower
        self._make_fits = make_fits

    def view(self, request: requests.Request) -> claim_batches.View | None:
        """See :class:`.claimer.Views`."""
        moment = self._moment()
        if moment is None:
            return None
        cursor, snapshot = moment
        shown = Shown(snapshot)
        return claim_batches.View(
            cursor,
            self._make_fits(snapshot, request),
            shown.record,
            shown.ended,
            functools.partial(group_members.place_of, snapshot),
        )

    def shown(
        self, keys: Iterable[records.RecordKey]
    ) -> tuple[str, Iterable[records.Record]] | None:
        """Return the epoch, and the records of some keys that the feed has brought by now."""
        moment = self._moment()
        if moment is None:
            return None
        cursor, snapshot = moment
        return cursor.epoch, list(filter(None, map(Shown(snapshot).record, keys)))

    def _moment(self) -> tuple[records.Cursor, snapshot_module.Snapshot] | None:
        """Return how far the feed was followed, and what it brought; None if it is not."""
        generation = self._follower.generation
        # First the cursor: the snapshot holds all up to it, and perhaps more.
        status = self._follower.status()
        snapshot = self._store.snapshot()
        if (
            status.state is not replication.State.FOLLOWING
            or status.cursor_version is None
            or generation != self._follower.generation
        ):
            return None
        return records.Cursor(status.epoch, status.cursor_version), snapshot

    def members(self, group: requests.Group) -> group_rules.Known:
        """See :class:`.claimer.Views`: where members stand, and between which hosts they move."""
        return group_members.known(self._store.snapshot(), group)

    def claimable(self, host: str) -> bool:
        """Tell whether a host was published in the epoch that the store holds."""
        return host in self._store.snapshot().namespace(namespaces.COMPUTE_NODES.name)


class Shown:
    """What one snapshot shows of claims.

    Public for who has no feed, but a store of one host's records.
    """

    def __init__(self, snapshot: snapshot_module.Snapshot) -> None:
        self._snapshot = snapshot

    def record(self, key: records.RecordKey) -> records.Record | None:
        """Return a record as it is shown; None where it is not."""
        stored = self._snapshot.namespace(key.namespace).get(key.key)
        if stored is None:
            return None
        return records.Record(key, stored.revision, stored.version, stored.payload)

    def ended(self, claim: model.Claim, held: model.HeldClaim) -> bool:
        """Tell whether a confirmed claim is of a move that is over, for another begins.

        The former claim of a server that stays on its node was for a size that
        its migration has by now. One that comes has no allocation there any more:
        what it claimed before failed, or went back.
        """
        provider = self._snapshot.namespace(namespaces.PROVIDERS.name).get(claim.host)
        if held.confirmed_by is None or provider is None or provider.version <= held.confirmed_by:
            return False
        allocations = provider.state.get("allocations") or {}
        return claim_facts.stays(claim.node) or claim.consumer not in allocations
