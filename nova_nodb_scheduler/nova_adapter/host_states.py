# SPDX-License-Identifier: Apache-2.0
"""Nova's HostState, with the NUMA topology and PCI pools parsed when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nova.pci import stats as pci_stats
from nova.scheduler import host_manager as nova_host_manager

from nova_nodb_scheduler.nova_adapter import fitted, rows, views


class HostState(nova_host_manager.HostState):  # type: ignore[misc]
    """A host's state made from a record of the store, with what is claimed consumed from it.

    Filters that need NUMA cells or PCI pools find them, and pay for them;
    other requests never parse the JSON.
    """

    def __init__(self, host: str, node: str, cell_uuid: str) -> None:
        self._make_numa_topology: Callable[[], Any] | None = None
        self._make_pci_stats: Callable[[], Any] | None = None
        self._numa_topology: Any = None
        self._pci_stats: Any = None
        #: What others claim of NUMA cells and PCI devices, until it is consumed.
        self._fitted: list[Mapping[str, Any]] = []
        super().__init__(host, node, cell_uuid)

    def _update_from_compute_node(self, compute: Any) -> None:
        super()._update_from_compute_node(compute)
        # A node read from a database has its topology already; one that was
        # never updated is passed over by Nova.
        if self.uuid != compute.uuid or not hasattr(compute, "nodb_numa_topology"):
            return
        # The node is shared with other requests.
        self.stats: Any = dict(compute.stats or {})
        text = compute.nodb_numa_topology
        pools = compute.pci_device_pools
        self._make_numa_topology = lambda: rows.numa_topology(text)
        self._make_pci_stats = lambda: pci_stats.PciDeviceStats(self.numa_topology, stats=pools)
        self._consume_claims()

    def _consume_claims(self) -> None:
        """Take what is claimed of the host and not reported, as consume_from_request would."""
        view = views.current()
        if view is None or view.stock:
            return
        claimed = view.reads.claimed(self.uuid)
        share = claimed.share
        self.free_ram_mb -= share.memory_mb
        self.free_disk_mb -= share.disk_gb * 1024
        self.vcpus_used += share.vcpus
        self.num_instances += share.instances
        self.num_io_ops += share.io_operations
        # NUMA cells and devices when somebody asks for them, in one order for all.
        self._fitted = [state for _consumer, state in sorted(claimed.fitted.items())]

    @property
    def numa_topology(self) -> Any:
        """The host's NUMA topology, or None."""
        if self._make_numa_topology is not None:
            make, self._make_numa_topology = self._make_numa_topology, None
            self._numa_topology = make()
            self._consume_fitted()
        return self._numa_topology

    @numa_topology.setter
    def numa_topology(self, value: Any) -> None:
        self._make_numa_topology = None
        self._numa_topology = value

    @property
    def pci_stats(self) -> Any:
        """The host's PCI pools."""
        if self._make_pci_stats is not None:
            # Devices know their cells. To make those may consume from both, and make these.
            _ = self.numa_topology
        if self._make_pci_stats is not None:
            make, self._make_pci_stats = self._make_pci_stats, None
            self._pci_stats = make()
            self._consume_fitted()
        return self._pci_stats

    @pci_stats.setter
    def pci_stats(self, value: Any) -> None:
        self._make_pci_stats = None
        self._pci_stats = value

    def _consume_fitted(self) -> None:
        # Cells and devices are taken together: consuming asks for the other of the two.
        claimed, self._fitted = self._fitted, []
        for each in claimed:
            fitted.consume(self, each)
