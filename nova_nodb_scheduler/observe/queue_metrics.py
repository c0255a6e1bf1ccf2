# SPDX-License-Identifier: Apache-2.0
"""What waits for room, for how long, and what a scheduler does about it, for Prometheus.

Every scheduler tells what waits, from the records that all of them follow: take the
greatest, not the sum. What was done is counted by who did it. Projects and flavors are
many, and a label for each would be a series for ever: those with the most are named, the
rest stands together as ``(others)``.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs
import prometheus_client
from prometheus_client import core

from nova_nodb_scheduler.observe import scraped_metrics

#: Projects, and flavors, that are named at a time.
MOST_NAMED = 20
OTHERS = "(others)"

#: Of waits: from a host that was free already to the longest wait by default, in seconds.
_WAIT_BUCKETS = (
    *(0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
    *(4 * 3600.0, 12 * 3600.0, 86_400.0, 3 * 86_400.0, 7 * 86_400.0),
)
#: Of what one event costs a scheduler, in seconds.
_ROUND_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

#: How a request left the queue. A series that begins with its first event has not risen by it.
ENDINGS = ("dispatched", "expired", "cancelled", "deleted")
#: What a newcomer was told.
ANSWERS = ("admitted", "behind", "full", "unknown")
#: What became of requests that were looked at.
RESULTS = ("granted", "left", "does not fit", "lost", "cannot be told", "failed")


@attrs.frozen
class WaitingFigures:
    """What waits at one moment.

    :param servers_by_class: and by project id, and by flavor's name
    :param oldest_seconds: of each class, how long ago the oldest was asked for
    :param amounts: by resource class: what the cloud had to have in addition
    :param unreadable: records that are none of a request
    :param held_hosts: hosts that are held for somebody
    """

    servers_by_class: Mapping[str, int] = attrs.field(factory=dict)
    servers_by_project: Mapping[str, int] = attrs.field(factory=dict)
    servers_by_flavor: Mapping[str, int] = attrs.field(factory=dict)
    requests: int = 0
    oldest_seconds: Mapping[str, float] = attrs.field(factory=dict)
    amounts: Mapping[str, int] = attrs.field(factory=dict)
    unreadable: int = 0
    held_hosts: int = 0


Read: TypeAlias = Callable[[], WaitingFigures]


class QueueMetrics:
    """Counts of one process; any method from any thread, none blocks."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._registry = registry
        self._waits = prometheus_client.Histogram(
            "nodb_queue_wait_seconds",
            "Time from the request until it left the queue, by class and by how it did",
            ["class", "ending"],
            registry=registry,
            buckets=_WAIT_BUCKETS,
        )
        self._newcomers = prometheus_client.Counter(
            "nodb_queue_newcomers",
            "Requests that may wait and were decided for the first time, by what they were told",
            ["answer"],
            registry=registry,
        )
        self._looked = prometheus_client.Counter(
            "nodb_queue_candidates",
            "Requests that something might have helped, by what became of them",
            ["result"],
            registry=registry,
        )
        self._rounds = prometheus_client.Histogram(
            "nodb_queue_round_seconds",
            "Time that one look at what happened took, with all grants that came of it",
            registry=registry,
            buckets=_ROUND_BUCKETS,
        )
        self._failures = prometheus_client.Counter(
            "nodb_queue_failures",
            "Unexpected errors of the thread that wakes requests",
            registry=registry,
        )
        self._reconciled = prometheus_client.Counter(
            "nodb_queue_reconciled_servers",
            "Servers that their users had deleted and that were still waiting",
            registry=registry,
        )
        for answer in ANSWERS:
            self._newcomers.labels(answer)
        for result in RESULTS:
            self._looked.labels(result)

    def left(self, priority_class: str, ending: str, waited_seconds: float) -> None:
        """Record a request that left the queue; by one scheduler for all.

        :param ending: one of :data:`ENDINGS`
        """
        self._waits.labels(priority_class, ending).observe(max(0.0, waited_seconds))

    def newcomer(self, answer: str) -> None:
        """Record what a newcomer was told: one of :data:`ANSWERS`."""
        self._newcomers.labels(answer).inc()

    def looked_at(self, result: str) -> None:
        """Record what became of a candidate: one of :data:`RESULTS`."""
        self._looked.labels(result).inc()

    def round_took(self, seconds: float) -> None:
        """Record one look at what happened."""
        self._rounds.observe(seconds)

    def failed(self) -> None:
        """Record an unexpected error."""
        self._failures.inc()

    def reconciled(self, servers: int) -> None:
        """Record servers that wait no more since they were deleted."""
        self._reconciled.inc(servers)

    def watch(self, read: Read, is_running: Callable[[], bool]) -> None:
        """Have each scrape ask what waits.

        :param read: called in the exporter's thread
        :param is_running: whether the thread that wakes requests runs
        """
        self._waiting(read)
        for name, text, figures in (
            ("nodb_queue_requests", "Requests that wait for room", lambda: {"": read().requests}),
            (
                "nodb_queue_unreadable_records",
                "Records in the queue that this worker cannot read",
                lambda: {"": read().unreadable},
            ),
            (
                "nodb_queue_held_hosts",
                "Hosts that are held for a request until it fits there",
                lambda: {"": read().held_hosts},
            ),
            (
                "nodb_queue_running",
                "1 while this worker wakes requests that wait, 0 once it ended",
                lambda: {"": float(is_running())},
            ),
        ):
            self._register(name, text, None, figures)

    def _waiting(self, read: Read) -> None:
        for name, text, label, figures in (
            (
                "nodb_queue_servers",
                "Servers that wait for room, by class",
                "class",
                lambda: read().servers_by_class,
            ),
            (
                "nodb_queue_project_servers",
                "Servers that wait for room, of the projects with the most",
                "project",
                lambda: most_named(read().servers_by_project),
            ),
            (
                "nodb_queue_flavor_servers",
                "Servers that wait for room, of the flavors with the most",
                "flavor",
                lambda: most_named(read().servers_by_flavor),
            ),
            (
                "nodb_queue_oldest_seconds",
                "Age of the request that has waited longest, by class",
                "class",
                lambda: read().oldest_seconds,
            ),
            (
                "nodb_queue_amount",
                "What all servers that wait need together, by resource class: what to buy",
                "resource",
                lambda: read().amounts,
            ),
        ):
            self._register(name, text, label, figures)

    def _register(
        self, name: str, text: str, label: str | None, read: Callable[[], Mapping[str, float]]
    ) -> None:
        self._registry.register(
            scraped_metrics.AtScrape(name, text, label, read, core.GaugeMetricFamily)
        )


def most_named(amounts: Mapping[str, int], most: int = MOST_NAMED) -> dict[str, float]:
    """Return the greatest by name, and the sum of the others as one."""
    named = heapq.nlargest(most, amounts.items(), key=lambda each: (each[1], each[0]))
    found = {name: float(amount) for name, amount in named}
    rest = sum(amounts.values()) - sum(found.values())
    if len(amounts) > most:
        found[OTHERS] = found.get(OTHERS, 0.0) + rest
    return found


def cached(read: Read, seconds: float, clock: Callable[[], float]) -> Read:
    """Return figures that are read once for all metrics of a scrape."""
    kept: list[tuple[float, WaitingFigures]] = []

    @functools.wraps(read)
    def again() -> WaitingFigures:
        now = clock()
        if not kept or now - kept[0][0] >= seconds:
            kept[:] = [(now, read())]
        return kept[0][1]

    return again
