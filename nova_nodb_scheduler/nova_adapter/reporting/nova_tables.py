# SPDX-License-Identifier: Apache-2.0
"""Rows of Nova's tables as states of namespaces, read in raw SQL.

Nova's object layer costs 0.4 to 0.8 ms for a compute node, the row itself a
hundredth of that; the state keeps the row's columns verbatim, and Nova's own code
turns them into objects where a scheduler needs them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import sqlalchemy as sa
from nova import objects, servicegroup
from nova.db.api import api as api_db
from nova.db.api import models as api_models
from nova.db.main import api as main_db
from nova.db.main import models as main_models

from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
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


@attrs.frozen
class NovaTable:
    """How one namespace is read from Nova's database.

    :param read: (context, cell, keys) -> states of those that exist; a key
        that is missing shall be deleted
    :param page: (context, cell, after id, limit) -> (last id, keys): the keys
        that exist, in order of the table's integer id
    :param changed: (context, cell, since) -> keys of the rows that were written
        at that time (naive, UTC, by their writers' clocks) or later, deleted
        ones too; None where the table's columns do not tell
    """

    namespace: str
    read: Callable[[Any, str, Collection[str]], dict[str, State]]
    page: Callable[[Any, str, int, int], tuple[int, list[str]]]
    changed: Callable[[Any, str, datetime.datetime], list[str]] | None = None


def _state(cell: str, object_name: str, row: State) -> State:
    version = str(getattr(objects, object_name).VERSION)
    return {"cell": cell, "object_version": version, "row": row}


def _page(
    select: Callable[[Any, Any], list[Row]],
    context: Any,
    statement: Any,
    key_of: Callable[[Row], str],
    id_name: str = "id",
) -> tuple[int, list[str]]:
    rows = select(context, statement)
    if not rows:
        return 0, []
    return int(rows[-1][id_name]), [key_of(row) for row in rows]


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


def _live_page(table: Any, key: Any, after: int, limit: int, *more: Any) -> Any:
    return (
        sa.select(table.c.id, key.label("key"))
        .where(table.c.id > after, table.c.deleted == 0, *more)
        .order_by(table.c.id)
        .limit(limit)
    )


def read_compute_nodes(context: Any, cell: str, keys: Collection[str]) -> dict[str, State]:
    """Read rows of ``compute_nodes`` by uuid."""
    query = sa.select(_COMPUTE).where(_COMPUTE.c.uuid.in_(list(keys)), _COMPUTE.c.deleted == 0)
    return {
        row["uuid"]: _state(cell, "ComputeNode", plain(row)) for row in select_main(context, query)
    }


def page_compute_nodes(context: Any, cell: str, after: int, limit: int) -> tuple[int, list[str]]:
    """List live compute nodes; rows older than uuids have none and are left out."""
    query = _live_page(_COMPUTE, _COMPUTE.c.uuid, after, limit, _COMPUTE.c.uuid.is_not(None))
    return _page(select_main, context, query, lambda row: str(row["key"]))


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


def page_services(context: Any, cell: str, after: int, limit: int) -> tuple[int, list[str]]:
    """List live services of all binaries."""
    query = _live_page(_SERVICE, _SERVICE.c.uuid, after, limit, _SERVICE.c.uuid.is_not(None))
    return _page(select_main, context, query, lambda row: str(row["key"]))


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


def page_instances(context: Any, cell: str, after: int, limit: int) -> tuple[int, list[str]]:
    """List placed, live instances."""
    query = _live_page(_INSTANCE, _INSTANCE.c.uuid, after, limit, _INSTANCE.c.host.is_not(None))
    return _page(select_main, context, query, lambda row: cell_key(str(row["key"]), cell))


def read_migrations(context: Any, cell: str, keys: Collection[str]) -> dict[str, State]:
    """Read migrations in progress by uuid."""
    uuids = [uuid_of(key) for key in keys]
    query = sa.select(_MIGRATION).where(
        _MIGRATION.c.uuid.in_(uuids),
        _MIGRATION.c.deleted == 0,
        _MIGRATION.c.status.not_in(ENDED_MIGRATIONS),
    )
    return {
        cell_key(row["uuid"], cell): _state(cell, "Migration", plain(row))
        for row in select_main(context, query)
    }


def migrations_of(context: Any, instance: str) -> list[str]:
    """Return the uuids of a server's migrations in progress."""
    query = sa.select(_MIGRATION.c.uuid).where(
        _MIGRATION.c.instance_uuid == instance,
        _MIGRATION.c.uuid.is_not(None),
        _MIGRATION.c.deleted == 0,
        _MIGRATION.c.status.not_in(ENDED_MIGRATIONS),
    )
    return [str(row["uuid"]) for row in select_main(context, query)]


def page_migrations(context: Any, cell: str, after: int, limit: int) -> tuple[int, list[str]]:
    """List migrations in progress."""
    query = _live_page(
        _MIGRATION,
        _MIGRATION.c.uuid,
        after,
        limit,
        _MIGRATION.c.uuid.is_not(None),
        _MIGRATION.c.status.not_in(ENDED_MIGRATIONS),
    )
    return _page(select_main, context, query, lambda row: cell_key(str(row["key"]), cell))


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


def page_aggregates(context: Any, cell: str, after: int, limit: int) -> tuple[int, list[str]]:
    """List aggregates."""
    query = (
        sa.select(_AGGREGATE.c.id, _AGGREGATE.c.uuid.label("key"))
        .where(_AGGREGATE.c.id > after)
        .order_by(_AGGREGATE.c.id)
        .limit(limit)
    )
    return _page(select_api, context, query, lambda row: str(row["key"]))


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


def page_host_mappings(context: Any, cell: str, after: int, limit: int) -> tuple[int, list[str]]:
    """List host mappings."""
    query = (
        sa.select(_HOST_MAPPING.c.id, _HOST_MAPPING.c.host.label("key"))
        .where(_HOST_MAPPING.c.id > after)
        .order_by(_HOST_MAPPING.c.id)
        .limit(limit)
    )
    return _page(select_api, context, query, lambda row: str(row["key"]))


def _changed(table: Any, context: Any, since: datetime.datetime) -> list[str]:
    """Return the uuids of rows written since then; no index serves it: one scan, few rows."""
    written = (table.c.updated_at, table.c.created_at, table.c.deleted_at)
    query = sa.select(table.c.uuid).where(
        sa.or_(*(column >= since for column in written)), table.c.uuid.is_not(None)
    )
    return [str(row["uuid"]) for row in select_main(context, query)]


def changed_compute_nodes(context: Any, cell: str, since: datetime.datetime) -> list[str]:
    """List compute nodes that were written since then."""
    return _changed(_COMPUTE, context, since)


def changed_instances(context: Any, cell: str, since: datetime.datetime) -> list[str]:
    """List instances that were written since then."""
    return [cell_key(uuid, cell) for uuid in _changed(_INSTANCE, context, since)]


def changed_migrations(context: Any, cell: str, since: datetime.datetime) -> list[str]:
    """List migrations that were written since then."""
    return [cell_key(uuid, cell) for uuid in _changed(_MIGRATION, context, since)]


CELL_TABLES: tuple[NovaTable, ...] = (
    NovaTable(
        known_namespaces.COMPUTE_NODES.name,
        read_compute_nodes,
        page_compute_nodes,
        changed_compute_nodes,
    ),
    NovaTable(known_namespaces.SERVICES.name, read_services, page_services),
    NovaTable(known_namespaces.SERVICE_LIVENESS.name, read_liveness, page_services),
    NovaTable(known_namespaces.INSTANCES.name, read_instances, page_instances, changed_instances),
    NovaTable(
        known_namespaces.MIGRATIONS.name, read_migrations, page_migrations, changed_migrations
    ),
)

API_TABLES: tuple[NovaTable, ...] = (
    NovaTable(known_namespaces.AGGREGATES.name, read_aggregates, page_aggregates),
    NovaTable(known_namespaces.HOST_MAPPINGS.name, read_host_mappings, page_host_mappings),
)

BY_NAMESPACE: Mapping[str, NovaTable] = {
    table.namespace: table for table in (*CELL_TABLES, *API_TABLES)
}


def tables_of(scope: str) -> tuple[NovaTable, ...]:
    """Return the tables of a cell's database or of the API database."""
    return API_TABLES if scope == scopes_module.API else CELL_TABLES


def count_rows(context: Any, scope: str) -> int:
    """Count the rows a walk of a scope will meet, roughly: for a progress bar."""
    if scope == scopes_module.API:
        counted = (_AGGREGATE, _HOST_MAPPING)
        return sum(_count(select_api, context, table) for table in counted)
    live = [(_COMPUTE, 1), (_SERVICE, 2), (_INSTANCE, 1)]
    return sum(
        times * _count(select_main, context, table, table.c.deleted == 0) for table, times in live
    )


def _count(
    select: Callable[[Any, Any], list[Row]], context: Any, table: Any, *conditions: Any
) -> int:
    query = sa.select(sa.func.count().label("rows")).select_from(table).where(*conditions)
    return int(select(context, query)[0]["rows"])


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
