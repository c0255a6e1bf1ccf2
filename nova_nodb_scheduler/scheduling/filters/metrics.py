# SPDX-License-Identifier: Apache-2.0
"""The filter on which metrics a host reports."""

from __future__ import annotations

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.filters import host_values


class MetricsFilter(contract.Filter):
    """Hosts that report every metric that the metrics weigher weighs."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        if host_values.some_unreported(frame):
            return contract.OnHostObjects.NEEDED
        return self.name if self._settings.metrics_weight_setting else None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        passes = frame.updated[rows].copy()
        for metric, _ratio in self._settings.metrics_weight_setting:
            column = frame.attribute("metrics", metric)
            # Code 0 is None: no such metric.
            passes &= column.codes[rows] != 0
        return passes
