# SPDX-License-Identifier: Apache-2.0
"""Weighers by a host's other servers (server groups, images), or by where a server comes from."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
from nova_nodb_scheduler.scheduling.weighers import option_weigher


class _SoftPolicyWeigher(option_weigher.OptionWeigher):
    """Members of the request's group that stand on a host.

    :cvar policy: of the groups that are weighed
    :cvar sign: of a member
    """

    speaks_for_request = True
    policy: ClassVar[str]
    sign: ClassVar[float]

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        """Return the rows with members, and how many: instances have no column."""
        counts = self._counts(request, frame)
        if not counts:
            return self._no_share(frame, instead=self.option)
        if super().key(request, frame) is None:
            return None
        return plugin_contract.as_key(self.option, counts)

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.FloatArray:
        """Return numbers of members, with the sign of the policy."""
        counts = self._counts(request, frame)
        if not isinstance(rows, slice) and len(rows) <= len(counts):
            return self.sign * np.array([counts.get(row, 0) for row in rows.tolist()], np.float64)
        weights = np.zeros(frame.rows)
        weights[list(counts)] = list(counts.values())
        return self.sign * weights[rows]

    def _counts(self, request: requests.Request, frame: host_frame.HostFrame) -> dict[int, int]:
        group = request.group
        if group is None or group.policy != self.policy:
            return {}
        return frame.instance_counts(group.members)


class ServerGroupSoftAffinityWeigher(_SoftPolicyWeigher):
    """The more members of the group, the better."""

    option = "soft_affinity_weight_multiplier"
    policy = "soft-affinity"
    sign = 1.0


class ServerGroupSoftAntiAffinityWeigher(_SoftPolicyWeigher):
    """The fewer members of the group, the better."""

    option = "soft_anti_affinity_weight_multiplier"
    policy = "soft-anti-affinity"
    sign = -1.0


class ImagePropertiesWeigher(option_weigher.OptionWeigher):
    """Servers whose images share properties with the request's.

    The properties of those images are in the servers' records, and in no
    column: this class knows only when nobody need look at them.
    """

    speaks_for_request = True
    option = "image_props_weight_multiplier"

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        """Return None where nothing can be shared; else Nova's own code is needed.

        The option at zero switches the weigher off, whatever aggregates say.
        """
        switched_off = self._settings.image_props_weight_multiplier == 0
        if switched_off or not self._weighed_properties(request):
            return self._no_share(frame, instead=self.option)
        return plugin_contract.OnHostObjects.NEEDED

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.FloatArray:
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


class CrossCellWeigher(option_weigher.OptionWeigher):
    """1 in the preferred cell, -1 in others, 0 where no cell is preferred."""

    speaks_for_request = True
    option = "cross_cell_move_weight_multiplier"

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        """Return the preferred cell."""
        preferred = _preferred_cell(request)
        if preferred is None:
            return self._no_share(frame, instead=self.option)
        if super().key(request, frame) is None:
            return None
        return plugin_contract.as_key(self.option, preferred)

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.FloatArray:
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
