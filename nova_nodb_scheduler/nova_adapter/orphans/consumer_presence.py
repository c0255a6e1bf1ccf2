# SPDX-License-Identifier: Apache-2.0
"""Whether consumers of allocations exist in Nova's databases: read there, not in memory.

The naive way, to look for an instance, takes a server that is about to be created
for absent. Nova makes a build request first, the instance next, and destroys the
build request last. Read in this order nothing is missed between: whose build request
is gone had its instance before, and it is found unless it was deleted. A user who
deletes a build request while its server is scheduled ends that server too: Nova's
conductor destroys what it created of it.

Absent is only what *every* cell denies, disabled cells and cell0 among them. One that
does not answer, that hosts belong to and the mappings lack, or that a consumer's own
mapping names in vain, leaves it unproved. Databases that replicate may be behind: who
deletes proves it twice, some time apart.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Mapping
from typing import Any

import attrs
import sqlalchemy as sa
from nova import context as nova_context
from nova import objects
from nova.db.api import models as api_models
from nova.db.main import models as main_models
from nova.objects import fields

from nova_nodb_scheduler.nova_adapter.reporting import nova_tables

LOG = logging.getLogger(__name__)

_BUILD_REQUEST = api_models.BuildRequest.__table__
_INSTANCE_MAPPING = api_models.InstanceMapping.__table__
_CELL_MAPPING = api_models.CellMapping.__table__
_INSTANCE = main_models.Instance.__table__
_MIGRATION = main_models.Migration.__table__

#: As Nova's CellMapping has it.
CELL0 = "00000000-0000-0000-0000-000000000000"


class ConsumerPlace(enum.Enum):
    """Where a consumer was found, or that it was not."""

    ABSENT = "absent"
    BUILD_REQUEST = "build request"
    INSTANCE = "instance"
    MIGRATION = "migration"
    ENDED_MIGRATION = "ended migration"
    #: Nobody can tell.
    UNPROVED = "not proved"


@attrs.frozen
class ConsumerPresence:
    """What the databases say of one consumer.

    :param cell: of its instance or migration
    :param host: of its instance; empty where it has none
    :param node: the same of its compute node, by name
    :param builds: an instance without a host that is to get one
    :param moves: an instance with a task, which may be a move
    :param evacuated_from: hosts that an instance was evacuated from, and whose nova-compute did
        not begin again since: only then it ends what is allocated there
    :param detail: why nothing is proved
    """

    where: ConsumerPlace
    cell: str = ""
    host: str = ""
    node: str = ""
    builds: bool = False
    moves: bool = False
    evacuated_from: frozenset[str] = frozenset()
    detail: str = ""


def find(consumers: Collection[str], known_cells: Collection[str]) -> dict[str, ConsumerPresence]:
    """Say of each consumer where it is; blocks for some statements a cell.

    :param consumers: some hundred at most
    :param known_cells: cells that must be asked before anything is absent
    """
    try:
        return _find(sorted(consumers), frozenset(known_cells))
    except Exception as error:  # noqa: BLE001 - whatever a database driver raises
        detail = f"{type(error).__name__}: {error}".partition("\n")[0]
        LOG.info("Whether servers exist cannot be proved: %(why)s", {"why": detail})
        return {each: ConsumerPresence(ConsumerPlace.UNPROVED, detail=detail) for each in consumers}


def _find(consumers: list[str], known_cells: frozenset[str]) -> dict[str, ConsumerPresence]:
    api = nova_context.get_admin_context()
    cells = {str(each.uuid): each for each in objects.CellMappingList.get_all(api)}
    found: dict[str, ConsumerPresence] = {}
    # First: see the module's text.
    for uuid in _build_requests(api, consumers):
        found[uuid] = ConsumerPresence(ConsumerPlace.BUILD_REQUEST)
    missing = (known_cells | {CELL0}) - cells.keys()
    rows: set[tuple[str, str]] = set()
    for cell, mapping in cells.items():
        context = nova_context.get_admin_context()
        nova_context.set_target_cell(context, mapping)
        for row in _instances(context, consumers):
            rows.add((row["uuid"], cell))
            if row["deleted"] == 0:
                found[row["uuid"]] = _of_instance(cell, row, found.get(row["uuid"]))
        for uuid, presence in _migrations(context, cell, consumers).items():
            found.setdefault(uuid, presence)
        for uuid, hosts in _evacuations(context, consumers).items():
            if uuid in found and found[uuid].cell == cell:
                found[uuid] = attrs.evolve(found[uuid], evacuated_from=hosts)
    doubts = _doubts(api, consumers, cells, rows)
    for uuid in consumers:
        if uuid not in found:
            detail = f"cells without a mapping: {', '.join(sorted(missing))}" if missing else ""
            detail = detail or doubts.get(uuid, "")
            found[uuid] = ConsumerPresence(
                ConsumerPlace.UNPROVED if detail else ConsumerPlace.ABSENT, detail=detail
            )
    return found


def _build_requests(context: Any, consumers: list[str]) -> list[str]:
    column = _BUILD_REQUEST.c.instance_uuid
    rows = nova_tables.select_api(context, sa.select(column).where(column.in_(consumers)))
    return [str(row["instance_uuid"]) for row in rows]


def _instances(context: Any, consumers: list[str]) -> list[nova_tables.Row]:
    columns = (
        _INSTANCE.c[name] for name in ("uuid", "host", "node", "vm_state", "task_state", "deleted")
    )
    # The deleted ones too: they tell that their cell is not behind.
    statement = sa.select(*columns).where(_INSTANCE.c.uuid.in_(consumers))
    found: list[nova_tables.Row] = nova_tables.select_main(context, statement)
    return found


def _of_instance(
    cell: str, row: nova_tables.Row, before: ConsumerPresence | None
) -> ConsumerPresence:
    if before is not None and before.where is ConsumerPlace.BUILD_REQUEST:
        return before  # it is being created, or buried
    host = str(row["host"] or "")
    builds = not host and cell != CELL0 and row["vm_state"] == "building"
    # A cross-cell resize has it in two cells: the one with a host counts.
    if before is not None and before.where is ConsumerPlace.INSTANCE and before.host:
        return before
    # One that a cell is to build is not buried, though cell0 has it, too, and is read later.
    if before is not None and before.where is ConsumerPlace.INSTANCE and cell == CELL0:
        return before
    moves = bool(host) and row["task_state"] is not None
    node = str(row["node"] or "")
    return ConsumerPresence(ConsumerPlace.INSTANCE, cell, host, node, builds, moves)


def _migrations(context: Any, cell: str, consumers: list[str]) -> dict[str, ConsumerPresence]:
    columns = _MIGRATION.c
    ended = columns.status.in_(nova_tables.ENDED_MIGRATIONS)
    statement = sa.select(columns.uuid, columns.instance_uuid, columns.status).where(
        columns.deleted == 0,
        sa.or_(
            columns.uuid.in_(consumers),
            sa.and_(columns.instance_uuid.in_(consumers), sa.not_(ended)),
        ),
    )
    found: dict[str, ConsumerPresence] = {}
    for row in nova_tables.select_main(context, statement):
        over = row["status"] in nova_tables.ENDED_MIGRATIONS
        where = ConsumerPlace.ENDED_MIGRATION if over else ConsumerPlace.MIGRATION
        for uuid in {row["uuid"], row["instance_uuid"]}.intersection(consumers):
            if over and uuid != row["uuid"]:
                continue
            if not over or uuid not in found:
                found[uuid] = ConsumerPresence(where, cell)
    return found


def _evacuations(context: Any, consumers: list[str]) -> dict[str, frozenset[str]]:
    """Return the hosts of evacuations that those hosts are still to learn of, by server."""
    columns = _MIGRATION.c
    statement = sa.select(columns.instance_uuid, columns.source_compute).where(
        columns.deleted == 0,
        columns.migration_type == fields.MigrationType.EVACUATION,
        columns.status.in_(("accepted", "pre-migrating", "done")),
        columns.instance_uuid.in_(consumers),
    )
    found: dict[str, frozenset[str]] = {}
    for row in nova_tables.select_main(context, statement):
        uuid = row["instance_uuid"]
        found[uuid] = found.get(uuid, frozenset()) | {str(row["source_compute"])}
    return found


def _doubts(
    context: Any,
    consumers: list[str],
    cells: Mapping[str, Any],
    rows: Collection[tuple[str, str]],
) -> dict[str, str]:
    """Say of which consumers the mapping names a cell that does not know them at all.

    Read last. A cell whose database is behind, or was set back, shows neither a server
    nor that it was deleted.
    """
    columns = _INSTANCE_MAPPING.c
    statement = (
        sa.select(columns.instance_uuid, _CELL_MAPPING.c.uuid.label("cell"))
        .select_from(_INSTANCE_MAPPING.join(_CELL_MAPPING, columns.cell_id == _CELL_MAPPING.c.id))
        .where(columns.instance_uuid.in_(consumers), columns.queued_for_delete == sa.false())
    )
    return {
        row["instance_uuid"]: f"cell {row['cell']}, which its mapping names, does not know it"
        for row in nova_tables.select_api(context, statement)
        if row["cell"] not in cells or (row["instance_uuid"], row["cell"]) not in rows
    }
