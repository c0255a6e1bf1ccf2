# SPDX-License-Identifier: Apache-2.0
"""What Placement's and Nova's tables say at one moment, read by SQL of our own.

All databases stand on one server, so that one transaction sees all of them as of one moment.
"""

import collections
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import pymysql

from tests.chaos import usage_history
from tools.stack import settings as stack_settings

Rows = Iterable[Sequence[Any]]
Execute = Callable[[str], Rows]
"""Carries one statement out within the transaction."""

_Found = TypeVar("_Found")

_READ_SECONDS = 10
_CELL0 = "nova_cell0"

_INVENTORIES = (
    "SELECT p.name, c.name, (i.total - i.reserved) * i.allocation_ratio, p.uuid"
    " FROM placement.inventories i"
    " JOIN placement.resource_providers p ON p.id = i.resource_provider_id"
    " JOIN placement.resource_classes c ON c.id = i.resource_class_id"
)
_ALLOCATIONS = (
    "SELECT a.consumer_id, p.name, c.name, a.used, a.id FROM placement.allocations a"
    " JOIN placement.resource_providers p ON p.id = a.resource_provider_id"
    " JOIN placement.resource_classes c ON c.id = a.resource_class_id"
)
_BUILD_REQUESTS = "SELECT instance_uuid FROM nova_api.build_requests"
_REQUESTED = "SELECT instance FROM nova_api.build_requests"
_GROUPS = (
    "SELECT g.uuid, g.name, p.policy, p.rules FROM nova_api.instance_groups g"
    " JOIN nova_api.instance_group_policy p ON p.group_id = g.id"
)
_MEMBERS = (
    "SELECT g.uuid, m.instance_uuid FROM nova_api.instance_group_member m"
    " JOIN nova_api.instance_groups g ON g.id = m.group_id"
)
_SERVERS = (
    "SELECT uuid, display_name, host, node, vm_state, task_state, vcpus FROM {cell}.instances"
    " WHERE deleted = 0 AND hidden = 0"
)
_MIGRATIONS = (
    "SELECT uuid, instance_uuid, status, source_node, dest_node FROM {cell}.migrations"
    " WHERE deleted = 0"
)
_FAULTS = (
    "SELECT i.uuid, i.display_name, f.message FROM {cell}.instance_faults f"
    " JOIN {cell}.instances i ON i.uuid = f.instance_uuid WHERE i.display_name LIKE '{prefix}%'"
    " ORDER BY f.id"
)
_STATES = (
    "SELECT display_name, launched_at IS NOT NULL,"
    " CASE WHEN deleted = 0 THEN vm_state ELSE 'deleted' END FROM {cell}.instances"
    " WHERE display_name LIKE '{prefix}%' AND hidden = 0"
)
FINAL = frozenset(
    ("confirmed", "reverted", "error", "failed", "completed", "done", "cancelled", "accepted")
)
_WAITING = "finished"
"""Status of a resize that waits for its confirmation."""


@attrs.frozen
class Server:
    """A server that is not deleted. ``cell``: of which database."""

    uuid: str
    name: str
    cell: str
    host: str | None
    node: str | None
    vm_state: str | None
    task_state: str | None
    vcpus: int

    @property
    def is_leaving(self) -> bool:
        return self.task_state in ("deleting", "soft-deleting")

    @property
    def is_settled(self) -> bool:
        """ACTIVE, failed, or waiting for a confirmation: nothing is under way."""
        return self.task_state is None and self.vm_state not in (None, "building")


@attrs.frozen
class Migration:
    uuid: str
    server: str
    status: str
    source: str | None
    target: str | None

    @property
    def is_over(self) -> bool:
        return self.status in FINAL

    @property
    def is_under_way(self) -> bool:
        return not self.is_over and self.status != _WAITING


@attrs.frozen
class Group:
    """A server group. ``most_per_host``: of an anti-affinity group."""

    uuid: str
    name: str
    policy: str
    most_per_host: int
    members: frozenset[str]


@attrs.frozen
class Snapshot:
    """One moment.

    :param at: monotonic seconds, not before that moment
    :param capacity: (total - reserved) * ratio by provider's name and resource class
    :param used: what is allocated, likewise
    :param allocated: by consumer: provider's name -> resource class -> amount
    :param rows: by consumer and provider: the highest number of its rows, which are written anew
        with every change
    :param provider_uuids: by name
    :param since: monotonic seconds, not behind that moment
    """

    at: float
    capacity: Mapping[tuple[str, str], float]
    used: Mapping[tuple[str, str], int]
    allocated: Mapping[str, Mapping[str, Mapping[str, int]]]
    servers: Mapping[str, Server]
    migrations: Mapping[str, Migration]
    groups: tuple[Group, ...]
    build_requests: frozenset[str]
    rows: Mapping[tuple[str, str], int] = attrs.field(factory=dict)
    provider_uuids: Mapping[str, str] = attrs.field(factory=dict)
    since: float = attrs.field(default=attrs.Factory(lambda self: self.at, takes_self=True))

    def slots(self) -> int:
        """VCPU of all hosts."""
        return int(sum(size for (_, kind), size in self.capacity.items() if kind == "VCPU"))

    def free(self) -> dict[str, int]:
        """VCPU that nobody holds, by provider's name; 0 where more is given away than it has."""
        return {
            key[0]: max(0, int(size) - self.used.get(key, 0))
            for key, size in self.capacity.items()
            if key[1] == "VCPU"
        }

    def active(self) -> int:
        """Servers that stand on a host and work."""
        return sum(1 for s in self.servers.values() if s.vm_state in ("active", "resized"))


def read(execute: Execute, cells: Sequence[str], at: float) -> Snapshot:
    """Read a snapshot.

    :param cells: names of the cells' databases, cell0's among them
    """
    capacity: dict[tuple[str, str], float] = {}
    provider_uuids: dict[str, str] = {}
    for name, kind, size, uuid in execute(_INVENTORIES):
        capacity[str(name), str(kind)] = float(size)
        provider_uuids[str(name)] = str(uuid)
    used: collections.Counter[tuple[str, str]] = collections.Counter()
    allocated: dict[str, dict[str, dict[str, int]]] = {}
    rows: dict[tuple[str, str], int] = {}
    for consumer, provider, kind, amount, row in execute(_ALLOCATIONS):
        key = str(consumer), str(provider)
        rows[key] = max(int(row), rows.get(key, 0))
        used[str(provider), str(kind)] += int(amount)
        of_consumer = allocated.setdefault(str(consumer), {})
        of_consumer.setdefault(str(provider), {})[str(kind)] = int(amount)
    servers: dict[str, Server] = {}
    migrations: dict[str, Migration] = {}
    for cell in cells:
        for uuid, name, host, node, vm_state, task_state, vcpus in execute(
            _SERVERS.format(cell=cell)
        ):
            servers[uuid] = Server(uuid, name, cell, host, node, vm_state, task_state, int(vcpus))
        for row in execute(_MIGRATIONS.format(cell=cell)):
            migrations[row[0]] = Migration(*row)
    return Snapshot(
        at=at,
        capacity=capacity,
        used=dict(used),
        allocated=allocated,
        servers=servers,
        migrations=migrations,
        groups=_groups(execute),
        build_requests=frozenset(str(uuid) for (uuid,) in execute(_BUILD_REQUESTS)),
        rows=rows,
        provider_uuids=provider_uuids,
    )


def faults(execute: Execute, cells: Sequence[str], prefix: str) -> dict[str, str]:
    """Return the last fault's message of each server, gone ones too, by the servers' names."""
    return {
        str(name): str(message)
        for cell in cells
        for _uuid, name, message in execute(_FAULTS.format(cell=cell, prefix=prefix))
    }


def states(
    execute: Execute, cells: Sequence[str], prefix: str
) -> dict[str, tuple[bool, str | None]]:
    """Return whether each server ever stood, and its state, gone ones too, by their names."""
    return {
        str(name): (bool(was_active), vm_state)
        for cell in cells
        for name, was_active, vm_state in execute(_STATES.format(cell=cell, prefix=prefix))
    }


def requested(execute: Execute) -> set[str]:
    """Return the names of servers whose build was asked for and is nobody's yet."""
    found = (json.loads(instance) for (instance,) in execute(_REQUESTED) if instance)
    return {str(each["nova_object.data"].get("display_name")) for each in found}


def _groups(execute: Execute) -> tuple[Group, ...]:
    members = collections.defaultdict(set)
    for group, member in execute(_MEMBERS):
        members[group].add(str(member))
    return tuple(
        Group(
            uuid=str(uuid),
            name=str(name),
            policy=str(policy),
            most_per_host=int(json.loads(rules or "{}").get("max_server_per_host", 1)),
            members=frozenset(members[uuid]),
        )
        for uuid, name, policy, rules in execute(_GROUPS)
    )


class Reader:
    """Reads a stack's databases as MariaDB's root; connects again after a failure.

    Used by one thread at a time. Any call raises pymysql.MySQLError or OSError while the server
    is away.
    """

    def __init__(self, settings: stack_settings.Settings) -> None:
        self._settings = settings
        self._connection: pymysql.Connection | None = None
        self._cells = (_CELL0, *settings.cell_databases)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Without a word of good-bye: the server may be stopped.
            connection._force_close()

    def snapshot(self) -> Snapshot:
        """Read all of it as of one moment."""
        since = time.monotonic()
        found = self._within(lambda execute: read(execute, self._cells, time.monotonic()))
        return attrs.evolve(found, since=since)

    def faults(self, prefix: str) -> dict[str, str]:
        """Return why servers failed, as :func:`faults`."""
        return self._within(lambda execute: faults(execute, self._cells, prefix))

    def states(self, prefix: str) -> dict[str, tuple[bool, str | None]]:
        """Return what became of servers, as :func:`states`."""
        return self._within(lambda execute: states(execute, self._cells, prefix))

    def requested(self) -> set[str]:
        """Return the servers that were asked for, as :func:`requested`."""
        return self._within(requested)

    def usage(self) -> usage_history.UsageHistory:
        """Return what was allocated at every moment, as :func:`.usage_history.read`."""
        return self._within(usage_history.read)

    def _within(self, work: Callable[[Execute], _Found]) -> _Found:
        try:
            if self._connection is None:
                self._connection = pymysql.connect(
                    unix_socket=str(self._settings.mariadb_socket),
                    user="root",
                    connect_timeout=_READ_SECONDS,
                    read_timeout=_READ_SECONDS,
                    write_timeout=_READ_SECONDS,
                )
            with self._connection.cursor() as cursor:

                def execute(statement: str) -> Rows:
                    cursor.execute(statement)
                    return list(cursor.fetchall())

                execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                found = work(execute)
                execute("COMMIT")
                return found
        except BaseException:
            self.close()
            raise
