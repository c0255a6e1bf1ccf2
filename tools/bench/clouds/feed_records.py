# SPDX-License-Identifier: Apache-2.0
"""The made cluster as the records that reporters and the mirror's keeper write of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.wire import codec
from tools.bench.clouds import cluster as cluster_module
from tools.bench.clouds import nova_values

CELL = "c0000000-0000-0000-0000-000000000001"
_NOW = "2026-01-01T00:00:00"

_Named = tuple[namespaces.Namespace, str, Mapping[str, Any]]


def writes(cluster: cluster_module.Cluster) -> Iterator[records.Write]:
    """Yield a write of each record, into an empty back end."""
    for namespace, key, state in _states(cluster):
        payload = codec.encode(state, namespace.schema)
        yield records.Write(records.RecordKey(namespace.name, key), 0, payload)


def compute_nodes(cluster: cluster_module.Cluster) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each compute node's key and state."""
    values = nova_values.NovaValues()
    for host in cluster.hosts():
        yield host.node_uuid, _state("1.19", _node(host, values))


def _states(cluster: cluster_module.Cluster) -> Iterator[_Named]:
    values = nova_values.NovaValues()
    aggregates = cluster.aggregates()
    members: dict[int, list[str]] = {}
    for each in aggregates:
        row = {"id": each.number, "uuid": each.uuid, "name": each.name}
        hosts = [cluster_module.host_name(number) for number in each.hosts]
        row |= {"hosts": hosts, "metadata": dict(each.metadata)}
        yield known_namespaces.AGGREGATES, each.uuid, _state("1.3", row, cell="")
        for number in each.hosts:
            members.setdefault(number, []).append(each.uuid)
    for host in cluster.hosts():
        yield known_namespaces.COMPUTE_NODES, host.node_uuid, _state("1.19", _node(host, values))
        yield from _service(host)
        yield known_namespaces.HOST_MAPPINGS, host.name, _state("1.0", {"host": host.name})
        yield known_namespaces.PROVIDERS, host.node_uuid, _provider(host, members)
        for server in host.instances:
            key = f"{server.uuid}@{CELL}"
            yield known_namespaces.INSTANCES, key, _state("2.8", _instance(host, server))


def _state(version: str, row: Mapping[str, Any], cell: str = CELL) -> dict[str, Any]:
    return {"cell": cell, "object_version": version, "row": row}


def _service(host: cluster_module.Host) -> Iterator[_Named]:
    row = {
        "id": host.number,
        "uuid": host.service_uuid,
        "host": host.name,
        "binary": "nova-compute",
        "topic": "compute",
        "disabled": host.is_disabled,
        "forced_down": False,
        "version": 70,
        "created_at": _NOW,
        "deleted_at": None,
        "deleted": 0,
        "disabled_reason": None,
    }
    yield known_namespaces.SERVICES, host.service_uuid, _state("1.22", row)
    liveness = {"cell": CELL, "uuid": host.service_uuid, "report_count": host.report_count}
    liveness |= {"last_seen_up": _NOW, "updated_at": _NOW}
    yield known_namespaces.SERVICE_LIVENESS, host.service_uuid, liveness


def _node(host: cluster_module.Host, values: nova_values.NovaValues) -> dict[str, Any]:
    count, disk_free_gb = len(host.instances), host.disk_gb - host.disk_gb_used
    memory_used_mb = host.memory_mb_used + cluster_module.RESERVED_MEMORY_MB
    stats = dict.fromkeys(("num_instances", "num_vm_active", "num_task_None"), str(count))
    return {
        "id": host.number,
        "uuid": host.node_uuid,
        "host": host.name,
        "hypervisor_hostname": host.name,
        "hypervisor_type": "QEMU",
        "hypervisor_version": 7_002_000,
        "host_ip": f"10.{host.number >> 16 & 255}.{host.number >> 8 & 255}.{host.number & 255}",
        "vcpus": host.vcpus,
        "vcpus_used": host.vcpus_used,
        "memory_mb": host.memory_mb,
        "memory_mb_used": memory_used_mb,
        "free_ram_mb": host.memory_mb - memory_used_mb,
        "local_gb": host.disk_gb,
        "local_gb_used": host.disk_gb_used,
        "free_disk_gb": disk_free_gb,
        "disk_available_least": disk_free_gb,
        "running_vms": count,
        "current_workload": 0,
        "cpu_info": nova_values.CPU_INFO,
        "numa_topology": values.numa_topology(host.vcpus, host.memory_mb),
        "pci_stats": values.no_pci_pools,
        "metrics": "[]",
        "supported_instances": nova_values.SUPPORTED_INSTANCES,
        "stats": json.dumps({"io_workload": "0", "failed_builds": "0", **stats}),
        "cpu_allocation_ratio": cluster_module.CPU_RATIO,
        "ram_allocation_ratio": 1.0,
        "disk_allocation_ratio": 1.0,
        "mapped": 1,
        "created_at": _NOW,
        "updated_at": _NOW,
        "deleted_at": None,
        "deleted": 0,
    }


def _instance(host: cluster_module.Host, server: cluster_module.Instance) -> dict[str, Any]:
    project = f"{server.project:032x}"
    return {
        "id": server.number,
        "uuid": server.uuid,
        "host": host.name,
        "node": host.name,
        "project_id": project,
        "user_id": project,
        "vm_state": "active",
        "task_state": None,
        "memory_mb": server.memory_mb,
        "vcpus": server.vcpus,
        "root_gb": server.disk_gb,
        "ephemeral_gb": 0,
        "instance_type_id": 1,
        "image_ref": None,
        "availability_zone": cluster_module.zone(host.number),
        "hidden": False,
        "created_at": _NOW,
        "launched_at": _NOW,
        "system_metadata": {},
    }


def _provider(host: cluster_module.Host, members: Mapping[int, list[str]]) -> dict[str, Any]:
    def inventory(total: int, reserved: int, ratio: float) -> dict[str, Any]:
        amounts = {"total": total, "reserved": reserved, "min_unit": 1, "max_unit": total}
        return {**amounts, "step_size": 1, "allocation_ratio": ratio}

    reserved_mb = cluster_module.RESERVED_MEMORY_MB
    return {
        "name": host.name,
        "generation": 1 + 2 * len(host.instances),
        "inventories": {
            "VCPU": inventory(host.vcpus, 0, cluster_module.CPU_RATIO),
            "MEMORY_MB": inventory(host.memory_mb, reserved_mb, 1.0),
            "DISK_GB": inventory(host.disk_gb, 0, 1.0),
        },
        "traits": list(host.traits),
        "aggregates": members.get(host.number, []),
        "allocations": {
            each.uuid: {"VCPU": each.vcpus, "MEMORY_MB": each.memory_mb, "DISK_GB": each.disk_gb}
            for each in host.instances
        },
        "children": {},
        "tree_size": 1,
        "whole_at": 1.0,
        "read_at": 1.0,
    }
