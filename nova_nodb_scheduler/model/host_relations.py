# SPDX-License-Identifier: Apache-2.0
"""Which namespaces describe hosts, and how records of others belong to a compute node."""

from __future__ import annotations

import attrs


@attrs.frozen
class HostRelation:
    """Which records of a namespace belong to a compute node.

    :param index: by cell and host; empty where a record's key is that of the node
    :param keys_of: a namespace related by an index: records with its keys belong instead
    :param conditions: CATEGORY columns and the texts that must stand there
    :param node_column: CATEGORY column with the node's name, for records of one
        node of several on a host
    :param scope: whose proof its records need beside that of the host's cell
    :param counted: there may be many: readers get their number
    """

    namespace: str
    index: str = ""
    keys_of: str = ""
    conditions: tuple[tuple[str, str], ...] = ()
    node_column: str = ""
    scope: str = ""
    counted: bool = False


@attrs.frozen
class HostTables:
    """The namespaces of hosts.

    :param nodes: compute nodes by uuid, with the columns ``cell``, ``id``, ``host`` and
        ``hypervisor_hostname``
    :param services: services by uuid, with the columns ``cell``, ``host`` and ``binary``
    :param relations: of other namespaces, by name
    """

    nodes: str
    services: str
    relations: tuple[HostRelation, ...]

    def relation(self, namespace: str) -> HostRelation | None:
        """Return how a namespace's records belong to hosts; None where they do not."""
        for each in self.relations:
            if each.namespace == namespace:
                return each
        return None
