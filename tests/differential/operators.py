# SPDX-License-Identifier: Apache-2.0
"""An operator's own filter and weigher: they know nothing of columns."""

from __future__ import annotations

from typing import Any

from nova.scheduler import filters, weights


class OperatorsFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Refuses hosts with three instances or more, and those whose statistics say no."""

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        """Look at what only a HostState has."""
        if host_state.stats.get("ssd") == "false" and spec_obj.project_id == "p1":
            return False
        return len(host_state.instances) < 3


class OperatorsWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """Likes hosts with other people's instances, up to four."""

    maxval = 4

    def weight_multiplier(self, host_state: Any) -> float:
        """Differ from host to host."""
        return 2.0 if host_state.aggregates else 0.5

    def _weigh_object(self, host_state: Any, weight_properties: Any) -> float:
        return len(host_state.instances) + host_state.num_io_ops / 2
