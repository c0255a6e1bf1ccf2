# SPDX-License-Identifier: Apache-2.0
"""Where the servers of a request's group are, as the store shows them.

A place is the *name* of a host, as Nova's group policies know it: all nodes of
one host are one place, and a name stands in one cell only (host mappings).
"""

from __future__ import annotations

from collections.abc import Iterable

from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot as snapshot_module

#: Stands for members that the request knows of and the store does not.
UNKNOWN_MEMBER = ""


def known(snapshot: snapshot_module.Snapshot, group: requests.Group) -> dict[str, set[str]]:
    """Return names of hosts by member, for the group's ledger.

    A server that moves is on both hosts until its migration ends. Hosts that
    the request names are taken over only where the store knows no member: it
    may be behind the request.
    """
    found: dict[str, set[str]] = {}
    for member in group.members:
        places = places_of(snapshot, member)
        if places:
            found[member] = places
    if not found and group.hosts:
        found[UNKNOWN_MEMBER] = set(group.hosts)
    return found


def places_of(snapshot: snapshot_module.Snapshot, consumer: str) -> set[str]:
    """Return the names of the hosts a server is on, or on its way to or from."""
    migrations = snapshot.namespace(known_namespaces.MIGRATIONS.name)
    places = hosts_of(snapshot, consumer)
    for key in migrations.lookup("instance", consumer):
        record = migrations.get(key)
        row = None if record is None else namespaces_model.value_at(record.state, ("row",))
        for side in ("source_compute", "dest_compute"):
            if row and row.get(side):
                places.add(str(row[side]))
    return places


def hosts_of(snapshot: snapshot_module.Snapshot, consumer: str) -> set[str]:
    """Return the names of the hosts a server is on: of more than one between two cells."""
    instances = snapshot.namespace(known_namespaces.INSTANCES.name)
    found = (
        instances.indexed(f"{consumer}@{cell}", "cell_host")
        for cell in instances.vocabulary("cell").texts()
    )
    return {place[1] for place in found if place is not None}


def is_on(snapshot: snapshot_module.Snapshot, consumer: str, node: str) -> bool:
    """Say whether a server is on a node's host."""
    return place_of(snapshot, node) in hosts_of(snapshot, consumer)


def place_of(snapshot: snapshot_module.Snapshot, uuid: str) -> str:
    """Return a node's place, for :attr:`claims.Claim.place`; its uuid where it is not known."""
    found = snapshot.namespace(known_namespaces.COMPUTE_NODES.name).indexed(uuid, "host")
    return uuid if found is None else found[0]


def nodes_of(snapshot: snapshot_module.Snapshot, places: Iterable[str]) -> frozenset[str]:
    """Return the uuids of all nodes of some places."""
    nodes = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
    return frozenset(uuid for place in places for uuid in nodes.lookup("host", place))
