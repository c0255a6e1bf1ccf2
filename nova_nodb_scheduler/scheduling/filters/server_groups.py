# SPDX-License-Identifier: Apache-2.0
"""Filters that keep the policy of a server group."""

from __future__ import annotations

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.filters import host_values


class ServerGroupAntiAffinityFilter(contract.Filter):
    """Hosts with fewer members of the group than it allows on one host.

    The host the server itself stands on passes always: a resize may stay there.
    """

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        group = request.group
        if group is None or group.policy != "anti-affinity":
            return None
        # Instances move without a change of rows: what was found is the key.
        return self.name, group.max_server_per_host > 0, _exceptions(request, group, frame)

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        group = request.group
        assert group is not None
        exceptions = host_values.among(frame, rows, _exceptions(request, group, frame))
        return ~exceptions if group.max_server_per_host > 0 else exceptions


def _exceptions(
    request: requests.Request, group: requests.Group, frame: host_frame.HostFrame
) -> frozenset[int]:
    """Return the full hosts; where none may hold a member, the server's own."""
    own = frozenset(frame.instance_counts([request.instance_uuid] if request.instance_uuid else []))
    if group.max_server_per_host <= 0:
        return own
    counts = frame.instance_counts(group.members)
    return frozenset(row for row in counts if counts[row] >= group.max_server_per_host) - own


class ServerGroupAffinityFilter(contract.Filter):
    """The hosts that the group's members stand on; any host for the first member."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        group = request.group
        if group is None or "affinity" not in group.policies or not group.hosts:
            return None
        return self.name, host_values.rows_of_names(frame, group.hosts)

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        group = request.group
        assert group is not None
        return host_values.among(frame, rows, host_values.rows_of_names(frame, group.hosts))
