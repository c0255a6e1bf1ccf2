# SPDX-License-Identifier: Apache-2.0
"""What each process of the plugin exports, whatever it does: versions, bounds, memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import prometheus_client

from nova_nodb_scheduler.model import namespaces


def register(
    registry: prometheus_client.CollectorRegistry,
    *,
    plugin_version: str,
    nova_version: str,
    driver: str,
    declared: Iterable[namespaces.Namespace],
    bounds_seconds: Mapping[str, float],
) -> None:
    """Register them.

    :param declared: whose schemas this process writes
    :param bounds_seconds: what alerts compare ages with, by the options' names
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
        "nodb_bound_seconds", "Options that bound an age", ["bound"], registry=registry
    )
    for name, seconds in bounds_seconds.items():
        bounds.labels(name).set(seconds)
    prometheus_client.ProcessCollector(registry=registry)
