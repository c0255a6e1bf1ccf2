# SPDX-License-Identifier: Apache-2.0
"""What a worker shows to those who list hosts: a snapshot, and what of it is proved.

What proves by time (the feed, Placement's mirror) is asked before the snapshot is taken, and
so is what cannot be read: asked afterwards, it may be proved by what came since, which the
snapshot lacks. What the snapshot itself says, such as reporters' heartbeats, is judged behind
it. And a store that was rebuilt in between proves nothing either way: its snapshot may be half
of it.
"""

from __future__ import annotations

from nova import objects as nova_objects

from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from nova_nodb_scheduler.nova_adapter.service import scheduler_runtime
from nova_nodb_scheduler.rpc import host_endpoint
from nova_nodb_scheduler.scheduling.facts import journal_reader
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import objects

#: Scopes without compute nodes.
_WITHOUT_HOSTS = (scopes_module.API, nova_objects.CellMapping.CELL0_UUID)
#: Why nothing of Placement is proved where no candidates come from memory.
NO_MIRROR = "no mirror is kept here"
_FEED = state_proof.UnprovedReason.FEED.value
_UNREADABLE = state_proof.UnprovedReason.QUARANTINE.value


class JudgedSnapshots:
    """Takes snapshots of a worker's store and judges them; any thread, without I/O."""

    def __init__(self, runtime: scheduler_runtime.SchedulerRuntime) -> None:
        self._runtime = runtime

    def take(self) -> host_endpoint.JudgedSnapshot:
        """Take a snapshot, and say what of it is proved."""
        runtime, replicator = self._runtime, self._runtime.replicator
        generation = replicator.generation
        status = replicator.status()
        feed_proved = runtime.judge.feed_proved()
        mirror_refusal = self._mirror_refusal()
        unreadable = runtime.judge.unreadable()
        snapshot = runtime.store.snapshot()
        cells = self._cells(snapshot, unreadable)
        others = []
        for scope, namespace, refusal in (
            (known_namespaces.PLACEMENT, known_namespaces.PROVIDERS.name, mirror_refusal),
            (known_namespaces.CLAIMS, known_namespaces.CLAIM_RECORDS.name, None),
        ):
            if unreadable.keys(namespace) or unreadable.overflowed(namespace):
                refusal = refusal or _UNREADABLE
            others.append(_status(scope, len(snapshot.namespace(namespace)), refusal))
        rebuilt = generation != replicator.generation
        if rebuilt or not feed_proved:
            for each in (*cells, *others):
                each.proved, each.reason = False, _FEED
        return host_endpoint.JudgedSnapshot(
            snapshot=snapshot,
            epoch=status.epoch,
            version=status.cursor_version,
            proof_age_seconds=None if rebuilt else status.proof_age_seconds,
            scheduler=runtime.facts.host,
            scheduler_state=runtime.state(),
            cells=cells,
            others=others,
            unreadable=unreadable.keys(known_namespaces.COMPUTE_NODES.name),
            tell=journal_reader.telling(runtime.journals.look(snapshot)),
        )

    def _cells(
        self, snapshot: store_snapshot.Snapshot, unreadable: ingest.UnreadableRecords
    ) -> list[objects.ScopeStatus]:
        """Judge the cells that the scheduler knows, and those it has hosts of without that."""
        runtime = self._runtime
        hosts = runtime.hosts_by_cell(snapshot)
        cells = sorted({*runtime.cells(), *hosts}.difference(_WITHOUT_HOSTS))
        proof = runtime.judge.judge(snapshot, cells, unreadable)
        # A row whose name no record may have is a host, perhaps, that would not be listed.
        unnamed = dict.fromkeys(proof.unnamed, state_proof.UnprovedReason.UNNAMED)
        reasons = {**unnamed, **proof.missing}
        return [
            _status(cell, hosts.get(cell, 0), reasons[cell].value if cell in reasons else None)
            for cell in cells
        ]

    def _mirror_refusal(self) -> str | None:
        decisions = self._runtime.decisions
        return NO_MIRROR if decisions is None else decisions.placement_mirror.refusal()


def _status(scope: str, hosts: int, refusal: str | None) -> objects.ScopeStatus:
    return objects.ScopeStatus(
        scope=scope, hosts=hosts, proved=refusal is None, reason=refusal or "", fallbacks={}
    )
