# SPDX-License-Identifier: Apache-2.0
"""Whose the database is, and which epoch is in force: starts one, ends one that lost records.

*Whose it is.* The first service that opens a database with a ``cloud_name`` leaves
the name there, and every one that opens it later must have the same: hosts of two
clouds in one store would be offered to both. The name stands in a table of its
own, which outlives records that are emptied and epochs that begin anew.

*What makes a new epoch*: the sequence's row is missing (fresh or emptied
tables); the record of the last version is missing (records emptied alone), or one
has a later version (the sequence put back alone); the sequence is behind what this
process has seen of it (a restored backup, a replica that lagged when it was
promoted). The naive way, to leave that to the readers' cursors, misses a backup
whose sequence passed the cursors again before they looked.

An epoch has a *base*: its versions, and so its revisions, begin at the
database's clock in microseconds. Nobody writes a million records a second for
long, so they are above all that any former epoch has given, which the emptied
tables tell no more; and a late compare-and-set of a former epoch never matches.
So epochs are ordered by their versions, too: a process that has seen a greater
version, of whatever epoch, never adopts a smaller one (an address that goes
back to a database of before, a restored dump of an earlier epoch), but begins a
new epoch there.

*Witnesses.* A replica that was promoted lacks what was written last. Writers who
had not seen that go on, and soon its version is not behind anybody's any more: the
naive way, to look at the sequence alone, then takes it for what was seen, misses the
first of their changes and grants again what was granted. So each process remembers
the records that it saw with the highest versions. Within an epoch a record's
version never falls, and one that is gone was a tombstone, above which the floor
rose. What was put back holds some of them as they were before, unless others have
written them all since. They are looked at by one statement wherever a connection
was made anew, as a promotion makes it, and before a sequence that was found behind is
taken for sound again. A dump can be read back under connections that live on, though:
who looks all the time sees the sequence behind; who did not look for ``REST_SECONDS``
looks at the witnesses first, and behind an answer that took so long.
"""

from __future__ import annotations

import heapq
import math
import operator
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec, TypeVar

import attrs
import sqlalchemy as sa
from oslo_db import exception as db_exc
from oslo_log import log as logging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import database, schema, statements
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory

LOG = logging.getLogger(__name__)

_CLOUD = schema.cloud


def agree_on_cloud(opened: database.Database, name: str, *, may_write: bool) -> None:
    """Make sure that a database is this cloud's; one that is nobody's is made so.

    :param name: the option ``cloud_name``; empty: this process names none, and
        must not open a database that is somebody's
    :param may_write: else it is only looked
    :raises ConfigurationError: it is another cloud's, naming both
    """
    owner = _owner(opened)
    if owner is None and name and may_write:
        opened.repeat(lambda: _adopt(opened, name))
        # Of two who adopt at once, one finds the other's name.
        owner = _owner(opened)
    if owner is not None and owner != name:
        raise errors.ConfigurationError(
            "[nodb_sqlalchemy] cloud_name",
            name,
            f"{opened.name} holds the records of the cloud {owner!r}: give this cloud a "
            "database of its own in [nodb_sqlalchemy] connection, or correct cloud_name in "
            "all its services. To rename a cloud, stop them all and empty the table "
            "nodb_cloud",
        )


def _owner(opened: database.Database) -> str | None:
    found = opened.ask(
        lambda connection: connection.execute(
            sa.select(_CLOUD.c.name).where(_CLOUD.c.id == schema.CLOUD_ID)
        ).scalar_one_or_none()
    )
    return None if found is None else str(found)


def _adopt(opened: database.Database, name: str) -> None:
    try:
        with opened.writer() as connection:
            connection.execute(_CLOUD.insert().values(id=schema.CLOUD_ID, name=name))
    except db_exc.DBDuplicateEntry:
        # Another was first; whose name it is decides.
        return


_SEQUENCE = schema.sequence
#: By how much revisions may be ahead of versions, ample.
_SLACK = 1 << 20
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

#: Records that are remembered, see the module.
WITNESSES = 64
#: Who saw the sequence no later than so long ago looks at the records it saw, too.
REST_SECONDS = 2.0
#: In a connection's ``info``: that it leads to the history that was seen.
_VOUCHED = "nodb_vouched"


#: Of a record that waits for its version, which will be greater than all.
_NUMBERED_YET = 1 << 63


@attrs.frozen
class Known:
    """The epoch that a process saw last, and the highest version it ever saw."""

    epoch: str
    version: int


class EpochBroken(epoch_memory.EpochEnded):
    """The sequence cannot be gone on with; see :meth:`Epochs.look_again`."""


class Epochs(epoch_memory.EpochKeeper):
    """The epoch of one database, as one process sees it.

    :param ordering: how this process is configured to hand out versions
    :param on_step: called with the name of each step before it is taken
    """

    WHY_UNSTABLE = (
        "its tables are being emptied over and over, or it leads to a server that is behind what "
        "this process has seen (a replica that lags)"
    )

    def __init__(
        self, opened: database.Database, ordering: str, on_step: statements.Observer
    ) -> None:
        super().__init__(opened.unavailable)
        self._database = opened
        self._ordering = ordering
        self._step = on_step
        self._lock = threading.Lock()
        self._epoch = ""
        self._highest_version = 0
        #: Of the epoch: versions that records were seen at.
        self._witnesses: dict[records.RecordKey, int] = {}
        #: When the sequence was seen to go on with what was seen before.
        self._looked_at = -math.inf

    def note(self, epoch: str, version: int) -> None:
        """Remember a committed state of the sequence."""
        with self._lock:
            # Who notes a smaller one was overtaken: of this epoch, or by a new one.
            if version >= self._highest_version:
                if epoch != self._epoch:
                    self._witnesses = {}
                self._epoch, self._highest_version = epoch, version
                self._note_time()

    def note_look(self, row: statements.SequenceRow) -> None:
        """Remember that a row was read, which says of itself alone that it goes on."""
        with self._lock:
            if row.epoch == self._epoch and row.version >= self._highest_version:
                self._note_time()

    def _note_time(self) -> None:
        # Who has rested looks at the witnesses first: others may have gone on meanwhile.
        now = time.monotonic()
        if now - self._looked_at <= REST_SECONDS:
            self._looked_at = now

    def note_records(self, epoch: str, seen: Iterable[records.Record]) -> None:
        """Remember records as they were committed in an epoch, which was noted before."""
        with self._lock:
            if epoch != self._epoch:
                return
            for record in seen:
                if record.version > self._witnesses.get(record.key, 0):
                    self._witnesses[record.key] = record.version
            if len(self._witnesses) > 2 * WITNESSES:
                # Now and then, as it costs more than all the rest.
                newest = operator.itemgetter(1)
                self._witnesses = dict(
                    heapq.nlargest(WITNESSES, self._witnesses.items(), key=newest)
                )

    def vouch(self, connection: sa.Connection) -> None:
        """Make sure that a connection leads to the history that was seen.

        To be called before anything is read on it that is relied upon. Costs nothing where
        the connection is known and this client did not rest.

        :raises EpochBroken: it leads to another, or to a replica that lags
        """
        begun_at = time.monotonic()
        if connection.info.get(_VOUCHED) and begun_at - self._looked_at <= REST_SECONDS:
            return
        is_begun = connection.in_transaction()
        is_contradicted = self._is_contradicted(connection)
        if not is_begun and connection.in_transaction():
            connection.rollback()
        if is_contradicted:
            raise EpochBroken
        connection.info[_VOUCHED] = True
        with self._lock:
            self._looked_at = max(self._looked_at, begun_at)

    def vouch_behind(self, connection: sa.Connection) -> None:
        """Make sure of it once more where what was done since took long.

        :raises EpochBroken: as :meth:`vouch`
        """
        if time.monotonic() - self._looked_at > REST_SECONDS:
            self.vouch(connection)

    def ask(
        self,
        question: Callable[Concatenate[sa.Connection, _Parameters], _Result],
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> _Result:
        """Have a question answered on a connection that leads to the history that was seen.

        :param question: is given the connection first, then the other arguments; see
            :meth:`.Database.ask`
        :raises EpochBroken: see :meth:`vouch`
        """

        def vouched(connection: sa.Connection) -> _Result:
            self.vouch(connection)
            answer = question(connection, *args, **kwargs)
            self.vouch_behind(connection)
            return answer

        return self._database.ask(vouched)

    def _is_contradicted(self, connection: sa.Connection) -> bool:
        """Tell whether records stand, in the epoch that was seen, as they were before."""
        with self._lock:
            epoch, witnesses = self._epoch, dict(self._witnesses)
        if not witnesses:
            return False
        found = statements.standing(connection, witnesses)
        # Behind the records: a collection drops none without raising the floor.
        row = statements.peek(connection)
        if row is None or row.epoch != epoch:
            return False
        stand_at = {key: record.version or _NUMBERED_YET for key, record in found.items()}
        return any(stand_at.get(key, row.floor) < version for key, version in witnesses.items())

    def known(self) -> Known:
        """Return what is known now: to be taken before a row is read without a lock."""
        with self._lock:
            return Known(self._epoch, self._highest_version)

    def is_sound(self, row: statements.SequenceRow | None, known: Known | None = None) -> bool:
        """Tell whether a row that was read may be gone on with, and remember it.

        A False may be a false alarm (without ``known``: this thread was
        overtaken between its read and this call): :meth:`look_again` does
        under the lock.

        :raises BackendUnavailable: the database's ordering is another
        """
        if row is None or row.is_torn:
            return False
        self._require_ordering(row)
        known = known or self.known()
        if row.version < known.version:
            return False
        self.note(row.epoch, row.version)
        return True

    def _require_ordering(self, row: statements.SequenceRow) -> None:
        if row.ordering != self._ordering:
            raise self._database.unavailable(
                f"it is in {row.ordering} mode and this process in {self._ordering} mode: set "
                f"[nodb_sqlalchemy] ordering = {row.ordering} and restart it"
            )

    def agree_on_ordering(self) -> None:
        """Make sure that the database is in this process's mode; an empty one is made so.

        :raises ConfigurationError: it holds records in the other mode
        """
        row = self._database.ask(statements.peek)
        if row is not None and row.ordering != self._ordering:
            self._database.repeat(self._adopt)

    def _adopt(self) -> None:
        with self._database.writer() as connection:
            row = statements.lock(connection)
            if row is None or row.ordering == self._ordering:
                return
            # Who counts looks at the mode under this lock; who marks rows for
            # the sequencer does not, and could not be told in time.
            if row.ordering != schema.COUNTER or self._newest(connection):
                raise errors.ConfigurationError(
                    "[nodb_sqlalchemy] ordering",
                    self._ordering,
                    f"the records in {self._database.name} are in {row.ordering} mode: set "
                    f"ordering = {row.ordering} for every service, or carry the records into "
                    "an empty database with 'nova-nodb-manage synchronizer move'",
                )
            connection.execute(
                _SEQUENCE.update()
                .where(_SEQUENCE.c.id == schema.SEQUENCE_ID)
                .values(ordering=self._ordering)
            )

    def current(self) -> statements.SequenceRow:
        """Return a sound state of the sequence, repairing it where need be."""
        return self.across(self._look)

    def _look(self) -> statements.SequenceRow:
        row = self.ask(statements.peek)
        if row is None or not self.is_sound(row):
            raise EpochBroken
        return row

    def look_again(self) -> None:
        """Begin a new epoch if the present one is broken; safe under races."""
        row = self._database.repeat(self._repair)
        self.note(row.epoch, row.version)

    def _repair(self) -> statements.SequenceRow:
        with self._database.writer() as connection:
            row = statements.lock(connection)
            newest = self._newest(connection)
            if row is None:
                # Two who insert at once: the primary key lets one win, the
                # other repeats and finds the row.
                base = self.base_above(connection, newest)
                row = statements.SequenceRow(str(uuid.uuid4()), base, base, self._ordering)
                connection.execute(
                    _SEQUENCE.insert().values(
                        id=schema.SEQUENCE_ID,
                        epoch=row.epoch,
                        version=row.version,
                        floor=row.floor,
                        ordering=row.ordering,
                    )
                )
                cause = "its tables were empty"
            else:
                self._require_ordering(row)
                highest = self.known().version
                if row.version < highest:
                    cause = f"version {row.version} is behind {highest}: an older backup?"
                elif row.version > max(newest, row.floor):
                    cause = f"the record of version {row.version} is gone: emptied tables?"
                elif newest > row.version:
                    cause = f"version {row.version} is behind its records' {newest}: older tables?"
                elif self._is_contradicted(connection):
                    cause = (
                        "it lacks what was seen of its records, and others went on in it: a "
                        "replica that lagged when it was promoted, or an older backup?"
                    )
                else:
                    return row
                row = self.renew(connection, max(row.version, newest))
            self._step(statements.BEGIN_EPOCH)
        LOG.warning(
            "New epoch %(epoch)s on %(backend)s: %(cause)s",
            {"epoch": row.epoch, "backend": self._database.name, "cause": cause},
        )
        return row

    def base_above(self, connection: sa.Connection, version: int) -> int:
        """Return where an epoch begins to count: above a version, and all former epochs'."""
        least = max(version, self.known().version)
        base = int(statements.clock(connection) * 1e6)
        if base > least:
            return base
        # Its clock was set back. In sequencer mode a record that is written several
        # times between two numberings gets as many revisions and one version.
        return least + (_SLACK if self._ordering == schema.SEQUENCER else 0)

    def renew(self, connection: sa.Connection, version: int) -> statements.SequenceRow:
        """Write a new epoch into the locked sequence; its base is above a version."""
        base = self.base_above(connection, version)
        row = statements.SequenceRow(str(uuid.uuid4()), base, base, self._ordering)
        connection.execute(
            _SEQUENCE.update()
            .where(_SEQUENCE.c.id == schema.SEQUENCE_ID)
            .values(epoch=row.epoch, version=base, floor=base)
        )
        return row

    @staticmethod
    def _newest(connection: sa.Connection) -> int:
        statement = sa.select(sa.func.coalesce(sa.func.max(schema.record.c.version), 0))
        return int(connection.execute(statement).scalar_one())
