# SPDX-License-Identifier: Apache-2.0
"""Nova's filters over columns, by the names of Nova's classes."""

from __future__ import annotations

from nova_nodb_scheduler.scheduling.filters import (
    affinity_filters,
    aggregate_filters,
    capability_filters,
    host_filters,
    json_filter,
    topology_filters,
)
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

BUILT_IN: dict[str, type[plugin_contract.Filter]] = {
    each.__name__: each
    for each in (
        affinity_filters.DifferentHostFilter,
        affinity_filters.SameHostFilter,
        affinity_filters.SimpleCIDRAffinityFilter,
        aggregate_filters.AggregateImagePropertiesIsolation,
        aggregate_filters.AggregateInstanceExtraSpecsFilter,
        aggregate_filters.AggregateMultiTenancyIsolation,
        aggregate_filters.AggregateTypeAffinityFilter,
        capability_filters.ComputeCapabilitiesFilter,
        host_filters.AllHostsFilter,
        host_filters.ComputeFilter,
        topology_filters.NUMATopologyFilter,
        topology_filters.PciPassthroughFilter,
        host_filters.ImagePropertiesFilter,
        host_filters.IsolatedHostsFilter,
        json_filter.JsonFilter,
        aggregate_filters.AggregateIoOpsFilter,
        aggregate_filters.AggregateNumInstancesFilter,
        aggregate_filters.IoOpsFilter,
        aggregate_filters.NumInstancesFilter,
        host_filters.MetricsFilter,
        affinity_filters.ServerGroupAffinityFilter,
        affinity_filters.ServerGroupAntiAffinityFilter,
    )
}
