# SPDX-License-Identifier: Apache-2.0
"""Weighs hosts by the images of the servers they hold."""

from __future__ import annotations

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.weighers import option_weigher


class ImagePropertiesWeigher(option_weigher.OptionWeigher):
    """Servers whose images share properties with the request's.

    The properties of those images are in the servers' records, and in no
    column: this class knows only when nobody need look at them.
    """

    speaks_for_request = True
    option = "image_props_weight_multiplier"

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        """Return None where nothing can be shared; else Nova's own code is needed.

        The option at zero switches the weigher off, whatever aggregates say.
        """
        switched_off = self._settings.image_props_weight_multiplier == 0
        if switched_off or not self._weighed_properties(request):
            return self._no_share(frame, instead=self.option)
        return contract.OnHostObjects.NEEDED

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.FloatArray:
        """Return zeros: only asked for where nothing can be shared."""
        return np.zeros(len(frame.alive[rows]))

    def _weighed_properties(self, request: requests.Request) -> bool:
        """Return whether a property of the request's image has a weight."""
        if request.image is None:
            return False
        ratios = dict(self._settings.image_props_weight_setting)
        if not ratios:
            return bool(request.image.properties)
        return any(ratios.get(name, 0.0) != 0.0 for name in request.image.properties)
