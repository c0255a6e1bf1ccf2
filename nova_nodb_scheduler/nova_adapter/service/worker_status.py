# SPDX-License-Identifier: Apache-2.0
"""What a scheduler worker tells of itself, and how far it is with its start."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence

from nova import objects as nova_objects

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.nova_adapter.reporting import state_proof as proof_module
from nova_nodb_scheduler.nova_adapter.service import scheduler_runtime as runtime_module
from nova_nodb_scheduler.nova_adapter.service import start_gate
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer.replication import replicator_contract
from nova_nodb_scheduler.wire import objects

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
        self._replicator = runtime.replicator
        self._synchronizer = runtime.synchronizer
        self._views = runtime.views
        self._scopes = scopes
        self._total: int | None = None

    def judge(self) -> start_gate.StartProgress:
        """Say how far it is. I/O only for one count of the records that are to be read.

        What is proved: every record that the back end took before (host
        states and claims alike: they come with one feed), each scope's
        reporters and sweep, the mirror of Placement, and that the columns of
        hosts are made, for which the first request would pay.
        """
        status = self._replicator.status()
        if not status.snapshots:
            detail = f" ({status.detail})" if status.detail else ""
            return start_gate.StartProgress(
                _SNAPSHOT * self._read(status),
                (f"host states and claims: {status.state.value}{detail}",),
            )
        scopes = self._scopes()
        unproved = self._unproved(scopes)
        missing = list(_texts(unproved, len(scopes)))
        done = _SNAPSHOT + _SCOPES * (1 - len(unproved) / len(scopes))
        decisions = self._runtime.decisions
        refusal = None if decisions is None else decisions.placement_mirror.refusal()
        if refusal is None:
            done += _MIRROR
        else:
            missing.append(f"mirror of Placement: {refusal}")
        if decisions is None or decisions.columns_made:
            done += _COLUMNS
        else:
            missing.append("columns of hosts: not made yet")
        return start_gate.StartProgress(done, tuple(missing))

    def _unproved(self, scopes: Sequence[str]) -> Mapping[str, proof_module.UnprovedReason]:
        missing = self._views.proof().missing
        return {scope: missing[scope] for scope in scopes if scope in missing}

    def _read(self, status: replicator_contract.ReplicatorStatus) -> float:
        """Return which part of the first snapshot is read."""
        if status.state is not replicator_contract.State.SNAPSHOT:
            return 0.0
        if self._total is None:
            self._total = self._count()
        held = sum(self._runtime.counts().values())
        return min(1.0, held / self._total) if self._total else 0.0

    def _count(self) -> int:
        try:
            return int(self._synchronizer.statistics().get("records", 0))
        except (errors.NodbError, ValueError) as error:
            LOG.debug("How many records there are is not known: %(error)s", {"error": error})
            return 0


def _texts(unproved: Mapping[str, proof_module.UnprovedReason], scopes: int) -> Sequence[str]:
    if len(unproved) == scopes and set(unproved.values()) == {proof_module.UnprovedReason.FEED}:
        return (f"host states and claims: {proof_module.UnprovedReason.FEED.value}",)
    return [f"{scope}: {reason.value}" for scope, reason in unproved.items()]


#: Most quarantined records that are listed; all are counted.
_MAX_LISTED = 100


def build(runtime: runtime_module.SchedulerRuntime) -> objects.SchedulerStatus:
    """Return the status of now."""
    facts = runtime.facts
    snapshot = runtime.store.snapshot()
    quarantine = runtime.replicator.quarantine
    p50, p99 = runtime.percentiles_seconds()
    return objects.SchedulerStatus(
        host=facts.host,
        pid=os.getpid(),
        worker=runtime.replicator.status().identity,
        plugin_version=facts.plugin_version,
        nova_version=facts.nova_version,
        feed=_feed(runtime),
        scopes=_scopes(runtime, snapshot),
        reporters=_reporters(snapshot, runtime.clock.now_seconds()),
        quarantined=dict(quarantine.count_by_namespace()),
        quarantine=[
            objects.QuarantineEntry(
                namespace=each.key.namespace,
                key=each.key.key,
                revision=each.revision,
                version=each.version,
                reason=each.reason,
                size_bytes=each.size_bytes,
            )
            for each in quarantine.entries()[:_MAX_LISTED]
        ],
        fallbacks=runtime.fallbacks(),
        outcomes=runtime.outcomes(),
        schedule_seconds_p50=p50,
        schedule_seconds_p99=p99,
        records={name: int(count) for name, count in runtime.counts().items()},
    )


def _feed(runtime: runtime_module.SchedulerRuntime) -> objects.FeedStatus:
    status = runtime.replicator.status()
    starting = runtime.starting()
    return objects.FeedStatus(
        state=runtime.state(),
        driver=status.driver,
        epoch=status.epoch,
        cursor_version=status.cursor_version,
        lag_seconds=status.lag_seconds,
        proof_age_seconds=status.proof_age_seconds,
        fetch_age_seconds=status.fetch_age_seconds,
        resyncs=dict(status.resyncs),
        snapshots=status.snapshots,
        applied=status.applied,
        quarantined=status.quarantined,
        anti_entropy=dict(status.anti_entropy),
        sweeps=status.sweeps,
        failures=status.failures,
        detail=status.detail if starting is None else "; ".join(starting.missing),
    )


def _scopes(
    runtime: runtime_module.SchedulerRuntime, snapshot: snapshot_module.Snapshot
) -> list[objects.ScopeStatus]:
    hosts = runtime.hosts_by_cell(snapshot)
    fallbacks = runtime.fallbacks_by_cell()
    # Cells the scheduler knows, and those it has hosts of without knowing them.
    always = (nova_objects.CellMapping.CELL0_UUID, scopes_module.API)
    scopes = sorted({*runtime.cells(), *hosts, *fallbacks, *always})
    missing = runtime.judge.judge(snapshot, scopes).missing
    return [
        objects.ScopeStatus(
            scope=scope,
            hosts=hosts.get(scope, 0),
            proved=scope not in missing,
            reason=missing[scope].value if scope in missing else "",
            fallbacks=fallbacks.get(scope, {}),
        )
        for scope in scopes
    ]


def _reporters(
    snapshot: snapshot_module.Snapshot, now_seconds: float
) -> Sequence[objects.ReporterStatus]:
    view = snapshot.namespace(known_namespaces.REPORTERS.name)
    return [
        objects.ReporterStatus(
            reporter_id=key,
            age_seconds=now_seconds - float(beat.get("beat_at", 0.0)),
            beat=beat,
        )
        for key, beat in sorted(view.states(), key=lambda each: each[0])
    ]
