# SPDX-License-Identifier: Apache-2.0
"""Filters that only Nova's own code can evaluate, for the requests that need them.

Columns refuse the hosts that have not got what is asked for in any case, so
that code is asked about few.
"""

from __future__ import annotations

from collections.abc import Hashable

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame, topology_room


class NUMATopologyFilter(contract.Filter):
    """Hosts whose NUMA cells and CPU threads fit the server's."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        # Without an image Nova raises.
        if request.needs_numa or request.image is None:
            return contract.OnHostObjects.NEEDED
        return None

    def screen(self, request: requests.Request, frame: host_frame.HostFrame) -> Hashable | None:
        if request.image is None or not (request.numa_cells or request.requires_threads):
            return None
        frame.read_topologies()
        return (
            request.numa_cells,
            request.isolates_emulator,
            request.requires_threads,
            request.devices,
        )

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        return topology_room.may_have_cells(
            request,
            frame.topologies,
            rows,
            frame.cpu_allocation_ratio[rows],
            frame.ram_allocation_ratio[rows],
        )


class PciPassthroughFilter(contract.Filter):
    """Hosts that have the PCI devices asked for."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        return contract.OnHostObjects.NEEDED if request.needs_pci else None

    def screen(self, request: requests.Request, frame: host_frame.HostFrame) -> Hashable | None:
        if not request.devices:
            return None
        frame.read_topologies()
        return request.devices

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        return topology_room.may_have_devices(request, frame.topologies.pools, rows)
