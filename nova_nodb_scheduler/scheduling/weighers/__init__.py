# SPDX-License-Identifier: Apache-2.0
"""Nova's weighers over columns; each class is named like the one it stands for."""

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

BUILT_IN: tuple[type[contract.Weigher], ...] = (
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
