# SPDX-License-Identifier: Apache-2.0
"""Archives deleted compute nodes where Nova's table is away, as Nova archives its rows.

``archive_deleted_rows`` goes through the tables that are there. So the records of deleted
rows are moved behind it: first the row is put into ``shadow_compute_nodes``, then its record
is dropped, by compare-and-set on what was put there. Whatever ends in between leaves a row
in both, and the next call puts it there again. Were the record dropped first, it could be
in neither.

A deleted node that PCI devices name stays: they could not go back to a table that has no
row for them.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from nova.db.main import api as main_db
from nova.db.main import models

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows, row_queries, row_records
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.synchronizer import contract

LOG = logging.getLogger(__name__)

_PAGE = 200
_TABLE = models.ComputeNode.__table__
_SHADOW_NAME = "shadow_compute_nodes"
#: Nova has no model of it; its columns are those of the table.
_SHADOW = sa.Table(
    _SHADOW_NAME, sa.MetaData(), *(sa.Column(each.name, each.type) for each in _TABLE.columns)
)
_DEVICE_NODE = models.PciDevice.__table__.c.compute_node_id

#: Rows to archive, by the records that hold them.
_Deleted = Mapping[records.RecordKey, tuple[records.Record, node_rows.Row]]


class RowArchive:
    """Moves deleted rows of a cell into its archive; any thread may call it.

    :param source: for the rows that are to be looked at
    """

    def __init__(self, synchronizer: contract.Synchronizer, source: row_queries.RowSource) -> None:
        self._synchronizer = synchronizer
        self._source = source

    def archive(self, context: Any, most: int | None, before: datetime.datetime | None) -> int:
        """Archive deleted rows in the order of their ids; return how many.

        :param most: so many at most; None for all
        :param before: only those that were deleted before, naive, UTC; None for all
        :raises BackendUnavailable: some may have been archived; the same call goes on
        """
        if not sa.inspect(main_db.get_engine(context=context)).has_table(_SHADOW_NAME):
            # As Nova leaves out a table that has none.
            return 0
        with self._source.rows(context) as index:
            found = [
                (int(row["id"]), key)
                for key, row in index.select(True)
                if _was_deleted_before(row, before)
            ]
        archived = 0
        for first in range(0, len(found), _PAGE):
            page = found[first : first + _PAGE]
            named = _named_by_devices(context, [number for number, _key in page])
            keys = [key for number, key in page if number not in named]
            if most is not None:
                keys = keys[: max(0, most - archived)]
            if keys:
                archived += self._move(context, keys, before)
        return archived

    def _move(self, context: Any, keys: Sequence[str], before: datetime.datetime | None) -> int:
        deleted = self._deleted(keys, before)
        if not deleted:
            return 0
        _put(context, [row for _record, row in deleted.values()])
        results = self._synchronizer.write(
            [
                records.Write(key, record.revision, deleted=True)
                for key, (record, _row) in deleted.items()
            ]
        )
        lost = [key for key, result in zip(deleted, results, strict=True) if not result.won]
        back = self._back_to_life(lost)
        _take_out(context, [deleted[key][1] for key in back])
        return len(deleted) - len(lost)

    def _deleted(self, keys: Sequence[str], before: datetime.datetime | None) -> _Deleted:
        """Read the records anew: what is put into the archive is what is dropped."""
        wanted = [records.RecordKey(row_records.NODE_ROWS.name, key) for key in keys]
        found = {}
        for key, record in self._synchronizer.read(wanted).items():
            row = row_records.row_of(row_records.state_of(record))
            if row is not None and not node_rows.is_live(row) and _was_deleted_before(row, before):
                found[key] = (record, row)
        return found

    def _back_to_life(self, keys: Collection[records.RecordKey]) -> list[records.RecordKey]:
        """Return which of some rows live again; nothing else may leave the archive."""
        if not keys:
            return []
        found = []
        for key, record in self._synchronizer.read(keys).items():
            row = row_records.row_of(row_records.state_of(record))
            if row is not None and node_rows.is_live(row):
                found.append(key)
        return found


def take_back(connection: sa.Connection, ids: Collection[int]) -> None:
    """Take rows out of the archive that are put into their table again, where it has them.

    In both, Nova's own archiving would meet them for ever: it fails as a whole.

    :param connection: of the transaction that puts them there
    """
    if sa.inspect(connection).has_table(_SHADOW_NAME):
        connection.execute(sa.delete(_SHADOW).where(_SHADOW.c.id.in_(ids)))


def _was_deleted_before(row: node_rows.Row, before: datetime.datetime | None) -> bool:
    # NULL is before nothing, as in SQL.
    return before is None or (
        row["deleted_at"] is not None and row["deleted_at"] < before.replace(tzinfo=None)
    )


def _named_by_devices(context: Any, ids: Sequence[int]) -> set[int]:
    """Return which ids PCI devices name, deleted ones too."""
    query = sa.select(_DEVICE_NODE.label("id")).where(_DEVICE_NODE.in_(ids)).distinct()
    return {int(row["id"]) for row in nova_tables.select_main(context, query)}


@main_db.pick_context_manager_writer  # type: ignore[untyped-decorator]
def _put(context: Any, rows: Sequence[node_rows.Row]) -> None:
    """Have the archive hold these rows as they are, whatever it holds of them."""
    ids = [row["id"] for row in rows]
    context.session.execute(sa.delete(_SHADOW).where(_SHADOW.c.id.in_(ids)))
    values = [{each.name: row[each.name] for each in _SHADOW.c} for row in rows]
    context.session.execute(sa.insert(_SHADOW), values)


@main_db.pick_context_manager_writer  # type: ignore[untyped-decorator]
def _take_out(context: Any, rows: Sequence[node_rows.Row]) -> None:
    """Take rows out of the archive that were put there as they are here."""
    for row in rows:
        LOG.info("Compute node %(id)d came back while it was archived.", {"id": row["id"]})
        context.session.execute(
            sa.delete(_SHADOW).where(
                _SHADOW.c.id == row["id"], _SHADOW.c.deleted_at == row["deleted_at"]
            )
        )
