# SPDX-License-Identifier: Apache-2.0
"""What a scheduler's process counts and times, for Prometheus.

One object per process, made after the fork; names begin with ``nodb_``.
Nothing here is updated per host: the number of records is read when somebody
scrapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import prometheus_client
from prometheus_client import core

from nova_nodb_scheduler.observe import reporter_metrics, scraped_metrics
from nova_nodb_scheduler.synchronizer.replication import anti_entropy, replicator_contract

_COUNTER, _GAUGE = core.CounterMetricFamily, core.GaugeMetricFamily

#: Values of the label ``result``, by the names of the figures.
_LOOKUPS = {"signature_hits": "hit", "signature_misses": "miss"}

#: By the name of the figure: kind, name and help of a metric without labels.
_SIGNATURES: dict[str, tuple[scraped_metrics.Family, str, str]] = {
    "cold_evaluations": (
        _COUNTER,
        "nodb_signature_evaluations",
        "Evaluations of a signature for all hosts: filtered and weighed",
    ),
    "rows_patched": (
        _COUNTER,
        "nodb_signature_rows_recomputed",
        "Hosts that had changed and were filtered and weighed again for a kept signature",
    ),
    "rescales": (
        _COUNTER,
        "nodb_signature_rescales",
        "Times that all scores of a kept signature were computed anew: a weigher's extreme moved",
    ),
    "evictions": (
        _COUNTER,
        "nodb_signature_evictions",
        "Signatures evicted from the cache for want of memory",
    ),
    "unknown_choices": (
        _COUNTER,
        "nodb_unknown_choices",
        "Requests whose flavor's extra spec nodb:choice says nothing known: they took the best",
    ),
    "kept": (_GAUGE, "nodb_signatures_kept", "Signatures that are kept"),
    "kept_bytes": (_GAUGE, "nodb_signature_bytes", "Memory of the kept signatures"),
}
_MIRROR: dict[str, tuple[scraped_metrics.Family, str, str]] = {
    "age_seconds": (
        _GAUGE,
        "nodb_mirror_age_seconds",
        "Time since the last complete sweep of the mirror of Placement began",
    ),
    "keeping": (_GAUGE, "nodb_mirror_keeping", "1 while this worker keeps the mirror"),
    "hints_waiting": (
        _GAUGE,
        "nodb_mirror_hints_waiting",
        "Hinted providers that this worker has yet to read from Placement",
    ),
    "looks": (
        _COUNTER,
        "nodb_mirror_looks",
        "Hinted providers that this worker read from Placement",
    ),
    "sweeps": (_COUNTER, "nodb_mirror_sweeps", "Sweeps of the mirror that this worker completed"),
    "requests": (
        _COUNTER,
        "nodb_mirror_requests",
        "Requests to Placement that keeping the mirror cost this worker",
    ),
    "chosen_compared": (
        _COUNTER,
        "nodb_mirror_chosen_compared",
        "Chosen hosts whose provider trees this worker compared before it allocated",
    ),
    "chosen_changed": (
        _COUNTER,
        "nodb_mirror_chosen_changed",
        "Chosen hosts whose provider trees had changed in Placement when they were compared",
    ),
    "chosen_shown": (
        _COUNTER,
        "nodb_mirror_chosen_at_write",
        "Chosen hosts whose provider trees a guarded Placement found unchanged as it wrote",
    ),
    "chosen_unreadable": (
        _COUNTER,
        "nodb_mirror_chosen_unreadable",
        "Chosen hosts whose provider trees were read anew, for their records cannot be read",
    ),
    "failures": (
        _COUNTER,
        "nodb_mirror_failures",
        "Failures of keeping the mirror: Placement or the back end did not answer",
    ),
}


def of_signatures(figures: scraped_metrics.Figures) -> Iterator[scraped_metrics.AtScrape]:
    """Return what tells how often a signature's filters and weights served again."""
    yield scraped_metrics.AtScrape(
        "nodb_signature_lookups",
        "Lookups of a request's signature, by whether it was kept",
        "result",
        functools.partial(scraped_metrics.some, figures, _LOOKUPS),
        _COUNTER,
    )
    yield from _alone(_SIGNATURES, figures)


def of_mirror(figures: scraped_metrics.Figures) -> Iterator[scraped_metrics.AtScrape]:
    """Return what tells how the mirror is kept."""
    return _alone(_MIRROR, figures)


def _alone(
    declared: dict[str, tuple[scraped_metrics.Family, str, str]], figures: scraped_metrics.Figures
) -> Iterator[scraped_metrics.AtScrape]:
    for figure, (family, name, text) in declared.items():
        read = functools.partial(scraped_metrics.some, figures, {figure: name})
        yield scraped_metrics.AtScrape(name, text, None, read, family)


#: From a poll interval to a feed that is given up, in seconds.
_LAG_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: From a choice in memory to stock's answer at 100,000 hosts, in seconds.
_SCHEDULE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


#: Values of labels, by the names of the figures.
_STATES = {"pending": "pending", "confirmed": "confirmed"}
_ENDS = {"settled": "settled", "expired": "expired", "reconciled": "reconciled"}
_ORPHANS = {
    "orphans_absent": "absent",
    "orphans_buried": "buried",
    "orphans_elsewhere": "elsewhere",
    "orphans_ended_migration": "ended migration",
}
_ORPHANS_ENDED = {"orphans_deleted": "deleted", "orphans_lost": "lost"}
_AGES = {"oldest_pending_seconds": "pending"}

#: Of select_destinations. A series that begins with its first event has not risen by it: what
#: an alert looks at, and is known beforehand, begins at 0.
_OUTCOMES = ("selected", "no_valid_host", "given_up", "error")

#: Role, host and cell of reporters that are told of together.
ReporterName: TypeAlias = tuple[str, str, str]


def _figure(
    figures: Callable[[], Mapping[str, Mapping[ReporterName, float]]], name: str
) -> Mapping[ReporterName, float]:
    return figures()[name]


class SchedulerMetrics(replicator_contract.ReplicationMeter):
    """All metrics of one process; any method from any thread, none blocks.

    :param registry: where they are registered; one of its own per object,
        since a process may hold two (as tests do)
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self.registry = registry
        self._scheduling(registry)
        self._replication(registry)

    # -- scheduling -----------------------------------------------------------

    def _scheduling(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._fallbacks = prometheus_client.Counter(
            "nodb_fallbacks",
            "Requests that took Nova's own path for a cell, by reason",
            ["reason", "cell"],
            registry=registry,
        )
        schedules = prometheus_client.Histogram(
            "nodb_schedule_seconds",
            "Duration of select_destinations",
            ["outcome"],
            registry=registry,
            buckets=_SCHEDULE_BUCKETS,
        )
        self._schedules = {outcome: schedules.labels(outcome) for outcome in _OUTCOMES}

        self._candidates = prometheus_client.Counter(
            "nodb_candidates",
            "Requests by where their allocation candidates came from, memory or Placement, and why",
            ["source", "reason"],
            registry=registry,
        )
        self._from_memory = self._candidates.labels("memory", "")

    def took_candidates(self, asked_placement: str | None) -> None:
        """Count a request's source of candidates.

        :param asked_placement: why Placement was asked; None for memory
        """
        if asked_placement is None:
            self._from_memory.inc()
        else:
            self._candidates.labels("placement", asked_placement).inc()

    def fell_back(self, reason: str, cell: str) -> None:
        self._fallbacks.labels(reason, cell).inc()

    def scheduled(self, seconds: float, outcome: str) -> None:
        """Record one select_destinations.

        :param outcome: ``selected``, ``no_valid_host``, ``given_up`` or ``error``
        """
        self._schedules[outcome].observe(seconds)

    # -- the synchronizer's Meter ---------------------------------------------

    def _replication(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._applied = prometheus_client.Counter(
            "nodb_applied_changes", "Changes applied to the store", registry=registry
        )
        self._resyncs = prometheus_client.Counter(
            "nodb_resyncs",
            "Times that the store was built anew from a snapshot, by reason",
            ["reason"],
            registry=registry,
        )
        self._quarantined = prometheus_client.Gauge(
            "nodb_quarantined_records",
            "Records in quarantine: this worker cannot read them",
            registry=registry,
        )
        self._feed_lag = prometheus_client.Histogram(
            "nodb_feed_lag_seconds",
            "Delay of the feed: from the write of this worker's canary until it was applied here",
            registry=registry,
            buckets=_LAG_BUCKETS,
        )
        self._anti_entropy = prometheus_client.Counter(
            "nodb_anti_entropy_findings",
            "Records that differed between store and back end, by kind",
            ["kind"],
            registry=registry,
        )
        for kind in anti_entropy.Divergence:
            self._anti_entropy.labels(kind.value)
        self._refused = reporter_metrics.refused_counter(registry)
        self._failures = prometheus_client.Counter(
            "nodb_replicator_failures",
            "Unexpected errors of the replicator's thread",
            registry=registry,
        )
        self._running = prometheus_client.Gauge(
            "nodb_replicator_running",
            "1 while the replicator's thread runs, 0 once it ended",
            registry=registry,
        )

    def changes_applied(self, count: int) -> None:
        self._applied.inc(count)

    def resynced(self, reason: str) -> None:
        self._resyncs.labels(reason).inc()

    def quarantine_size(self, count: int) -> None:
        self._quarantined.set(count)

    def feed_lag(self, seconds: float) -> None:
        self._feed_lag.observe(seconds)

    def anti_entropy_found(self, kind: str, count: int) -> None:
        self._anti_entropy.labels(kind).inc(count)

    def records_refused(self, driver: str, namespace: str, count: int) -> None:
        self._refused.labels(namespace, driver).inc(count)

    def replicator_failed(self) -> None:
        self._failures.inc()

    def replicator_running(self, running: bool) -> None:
        self._running.set(running)

    # -- read at each scrape --------------------------------------------------

    def watch_store(self, count_by_namespace: Callable[[], Mapping[str, float]]) -> None:
        """Have each scrape ask how many records the store holds.

        :param count_by_namespace: called in the exporter's thread
        """
        self._watch(
            "nodb_store_records",
            "Records in this worker's store, by namespace",
            "namespace",
            count_by_namespace,
        )

    def _watch(
        self,
        name: str,
        text: str,
        labels: str | Sequence[str] | None,
        ask: Callable[[], Mapping[Any, float]],
    ) -> None:
        """Have each scrape ask for a metric, see :class:`.scraped_metrics.AtScrape`."""
        self.registry.register(scraped_metrics.AtScrape(name, text, labels, ask))

    def watch_journals(self, unreadable: Callable[[], Mapping[str, float]]) -> None:
        """Have each scrape ask how many slots of heartbeat journals this worker cannot read.

        :param unreadable: called in the exporter's thread; one value
        """
        self._watch(
            "nodb_journal_unreadable_slots",
            "Slots of heartbeat journals that this worker cannot read as they are now",
            None,
            unreadable,
        )

    def watch_start(self, ratio: Callable[[], Mapping[str, float]]) -> None:
        """Have each scrape ask how far the start is: below 1 no request is taken.

        :param ratio: called in the exporter's thread; one value
        """
        self._watch(
            "nodb_start_ratio",
            "Progress of this worker's start, 0 to 1: it takes requests at 1",
            None,
            ratio,
        )

    def watch_proof(
        self,
        ready: Callable[[], Mapping[str, float]],
        feed_states: Callable[[], Mapping[str, float]],
        feed_proof_age: Callable[[], Mapping[str, float]],
        cells_proved: Callable[[], Mapping[str, float]],
        cells_unproved: Callable[[], Mapping[tuple[str, str], float]],
        cell_hosts: Callable[[], Mapping[str, float]],
    ) -> None:
        """Have each scrape ask what this worker may decide from memory.

        All are called in the exporter's thread.

        :param ready: one value, 1 while requests are taken and the feed is proved
        :param feed_states: 1 for the state of the feed, 0 for each other state
        :param feed_proof_age: one value in seconds, or none
        :param cells_proved: by cell (and ``api``), 1 where it is proved
        :param cells_unproved: 1 by cell and reason
        :param cell_hosts: compute nodes by cell
        """
        for name, text, labels, ask in (
            ("nodb_ready", "1 while requests are taken and the feed is proved", None, ready),
            ("nodb_feed_state", "1 for the state that the feed is in", "state", feed_states),
            (
                "nodb_feed_proof_age_seconds",
                "Age of the last proof of the feed: every change that is older has been applied",
                None,
                feed_proof_age,
            ),
            ("nodb_cell_proved", "1 where a cell is served from memory", "cell", cells_proved),
            (
                "nodb_cell_unproved",
                "1 for a cell that takes Nova's own path, and why",
                ("cell", "reason"),
                cells_unproved,
            ),
            ("nodb_cell_hosts", "Compute nodes in memory, by cell", "cell", cell_hosts),
        ):
            self._watch(name, text, labels, ask)

    def watch_claims(self, figures: Callable[[], Mapping[str, float]]) -> None:
        """Have each scrape ask what is claimed, and how claims ended in this process.

        :param figures: called in the exporter's thread
        """
        for name, text, label, kinds in (
            ("nodb_claims", "Claims on hosts, by state", "state", _STATES),
            ("nodb_claims_ended", "Claims that this worker ended, by how", "how", _ENDS),
            (
                "nodb_orphan_allocations",
                "Allocations in Placement without their server, by kind",
                "kind",
                _ORPHANS,
            ),
            (
                "nodb_orphan_allocations_ended",
                "Deletions of orphan allocations that this worker tried, by how they ended",
                "how",
                _ORPHANS_ENDED,
            ),
            ("nodb_claims_oldest_seconds", "Age of the oldest claim, by state", "state", _AGES),
        ):
            ask = functools.partial(scraped_metrics.some, figures, kinds)
            self._watch(name, text, label, ask)

    def watch_reporters(
        self, figures: Callable[[], Mapping[str, Mapping[ReporterName, float]]]
    ) -> None:
        """Have each scrape ask how the reporters are, those of a service on a host together.

        :param figures: by ``living``, ``queued``, ``silent`` and ``refused``: values by
            the reporters' role, host and cell
        """
        for name, text, figure in (
            ("nodb_reporters", "Reporters with a heartbeat on the back end", "living"),
            (
                "nodb_reporter_queue_records",
                "Changed records that reporters have yet to publish",
                "queued",
            ),
            (
                "nodb_reporter_silent_seconds",
                "Age of the last heartbeat of the reporter that is silent the longest",
                "silent",
            ),
            (
                "nodb_reporter_refused_records",
                "Records that reporters could not write: too large, or of a newer schema",
                "refused",
            ),
        ):
            ask = functools.partial(_figure, figures, figure)
            labels = ("reporter_role", "reporter_host", "cell")
            self._watch(name, text, labels, ask)

    def watch_signatures(self, figures: Callable[[], Mapping[str, float]]) -> None:
        """Have each scrape ask how often what was made for a signature served again.

        :param figures: called in the exporter's thread
        """
        for collector in of_signatures(figures):
            self.registry.register(collector)

    def watch_mirror(self, figures: Callable[[], Mapping[str, float]]) -> None:
        """Have each scrape ask how the mirror of Placement is kept.

        :param figures: called in the exporter's thread
        """
        for collector in of_mirror(figures):
            self.registry.register(collector)
