# SPDX-License-Identifier: Apache-2.0
"""What Nova's states tell about providers that will change, or that were not told of.

Hints are found between two snapshots of the store: servers that came, went or
were resized, migrations that began or ended, services that were disabled or
enabled (a trait of their providers), compute nodes that are new or of another
size, and the hints of processes that changed allocations. No I/O; what is found
is a reason to look, never a state.

Orphan allocations are found in the mirror: their servers are not, or no longer,
there. ``DELETE /allocations``, by which nova-compute frees a deleted server's
resources, moves no generation. Whoever missed the deletion in the feed (a keeper
that has just taken over) finds such hosts here, by comparing the consumers of
their records with the servers and migrations that are known. What is found is a
reason to look: leaked allocations, which Placement really holds, are looked at
once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot as snapshot_module

#: Fields of a compute node that its provider's inventories follow.
_SIZES = (
    "vcpus",
    "memory_mb",
    "local_gb",
    "cpu_allocation_ratio",
    "ram_allocation_ratio",
    "disk_allocation_ratio",
)
_FLAVOR = ("instance_type_id", "vcpus", "memory_mb", "root_gb", "ephemeral_gb")


class ExpectedChange(enum.Enum):
    """What will be seen on a provider when the change that was hinted at is there."""

    #: Nothing in particular.
    UNKNOWN = "unknown"
    #: The consumer has allocations.
    PRESENT = "present"
    #: It has none.
    ABSENT = "absent"
    #: The provider has a record at all.
    MIRRORED = "mirrored"
    #: It is gone, or another one has its uuid, perhaps at the same generation.
    REPLACED = "replaced"


@attrs.frozen
class ProviderHint:
    """A provider that will change, or just did.

    :param provider: its uuid, not always a root's
    :param consumer: whose allocations, where they are what changed
    """

    provider: str
    expect: ExpectedChange = ExpectedChange.UNKNOWN
    consumer: str = ""


#: Nodes that went of which it is remembered; the oldest are forgotten.
_MOST_GONE = 10_000


class FeedHints:
    """Finds hints between two snapshots; one thread."""

    def __init__(self, snapshot: snapshot_module.Snapshot) -> None:
        self._older = self._newer = snapshot
        #: Nodes that went since, in order.
        self._gone: dict[str, None] = {}

    def follow(self, snapshot: snapshot_module.Snapshot) -> set[ProviderHint]:
        """Return the hints since the snapshot before."""
        self._older, self._newer = self._newer, snapshot
        if self._older is snapshot:
            return set()
        return {
            *self._instances(),
            *self._migrations(),
            *self._services(),
            *self._compute_nodes(),
            *self._marked(),
        }

    def _changes(
        self, namespace: str
    ) -> Iterator[tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]]:
        older, newer = self._older.namespace(namespace), self._newer.namespace(namespace)
        for key in newer.changed_since(older):
            yield key, older.state(key), newer.state(key)

    def _instances(self) -> Iterator[ProviderHint]:
        for key, before, after in self._changes(known_namespaces.INSTANCES.name):
            was, now = self._instance_place(before), self._instance_place(after)
            consumer = nova_tables.uuid_of(key)
            if was is not None and was != now:
                yield ProviderHint(was, ExpectedChange.ABSENT, consumer)
            if now is not None and was != now:
                yield ProviderHint(now, ExpectedChange.PRESENT, consumer)
            if was is not None and was == now and _differ(before, after, _FLAVOR):
                yield ProviderHint(was, ExpectedChange.UNKNOWN, consumer)

    def _instance_place(self, state: Mapping[str, Any] | None) -> str | None:
        if state is None:
            return None
        row = state["row"]
        return self._node(state.get("cell"), row.get("host"), row.get("node"))

    def _migrations(self) -> Iterator[ProviderHint]:
        for _key, before, after in self._changes(known_namespaces.MIGRATIONS.name):
            if (
                before is not None
                and after is not None
                and not _differ(before, after, ("dest_compute", "dest_node"))
            ):
                continue
            for state in (before, after):
                if state is None:
                    continue
                row = state["row"]
                for side in ("source", "dest"):
                    node = self._node(
                        state.get("cell"), row.get(f"{side}_compute"), row.get(f"{side}_node")
                    )
                    if node is not None:
                        yield ProviderHint(node)

    def _services(self) -> Iterator[ProviderHint]:
        for _key, before, after in self._changes(known_namespaces.SERVICES.name):
            state = after or before
            assert state is not None  # a key that changed is in one of the two
            if state["row"].get("binary") != "nova-compute":
                continue
            if before is None or after is None or _differ(before, after, ("disabled",)):
                for node in self._nodes(state.get("cell"), state["row"].get("host")):
                    yield ProviderHint(node)

    def _compute_nodes(self) -> Iterator[ProviderHint]:
        for key, before, after in self._changes(known_namespaces.COMPUTE_NODES.name):
            if after is None:
                # Its provider goes behind it, and may be made again before anybody looks: a new
                # one begins to count anew and may end where the former one stood.
                self._gone.pop(key, None)
                self._gone[key] = None
                if len(self._gone) > _MOST_GONE:
                    del self._gone[next(iter(self._gone))]
                yield ProviderHint(key, ExpectedChange.REPLACED)
            elif before is None:
                is_back = key in self._gone
                self._gone.pop(key, None)
                yield ProviderHint(
                    key, ExpectedChange.REPLACED if is_back else ExpectedChange.MIRRORED
                )
            elif _differ(before, after, _SIZES):
                yield ProviderHint(key)

    def _marked(self) -> Iterator[ProviderHint]:
        for key, _before, after in self._changes(known_namespaces.PROVIDER_HINTS.name):
            if after is not None:
                yield from self.of_mark(key, after)

    def of_mark(self, key: str, mark: Mapping[str, Any]) -> Iterator[ProviderHint]:
        """Return what a record of namespace ``provider_hints`` points at."""
        if not mark.get("consumer"):
            yield ProviderHint(key)
            return
        for snapshot in (self._older, self._newer):
            for cell in snapshot.namespace(known_namespaces.CELLS.name).keys():  # noqa: SIM118
                found = snapshot.namespace(known_namespaces.INSTANCES.name).state(
                    nova_tables.cell_key(key, cell)
                )
                place = self._instance_place(found)
                if place is not None:
                    yield ProviderHint(place, ExpectedChange.UNKNOWN, key)

    def _nodes(self, cell: object, host: object) -> set[str]:
        found: set[str] = set()
        if cell and host:
            for snapshot in (self._older, self._newer):
                view = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
                found.update(view.lookup("cell_host", str(cell), str(host)))
        return found

    def _node(self, cell: object, host: object, node: object) -> str | None:
        """Return the uuid of a host's node, deleted just now or live."""
        for snapshot in (self._newer, self._older):
            view = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
            if not (cell and host):
                return None
            keys = view.lookup("cell_host", str(cell), str(host))
            if len(keys) == 1:
                return keys[0]
            for key in keys:
                found = view.state(key)
                if found is not None and found["row"].get("hypervisor_hostname") == node:
                    return key
        return None


def _differ(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, fields: tuple[str, ...]
) -> bool:
    assert before is not None
    assert after is not None
    return any(before["row"].get(field) != after["row"].get(field) for field in fields)


class OrphanAllocations:
    """Finds allocations in the mirror whose servers are gone, slice by slice; one thread.

    :param settle_seconds: a record changed later than that is left for the
        next round: its server's row may not have come yet
    """

    def __init__(self, settle_seconds: float = 30.0) -> None:
        self._settle_seconds = settle_seconds
        self._row = 0
        self._looked: dict[str, frozenset[str]] = {}

    def walk(
        self, snapshot: snapshot_module.Snapshot, rows: int, now_seconds: float
    ) -> set[ProviderHint]:
        """Return hints for the next rows; no I/O.

        :param now_seconds: the back end's time
        """
        keys = snapshot.namespace(known_namespaces.PROVIDERS.name).row_keys()
        if self._row >= len(keys):
            self._row = 0
        part = keys[self._row : self._row + rows]
        self._row += rows
        hints: set[ProviderHint] = set()
        for root in part:
            found = self._orphan_allocations(snapshot, root, now_seconds - self._settle_seconds)
            if found and self._looked.get(root) != found:
                self._looked[root] = found
                hints.update(
                    ProviderHint(root, ExpectedChange.UNKNOWN, consumer)
                    for consumer in sorted(found)[:1]
                )
            elif not found:
                self._looked.pop(root, None)
        return hints

    def _orphan_allocations(
        self, snapshot: snapshot_module.Snapshot, root: str, settled: float
    ) -> frozenset[str]:
        state = snapshot.namespace(known_namespaces.PROVIDERS.name).state(root)
        node = snapshot.namespace(known_namespaces.COMPUTE_NODES.name).state(root)
        if state is None or node is None or not state["allocations"]:
            return frozenset()
        if max(state.get("read_at", 0.0), state.get("written_at", 0.0)) > settled:
            return frozenset()
        cell, host = str(node["cell"]), str(node["row"]["host"])
        there = snapshot.namespace(known_namespaces.INSTANCES.name).lookup("cell_host", cell, host)
        known = {nova_tables.uuid_of(key) for key in there}
        migrations = snapshot.namespace(known_namespaces.MIGRATIONS.name)
        return frozenset(
            consumer
            for consumer in state["allocations"]
            if consumer not in known
            and nova_tables.cell_key(consumer, cell) not in migrations
            and not migrations.lookup("instance", consumer)
        )
