# SPDX-License-Identifier: Apache-2.0
"""Rows of Nova's tables as states of namespaces, read in raw SQL.

Nova's object layer costs 0.4 to 0.8 ms for a compute node, the row itself a
hundredth of that; the state keeps the row's columns verbatim, and Nova's own code
turns them into objects where a scheduler needs them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import attrs
import sqlalchemy as sa
from nova import objects, servicegroup
from nova.db.api import api as api_db
from nova.db.api import models as api_models
from nova.db.main import api as main_db
from nova.db.main import models as main_models

from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.nova_adapter.reporting import table_tripwire
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces

State = dict[str, Any]
Row = Mapping[str, Any]

#: Columns of ``services`` that a heartbeat changes; kept in service_liveness.
HEARTBEAT_COLUMNS = ("report_count", "last_seen_up", "updated_at")

#: Columns of ``instances`` that say where it is and what it takes.
INSTANCE_COLUMNS = (
    "id",
    "uuid",
    "host",
    "node",
    "compute_id",
    "project_id",
    "user_id",
    "vm_state",
    "task_state",
    "memory_mb",
    "vcpus",
    "root_gb",
    "ephemeral_gb",
    "instance_type_id",
    "image_ref",
    "availability_zone",
    "hidden",
    "created_at",
    "launched_at",
)

#: Statuses after which a migration holds nothing on either host any more,
#: as in Nova's migration_get_in_progress_by_host_and_node.
ENDED_MIGRATIONS = (
    "confirmed",
    "reverted",
    "error",
    "failed",
    "completed",
    "cancelled",
    "done",
)


@main_db.pick_context_manager_reader  # type: ignore[untyped-decorator]
def select_main(context: Any, statement: sa.Select[Any]) -> list[Row]:
    """Return rows of the database that a context is for."""
    with table_tripwire.own_statements():
        return [dict(row) for row in context.session.execute(statement).mappings()]


@api_db.context_manager.reader  # type: ignore[untyped-decorator]
def select_api(context: Any, statement: sa.Select[Any]) -> list[Row]:
    """Return rows of the API database."""
    return [dict(row) for row in context.session.execute(statement).mappings()]


def plain(row: Row) -> State:
    """Return a row with date-times as ISO 8601 text (UTC), as JSON wants it."""
    return {
        name: value.isoformat() if isinstance(value, datetime.datetime) else value
        for name, value in row.items()
    }


def cell_key(uuid: str, cell: str) -> str:
    """Key of a record whose uuid may occur in two cells (a cross-cell resize)."""
    return f"{uuid}@{cell}"


def uuid_of(key: str) -> str:
    """Return the uuid in a key made by :func:`cell_key`."""
    return key.partition("@")[0]


class StateTable(Protocol):
    """Where the states of one namespace come from; calls block for I/O."""

    @property
    def namespace(self) -> str:
        """The namespace."""

    @property
    def tells_changes(self) -> bool:
        """Whether :meth:`changed` tells what was written."""

    @property
    def read(self) -> Callable[[Any, str, Collection[str]], dict[str, State]]:
        """(context, cell, keys) -> states of those that exist; the others are gone."""

    def page(self, context: Any, cell: str, after: int, limit: int) -> tuple[int, list[str]]:
        """Return the next keys that exist, in the order of ids, and the last id; 0 at the end."""

    def changed(self, context: Any, cell: str, since: datetime.datetime) -> list[str]:
        """Return the keys of what was written since (naive, UTC), deleted ones too."""

    def count(self, context: Any) -> int:
        """Count what has a record."""


@attrs.frozen(eq=False)
class NovaTable:
    """How one namespace is read from Nova's database.

    :param read: (context, cell, keys) -> states of those that exist; a key
        that is missing shall be deleted
    :param key: column by whose values records are named
    :param exists: what holds for rows that have a record
    :param is_in_cells: its keys name the cell, too
    :param tells_changes: its columns tell when a row was written
    :param select: reads rows of its database
    """

    namespace: str
    read: Callable[[Any, str, Collection[str]], dict[str, State]]
    key: Any
    exists: tuple[Any, ...] = ()
    is_in_cells: bool = False
    tells_changes: bool = False
    select: Callable[[Any, sa.Select[Any]], list[Row]] = select_main

    def page(self, context: Any, cell: str, after: int, limit: int) -> tuple[int, list[str]]:
        """Return the next keys that exist, in the order of the table's id, and the last id."""
        number = self.key.table.c.id
        query = sa.select(number.label("id"), self.key.label("key"))
        query = query.where(number > after, *self.exists).order_by(number).limit(limit)
        rows = self.select(context, query)
        return int(rows[-1]["id"]) if rows else 0, self._keys(rows, cell)

    def changed(self, context: Any, cell: str, since: datetime.datetime) -> list[str]:
        """Return the keys of rows that were written since, deleted ones too.

        No index serves it: one scan, few rows.

        :param since: naive, UTC; by the clocks of who wrote
        """
        columns = self.key.table.c
        written = (columns.updated_at, columns.created_at, columns.deleted_at)
        query = sa.select(self.key.label("key")).where(
            sa.or_(*(column >= since for column in written)), self.key.is_not(None)
        )
        return self._keys(self.select(context, query), cell)

    def count(self, context: Any) -> int:
        """Count the rows that have a record."""
        query = sa.select(sa.func.count().label("rows")).select_from(self.key.table)
        return int(self.select(context, query.where(*self.exists))[0]["rows"])

    def _keys(self, rows: Collection[Row], cell: str) -> list[str]:
        keys = [str(row["key"]) for row in rows]
        return [cell_key(key, cell) for key in keys] if self.is_in_cells else keys


def _state(cell: str, object_name: str, row: State) -> State:
    version = str(getattr(objects, object_name).VERSION)
    return {"cell": cell, "object_version": version, "row": row}


_COMPUTE = main_models.ComputeNode.__table__
_SERVICE = main_models.Service.__table__
_INSTANCE = main_models.Instance.__table__
_IMAGE_METADATA = main_models.InstanceSystemMetadata.__table__
_MIGRATION = main_models.Migration.__table__
_AGGREGATE = api_models.Aggregate.__table__
_AGGREGATE_HOST = api_models.AggregateHost.__table__
_AGGREGATE_METADATA = api_models.AggregateMetadata.__table__
_HOST_MAPPING = api_models.HostMapping.__table__
_CELL_MAPPING = api_models.CellMapping.__table__


def compute_node_state(cell: str, row: Row) -> State:
    """Return the state of a row of ``compute_nodes``, whatever held it."""
    own = {each.name: row[each.name] for each in _COMPUTE.c}
    return _state(cell, "ComputeNode", plain(own))


def read_compute_nodes(context: Any, cell: str, keys: Collection[str]) -> dict[str, State]:
    """Read rows of ``compute_nodes`` by uuid."""
    query = sa.select(_COMPUTE).where(_COMPUTE.c.uuid.in_(list(keys)), _COMPUTE.c.deleted == 0)
    return {row["uuid"]: compute_node_state(cell, row) for row in select_main(context, query)}


def read_services(context: Any, cell: str, keys: Collection[str]) -> dict[str, State]:
    """Read rows of ``services`` by uuid, without what heartbeats change."""
    query = sa.select(_SERVICE).where(_SERVICE.c.uuid.in_(list(keys)), _SERVICE.c.deleted == 0)
    states = {}
    for row in select_main(context, query):
        kept = {name: value for name, value in row.items() if name not in HEARTBEAT_COLUMNS}
        states[row["uuid"]] = _state(cell, "Service", plain(kept))
    return states


def read_liveness(context: Any, cell: str, keys: Collection[str]) -> dict[str, State]:
    """Read what heartbeats change of live nova-compute services, by uuid."""
    query = sa.select(
        _SERVICE.c.uuid, _SERVICE.c.report_count, _SERVICE.c.last_seen_up, _SERVICE.c.updated_at
    ).where(
        _SERVICE.c.uuid.in_(list(keys)),
        _SERVICE.c.deleted == 0,
        _SERVICE.c.binary == "nova-compute",
    )
    return {row["uuid"]: {"cell": cell, **plain(row)} for row in select_main(context, query)}


def read_instances(context: Any, cell: str, keys: Collection[str]) -> dict[str, State]:
    """Read placed, live instances by uuid, with their image properties."""
    uuids = [uuid_of(key) for key in keys]
    columns = [_INSTANCE.c[name] for name in INSTANCE_COLUMNS if name in _INSTANCE.c]
    query = sa.select(*columns).where(
        _INSTANCE.c.uuid.in_(uuids), _INSTANCE.c.deleted == 0, _INSTANCE.c.host.is_not(None)
    )
    found = {row["uuid"]: plain(row) for row in select_main(context, query)}
    if found:
        metadata = sa.select(
            _IMAGE_METADATA.c.instance_uuid, _IMAGE_METADATA.c.key, _IMAGE_METADATA.c.value
        ).where(
            _IMAGE_METADATA.c.instance_uuid.in_(list(found)),
            _IMAGE_METADATA.c.deleted == 0,
            _IMAGE_METADATA.c.key.startswith("image_", autoescape=True),
        )
        for row in found.values():
            row["system_metadata"] = {}
        for item in select_main(context, metadata):
            found[item["instance_uuid"]]["system_metadata"][item["key"]] = item["value"]
    return {cell_key(uuid, cell): _state(cell, "Instance", row) for uuid, row in found.items()}


_IN_PROGRESS = (_MIGRATION.c.deleted == 0, _MIGRATION.c.status.not_in(ENDED_MIGRATIONS))


def read_migrations(context: Any, cell: str, keys: Collection[str]) -> dict[str, State]:
    """Read migrations in progress by uuid."""
    uuids = [uuid_of(key) for key in keys]
    query = sa.select(_MIGRATION).where(_MIGRATION.c.uuid.in_(uuids), *_IN_PROGRESS)
    return {
        cell_key(row["uuid"], cell): _state(cell, "Migration", plain(row))
        for row in select_main(context, query)
    }


def migrations_of(context: Any, instance: str) -> list[str]:
    """Return the uuids of a server's migrations in progress."""
    query = sa.select(_MIGRATION.c.uuid).where(
        _MIGRATION.c.instance_uuid == instance,
        _MIGRATION.c.uuid.is_not(None),
        *_IN_PROGRESS,
    )
    return [str(row["uuid"]) for row in select_main(context, query)]


def read_aggregates(context: Any, cell: str, keys: Collection[str]) -> dict[str, State]:
    """Read aggregates by uuid, with their hosts and metadata."""
    query = sa.select(_AGGREGATE).where(_AGGREGATE.c.uuid.in_(list(keys)))
    rows = {
        row["id"]: {**plain(row), "hosts": [], "metadata": {}} for row in select_api(context, query)
    }
    if rows:
        hosts = (
            sa.select(_AGGREGATE_HOST.c.aggregate_id, _AGGREGATE_HOST.c.host)
            .where(_AGGREGATE_HOST.c.aggregate_id.in_(list(rows)))
            .order_by(_AGGREGATE_HOST.c.id)
        )
        for item in select_api(context, hosts):
            rows[item["aggregate_id"]]["hosts"].append(item["host"])
        metadata = sa.select(
            _AGGREGATE_METADATA.c.aggregate_id,
            _AGGREGATE_METADATA.c.key,
            _AGGREGATE_METADATA.c.value,
        ).where(_AGGREGATE_METADATA.c.aggregate_id.in_(list(rows)))
        for item in select_api(context, metadata):
            rows[item["aggregate_id"]]["metadata"][item["key"]] = item["value"]
    return {row["uuid"]: _state(cell, "Aggregate", row) for row in rows.values()}


def read_host_mappings(context: Any, cell: str, keys: Collection[str]) -> dict[str, State]:
    """Read host mappings by host name; the state's cell is the mapped one."""
    query = (
        sa.select(_HOST_MAPPING.c.host, _CELL_MAPPING.c.uuid.label("cell"))
        .join(_CELL_MAPPING, _CELL_MAPPING.c.id == _HOST_MAPPING.c.cell_id)
        .where(_HOST_MAPPING.c.host.in_(list(keys)))
    )
    return {
        row["host"]: _state(row["cell"], "HostMapping", {"host": row["host"]})
        for row in select_api(context, query)
    }


_LIVE_SERVICE = (_SERVICE.c.deleted == 0, _SERVICE.c.uuid.is_not(None))

CELL_TABLES: tuple[NovaTable, ...] = (
    NovaTable(
        known_namespaces.COMPUTE_NODES.name,
        read_compute_nodes,
        _COMPUTE.c.uuid,
        # Rows older than uuids have none.
        exists=(_COMPUTE.c.deleted == 0, _COMPUTE.c.uuid.is_not(None)),
        tells_changes=True,
    ),
    NovaTable(known_namespaces.SERVICES.name, read_services, _SERVICE.c.uuid, _LIVE_SERVICE),
    NovaTable(
        known_namespaces.SERVICE_LIVENESS.name, read_liveness, _SERVICE.c.uuid, _LIVE_SERVICE
    ),
    NovaTable(
        known_namespaces.INSTANCES.name,
        read_instances,
        _INSTANCE.c.uuid,
        exists=(_INSTANCE.c.deleted == 0, _INSTANCE.c.host.is_not(None)),
        is_in_cells=True,
        tells_changes=True,
    ),
    NovaTable(
        known_namespaces.MIGRATIONS.name,
        read_migrations,
        _MIGRATION.c.uuid,
        exists=(*_IN_PROGRESS, _MIGRATION.c.uuid.is_not(None)),
        is_in_cells=True,
        tells_changes=True,
    ),
)

API_TABLES: tuple[NovaTable, ...] = (
    NovaTable(
        known_namespaces.AGGREGATES.name, read_aggregates, _AGGREGATE.c.uuid, select=select_api
    ),
    NovaTable(
        known_namespaces.HOST_MAPPINGS.name,
        read_host_mappings,
        _HOST_MAPPING.c.host,
        select=select_api,
    ),
)

_BY_NAMESPACE: Mapping[str, NovaTable] = {
    table.namespace: table for table in (*CELL_TABLES, *API_TABLES)
}

#: What stands in the place of tables of Nova's that do not count in this process.
_instead: dict[str, StateTable] = {}


def install(table: StateTable) -> None:
    """Have this process read a namespace from there, and not from Nova's table; no I/O."""
    _instead[table.namespace] = table


def uninstall(table: StateTable) -> None:
    """Have Nova's own table read again; idempotent."""
    if _instead.get(table.namespace) is table:
        del _instead[table.namespace]


def own_table(namespace: str) -> StateTable:
    """Return Nova's own table of a namespace, whatever stands in its place."""
    return _BY_NAMESPACE[namespace]


def table_of(namespace: str) -> StateTable:
    """Return what a namespace is read from."""
    return _instead.get(namespace) or _BY_NAMESPACE[namespace]


def tables_of(scope: str) -> tuple[StateTable, ...]:
    """Return the tables of a cell's database or of the API database."""
    own = API_TABLES if scope == scopes_module.API else CELL_TABLES
    return tuple(_instead.get(table.namespace, table) for table in own)


def count_rows(context: Any, scope: str) -> int:
    """Count the rows a walk of a scope will meet: for a progress bar."""
    return sum(table.count(context) for table in tables_of(scope))


#: Binary, host, cell, and whether Nova takes it to be up.
ServiceRow = tuple[str, str, str, bool]


def readable_cells(scopes: scopes_module.Scopes) -> list[str]:
    """Return all cells; without an API database the one that the configuration names.

    Whatever a database driver raises passes through.
    """
    return scopes.all_cells() if scopes.has_api_database() else [scopes.own_cell()]


def services_of_cell(scopes: scopes_module.Scopes, cell: str) -> list[ServiceRow]:
    """Return the services of a cell; whatever a database driver raises passes through."""
    up = servicegroup.API().service_is_up
    services = objects.ServiceList.get_all(scopes.context_for(cell))
    return [(str(each.binary), str(each.host), cell, bool(up(each))) for each in services]
