# SPDX-License-Identifier: Apache-2.0
"""The few names that drawn clusters and requests share, so that they meet."""

from __future__ import annotations

import datetime
import uuid

#: When every case takes place (naive, UTC, as Nova's tables have it).
NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC).replace(tzinfo=None)

CELL1 = "11111111-1111-4111-8111-111111111111"
CELL2 = "22222222-2222-4222-8222-222222222222"
CELLS = (CELL1, CELL2)

PROJECTS = ("p1", "p2", "p3")
ZONES = ("az1", "az2")


def made_uuid(kind: str, number: object) -> str:
    """Return the uuid of the thing of a kind with a number: always the same."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}-{number}"))


IMAGES = tuple(made_uuid("image", n) for n in range(3))
INSTANCES = tuple(made_uuid("instance", n) for n in range(8))
#: Instances that a request is for; the first may be a member of a group already.
NEW_INSTANCES = tuple(made_uuid("new", n) for n in range(4))
AGGREGATES = tuple(made_uuid("aggregate", n) for n in range(5))
#: An aggregate that only Placement knows.
FOREIGN_AGGREGATE = made_uuid("aggregate", "foreign")
GROUP = made_uuid("group", 0)

#: Mixed case, because forced and ignored hosts are compared without it.
HOSTS = ("h0", "H1", "h2", "h3", "h4", "h5", "h6", "h7", "h8", "h9")
FLAVORS = ("f1", "f2")

TRAITS = (
    "CUSTOM_A",
    "CUSTOM_B",
    "COMPUTE_STATUS_DISABLED",
    "HW_CPU_HYPERTHREADING",
    "COMPUTE_IMAGE_TYPE_QCOW2",
    "COMPUTE_STORAGE_BUS_VIRTIO",
    "COMPUTE_NET_VIF_MODEL_VIRTIO",
    "HW_ARCH_X86_64",
)
SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"
CUSTOM_CLASS = "CUSTOM_GOLD"

METRICS = ("cpu.frequency", "cpu.user.percent", "numa.membw.max")

#: Multipliers that an aggregate's metadata may set for its hosts.
MULTIPLIERS = (
    "ram_weight_multiplier",
    "cpu_weight_multiplier",
    "disk_weight_multiplier",
    "hypervisor_version_weight_multiplier",
    "num_instances_weight_multiplier",
    "io_ops_weight_multiplier",
    "image_props_weight_multiplier",
    "pci_weight_multiplier",
    "soft_affinity_weight_multiplier",
    "soft_anti_affinity_weight_multiplier",
    "build_failure_weight_multiplier",
    "cross_cell_move_weight_multiplier",
    "metrics_weight_multiplier",
)

FILTERS = (
    "AggregateImagePropertiesIsolation",
    "AggregateInstanceExtraSpecsFilter",
    "AggregateIoOpsFilter",
    "AggregateMultiTenancyIsolation",
    "AggregateNumInstancesFilter",
    "AggregateTypeAffinityFilter",
    "AllHostsFilter",
    "ComputeCapabilitiesFilter",
    "ComputeFilter",
    "DifferentHostFilter",
    "ImagePropertiesFilter",
    "IoOpsFilter",
    "IsolatedHostsFilter",
    "JsonFilter",
    "MetricsFilter",
    "NUMATopologyFilter",
    "NumInstancesFilter",
    "PciPassthroughFilter",
    "SameHostFilter",
    "ServerGroupAffinityFilter",
    "ServerGroupAntiAffinityFilter",
    "SimpleCIDRAffinityFilter",
)

#: Weighers whose share can differ among hosts; all of Nova's.
WEIGHERS = (
    "BuildFailureWeigher",
    "CPUWeigher",
    "CrossCellWeigher",
    "DiskWeigher",
    "HypervisorVersionWeigher",
    "ImagePropertiesWeigher",
    "IoOpsWeigher",
    "MetricsWeigher",
    "NumInstancesWeigher",
    "PCIWeigher",
    "RAMWeigher",
    "ServerGroupSoftAffinityWeigher",
    "ServerGroupSoftAntiAffinityWeigher",
)
