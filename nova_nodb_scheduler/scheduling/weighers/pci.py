# SPDX-License-Identifier: Apache-2.0
"""Keeps hosts that have PCI devices for the servers that ask for some."""

from __future__ import annotations

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.weighers import option_weigher

#: Hosts with as many devices, or more, weigh alike.
_MOST_DEVICES = 99


class PCIWeigher(option_weigher.OptionWeigher):
    """The fewer devices are free, the better."""

    option = "pci_weight_multiplier"

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.FloatArray:
        """Return 100 less the devices that are free, 1 at least."""
        free = np.minimum(frame.pci_free[rows], _MOST_DEVICES)
        return (_MOST_DEVICES + 1 - free).astype(np.float64)
