# SPDX-License-Identifier: Apache-2.0
"""Nova's HostManager, reading host states from memory, cell by cell.

Only the reads are replaced. Each asks the request's view whether a cell is
proved; one that is not takes Nova's own method, for that cell alone.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Collection
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.scheduler import host_manager as nova_host_manager

from nova_nodb_scheduler.nova_adapter import host_states, rows, views
from nova_nodb_scheduler.nova_adapter import proof as proof_module
from nova_nodb_scheduler.nova_adapter import scopes as scopes_module

LOG = logging.getLogger(__name__)


class HostManager(nova_host_manager.HostManager):  # type: ignore[misc]
    """Host states from the store. Constructor as Nova's.

    Outside a request (no current view) every method is Nova's own.
    """

    def host_state_cls(self, host: str, node: str, cell: str, **kwargs: Any) -> Any:
        """Make a host state whose costly parts are parsed when asked for."""
        return host_states.HostState(host, node, cell)

    # -- start-up: Nova reads every node and instance here; the store has them --

    def _init_instance_info(self, computes_by_cell: Any = None) -> None:
        """Read nothing: an unproved cell's instances are read when they are needed."""

    # -- compute nodes and services -----------------------------------------

    def _get_computes_for_cells(
        self, context: Any, cells: Collection[Any], compute_uuids: Collection[str] | None
    ) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        view = views.current()
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
            more, more_services = super()._get_computes_for_cells(context, left, compute_uuids)
            nodes.update(more)
            services.update(more_services)
        return nodes, services

    @staticmethod
    def _from_memory(
        view: views.RequestView, cell: str, uuids: Collection[str] | None
    ) -> tuple[list[Any], dict[str, Any]] | None:
        if not view.serves(cell):
            return None
        try:
            nodes = view.reads.compute_nodes(cell, uuids)
            services = view.reads.services(cell, {node.host for node in nodes})
        except rows.UNUSABLE as error:
            LOG.error("%(error)s", {"error": error})
            view.miss(cell, proof_module.Reason.UNKNOWN_VERSION)
            return None
        return nodes, services

    def get_compute_nodes_by_host_or_node(
        self, ctxt: Any, host: str | None, node: str | None, cell: Any = None
    ) -> Any:
        """Get compute nodes by host, node name or both, from a cell or from all."""
        view = views.current()
        if host and not cell:
            cell = self._get_cell_by_host(ctxt, host)
        cells = [cell] if cell else self.enabled_cells
        if view is not None and all(view.serves(str(each.uuid)) for each in cells):
            try:
                for each in cells:
                    nodes = view.reads.nodes_by_host_or_node(str(each.uuid), host, node)
                    if nodes:
                        return objects.ComputeNodeList(objects=nodes)
                reason = proof_module.Reason.UNKNOWN_HOST
            except rows.UNUSABLE as error:
                LOG.error("%(error)s", {"error": error})
                reason = proof_module.Reason.UNKNOWN_VERSION
            # "No such host" becomes NoValidHost: Nova looks before that is said.
            for each in cells:
                view.miss(str(each.uuid), reason)
        return super().get_compute_nodes_by_host_or_node(ctxt, host, node, cell=cell)

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
        view = views.current()
        if view is None or not view.serves(scopes_module.API):
            return None
        cell = view.reads.cell_of_host(host)
        return None if cell is None else self.cells.get(cell)

    # -- aggregates and instances ---------------------------------------------

    def _get_aggregates_info(self, host: str) -> list[Any]:
        view = views.current()
        if view is not None and view.serves(scopes_module.API):
            try:
                return view.reads.aggregates_of_host(host)
            except rows.UNUSABLE as error:
                LOG.error("%(error)s", {"error": error})
                view.miss(scopes_module.API, proof_module.Reason.UNKNOWN_VERSION)
        return list(super()._get_aggregates_info(host))

    def _get_host_states(self, context: Any, compute_nodes: Any, services: Any) -> Any:
        # Nova asks for a compute's instances by host alone; which cell the
        # host is in is known only here.
        cell_of = {node.host: cell for cell, nodes in compute_nodes.items() for node in nodes}
        view = views.current()
        if view is not None:
            view.cell_of_host = cell_of
            view.cell_mappings = self.cells
        return super()._get_host_states(context, compute_nodes, services)

    def _get_instance_info(self, context: Any, compute: Any) -> Any:
        view = views.current()
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
        context: Any, view: views.RequestView, mapping: Any, host: str
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
