# SPDX-License-Identifier: Apache-2.0
"""The same filter and weigher as Nova runs them, host by host."""

from nova.scheduler import filters, utils, weights

SMALL_MB = 8 * 1024
BIG_HOST_MB = 512 * 1024


class BigHostsFilter(filters.BaseHostFilter):
    """Keeps the biggest hosts for servers that are not small."""

    RUN_ON_REBUILD = False

    def host_passes(self, host_state, spec_obj):
        small = spec_obj.memory_mb < SMALL_MB
        return not small or host_state.total_usable_ram_mb < BIG_HOST_MB


class PowerWeigher(weights.BaseHostWeigher):
    """Prefers hosts that draw less power, as their stats say."""

    def weight_multiplier(self, host_state):
        return utils.get_weight_multiplier(host_state, "power_weight_multiplier", 1.0)

    def _weigh_object(self, host_state, weight_properties):
        return -float(host_state.stats.get("watts") or 0)
