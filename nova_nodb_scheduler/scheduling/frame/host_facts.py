# SPDX-License-Identifier: Apache-2.0
"""What is known of one host, as the frame's columns take it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

#: Hosts whose service never said that it lives.
NEVER = -math.inf


@attrs.frozen
class Inventory:
    """What a provider has of one resource class, as Placement says it."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 2**31 - 1
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def capacity(self) -> int:
        """What may be used, as Placement computes it (cut to a whole number)."""
        return int((self.total - self.reserved) * self.allocation_ratio)


@attrs.frozen
class ProviderFacts:
    """The provider tree below one compute node, as far as candidates need it.

    :param used: by resource class, of the root
    :param aggregates: uuids of Placement's aggregates of the root
    :param nested: resource classes in the inventories of child providers
    :param tree: uuids of all providers of the tree, the root's included; empty
        where the root stands alone
    :param broken: why candidates cannot be told for it; None if they can
    """

    generation: int
    inventories: Mapping[str, Inventory] = attrs.field(factory=dict)
    used: Mapping[str, int] = attrs.field(factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    nested: frozenset[str] = frozenset()
    tree: frozenset[str] = frozenset()
    broken: str | None = None

    def with_used(self, used: Mapping[str, int]) -> ProviderFacts:
        """Return the same with other amounts in use; an object of its own."""
        # For each host that changed, before each decision: attrs.evolve is dear.
        return ProviderFacts(
            self.generation,
            self.inventories,
            used,
            self.traits,
            self.aggregates,
            self.nested,
            self.tree,
            self.broken,
        )


@attrs.frozen
class HostFacts:
    """One compute node, its service, its aggregates and its provider.

    Names are those of Nova's HostState. Disk and memory in MiB where the name
    says so, in GiB where it says that; negative where a host is overcommitted.

    :param updated: False until the node's usage was reported once; Nova then
        leaves its HostState empty, without even a uuid
    :param last_seen_seconds: since the epoch; :data:`NEVER` for none
    :param pci_free: devices left in all pools
    :param has_service: False where no nova-compute service is known: Nova
        passes over such a node
    :param aggregates: uuids of Nova's aggregates, in the order of their ids
    :param provider: None where Placement's mirror does not know the node
    """

    uuid: str
    cell: str
    host: str
    node: str
    updated: bool = True
    memory_mb: int = 0
    free_ram_mb: int = 0
    local_gb: int = 0
    free_disk_mb: int = 0
    disk_mb_used: int = 0
    vcpus: int = 0
    vcpus_used: int = 0
    cpu_allocation_ratio: float = 1.0
    ram_allocation_ratio: float = 1.0
    disk_allocation_ratio: float = 1.0
    num_instances: int = 0
    num_io_ops: int = 0
    failed_builds: int = 0
    hypervisor_version: int = 0
    pci_free: int = 0
    has_service: bool = True
    disabled: bool = False
    forced_down: bool = False
    last_seen_seconds: float = NEVER
    aggregates: tuple[str, ...] = ()
    provider: ProviderFacts | None = None


@attrs.frozen
class HostAggregate:
    """One of Nova's host aggregates."""

    uuid: str
    id: int
    name: str = ""
    metadata: Mapping[str, str] = attrs.field(factory=dict)
