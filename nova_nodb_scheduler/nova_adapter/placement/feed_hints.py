# SPDX-License-Identifier: Apache-2.0
"""What the feed of Nova's states tells about providers that will change.

Between two snapshots of the store: servers that came, went or were resized,
migrations that began or ended, services that were disabled or enabled (a trait
of their providers), compute nodes that are new or of another size, and the
hints of processes that changed allocations. No I/O; what is found is a reason
to look, never a state.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.nova_adapter import tables
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module

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


class Expect(enum.Enum):
    """What will be seen on the provider when the change has arrived there."""

    #: Nothing in particular.
    UNKNOWN = "unknown"
    #: The consumer has allocations.
    PRESENT = "present"
    #: It has none.
    ABSENT = "absent"
    #: The provider has a record at all.
    MIRRORED = "mirrored"


@attrs.frozen
class Hint:
    """A provider that will change, or just did.

    :param provider: its uuid, not always a root's
    :param consumer: whose allocations, where they are what changed
    """

    provider: str
    expect: Expect = Expect.UNKNOWN
    consumer: str = ""


class FeedHints:
    """Finds hints between two snapshots; one thread."""

    def __init__(self, snapshot: snapshot_module.Snapshot) -> None:
        self._older = self._newer = snapshot

    def follow(self, snapshot: snapshot_module.Snapshot) -> set[Hint]:
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
            before, after = older.get(key), newer.get(key)
            yield key, before.state if before else None, after.state if after else None

    def _instances(self) -> Iterator[Hint]:
        for key, before, after in self._changes(namespaces.INSTANCES.name):
            was, now = self._instance_place(before), self._instance_place(after)
            consumer = tables.uuid_of(key)
            if was is not None and was != now:
                yield Hint(was, Expect.ABSENT, consumer)
            if now is not None and was != now:
                yield Hint(now, Expect.PRESENT, consumer)
            if was is not None and was == now and _differ(before, after, _FLAVOR):
                yield Hint(was, Expect.UNKNOWN, consumer)

    def _instance_place(self, state: Mapping[str, Any] | None) -> str | None:
        if state is None:
            return None
        row = state["row"]
        return self._node(state.get("cell"), row.get("host"), row.get("node"))

    def _migrations(self) -> Iterator[Hint]:
        for _key, before, after in self._changes(namespaces.MIGRATIONS.name):
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
                        yield Hint(node)

    def _services(self) -> Iterator[Hint]:
        for _key, before, after in self._changes(namespaces.SERVICES.name):
            state = after or before
            assert state is not None  # a key that changed is in one of the two
            if state["row"].get("binary") != "nova-compute":
                continue
            if before is None or after is None or _differ(before, after, ("disabled",)):
                for node in self._nodes(state.get("cell"), state["row"].get("host")):
                    yield Hint(node)

    def _compute_nodes(self) -> Iterator[Hint]:
        for key, before, after in self._changes(namespaces.COMPUTE_NODES.name):
            if before is None:
                yield Hint(key, Expect.MIRRORED)
            elif after is None or _differ(before, after, _SIZES):
                yield Hint(key)

    def _marked(self) -> Iterator[Hint]:
        for key, _before, after in self._changes(namespaces.PROVIDER_HINTS.name):
            if after is not None:
                yield from self.of_mark(key, after)

    def of_mark(self, key: str, mark: Mapping[str, Any]) -> Iterator[Hint]:
        """Return what a record of namespace ``provider_hints`` points at."""
        if not mark.get("consumer"):
            yield Hint(key)
            return
        for snapshot in (self._older, self._newer):
            for cell in snapshot.namespace(namespaces.CELLS.name).keys():  # noqa: SIM118
                found = snapshot.namespace(namespaces.INSTANCES.name).get(
                    tables.cell_key(key, cell)
                )
                place = self._instance_place(found.state if found else None)
                if place is not None:
                    yield Hint(place, Expect.UNKNOWN, key)

    def _nodes(self, cell: object, host: object) -> set[str]:
        found: set[str] = set()
        if cell and host:
            for snapshot in (self._older, self._newer):
                view = snapshot.namespace(namespaces.COMPUTE_NODES.name)
                found.update(view.lookup("cell_host", str(cell), str(host)))
        return found

    def _node(self, cell: object, host: object, node: object) -> str | None:
        """Return the uuid of a host's node, deleted just now or live."""
        for snapshot in (self._newer, self._older):
            view = snapshot.namespace(namespaces.COMPUTE_NODES.name)
            if not (cell and host):
                return None
            keys = view.lookup("cell_host", str(cell), str(host))
            if len(keys) == 1:
                return keys[0]
            for key in keys:
                found = view.get(key)
                if found is not None and found.state["row"].get("hypervisor_hostname") == node:
                    return key
        return None


def _differ(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, fields: tuple[str, ...]
) -> bool:
    assert before is not None
    assert after is not None
    return any(before["row"].get(field) != after["row"].get(field) for field in fields)
