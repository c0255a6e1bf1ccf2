# SPDX-License-Identifier: Apache-2.0
"""Prefers a server's own cell when it may move to another."""

from __future__ import annotations

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.weighers import option_weigher


class CrossCellWeigher(option_weigher.OptionWeigher):
    """1 in the preferred cell, -1 in others, 0 where no cell is preferred."""

    speaks_for_request = True
    option = "cross_cell_move_weight_multiplier"

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        """Return the preferred cell."""
        preferred = _preferred_cell(request)
        if preferred is None:
            return self._no_share(frame, instead=self.option)
        if super().key(request, frame) is None:
            return None
        return contract.as_key(self.option, preferred)

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.FloatArray:
        """Return 1, -1 or 0."""
        preferred = _preferred_cell(request)
        if preferred is None:
            return np.zeros(len(frame.cell.codes[rows]))
        return frame.cell.map(rows, lambda cell: 1.0 if cell == preferred else -1.0)


def _preferred_cell(request: requests.Request) -> str | None:
    destination = request.destination
    if destination is None or not destination.allow_cross_cell_move:
        return None
    return destination.cell or None
