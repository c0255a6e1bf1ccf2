# SPDX-License-Identifier: Apache-2.0
"""What each process of the plugin exports, whatever it does: versions, bounds, memory.

Memory is read from /proc; nothing is told where there is none.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping

import prometheus_client
from prometheus_client import core

from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.observe import scraped_metrics

_PROC = pathlib.Path("/proc")


def resident_bytes(process: int | str = "self") -> int | None:
    """Return the memory that a process has in use."""
    try:
        pages = int((_PROC / str(process) / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def machine_bytes() -> tuple[int, int] | None:
    """Return the machine's memory: all of it, and what can be had without swapping."""
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
    except OSError:
        return None
    found = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    try:
        total, available = (
            int(found[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")
        )
    except (KeyError, ValueError, IndexError):
        return None
    return total, available


def register(
    registry: prometheus_client.CollectorRegistry,
    *,
    plugin_version: str,
    nova_version: str,
    driver: str,
    declared: Iterable[namespaces.Namespace],
    bounds_seconds: Mapping[str, float],
    statements: Callable[[], Mapping[str, float]] = dict,
) -> None:
    """Register them.

    :param declared: whose schemas this process writes
    :param bounds_seconds: what alerts compare ages with, by the options' names
    :param statements: asked at each scrape how many SQL statements named Nova's table of
        compute nodes although records answer for it, by verb
    """
    prometheus_client.Gauge(
        "nodb_build_info",
        "1: versions of the plugin and of Nova, and the synchronizer's driver",
        ["plugin", "nova", "driver"],
        registry=registry,
    ).labels(plugin_version, nova_version, driver).set(1)
    schemas = prometheus_client.Gauge(
        "nodb_schema_info",
        "1: the version of records that this process writes",
        ["namespace", "schema"],
        registry=registry,
    )
    for each in declared:
        schemas.labels(each.name, str(each.schema)).set(1)
    bounds = prometheus_client.Gauge(
        "nodb_bound_seconds",
        "Values of options that bound an age, for alerts to compare ages with",
        ["bound"],
        registry=registry,
    )
    for name, seconds in bounds_seconds.items():
        bounds.labels(name).set(seconds)
    registry.register(
        scraped_metrics.AtScrape(
            "nodb_compute_node_statements",
            "SQL statements that named compute_nodes although records answer for it, by verb",
            "verb",
            statements,
            core.CounterMetricFamily,
        )
    )
    prometheus_client.ProcessCollector(registry=registry)
