# SPDX-License-Identifier: Apache-2.0
"""What compute nodes' own records count already, by consumer.

A node's record has sums and no names. What links it to a server: nova-compute
saves the instance with its host, or the migration with its destination, and
then the node, under one semaphore. So a node's record that is later than the
instance's counts it. A record that is not later may have been written of a row
that counts it, too: then its number of instances says so, though not of which.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.scheduling.namespaces import claim_facts, known_namespaces, node_facts
from nova_nodb_scheduler.store import store_snapshot as snapshot_module

#: Moves whose destination counts what they will take before the server is there.
_MOVES = frozenset(("migration", "resize", "evacuation"))

#: Statuses before the destination's nova-compute took the move up.
_NOT_TAKEN_UP = frozenset(("accepted", "queued", "preparing"))

#: Moves that may end on the host where they begin.
_RESIZES = frozenset(("migration", "resize"))

_COUNTED = model.NodeShare()


class Counted(enum.Enum):
    """How far a node's record counts a server."""

    NOT = "not counted"
    #: On its way: what it takes, but not as an instance and its I/O.
    COMING = "coming"
    #: As many are counted as there are. One that was just deleted may be among them
    #: in its place, until the node is saved once more: so no claim ends by it alone.
    #: To count a server twice until then would refuse others for a minute.
    LIKELY = "counted by number"
    WHOLE = "counted"


@attrs.define
class _Node:
    """A node with what is the same for all its consumers.

    :param instances: how many its record counts
    :param version: of its record
    :param expected: see :meth:`ReportedUsage._expected`; None until somebody asks
    """

    uuid: str
    cell: str
    host: str
    node: str
    instances: int
    version: int
    expected: tuple[int, int] | None = None


class ReportedUsage:
    """How much of servers the nodes' records of one snapshot count. Cheap to make; any thread."""

    def __init__(self, snapshot: snapshot_module.Snapshot) -> None:
        self._nodes = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
        self._instances = snapshot.namespace(known_namespaces.INSTANCES.name)
        self._migrations = snapshot.namespace(known_namespaces.MIGRATIONS.name)
        #: The node asked about last: its consumers are asked about together.
        self._last: tuple[str, _Node | None] = ("", None)

    def uncounted(self, uuid: str, version: int) -> claim_facts.Uncounted:
        """Return what tells how much of a claim's share a node's record does not count.

        :param version: of the record with the claims
        """
        cell = self._nodes.texts(uuid, "cell")
        instances, moving = self._instances, len(self._migrations) > 0

        def left(consumer: str, held: model.HeldClaim) -> model.NodeShare:
            share = held.node
            if cell is None or not (moving or f"{consumer}@{cell[0]}" in instances):
                # Of most that are claimed nothing else is known yet.
                return share
            # Whoever read the record may not have known its version.
            is_confirmed = held.state is model.ClaimState.CONFIRMED
            since = held.confirmed_by or version if is_confirmed else None
            counted = self.counted(uuid, consumer, share, since)
            if counted in (Counted.LIKELY, Counted.WHOLE):
                return _COUNTED
            if counted is Counted.COMING:
                return model.NodeShare(instances=share.instances, io_operations=share.io_operations)
            return share

        return left

    def gave_its_old(self, allocations: Mapping[str, Any]) -> claim_facts.GaveItsOld:
        """Return what tells of whom a provider shows the migration that has its old allocation.

        Of a resize alone: a live migration that was given up may keep one for good.

        :param allocations: the provider's, by consumer
        """

        def gave(consumer: str) -> bool:
            return any(
                key.partition("@")[0] in allocations
                and not _RESIZES.isdisjoint(self._migrations.texts(key, "migration_type") or ())
                for key in self._migrations.lookup("instance", consumer)
            )

        return gave

    def counted(
        self, uuid: str, consumer: str, share: model.NodeShare, confirmed_by: int | None = None
    ) -> Counted:
        """Tell how far a node's record counts a consumer that claims a share of it.

        :param confirmed_by: version by which it was claimed, where that is known
        """
        at = self._node(uuid)
        if at is None:
            return Counted.NOT
        since = self._there_since(at, consumer, share)
        if since is not None:
            before, all_of_them = self._expected(at)
            if since < at.version and at.instances >= before:
                return Counted.WHOLE
            if at.instances >= all_of_them and (confirmed_by or 0) < at.version:
                return Counted.LIKELY
        if self._comes(at, consumer):
            return Counted.WHOLE if claim_facts.stays(share) else Counted.COMING
        return Counted.NOT

    def _node(self, uuid: str) -> _Node | None:
        known, at = self._last
        if known == uuid:
            return at
        digest = self._nodes.digest(uuid)
        version = self._nodes.version_of(uuid)
        names = self._nodes.texts(uuid, "cell", "host", "hypervisor_hostname")
        at = None
        if version is not None and names is not None and isinstance(digest, bytes):
            cell, host, node = names
            count = node_facts.number(digest, "num_instances")
            at = _Node(uuid, cell, host, node, count, version)
        self._last = (uuid, at)
        return at

    def _there_since(self, at: _Node, consumer: str, share: model.NodeShare) -> int | None:
        """Return the version of the instance that names a node; None for none."""
        key = f"{consumer}@{at.cell}"
        if self._instances.indexed(key, "cell_host") != (at.cell, at.host):
            return None
        record = self._instances.get(key)
        if record is None:
            return None
        row = record.state["row"]
        if row.get("node") != at.node:
            return None
        # It was there before it was resized: only its new size tells of the end, and
        # nothing does where it gets other devices or cells in the same size.
        if claim_facts.stays(share) and (
            share.fitted
            or (row.get("vcpus"), row.get("memory_mb")) != (share.vcpus, share.memory_mb)
        ):
            return None
        return record.version

    def _expected(self, at: _Node) -> tuple[int, int]:
        """Return how many servers a node's record should count: by its version, and in all.

        Two reporters may publish a node's row of before, after they published
        the instance: then it counts fewer than it should.
        """
        if at.expected is None:
            place = (at.cell, at.host)
            several = len(self._nodes.lookup("cell_host", *place)) > 1
            before = all_of_them = 0
            for key in self._instances.lookup("cell_host", *place):
                if several and not self._is_of(at, key):
                    continue
                all_of_them += 1
                before += (self._instances.version_of(key) or 0) < at.version
            at.expected = before, all_of_them + self._departing(at)
        return at.expected

    def _departing(self, at: _Node) -> int:
        """Return how many servers are on their way from a node, by their rows elsewhere already.

        Until it is saved once more it counts them in the place of ones that came.
        Whether that save has come nobody can tell by versions where two reporters
        publish: so until their move is over.
        """
        found = 0
        for key in self._migrations.lookup("source", at.host):
            record = self._migrations.get(key)
            row = {} if record is None else record.state["row"]
            if row.get("source_node", at.node) != at.node:
                continue
            server = f"{row.get('instance_uuid')}@{at.cell}"
            if self._instances.indexed(server, "cell_host") != (at.cell, at.host):
                found += server in self._instances
        return found

    def _is_of(self, at: _Node, key: str) -> bool:
        record = self._instances.get(key)
        return record is not None and record.state["row"].get("node") == at.node

    def _comes(self, at: _Node, consumer: str) -> bool:
        for key in self._migrations.lookup("instance", consumer):
            record = self._migrations.get(key)
            if record is not None and record.version < at.version:
                if _names(record.state, at) and not self._was_read_before(at, record.state):
                    return True
        return False

    def _was_read_before(self, at: _Node, migration: Mapping[str, Any]) -> bool:
        """Say whether a node's row is of before a migration's, though published behind it.

        Two conductors may save and publish them. By the second of the rows' own times, as
        Nova's tables have them: a row of the same second may be one of before all the same,
        and clocks of conductors may differ. Then it is counted twice, or not, until the node
        is saved once more, and nova-compute has the last word.
        """
        node = self._nodes.get(at.uuid)
        saved = _second(namespaces_model.value_at(node.state, ("row",))) if node else ""
        moved = _second(namespaces_model.value_at(migration, ("row",)))
        return bool(saved and moved) and saved < moved


def _names(state: Mapping[str, Any], node: _Node) -> bool:
    """Say whether a migration holds its destination's resources on a node."""
    row = namespaces_model.value_at(state, ("row",)) or {}
    return (
        (state.get("cell"), row.get("dest_compute"), row.get("dest_node"))
        == (node.cell, node.host, node.node)
        and row.get("migration_type") in _MOVES
        and row.get("status") not in _NOT_TAKEN_UP
    )


def _second(row: Mapping[str, Any] | None) -> str:
    """Return when a row was written last, to the second; empty where it does not say."""
    row = row or {}
    at = row.get("updated_at") or row.get("created_at")
    return at[: len("2000-01-01T00:00:00")] if isinstance(at, str) else ""
