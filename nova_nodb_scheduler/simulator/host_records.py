# SPDX-License-Identifier: Apache-2.0
"""Made hosts and servers as records, shaped as the plugin's reporters publish them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import orjson

from nova_nodb_scheduler.simulator import cluster

State = dict[str, Any]

#: Simulated second 0, as seconds since the epoch: runs must not depend on the day.
BEGINNING_SECONDS = 1_767_225_600.0

_CREATED_AT = "2025-12-31T00:00:00"
_CPU_INFO = orjson.dumps(
    {
        "arch": "x86_64",
        "model": "EPYC",
        "vendor": "AMD",
        "topology": {"cells": 2, "sockets": 1, "cores": 32, "threads": 2},
        "features": ["sse4.2", "avx", "avx2", "aes", "sha-ni", "x2apic", "rdrand"],
    }
).decode()
_SUPPORTED = '[["i686", "kvm", "hvm"], ["x86_64", "kvm", "hvm"]]'
_TRAITS = [
    "COMPUTE_DEVICE_TAGGING",
    "COMPUTE_IMAGE_TYPE_QCOW2",
    "COMPUTE_IMAGE_TYPE_RAW",
    "COMPUTE_NET_ATTACH_INTERFACE",
    "COMPUTE_NODE",
    "COMPUTE_STATUS_ENABLED",
    "HW_CPU_X86_AVX2",
    "HW_CPU_X86_SSE42",
]


def time_text(simulated_seconds: float) -> str:
    """Return a simulated time as Nova's tables hold times: ISO 8601, UTC, no zone."""
    at = dt.datetime.fromtimestamp(BEGINNING_SECONDS + simulated_seconds, dt.UTC)
    return at.replace(tzinfo=None, microsecond=0).isoformat()


def node(
    host: cluster.Host, used: Mapping[str, int], servers: int, simulated_seconds: float
) -> State:
    """Return a compute node's record.

    :param used: by resource class, the residents' share included
    :param servers: how many there are, the residents counted as one
    """
    kind = host.kind
    memory_used = used.get(cluster.MEMORY_MB, 0) + host.reserved_mb
    disk_used = used.get(cluster.DISK_GB, 0)
    return {
        "cell": cluster.CELL,
        "object_version": "1.19",
        "row": {
            "id": host.number + 1,
            "uuid": host.uuid,
            "host": host.name,
            "hypervisor_hostname": host.name,
            "hypervisor_type": "QEMU",
            "hypervisor_version": 8_002_000,
            "host_ip": "192.0.2.1",
            "vcpus": kind.vcpus,
            "vcpus_used": used.get(cluster.VCPU, 0),
            "memory_mb": kind.memory_mb,
            "memory_mb_used": memory_used,
            "free_ram_mb": kind.memory_mb - memory_used,
            "local_gb": kind.disk_gb,
            "local_gb_used": disk_used,
            "free_disk_gb": kind.disk_gb - disk_used,
            "disk_available_least": kind.disk_gb - disk_used,
            "running_vms": servers,
            "current_workload": 0,
            "cpu_info": _CPU_INFO,
            "numa_topology": None,
            "pci_stats": None,
            "metrics": "[]",
            "supported_instances": _SUPPORTED,
            "stats": orjson.dumps({"num_instances": str(servers), "io_workload": "0"}).decode(),
            "cpu_allocation_ratio": host.cpu_ratio,
            "ram_allocation_ratio": 1.0,
            "disk_allocation_ratio": 1.0,
            "created_at": _CREATED_AT,
            "updated_at": time_text(simulated_seconds),
            "deleted_at": None,
            "deleted": 0,
        },
    }


def service(host: cluster.Host) -> State:
    """Return the record of a host's nova-compute service."""
    return {
        "cell": cluster.CELL,
        "object_version": "1.22",
        "row": {
            "id": host.number + 1,
            "uuid": host.service_uuid,
            "host": host.name,
            "binary": "nova-compute",
            "topic": "compute",
            "disabled": False,
            "forced_down": False,
            "version": 70,
            "created_at": _CREATED_AT,
            "deleted_at": None,
            "deleted": 0,
            "disabled_reason": None,
        },
    }


def liveness(reports: int, simulated_seconds: float) -> State:
    """Return what a heartbeat changes."""
    return {
        "cell": cluster.CELL,
        "report_count": reports,
        "last_seen_up": time_text(simulated_seconds),
        "unreported": 0,
    }


def host_mapping(host: cluster.Host) -> State:
    """Return the record that tells a host's cell."""
    return {"cell": cluster.CELL, "row": {"host": host.name, "cell": cluster.CELL}}


def provider(
    host: cluster.Host, generation: int, allocations: Mapping[str, Mapping[str, int]]
) -> State:
    """Return the record of a host's provider.

    :param allocations: by consumer
    """
    kind = host.kind
    return {
        "name": host.name,
        "generation": generation,
        "inventories": {
            cluster.VCPU: _inventory(kind.vcpus, allocation_ratio=host.cpu_ratio),
            cluster.MEMORY_MB: _inventory(kind.memory_mb, reserved=host.reserved_mb),
            cluster.DISK_GB: _inventory(kind.disk_gb),
        },
        "traits": _TRAITS,
        "aggregates": [],
        "allocations": {consumer: dict(taken) for consumer, taken in allocations.items()},
        "children": {},
        "tree_size": 1,
        "read_at": 1.0,
        "whole_at": 1.0,
    }


def _inventory(total: int, *, reserved: int = 0, allocation_ratio: float = 1.0) -> State:
    return {
        "total": total,
        "reserved": reserved,
        "min_unit": 1,
        "max_unit": total,
        "step_size": 1,
        "allocation_ratio": allocation_ratio,
    }


def instance(host: cluster.Host | None, resources: Mapping[str, int]) -> State:
    """Return a server's record.

    :param host: which builds or holds it; None until nova-compute took it up
    """
    name = None if host is None else host.name
    return {
        "cell": cluster.CELL,
        "object_version": "2.8",
        "row": {
            "host": name,
            "node": name,
            "vm_state": "building" if host is None else "active",
            "task_state": "scheduling" if host is None else None,
            "project_id": "simulated",
            "user_id": "simulated",
            "memory_mb": resources.get(cluster.MEMORY_MB, 0),
            "vcpus": resources.get(cluster.VCPU, 0),
            "root_gb": resources.get(cluster.DISK_GB, 0),
            "ephemeral_gb": 0,
        },
    }


def instance_key(server: str) -> str:
    """Return the key of a server's record."""
    return f"{server}@{cluster.CELL}"


def reporter(simulated_seconds: float, pid: int) -> State:
    """Return the beat of the process that reports the hosts."""
    return {
        "cell": cluster.CELL,
        "binary": "nova-conductor",
        "pid": pid,
        "beat_at": BEGINNING_SECONDS + simulated_seconds,
    }
