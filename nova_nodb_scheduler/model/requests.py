# SPDX-License-Identifier: Apache-2.0
"""What is asked of a scheduler, as frozen values: one request for some servers.

The adapter makes a request from Nova's RequestSpec; filters, weighers and the
candidates read nothing else of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


@attrs.frozen
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
    fitted: Mapping[str, Any] = attrs.field(factory=dict, eq=False, repr=False)

    def hint(self, name: str, default: str | None = None) -> str | tuple[str, ...] | None:
        """Return a scheduler hint: a list of one as its element, a longer one whole."""
        values = self.hints.get(name)
        if values is None:
            return default
        return values[0] if len(values) == 1 else values
