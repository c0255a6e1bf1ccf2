# SPDX-License-Identifier: Apache-2.0
"""Nova's weighers over columns, by the names of Nova's classes."""

from __future__ import annotations

from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
from nova_nodb_scheduler.scheduling.weighers import server_weighers, usage_weighers

BUILT_IN: dict[str, type[plugin_contract.Weigher]] = {
    each.__name__: each
    for each in (
        usage_weighers.RAMWeigher,
        usage_weighers.CPUWeigher,
        usage_weighers.DiskWeigher,
        usage_weighers.IoOpsWeigher,
        usage_weighers.NumInstancesWeigher,
        usage_weighers.HypervisorVersionWeigher,
        usage_weighers.BuildFailureWeigher,
        usage_weighers.PCIWeigher,
        server_weighers.CrossCellWeigher,
        server_weighers.ServerGroupSoftAffinityWeigher,
        server_weighers.ServerGroupSoftAntiAffinityWeigher,
        usage_weighers.MetricsWeigher,
        server_weighers.ImagePropertiesWeigher,
    )
}
