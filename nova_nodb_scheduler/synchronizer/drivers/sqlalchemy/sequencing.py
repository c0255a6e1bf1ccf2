# SPDX-License-Identifier: Apache-2.0
"""Sequencer mode: versions are given to records after they were committed.

Writers (:mod:`.writing`) lock and change their own rows only, and leave version 0
in them. One at a time then *numbers* them, in a transaction that locks the
sequence's row:

1. *number*: lock the sequence's row.
2. Find rows of version 0 and lock them; those that somebody writes at this
   moment are skipped, and come next time.
3. *assign*: move the sequence on, give each row a version of its own, and the
   row of ``HEAD_KEY`` the last one.
4. *publish*: commit.

So versions are given out in commit order of the numberings, which is all that
the feed stands on; a cursor never skips a row, for a row gets its number when
everybody can see it. Two nodes of a Galera cluster that number at once meet
at the sequence's row, and one is rolled back: it then finds the other's work.

**Who numbers.** Whoever waits for a version: a writer does not return before
its rows are numbered (see below). The process that numbered last goes on doing
it, at most every ``INTERVAL_SECONDS`` for all of its threads; the others give
it two intervals, look, and take the duty over where their rows still wait.
Readers who see rows wait for longer number them, too: of a writer that died
between its commit and its number. There is no lease to run out.

**Which version a write has.** Not known at its commit; and a guess that is too
low lets a claim be settled by a record from before its confirm, or a scheduler
trust a view that lacks the write. So no record leaves this driver without its
number: writes wait for it, and so do reads that meet an unnumbered row (the
feed sees none). If others wrote the row again before it was numbered, the
write's version is the later state's: never too low, and what the feed brings.
If the number does not come in time the write is "unknown", although it was
committed: the caller then reads, as it must be able to anyway.
"""

from __future__ import annotations

import collections
import functools
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import (
    database,
    engines,
    epochs,
    failures,
    schema,
    statements,
)
from nova_nodb_scheduler.synchronizer.drivers.support import batches

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


#: Pause between two numberings of one process.
INTERVAL_SECONDS = 0.02
#: A reader numbers rows that waited for so long while nobody numbered any.
PATIENCE_SECONDS = 3 * INTERVAL_SECONDS
#: How many numbers a process remembers, for its threads that wait.
_REMEMBERED = 5000
_KEYS_PER_STATEMENT = 500


class Sequencer:
    """Gives committed records their versions, in turn with other processes; any thread.

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
        # One numbering at a time: those who wait find their numbers made.
        self._lock = threading.Lock()
        self._on_duty = True
        self._next_at = 0.0
        self._made_lock = threading.Lock()
        self._made_in = ""
        self._made: collections.OrderedDict[records.RecordKey, tuple[int, int]] = (
            collections.OrderedDict()
        )
        self._waiting_since: tuple[int, float] | None = None
        #: Numberings that were committed, and those rolled back for another's sake.
        self.rounds = 0
        self.conflicts = 0

    # --- for writers ---

    def settle(
        self, epoch: str, written: Mapping[records.RecordKey, int]
    ) -> dict[records.RecordKey, int]:
        """Return the versions of records that were committed; blocks until they have some.

        :param epoch: in which they were written
        :param written: the revisions they were given
        :returns: 0 for a record that is not there any more
        :raises BackendUnavailable: not known
        """
        left = dict(written)
        versions: dict[records.RecordKey, int] = {}
        deadline = time.monotonic() + self._database.timeout_seconds
        failed = False
        while left:
            try:
                with self._lock:
                    self._settle_some(epoch, left, versions)
            except errors.BackendUnavailable:
                # A numbering that was cut off says nothing of the records.
                if failed:
                    raise
                failed = True
                continue
            if left and time.monotonic() > deadline:
                raise self._database.unavailable(
                    f"{len(left)} records that were written wait for their versions"
                )
        # Others may have given them: a reader is not to go back behind what its writes were told.
        self._epochs.note(epoch, max(versions.values(), default=0))
        return versions

    def _settle_some(
        self,
        epoch: str,
        left: dict[records.RecordKey, int],
        versions: dict[records.RecordKey, int],
    ) -> None:
        self._recall(epoch, left, versions)
        if left and not self._on_duty:
            time.sleep(INTERVAL_SECONDS * random.uniform(1.0, 2.0))
            self._look(left, versions)
        if left:
            self._on_duty = self._number_in_turn()
            self._recall(epoch, left, versions)
        if left:
            # Another has numbered them, or somebody writes them again.
            waiting = len(left)
            self._look(left, versions)
            self._on_duty = self._on_duty and len(left) == waiting

    def _recall(
        self,
        epoch: str,
        left: dict[records.RecordKey, int],
        versions: dict[records.RecordKey, int],
    ) -> None:
        with self._made_lock:
            if epoch != self._made_in:
                return
            for key, revision in list(left.items()):
                made = self._made.get(key)
                if made is not None and made[0] >= revision:
                    versions[key] = made[1]
                    del left[key]

    def _look(
        self, left: dict[records.RecordKey, int], versions: dict[records.RecordKey, int]
    ) -> None:
        """Read which records were numbered by others."""
        for part in batches.split(list(left), _KEYS_PER_STATEMENT):
            found = self._database.ask(functools.partial(statements.standing, keys=part))
            for key in part:
                record = found.get(key)
                if record is None or record.revision < left[key]:
                    versions[key] = 0  # emptied tables, or an older backup
                    del left[key]
                elif record.version != schema.UNNUMBERED:
                    versions[key] = record.version
                    del left[key]

    # --- for readers ---

    def relieve(self, row: statements.SequenceRow) -> bool:
        """Number what waits although nobody does it: its writer died.

        :param row: what was read of the sequence just now
        :returns: whether something was numbered
        """
        now = time.monotonic()
        since = self._waiting_since
        if not row.unnumbered:
            self._waiting_since = None
        elif since is None or since[0] != row.version:
            self._waiting_since = (row.version, now)
        elif now - since[1] >= PATIENCE_SECONDS:
            with self._lock:
                return self._number_in_turn()
        return False

    def read(self, keys: Collection[records.RecordKey]) -> Numbered:
        """Number records and read them before anybody can write them again."""
        numbered = self._epochs.across(lambda: self._database.repeat(lambda: self._number(keys)))
        self._remember(numbered)
        return numbered

    # --- for both ---

    def _number_in_turn(self) -> bool:
        """Number what waits, when this process's turn has come; False if another did it.

        :raises BackendUnavailable: the database does not answer
        """
        time.sleep(max(0.0, self._next_at - time.monotonic()))
        self._next_at = time.monotonic() + INTERVAL_SECONDS
        try:
            with self._database.translated(leave=failures.is_contention):
                # As they are raised: contention says that another numbers at this moment.
                self._remember(self._epochs.across(lambda: self._number(None)))
        except Exception as error:
            if not failures.is_contention(error):
                raise
            self.conflicts += 1
            return False
        return True

    def _remember(self, numbered: Numbered) -> None:
        if not numbered.made:
            return
        with self._made_lock:
            self.rounds += 1
            if numbered.epoch != self._made_in:
                # The rows of another epoch are other rows.
                self._made.clear()
                self._made_in = numbered.epoch
            for key, made in numbered.made.items():
                self._made[key] = made
                self._made.move_to_end(key)
            while len(self._made) > _REMEMBERED:
                self._made.popitem(last=False)

    # --- one numbering ---

    def _number(self, keys: Collection[records.RecordKey] | None) -> Numbered:
        """Number what waits, up to ROWS_PER_ROUND rows; or number some records and read them.

        :param keys: of those, before anybody can write them again
        """
        with self._database.connect() as connection:
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
                statements.number_rows(
                    connection, {key: version for key, (_, version) in made.items()}
                )
                statements.mark_head(connection, head)
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
            query = query.with_for_update(skip_locked=_skips_locked(connection.dialect))
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
