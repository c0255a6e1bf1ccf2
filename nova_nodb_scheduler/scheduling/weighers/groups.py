# SPDX-License-Identifier: Apache-2.0
"""Weighers of server groups that would rather stand together, or apart."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.weighers import option_weigher


class _SoftPolicyWeigher(option_weigher.OptionWeigher):
    """Members of the request's group that stand on a host.

    :cvar policy: of the groups that are weighed
    :cvar sign: of a member
    """

    speaks_for_request = True
    policy: ClassVar[str]
    sign: ClassVar[float]

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        """Return the rows with members, and how many: instances have no column."""
        counts = self._counts(request, frame)
        if not counts:
            return self._no_share(frame, instead=self.option)
        if super().key(request, frame) is None:
            return None
        return contract.as_key(self.option, counts)

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.FloatArray:
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
