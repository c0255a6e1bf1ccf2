# SPDX-License-Identifier: Apache-2.0
"""The filter that keeps some images to some hosts."""

from __future__ import annotations

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.filters import host_values


class IsolatedHostsFilter(contract.Filter):
    """Isolated hosts for isolated images; other hosts for all others.

    Where it is not restrictive, other images may go to isolated hosts too.
    Names of hosts are compared as they are written.
    """

    once_per_request = True
    on_rebuild = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        passes_on_isolated, passes_elsewhere = self._passes(request)
        if passes_on_isolated and passes_elsewhere:
            return None
        return self.name, passes_on_isolated, passes_elsewhere

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        passes_on_isolated, passes_elsewhere = self._passes(request)
        isolated = host_values.among(
            frame, rows, host_values.rows_of_names(frame, self._settings.isolated_hosts)
        )
        return np.where(isolated, passes_on_isolated, passes_elsewhere)

    def _passes(self, request: requests.Request) -> tuple[bool, bool]:
        """Return whether the request may go to isolated hosts, and to others."""
        restrictive = self._settings.restrict_isolated_hosts_to_isolated_images
        if not self._settings.isolated_images:
            return not restrictive, True
        image = request.image.uuid if request.image is not None else None
        if image in self._settings.isolated_images:
            return True, False
        return not restrictive, True
