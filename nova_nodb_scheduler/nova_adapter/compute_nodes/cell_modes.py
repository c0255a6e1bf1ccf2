# SPDX-License-Identifier: Apache-2.0
"""Who answers for the compute nodes of a cell, by the back end's own word.

The mode stands in the cell's record, so that a process whose configuration says
otherwise finds out before it reads or writes, and so that it goes where the records go
(``synchronizer move``). A cell without a record is in ``mirror``.

The way there and back is one compare-and-set at the end of each; whatever ends before it
has changed nothing that anybody believes, and the same call again goes on. No other
process may write the cell's compute nodes meanwhile: nova-compute repeats what a conductor
that is stopped did not do.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa
from nova.db.main import api as main_db
from nova.db.main import models

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    node_rows,
    row_names,
    row_records,
    table_copy,
    text_comparison,
)
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables, table_tripwire
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher, record_editor
from nova_nodb_scheduler.wire import codec

_TABLE = models.ComputeNode.__table__
_PAGE = 200

#: Columns that hold an id of a compute node, that one may be gone already. Tables of
#: archived rows have them, too.
_ID_COLUMNS = (
    ("compute_nodes", "id"),
    ("instances", "compute_id"),
    ("migrations", "dest_compute_id"),
    ("pci_devices", "compute_node_id"),
)


class NodeMode(enum.Enum):
    """Whose word counts for a cell's compute nodes."""

    #: Nova's table; records are made of it.
    MIRROR = "mirror"
    #: The records; the table is written behind them.
    STORE = "store"
    #: The records; the table is away.
    RETIRED = "retired"


class ModeDiffers(errors.NodbError):
    """A process is configured for another mode than a cell is in.

    :param cell: uuid of the cell
    :param recorded: its mode by the back end
    :param configured: the mode of this process
    """

    def __init__(self, cell: str, recorded: str, configured: str) -> None:
        super().__init__(cell, recorded, configured)
        self.cell, self.recorded, self.configured = cell, recorded, configured

    def __str__(self) -> str:
        return (
            f"The compute nodes of cell {self.cell} are in mode '{self.recorded}' by the back end, "
            f"and this service is configured for '{self.configured}'. Give [nodb_scheduler] "
            "compute_nodes the recorded value in all services of the control plane, or change the "
            "cell with 'nova-nodb-manage compute-nodes retire' or 'restore' while they are stopped."
        )


class CellModes:
    """The modes that a back end records; any thread may call it.

    :param synchronizer: open
    """

    def __init__(self, synchronizer: contract.Synchronizer) -> None:
        self._synchronizer = synchronizer
        self._editor = record_editor.RecordEditor(synchronizer, [row_records.NODE_CELLS])

    def read(self, cell: str) -> NodeMode:
        """Return the mode of a cell.

        :raises BackendUnavailable: not known
        :raises UndecodableRecord: a newer release wrote the record
        """
        return mode_of(self.state(cell))

    def state(self, cell: str) -> Mapping[str, Any] | None:
        """Return the state of a cell's record; raises as :meth:`read`."""
        state, _revision, _version = self._editor.read(row_records.cell_key(cell))
        return state

    def require(self, cells: Sequence[str], configured: NodeMode) -> None:
        """Refuse to serve cells in another mode than theirs.

        :raises ModeDiffers: naming the first, and both modes
        :raises BackendUnavailable: a mode is not known
        """
        for cell in cells:
            recorded = self.read(cell)
            if recorded is not configured:
                raise ModeDiffers(cell, recorded.value, configured.value)

    def record(self, cell: str, mode: NodeMode) -> None:
        """Note the mode of a cell.

        :raises BackendUnavailable: it may or may not be noted
        """

        def propose(state: Mapping[str, Any] | None, _version: int) -> Any:
            kept = dict(state or {})
            wanted = {**kept, "mode": mode.value}
            return record_editor.Proposal(None, None if wanted == kept else wanted)

        edited = self._editor.edit(row_records.cell_key(cell), propose)
        if isinstance(edited, record_editor.Unwritten):
            raise errors.BackendUnavailable(
                self._synchronizer.name, f"the outcome of a write is {edited.value}"
            )


def mode_of(state: Mapping[str, Any] | None) -> NodeMode:
    """Return the mode in the state of a cell's record."""
    return NodeMode((state or {}).get("mode", NodeMode.MIRROR.value))


@attrs.frozen
class TransferredRows:
    """What became of a cell's rows on their way.

    :param rows: of them all, live and deleted
    :param written: that were not there already as they are
    :param dropped: records of rows that are no more
    """

    rows: int
    written: int
    dropped: int = 0


class NodeTransfer:
    """Brings the rows of a cell from Nova's table into records, and back.

    :param synchronizer: open
    :param prepare: lets new nodes of a cell have ids above one
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        prepare: Callable[[str, text_comparison.TextComparison, int], None],
    ) -> None:
        self._synchronizer = synchronizer
        self._prepare = prepare
        self._modes = CellModes(synchronizer)
        self._copy = table_copy.TableCopy(synchronizer)
        self._publisher = publisher.Publisher(
            synchronizer, row_records.BY_NAME, row_records.NODE_ROWS.owner
        )

    def to_store(
        self, context: Any, cell: str, comparison: text_comparison.TextComparison
    ) -> TransferredRows:
        """Make records of the table's rows, with their names, and have them count.

        A second identical call does nothing: the records count already.

        :raises BackendUnavailable: the table counts as before
        :raises InvalidRecord: a row has what no record can carry; it is named
        """
        if self._modes.read(cell) is NodeMode.STORE:
            return TransferredRows(0, 0)
        self._prepare(cell, comparison, highest_id(context))
        rows = written = 0
        found: set[str] = set()
        for page in _pages(context):
            wanted = {row_records.row_key(cell, row["uuid"], row["id"]): row for row in page}
            found.update(key.key for key in wanted)
            written += self._publish({key: _as_it_is(cell, row) for key, row in wanted.items()})
            self._publish(_names(cell, comparison, wanted))
            rows += len(page)
        left = [key for key in self._keys(cell) if key.key not in found]
        self._publish(dict.fromkeys(left, _gone))
        self._modes.record(cell, NodeMode.STORE)
        return TransferredRows(rows, written, len(left))

    def to_mirror(self, context: Any, cell: str) -> TransferredRows:
        """Have the table hold what the records do, and have it count.

        :raises BackendUnavailable: the records count as before
        :raises DBError: likewise
        """
        if self._modes.read(cell) is NodeMode.MIRROR:
            return TransferredRows(0, 0)
        before = {row["id"]: row for page in _pages(context) for row in page}
        keys = list(self._keys(cell))
        for key in keys:
            self._copy.bring(context, key)
        after = {row["id"]: row for page in _pages(context) for row in page}
        state = self._modes.state(cell) or {}
        _continue_ids(context, int(state.get("next_id", 1)))
        self._modes.record(cell, NodeMode.MIRROR)
        written = sum(before.get(number) != row for number, row in after.items())
        return TransferredRows(len(keys), written)

    def _publish(self, updates: Mapping[records.RecordKey, publisher.Compute]) -> int:
        report = self._publisher.publish(updates)
        if report.rejected:
            key, reason = min(report.rejected.items())
            raise errors.InvalidRecord(str(key), "row", reason)
        if report.failed:
            raise errors.BackendUnavailable(
                self._synchronizer.name, f"{min(report.failed)} is written by others"
            )
        return report.published + report.deleted

    def _keys(self, cell: str) -> Iterator[records.RecordKey]:
        """Give the keys of a cell's rows."""
        for page in self._synchronizer.snapshot([row_records.NODE_ROWS.name]).pages:
            for record in page:
                if row_records.cell_of(record.key.key) == cell:
                    state = codec.decode_state(record.payload)
                    if state["row"] is not None:
                        yield record.key


def highest_id(context: Any) -> int:
    """Return the highest id that a compute node of a cell had, as far as its tables tell.

    What an AUTO_INCREMENT or a sequence gave to a row that was never written is free.
    """
    there = set(sa.inspect(main_db.get_engine(context=context)).get_table_names())
    highest = 0
    for table, column in _ID_COLUMNS:
        if column not in models.BASE.metadata.tables[table].c:
            continue
        for source in {table, f"shadow_{table}"} & there:
            held: sa.ColumnElement[int] = sa.column(column)
            query = sa.select(sa.func.max(held).label("id")).select_from(sa.table(source))
            [found] = nova_tables.select_main(context, query)
            highest = max(highest, int(found["id"] or 0))
    return highest


#: What has a database give no id below one, by SQLAlchemy's name. SQLite goes by its rows.
_CONTINUED = {
    "mysql": "ALTER TABLE compute_nodes AUTO_INCREMENT = {next_id}",
    # Rows that name their ids do not move a sequence.
    "postgresql": (
        "SELECT setval(pg_get_serial_sequence('compute_nodes', 'id'), {next_id}, false)"
    ),
}


def _continue_ids(context: Any, next_id: int) -> None:
    """Have the table's own ids go on where those of the records ended."""
    engine = main_db.get_engine(context=context)
    statement = _CONTINUED.get(engine.dialect.name)
    if statement is not None:
        with table_tripwire.own_statements(), engine.begin() as connection:
            connection.execute(sa.text(statement.format(next_id=next_id)))


def _pages(context: Any) -> Iterator[list[node_rows.Row]]:
    """Give all rows of the table, in the order of their ids."""
    after = 0
    while True:
        query = sa.select(_TABLE).where(_TABLE.c.id > after).order_by(_TABLE.c.id).limit(_PAGE)
        rows = nova_tables.select_main(context, query)
        if not rows:
            return
        yield rows
        after = int(rows[-1]["id"])


def _as_it_is(cell: str, row: node_rows.Row) -> publisher.Compute:
    wanted = node_rows.to_state(row)

    def compute(state: publisher.State | None) -> publisher.Computed:
        if state is not None and state["row"] == wanted:
            return publisher.UNCHANGED
        return row_records.row_state(cell, row, state, "import")

    return compute


def _names(
    cell: str,
    comparison: text_comparison.TextComparison,
    rows: Mapping[records.RecordKey, node_rows.Row],
) -> dict[records.RecordKey, publisher.Compute]:
    """Return what gives live rows their names: the table itself has kept them unique."""
    updates: dict[records.RecordKey, publisher.Compute] = {}
    for key, row in rows.items():
        if node_rows.is_live(row) and row_names.has_name(row):
            name = row_records.name_key(cell, comparison, row["host"], row["hypervisor_hostname"])
            state = row_names.name_state(cell, row, key.key)
            updates[name] = _fixed(state)
    return updates


def _fixed(state: Mapping[str, Any]) -> publisher.Compute:
    return lambda _standing: state


def _gone(_state: publisher.State | None) -> publisher.Computed:
    return publisher.DELETE
