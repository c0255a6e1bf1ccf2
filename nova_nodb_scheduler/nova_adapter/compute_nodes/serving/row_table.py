# SPDX-License-Identifier: Apache-2.0
"""What schedulers decide by, made of the records that answer for compute nodes.

Reporters, sweeps, the import and the comparison read a cell's rows through
:mod:`nova_nodb_scheduler.nova_adapter.reporting.nova_tables`. Where Nova's table is not
what counts, this stands there in its place: a sweep over a table that is empty, or behind
its records, would have schedulers forget the hosts.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Collection
from typing import Any

from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows, row_index
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces

#: Columns that tell when a row was written.
_WRITTEN = ("updated_at", "created_at", "deleted_at")

#: See :meth:`..row_queries.RowSource.rows`.
Rows = Callable[[Any], contextlib.AbstractContextManager[row_index.RowIndex]]


class RecordedTable:
    """Rows of compute nodes by what the back end holds; see :class:`.nova_tables.StateTable`.

    Each call sees what was written before it. Whatever keeps the rows from being known is
    raised: none is taken for gone.

    :param rows: gives the rows of the cell that a context is for
    """

    namespace = known_namespaces.COMPUTE_NODES.name
    tells_changes = True

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def page(self, context: Any, cell: str, after: int, limit: int) -> tuple[int, list[str]]:
        with self._rows(context) as index:
            found = []
            for _key, row in index.select(False, _is_named, above=after):
                found.append((int(row["id"]), str(row["uuid"])))
                if len(found) == limit:
                    break
        return found[-1][0] if found else 0, [uuid for _number, uuid in found]

    def changed(self, context: Any, cell: str, since: datetime.datetime) -> list[str]:
        def is_since(row: node_rows.Row) -> bool:
            return any(row[name] is not None and row[name] >= since for name in _WRITTEN)

        with self._rows(context) as index:
            return [str(row["uuid"]) for _key, row in index.select(None, _is_named, is_since)]

    def read(self, context: Any, cell: str, keys: Collection[str]) -> dict[str, nova_tables.State]:
        found = {}
        with self._rows(context) as index:
            for uuid in keys:
                for _key, row in index.select(False, equal={"uuid": uuid}):
                    # By a name that only the database takes for this one there is no record.
                    if row["uuid"] == uuid:
                        found[uuid] = nova_tables.compute_node_state(cell, row)
        return found

    def count(self, context: Any) -> int:
        with self._rows(context) as index:
            return sum(1 for _each in index.select(False, _is_named))


def _is_named(row: node_rows.Row) -> bool:
    """Tell whether a row has a record: those older than uuids have none."""
    return row["uuid"] is not None
