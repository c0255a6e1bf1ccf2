# SPDX-License-Identifier: Apache-2.0
"""Reading: the feed, snapshots, single records, and waiting for a change.

Every reader asks for records FIRST and for the sequence's row SECOND, on one
connection, without a transaction around them. If the second still shows the
reader's epoch and a floor not above its cursor, the first was of that epoch and
complete too: neither ever goes back. The other way round a collection or a new
epoch could slip in between. A snapshot does so at each page: its address may lead
to another database for one of them, and back before the last. That one may be of
the same epoch, and lag: what it lacks up to the snapshot's cursor the feed does
not bring, so the version is looked at too.

In sequencer mode a row without a version is none of the feed's: it gets one
that is greater than all cursors. Reads and snapshots wait for it (see
:mod:`.sequencing`). The row of ``HEAD_KEY`` comes with the feed and moves the
cursor on: it is read by the same statement, so nothing up to it is missing.

Single records are read by one statement with the sequence's row. Where that is
behind what this client has seen of it, they may be too (a replica's that lags, a
backup's, another server's), and nothing of them is handed out. Records that wait
for their version are read again; all of a batch are of one epoch.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler.model import record_columns, records
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import (
    database,
    engines,
    epochs,
    schema,
    sequencing,
    statements,
)
from nova_nodb_scheduler.synchronizer.drivers.support import (
    batches,
    driver_base,
    polling,
    read_ahead,
)

PAGE_RECORDS = 1000
#: By hand, see :func:`.statements.peek`.
_CHANGED = "SELECT {columns} FROM nodb_record WHERE version > {mark} ORDER BY version LIMIT {mark}"
_COLUMNS = "namespace, record_key, COALESCE(revision, version), version, deleted_at, payload"
_TWO_COLUMNS = statements.TEXT_COLUMN.format("") + ", payload"

_RECORD = schema.record
_HEAD = records.RecordKey(*schema.HEAD_KEY)
#: How often a reader looks again at rows that wait for their version.
_LOOKS = 2

_Result = TypeVar("_Result")


@attrs.define(eq=False)
class Reader:
    """Reads from one open database."""

    _database: database.Database
    _epochs: epochs.Epochs
    _poll: polling.Poll
    _sequencer: sequencing.Sequencer | None = None

    def fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        """See the contract; two statements."""
        return self._epochs.across(lambda: self._fetch(cursor, limit))

    def _fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        known = self._epochs.known()
        changed, row = self._epochs.ask(
            lambda connection: (
                _changed(connection, cursor.version, limit),
                statements.peek(connection),
            )
        )
        self._poll.fetched(bool(changed))
        row = self._sound(row, known)
        if self._sequencer is not None:
            self._sequencer.relieve(row)
        refused = driver_base.resync_reason(cursor, row.cursor, row.floor)
        if refused is not None:
            return refused
        if not changed:
            return records.Changes((), cursor)
        last = changed[-1].version
        more = len(changed) >= limit and last < row.version
        fed = tuple(record for record in changed if record.key != _HEAD)
        self._epochs.note_records(row.epoch, fed[-epochs.WITNESSES :])
        return records.Changes(fed, records.Cursor(cursor.epoch, last), more)

    def has_news(self, cursor: records.Cursor) -> bool:
        """Look whether something newer may be there, by one statement."""
        row = self._database.ask(statements.peek)
        if row is not None:
            self._epochs.note_look(row)
        if self._sequencer is not None and row is not None and self._sequencer.relieve(row):
            return True
        return (
            row is None or row.is_torn or (row.epoch, row.version) != (cursor.epoch, cursor.version)
        )

    def read(self, keys: Collection[records.RecordKey]) -> list[records.Record]:
        """Read a batch; see the contract."""

        def read() -> list[records.Record]:
            epoch, found = self._select(keys)
            return self._numbered(epoch, found)

        return self._epochs.across(read)

    def _select(self, keys: Collection[records.RecordKey]) -> tuple[str, list[records.Record]]:
        """Return the epoch in force, and the records that stand under some keys.

        :raises EpochBroken: see :meth:`_sound`
        """
        known = self._epochs.known()
        found = self._epochs.ask(statements.beside_sequence, keys)
        epoch, standing = self._sound(found.sequence, known).epoch, list(found.standing.values())
        self._epochs.note_records(epoch, standing)
        return epoch, standing

    def _sound(
        self, row: statements.SequenceRow | None, known: epochs.Known
    ) -> statements.SequenceRow:
        """Return the sequence's row that was read with something else.

        :param known: from before that
        :raises EpochBroken: neither may be gone on with
        """
        if row is None or not self._epochs.is_sound(row, known):
            raise epochs.EpochBroken
        return row

    def _numbered(self, epoch: str, found: list[records.Record]) -> list[records.Record]:
        """Replace records that have no version yet by what they are when they do.

        :param epoch: of these
        :raises EpochBroken: another one has begun since, or see :meth:`_sound`
        """
        waiting = _waiting(found)
        if not waiting or self._sequencer is None:
            return found
        numbered = [record for record in found if record.version != schema.UNNUMBERED]
        for _ in range(_LOOKS):
            # Their writer numbers them; to do it beside it would only disturb.
            time.sleep(sequencing.INTERVAL_SECONDS * random.uniform(0.5, 1.0))
            epoch_now, again = self._select(waiting)
            _require_same(epoch, epoch_now)
            numbered += (record for record in again if record.version != schema.UNNUMBERED)
            waiting = _waiting(again)
            if not waiting:
                break
        for part in batches.split(waiting, sequencing.ROWS_PER_ROUND):
            made = self._sequencer.read(part)
            _require_same(epoch, made.epoch)
            numbered += made.read
        return numbered

    def pages(
        self, cursor: records.Cursor, namespaces: Collection[str] | None
    ) -> Iterator[Sequence[records.Record]]:
        """Read all live records by key, each page in a short transaction of its own.

        On MariaDB and MySQL the next one is read meanwhile: two pages are held at a time.

        :raises EpochBroken: a page was not of the cursor's epoch, or from before the cursor
        """
        pages = self._pages(cursor, namespaces)
        if not self._database.is_mysql:
            # SQLite's client lets other threads run at each row: two of them wait for one
            # another more than they gain.
            return pages
        return read_ahead.pages_ahead(pages, "nodb-sql-snapshot")

    def _pages(
        self, cursor: records.Cursor, namespaces: Collection[str] | None
    ) -> Iterator[Sequence[records.Record]]:
        wanted = None if namespaces is None else sorted(set(namespaces))
        namespace = self._next_namespace(cursor, "", wanted)
        while namespace is not None:
            last_key = ""
            while True:
                page = self._page(cursor, namespace, last_key)
                is_numbered = schema.UNNUMBERED not in page.versions
                yield page if is_numbered else self._numbered(cursor.epoch, list(page))
                if len(page) < PAGE_RECORDS:
                    break
                last_key = page.keys[-1]
            namespace = self._next_namespace(cursor, namespace, wanted)

    def _next_namespace(
        self, cursor: records.Cursor, after: str, wanted: list[str] | None
    ) -> str | None:
        if wanted is not None:
            return next((name for name in wanted if name > after), None)
        # One look-up by primary key; DISTINCT would read the whole index.
        query = sa.select(sa.func.min(_RECORD.c.namespace, type_=_RECORD.c.namespace.type)).where(
            _RECORD.c.namespace > after
        )
        found: str | None = self._ask_behind(
            cursor, lambda connection: connection.execute(query).scalar_one()
        )
        return found

    def _page(
        self, cursor: records.Cursor, namespace: str, after: str
    ) -> record_columns.RecordColumns:
        return self._ask_behind(
            cursor,
            lambda connection: statements.page(connection, namespace, after, PAGE_RECORDS),
        )

    def _ask_behind(
        self, cursor: records.Cursor, question: Callable[[sa.Connection], _Result]
    ) -> _Result:
        """Answer a question of a cursor's epoch, by what stands there at the cursor or later.

        :raises EpochBroken: the answer was of another, or from before: a replica's that lags
        """
        found, row = self._epochs.ask(
            lambda connection: (question(connection), statements.peek(connection))
        )
        if row is None or row.epoch != cursor.epoch or row.is_torn:
            raise epochs.EpochBroken(f"epoch {cursor.epoch} is not in force")
        if row.version < cursor.version:
            raise epochs.EpochBroken(f"version {row.version} is behind {cursor.version}")
        return found


def _require_same(epoch: str, now: str) -> None:
    """Raise EpochBroken where another epoch is in force than before."""
    if now != epoch:
        raise epochs.EpochBroken(f"epoch {epoch} is not in force")


def _changed(connection: sa.Connection, version: int, limit: int) -> list[records.Record]:
    """Read the records with the next versions after one, in their order."""
    is_mysql = connection.dialect.name == "mysql"
    columns = _TWO_COLUMNS if is_mysql else _COLUMNS
    text = _CHANGED.format(columns=columns, mark=statements.mark(connection))
    if is_mysql:
        found = engines.rows(connection, text, (version, limit))
        return [statements.of_text(own, payload) for own, payload in found]
    return statements.to_records(connection.exec_driver_sql(text, (version, limit)))


def _waiting(found: Iterable[records.Record]) -> list[records.RecordKey]:
    return [record.key for record in found if record.version == schema.UNNUMBERED]
