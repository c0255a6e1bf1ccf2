# SPDX-License-Identifier: Apache-2.0
"""Keeps the epoch honest: starts one where none is, ends one that lost records.

What makes a new epoch: the sequence's row is missing (fresh or emptied
tables); the record of the last version is missing (records emptied alone);
the sequence is behind what this process has seen of it (a restored backup,
a replica that lagged when it was promoted). The naive way, to leave that to
the readers' cursors, misses a backup whose sequence passed the cursors again
before they looked.
"""

from __future__ import annotations

import threading
import uuid

import sqlalchemy as sa
from oslo_log import log as logging

from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import database, schema, statements

LOG = logging.getLogger(__name__)

_SEQUENCE = schema.sequence


class EpochBroken(Exception):
    """The sequence cannot be gone on with; see :meth:`Epochs.repair`."""


class Epochs:
    """The epoch of one database, as one process sees it."""

    def __init__(self, opened: database.Database) -> None:
        self._database = opened
        self._lock = threading.Lock()
        self._epoch = ""
        self._highest_version = 0

    def note(self, epoch: str, version: int) -> None:
        """Remember a committed state of the sequence."""
        with self._lock:
            if epoch != self._epoch:
                self._epoch, self._highest_version = epoch, version
            else:
                self._highest_version = max(self._highest_version, version)

    def is_sound(self, row: statements.SequenceRow | None) -> bool:
        """Tell whether a row that was read may be gone on with, and remember it.

        A False may be a false alarm (this thread was overtaken between its
        read and this call): :meth:`repair` looks again under the lock.
        """
        if row is None or row.records_missing or row.version < self._highest(row.epoch):
            return False
        self.note(row.epoch, row.version)
        return True

    def current(self) -> statements.SequenceRow:
        """Return a sound state of the sequence, repairing it where need be."""
        for _attempt in range(3):
            with self._database.reader() as connection:
                row = statements.peek(connection)
            if self.is_sound(row):
                assert row is not None
                return row
            self.repair()
        raise self._database.unavailable("its tables are being emptied over and over")

    def repair(self) -> None:
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
                row = statements.SequenceRow(str(uuid.uuid4()), newest, newest)
                connection.execute(
                    _SEQUENCE.insert().values(
                        id=schema.SEQUENCE_ID,
                        epoch=row.epoch,
                        version=row.version,
                        floor=row.floor,
                    )
                )
                cause = "its tables were empty"
            else:
                highest = self._highest(row.epoch)
                if row.version < highest:
                    cause = f"version {row.version} is behind {highest}: an older backup?"
                elif row.version > max(newest, row.floor):
                    cause = f"the record of version {row.version} is gone: emptied tables?"
                else:
                    return row
                row = self._renew(connection, max(row.version, newest, highest))
        LOG.warning(
            "New epoch %(epoch)s on %(backend)s: %(cause)s",
            {"epoch": row.epoch, "backend": self._database.name, "cause": cause},
        )
        return row

    @staticmethod
    def _renew(connection: sa.Connection, version: int) -> statements.SequenceRow:
        """Write a new epoch that goes on counting, so that no revision comes twice."""
        row = statements.SequenceRow(str(uuid.uuid4()), version, version)
        connection.execute(
            _SEQUENCE.update()
            .where(_SEQUENCE.c.id == schema.SEQUENCE_ID)
            .values(epoch=row.epoch, version=version, floor=version)
        )
        return row

    @staticmethod
    def _newest(connection: sa.Connection) -> int:
        statement = sa.select(sa.func.coalesce(sa.func.max(schema.record.c.version), 0))
        return int(connection.execute(statement).scalar_one())

    def _highest(self, epoch: str) -> int:
        with self._lock:
            return self._highest_version if epoch == self._epoch else 0
