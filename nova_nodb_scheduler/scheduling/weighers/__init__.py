# SPDX-License-Identifier: Apache-2.0
"""Nova's weighers over columns, by the names of Nova's classes."""

from __future__ import annotations

from nova_nodb_scheduler.scheduling import contract
from nova_nodb_scheduler.scheduling.weighers import (
    groups,
    hypervisor,
    image_properties,
    metrics,
    moves,
    pci,
    usage,
)

BUILT_IN: dict[str, type[contract.Weigher]] = {
    each.__name__: each
    for each in (
        usage.RAMWeigher,
        usage.CPUWeigher,
        usage.DiskWeigher,
        usage.IoOpsWeigher,
        usage.NumInstancesWeigher,
        hypervisor.HypervisorVersionWeigher,
        hypervisor.BuildFailureWeigher,
        pci.PCIWeigher,
        moves.CrossCellWeigher,
        groups.ServerGroupSoftAffinityWeigher,
        groups.ServerGroupSoftAntiAffinityWeigher,
        metrics.MetricsWeigher,
        image_properties.ImagePropertiesWeigher,
    )
}
