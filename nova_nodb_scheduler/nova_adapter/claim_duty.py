# SPDX-License-Identifier: Apache-2.0
"""The duty of settling claims in a scheduler worker, and its questions to Placement."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Collection

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement import reading, session
from nova_nodb_scheduler.store import host_state_store, namespace_view
from nova_nodb_scheduler.synchronizer import (
    claim_proof,
    contract,
    latest_records,
    replication,
    replicator,
    settling,
    settling_duty,
    settling_evidence,
    settling_status,
)

LOG = logging.getLogger(__name__)


class ClaimDuty:
    """Started and stopped with its worker, which settles its own; one of all settles the rest.

    :param now_seconds: the back end's clock, without I/O
    :param lease_seconds: how long a pending claim is held
    :param is_own: whether this worker prefers a host, by its uuid; None: no worker does
    :param latest: shared with who claims in this worker
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        follower: replicator.Replicator,
        now_seconds: Callable[[], float],
        lease_seconds: float,
        host: str,
        get: reading.Get = session.get,
        *,
        is_own: Callable[[str], bool] | None = None,
        latest: latest_records.LatestRecords | None = None,
    ) -> None:
        self._store = store
        self._follower = follower
        self._now_seconds = now_seconds
        self._lease_seconds = lease_seconds
        self._reader = reading.Reader(get)
        latest = latest or latest_records.LatestRecords()
        self.settler = settling.Settler(
            synchronizer,
            store,
            self._cursor,
            self._allocations,
            now_seconds,
            is_own=is_own,
            latest=latest,
        )
        self._proof = claim_proof.ClaimProof(
            synchronizer,
            store,
            self._cursor,
            self._allocations,
            now_seconds,
            latest,
            time.monotonic,
        )
        self._duty = settling_duty.SettlingDuty(
            synchronizer, self.settler, f"{host}:{os.getpid()}:{uuid.uuid4()}"
        )

    def start(self) -> None:
        """Start the thread; in the worker, after the feed was started."""
        self._duty.start()

    def stop(self) -> None:
        """End the thread; before the synchronizer is closed. Idempotent."""
        self._duty.stop()

    def prove(self, before: namespace_view.NamespaceView | None, own: Collection[str] = ()) -> int:
        """End claims that nothing stands behind, before a request is refused for them.

        :param before: claim records before it was decided
        :param own: the request's servers
        :returns: the version to wait for; 0 if nothing ended
        :raises NodbError: see :meth:`.claim_proof.ClaimProof.prove`
        """
        return self._proof.prove(before, own)

    def prove_of(self, servers: Collection[str]) -> int:
        """End claims of some servers that nothing stands behind; as :meth:`prove`.

        :raises NodbError: see :meth:`.claim_proof.ClaimProof.prove_of`
        """
        return self._proof.prove_of(servers)

    @property
    def settles(self) -> bool:
        """Whether this process settles for all; any thread."""
        return self._duty.settles

    def figures(self) -> dict[str, float]:
        """Return what is claimed now and what was ended here, by what is counted."""
        status, proof = self._duty.status, self._proof.status
        return {
            "settles": float(self._duty.settles),
            **settling_status.counts(
                self._store.snapshot(), self._now_seconds(), self._lease_seconds
            ),
            "settled": float(status.settled + proof.settled),
            "expired": float(status.expired + proof.expired),
            "reconciled": float(status.reconciled + proof.reconciled),
            "asked": float(status.asked + proof.asked),
            "unanswered": float(status.unanswered + proof.unanswered),
            "removed": float(status.removed),
            "failures": float(self._duty.failures),
        }

    def _cursor(self) -> records.Cursor | None:
        generation = self._follower.generation
        status = self._follower.status()
        if (
            status.state is not replication.State.FOLLOWING
            or status.cursor_version is None
            or generation != self._follower.generation
        ):
            return None
        return records.Cursor(status.epoch, status.cursor_version)

    def _allocations(self, consumer: str) -> settling_evidence.Allocations | None:
        try:
            return self._reader.consumer(consumer)
        except reading.PlacementUnanswered as error:
            LOG.debug("Whether claims have allocations is not known: %(error)s", {"error": error})
            return None
