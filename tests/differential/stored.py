# SPDX-License-Identifier: Apache-2.0
"""A cluster's rows as the records that reporters and the mirror's keeper publish."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nova import objects

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec
from tests.differential import cases
from tests.differential.drawn import words

State = Mapping[str, Any]
_BY_NAME = {each.name: each for each in known_namespaces.BUILT_IN}


def states(cluster: cases.Cluster) -> Iterator[tuple[str, str, State]]:
    """Iterate over (namespace, key, state) of all records."""
    for node in cluster.nodes:
        yield (
            known_namespaces.COMPUTE_NODES.name,
            node.uuid,
            _state(node.cell, "ComputeNode", node.row),
        )
    for service in cluster.services:
        key = str(service.row["uuid"])
        kept = {n: v for n, v in service.row.items() if n not in nova_tables.HEARTBEAT_COLUMNS}
        yield known_namespaces.SERVICES.name, key, _state(service.cell, "Service", kept)
        beats = {name: service.row[name] for name in nova_tables.HEARTBEAT_COLUMNS}
        liveness = {"cell": service.cell, "uuid": key, **nova_tables.plain(beats)}
        yield known_namespaces.SERVICE_LIVENESS.name, key, liveness
    for aggregate in cluster.aggregates:
        row = {
            "id": aggregate.id,
            "uuid": aggregate.uuid,
            "name": f"agg{aggregate.id}",
            "hosts": list(aggregate.hosts),
            "metadata": dict(aggregate.metadata),
            "created_at": None,
            "updated_at": None,
        }
        yield known_namespaces.AGGREGATES.name, aggregate.uuid, _state("", "Aggregate", row)
    for instance in cluster.instances:
        key = nova_tables.cell_key(instance.uuid, instance.cell)
        yield (
            known_namespaces.INSTANCES.name,
            key,
            _state(instance.cell, "Instance", _instance(instance)),
        )
    for host in dict.fromkeys(node.host for node in cluster.nodes):
        cell = cluster.cell_of(host) or words.CELL1
        yield known_namespaces.HOST_MAPPINGS.name, host, _state(cell, "HostMapping", {"host": host})
    for provider in cluster.providers:
        if provider.parent is None:
            yield known_namespaces.PROVIDERS.name, provider.uuid, _tree(cluster, provider)


def store(cluster: cases.Cluster) -> host_state_store.HostStateStore:
    """Return a store that holds a cluster, filled as the replicator fills it."""
    made = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
    put(made, {(name, key): state for name, key, state in states(cluster)}, 1)
    return made


def put(
    held: host_state_store.HostStateStore,
    changed: Mapping[tuple[str, str], State | None],
    revision: int,
) -> None:
    """Apply changes; None deletes. Each goes through the wire's bytes."""
    for version, ((name, key), state) in enumerate(changed.items(), start=revision * 10_000):
        record_key = records.RecordKey(name, key)
        if state is None:
            record = records.Record(record_key, revision, version, b"", deleted=True)
            held.apply(records.Change(record, None))
            continue
        payload = codec.encode(state, _BY_NAME[name].schema, record=str(record_key))
        record = records.Record(record_key, revision, version, payload)
        held.apply(records.Change(record, codec.decode_state(payload)))


def _state(cell: str, object_name: str, row: Mapping[str, Any]) -> State:
    version = str(getattr(objects, object_name).VERSION)
    return {"cell": cell, "object_version": version, "row": nova_tables.plain(row)}


def _instance(drawn: cases.Instance) -> Mapping[str, Any]:
    return {
        "id": 1,
        "uuid": drawn.uuid,
        "host": drawn.host,
        "node": drawn.node,
        "compute_id": 1,
        "project_id": drawn.project,
        "user_id": "u",
        "vm_state": "active",
        "task_state": None,
        "memory_mb": 512,
        "vcpus": 1,
        "root_gb": 1,
        "ephemeral_gb": 0,
        "instance_type_id": 1,
        "image_ref": drawn.image_ref,
        "availability_zone": None,
        "hidden": False,
        "created_at": None,
        "launched_at": None,
        "system_metadata": {f"image_{name}": value for name, value in drawn.image.items()},
    }


def _tree(cluster: cases.Cluster, root: cases.Provider) -> State:
    children = [each for each in cluster.providers if each.parent == root.uuid]
    return {
        "name": root.uuid,
        **_parts(root),
        "allocations": {name: dict(held) for name, held in sorted(root.allocations.items())},
        "children": {each.uuid: {"parent": each.parent, **_parts(each)} for each in children},
        "tree_size": 1 + len(children),
        "read_at": 0.0,
    }


def _parts(provider: cases.Provider) -> Mapping[str, Any]:
    inventories = {
        name: json.loads(json.dumps(vars_of(held))) for name, held in provider.inventories.items()
    }
    return {
        "generation": provider.generation,
        "inventories": inventories,
        "traits": sorted(provider.traits),
        "aggregates": sorted(provider.aggregates),
    }


def vars_of(held: cases.Inventory) -> Mapping[str, Any]:
    """Return an inventory as Placement's JSON has it."""
    return {
        "total": held.total,
        "reserved": held.reserved,
        "min_unit": held.min_unit,
        "max_unit": held.max_unit,
        "step_size": held.step_size,
        "allocation_ratio": held.allocation_ratio,
    }
