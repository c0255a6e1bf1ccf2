# SPDX-License-Identifier: Apache-2.0
"""One numbering: the transaction that gives committed rows their versions.

1. *number*: lock the sequence's row.
2. Find rows of version 0 and lock them; those that somebody writes at this
   moment are skipped, and come next time.
3. *assign*: move the sequence on, give each row a version of its own, and the
   row of ``HEAD_KEY`` the last one.
4. *publish*: commit.

When and by whom it is done is told in :mod:`.sequencing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import (
    database,
    engines,
    epochs,
    row_writes,
    schema,
    statements,
)

#: Rows that one numbering takes.
ROWS_PER_ROUND = 500

_RECORD = schema.record


@attrs.frozen
class Numbered:
    """What a numbering did.

    :param made: revision and version by key
    :param read: the records it was asked to read
    """

    epoch: str
    made: Mapping[records.RecordKey, tuple[int, int]]
    read: tuple[records.Record, ...] = ()


class Numbering:
    """Numbers rows of one open database; any thread may call it.

    :param on_step: called with the name of each step before it is taken
    """

    def __init__(
        self,
        opened: database.Database,
        epoch_keeper: epochs.Epochs,
        on_step: Callable[[str], None],
    ) -> None:
        self._database = opened
        self._epochs = epoch_keeper
        self._step = on_step
        self._skip_locked = _skips_locked(opened.engine.dialect)

    def number(self) -> Numbered:
        """Number what waits, up to ROWS_PER_ROUND rows.

        Database errors are raised as they are: contention among them says
        that another numbers at this moment.
        """
        return self._mending(lambda: self._number(None))

    def number_and_read(self, keys: Collection[records.RecordKey]) -> Numbered:
        """Number records and read them, before anybody can write them again.

        :raises BackendUnavailable: it did not come through
        """
        return self._mending(lambda: self._database.repeat(lambda: self._number(keys)))

    def _mending(self, work: Callable[[], Numbered]) -> Numbered:
        for _attempt in range(3):
            try:
                return work()
            except epochs.EpochBroken:
                self._epochs.repair()
        raise self._database.unavailable("its tables are being emptied over and over")

    def _number(self, keys: Collection[records.RecordKey] | None) -> Numbered:
        with self._database.engine.connect() as connection:
            self._step("number")
            transaction = engines.as_writer(connection).begin()
            row = statements.lock(connection)
            if row is None or not self._epochs.is_sound(row):
                raise epochs.EpochBroken
            made = {
                key: (revision, row.version + place)
                for place, (key, revision) in enumerate(self._lock_waiting(connection, keys), 1)
            }
            head = row.version
            if made:
                self._step("assign")
                head = row.version + len(made) + 1
                if not statements.advance(connection, head):
                    raise epochs.EpochBroken
                row_writes.number(connection, {key: version for key, (_, version) in made.items()})
                row_writes.mark_head(connection, head)
            read: tuple[records.Record, ...] = ()
            if keys is not None:
                query = statements.select_records().where(statements.by_keys(keys))
                read = tuple(statements.to_records(connection.execute(query)))
            if made:
                self._step("publish")
                transaction.commit()
        self._epochs.note(row.epoch, head)
        return Numbered(row.epoch, made, read)

    def _lock_waiting(
        self, connection: sa.Connection, keys: Collection[records.RecordKey] | None
    ) -> Iterable[tuple[records.RecordKey, int]]:
        query = (
            sa.select(_RECORD.c.namespace, _RECORD.c.record_key, statements.REVISION)
            .where(_RECORD.c.version == schema.UNNUMBERED)
            .limit(ROWS_PER_ROUND)
        )
        if keys is None:
            query = query.with_for_update(skip_locked=self._skip_locked)
        else:
            query = query.where(statements.by_keys(keys)).with_for_update()
        return [
            (records.RecordKey(namespace, name), revision)
            for namespace, name, revision in connection.execute(query)
        ]


def _skips_locked(dialect: sa.Dialect) -> bool:
    """Tell whether a database knows SKIP LOCKED; without it a numbering waits for writers."""
    version = getattr(dialect, "server_version_info", None) or ()
    if dialect.name != "mysql":
        return True
    return tuple(version) >= ((10, 6) if getattr(dialect, "is_mariadb", False) else (8,))
