# SPDX-License-Identifier: Apache-2.0
"""Claims and what shows that they are settled, as records."""

from nova_nodb_scheduler.model import claims as model
from tests.unit.scheduling import hosts

SMALL = model.NodeShare(vcpus=1, memory_mb=512, disk_gb=1, instances=1, io_operations=1)


def held(node=SMALL, state=model.ClaimState.PENDING, **resources):
    return model.HeldClaim(resources, state, "id", "writer", 99.0, node=node)


def instance(uuid, host="h1", node="node-n1", cell=hosts.CELL, **row):
    return {
        "cell": cell,
        "object_version": "2.8",
        "row": {"uuid": uuid, "host": host, "node": node, "vcpus": 1, "memory_mb": 512, **row},
    }


def migration(uuid, dest="h1", node="node-n1", status="pre-migrating", kind="resize"):
    return {
        "cell": hosts.CELL,
        "object_version": "1.8",
        "row": {
            "uuid": f"m-{uuid}",
            "instance_uuid": uuid,
            "source_compute": "elsewhere",
            "dest_compute": dest,
            "dest_node": node,
            "status": status,
            "migration_type": kind,
        },
    }


def record(host, held_by, more=()):
    return {**model.ClaimRecord(host, held_by).to_state(), **dict(more)}
