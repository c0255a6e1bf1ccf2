# SPDX-License-Identifier: Apache-2.0
"""Writing: many compare-and-sets in one transaction, in counter and in sequencer mode.

*Counter mode*:

1. *lock* the sequence row (SQLite: BEGIN IMMEDIATE), and behind the lock read
   the revisions of the batch's keys; decide every compare-and-set.
2. *upsert*: add the number of winners to the sequence, and write the winners,
   each with a version of its own, by one statement.
3. *commit*, then *reply*.

That is three exchanges with MariaDB (:mod:`.counter_statements`), no others
around them (:meth:`.database.Database.hot_writer`). Small writes go to it by one
statement that does all of it (step *send whole*), and come this way where that
wrote nothing.

Versions are thereby given out in commit order, which the feed stands on: who
sees version v sees all before it. The naive way, an auto-increment, gives
numbers before the commit; a reader that went past a late one lost 5 % of the
rows. All changes of records are made under the one lock, so two writers who
insert the same absent key need no thought, row and gap locks decide nothing
and there is nothing to deadlock on. Locking the rows first would let the lock
of the sequence begin one statement later; its length is ruled by the commit.

*Sequencer mode*, where the sequence's row is looked at, and not locked:

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

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import attrs
import sqlalchemy as sa
from oslo_log import log as logging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import (
    counter_statements,
    database,
    engines,
    epochs,
    failures,
    housekeeping,
    schema,
    sequencing,
    statements,
)
from nova_nodb_scheduler.synchronizer.drivers.support import batches

LOG = logging.getLogger(__name__)

#: Keys per transaction: above 1,000 MariaDB turns IN lists into subqueries.
MAX_BATCH_KEYS = 500

_Standing = Mapping[records.RecordKey, records.Record]


@attrs.define(eq=False)
class Writer:
    """Carries out writes on one open database, in counter mode.

    :param on_step: called with the name of each step before it is taken
    :param clock: the database's
    """

    _database: database.Database
    _epochs: epochs.Epochs
    _step: Callable[[str], None]
    _clock: housekeeping.Clock

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        """Carry out a batch in one transaction; see the contract."""
        return self._epochs.across(lambda: self._database.repeat(lambda: self._transaction(writes)))

    def _transaction(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        self._step("lock")
        won = self._write_whole(writes)
        return self._write_in_steps(writes) if won is None else won

    def _write_whole(self, writes: Sequence[records.Write]) -> list[records.WriteResult] | None:
        """Carry writes out by one statement; None where nothing was written by it."""
        known = self._epochs.known()
        if (
            not self._database.is_mysql
            or not known.epoch
            or not counter_statements.fits_one_statement(writes, self._database.statement_bytes)
        ):
            return None
        lent = self._database.connect_alive(counter_statements.allows_whole_writes)
        if lent is None:
            return None
        with contextlib.closing(lent) as connection:
            self._epochs.vouch(connection)
            until_seconds = self._clock.now_seconds() + self._database.timeout_seconds / 2
            self._step(statements.WHOLE)
            try:
                base = counter_statements.write_whole(connection, writes, known, until_seconds)
            except failures.DATABASE_ERRORS as error:
                if failures.is_not_understood(error):
                    return None
                if not failures.leaves_in_doubt(error):
                    raise
                LOG.info(
                    "A write of %(count)d records is in doubt: %(reason)s",
                    {"count": len(writes), "reason": failures.reason(error)},
                )
                # Not rolled back: that it cannot be is no answer to the write.
                connection.invalidate()
                return results_of(writes, dict.fromkeys(write.key for write in writes), {})
            self._database.give_back(connection)
        if base is None:
            return None
        written = _numbered(writes, base)
        self._epochs.note(known.epoch, base + len(writes))
        self._epochs.note_records(known.epoch, written.values())
        self._step("reply")
        return results_of(writes, written, {}, known.epoch)

    def _write_in_steps(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        keys = [write.key for write in writes]

        def begin(connection: sa.Connection) -> statements.Found:
            self._epochs.vouch(connection)
            found = counter_statements.lock(connection, keys)
            self._epochs.vouch_behind(connection)
            return found

        with self._database.hot_writer(begin) as (connection, found):
            row, standing = found.sequence, found.standing
            if row is None or not self._epochs.is_sound(row):
                raise epochs.EpochBroken
            accepted = [write for write in writes if write.wins(standing.get(write.key))]
            written = _numbered(accepted, row.version)
            lost = [key for key in standing if key not in written]
            if lost:
                condition = statements.by_keys(lost)
                rows = connection.execute(statements.select_records().where(condition))
                standing.update((record.key, record) for record in statements.to_records(rows))
            if not written:
                return results_of(writes, {}, standing)
            head = row.version + len(written)
            self._step("upsert")
            first, *others = self.statements_of(list(written.values()))
            counter_statements.put(connection, head, first)
            for rows_of_statement in others:
                statements.upsert(connection, rows_of_statement)
            self._step("commit")
            try:
                self._database.commit(connection)
            except failures.DATABASE_ERRORS as error:
                if failures.is_contention(error):
                    raise
                # The request to commit was sent: it may have been carried out.
                return results_of(writes, dict.fromkeys(written), standing)
        self._epochs.note(row.epoch, head)
        self._epochs.note_records(row.epoch, written.values())
        self._step("reply")
        return results_of(writes, written, standing, row.epoch)

    def statements_of(self, rows: Sequence[records.Record]) -> Iterator[list[records.Record]]:
        """Cut rows into statements that the server's packets hold; none for no rows."""
        limit_bytes = self._database.statement_bytes
        return batches.split(rows, None, limit_bytes, lambda row: len(row.payload))


def _numbered(
    accepted: Sequence[records.Write], version: int
) -> dict[records.RecordKey, records.Record]:
    """Return the records that writes leave behind, with the versions after one."""
    return {
        write.key: stamp(write, number, number)
        for number, write in enumerate(accepted, version + 1)
    }


def stamp(write: records.Write, revision: int, version: int) -> records.Record:
    """Return the record that a write leaves behind."""
    payload = b"" if write.deleted else bytes(write.payload)
    return records.Record(write.key, revision, version, payload, write.deleted)


def results_of(
    writes: Sequence[records.Write],
    written: Mapping[records.RecordKey, records.Record | None],
    standing: _Standing,
    epoch: str | None = None,
) -> list[records.WriteResult]:
    """Return results in the order of the writes; written as None is unknown."""
    results = []
    for write in writes:
        if write.key not in written:
            verdict, record = records.Verdict.LOST, standing.get(write.key)
        else:
            record = written[write.key]
            verdict = records.Verdict.UNKNOWN if record is None else records.Verdict.WON
        won_in = epoch if verdict is records.Verdict.WON else None
        results.append(records.WriteResult(verdict, record, won_in))
    return results


_Read = Callable[[Collection[records.RecordKey]], Iterable[records.Record]]


@attrs.define(eq=False)
class SequencedWriter(Writer):
    """Carries out writes on one open database, in sequencer mode.

    :param read: reads records, numbered
    """

    _sequencer: sequencing.Sequencer
    _read: _Read

    def _transaction(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        known = self._epochs.known()
        with self._database.connect() as connection:
            self._step("epoch")
            transaction = engines.as_writer(connection).begin()
            self._epochs.vouch(connection)
            row = statements.peek(connection)
            if row is None or not self._epochs.is_sound(row, known):
                raise epochs.EpochBroken
            self._step("lock")
            keys = [write.key for write in writes]
            standing = statements.standing(connection, keys, locked=True)
            accepted = [write for write in writes if write.wins(standing.get(write.key))]
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
                    return self._results(writes, unknown)
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
        self._epochs.note_records(row.epoch, filter(None, numbered.values()))
        return self._results(writes, numbered)

    def _put(
        self,
        connection: sa.Connection,
        written: Mapping[records.RecordKey, records.Record],
        standing: Mapping[records.RecordKey, records.Record],
        floor: int,
    ) -> None:
        new = [record for key, record in written.items() if key not in standing]
        for part in self.statements_of(new):
            statements.insert(connection, part)
        if new and statements.floor(connection) != floor:
            raise failures.Overtaken("a tombstone was collected")
        for part in self.statements_of([written[key] for key in written if key in standing]):
            statements.upsert(connection, part, revisions=True)

    def _results(
        self,
        writes: Sequence[records.Write],
        written: Mapping[records.RecordKey, records.Record | None],
    ) -> list[records.WriteResult]:
        """Return results, with what stands where a write lost."""
        lost = [write.key for write in writes if write.key not in written]
        try:
            standing = {record.key: record for record in self._read(lost)} if lost else {}
            return results_of(writes, written, standing)
        except errors.BackendUnavailable:
            if not written:
                raise
            # Behind the commit, "nothing was written" would be a lie.
            return results_of(writes, {**dict.fromkeys(lost), **written}, {})


def _next(write: records.Write, standing: records.Record | None, floor: int) -> records.Record:
    # Above the floor, too: what a restored backup holds had later revisions once.
    revision = max(floor, standing.revision if standing else 0) + 1
    return stamp(write, revision, schema.UNNUMBERED)
