# SPDX-License-Identifier: Apache-2.0
"""Keeping house: collecting tombstones, starting over, counting, telling the time."""

from __future__ import annotations

import time
from collections.abc import Mapping

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import database, epochs, schema, statements
from nova_nodb_scheduler.synchronizer.drivers.support import clocks, driver_base

#: Rows one transaction may delete: it holds all writers up.
ROWS_PER_TRANSACTION = 500
#: By less, what was told does not run back where the database's clock does: it stands still.
_CLOCK_JITTER_SECONDS = 0.5

_RECORD = schema.record
_SEQUENCE = schema.sequence


class Clock(clocks.BackendClock):
    """The database's clock, asked once a second; safe for several threads.

    Its answers are exact, so that each which contradicts the offset is followed: where
    some are let pass, one scheduler ends leases earlier than the others for good.
    """

    def __init__(self, opened: database.Database) -> None:
        super().__init__(self._compare, opened.name, slack_seconds=0.0)
        self._database = opened
        self._told = float("-inf")

    def now_seconds(self) -> float:
        now = super().now_seconds()
        with self._lock:
            if 0 < self._told - now < _CLOCK_JITTER_SECONDS:
                now = self._told
            self._told = now
            return now

    def _compare(self) -> None:
        self.note(*self._database.ask(_ask_time))


def _ask_time(connection: sa.Connection) -> tuple[float, float, float, float]:
    """Return what :meth:`.clocks.BackendClock.note` takes."""
    sent_at = time.monotonic()
    seconds = statements.clock(connection)
    return seconds, seconds, sent_at, time.monotonic()


@attrs.define(eq=False)
class Housekeeper:
    """Looks after one open database.

    :param on_step: called with the name of each step before it is taken
    """

    _database: database.Database
    _epochs: epochs.Epochs
    _step: statements.Observer

    def collect(self, keep_seconds: float) -> contract.Collected:
        """See the contract; at most ROWS_PER_TRANSACTION tombstones per call."""
        self._epochs.current()
        return self._database.repeat(lambda: self._collect(keep_seconds))

    def _collect(self, keep_seconds: float) -> contract.Collected:
        with self._database.writer() as connection:
            row = statements.lock(connection)
            if row is None:
                return contract.Collected(0, 0, 0)
            revision = statements.REVISION
            query = (
                sa.select(_RECORD.c.namespace, _RECORD.c.record_key, _RECORD.c.version, revision)
                .where(_RECORD.c.deleted_at <= statements.clock_of(connection) - keep_seconds)
                .where(_RECORD.c.version != schema.UNNUMBERED)
                .order_by(_RECORD.c.deleted_at)
                .limit(ROWS_PER_TRANSACTION)
            )
            found = connection.execute(query).all()
            if not found:
                return contract.Collected(0, 0, row.floor)
            # Not below a revision either: in sequencer mode records that are
            # created again go on counting from the floor.
            floor = max(row.floor, *(max(version, given) for _, _, version, given in found))
            # The floor in the same transaction: no reader sees the tombstones
            # gone and an old floor.
            connection.execute(
                _SEQUENCE.update().where(_SEQUENCE.c.id == schema.SEQUENCE_ID).values(floor=floor)
            )
            if floor > row.version:
                if not statements.advance(connection, floor):
                    raise self._database.unavailable("its tables were emptied")
                statements.mark_head(connection, floor)
            keys = [records.RecordKey(namespace, name) for namespace, name, _, _ in found]
            # In sequencer mode one of them may be alive again by now.
            gone = connection.execute(
                _RECORD.delete()
                .where(statements.by_keys(keys))
                .where(_RECORD.c.deleted_at.is_not(None))
                .where(_RECORD.c.version != schema.UNNUMBERED)
            ).rowcount
            self._step(statements.COLLECT)
        self._epochs.note(row.epoch, max(row.version, floor))
        return contract.Collected(gone, 0, floor)

    def reset(self) -> None:
        """See the contract.

        Records go in bounded transactions, the last of which begins the epoch:
        if this is interrupted, the readers' sweep finds what is missing, and
        repeating it completes it.
        """
        self._epochs.current()
        while not self._database.repeat(self._reset_some):
            pass

    def _reset_some(self) -> bool:
        with self._database.writer() as connection:
            row = statements.lock(connection)
            query = sa.select(_RECORD.c.namespace, _RECORD.c.record_key).order_by(_RECORD.c.version)
            found = connection.execute(query.limit(ROWS_PER_TRANSACTION)).all()
            keys = [records.RecordKey(namespace, name) for namespace, name in found]
            connection.execute(_RECORD.delete().where(statements.by_keys(keys)))
            self._step(statements.RESET)
            if len(found) == ROWS_PER_TRANSACTION or row is None:
                return row is None
            self._epochs.renew(connection, row.version)
        return True

    def statistics(self) -> Mapping[str, int | float | str]:
        """See the contract; reads every row, so it is for people, not for loops."""
        per_namespace = self._database.ask(statements.counts)
        row = self._epochs.current()
        live, dead, size_bytes = (
            sum(int(counted[total] or 0) for counted in per_namespace)
            for total in ("records", "tombstones", "bytes")
        )
        result = driver_base.totals(row.cursor, row.floor, live, dead, size_bytes)
        result |= {"backend": self._database.name, "head": row.version}
        for counted in per_namespace:
            for total in ("records", "tombstones"):
                result[f"{total}.{counted['namespace']}"] = int(counted[total])
        return result
