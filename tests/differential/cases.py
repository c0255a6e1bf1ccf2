# SPDX-License-Identifier: Apache-2.0
"""A drawn cluster, as the rows and providers that both sides are made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tests.differential.drawn import words


@attrs.frozen
class Inventory:
    """A row of Placement's inventories."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 2147483647
    step_size: int = 1
    allocation_ratio: float = 1.0


@attrs.frozen
class Provider:
    """A provider of Placement; a root unless it has a parent.

    :param allocations: by consumer, then by resource class
    """

    uuid: str
    parent: str | None = None
    generation: int = 1
    inventories: Mapping[str, Inventory] = attrs.field(factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    allocations: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict)


@attrs.frozen
class Node:
    """A row of compute_nodes and the cell it is in."""

    cell: str
    row: Mapping[str, Any] = attrs.field(hash=False)

    @property
    def uuid(self) -> str:
        return str(self.row["uuid"])

    @property
    def host(self) -> str:
        return str(self.row["host"])


@attrs.frozen
class Service:
    """A row of services and the cell it is in."""

    cell: str
    row: Mapping[str, Any] = attrs.field(hash=False)


@attrs.frozen
class Instance:
    """A placed instance; ``image`` are its image's properties as text."""

    uuid: str
    cell: str
    host: str
    node: str
    project: str = "p1"
    image: Mapping[str, str] = attrs.field(factory=dict)
    image_ref: str = words.IMAGES[0]


@attrs.frozen
class Aggregate:
    """One of Nova's host aggregates."""

    uuid: str
    id: int
    hosts: tuple[str, ...]
    metadata: Mapping[str, str]


@attrs.frozen
class Cluster:
    """All that a scheduler can know."""

    nodes: tuple[Node, ...]
    services: tuple[Service, ...]
    aggregates: tuple[Aggregate, ...] = ()
    instances: tuple[Instance, ...] = ()
    providers: tuple[Provider, ...] = ()
    disabled_cells: frozenset[str] = frozenset()

    @property
    def enabled_cells(self) -> tuple[str, ...]:
        return tuple(cell for cell in words.CELLS if cell not in self.disabled_cells)

    def cell_of(self, host: str) -> str | None:
        """Return the cell a host is mapped to."""
        for node in self.nodes:
            if node.host == host:
                return node.cell
        return None

    @property
    def plain_trees(self) -> bool:
        """Whether every provider is a root of its own and none shares."""
        return all(
            provider.parent is None and words.SHARING_TRAIT not in provider.traits
            for provider in self.providers
        )
