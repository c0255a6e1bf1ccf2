# SPDX-License-Identifier: Apache-2.0
"""Weighs hosts by the metrics that their compute services report."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.weighers import option_weigher

#: Nova's filter that lets pass only hosts which have all metrics of the setting.
_FILTER = "MetricsFilter"


class MetricsWeigher(option_weigher.OptionWeigher):
    """The sum of the set metrics, each by its ratio."""

    option = "metrics_weight_multiplier"

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        """Return a constant where the metrics are at hand.

        Where a host may lack a required one, Nova's own code decides: it fails
        the request if such a host passed the filters.
        """
        if not self._settings.metrics_weight_setting:
            return self._no_share(frame, instead=self.option)
        if self._settings.metrics_required and self._may_lack(request, frame):
            return contract.OnHostObjects.NEEDED
        return super().key(request, frame)

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.FloatArray:
        """Return the sums; ``weight_of_unavailable`` where a metric that counts is missing."""
        setting = self._settings.metrics_weight_setting
        sums = np.zeros(len(frame.alive[rows]))
        lacks = np.zeros(len(sums), np.bool_)
        multiplier = self.multiplier(request, frame, rows)
        for (_name, ratio), column in zip(setting, self._columns(frame), strict=True):
            sums += column.map(rows, lambda value: value or 0) * ratio
            lacks |= _is_missing(column, rows) & (np.asarray(ratio * multiplier) != 0)
        sums[lacks] = self._settings.metrics_weight_of_unavailable
        return sums

    def _columns(self, frame: host_frame.HostFrame) -> Iterator[host_frame.CodedColumn]:
        for name, _ratio in self._settings.metrics_weight_setting:
            yield frame.attribute("metrics", name)

    def _may_lack(self, request: requests.Request, frame: host_frame.HostFrame) -> bool:
        if _FILTER in self._settings.enabled_filters and not _passes_filters_by(request):
            return False
        missing = (_is_missing(column, slice(None)) for column in self._columns(frame))
        return any(bool((each & frame.alive).any()) for each in missing)


def _passes_filters_by(request: requests.Request) -> bool:
    forced = bool(request.force_hosts or request.force_nodes)
    return request.is_rebuild or (forced and not request.check_type)


def _is_missing(column: host_frame.CodedColumn, rows: contract.Rows) -> contract.BoolArray:
    return np.asarray(column.codes[rows] == column.code(None))
