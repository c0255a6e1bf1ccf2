# SPDX-License-Identifier: Apache-2.0
"""What a scheduler worker runs beside Nova: the feed, the proof, the RPC server."""

from __future__ import annotations

import collections
import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import prometheus_client
from nova import objects

from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.nova_adapter import decision_log
from nova_nodb_scheduler.nova_adapter.claims import unjudged_claims
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import mirror_guard, node_serving
from nova_nodb_scheduler.nova_adapter.decisions import claim_upkeep, decision_assembly
from nova_nodb_scheduler.nova_adapter.reads import request_views as reads_module
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.nova_adapter.reporting import state_proof as proof_module
from nova_nodb_scheduler.nova_adapter.service import start_gate
from nova_nodb_scheduler.observe import (
    checkpoint_metrics,
    claim_metrics,
    metric_labels,
    process_metrics,
    reporter_beats,
)
from nova_nodb_scheduler.observe import exporter as exporter_module
from nova_nodb_scheduler.observe import scheduler_metrics as metrics_module
from nova_nodb_scheduler.scheduling.facts import journal_follower, journal_reader
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import declarations, host_state_store, store_snapshot
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.checkpoint import (
    checkpoint_contract,
    checkpoint_writer,
    local_checkpoint,
)
from nova_nodb_scheduler.synchronizer.replication import replicator as replicator_module
from nova_nodb_scheduler.synchronizer.replication import replicator_contract
from nova_nodb_scheduler.wire import codec, payload_packing

LOG = logging.getLogger(__name__)


class OffsetClock:
    """The back end's clock without I/O, from an offset taken now and then."""

    def __init__(self, synchronizer: contract.Synchronizer) -> None:
        self._synchronizer = synchronizer
        self._offset_seconds = 0.0

    def adjust(self) -> None:
        """Take the offset anew.

        :raises BackendUnavailable: the old offset stays
        """
        self._offset_seconds = self._synchronizer.now_seconds() - time.monotonic()

    def now_seconds(self) -> float:
        """Return the back end's time as last known."""
        return time.monotonic() + self._offset_seconds


@attrs.frozen
class WorkerFacts:
    """What a scheduler worker says of itself in its beat."""

    host: str
    plugin_version: str
    nova_version: str


class SchedulerRuntime:
    """One worker's share of the plugin; made again with each start.

    :param make_synchronizer: a new driver instance, not opened
    :param cells: uuids of the cells the host manager knows
    :param make_server: the RPC server over this runtime, started and stopped
        with it; None for none
    :param export: where metrics are served; None for nowhere
    :param bounds_seconds: what alerts compare ages with
    :param driver: the synchronizer's, by its option
    :param nodes: the process's part in who answers for compute nodes
    :param checkpoint_options: how the machine's checkpoint is written; None for none
    """

    def __init__(
        self,
        make_synchronizer: Callable[[], contract.Synchronizer],
        declared: tuple[namespaces_model.Namespace, ...],
        cells: Callable[[], list[str]],
        facts: WorkerFacts,
        proof_options: proof_module.ProofOptions,
        replicator_options: replicator_contract.ReplicatorOptions,
        make_server: Callable[[SchedulerRuntime], Any] | None = None,
        export: exporter_module.ScrapeAddress | None = None,
        bounds_seconds: Mapping[str, float] | None = None,
        driver: str = "",
        nodes: mirror_guard.MirrorGuard | node_serving.NodeServing | None = None,
        checkpoint_options: checkpoint_contract.CheckpointOptions | None = None,
    ) -> None:
        self._make_synchronizer = make_synchronizer
        self._declared = declared
        self.facts = facts
        self.cells = cells
        self._replicator_options = replicator_options
        self._feed_bound_seconds = proof_options.feed_bound_seconds
        self._make_server = make_server
        self._export = export
        self._nodes = nodes
        self._lock = threading.Lock()
        self._running = False
        #: True once it was stopped: another one is made for the next start.
        self.stopped = False
        self._server: Any = None
        self._exporter: exporter_module.Exporter | None = None
        self._fallbacks: collections.Counter[tuple[str, str]] = collections.Counter()
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._latencies: collections.deque[float] = collections.deque(maxlen=1000)
        self._candidates: collections.Counter[str] = collections.Counter()
        self._explained: dict[str, str] = {}
        #: The last decisions, whoever made them.
        self.log = decision_log.DecisionLog()
        #: What decides from memory; None where only host states come from there.
        self.decisions: decision_assembly.DecisionAssembly | None = None
        #: What looks after notes where nothing decides from memory; None where something does.
        self.upkeep: claim_upkeep.NoteUpkeep | None = None
        #: What holds requests back while the worker starts; None where nothing does.
        self.gate: start_gate.RequestGate | None = None
        #: What allocates where no claim can be judged; None for Nova's own claim alone.
        self.unjudged: unjudged_claims.UnjudgedClaimsMaker | None = None
        #: What wakes requests that wait, started and stopped with the worker; None where none do.
        self.queue: Any = None
        self.metrics = metrics_module.SchedulerMetrics(prometheus_client.CollectorRegistry())
        self.claim_metrics = claim_metrics.ClaimMetrics(self.metrics.registry)
        self.synchronizer = make_synchronizer()
        self.store = host_state_store.HostStateStore(
            declarations.followed(declared),
            codec.decode_state,
            packing=payload_packing.DictionaryPacking,
        )
        self.clock = OffsetClock(self.synchronizer)
        self.checkpoint_metrics = checkpoint_metrics.CheckpointMetrics(self.metrics.registry)
        #: What a start may begin with, and its writer; None where there is no directory for it.
        self.checkpoint = self._make_checkpoint(checkpoint_options)
        built = reads_module.BuiltObjects()
        self.replicator = self._make_replicator()
        self._writer = (
            None
            if self.checkpoint is None
            else checkpoint_writer.CheckpointWriter(self.checkpoint, self.replicator.feed_moment)
        )
        self.replicator.subscribe(None, built.clear)
        #: What conductors' heartbeat journals tell, for all who read the store.
        self.journals = journal_reader.JournalReader(
            lambda: journal_follower.JournalFollower(
                proof_options.unreported_grace_seconds, proof_options.journal_horizon_seconds
            ),
            lambda: self.replicator.epoch,
        )
        self.judge = proof_module.StateJudge(
            self.replicator.alive,
            lambda: self.replicator.epoch,
            self.replicator.quarantine,
            self.clock.now_seconds,
            proof_options,
            unguarded=(scopes_module.API, objects.CellMapping.CELL0_UUID),
            journals=self.journals,
        )
        self.views = reads_module.RequestViews(
            self.store,
            self.judge,
            built,
            cells,
            lambda: self.replicator.generation,
            self.fell_back,
            self.journals,
        )

        process_metrics.register(
            self.metrics.registry,
            plugin_version=facts.plugin_version,
            nova_version=facts.nova_version,
            driver=driver,
            declared=declared,
            bounds_seconds=bounds_seconds or {},
            **({} if nodes is None else {"statements": nodes.statements}),
        )
        self._have_scraped()

    def _have_scraped(self) -> None:
        """Have the metrics read at each scrape what is counted elsewhere."""
        self.metrics.watch_store(self.counts)
        self.metrics.watch_journals(lambda: {"": float(len(self.journals.unreadable))})
        self.metrics.watch_reporters(self._reporters)
        self.metrics.watch_start(self._started)
        self.metrics.watch_proof(
            self._ready,
            self._feed_states,
            self._feed_proof_age,
            lambda: {scope: float(not why) for scope, why in self._scopes().items()},
            lambda: {(scope, why): 1.0 for scope, why in self._scopes().items() if why},
            lambda: {
                cell: float(count)
                for cell, count in self.hosts_by_cell(self.store.snapshot()).items()
            },
        )
        self.metrics.watch_claims(self._settling)
        self.checkpoint_metrics.watch(self._checkpoint_figures)
        # Nothing is served where candidates are Placement's alone.
        self.metrics.watch_signatures(self._signatures)
        self.metrics.watch_mirror(
            lambda: self.decisions.mirror_figures() if self.decisions is not None else {}
        )

    def _make_replicator(self) -> replicator_module.Replicator:
        return replicator_module.Replicator(
            self.synchronizer,
            self.store,
            self._declared,
            identity=f"{self.facts.host}:{os.getpid()}:{next(_numbers)}:{uuid.uuid4().hex[:8]}",
            options=self._replicator_options,
            heartbeat=self._beat,
            meter=self.metrics,
            checkpoint=self.checkpoint,
        )

    def _make_checkpoint(
        self, options: checkpoint_contract.CheckpointOptions | None
    ) -> local_checkpoint.LocalCheckpoint | None:
        if options is None:
            return None
        return local_checkpoint.LocalCheckpoint(
            options,
            self.synchronizer.name,
            declarations.followed(self._declared),
            wall_seconds=time.time,
            meter=self.checkpoint_metrics,
        )

    def _checkpoint_figures(self) -> Mapping[str, float]:
        if self.checkpoint is None:
            return {}
        return checkpoint_metrics.figures_of(self.checkpoint.status)

    def _beat(self) -> Mapping[str, Any]:
        self.clock.adjust()
        # A heartbeat that nobody reported has its time of grace from when it
        # came, not from the first request that meets it.
        unproved = {scope: why for scope, why in self._scopes().items() if why}
        if self._nodes is not None:
            self._nodes.look(self.synchronizer)
        p50, p99 = self.percentiles_seconds()
        return {
            "host": self.facts.host,
            "pid": os.getpid(),
            "plugin": self.facts.plugin_version,
            "nova": self.facts.nova_version,
            "beat_at": self.clock.now_seconds(),
            "clock_offset_seconds": time.time() - self.clock.now_seconds(),
            "memory_bytes": process_metrics.resident_bytes(),
            "machine_bytes": process_metrics.machine_bytes(),
            "fallbacks": self.fallbacks(),
            "outcomes": dict(self._outcomes),
            "candidates": self.candidates(),
            "claims": self.claim_metrics.figures(),
            # Without it conductors write each heartbeat to its service's record.
            "reads_journals": True,
            "claiming": self.decisions is not None and self.decisions.claiming,
            "settling": self._settling(),
            "left_out": self._left_out(),
            "hosts": len(self.store.snapshot().namespace(known_namespaces.COMPUTE_NODES.name)),
            "state": self.state(),
            "unproved": unproved,
            # Under this name others look for who works at the queue.
            "queue": self.queue is not None and self.queue.works(),
            "keeps_queue": self.queue is not None,
            "schedule_seconds_p50": p50,
            "schedule_seconds_p99": p99,
            **(
                {}
                if self.checkpoint is None
                else {"checkpoint": checkpoint_metrics.told(self.checkpoint.status)}
            ),
            **({} if self._nodes is None else self._nodes.facts()),
        }

    # -- life -----------------------------------------------------------------

    def start(self) -> None:
        """Start the threads; once per object, in the worker process."""
        with self._lock:
            if self._running:
                return
            self._running = True
        if self.gate is not None:
            self.gate.begin()
        if self._export is not None:
            self._exporter = exporter_module.Exporter(
                self.metrics.registry,
                metric_labels.MetricIdentity("scheduler", self.facts.host),
                self._export,
            )
            self._exporter.start()
        self.replicator.start()
        if self._writer is not None:
            self._writer.start()
        if self.decisions is not None:
            self.decisions.start()
        if self.upkeep is not None:
            self.upkeep.start()
        if self.queue is not None:
            self.queue.start()
        if self._make_server is not None:
            self._server = self._make_server(self)
            self._server.start()

    def hurry(self) -> None:
        """Have no request wait for others' claims any more: the worker is to end."""
        if self.decisions is not None:
            self.decisions.pending_waits.stop()

    def stop(self) -> None:
        """Stop the threads and say goodbye; idempotent, from any thread."""
        with self._lock:
            if not self._running:
                return
            self._running, self.stopped = False, True
        if self._server is not None:
            self._server.stop()
            self._server.wait()
        if self.queue is not None:
            self.queue.stop()
        if self.decisions is not None:
            self.decisions.stop()
        if self.upkeep is not None:
            self.upkeep.stop()
        if self._writer is not None:
            self._writer.stop()
        self.replicator.stop()
        self.synchronizer.close()
        if self._exporter is not None:
            self._exporter.stop()

    # -- what it tells ----------------------------------------------------------

    def starting(self) -> start_gate.StartProgress | None:
        """Return how far the start is; None where requests are taken."""
        return self.gate.progress if self.gate is not None else None

    @property
    def reads_records(self) -> bool:
        """Whether records answer for compute nodes, not Nova's tables."""
        return isinstance(self._nodes, node_serving.NodeServing)

    def state(self) -> str:
        """Return where the worker stands: "starting, 43%", then the state of its feed."""
        starting = self.starting()
        return self.replicator.status().state.value if starting is None else str(starting)

    def account(
        self,
        served: set[str],
        trace: decision_log.DecisionTrace,
        chosen: Any,
        seconds: float,
        outcome: str,
        asked_placement: str | None,
    ) -> None:
        """Count and remember one select_destinations.

        :param served: scopes that were answered from memory
        :param chosen: its answer; None where it refused
        :param asked_placement: why its candidates were Placement's; None for memory
        """
        self.served(served)
        if self.decisions is not None:
            self.decided(asked_placement)
        self.scheduled(seconds, outcome)
        self.log.record(
            trace,
            chosen,
            at=time.time(),
            seconds=seconds,
            outcome=outcome,
            asked_placement=asked_placement,
        )

    def decided(self, asked_placement: str | None) -> None:
        """Count where a request's candidates came from: None for memory, else the reason."""
        self._candidates[asked_placement or decision_log.MEMORY] += 1
        self.metrics.took_candidates(asked_placement)

    def candidates(self) -> dict[str, int]:
        """Return requests by where their candidates came from."""
        return dict(self._candidates)

    def fell_back(self, scope: str, reason: proof_module.UnprovedReason) -> None:
        """Count a request that took Nova's own path for a scope; log the first of a kind."""
        self._fallbacks[scope, reason.value] += 1
        self.metrics.fell_back(reason.value, scope)
        if self._explained.get(scope) != reason.value:
            self._explained[scope] = reason.value
            LOG.warning(
                "Reading %(scope)s from its database, as stock Nova does: %(reason)s.",
                {"scope": scope, "reason": reason.value},
            )

    def served(self, scopes: set[str]) -> None:
        """Note scopes that were answered from memory; log the return of one."""
        for scope in scopes & self._explained.keys():
            del self._explained[scope]
            LOG.info("%(scope)s is read from memory again.", {"scope": scope})

    def scheduled(self, seconds: float, outcome: str) -> None:
        """Record one select_destinations."""
        self._outcomes[outcome] += 1
        self._latencies.append(seconds)
        self.metrics.scheduled(seconds, outcome)

    def fallbacks(self) -> dict[str, int]:
        """Return the requests that left memory, by reason."""
        totals: collections.Counter[str] = collections.Counter()
        for (_scope, reason), count in list(self._fallbacks.items()):
            totals[reason] += count
        return dict(totals)

    def fallbacks_by_cell(self) -> dict[str, dict[str, int]]:
        """Return the requests that left memory, by scope and reason."""
        found: dict[str, dict[str, int]] = {}
        for (scope, reason), count in list(self._fallbacks.items()):
            found.setdefault(scope, {})[reason] = count
        return found

    def outcomes(self) -> dict[str, int]:
        """Return decisions by outcome."""
        return dict(self._outcomes)

    def latencies_seconds(self) -> list[float]:
        """Return durations of the last 1,000 decisions, sorted."""
        return sorted(self._latencies)

    def percentiles_seconds(self) -> tuple[float | None, float | None]:
        """Return median and 99th percentile of those durations; None before the first."""
        kept = self.latencies_seconds()
        if not kept:
            return None, None
        return kept[(len(kept) - 1) // 2], kept[max(0, -(-len(kept) * 99 // 100) - 1)]

    def _started(self) -> dict[str, float]:
        starting = self.starting()
        return {"": 1.0 if starting is None else starting.percent / 100}

    def _signatures(self) -> dict[str, float]:
        """Return what is kept by signature of requests; empty where nobody decides."""
        if self.decisions is None:
            return {}
        engine = self.decisions.engine
        return engine.figures()

    def _left_out(self) -> int:
        """Return how many hosts' records cannot be understood."""
        if self.decisions is None:
            return 0
        keeper = self.decisions.frame_keeper
        return len(keeper.unreadable)

    def _settling(self) -> dict[str, float]:
        """Return claims by state and how they ended here; empty where nobody settles."""
        if self.decisions is not None:
            return self.decisions.claim_figures()
        return self.upkeep.figures() if self.upkeep is not None else {}

    def counts(self) -> dict[str, float]:
        """Return records in the store by namespace."""
        snapshot = self.store.snapshot()
        return {name: float(len(snapshot.namespace(name))) for name in snapshot.namespaces()}

    def _reporters(self) -> dict[str, dict[metrics_module.ReporterName, float]]:
        """Return figures of the reporters, those of a service on a host together."""
        view = self.store.snapshot().namespace(known_namespaces.REPORTERS.name)
        beats = (beat for _key, beat in view.states())
        return reporter_beats.figures(beats, self.clock.now_seconds())

    def _ready(self) -> dict[str, float]:
        bound = self._feed_bound_seconds
        takes_requests = self._running and self.starting() is None
        return {"": float(takes_requests and self.replicator.alive(bound))}

    def _feed_states(self) -> dict[str, float]:
        now = self.replicator.status().state
        return {each.value: float(each is now) for each in replicator_contract.State}

    def _feed_proof_age(self) -> dict[str, float]:
        age = self.replicator.status().proof_age_seconds
        return {} if age is None else {"": age}

    def _scopes(self) -> dict[str, str]:
        """Return why a scope is not served from memory, empty where it is."""
        scopes = sorted({*self.cells(), scopes_module.API, objects.CellMapping.CELL0_UUID})
        missing = self.judge.judge(self.store.snapshot(), scopes).missing
        return {scope: missing[scope].value if scope in missing else "" for scope in scopes}

    @staticmethod
    def hosts_by_cell(snapshot: store_snapshot.Snapshot) -> dict[str, int]:
        """Return how many compute nodes of a snapshot each cell has; cells with some."""
        view = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
        vocabulary = view.vocabulary("cell")
        counts = np.bincount(view.column("cell")).tolist()
        return {vocabulary.text(code): count for code, count in enumerate(counts) if count}


_numbers = itertools.count(1)
