# SPDX-License-Identifier: Apache-2.0
"""A site's own filter and weigher, over columns."""

import numpy as np

from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
from nova_nodb_scheduler.scheduling.weighers import option_weigher

SMALL_MB = 8 * 1024
BIG_HOST_MB = 512 * 1024


class BigHostsFilter(plugin_contract.Filter):
    """Keeps the biggest hosts for servers that are not small."""

    def key(self, request, frame):
        # All small servers get the same mask; others may go everywhere.
        return "small" if request.flavor.memory_mb < SMALL_MB else None

    def mask(self, request, frame, rows):
        return frame.memory_mb[rows] < BIG_HOST_MB


class PowerWeigher(plugin_contract.Weigher):
    """Prefers hosts that draw less power, as their stats say."""

    def __init__(self, settings):
        super().__init__(settings)
        self._multiplier = option_weigher.OverriddenNumber("power_weight_multiplier", 1.0)

    def key(self, request, frame):
        return None if self._multiplier.is_always_zero(frame) else "power"

    def raw(self, request, frame, rows):
        # A column of texts: each distinct text is read once, whatever the number of hosts.
        watts = frame.attribute("stats", "watts").map(rows, lambda text: float(text or 0))
        return np.negative(watts)

    def multiplier(self, request, frame, rows):
        return self._multiplier.of(frame, rows)
