# SPDX-License-Identifier: Apache-2.0
"""Filters that only Nova's own code can evaluate, for the requests that need them."""

from __future__ import annotations

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame


class NUMATopologyFilter(contract.Filter):
    """Hosts whose NUMA cells and CPU threads fit the server's."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        # Without an image Nova raises.
        if request.needs_numa or request.image is None:
            return contract.OnHostObjects.NEEDED
        return None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        return np.ones(len(frame.alive[rows]), np.bool_)


class PciPassthroughFilter(contract.Filter):
    """Hosts that have the PCI devices asked for."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        return contract.OnHostObjects.NEEDED if request.needs_pci else None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        return np.ones(len(frame.alive[rows]), np.bool_)
