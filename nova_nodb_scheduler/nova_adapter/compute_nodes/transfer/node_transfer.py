# SPDX-License-Identifier: Apache-2.0
"""A cell's compute nodes go from Nova's table into records, and back: the way, step by step.

======== ============================================ ========================================
mode     on the way there                             on the way back
======== ============================================ ========================================
mirror   import; then ``store`` is recorded           recorded when the table holds all
store    the key is dropped, the table renamed,       each row is brought up to its record
         exported, compared and emptied
retired  recorded when it is                          the table is filled and compared while
                                                      it is away, renamed, and given its key
======== ============================================ ========================================

What changes whose word counts is one compare-and-set, behind all that makes it true;
whatever ends before it has changed nothing that anybody believes, and the same call goes
on. No other process may write the cell's compute nodes meanwhile: nova-compute repeats what
a conductor that is stopped did not do.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa
from nova.db.main import api as main_db
from nova.db.main import models
from oslo_utils import timeutils

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    cell_modes,
    node_rows,
    row_names,
    row_records,
    table_copy,
    text_comparison,
)
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import (
    row_file,
    table_retirement,
    transfer_refusals,
)
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables, table_tripwire
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.wire import codec

_Mode = cell_modes.NodeMode
_Place = table_retirement.TablePlace

#: Field of a cell's record: the foreign key as it was; None where there was none.
KEY_FIELD = "foreign_key"

#: Columns that hold an id of a compute node, that one may be gone already. Tables of
#: archived rows have them, too.
_ID_COLUMNS = (
    ("compute_nodes", "id"),
    ("instances", "compute_id"),
    ("migrations", "dest_compute_id"),
    ("pci_devices", "compute_node_id"),
)


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


@attrs.frozen
class TransferOutcome:
    """What there is to say of a step that was done.

    :param file: that was written
    """

    text: str
    file: pathlib.Path | None = None


@attrs.frozen
class TransferStep:
    """One step of the way; done again it changes nothing.

    :param title: what it does
    :param is_done: looks, and changes nothing
    :param do: blocks for as long as it takes
    """

    title: str
    is_done: Callable[[], bool]
    do: Callable[[], TransferOutcome | None]


#: Called behind each step that was done.
Told = Callable[[TransferStep, TransferOutcome | None], None]


@attrs.frozen
class Way:
    """All that is to be done for one cell, and what keeps it from being begun."""

    cell: str
    refusals: tuple[transfer_refusals.Refusal, ...]
    steps: tuple[TransferStep, ...]
    #: Takes the turn from whoever goes there or back just now.
    begin: Callable[[], None] = attrs.field(default=lambda: None, repr=False)
    #: Raises once another took it.
    require_turn: Callable[[], None] = attrs.field(default=lambda: None, repr=False)

    def left(self) -> list[str]:
        """Return the titles of the steps that are not done; changes nothing."""
        return [step.title for step in self.steps if not step.is_done()]

    def go(
        self,
        told: Callable[[TransferStep, TransferOutcome | None], None] = lambda step, outcome: None,
    ) -> None:
        """Do what is left, step by step.

        :raises TransferRefused: nothing was done, or the table turned out to hold other rows
        :raises TurnTaken: another way of this cell was begun later, and goes on
        :raises BackendUnavailable: the same call goes on from there; so it does after
            whatever a database's driver raises
        """
        if self.refusals:
            raise _refused(self.cell, self.refusals)
        if not self.left():
            return
        self.begin()
        for step in self.steps:
            if not step.is_done():
                self.require_turn()
                told(step, step.do())


@attrs.frozen
class CellRecords:
    """The rows of a cell that records hold.

    :param rows: live and deleted, in the order of their ids
    :param unreadable: keys of records that this release cannot read
    """

    rows: tuple[node_rows.Row, ...]
    unreadable: tuple[str, ...]

    def identities(self) -> set[tuple[Any, ...]]:
        """Return what tells rows apart, and live ones from deleted ones."""
        return set(map(_identity, self.rows))

    def uuids(self) -> dict[int, str | None]:
        """Return the nodes' uuids by their ids."""
        return {int(row["id"]): row["uuid"] for row in self.rows}


@attrs.frozen
class CellState:
    """How a cell stands, as the back end and its database have it.

    :param mode: as recorded
    :param place: where the table is
    :param live: rows that count, of the table or of records
    :param deleted: likewise, soft-deleted ones
    :param table_rows: of the table, whether they count or not; None where there is not one table
    :param key: the foreign key that stands
    :param next_id: of a new compute node; None where the database gives it
    :param unreadable: keys of records that this release cannot read
    """

    mode: cell_modes.NodeMode
    place: table_retirement.TablePlace
    live: int
    deleted: int
    table_rows: int | None
    key: table_retirement.ForeignKey | None
    next_id: int | None
    unreadable: tuple[str, ...]

    @property
    def is_lost(self) -> bool:
        """Whether the table was taken away, and no record says so any more.

        An upgrade of Nova may have it in its place just then: Nova's own always has its key.
        """
        if self.mode is not _Mode.MIRROR:
            return False
        is_prepared = self.place is _Place.THERE and not self.table_rows and self.key is None
        return self.place is _Place.AWAY or is_prepared

    @property
    def is_settled(self) -> bool:
        """Whether the table is where the mode has it."""
        if self.mode is _Mode.RETIRED:
            return self.place is _Place.AWAY and not self.table_rows
        return self.place is _Place.THERE


class _Brought:
    """What the table of a cell is made to hold, and whether it still is what it should.

    :param hold: reads the rows that count
    """

    def __init__(
        self, table: table_retirement.CellTable, cell: str, hold: Callable[[], CellRecords]
    ) -> None:
        self._table, self._cell, self._hold = table, cell, hold
        self.held = CellRecords((), ())

    def read(self) -> CellRecords:
        """Return the rows that count by now.

        :raises TransferRefused: records cannot be read
        """
        self.held = self._hold()
        if self.held.unreadable:
            raise _refused(self._cell, transfer_refusals.of_records(self.held.unreadable))
        return self.held

    def require_filled(self) -> None:
        """Refuse a table that holds other rows.

        :raises TransferRefused: others write it
        """
        there = {_identity(row) for page in self._table.pages() for row in page}
        if there != self.held.identities():
            raise _refused(self._cell, [_OTHERWISE_FILLED])

    def compare(self) -> None:
        """Refuse a table that holds other rows, or whose records went on.

        :raises TransferRefused: others write one of the two
        """
        self.require_filled()
        brought = {row["id"]: row for row in self.held.rows}
        now = {row["id"]: row for row in self.read().rows}
        changed = tuple(
            transfer_refusals.named(now.get(number) or brought[number])
            for number in sorted(brought.keys() | now.keys())
            if brought.get(number) != now.get(number)
        )
        if changed:
            raise _refused(self._cell, [attrs.evolve(_WENT_ON, rows=changed)])


def _identity(row: node_rows.Row) -> tuple[Any, ...]:
    return row["id"], row["uuid"], row["deleted"]


class NodeTransfer:
    """Brings the rows of a cell from Nova's table into records, and back.

    :param synchronizer: open
    """

    def __init__(self, synchronizer: contract.Synchronizer) -> None:
        self._synchronizer = synchronizer
        self._modes = cell_modes.CellModes(synchronizer)
        self._copy = table_copy.TableCopy(synchronizer)
        self._publisher = publisher.Publisher(
            synchronizer, row_records.BY_NAME, row_records.NODE_ROWS.owner
        )

    # -- what is there -----------------------------------------------------------------

    def state(self, context: Any, cell: str) -> CellState:
        """Return how a cell stands; whatever a database's driver raises passes through.

        :raises BackendUnavailable: not known
        """
        recorded = self._modes.state(cell)
        mode = cell_modes.mode_of(recorded)
        table = table_retirement.CellTable(context)
        place = table.place()
        counts = table.counts() if place in (_Place.THERE, _Place.AWAY) else None
        held = CellRecords((), ()) if mode is _Mode.MIRROR else self.held(cell)
        live = sum(map(node_rows.is_live, held.rows))
        deleted = len(held.rows) - live
        if mode is _Mode.MIRROR and counts is not None:
            live, deleted = counts
        return CellState(
            mode=mode,
            place=place,
            live=live,
            deleted=deleted,
            table_rows=None if counts is None else sum(counts),
            key=table.foreign_key(),
            next_id=None if mode is _Mode.MIRROR else int((recorded or {}).get("next_id", 1)),
            unreadable=held.unreadable,
        )

    def held(self, cell: str) -> CellRecords:
        """Return the rows of a cell's records.

        :raises BackendUnavailable: not known
        """
        rows, unreadable = [], []
        try:
            for page in self._synchronizer.snapshot([row_records.NODE_ROWS.name]).pages:
                for record in page:
                    if row_records.cell_of(record.key.key) != cell:
                        continue
                    try:
                        row = row_records.row_of(row_records.state_of(record))
                    except row_records.NOT_READ:
                        unreadable.append(record.key.key)
                        continue
                    if row is not None:
                        rows.append(row)
        except contract.SnapshotInterrupted as error:
            raise errors.BackendUnavailable(
                self._synchronizer.name, "it began a new epoch while it was read"
            ) from error
        return CellRecords(tuple(sorted(rows, key=lambda row: row["id"])), tuple(unreadable))

    def counting(self, context: Any, cell: str) -> Iterable[node_rows.Row]:
        """Give the rows that count, live and deleted, wherever they are.

        :raises TransferRefused: records of them cannot be read
        :raises TableMissing: the table counts, and there is none
        """
        if self._modes.read(cell) is _Mode.MIRROR:
            rows = list(itertools.chain.from_iterable(table_retirement.CellTable(context).pages()))
            # Whoever empties it has recorded another mode before.
            if self._modes.read(cell) is _Mode.MIRROR:
                return rows
        held = self.held(cell)
        if held.unreadable:
            raise _refused(cell, transfer_refusals.of_records(held.unreadable))
        return held.rows

    def export(self, context: Any, cell: str, directory: pathlib.Path) -> tuple[pathlib.Path, int]:
        """Write the rows that count to a file; return it, and how many. Raises as :meth:`counting`.

        :raises OSError: nothing was written
        """
        path = _new_file(cell, directory)
        return path, row_file.write(path, self.counting(context, cell))

    def orphans(self, context: Any, cell: str) -> list[transfer_refusals.Refusal]:
        """Say which devices name compute nodes that do not count, live or deleted; raises
        as :meth:`counting`.
        """
        held = {int(row["id"]) for row in self.counting(context, cell)}
        devices = table_retirement.CellTable(context).devices()
        return transfer_refusals.of_devices(devices, held)

    # -- there -------------------------------------------------------------------------

    def there(
        self,
        context: Any,
        cell: str,
        comparison: text_comparison.TextComparison,
        directory: pathlib.Path,
        *,
        keep_table: bool = False,
    ) -> Way:
        """Return what makes records count, from wherever the cell is; changes nothing.

        :param directory: where the table's rows are exported before it is emptied
        :param keep_table: whether it shall go on being written behind the records
        """
        mode = self._modes.read(cell)
        if mode is _Mode.RETIRED and keep_table:
            return self.back(context, cell, to=_Mode.STORE)
        table = table_retirement.CellTable(context)
        place = table.place()
        in_table = place is _Place.AWAY and table.counts() != (0, 0)
        refusals = _of_place(place, mode, in_table=in_table)
        if refusals:
            return Way(cell, tuple(refusals), ())
        rows = [row for page in table.pages() for row in page]
        if mode is _Mode.MIRROR and not rows and table.foreign_key() is None:
            return Way(cell, (_LOST,), ())
        held = self.held(cell)
        # Those that were left from another time, too: they are to be replaced or dropped.
        refusals += transfer_refusals.of_records(held.unreadable)
        if mode is _Mode.MIRROR:
            refusals += transfer_refusals.of_rows(rows)
            ids = {int(row["id"]) for row in rows}
        else:
            if not held.unreadable:
                refusals += transfer_refusals.of_unheld(rows, held.uuids())
            ids = set(held.uuids())
        refusals += transfer_refusals.of_devices(table.devices(), ids)
        if not keep_table:
            refusals += transfer_refusals.of_keys(table.other_keys())
        turn = cell_modes.Turn(cell)
        steps = [self._import_step(context, turn, comparison)]
        if not keep_table:
            steps += self._retirement_steps(table, turn, directory)
        return self._way(turn, mode, refusals, steps)

    def _way(
        self,
        turn: cell_modes.Turn,
        mode: cell_modes.NodeMode,
        refusals: Iterable[transfer_refusals.Refusal],
        steps: Iterable[TransferStep],
    ) -> Way:
        return Way(
            turn.cell,
            tuple(refusals),
            tuple(steps),
            functools.partial(self._modes.take, turn, mode),
            functools.partial(self._modes.require_turn, turn),
        )

    def _import_step(
        self, context: Any, turn: cell_modes.Turn, comparison: text_comparison.TextComparison
    ) -> TransferStep:
        cell = turn.cell

        def bring() -> TransferOutcome:
            brought = self.to_store(context, cell, comparison, turn=turn)
            return TransferOutcome(f"{brought.rows} rows, {brought.written} records written")

        return TransferStep(
            "make records of all rows, and record that they count (mode store)",
            lambda: self._modes.read(cell) is not _Mode.MIRROR,
            bring,
        )

    def _retirement_steps(
        self, table: table_retirement.CellTable, turn: cell_modes.Turn, directory: pathlib.Path
    ) -> list[TransferStep]:
        cell = turn.cell

        def drop_key() -> None:
            self._note_key(turn, table.foreign_key())
            table.drop_key()

        def is_empty() -> bool:
            return table.counts() == (0, 0)

        def export() -> TransferOutcome:
            rows = [row for page in table.pages() for row in page]
            held = self.held(cell)
            unheld = transfer_refusals.of_unheld(rows, held.uuids())
            unheld += transfer_refusals.of_younger(rows, held.rows, _WRITTEN_TO_TABLE)
            if unheld:
                raise _refused(cell, unheld)
            path = _new_file(cell, directory)
            return TransferOutcome(f"{row_file.write(path, rows)} rows", path)

        name, away_name = table_retirement.NAME, table_retirement.AWAY_NAME
        return [
            TransferStep(
                "drop the foreign key of pci_devices",
                lambda: table.foreign_key() is None,
                drop_key,
            ),
            TransferStep(
                f"rename {name} to {away_name}",
                lambda: table.place() is _Place.AWAY,
                table.take_away,
            ),
            TransferStep(f"export its rows to a file in {directory}", is_empty, export),
            TransferStep(
                "empty it",
                is_empty,
                lambda: table.empty(lambda: self._modes.require_turn(turn)),
            ),
            self._record_step(turn, _Mode.RETIRED),
        ]

    def _record_step(
        self,
        turn: cell_modes.Turn,
        mode: cell_modes.NodeMode,
        compare: Callable[[], None] = lambda: None,
    ) -> TransferStep:
        def record() -> None:
            compare()
            self._modes.record(turn.cell, mode, turn=turn)

        return TransferStep(
            f"record mode {mode.value}", lambda: self._modes.read(turn.cell) is mode, record
        )

    def _note_key(self, turn: cell_modes.Turn, key: table_retirement.ForeignKey | None) -> None:
        """Have the cell's record say how the key is to be made again."""
        cell = turn.cell
        noted = (self._modes.state(cell) or {}).get(KEY_FIELD)
        if key is not None and noted != _plain(key):
            mode = self._modes.read(cell)
            self._modes.record(cell, mode, turn=turn, **{KEY_FIELD: _plain(key)})

    def to_store(
        self,
        context: Any,
        cell: str,
        comparison: text_comparison.TextComparison,
        *,
        turn: cell_modes.Turn | None = None,
    ) -> TransferredRows:
        """Make records of the table's rows, with their names, and have them count.

        A second identical call does nothing: the records count already.

        :param turn: of the way that this is a step of; it has been taken
        :raises BackendUnavailable: the table counts as before
        :raises TurnTaken: by another
        :raises InvalidRecord: a row has what no record can carry; it is named
        """
        if self._modes.read(cell) is not _Mode.MIRROR:
            return TransferredRows(0, 0)
        self._modes.prepare(cell, comparison, highest_id(context))
        table = table_retirement.CellTable(context)
        # All of it before anything is written: another may empty it who has the turn by then,
        # and what it holds no more is dropped from the records.
        pages = list(table.pages())
        rows = written = 0
        found: set[str] = set()
        for page in pages:
            self._require(turn)
            wanted = {row_records.row_key(cell, row["uuid"], row["id"]): row for row in page}
            found.update(key.key for key in wanted)
            written += self._publish({key: _as_it_is(cell, row) for key, row in wanted.items()})
            self._publish(_names(cell, comparison, wanted))
            rows += len(page)
        left = [key for key in self._keys(cell) if key.key not in found]
        self._require(turn)
        self._publish(dict.fromkeys(left, _gone))
        key = _plain(table.foreign_key())
        self._modes.record(cell, _Mode.STORE, turn=turn, **{KEY_FIELD: key})
        return TransferredRows(rows, written, len(left))

    def _require(self, turn: cell_modes.Turn | None) -> None:
        if turn is not None:
            self._modes.require_turn(turn)

    # -- and back ----------------------------------------------------------------------

    def back(
        self,
        context: Any,
        cell: str,
        *,
        to: cell_modes.NodeMode = _Mode.MIRROR,
        lost: Iterable[node_rows.Row] | None = None,
    ) -> Way:
        """Return what has the table hold all rows, from wherever the cell is; changes nothing.

        :param to: ``mirror`` for the table to count, ``store`` for it to be written behind
            the records
        :param lost: rows of a file, for a back end that lost its records
        """
        mode = self._modes.read(cell)
        table = table_retirement.CellTable(context)
        place = table.place()
        key = table.foreign_key()
        noted = self._noted_key(cell)
        if lost is None and mode is to and place is _Place.THERE:
            if mode is _Mode.MIRROR or key == noted:
                return Way(cell, (), ())
        in_table = place is _Place.AWAY and table.counts() != (0, 0)
        refusals = _of_place(
            place, mode, is_back=True, has_rows=lost is not None, in_table=in_table
        )
        if refusals:
            return Way(cell, tuple(refusals), ())
        rows = [row for page in table.pages() for row in page]
        if lost is not None and (mode is not _Mode.MIRROR or (rows and key is not None)):
            return Way(cell, (_NOT_LOST,), ())
        held = self.held(cell) if lost is None else CellRecords(tuple(lost), ())
        refusals += transfer_refusals.of_records(held.unreadable)
        refusals += transfer_refusals.of_ids(held.rows)
        if lost is not None:
            refusals += _of_file(rows, held)
        elif not held.unreadable and not (mode is _Mode.RETIRED and place is _Place.AWAY):
            # What stands in a table that is away came there on the way back.
            refusals += transfer_refusals.of_unheld(rows, held.uuids())
        if not held.unreadable:
            refusals += transfer_refusals.of_devices(table.devices(), set(held.uuids()))
        turn = cell_modes.Turn(cell)
        brought = _Brought(table, cell, (lambda: self.held(cell)) if lost is None else lambda: held)
        is_followed = mode is _Mode.STORE and place is _Place.THERE and key == noted
        if is_followed:
            steps = [self._copy_step(context, cell, brought)]
        else:
            steps = self._return_steps(context, cell, len(held.rows), brought, noted)
        steps.append(self._record_step(turn, to, brought.compare))
        return self._way(turn, mode, refusals, steps)

    def _copy_step(self, context: Any, cell: str, brought: _Brought) -> TransferStep:
        def bring() -> TransferOutcome:
            rows = self._bring_up(context, cell, brought.read())
            return TransferOutcome(f"{rows.rows} records, {rows.written} rows written")

        return TransferStep("bring the table's rows up to their records", _never, bring)

    def _bring_up(self, context: Any, cell: str, held: CellRecords) -> TransferredRows:
        """Write the rows that are not as their records to the table, which has its key."""
        table = table_retirement.CellTable(context)
        there = {row["id"]: node_rows.to_state(row) for page in table.pages() for row in page}
        written = 0
        for row in held.rows:
            state, standing = node_rows.to_state(row), there.get(row["id"])
            if standing is None or any(state.get(name) != standing[name] for name in standing):
                key = row_records.row_key(cell, row["uuid"], row["id"])
                self._copy.bring(context, key)
                written += 1
        table.continue_ids(self._next_id(context, cell, held.uuids()))
        return TransferredRows(len(held.rows), written)

    def _return_steps(
        self,
        context: Any,
        cell: str,
        rows: int,
        brought: _Brought,
        noted: table_retirement.ForeignKey | None,
    ) -> list[TransferStep]:
        table = table_retirement.CellTable(context)

        def fill() -> TransferOutcome:
            held = brought.read()
            written = table.fill(held.rows)
            brought.require_filled()
            return TransferOutcome(f"{len(held.rows)} rows, {written} written")

        def continue_ids() -> TransferOutcome:
            next_id = self._next_id(context, cell, brought.held.uuids())
            table.continue_ids(next_id)
            return TransferOutcome(f"the next one is {next_id}")

        def add_key() -> None:
            if noted is not None:
                table.add_key(noted)

        name, away_name = table_retirement.NAME, table_retirement.AWAY_NAME
        return [
            TransferStep(
                "drop the foreign key of pci_devices",
                lambda: table.foreign_key() is None,
                table.drop_key,
            ),
            TransferStep(f"have the table hold all {rows} rows", _never, fill),
            TransferStep(
                f"rename {away_name} to {name}",
                lambda: table.place() is _Place.THERE,
                table.bring_back,
            ),
            TransferStep(
                "have its ids go on where those of the records ended", _never, continue_ids
            ),
            TransferStep(
                "add the foreign key of pci_devices" + (f", {noted.name}" if noted else ""),
                lambda: noted is None or table.foreign_key() is not None,
                add_key,
            ),
        ]

    def to_mirror(self, context: Any, cell: str) -> TransferredRows:
        """Have the table hold what the records do, and have it count.

        A second identical call does nothing: the table counts already.

        :raises TransferRefused: the records count as before
        :raises BackendUnavailable: likewise
        """
        if self._modes.read(cell) is _Mode.MIRROR:
            return TransferredRows(0, 0)
        table = table_retirement.CellTable(context)
        before = {row["id"]: row for page in table.pages() for row in page}
        self.back(context, cell).go()
        after = {row["id"]: row for page in table.pages() for row in page}
        written = sum(before.get(number) != row for number, row in after.items())
        return TransferredRows(len(after), written)

    def prepared(self, context: Any, cell: str) -> Way:
        """Return what has the empty table there for a migration of Nova's; changes nothing.

        The key is not added. :meth:`there` takes it away again.
        """
        mode = self._modes.read(cell)
        table = table_retirement.CellTable(context)
        place = table.place()
        refusals = _of_place(place, mode)
        if not refusals and (mode is not _Mode.RETIRED or table.counts() != (0, 0)):
            if mode is not _Mode.RETIRED and place is _Place.THERE:
                # A migration finds it as it is.
                return Way(cell, (), ())
            refusals = [_HALF_WAY]
        name, away_name = table_retirement.NAME, table_retirement.AWAY_NAME
        step = TransferStep(
            f"rename {away_name} to {name}, empty and without its foreign key",
            lambda: table.place() is _Place.THERE,
            table.bring_back,
        )
        return self._way(cell_modes.Turn(cell), mode, refusals, () if refusals else (step,))

    def _noted_key(self, cell: str) -> table_retirement.ForeignKey | None:
        state = self._modes.state(cell) or {}
        return _key(state.get(KEY_FIELD, _plain(table_retirement.NOVAS_KEY)))

    def _next_id(self, context: Any, cell: str, ids: Iterable[int]) -> int:
        state = self._modes.state(cell) or {}
        highest = max(highest_id(context), *ids, 0)
        return max(int(state.get("next_id", 1)), highest + 1)

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

    With what its AUTO_INCREMENT or sequence gave: rows may have been purged.

    :raises TableMissing: there is no table of compute nodes, or there are two
    """
    return max(table_retirement.CellTable(context).given_id(), highest_named_id(context))


def highest_named_id(context: Any) -> int:
    """Return the highest id of a compute node that rows of a cell's database name, 0 of none.

    Where the table of compute nodes is away no statement names it.
    """
    highest = 0
    with table_tripwire.own_statements():
        there = set(sa.inspect(main_db.get_engine(context=context)).get_table_names())
        for table, column in _ID_COLUMNS:
            if column not in models.BASE.metadata.tables[table].c:
                continue
            for source in {table, f"shadow_{table}"} & there:
                held: sa.ColumnElement[int] = sa.column(column)
                query = sa.select(sa.func.max(held).label("id")).select_from(sa.table(source))
                [found] = nova_tables.select_main(context, query)
                highest = max(highest, int(found["id"] or 0))
    return highest


#: Of a back end that answers otherwise than it did when the table went away.
_LOST = transfer_refusals.Refusal(
    "The table was emptied, and the back end knows of no records that count: it lost them",
    (),
    "Bring the rows back out of the file that the command to retire wrote: 'nova-nodb-manage "
    "compute-nodes restore --cell UUID --from FILE'.",
)
_LOST_HALF_WAY = transfer_refusals.Refusal(
    "The table is away with rows in it, and the back end knows of no records that count: it lost "
    "them on the way",
    (),
    "If a command to retire had not emptied it yet these are all rows: write them to a file with "
    "'nova-nodb-manage compute-nodes export'. Otherwise take the file that it wrote. Either comes "
    "back by 'nova-nodb-manage compute-nodes restore --cell UUID --from FILE'.",
)
_NOT_LOST = transfer_refusals.Refusal(
    "Rows of a file are for a table that is empty or half filled, of a cell whose records are lost",
    (),
    "Leave the file out: the rows are there.",
)
#: Of rows of a table that may not be lost, or be overwritten.
_WRITTEN_TO_TABLE = transfer_refusals.Refusal(
    "The table has rows that were written later than their records: by a service that went by "
    "the table while records counted",
    (),
    "Stop that service. 'nova-nodb-manage compute-nodes restore' has the records' rows in the "
    "table again; nova-compute reports its resources anew, but do again by hand what else was "
    "changed (host mappings, deleted services).",
)
_YOUNGER_THAN_FILE = transfer_refusals.Refusal(
    "The table has rows that the file does not have, or has of an earlier time",
    (),
    "Name a younger file, which 'nova-nodb-manage compute-nodes export' writes; or stop what wrote "
    "those rows, and delete them for the file's to stand.",
)
_HALF_WAY = transfer_refusals.Refusal(
    "The table is half-way",
    (),
    "Call 'nova-nodb-manage compute-nodes retire' or 'restore' first: either goes on.",
)
_OTHERWISE_FILLED = transfer_refusals.Refusal(
    "The table does not hold what was written to it",
    (),
    "Somebody else writes it, or purges it: see that nobody does, and call this again.",
)


_WENT_ON = transfer_refusals.Refusal(
    "Compute nodes were written while the table was filled",
    (),
    "A service still runs: stop nova-api, nova-scheduler and nova-conductor on all hosts, and call "
    "this again.",
)


def _of_place(
    place: table_retirement.TablePlace,
    mode: cell_modes.NodeMode,
    *,
    is_back: bool = False,
    has_rows: bool = False,
    in_table: bool = False,
) -> list[transfer_refusals.Refusal]:
    """Say where the table is not where anything can be done with it.

    :param has_rows: whether rows of a file are there
    :param in_table: whether the table has some
    """
    if place in (_Place.BOTH, _Place.MISSING):
        reason, _, remedy = str(table_retirement.TableMissing(place.value)).partition(": ")
        return [transfer_refusals.Refusal(reason, (), remedy[:1].upper() + remedy[1:])]
    if mode is _Mode.MIRROR and place is _Place.AWAY and not (is_back and has_rows):
        return [_LOST_HALF_WAY if in_table else _LOST]
    return []


def _of_file(rows: Sequence[node_rows.Row], held: CellRecords) -> list[transfer_refusals.Refusal]:
    """Say which rows of a table would be lost if those of a file took their place."""
    lacking = transfer_refusals.of_unheld(rows, held.uuids())
    younger = transfer_refusals.of_younger(rows, held.rows, _YOUNGER_THAN_FILE)
    named = tuple(name for each in (*younger, *lacking) for name in each.rows)
    return [attrs.evolve(_YOUNGER_THAN_FILE, rows=named)] if named else []


def _refused(
    cell: str, refusals: Iterable[transfer_refusals.Refusal]
) -> transfer_refusals.TransferRefused:
    return transfer_refusals.TransferRefused(cell, [str(each) for each in refusals])


def _new_file(cell: str, directory: pathlib.Path) -> pathlib.Path:
    return row_file.free(cell, directory, timeutils.utcnow())


def _never() -> bool:
    return False


def _plain(key: table_retirement.ForeignKey | None) -> dict[str, Any] | None:
    return None if key is None else {"name": key.name, "options": dict(key.options)}


def _key(plain: Mapping[str, Any] | None) -> table_retirement.ForeignKey | None:
    return None if plain is None else table_retirement.ForeignKey(plain["name"], plain["options"])


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
