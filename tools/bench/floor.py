# SPDX-License-Identifier: Apache-2.0
"""Placement's own part of a request: the same POST, from a client that is no scheduler."""

import time
import uuid
from typing import Any

import requests

from tools.bench import figures, meters
from tools.bench.clouds import cluster as cluster_module
from tools.bench.clouds import workload
from tools.bench.control_plane import servers

HEADERS = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.36"}
_REPEATS = 5
_PROJECT = "b" * 32


def measure(
    running: servers.Servers, meter: meters.Meters, count: int, consumers: list[str]
) -> dict[str, Any]:
    """Write new allocations for ``count`` servers, each on another host, in one POST.

    Those written are added to ``consumers``.
    """
    found = hosts(count)
    url = running.settings.url("placement") + "/allocations"
    latencies = []
    with requests.Session() as session:
        session.headers.update(HEADERS)
        before = meter.read()
        for _ in range(_REPEATS):
            body = {str(uuid.uuid4()): allocation(host) for host in found}
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


def hosts(count: int, of: int = 1000, servers: int = _REPEATS) -> list[cluster_module.Host]:
    """Return up to ``count`` hosts of a cluster with room for that many small servers each."""
    small = workload.REPEATED[0]
    found = []
    for host in cluster_module.Cluster(of).hosts():
        room_mb = host.memory_mb - cluster_module.RESERVED_MEMORY_MB - host.memory_mb_used
        room_gb = host.disk_gb - host.disk_gb_used
        room_cpus = host.vcpus * cluster_module.CPU_RATIO - host.vcpus_used
        if (
            room_mb > servers * small.memory_mb
            and room_gb > servers * small.disk_gb
            and room_cpus > servers * small.vcpus
        ):
            found.append(host)
        if len(found) == count:
            break
    return found


def allocation(host: cluster_module.Host) -> dict[str, Any]:
    """Return what is written for one small server on a host."""
    small = workload.REPEATED[0]
    resources = {"VCPU": small.vcpus, "MEMORY_MB": small.memory_mb, "DISK_GB": small.disk_gb}
    return {
        "allocations": {host.node_uuid: {"resources": resources}},
        "mappings": {"": [host.node_uuid]},
        "project_id": _PROJECT,
        "user_id": _PROJECT,
        "consumer_generation": None,
    }
