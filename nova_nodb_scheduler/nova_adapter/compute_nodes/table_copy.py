# SPDX-License-Identifier: Apache-2.0
"""Keeps Nova's table as the records are: the way back, and what reads it without us.

The naive way, to write what was just written to the record, leaves the older of two
conductors' rows in the table if it comes last. Here the row in the table is locked first,
and then the record is read: whoever comes last with the lock has read last, too.

Names go from row to row in the records; in the table the one that gave a name up may
still have it. All of them are then brought up to their records in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from nova.db.main import api as main_db
from nova.db.main import models
from oslo_db import exception as db_exception

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    node_rows,
    row_archive,
    row_names,
    row_records,
)
from nova_nodb_scheduler.nova_adapter.reporting import table_tripwire
from nova_nodb_scheduler.synchronizer import contract

_TABLE = models.ComputeNode.__table__
_ROUNDS = 8
#: Rows that are written in one transaction for the names that went round among them.
_MOST_TOGETHER = 64


#: Reads the row of a record as it stands now; None where there is none.
_Read = Callable[[records.RecordKey], node_rows.Row | None]


@main_db.pick_context_manager_writer  # type: ignore[untyped-decorator]
def _bring(context: Any, key: records.RecordKey, node_id: int, read: _Read) -> None:
    """Lock a row, then write what its record holds."""
    _write(context, key, node_id, read)


@main_db.pick_context_manager_writer  # type: ignore[untyped-decorator]
def _bring_together(context: Any, key: records.RecordKey, node_id: int, read: _Read) -> None:
    """Write a row, and those whose names it and they have in their records, at once.

    :raises DBDuplicateEntry: a row in the way has no record, or still has its name
    """
    cell = row_records.cell_of(key.key)
    left = {key: node_id}
    for _turn in range(_MOST_TOGETHER):
        if not left:
            return
        key, node_id = left.popitem()
        row = read(key)
        for other in _in_the_way(context, row):
            # Without a name nothing is in its way, should the names form a circle.
            context.session.execute(
                sa.update(_TABLE)
                .where(_TABLE.c.id == other["id"])
                .values(hypervisor_hostname=None, updated_at=_TABLE.c.updated_at)
            )
            other_key = row_records.row_key(cell, other["uuid"], other["id"])
            if read(other_key) is None:
                raise db_exception.DBDuplicateEntry(columns=["host", "hypervisor_hostname"])
            left[other_key] = other["id"]
        _write(context, key, node_id, read)
    raise db_exception.DBDuplicateEntry(columns=["host", "hypervisor_hostname"])


def _in_the_way(context: Any, row: node_rows.Row | None) -> list[Any]:
    """Return other rows that have a live row's name in the table."""
    if row is None or not (node_rows.is_live(row) and row_names.has_name(row)):
        return []
    query = sa.select(_TABLE.c.id, _TABLE.c.uuid).where(
        _TABLE.c.host == row["host"],
        _TABLE.c.hypervisor_hostname == row["hypervisor_hostname"],
        _TABLE.c.deleted == 0,
        _TABLE.c.id != row["id"],
    )
    return list(context.session.execute(query).mappings())


def _write(context: Any, key: records.RecordKey, node_id: int, read: _Read) -> None:
    locked = context.session.execute(
        # Changes nothing. A lock by SELECT is none on SQLite.
        sa.update(_TABLE)
        .where(_TABLE.c.id == node_id)
        .values(id=node_id, updated_at=_TABLE.c.updated_at)
    )
    row = read(key)
    if row is None:
        return
    values = {name: value for name, value in row.items() if name in _TABLE.c}
    if locked.rowcount:
        written: Any = sa.update(_TABLE).where(_TABLE.c.id == node_id).values(**values)
    else:
        # It may have been archived before its record was forgotten.
        row_archive.take_back(context.session.connection(), [node_id])
        written = sa.insert(_TABLE).values(**values)
    context.session.execute(written)


class TableCopy:
    """Writes rows of records to the table of their cell; any thread may call it."""

    def __init__(self, synchronizer: contract.Synchronizer) -> None:
        self._synchronizer = synchronizer

    def bring(self, context: Any, key: records.RecordKey) -> None:
        """Have the table hold what a record holds by now.

        Blocks for a transaction on the cell's database and a read of the back end in it.
        Whatever the database's driver raises passes through: the record stands, and the
        next write of the row brings it.

        :raises BackendUnavailable: nothing was written to the table
        """
        row = self._read(key)
        if row is None:
            return
        way = _bring
        for round_number in range(_ROUNDS):
            try:
                with table_tripwire.own_statements():
                    way(context, key, row["id"], self._read)
            except (db_exception.DBDuplicateEntry, db_exception.DBDeadlock):
                if round_number == _ROUNDS - 1:
                    raise
                way = _bring_together
            else:
                return

    def _read(self, key: records.RecordKey) -> node_rows.Row | None:
        record = self._synchronizer.read([key]).get(key)
        return row_records.row_of(row_records.state_of(record))
