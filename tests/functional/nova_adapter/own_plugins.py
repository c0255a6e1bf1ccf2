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


class Stumbled(Exception):
    """What no scheduler knows."""


class StumblingFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Raises at a host that a hint names."""

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        if host_state.host == spec_obj.get_scheduler_hint("stumble_at"):
            raise Stumbled
        return True


class StumblingWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """Raises at a host that a hint names, as it weighs it or only for its multiplier."""

    def weight_multiplier(self, host_state: Any) -> float:
        if getattr(host_state, "stumble", False):
            raise Stumbled
        return 1.0

    def _weigh_object(self, host_state: Any, weight_properties: Any) -> float:
        if host_state.host == weight_properties.get_scheduler_hint("stumble_at"):
            raise Stumbled
        host_state.stumble = host_state.host == weight_properties.get_scheduler_hint("stumble_on")
        return 0.0


class FirstTwoFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Passes the first two hosts that are left."""

    def filter_all(self, filter_obj_list: Any, spec_obj: Any) -> Any:
        return filter_obj_list[:2]
