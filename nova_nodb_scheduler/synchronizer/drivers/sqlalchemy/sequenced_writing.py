# SPDX-License-Identifier: Apache-2.0
"""Writing in sequencer mode: the sequence's row is looked at, and not locked.

1. *epoch*: read the sequence; a broken epoch is repaired first.
2. *lock* the batch's rows that are there, and decide every compare-and-set.
3. *upsert*: insert what was absent (who comes second meets the primary key,
   and begins again), replace what was locked; each with its next revision and
   without a version.
4. *commit*. On Galera this is where writers of two nodes meet, and only if
   they wrote the same record: the second is rolled back and begins again.
5. wait for the versions (:mod:`.sequencing`), then *reply*.

A revision is the former one plus one, of a record that is absent, the floor
plus one; and never less than that: an epoch begins with a floor above all former
ones. The floor is never below the revision of a collected tombstone, and
is read again behind the insert: a tombstone that was collected between the
first reading and the insert has moved it, and the write begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import (
    database,
    engines,
    epochs,
    failures,
    housekeeping,
    row_writes,
    schema,
    sequencing,
    statements,
    writing,
)

_Read = Callable[[Collection[records.RecordKey]], Mapping[records.RecordKey, records.Record]]


class SequencedWriter(writing.Writer):
    """Carries out writes on one open database, in sequencer mode.

    :param read: reads records, numbered
    """

    def __init__(
        self,
        opened: database.Database,
        epoch_keeper: epochs.Epochs,
        limits: writing.Limits,
        on_step: Callable[[str], None],
        clock: housekeeping.Clock,
        sequencer: sequencing.Sequencer,
        read: _Read,
    ) -> None:
        super().__init__(opened, epoch_keeper, limits, on_step, clock)
        self._sequencer = sequencer
        self._read = read

    def _transaction(
        self, writes: Sequence[records.Write], *, atomic: bool
    ) -> list[records.WriteResult]:
        known = self._epochs.known()
        with self._database.engine.connect() as connection:
            self._step("epoch")
            transaction = engines.as_writer(connection).begin()
            row = statements.peek(connection)
            if row is None or not self._epochs.is_sound(row, known):
                raise epochs.EpochBroken
            self._step("lock")
            keys = [write.key for write in writes]
            standing = statements.standing(connection, keys, locked=True)
            accepted = [write for write in writes if write.wins(standing.get(write.key))]
            if atomic and len(accepted) < len(writes):
                accepted = []
            written = {
                write.key: _next(write, standing.get(write.key), row.floor) for write in accepted
            }
            if written:
                self._step("upsert")
                self._put(connection, written, standing, row.floor)
                self._step("commit")
                try:
                    transaction.commit()
                except failures.DATABASE_ERRORS as error:
                    if failures.is_contention(error):
                        raise
                    # The request to commit was sent: it may have been carried out.
                    unknown = dict.fromkeys(written)
                    return writing.results_of(writes, unknown, self._lost(writes, unknown))
        try:
            versions = self._sequencer.settle(
                row.epoch, {key: record.revision for key, record in written.items()}
            )
        except errors.BackendUnavailable:
            versions = {}
        self._step("reply")
        numbered = {
            key: attrs.evolve(record, version=versions[key]) if versions.get(key) else None
            for key, record in written.items()
        }
        return writing.results_of(writes, numbered, self._lost(writes, written))

    def _put(
        self,
        connection: sa.Connection,
        written: Mapping[records.RecordKey, records.Record],
        standing: Mapping[records.RecordKey, records.Record],
        floor: int,
    ) -> None:
        new = [record for key, record in written.items() if key not in standing]
        for part in self.statements_of(new):
            row_writes.insert(connection, part)
        if new and statements.floor(connection) != floor:
            raise failures.Overtaken("a tombstone was collected")
        for part in self.statements_of([written[key] for key in written if key in standing]):
            row_writes.upsert(connection, part, revisions=True)

    def _lost(
        self,
        writes: Sequence[records.Write],
        written: Mapping[records.RecordKey, object],
    ) -> Mapping[records.RecordKey, records.Record]:
        """Return what stands where a write lost."""
        lost = [write.key for write in writes if write.key not in written]
        return self._read(lost) if lost else {}


def _next(write: records.Write, standing: records.Record | None, floor: int) -> records.Record:
    # Above the floor, too: what a restored backup holds had later revisions once.
    revision = max(floor, standing.revision if standing else 0) + 1
    return writing.stamp(write, revision, schema.UNNUMBERED)
