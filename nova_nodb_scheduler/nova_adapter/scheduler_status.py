# SPDX-License-Identifier: Apache-2.0
"""What a scheduler worker tells of itself, from memory alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from nova import objects as nova_objects

from nova_nodb_scheduler.nova_adapter import runtime as runtime_module
from nova_nodb_scheduler.nova_adapter import scopes as scopes_module
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.wire import objects

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
    hosts = runtime.hosts_by_cell()
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
    view = snapshot.namespace(namespaces.REPORTERS.name)
    found: list[tuple[str, Mapping[str, Any]]] = []
    for key in sorted(view.row_keys()):
        record = view.get(key)
        if record is not None:
            found.append((key, record.state))
    return [
        objects.ReporterStatus(
            reporter_id=key,
            age_seconds=now_seconds - float(beat.get("beat_at", 0.0)),
            beat=beat,
        )
        for key, beat in found
    ]
