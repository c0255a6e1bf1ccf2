# SPDX-License-Identifier: Apache-2.0
"""Nova's HostManager and HostState, made from records in memory, cell by cell.

Only the reads are replaced, and NUMA topologies and PCI pools are parsed when
they are asked for. Each read asks the request's view whether a cell is proved;
one that is not takes Nova's own method, for that cell alone.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.pci import stats as pci_stats
from nova.scheduler import host_manager as nova_host_manager

from nova_nodb_scheduler.nova_adapter.conversion import nova_rows, numa_pci_claims
from nova_nodb_scheduler.nova_adapter.reads import request_views, unread_cells
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.nova_adapter.reporting import state_proof as proof_module

LOG = logging.getLogger(__name__)


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
        self._make_numa_topology = lambda: nova_rows.numa_topology(text)
        self._make_pci_stats = lambda: pci_stats.PciDeviceStats(self.numa_topology, stats=pools)
        self._consume_claims()

    def _consume_claims(self) -> None:
        """Take what is claimed of the host and not reported, as consume_from_request would."""
        view = request_views.current()
        if view is None or view.stock:
            return
        claimed = view.reads.claimed(self.uuid)
        share = claimed.share
        self.free_ram_mb -= share.memory_mb
        self.free_disk_mb -= share.disk_gb * 1024
        self.vcpus_used += share.vcpus
        self.num_instances += share.instances
        self.num_io_ops += share.io_operations
        # NUMA cells and devices when somebody asks for them, in the order of the record:
        # see numa_pci_claims.
        self._fitted = list(claimed.fitted.values())

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
            numa_pci_claims.consume(self, each)


class HostManager(nova_host_manager.HostManager):  # type: ignore[misc]
    """Host states from the store. Constructor as Nova's.

    Outside a request (no current view) every method is Nova's own.
    """

    def host_state_cls(self, host: str, node: str, cell: str, **kwargs: Any) -> Any:
        """Make a host state whose costly parts are parsed when asked for."""
        return HostState(host, node, cell)

    # -- start-up: Nova reads every node and instance here; the store has them --

    def _init_instance_info(self, computes_by_cell: Any = None) -> None:
        """Read nothing: an unproved cell's instances are read when they are needed."""

    # -- compute nodes and services -----------------------------------------

    def _get_computes_for_cells(
        self, context: Any, cells: Collection[Any], compute_uuids: Collection[str] | None
    ) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        view = request_views.current()
        if view is None:
            found: tuple[dict[str, list[Any]], dict[str, Any]] = super()._get_computes_for_cells(
                context, cells, compute_uuids
            )
            return found
        nodes: dict[str, list[Any]] = collections.defaultdict(list)
        services: dict[str, Any] = {}
        left = []
        for cell in cells:
            held = self._from_memory(view, str(cell.uuid), compute_uuids)
            if held is None:
                left.append(cell)
                continue
            nodes[str(cell.uuid)].extend(held[0])
            services.update(held[1])
        if left:
            with unread_cells.noted() as unread:
                more, more_services = super()._get_computes_for_cells(context, left, compute_uuids)
            nodes.update(more)
            services.update(more_services)
            if unread and not _has_all(nodes, compute_uuids):
                view.unread.update(unread)
        return nodes, services

    @staticmethod
    def _from_memory(
        view: request_views.RequestView, cell: str, uuids: Collection[str] | None
    ) -> tuple[list[Any], dict[str, Any]] | None:
        if not view.serves(cell):
            return None
        try:
            nodes = view.reads.compute_nodes(cell, uuids)
            services = view.reads.services(cell, {node.host for node in nodes})
        except nova_rows.UNUSABLE as error:
            LOG.error("%(error)s", {"error": error})
            view.miss(cell, proof_module.UnprovedReason.UNKNOWN_VERSION)
            return None
        return nodes, services

    def get_compute_nodes_by_host_or_node(
        self, ctxt: Any, host: str | None, node: str | None, cell: Any = None
    ) -> Any:
        """Get compute nodes by host, node name or both, from a cell or from all."""
        view = request_views.current()
        if host and not cell:
            cell = self._get_cell_by_host(ctxt, host)
        cells = [cell] if cell else self.enabled_cells
        if view is not None and all(view.serves(str(each.uuid)) for each in cells):
            try:
                for each in cells:
                    nodes = view.reads.nodes_by_host_or_node(str(each.uuid), host, node)
                    if nodes:
                        return objects.ComputeNodeList(objects=nodes)
                reason = proof_module.UnprovedReason.UNKNOWN_HOST
            except nova_rows.UNUSABLE as error:
                LOG.error("%(error)s", {"error": error})
                reason = proof_module.UnprovedReason.UNKNOWN_VERSION
            # "No such host" becomes NoValidHost: Nova looks before that is said.
            for each in cells:
                view.miss(str(each.uuid), reason)
        with unread_cells.noted() as unread:
            found = super().get_compute_nodes_by_host_or_node(ctxt, host, node, cell=cell)
        if view is not None and not found:
            view.unread.update(unread)
        return found

    # -- host mappings --------------------------------------------------------

    def _get_cell_by_host(self, ctxt: Any, host: str) -> Any:
        mapping = self._mapping_from_memory(host)
        return mapping if mapping is not None else super()._get_cell_by_host(ctxt, host)

    def _get_cell_mapping_for_host(self, context: Any, host_name: str) -> Any:
        mapping = self._mapping_from_memory(host_name)
        if mapping is not None:
            return mapping
        return super()._get_cell_mapping_for_host(context, host_name)

    def _mapping_from_memory(self, host: str) -> Any:
        """Return a host's CellMapping, or None where Nova must look: it then says why."""
        view = request_views.current()
        if view is None or not view.serves(scopes_module.API):
            return None
        cell = view.reads.cell_of_host(host)
        return None if cell is None else self.cells.get(cell)

    # -- aggregates and instances ---------------------------------------------

    def _get_aggregates_info(self, host: str) -> list[Any]:
        view = request_views.current()
        if view is not None and view.serves(scopes_module.API):
            try:
                return view.reads.aggregates_of_host(host)
            except nova_rows.UNUSABLE as error:
                LOG.error("%(error)s", {"error": error})
                view.miss(scopes_module.API, proof_module.UnprovedReason.UNKNOWN_VERSION)
        return list(super()._get_aggregates_info(host))

    def _get_host_states(self, context: Any, compute_nodes: Any, services: Any) -> Any:
        # Nova asks for a compute's instances by host alone; which cell the
        # host is in is known only here.
        cell_of = {node.host: cell for cell, nodes in compute_nodes.items() for node in nodes}
        view = request_views.current()
        if view is not None:
            view.cell_of_host = cell_of
            view.cell_mappings = self.cells
        return super()._get_host_states(context, compute_nodes, services)

    def _get_instance_info(self, context: Any, compute: Any) -> Any:
        view = request_views.current()
        cell = view.cell_of_host.get(compute.host) if view is not None else None
        mapping = self.cells.get(cell) if cell is not None else None
        if view is None or cell is None or mapping is None:
            return super()._get_instance_info(context, compute)
        if not view.serves(cell):
            return self._instances_from_database(context, view, mapping, compute.host)

        def targeted() -> Any:
            own = nova_context.get_admin_context()
            nova_context.set_target_cell(own, mapping)
            return own

        place = (cell, compute.host)
        if place not in view.instances_of:
            view.instances_of[place] = view.reads.instances(cell, compute.host, targeted)
        return view.instances_of[place]

    @staticmethod
    def _instances_from_database(
        context: Any, view: request_views.RequestView, mapping: Any, host: str
    ) -> dict[str, Any]:
        """Read the instances of all candidates of a cell at once, for this request.

        Nova reads them host by host where computes have not told it of them.
        """
        cell = str(mapping.uuid)
        with nova_context.target_cell(context, mapping) as cctxt:
            if cell not in view.instances_read:
                hosts = [name for name, its in view.cell_of_host.items() if its == cell]
                view.instances_read[cell] = objects.InstanceList.get_uuids_by_hosts(cctxt, hosts)
            uuids = view.instances_read[cell].get(host, ())
            return {uuid: objects.Instance(cctxt, uuid=uuid) for uuid in uuids}

    # -- casts of computes and APIs: consumed, but only hints -------------------

    def update_instance_info(self, context: Any, host_name: str, instance_info: Any) -> None:
        """Consume: the store hears of instances from their own writes."""

    def delete_instance_info(self, context: Any, host_name: str, instance_uuid: str) -> None:
        """Consume: the store hears of instances from their own writes."""

    def sync_instance_info(self, context: Any, host_name: str, instance_uuids: Any) -> None:
        """Consume: the store hears of instances from their own writes."""


def _has_all(nodes: Mapping[str, list[Any]], uuids: Collection[str] | None) -> bool:
    """Tell whether none of the nodes that are asked for can be in a cell that was not read."""
    if uuids is None:
        return False
    return {str(node.uuid) for found in nodes.values() for node in found}.issuperset(uuids)
