# SPDX-License-Identifier: Apache-2.0
"""What a reporter's own process exports: whether what it writes reaches the back end.

Schedulers tell of reporters, too, but only what came through the back end.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import prometheus_client
from prometheus_client import core

from nova_nodb_scheduler.observe import scraped_metrics

_COUNTER, _GAUGE = core.CounterMetricFamily, core.GaugeMetricFamily

#: By the name of the figure: kind, name and help.
_FIGURES: dict[str, tuple[scraped_metrics.Family, str, str]] = {
    "running": (_GAUGE, "nodb_reporter_running", "1 while the reporter's thread runs"),
    "publishing": (
        _GAUGE,
        "nodb_reporter_publishing",
        "1 while what is written reaches the back end, 0 since the last flush failed",
    ),
    "dirty": (_GAUGE, "nodb_reporter_dirty_records", "Changed records that wait to be published"),
    "oldest_seconds": (
        _GAUGE,
        "nodb_reporter_dirty_oldest_seconds",
        "How long the oldest changed record has waited to be published",
    ),
    "published": (_COUNTER, "nodb_reporter_published_records", "Records that this reporter wrote"),
    "failed_flushes": (
        _COUNTER,
        "nodb_reporter_failed_flushes",
        "Publications that failed, of all records that waited",
    ),
    "late_places": (
        _COUNTER,
        "nodb_reporter_late_places",
        "Writes that decide where a server is and did not wait for their record any longer",
    ),
    "heartbeats_stored": (
        _COUNTER,
        "nodb_heartbeats_stored",
        "Heartbeats of compute services that the back end holds instead of a row",
    ),
    "heartbeats_not_stored": (
        _COUNTER,
        "nodb_heartbeats_not_stored",
        "Heartbeats that were to be stored and went to the database",
    ),
    "heartbeats_blind_seconds": (
        _GAUGE,
        "nodb_heartbeats_blind_seconds",
        "For how long heartbeats of compute services cannot be read; 0 while they can",
    ),
    "services_told_blindly": (
        _COUNTER,
        "nodb_services_told_blindly",
        "Services that were asked for while nobody could tell whether they still live",
    ),
    # Of conductors that are configured for journals alone.
    "journal_waiting": (
        _GAUGE,
        "nodb_journal_waiting_heartbeats",
        "Heartbeats that wait for room in this conductor's journal, or for the back end",
    ),
    "journal_dropped": (
        _COUNTER,
        "nodb_journal_dropped_heartbeats",
        "Heartbeats that were dropped, since more waited than are kept; their cell is swept",
    ),
    "journal_slots": (
        _COUNTER,
        "nodb_journal_written_slots",
        "Slots of its journal that this conductor wrote",
    ),
    "journals_given_up": (
        _COUNTER,
        "nodb_journals_given_up",
        "Journals that were begun anew, as another process wrote or dropped their slots",
    ),
}


class ReporterMetrics:
    """All metrics of one reporter; any method from any thread, none blocks.

    :param figures: called in the exporter's thread, see ``_FIGURES``
    """

    def __init__(
        self, registry: prometheus_client.CollectorRegistry, figures: scraped_metrics.Figures
    ) -> None:
        self.registry = registry
        for figure, (family, name, text) in _FIGURES.items():
            read = functools.partial(scraped_metrics.some, figures, {figure: name})
            registry.register(scraped_metrics.AtScrape(name, text, None, read, family))
        self._refused = refused_counter(registry)

    def records_refused(self, driver: str, namespace: str, count: int) -> None:
        self._refused.labels(namespace, driver).inc(count)


def refused_counter(
    registry: prometheus_client.CollectorRegistry,
) -> prometheus_client.Counter:
    """Return what counts records that a process could not write, scheduler or reporter."""
    return prometheus_client.Counter(
        "nodb_records_refused",
        "Records that could not be written as they are, each time they were tried",
        ["namespace", "driver"],
        registry=registry,
    )


def figures_of(
    *,
    running: bool,
    publishing: bool,
    dirty: int,
    oldest_seconds: float,
    published: int,
    failed_flushes: int,
    late_places: int,
    heartbeats: Mapping[str, float],
) -> Mapping[str, float]:
    """Return a reporter's figures by the names that its metrics know.

    :param heartbeats: what its process does with those of services, by the same names
    """
    return {
        "running": float(running),
        "publishing": float(publishing),
        "dirty": float(dirty),
        "oldest_seconds": oldest_seconds,
        "published": float(published),
        "failed_flushes": float(failed_flushes),
        "late_places": float(late_places),
        **heartbeats,
    }
