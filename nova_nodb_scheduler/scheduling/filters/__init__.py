# SPDX-License-Identifier: Apache-2.0
"""Nova's filters over columns, by the names of Nova's classes."""

from __future__ import annotations

from nova_nodb_scheduler.scheduling import contract
from nova_nodb_scheduler.scheduling.filters import (
    capabilities,
    compute,
    image_properties,
    server_groups,
)

BUILT_IN: dict[str, type[contract.Filter]] = {
    each.__name__: each
    for each in (
        compute.AllHostsFilter,
        compute.ComputeFilter,
        capabilities.ComputeCapabilitiesFilter,
        image_properties.ImagePropertiesFilter,
        server_groups.ServerGroupAffinityFilter,
        server_groups.ServerGroupAntiAffinityFilter,
    )
}
