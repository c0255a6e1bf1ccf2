# SPDX-License-Identifier: Apache-2.0
"""Placement's own part of a request: the same POST, from a client that is no scheduler."""

import time
import uuid
from typing import Any

import requests

from tools.bench import cluster as cluster_module
from tools.bench import figures, meters, servers, workload

_HEADERS = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.36"}
_REPEATS = 5
_PROJECT = "b" * 32


def measure(
    running: servers.Servers, meter: meters.Meters, count: int, consumers: list[str]
) -> dict[str, Any]:
    """Write new allocations for ``count`` servers, each on another host, in one POST.

    Those written are added to ``consumers``.
    """
    hosts = _hosts(count)
    url = running.settings.url("placement") + "/allocations"
    latencies = []
    with requests.Session() as session:
        session.headers.update(_HEADERS)
        before = meter.read()
        for _ in range(_REPEATS):
            body = {str(uuid.uuid4()): _allocation(host) for host in hosts}
            consumers += body
            started = time.perf_counter()
            answer = session.post(url, json=body, timeout=600)
            latencies.append(time.perf_counter() - started)
            answer.raise_for_status()
        usage = meter.since(before)
    return {
        "servers": count,
        **figures.latency(latencies),
        "gross_cpu_seconds": {
            name: usage.cpu_seconds[name] / _REPEATS for name in (meters.PLACEMENT, meters.MARIADB)
        },
    }


def _hosts(count: int) -> list[cluster_module.Host]:
    small = workload.REPEATED[0]
    found = []
    for host in cluster_module.Cluster(1000).hosts():
        room_mb = host.memory_mb - cluster_module.RESERVED_MEMORY_MB - host.memory_mb_used
        if room_mb > _REPEATS * small.memory_mb:
            found.append(host)
        if len(found) == count:
            break
    return found


def _allocation(host: cluster_module.Host) -> dict[str, Any]:
    small = workload.REPEATED[0]
    resources = {"VCPU": small.vcpus, "MEMORY_MB": small.memory_mb, "DISK_GB": small.disk_gb}
    return {
        "allocations": {host.node_uuid: {"resources": resources}},
        "mappings": {"": [host.node_uuid]},
        "project_id": _PROJECT,
        "user_id": _PROJECT,
        "consumer_generation": None,
    }
