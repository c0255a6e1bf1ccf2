# SPDX-License-Identifier: Apache-2.0
"""Which host a record belongs to, from the indexes of one snapshot of the store."""

from __future__ import annotations

from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module


class Whereabouts:
    """Nodes, servers and moves by host. Cheap to make; used by one thread."""

    def __init__(self, snapshot: snapshot_module.Snapshot) -> None:
        self._nodes = snapshot.namespace(namespaces.COMPUTE_NODES.name)
        self._instances = snapshot.namespace(namespaces.INSTANCES.name)
        self._migrations = snapshot.namespace(namespaces.MIGRATIONS.name)
        self._cells = self._instances.vocabulary("cell").texts()

    def has_node(self, uuid: str) -> bool:
        """Return whether there is a compute node of that uuid."""
        return uuid in self._nodes

    def host_of_node(self, uuid: str) -> tuple[str, str] | None:
        """Return (cell, host) of a compute node; None for none."""
        found = self._nodes.indexed(uuid, "cell_host")
        return None if found is None else (found[0], found[1])

    def nodes_of_host(self, cell: str, host: str) -> tuple[str, ...]:
        """Return the uuids of a host's compute nodes."""
        return self._nodes.lookup("cell_host", cell, host)

    def nodes_named(self, host: str) -> tuple[str, ...]:
        """Return the uuids of the compute nodes of a host name, in any cell."""
        return self._nodes.lookup("host", host)

    def host_of_instance(self, key: str) -> tuple[str, str] | None:
        """Return (cell, host) of an instance's record; None for none."""
        found = self._instances.indexed(key, "cell_host")
        return None if found is None else (found[0], found[1])

    def destination(self, key: str) -> tuple[str, str] | None:
        """Return (cell, host) that a migration's record goes to; None for none."""
        found = self._migrations.indexed(key, "destination")
        cell = self._migrations.indexed(key, "cell")
        return None if found is None or cell is None else (cell[0], found[0])

    def locate(self, uuid: str) -> tuple[tuple[str, str], ...]:
        """Return (cell, host) of each place where an instance of that uuid is known."""
        places = []
        for cell in self._cells:
            place = self._instances.indexed(f"{uuid}@{cell}", "cell_host")
            if place is not None:
                places.append((place[0], place[1]))
        return tuple(places)
