# SPDX-License-Identifier: Apache-2.0
"""Says how far a scheduler worker is with what it must have proved before it takes requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter import proof as proof_module
from nova_nodb_scheduler.nova_adapter import readiness
from nova_nodb_scheduler.nova_adapter import runtime as runtime_module
from nova_nodb_scheduler.synchronizer import replication

LOG = logging.getLogger(__name__)

#: Parts of the whole: to read the snapshot takes most of a start.
_SNAPSHOT, _SCOPES, _MIRROR, _COLUMNS = 0.7, 0.1, 0.1, 0.1


class StartProof:
    """Judges a worker's start. Used by one thread.

    :param runtime: started
    :param scopes: those that requests may go to: enabled cells, and ``api``
    """

    def __init__(
        self, runtime: runtime_module.SchedulerRuntime, scopes: Callable[[], Sequence[str]]
    ) -> None:
        self._runtime = runtime
        self._scopes = scopes
        self._total: int | None = None

    def judge(self) -> readiness.Progress:
        """Say how far it is. I/O only for one count of the records that are to be read.

        What is proved: every record that the back end took before (host
        states and claims alike: they come with one feed), each scope's
        reporters and sweep, the mirror of Placement, and that the columns of
        hosts are made, for which the first request would pay.
        """
        status = self._runtime.replicator.status()
        if not status.snapshots:
            detail = f" ({status.detail})" if status.detail else ""
            return readiness.Progress(
                _SNAPSHOT * self._read(status),
                (f"host states and claims: {status.state.value}{detail}",),
            )
        scopes = self._scopes()
        unproved = self._unproved(scopes)
        missing = list(_texts(unproved, len(scopes)))
        done = _SNAPSHOT + _SCOPES * (1 - len(unproved) / len(scopes))
        decisions = self._runtime.decisions
        refusal = None if decisions is None else decisions.refusal()
        if refusal is None:
            done += _MIRROR
        else:
            missing.append(f"mirror of Placement: {refusal}")
        if decisions is None or decisions.columns_made:
            done += _COLUMNS
        else:
            missing.append("columns of hosts: not made yet")
        return readiness.Progress(done, tuple(missing))

    def _unproved(self, scopes: Sequence[str]) -> Mapping[str, proof_module.Reason]:
        missing = self._runtime.views.proof().missing
        return {scope: missing[scope] for scope in scopes if scope in missing}

    def _read(self, status: replication.ReplicatorStatus) -> float:
        """Return which part of the first snapshot is read."""
        if status.state is not replication.State.SNAPSHOT:
            return 0.0
        if self._total is None:
            self._total = self._count()
        held = sum(self._runtime.counts().values())
        return min(1.0, held / self._total) if self._total else 0.0

    def _count(self) -> int:
        try:
            return int(self._runtime.synchronizer.statistics().get("records", 0))
        except (errors.NodbError, ValueError) as error:
            LOG.debug("How many records there are is not known: %(error)s", {"error": error})
            return 0


def _texts(unproved: Mapping[str, proof_module.Reason], scopes: int) -> Sequence[str]:
    if len(unproved) == scopes and set(unproved.values()) == {proof_module.Reason.FEED}:
        return (f"host states and claims: {proof_module.Reason.FEED.value}",)
    return [f"{scope}: {reason.value}" for scope, reason in unproved.items()]
