# SPDX-License-Identifier: Apache-2.0
"""The back end of the memory driver: records, their order, a bounded history."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

import attrs
from oslo_log import log

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.memory import faults
from nova_nodb_scheduler.synchronizer.drivers.support import driver_base, epoch_memory

LOG = log.getLogger(__name__)

#: Tombstones that one collection drops at most.
COLLECTION_LIMIT = 10_000


@attrs.frozen
class Backup:
    """Everything a hub held at some time; opaque to its callers."""

    rank: epoch_memory.Rank
    version: int
    floor: int
    least_revision: int
    held: dict[records.RecordKey, records.Record]
    deleted_at_seconds: dict[records.RecordKey, float]
    log: list[records.RecordKey]


def _new_epoch() -> str:
    return uuid.uuid4().hex


class MemoryHub:
    """What several :class:`.driver.MemorySynchronizer` share; any thread may call.

    Every method is one step under one lock, so that the order of versions is
    the order in which writes are seen.

    :param history_entries: how many log entries the feed keeps; a cursor older
        than that needs a resync
    :param clock: the back end's time, in seconds
    :param epoch_maker: gives each epoch its name
    """

    _named: ClassVar[dict[str, MemoryHub]] = {}
    _named_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        history_entries: int = 100_000,
        clock: Callable[[], float] = time.time,
        epoch_maker: Callable[[], str] = _new_epoch,
    ) -> None:
        self.faults = faults.Faults(self.wake)
        self._history_entries = history_entries
        self._clock = clock
        self._epoch_maker = epoch_maker
        self._changed = threading.Condition(threading.RLock())
        self._late: list[records.Write] = []
        self._least_revision = 0
        self._rank = epoch_memory.Rank(0, "")
        self._held: dict[records.RecordKey, records.Record] = {}
        #: Tombstones in the order of their deletion.
        self._deleted_at_seconds: dict[records.RecordKey, float] = {}
        #: log[i] is the key that version floor + 1 + i was given to.
        self._log: list[records.RecordKey] = []
        self._clear()

    @classmethod
    def named(cls, name: str, history_entries: int = 100_000) -> MemoryHub:
        """Return this process's hub of a name, made at the first call."""
        with cls._named_lock:
            if name not in cls._named:
                cls._named[name] = cls(history_entries)
            return cls._named[name]

    @classmethod
    def forget(cls, name: str) -> None:
        """Let the next call of :meth:`named` make a new hub."""
        with cls._named_lock:
            cls._named.pop(name, None)

    # --- what clients ask for ---------------------------------------------

    def head(self) -> records.Cursor:
        with self._changed:
            return records.Cursor(self._rank.name, self._version)

    def now_seconds(self) -> float:
        return self._clock()

    def read(self, keys: Collection[records.RecordKey]) -> dict[records.RecordKey, records.Record]:
        with self._changed:
            return {key: self._held[key] for key in keys if key in self._held}

    def keys(self, namespaces: Collection[str] | None) -> list[records.RecordKey]:
        """Return the keys of all live records in some order."""
        with self._changed:
            return [
                key
                for key, record in self._held.items()
                if not record.deleted and (namespaces is None or key.namespace in namespaces)
            ]

    def fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        with self._changed:
            refused = driver_base.resync_reason(cursor, self.head(), self._floor)
            if refused:
                return refused
            found: list[records.Record] = []
            first = cursor.version + 1
            for version, key in enumerate(self._log[cursor.version - self._floor :], first):
                record = self._held.get(key)
                if record is None or record.version != version:
                    continue
                if len(found) == limit:
                    return driver_base.changes_of(found, self.head(), more=True)
                found.append(record)
            return driver_base.changes_of(found, self.head(), more=False)

    def wait(
        self,
        cursor: records.Cursor,
        timeout_seconds: float,
        silent: Callable[[], bool],
        ended: Callable[[], bool],
    ) -> bool:
        """Block until the cursor is not the head, or ``ended()``, or the time-out.

        :param silent: while it is true, no news end the wait
        """

        def is_news() -> bool:
            return not silent() and self.head() != cursor

        with self._changed:
            self._changed.wait_for(lambda: ended() or is_news(), timeout_seconds)
            return is_news()

    def wake(self) -> None:
        """Let every waiter look again."""
        with self._changed:
            self._changed.notify_all()

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        """Carry out writes in one step, each by itself."""
        with self._changed:
            results = [
                records.WriteResult(records.Verdict.WON, self._commit(write))
                if write.wins(self._held.get(write.key))
                else records.WriteResult(records.Verdict.LOST, self._held.get(write.key))
                for write in writes
            ]
            self._trim()
            self._changed.notify_all()
            return results

    def collect(self, keep_seconds: float) -> contract.Collected:
        with self._changed:
            horizon = self._clock() - keep_seconds
            tombstones = 0
            floor = self._floor
            while self._deleted_at_seconds and tombstones < COLLECTION_LIMIT:
                key, deleted_at_seconds = next(iter(self._deleted_at_seconds.items()))
                if deleted_at_seconds > horizon:
                    break
                del self._deleted_at_seconds[key]
                gone = self._held.pop(key)
                floor = max(floor, gone.version)
                # One number instead of one per dropped key: a key that comes
                # back starts above every revision that was ever dropped.
                self._least_revision = max(self._least_revision, gone.revision)
                tombstones += 1
            history = self._cut(floor)
            return contract.Collected(tombstones, history, self._floor)

    def statistics(self) -> dict[str, int | float | str]:
        with self._changed:
            totals = driver_base.totals_of(self._held.values(), self.head(), self._floor)
            return {**totals, "history": len(self._log)}

    def admit(
        self,
        memory: epoch_memory.EpochMemory,
        unavailable: Callable[[str], errors.BackendUnavailable],
    ) -> None:
        """Let a client that remembers epochs in; one older than those is replaced.

        :raises BackendUnavailable: it cannot be let in yet
        """
        with self._changed:
            turn = memory.turn_to_replace(self._rank, unavailable)
            if turn is None:
                return
            LOG.warning(
                "Beginning another epoch in a memory hub: %(why)s",
                {"why": memory.why_replaced(self._rank.name)},
            )
            self._clear(memory.number_above(0), turn)
            self._changed.notify_all()
            memory.admits(self._rank)

    # --- what tests and operators do to it ----------------------------------

    def begin_epoch(self, least_number: int = 0) -> None:
        """Drop everything, as a flushed cache does."""
        with self._changed:
            self._clear(least_number)
            self._changed.notify_all()

    def backup(self) -> Backup:
        """Return a copy of everything."""
        with self._changed:
            return Backup(
                self._rank,
                self._version,
                self._floor,
                self._least_revision,
                dict(self._held),
                dict(self._deleted_at_seconds),
                list(self._log),
            )

    def restore(self, backup: Backup) -> None:
        """Put a backup back, epoch and all, as a careless operator does."""
        with self._changed:
            self._rank = backup.rank
            self._version = backup.version
            self._floor = backup.floor
            self._least_revision = backup.least_revision
            self._held = dict(backup.held)
            self._deleted_at_seconds = dict(backup.deleted_at_seconds)
            self._log = list(backup.log)
            self._changed.notify_all()

    def delay(self, writes: Sequence[records.Write]) -> None:
        """Keep writes that are still on their way."""
        with self._changed:
            self._late.extend(writes)

    def deliver_late(self) -> list[records.WriteResult]:
        """Let delayed writes arrive, each by itself; nobody is told the results."""
        with self._changed:
            late, self._late = self._late, []
            return [result for write in late for result in self.write([write])]

    # --- under the lock -----------------------------------------------------

    def _clear(self, least_number: int = 0, turns: int = 0) -> None:
        is_first = not self._rank.name
        number = max(time.time_ns(), self._rank.number + 1, least_number)
        self._rank = epoch_memory.Rank(number, self._epoch_maker(), turns)
        self._version = 0
        self._floor = 0
        # A writer that slept through the change must not find the revision it
        # remembers on another state. A hub's first epoch counts from 1, which
        # is easier to read.
        self._least_revision = 0 if is_first else number
        self._held = {}
        self._deleted_at_seconds = {}
        self._log = []

    def _commit(self, write: records.Write) -> records.Record:
        standing = self._held.get(write.key)
        self._version += 1
        self._log.append(write.key)
        record = records.Record(
            write.key,
            revision=(standing.revision if standing else self._least_revision) + 1,
            version=self._version,
            payload=b"" if write.deleted else write.payload,
            deleted=write.deleted,
        )
        self._held[write.key] = record
        self._deleted_at_seconds.pop(write.key, None)
        if write.deleted:
            self._deleted_at_seconds[write.key] = self._clock()
        return record

    def _trim(self) -> None:
        """Forget the oldest history beyond the bound."""
        self._cut(self._version - self._history_entries)

    def _cut(self, floor: int) -> int:
        """Raise the floor, never lower it; returns how many entries went."""
        entries = max(0, floor - self._floor)
        del self._log[:entries]
        self._floor += entries
        return entries
