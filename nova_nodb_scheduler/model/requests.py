# SPDX-License-Identifier: Apache-2.0
"""What is asked of a scheduler, as frozen values: one request for some servers.

The adapter makes a request from Nova's RequestSpec; filters, weighers and the
candidates read nothing else of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
import immutables


def _frozen(value: Mapping[str, Any]) -> immutables.Map[str, Any]:
    return immutables.Map(value)


@attrs.frozen
class Flavor:
    """The size and the extra specs of a server.

    :param root_gb: GiB, like ``ephemeral_gb``; ``swap_mb`` in MiB
    """

    name: str = ""
    vcpus: int = 0
    memory_mb: int = 0
    root_gb: int = 0
    ephemeral_gb: int = 0
    swap_mb: int = 0
    extra_specs: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen)


@attrs.frozen
class Image:
    """The image a server boots from.

    :param properties: those that are set, as Nova's ImageMetaProps holds them
    :param known_properties: every name that ImageMetaProps has a field for
    """

    uuid: str | None = None
    properties: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen)
    known_properties: frozenset[str] = frozenset()


@attrs.frozen
class Group:
    """The server group a request belongs to.

    :param policies: all policies; ``policy`` is the one of newer groups
    :param hosts: names of hosts that hold members
    :param max_server_per_host: the rule of that name; 1 where there is none
    """

    uuid: str | None
    policy: str | None
    policies: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    max_server_per_host: int = 1


@attrs.frozen
class Destination:
    """Where the request says it wants to go.

    :param cell: uuid; with ``allow_cross_cell_move`` a preference, else a must
    """

    host: str | None = None
    node: str | None = None
    cell: str | None = None
    allow_cross_cell_move: bool = False


# Each decision looks for it, and a map's hash is that of all that it holds.
@attrs.frozen(cache_hash=True)
class CandidateQuery:
    """The unsuffixed request group that Placement would be asked for.

    :param resources: positive amounts by resource class
    :param member_of: of each set the provider is in at least one aggregate
    :param in_tree: uuid of a provider whose tree alone is asked for
    """

    resources: Mapping[str, int] = attrs.field(converter=_frozen)
    required_traits: frozenset[str] = frozenset()
    forbidden_traits: frozenset[str] = frozenset()
    root_required: frozenset[str] = frozenset()
    root_forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()
    forbidden_aggregates: frozenset[str] = frozenset()
    in_tree: str | None = None

    def admits(self, aggregates: frozenset[str]) -> bool:
        """Say whether a provider in these aggregates is in those that are asked for."""
        return self.forbidden_aggregates.isdisjoint(aggregates) and not any(
            each.isdisjoint(aggregates) for each in self.member_of
        )


#: Page sizes by Nova's words for them, where a request names no number of KiB.
SMALL_PAGES = -1
LARGE_PAGES = -2
ANY_PAGES = -3


@attrs.frozen
class NumaCell:
    """One NUMA cell of a server, as Nova's InstanceNUMACell has it.

    :param shared_cpus: how many CPUs float over the shared ones of a host's cell
    :param pinned_cpus: how many are pinned
    :param page_size_kb: KiB, or one of the words above; None: not asked for
    :param policy: ``shared``, ``dedicated`` or ``mixed``; None is ``shared``
    :param thread_policy: ``prefer``, ``isolate`` or ``require``; None is ``prefer``
    """

    shared_cpus: int
    pinned_cpus: int
    memory_mb: int
    page_size_kb: int | None = None
    policy: str | None = None
    thread_policy: str | None = None


#: Of each alternative the properties that a PCI device must have, by name.
DeviceSpecs: TypeAlias = tuple[frozenset[tuple[str, str | None]], ...]


@attrs.frozen
class DeviceRequest:
    """PCI devices that a server wants, as Nova's InstancePCIRequest has them.

    :param specs: a device has all properties of one of them
    :param numa_policy: None for Nova's default, ``legacy``
    :param is_placed: Placement has said which providers they come from
    """

    count: int
    specs: DeviceSpecs
    numa_policy: str | None = None
    is_placed: bool = False


@attrs.frozen
class Request:
    """One request, for one server or several alike.

    :param hints: scheduler hints; a value is a list of texts
    :param cells: uuids of the cells whose hosts may be chosen
    :param queries: what Placement would be asked, one after the other (a request
        for pinned CPUs has two); None for a rebuild, which claims nothing
    :param check_type: the internal ``_nova_check_type``: a forced host is
        filtered all the same
    :param needs_numa: the server has a NUMA topology of its own, or a CPU
        policy that only the host's topology can satisfy
    :param needs_pci: PCI devices are asked for
    :param numa_cells: the server's NUMA topology; empty where it has none, or
        one that only Nova's own code can read
    :param isolates_emulator: one more pinned CPU is wanted for the emulator
    :param requires_threads: pinned CPUs are wanted, on hosts with threads only
    :param devices: the PCI devices; empty likewise
    :param fitted: the NUMA topology and the PCI devices, as the adapter writes
        them into claims; empty where neither is asked for
    """

    flavor: Flavor
    project_id: str = ""
    user_id: str = ""
    instance_uuid: str | None = None
    image: Image | None = None
    availability_zone: str | None = None
    hints: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, converter=_frozen)
    group: Group | None = None
    destination: Destination | None = None
    ignore_hosts: tuple[str, ...] = ()
    force_hosts: tuple[str, ...] = ()
    force_nodes: tuple[str, ...] = ()
    cells: frozenset[str] = frozenset()
    queries: tuple[CandidateQuery, ...] | None = None
    check_type: bool = False
    is_rebuild: bool = False
    needs_numa: bool = False
    needs_pci: bool = False
    numa_cells: tuple[NumaCell, ...] = ()
    isolates_emulator: bool = False
    requires_threads: bool = False
    devices: tuple[DeviceRequest, ...] = ()
    fitted: Mapping[str, Any] = attrs.field(factory=dict, eq=False, repr=False)

    def hint(self, name: str, default: str | None = None) -> str | tuple[str, ...] | None:
        """Return a scheduler hint: a list of one as its element, a longer one whole."""
        values = self.hints.get(name)
        if values is None:
            return default
        return values[0] if len(values) == 1 else values
