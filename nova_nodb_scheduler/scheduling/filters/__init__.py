# SPDX-License-Identifier: Apache-2.0
"""Nova's filters over columns, by the names of Nova's classes."""

from __future__ import annotations

from nova_nodb_scheduler.scheduling import contract
from nova_nodb_scheduler.scheduling.filters import (
    affinity,
    aggregates,
    capabilities,
    compute,
    host_topology,
    image_properties,
    isolated_hosts,
    json_query,
    limits,
    metrics,
    server_groups,
)

BUILT_IN: dict[str, type[contract.Filter]] = {
    each.__name__: each
    for each in (
        affinity.DifferentHostFilter,
        affinity.SameHostFilter,
        affinity.SimpleCIDRAffinityFilter,
        aggregates.AggregateImagePropertiesIsolation,
        aggregates.AggregateInstanceExtraSpecsFilter,
        aggregates.AggregateMultiTenancyIsolation,
        aggregates.AggregateTypeAffinityFilter,
        capabilities.ComputeCapabilitiesFilter,
        compute.AllHostsFilter,
        compute.ComputeFilter,
        host_topology.NUMATopologyFilter,
        host_topology.PciPassthroughFilter,
        image_properties.ImagePropertiesFilter,
        isolated_hosts.IsolatedHostsFilter,
        json_query.JsonFilter,
        limits.AggregateIoOpsFilter,
        limits.AggregateNumInstancesFilter,
        limits.IoOpsFilter,
        limits.NumInstancesFilter,
        metrics.MetricsFilter,
        server_groups.ServerGroupAffinityFilter,
        server_groups.ServerGroupAntiAffinityFilter,
    )
}
