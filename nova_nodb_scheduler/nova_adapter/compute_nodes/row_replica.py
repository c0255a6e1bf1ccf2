# SPDX-License-Identifier: Apache-2.0
"""The rows of all cells' compute nodes in memory, as the back end has them at each reading.

A reader asks the back end how far it is, follows the feed up to there, and reads memory:
what any conductor wrote before the question is in it. There is no thread; who reads
seldom pays for a longer way. Readers that come while another one follows share the next
turn: each turn asks again, so that it holds for all who came before it.

What keeps rows from being known is raised, and so is a cell in another mode than this
process is configured for. A node that is not known must never be taken
for one that is not there: nova-compute would create it again, and destroy what is on it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nova.objects import cell_mapping as nova_cell_mapping

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    cell_modes,
    node_rows,
    row_index,
    row_records,
    text_comparison,
)
from nova_nodb_scheduler.synchronizer import contract

LOG = logging.getLogger(__name__)

_FETCHED = 1000
_WAIT_SECONDS = 0.05

_FOLLOWED = (row_records.NODE_ROWS.name, row_records.NODE_CELLS.name)

#: How long a writer goes by what a reader learned of its cell's mode.
_MODE_SECONDS = 5.0

#: Where no compute node ever was: nobody brings it.
_EMPTY_CELL = nova_cell_mapping.CellMapping.CELL0_UUID


class CellNotHeld(errors.NodbError):
    """The back end does not hold a cell's compute nodes.

    :param cell: uuid of the cell
    """

    def __init__(self, cell: str) -> None:
        super().__init__(cell)
        self.cell = cell

    def __str__(self) -> str:
        return (
            f"The back end does not hold the compute nodes of cell {self.cell}: they were never "
            "brought there ('nova-nodb-manage compute-nodes retire'), or it lost them. Nothing is "
            "known of any of them."
        )


class UnreadableNodes(errors.NodbError):
    """Records of compute nodes cannot be read; what was asked may be in them.

    :param keys: some of the records, comma separated
    """

    def __init__(self, keys: str) -> None:
        super().__init__(keys)
        self.keys = keys

    def __str__(self) -> str:
        return (
            f"Records of compute nodes cannot be read, and are not taken for absent: {self.keys}. "
            "Let this service run the release that wrote them."
        )


class _CellRows:
    """What is held of one cell."""

    def __init__(self) -> None:
        self.rows: dict[str, node_rows.Row] = {}
        self.unreadable: set[str] = set()
        self.index: row_index.RowIndex | None = None

    def take(self, record: records.Record) -> None:
        key = record.key.key
        self.unreadable.discard(key)
        try:
            row = row_records.row_of(row_records.state_of(record))
        except row_records.NOT_READ as error:
            LOG.error(
                "Record %(key)s cannot be read: %(error)s", {"key": record.key, "error": error}
            )
            self.unreadable.add(key)
            row = None
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row
        if self.index is not None:
            if row is None:
                self.index.drop(key)
            else:
                self.index.put(key, row)

    def indexed(self, comparison: text_comparison.TextComparison) -> row_index.RowIndex:
        if self.index is None:
            self.index = row_index.RowIndex(comparison)
            for key, row in self.rows.items():
                self.index.put(key, row)
        return self.index


class _Held:
    """What is held of one epoch.

    :param cursor: up to which everything is
    """

    def __init__(self, cursor: records.Cursor) -> None:
        self.cursor = cursor
        #: Of cells; None where the record cannot be read.
        self.modes: dict[str, cell_modes.NodeMode | None] = {}
        self.of_cell: dict[str, _CellRows] = {}
        self._revisions: dict[records.RecordKey, int] = {}

    def take(self, batch: Iterable[records.Record]) -> None:
        """Take in records that are newer than what is held of them."""
        for record in batch:
            key = record.key
            if key.namespace not in _FOLLOWED or self._revisions.get(key, 0) >= record.revision:
                continue
            self._revisions[key] = record.revision
            if key.namespace == row_records.NODE_ROWS.name:
                self.of_cell.setdefault(row_records.cell_of(key.key), _CellRows()).take(record)
            else:
                self.modes[key.key] = _mode(record)


class RowReplica:
    """Compute nodes as a back end has them; any thread may read them.

    :param synchronizer: open
    :param cell_of: the cell that a context is for
    :param comparison_of: how the database of a context compares text
    :param timeout_seconds: how long the feed may take to bring what the back end has
    :param mode: that cells must be in
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        cell_of: Callable[[Any], str],
        comparison_of: Callable[[Any], text_comparison.TextComparison],
        timeout_seconds: float = 10.0,
        mode: cell_modes.NodeMode = cell_modes.NodeMode.STORE,
    ) -> None:
        self._synchronizer = synchronizer
        self._cell_of = cell_of
        self._comparison_of = comparison_of
        self._timeout_seconds = timeout_seconds
        self._mode = mode
        self._followed_at = float("-inf")
        self._barrier = SharedBarrier(self._follow)
        self._lock = threading.Lock()
        self._held: _Held | None = None

    @contextlib.contextmanager
    def rows(self, context: Any) -> Iterator[row_index.RowIndex]:
        """See :class:`.row_queries.RowSource`.

        Blocks for a question to the back end, and for what came since the last one.

        :raises BackendUnavailable: what is written is not known
        :raises CellNotHeld: the back end does not hold the cell
        :raises ModeDiffers: the cell is in another mode
        :raises UnreadableNodes: a record of the cell is not of this release
        """
        cell = self._cell_of(context)
        comparison = self._comparison_of(context)
        self._barrier.wait()
        with self._lock:
            yield self._index(cell, comparison)

    def require(self, cell: str) -> None:
        """Refuse a cell that is not held, or is in another mode; blocks and raises as :meth:`rows`.

        A node that cannot be read is no reason.
        """
        self._barrier.wait()
        with self._lock:
            self._require_mode(cell)

    def require_known(self, context: Any) -> None:
        """As :meth:`require`, of a context's cell and by what was known some seconds ago.

        For who writes: the record that it reads is the present one, and nobody changes a
        cell's mode while processes live that write it.
        """
        cell = self._cell_of(context)
        if time.monotonic() > self._followed_at + _MODE_SECONDS:
            self._barrier.wait()
        with self._lock:
            self._require_mode(cell)

    def find(self, context: Any, node_id: int) -> str | None:
        """Return the record key of the row with an id by what is known already; None if unknown.

        Asks nobody: a row keeps its id and its record for ever.
        """
        cell = self._cell_of(context)
        comparison = self._comparison_of(context)
        with self._lock:
            if self._held is None or cell not in self._held.of_cell:
                return None
            index = self._held.of_cell[cell].indexed(comparison)
            return next((key for key, _row in index.select(None, equal={"id": node_id})), None)

    def _index(self, cell: str, comparison: text_comparison.TextComparison) -> row_index.RowIndex:
        held = self._require_mode(cell)
        rows = held.of_cell.setdefault(cell, _CellRows())
        if rows.unreadable:
            raise UnreadableNodes(", ".join(sorted(rows.unreadable)[:3]))
        return rows.indexed(comparison)

    def _require_mode(self, cell: str) -> _Held:
        held = self._held
        recorded = None if held is None else held.modes.get(cell)
        is_empty = cell == _EMPTY_CELL and held is not None and cell not in held.modes
        if held is None or (recorded is None and not is_empty):
            raise CellNotHeld(cell)
        if recorded is not self._mode and not is_empty:
            assert recorded is not None
            raise cell_modes.ModeDiffers(cell, recorded.value, self._mode.value)
        return held

    def _follow(self) -> None:
        """Bring memory to where the back end is now, or beyond."""
        began = time.monotonic()
        self._follow_to_head()
        self._followed_at = began

    def _follow_to_head(self) -> None:
        head = self._synchronizer.head()
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            held = self._held
            if held is None or held.cursor.epoch != head.epoch:
                held = self._read_all(head.epoch)
            if held.cursor.version >= head.version:
                return
            fetched = self._synchronizer.fetch(held.cursor, _FETCHED)
            if isinstance(fetched, records.ResyncNeeded):
                self._read_all(head.epoch)
                continue
            with self._lock:
                held.take(fetched.records)
                moved = fetched.cursor != held.cursor
                held.cursor = fetched.cursor
            if not moved:
                self._wait(held.cursor, deadline)

    def _wait(self, cursor: records.Cursor, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise errors.BackendUnavailable(
                self._synchronizer.name, f"its feed stands still at {cursor.version}"
            )
        self._synchronizer.wait(cursor, _WAIT_SECONDS)

    def _read_all(self, epoch: str) -> _Held:
        """Read everything anew; others read what was there before until it is all here.

        :param epoch: that is asked for
        """
        try:
            taken = self._synchronizer.snapshot(_FOLLOWED)
            held = _Held(taken.cursor)
            for page in taken.pages:
                held.take(page)
        except contract.SnapshotInterrupted as error:
            raise errors.BackendUnavailable(
                self._synchronizer.name, "it began a new epoch while it was read"
            ) from error
        if taken.cursor.epoch != epoch:
            raise errors.BackendUnavailable(
                self._synchronizer.name, "it began a new epoch when it was to be read"
            )
        with self._lock:
            self._held = held
        return held


class SharedBarrier:
    """Has several threads do one thing together that must begin after each of them came.

    :param turn: the thing; done by one thread at a time, whichever's it is
    """

    def __init__(self, turn: Callable[[], None]) -> None:
        self._turn = turn
        self._changed = threading.Condition()
        self._begun = 0
        self._ended = 0
        self._is_busy = False
        self._error: errors.NodbError | None = None

    def wait(self) -> None:
        """Return when a turn has ended that began behind this call.

        :raises NodbError: what the turn raised, to all who waited for it
        """
        with self._changed:
            needed = self._begun + 1
            while self._is_busy and self._ended < needed:
                self._changed.wait()
            if self._ended >= needed:
                if self._error is not None:
                    raise self._error
                return
            self._begun += 1
            self._is_busy = True
        error: errors.NodbError | None = errors.BackendUnavailable("back end", "its reader died")
        try:
            self._turn()
            error = None
        except errors.NodbError as caught:
            error = caught
            raise
        finally:
            with self._changed:
                self._ended, self._error, self._is_busy = self._begun, error, False
                self._changed.notify_all()


def _mode(record: records.Record) -> cell_modes.NodeMode | None:
    """Return the mode of a cell; None where none was recorded yet, or it cannot be read."""
    try:
        state = row_records.state_of(record, row_records.NODE_CELLS)
        return cell_modes.mode_of(state) if state is not None and "mode" in state else None
    except row_records.NOT_READ as error:
        LOG.error("Record %(key)s cannot be read: %(error)s", {"key": record.key, "error": error})
        return None
