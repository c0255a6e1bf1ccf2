# SPDX-License-Identifier: Apache-2.0
"""What Nova's database functions that write compute nodes do, as compare-and-sets on records.

Each method has the name and the arguments of a function of ``nova.db.main.api``, and its
semantics: a creation with a uuid that exists, even live, overwrites that row, which keeps
its id; a taken name raises DBDuplicateEntry; an update merges columns and obeys
``read_deleted``; a deletion leaves the row. When a method returns, the back end has it.

A write whose outcome is not known is looked for by its id in the record (:mod:`.row_records`)
before it is done again: a deletion that was carried out would not find its node otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeGuard, TypeVar

import sqlalchemy as sa
from nova import exception
from nova.db.main import api as main_db
from nova.db.main import models
from oslo_db import exception as db_exception
from sqlalchemy import orm

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    node_rows,
    row_names,
    row_queries,
    row_records,
    text_comparison,
)
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import record_editor

_T = TypeVar("_T")
_ID = models.ComputeNode.__table__.c.id

#: From a row as it stands (None: there is none) to what it becomes; None for "as it is".
_Change = Callable[[node_rows.Row | None], node_rows.Row | None]


class KnownRows(row_queries.RowSource, Protocol):
    """Rows, and a shorter way to the record of one of them."""

    def find(self, context: Any, node_id: int) -> str | None:
        """Return the record key of the row with an id by what is known already."""
        ...

    def require_known(self, context: Any) -> None:
        """Refuse the cell of a context if this process may not write its rows."""
        ...

    def require(self, cell: str) -> None:
        """Refuse a cell that the back end does not hold by now; see :class:`.RowReplica`."""
        ...


class CellUnprepared(errors.NodbError):
    """A cell's record is not there: no id may be given to a new node.

    :param cell: uuid of the cell
    """

    def __init__(self, cell: str) -> None:
        super().__init__(cell)
        self.cell = cell

    def __str__(self) -> str:
        return (
            f"The back end was not told which ids of compute nodes cell {self.cell} has used; a "
            "new one cannot be given. Bring the cell's compute nodes there first."
        )


class RowWriter:
    """Nova's functions that write compute nodes; any thread may call them.

    :param source: for the way from ids to records
    :param cell_of: the cell that a context is for
    :param comparison_of: how the database of a context compares text
    :param make_id: makes ids of writes, each unique
    :param on_written: told in the caller's thread of each row whose record was written
        and stands; what it raises passes through
    :param highest_id: tells the highest id of a node that the database of a context names,
        of nodes that are gone, too
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        source: KnownRows,
        cell_of: Callable[[Any], str],
        comparison_of: Callable[[Any], text_comparison.TextComparison],
        make_id: Callable[[], str],
        pause: Callable[[int], None] = record_editor.pause_briefly,
        on_written: Callable[[Any, records.RecordKey], None] = lambda context, key: None,
        highest_id: Callable[[Any], int] = lambda context: 0,
    ) -> None:
        self._on_written = on_written
        self._highest_id = highest_id
        #: By cell, the epoch in which ids were begun above those that its database names.
        self._begun_in: dict[str, str] = {}
        self._synchronizer = synchronizer
        self._source = source
        self._cell_of = cell_of
        self._comparison_of = comparison_of
        self._make_id = make_id
        self._editor = record_editor.RecordEditor(synchronizer, row_records.ALL, pause)
        self._names = row_names.NodeNames(synchronizer, make_id, pause)

    # -- by nova.db.main.api --------------------------------------------------------

    def compute_node_create(self, context: Any, values: Mapping[str, Any]) -> Any:
        if "id" in values:
            raise ValueError("the back end gives ids to compute nodes")
        cell = self._cell_of(context)
        # Refused before an id is taken, as a database would.
        fresh = node_rows.inserted(values, 0)
        uuid = fresh["uuid"]
        taken: list[int] = []

        def node_id() -> int:
            if not taken:
                taken.append(self._next_id(context, cell))
            return taken[0]

        # A row without a uuid is found by its id alone.
        key = row_records.row_key(cell, uuid, None if uuid is not None else node_id())

        def change(row: node_rows.Row | None) -> node_rows.Row:
            if row is not None:
                return node_rows.restored(row, values)
            return fresh

        written = self._edit(context, key, change, node_id)
        assert written is not None
        return row_queries.as_model(written)

    def compute_node_update(self, context: Any, compute_id: int, values: Mapping[str, Any]) -> Any:
        key = self._key_of(context, compute_id)
        which = row_queries.deleted_of_model_query(context)

        def change(row: node_rows.Row | None) -> node_rows.Row:
            if not _has_id(row, compute_id) or not _is_among(row, which):
                raise exception.ComputeHostNotFound(host=compute_id)
            changed = node_rows.updated(row, values)
            if (changed["id"], changed["uuid"]) != (row["id"], row["uuid"]):
                raise ValueError("a compute node keeps its id and its uuid")
            return changed

        written = self._edit(context, key, change)
        assert written is not None
        return row_queries.as_model(written)

    def compute_node_delete(
        self, context: Any, compute_id: int, constraint: Any | None = None
    ) -> None:
        key = self._key_of(context, compute_id)
        comparison = self._comparison_of(context)
        which = row_queries.deleted_of_model_query(context)
        readable = row_queries.deleted_of_select(context)

        def change(row: node_rows.Row | None) -> node_rows.Row:
            if not _has_id(row, compute_id) or not (
                _is_among(row, which) or _is_among(row, readable)
            ):
                raise exception.ComputeHostNotFound(host=compute_id)
            if not _is_among(row, which) or not _is_met(constraint, row, comparison):
                raise exception.ConstraintNotMet
            return node_rows.soft_deleted(row)

        self._edit(context, key, change)

    def delete_of_service(self, context: Any, service_id: int, host: str | None) -> None:
        """Delete the nodes of a service that is about to be deleted, as service_destroy does.

        Not one transaction with the service: if this fails, the service stands, and so may
        some of its nodes.
        """
        which = row_queries.deleted_of_model_query(context)
        with self._source.rows(context) as index:
            form = index.comparison.equal_form

            def belongs(row: node_rows.Row) -> bool:
                if row["service_id"] == service_id:
                    return True
                if host is None or row["host"] is None:
                    # SQLAlchemy makes IS NULL of a comparison with None.
                    return host is row["host"]
                return form(row["host"]) == form(host)

            keys = [key for key, _row in index.select(which, belongs)]

        def change(row: node_rows.Row | None) -> node_rows.Row | None:
            if row is None or not _is_among(row, which) or not belongs(row):
                return None
            return node_rows.soft_deleted(row, mapped=0)

        for key in keys:
            self._edit(context, records.RecordKey(row_records.NODE_ROWS.name, key), change)
        # What was not found may be lost with its cell: then its service stands.
        self._source.require(self._cell_of(context))

    def fill_empty_ratios(
        self, context: Any, max_count: int, ratios: Mapping[str, float]
    ) -> list[Any]:
        """Give live nodes that have no allocation ratio the configured ones; return them.

        Answers ``nova.objects.compute_node._get_node_empty_ratio``, whose caller would
        write the table: what it is given has nothing left to be written.

        :param ratios: by column
        """

        def is_empty(row: node_rows.Row) -> bool:
            return any(not row[name] for name in ratios)

        def change(row: node_rows.Row | None) -> node_rows.Row | None:
            # Of the live ones, whatever the context reads; others may be faster.
            if row is None or not node_rows.is_live(row):
                return None
            missing = {name: ratio for name, ratio in ratios.items() if not row[name]}
            return node_rows.updated(row, missing)

        with self._source.rows(context) as index:
            keys = [key for key, _row in index.select(False, is_empty)][:max_count]
        filled = []
        for key in keys:
            row_key = records.RecordKey(row_records.NODE_ROWS.name, key)
            row = self._edit(context, row_key, change)
            if row is not None:
                made = row_queries.as_model(row)
                orm.make_transient_to_detached(made)
                filled.append(made)
        return filled

    def forget_archived(self, context: Any) -> int:
        """Drop records of deleted rows that the table has no more; return how many.

        As long as they stand, a node that comes back under its uuid has its old id.
        """
        with self._source.rows(context) as index:
            deleted = {row["id"]: key for key, row in index.select(True)}
        query = sa.select(_ID).where(_ID.in_(list(deleted)))
        held = {row["id"] for row in nova_tables.select_main(context, query)}
        gone = [
            records.RecordKey(row_records.NODE_ROWS.name, key)
            for number, key in deleted.items()
            if number not in held
        ]
        writes = []
        for key, record in self._synchronizer.read(gone).items():
            if record.deleted:
                continue
            row = row_records.row_of(row_records.state_of(record))
            if row is not None and not node_rows.is_live(row):
                # Lost where it came back meanwhile.
                writes.append(records.Write(key, record.revision, deleted=True))
        return sum(result.won for result in self._synchronizer.write(writes)) if writes else 0

    # -- ids ---------------------------------------------------------------------------

    def _next_id(self, context: Any, cell: str) -> int:
        """Take an id; one that is not used is lost, as an AUTO_INCREMENT's is.

        A back end that was put back to a backup counts from what it gave by then, and devices,
        servers and migrations name nodes that came later: another node under such an id would
        have their devices. Whoever puts it back stops the services, or a new epoch begins; so
        the database is asked once in each process and epoch.
        """
        epoch = self._synchronizer.head().epoch
        begun = self._begun_in.get(cell) == epoch
        least = 1 if begun else self._highest_id(context) + 1

        def propose(state: Mapping[str, Any] | None, _version: int) -> record_editor.Proposal[int]:
            if state is None:
                raise CellUnprepared(cell)
            taken = max(int(state["next_id"]), least)
            return record_editor.Proposal(taken, {**state, "next_id": taken + 1})

        taken = self._done(self._editor.edit(row_records.cell_key(cell), propose))
        self._begun_in[cell] = epoch
        return taken

    # -- one row -----------------------------------------------------------------------

    def _key_of(self, context: Any, compute_id: int) -> records.RecordKey:
        key = self._source.find(context, compute_id)
        if key is None:
            with self._source.rows(context) as index:
                found = index.select(None, equal={"id": compute_id})
                key = next((key for key, _row in found), None)
        if key is None:
            raise exception.ComputeHostNotFound(host=compute_id)
        return records.RecordKey(row_records.NODE_ROWS.name, key)

    def _edit(
        self,
        context: Any,
        key: records.RecordKey,
        change: _Change,
        node_id: Callable[[], int] | None = None,
    ) -> node_rows.Row | None:
        """Change one row, with its name; returns what it became, None if it stays as it is.

        Whatever ``change`` raises passes through; nothing was written then. A row is not
        found only while the back end holds the cell.

        :param node_id: gives a new row its id, once its name is sure
        """
        self._source.require_known(context)
        cell = self._cell_of(context)
        comparison = self._comparison_of(context)
        write_id = self._make_id()

        def propose(
            state: Mapping[str, Any] | None, _version: int
        ) -> record_editor.Proposal[node_rows.Row | None]:
            row = row_records.row_of(state)
            if row_records.has_written(state, write_id):
                return record_editor.Proposal(row)
            changed = change(row)
            if changed is None:
                return record_editor.Proposal(None)
            if _takes_name(comparison, row, changed):
                self._claim(cell, comparison, changed, key)
            if row is None and node_id is not None:
                changed = {**changed, "id": node_id()}
            changed = _stored(comparison, changed)
            wanted = row_records.row_state(cell, changed, state, write_id)
            return record_editor.Proposal(changed, wanted)

        try:
            written = self._done(self._editor.edit(key, propose))
        except exception.ComputeHostNotFound:
            # A back end that lost all since this process looked has no record, either.
            self._source.require(cell)
            raise
        if written is not None:
            # Who was held up for long may have written what does not count any more.
            self._source.require_known(context)
            self._on_written(context, key)
        return written

    def _claim(
        self,
        cell: str,
        comparison: text_comparison.TextComparison,
        row: node_rows.Row,
        key: records.RecordKey,
    ) -> None:
        try:
            self._names.claim(cell, comparison, row, key)
        except row_names.NameTaken as error:
            raise db_exception.DBDuplicateEntry(
                columns=["host", "hypervisor_hostname", "deleted"],
                value=f"{row['host']}-{row['hypervisor_hostname']}-0",
            ) from error

    def _done(self, edited: record_editor.Edited[_T] | record_editor.Unwritten) -> _T:
        return record_editor.answer_of(edited, self._synchronizer.name)


def _takes_name(
    comparison: text_comparison.TextComparison,
    before: node_rows.Row | None,
    after: node_rows.Row,
) -> bool:
    if not node_rows.is_live(after):
        return False
    had_it = before is not None and node_rows.is_live(before)
    return not (had_it and before is not None and row_names.same_name(comparison, before, after))


def _has_id(row: node_rows.Row | None, compute_id: Any) -> TypeGuard[node_rows.Row]:
    """Tell whether a record still holds the row that was found by an id.

    A node that was archived and comes back has its old record, and another id.
    """
    return row is not None and row["id"] == int(compute_id)


def _is_among(row: node_rows.Row, deleted: bool | None) -> bool:
    return deleted is None or node_rows.is_live(row) != deleted


def _is_met(
    constraint: Any | None, row: node_rows.Row, comparison: text_comparison.TextComparison
) -> bool:
    """Tell whether a row meets a constraint of Nova's, as SQL would judge it."""
    if constraint is None:
        return True

    def form(value: Any) -> Any:
        return comparison.equal_form(value) if isinstance(value, str) else value

    for name, condition in constraint.conditions.items():
        value = form(row[name])
        wanted = [form(each) for each in condition.values]
        if isinstance(condition, main_db.EqualityCondition):
            # SQLAlchemy makes IS NULL of a comparison with None.
            if value not in wanted:
                return False
        elif value in wanted or (value is None and any(each is not None for each in wanted)):
            return False
    return True


def _stored(comparison: text_comparison.TextComparison, row: node_rows.Row) -> node_rows.Row:
    """Return a row as precise as the database keeps it."""
    if not comparison.whole_seconds:
        return row
    return {
        name: value.replace(microsecond=0)
        if name in node_rows.DATE_TIMES and value is not None
        else value
        for name, value in row.items()
    }


#: Names of nova.db.main.api that are carried out here; service_destroy needs a service.
WRITES: tuple[str, ...] = ("compute_node_create", "compute_node_update", "compute_node_delete")
