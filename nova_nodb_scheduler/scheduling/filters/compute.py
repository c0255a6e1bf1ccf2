# SPDX-License-Identifier: Apache-2.0
"""Filters on the host's service, or on nothing at all."""

from __future__ import annotations

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame


class ComputeFilter(contract.Filter):
    """Hosts whose nova-compute is enabled and was heard of lately."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        return self.name

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        return frame.up[rows] & ~frame.disabled[rows]


class AllHostsFilter(contract.Filter):
    """Every host."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        return None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        return np.ones(len(frame.alive[rows]), np.bool_)
