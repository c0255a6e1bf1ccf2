# SPDX-License-Identifier: Apache-2.0
"""An operator's own filter and weighers, as he writes them for Nova."""

from __future__ import annotations

from typing import Any

from nova.scheduler import filters, weights
from nova.scheduler.filters import compute_filter
from nova.scheduler.weights import disk, ram


class EvenHostsFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Passes hosts with an even number of servers."""

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        return bool(host_state.num_instances % 2 == 0)


class ComputeFilter(compute_filter.ComputeFilter):  # type: ignore[misc]
    """Nova's, changed."""


class RAMWeigher(ram.RAMWeigher):  # type: ignore[misc]
    """Nova's, changed."""


class OddWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """Prefers hosts with an odd number of servers."""

    def _weigh_object(self, host_state: Any, weight_properties: Any) -> float:
        return float(host_state.num_instances % 2)


#: Nova's own class by another name.
Disk = disk.DiskWeigher
