# SPDX-License-Identifier: Apache-2.0
"""Filters on where other instances stand, by hints, addresses or a server group's policy."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.filters import host_values
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract


class DifferentHostFilter(plugin_contract.Filter):
    """Hosts without any of the instances that the hint ``different_host`` names."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        rows = _rows_of_instances(request, frame, "different_host")
        # Instances move without a change of rows: what was found is the key.
        return (self.name, rows) if rows else None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        found = _rows_of_instances(request, frame, "different_host")
        return ~host_values.among(frame, rows, found or frozenset())


class SameHostFilter(plugin_contract.Filter):
    """Hosts with one of the instances that the hint ``same_host`` names."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        rows = _rows_of_instances(request, frame, "same_host")
        return None if rows is None else (self.name, rows)

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        found = _rows_of_instances(request, frame, "same_host")
        return host_values.among(frame, rows, found or frozenset())


def _rows_of_instances(
    request: requests.Request, frame: host_frame.HostFrame, hint: str
) -> frozenset[int] | None:
    """Return the rows where instances stand; None where the hint names none."""
    uuids = request.hint(hint)
    if not uuids:
        return None
    return frozenset(frame.instance_counts([uuids] if isinstance(uuids, str) else uuids))


class SimpleCIDRAffinityFilter(plugin_contract.Filter):
    """Hosts with an address in the network around ``build_near_host_ip``."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        if not request.hint("build_near_host_ip"):
            return None
        network = _network(request)
        if network is None or _some_host_has_no_address(frame):
            return plugin_contract.OnHostObjects.NEEDED
        return self.name, network

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        network = _network(request)
        assert network is not None
        first, last = network[0].packed, network[-1].packed

        def inside(text: Any) -> bool:
            address = _address(text)
            return len(address) == len(first) and first <= address <= last

        return frame.attribute(*_HOST_IP).where(rows, inside) & frame.updated[rows]


_HOST_IP = ("host_ip",)


def _network(request: requests.Request) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network asked for, or None where Nova might not make one of it."""
    address, prefix = request.hint("build_near_host_ip"), request.hint("cidr", "/24")
    # Nova joins the two texts; a zone it does not know.
    if not (isinstance(address, str) and isinstance(prefix, str)) or "%" in address:
        return None
    try:
        return ipaddress.ip_network(address + prefix, strict=False)
    except ValueError:
        return None


def _address(text: Any) -> bytes:
    """Return an address in network order; nothing for what is none."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    except (OSError, TypeError):
        return b""


def _some_host_has_no_address(frame: host_frame.HostFrame) -> bool:
    """Tell whether Nova would raise at a host: it reads None as an address."""
    # Code 0 is None.
    lacking = frame.alive & frame.updated & (frame.attribute(*_HOST_IP).codes == 0)
    return bool(lacking.any()) or host_values.some_unreported(frame)


class ServerGroupAntiAffinityFilter(plugin_contract.Filter):
    """Hosts with fewer members of the group than it allows on one host.

    The host the server itself stands on passes always: a resize may stay there.
    """

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        group = request.group
        if group is None or group.policy != "anti-affinity":
            return None
        # Instances move without a change of rows: what was found is the key.
        return self.name, group.max_server_per_host > 0, _exceptions(request, group, frame)

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
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


class ServerGroupAffinityFilter(plugin_contract.Filter):
    """The hosts that the group's members stand on; any host for the first member."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        group = request.group
        if group is None or "affinity" not in group.policies or not group.hosts:
            return None
        return self.name, host_values.rows_of_names(frame, group.hosts)

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        group = request.group
        assert group is not None
        return host_values.among(frame, rows, host_values.rows_of_names(frame, group.hosts))
