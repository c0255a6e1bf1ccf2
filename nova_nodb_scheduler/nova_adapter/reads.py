# SPDX-License-Identifier: Apache-2.0
"""What a scheduler asks Nova's databases per request, answered from a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from nova_nodb_scheduler.nova_adapter import rows, tables
from nova_nodb_scheduler.scheduling import claim_facts, claimed, namespaces
from nova_nodb_scheduler.store import namespace_view, stored_record
from nova_nodb_scheduler.store import snapshot as snapshot_module

COMPUTE_BINARY = "nova-compute"


class BuiltObjects:
    """Objects kept between requests, for one store.

    :param hosts: how many hosts to keep them for
    """

    def __init__(self, hosts: int = 20_000) -> None:
        self.nodes = rows.Built(hosts)
        self.services = rows.Built(hosts)
        self.aggregates = rows.Built(10_000)
        self.all_aggregates = rows.Built(1)
        self.host_aggregates = rows.Built(1)
        self.service_versions = rows.Built(1)

    def clear(self) -> None:
        """Forget everything: a new epoch began."""
        for built in (
            self.nodes,
            self.services,
            self.aggregates,
            self.all_aggregates,
            self.host_aggregates,
            self.service_versions,
        ):
            built.clear()


class Reads:
    """Nova's reads over one snapshot. Cheap to make: one per request.

    :param generation: of the store: revisions of two generations do not compare
    :param context: an admin context, untargeted; goes into the objects
    """

    def __init__(
        self,
        snapshot: snapshot_module.Snapshot,
        generation: int,
        built: BuiltObjects,
        context: Any,
    ) -> None:
        self._snapshot = snapshot
        self._generation = generation
        self._built = built
        self._context = context
        self._nodes = snapshot.namespace(namespaces.COMPUTE_NODES.name)
        self._services = snapshot.namespace(namespaces.SERVICES.name)
        self._liveness = snapshot.namespace(namespaces.SERVICE_LIVENESS.name)
        self._instances = snapshot.namespace(namespaces.INSTANCES.name)
        self._aggregates = snapshot.namespace(namespaces.AGGREGATES.name)
        self._host_mappings = snapshot.namespace(namespaces.HOST_MAPPINGS.name)

    @property
    def claims(self) -> namespace_view.NamespaceView:
        """The claim records of the snapshot."""
        return self._snapshot.namespace(namespaces.CLAIM_RECORDS.name)

    @property
    def generation(self) -> int:
        """Of the store, when the snapshot was taken."""
        return self._generation

    # -- compute nodes ------------------------------------------------------

    def compute_nodes(self, cell: str, uuids: Collection[str] | None) -> list[Any]:
        """Return a cell's compute nodes, all or those of some uuids.

        Each has its NUMA topology's JSON in ``nodb_numa_topology`` instead of
        ``numa_topology``.

        :raises UnknownObjectVersion: a record is of another major version
        """
        keys = self._nodes.lookup("cell", cell) if uuids is None else uuids
        found = (self._nodes.get(key) for key in keys)
        return [
            self._node(record)
            for record in found
            if record is not None and record.state["cell"] == cell
        ]

    def knows_node(self, uuid: str) -> bool:
        """Tell whether a compute node of that uuid is in the store, in any cell."""
        return uuid in self._nodes

    def nodes_by_host_or_node(self, cell: str, host: str | None, node: str | None) -> list[Any]:
        """Return a cell's compute nodes by host, by node name, or by both."""
        if host:
            keys = self._nodes.lookup("cell_host", cell, host)
        else:
            keys = self._nodes.lookup("node", node or "")
        found = (self._nodes.get(key) for key in keys)
        return [
            self._node(record)
            for record in found
            if record is not None
            and record.state["cell"] == cell
            and (not node or record.state["row"]["hypervisor_hostname"] == node)
        ]

    def _node(self, record: stored_record.StoredRecord) -> Any:
        def build() -> Any:
            node, numa_topology = rows.compute_node(self._context, record)
            node.nodb_numa_topology = numa_topology
            return node

        return self._built.nodes.get(record.key, (self._generation, record.revision), build)

    def claimed(self, uuid: str) -> claim_facts.Unshown:
        """Return what claims take of a compute node beside what it reports."""
        return claimed.unshown(self._snapshot, uuid)

    # -- services -----------------------------------------------------------

    def services(self, cell: str, hosts: Collection[str]) -> dict[str, Any]:
        """Return the nova-compute services of some hosts of a cell, by host."""
        found = {}
        for host in hosts:
            for key in self._services.lookup("cell_host", cell, host):
                record = self._services.get(key)
                if record is not None and record.state["row"]["binary"] == COMPUTE_BINARY:
                    found[host] = self._service(record)
        return found

    def _service(self, record: stored_record.StoredRecord) -> Any:
        liveness = self._liveness.get(record.key)
        liveness_revision = liveness.revision if liveness is not None else 0
        revisions = (self._generation, record.revision, liveness_revision)
        return self._built.services.get(
            record.key, revisions, lambda: rows.service(self._context, record, liveness)
        )

    def minimum_service_versions(self, cell: str, binaries: Collection[str]) -> dict[str, int]:
        """Return the lowest version of a cell's services by binary, disabled ones too.

        As the database does it, services that are forced down do not count,
        and a binary without services is left out.
        """
        # Nova asks this with every request, and a big cloud has a service for each host.
        known: Mapping[str, Mapping[str, int]] = self._built.service_versions.get(
            "", (self._generation, self._services.steady_mark), self._least_versions
        )
        of_cell = known.get(cell, {})
        return {name: of_cell[name] for name in binaries if name in of_cell}

    def _least_versions(self) -> dict[str, dict[str, int]]:
        """Return the least version by cell and binary, in one pass over the services."""
        view = self._services
        counted = ~view.column("forced_down")
        cells, binaries = view.column("cell")[counted], view.column("binary")[counted]
        kinds, places = np.unique(np.stack([cells, binaries]), axis=1, return_inverse=True)
        least = np.full(kinds.shape[1], np.iinfo(np.int64).max)
        np.minimum.at(least, places.reshape(-1), view.column("version")[counted])
        found: dict[str, dict[str, int]] = {}
        for cell, binary, version in zip(*kinds.tolist(), least.tolist(), strict=True):
            of_cell = found.setdefault(view.vocabulary("cell").text(cell), {})
            of_cell[view.vocabulary("binary").text(binary)] = version
        return found

    # -- instances ------------------------------------------------------------

    def instances(self, cell: str, host: str, context: Callable[[], Any]) -> rows.InstancesByUuid:
        """Return the instances on a host of a cell, by uuid.

        :param context: names a context targeted to the cell
        """
        records = {}
        for key in self._instances.lookup("cell_host", cell, host):
            record = self._instances.get(key)
            if record is not None:
                records[tables.uuid_of(key)] = record
        return rows.InstancesByUuid(records, context)

    # -- the API database -----------------------------------------------------

    def cell_of_host(self, host: str) -> str | None:
        """Return the cell a host is mapped to, None where it is not mapped."""
        record = self._host_mappings.get(host)
        return None if record is None else str(record.state["cell"])

    def aggregates_of_host(self, host: str) -> list[Any]:
        """Return the aggregates that hold a host; shared objects, not to be changed."""
        by_host = self._built.host_aggregates.get(
            "", (self._generation, self._aggregates.version), self._group_aggregates
        )
        return list(by_host.get(host, ()))

    def aggregates(self) -> list[Any]:
        """Return all aggregates in the order of their ids, as the database gives them.

        Shared objects, not to be changed.
        """
        revision = (self._generation, self._aggregates.version)
        return list(self._built.all_aggregates.get("", revision, self._make_aggregates))

    def _make_aggregates(self) -> list[Any]:
        found = [self._aggregates.get(key) for key in self._aggregates.keys()]  # noqa: SIM118
        made = [self._aggregate(record) for record in found if record is not None]
        return sorted(made, key=lambda aggregate: int(aggregate.id))

    def _aggregate(self, record: stored_record.StoredRecord) -> Any:
        return self._built.aggregates.get(
            record.key,
            (self._generation, record.revision),
            lambda: rows.aggregate(self._context, record),
        )

    def _group_aggregates(self) -> dict[str, list[Any]]:
        by_host: dict[str, list[Any]] = {}
        for aggregate in self.aggregates():
            for host in aggregate.hosts:
                by_host.setdefault(host, []).append(aggregate)
        return by_host
