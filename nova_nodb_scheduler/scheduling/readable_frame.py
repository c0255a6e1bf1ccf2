# SPDX-License-Identifier: Apache-2.0
"""What filters and weighers read of all hosts: columns by row, and rows by name.

Columns have spare rows; :attr:`ReadableFrame.alive` says which rows count.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling import (
    change_log,
    columns,
    host_facts,
    host_places,
    liveness,
    plain_columns,
    provider_columns,
    topology_columns,
    topology_facts,
)

Locate = Callable[[str], Iterable[tuple[str, str]]]
Attribute = Callable[[str, tuple[str, ...]], Hashable]


class ReadableFrame(plain_columns.PlainColumns):
    """All hosts, as columns named like the fields of HostFacts.

    :param locate: (instance uuid) -> (cell, host) of each place where the
        store knows an instance of that uuid
    :param attribute: (node uuid, path) -> what stands at a path of Nova's
        HostState (``("stats", "foo")``, ``("cpu_info",)``, ``("metrics", "x")``),
        hashable; for what has no column
    """

    def __init__(
        self,
        locate: Locate = lambda uuid: (),
        attribute: Attribute = lambda uuid, path: None,
    ) -> None:
        super().__init__()
        self._locate = locate
        self._attribute = attribute
        self.rows = 0
        #: What changed in a way that a decision can see.
        self.log = change_log.ChangeLog()
        #: Which rows hold a host.
        self.alive: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        #: How many hosts a row had so far.
        self.tenure: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        #: Whether the service is up; kept by whoever writes.
        self.up: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.cell = columns.CodedColumn(0, "")
        #: Tuples of uuids of Nova's aggregates.
        self.aggregate_sets = columns.CodedColumn(0, ())
        #: Nova's aggregates by uuid; replaced whole by :meth:`set_aggregates`.
        self.aggregates: Mapping[str, host_facts.Aggregate] = {}
        #: Resource classes of providers that share them and are no compute nodes, by uuid.
        self.sharing: dict[str, frozenset[str]] = {}
        self._places = host_places.HostPlaces()
        self._provided = provider_columns.ProviderColumns()
        self._attributes: dict[tuple[str, ...], columns.CodedColumn] = {}
        self._topologies: topology_columns.TopologyColumns | None = None
        #: Instances placed by this fork: (cell, host) by uuid.
        self._placed: dict[str, tuple[str, str]] = {}
        self._liveness = liveness.Liveness()

    def __len__(self) -> int:
        return len(self._places)

    def facts(self, row: int) -> host_facts.HostFacts:
        """Return what a row was made from, but for the time its service was heard of.

        Of a fork, what was consumed is not in it any more.

        :raises KeyError: no host has that row
        """
        place = self.place(row)
        return host_facts.HostFacts(
            uuid=place.uuid,
            cell=place.cell,
            host=place.host,
            node=place.node,
            aggregates=self.aggregate_sets.value(row),
            provider=self._provided.of(row),
            **self.numbers(row),
        )

    def place(self, row: int) -> host_places.Place:
        """Return the names of a row's host.

        :raises KeyError: no host has that row
        """
        return self._places.place(row)

    def places_of(self, rows: Iterable[int]) -> list[host_places.Place | None]:
        """Return the names of the hosts of some rows; None where there is none."""
        return self._places.of(rows)

    def row_of(self, uuid: str) -> int | None:
        """Return the row of a compute node, or None."""
        return self._places.row_of(uuid)

    def row_of_tree(self, provider: str) -> int | None:
        """Return the row of the compute node in whose provider tree a provider is, or None."""
        row = self._places.row_of(provider)
        return row if row is not None else self._provided.row_of_child(provider)

    def rows_of_host(self, cell: str, host: str) -> Collection[int]:
        """Return the rows of the nodes of one host; several with ironic."""
        return self._places.rows_of_host(cell, host)

    def rows_of_name(self, host: str) -> Collection[int]:
        """Return the rows of hosts of a name in all cells, whatever its case."""
        return self._places.rows_of_name(host)

    def rows_of_nodes(self, nodes: Container[str]) -> set[int]:
        """Return the rows of nodes with one of some names; looks at all of them."""
        return self._places.rows_of_nodes(nodes)

    @property
    def traits(self) -> columns.CodedColumn:
        """Frozensets of traits of the root provider."""
        return self._provided.traits

    @property
    def provider_aggregates(self) -> columns.CodedColumn:
        """Frozensets of Placement's aggregates of the root provider."""
        return self._provided.aggregates

    @property
    def nested(self) -> collections.Counter[str]:
        """How many hosts have child providers with a resource class."""
        return self._provided.nested

    @property
    def broken(self) -> set[int]:
        """Rows whose provider breaks the model."""
        return self._provided.broken

    def provider(self, row: int) -> host_facts.ProviderFacts | None:
        """Return the provider tree of a row's host; None where it is not known."""
        return self._provided.of(row)

    def resource(self, name: str) -> columns.ResourceColumns | None:
        """Return the columns of a resource class; None if no host has it."""
        return self._provided.resource(name)

    def attribute(self, *path: str) -> columns.CodedColumn:
        """Return what stands at a path of each host's HostState.

        The first call for a path reads every host's record; later ones only
        those that changed.
        """
        column = self._attributes.get(path)
        if column is None:
            column = self._attributes[path] = columns.CodedColumn(self.rows, None)
            for uuid, row in self._places.rows():
                column.put(row, self._attribute(uuid, path))
        return column

    @property
    def topologies(self) -> topology_columns.TopologyColumns:
        """What is left in hosts' NUMA cells and PCI pools, as of :meth:`read_topologies`."""
        if self._topologies is None:
            self._topologies = topology_columns.TopologyColumns(self.rows)
        return self._topologies

    def read_topologies(self) -> None:
        """Look at hosts that reported since the last call; before a request that asks.

        Some at a time: those that are left are refused nothing until then.
        """
        self.log.extend(self.topologies.refresh(self.alive, self._topology_texts))

    def _topology_texts(self, row: int) -> tuple[str | None, str | None]:
        texts: Any = self._attribute(self.place(row).uuid, topology_facts.TEXTS)
        numa, pools = texts or (None, None)
        return numa, pools

    def instance_counts(self, uuids: Iterable[str]) -> dict[int, int]:
        """Return how many of some instances stand on each row; rows without are left out."""
        counts: dict[int, int] = {}
        for uuid in set(uuids):
            places = set(self._locate(uuid))
            if uuid in self._placed:
                places.add(self._placed[uuid])
            for row in {row for place in places for row in self.rows_of_host(*place)}:
                # A fork does not know the rows of hosts that came later.
                if row < self.rows:
                    counts[row] = counts.get(row, 0) + 1
        return counts
