# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of the results: percentiles, and costs a request above what runs without requests."""

from collections.abc import Mapping, Sequence
from typing import Any

from tools.bench import meters


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile; ValueError for no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * int(percent) // 100) - 1))]


def latency(seconds: Sequence[float]) -> dict[str, float]:
    """Return count, median and tail of latencies."""
    return {
        "requests": len(seconds),
        "p50_seconds": percentile(seconds, 50),
        "p99_seconds": percentile(seconds, 99),
        "least_seconds": min(seconds),
        "most_seconds": max(seconds),
    }


def per_request(usage: meters.Usage, idle: meters.Usage | None, requests: int) -> dict[str, Any]:
    """Return costs of one request.

    Each figure is above what goes on without requests, the computes' writes included; those whose
    names begin with ``gross`` are with that.

    :param idle: what went on without requests; None to subtract nothing
    """
    above = _above(usage, idle)
    names = [name for name in usage.cpu_seconds if name in meters.OF_REQUESTS]
    cpu = {name: max(0.0, above.cpu_seconds[name]) / requests for name in names}
    gross = {name: usage.cpu_seconds[name] / requests for name in names}
    calls = {name: max(0.0, count) / requests for name, count in above.calls.items()}
    return {
        "cpu_seconds": cpu,
        "cpu_seconds_total": sum(cpu.values()),
        "gross_cpu_seconds": gross,
        "gross_cpu_seconds_total": sum(gross.values()),
        "http_calls": calls,
        "http_calls_total": sum(calls.values()),
        "gross_http_calls_total": sum(usage.calls.values()) / requests,
        "http_server_seconds": {
            name: max(0.0, seconds) / requests for name, seconds in above.server_seconds.items()
        },
        # Of Nova's databases none is taken off: the goal is that there are none at all.
        "gross_sql_scheduler_nova": usage.statements["scheduler"] / requests,
        "sql_scheduler_store": max(0.0, above.statements["scheduler_store"]) / requests,
        "sql_placement": max(0.0, above.statements["placement"]) / requests,
    }


def _above(usage: meters.Usage, idle: meters.Usage | None) -> meters.Usage:
    if idle is None:
        return usage
    times = usage.wall_seconds / idle.wall_seconds

    def less(used: Mapping[str, float], beside: Mapping[str, float]) -> dict[str, float]:
        return {name: count - times * beside.get(name, 0.0) for name, count in used.items()}

    return meters.Usage(
        wall_seconds=usage.wall_seconds,
        cpu_seconds=less(usage.cpu_seconds, idle.cpu_seconds),
        statements=less(usage.statements, idle.statements),
        calls=less(usage.calls, idle.calls),
        server_seconds=less(usage.server_seconds, idle.server_seconds),
    )
