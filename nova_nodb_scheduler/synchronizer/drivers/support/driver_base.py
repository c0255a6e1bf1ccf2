# SPDX-License-Identifier: Apache-2.0
"""The base of a driver: what opening, reading, writing and waiting are in every driver.

An author owes what only the engine can answer: ``_head``, ``_fetch``, everything that
is held, page by page, one batch of reads and one of writes; a clock (:mod:`.clocks`),
``_collect``, ``_statistics`` (:func:`totals`), and what an operator may ask for,
``_reset``. Where there is a connection, how it is made, checked and dropped.

The base makes a driver of its options, opens and closes it from any thread, refuses
calls while it is not open, refuses what no record may be called, parts calls into
batches, makes a snapshot of pages, and says what is known where the back end fails
between two batches.

While an opening checks the back end, the connection is there already. The naive way, to
serve whom it serves, writes records to a database that the check then finds to be
another cloud's. So each call of the contract asks first whether an opening has
succeeded; what is asked of the engine stands in a method of its own, with an underscore,
which the check may use.
"""

from __future__ import annotations

import abc
import collections
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import record_columns, records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.support import (
    batches,
    clocks,
    driver_options,
    epoch_memory,
    opening,
    polling,
)


class Driver(contract.Synchronizer):
    """What the entry point of a driver names.

    :param label: of the back end, for messages
    :param poll_intervals: between two looks of :meth:`_wait`, where it is not overridden
    """

    #: Of one batch, at most; None: any number, as far as the contract goes.
    WRITES_PER_BATCH: ClassVar[int | None] = 500
    #: By :meth:`size_of`; a write that is larger goes in a batch of its own.
    BYTES_PER_BATCH: ClassVar[int | None] = None
    READS_PER_BATCH: ClassVar[int | None] = 500

    #: Its option group, ``nodb_`` and its name, and the options in it.
    GROUP: ClassVar[str]
    OPTS: ClassVar[Sequence[cfg.Opt]]
    #: Makes what the driver is constructed from, given the options by their names.
    SETTINGS: ClassVar[Callable[..., Any]] = types.SimpleNamespace

    #: For :meth:`_now_seconds`, where that is not overridden.
    _clock: clocks.BackendClock

    def __init__(
        self, label: str, poll_intervals: polling.Intervals = polling.DEFAULT_INTERVALS
    ) -> None:
        self._label = label
        self._poll = polling.Poll(poll_intervals)
        self._opening = opening.Opening(self._connect, self._disconnect, self._unavailable)

    @classmethod
    def register_opts(cls, conf: cfg.ConfigOpts) -> None:
        """Register the driver's options in its group."""
        conf.register_opts(cls.OPTS, group=cls.GROUP)

    @classmethod
    def list_opts(cls) -> list[tuple[str, list[cfg.Opt]]]:
        """Return (group, options), for the sample file and the documentation."""
        return [(cls.GROUP, list(cls.OPTS))]

    @classmethod
    def from_config(cls, conf: cfg.ConfigOpts) -> Self:
        """Make a driver of its registered options; no I/O.

        :raises ConfigurationError: an option's value cannot work
        """
        names = [option.dest for option in cls.OPTS]
        return cls(cls.SETTINGS(**driver_options.read(conf, cls.GROUP, names)))

    def open(self) -> None:
        """See the contract."""
        self._opening.open(self._check)

    def close(self) -> None:
        """See the contract."""
        self._opening.close()

    def _connect(self) -> None:
        """Make what calls need, before the check; idempotent, and blocks for no I/O."""

    def _check(self) -> None:
        """Look whether what is connected can serve; see :meth:`open` for what it raises."""

    def _disconnect(self) -> None:
        """Drop what :meth:`_connect` made, if it is there; raises nothing."""

    def _unavailable(self, reason: object) -> errors.BackendUnavailable:
        """Return the error that tells of this back end's failure."""
        return errors.BackendUnavailable(self._label, str(reason) or type(reason).__name__)

    @abc.abstractmethod
    def _read_batch(self, keys: Sequence[records.RecordKey]) -> Iterable[records.Record | None]:
        """Read some records, as :meth:`read` does, in any order, tombstones included.

        :param keys: sound, and each stands once; where a record is absent there may be a
            None in what is returned, or nothing
        """

    @abc.abstractmethod
    def _write_batch(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        """Carry out some writes, as :meth:`write` does; their names and payloads are sound.

        Each wins or loses by itself, whatever becomes of the others. An
        outcome that is not known is answered UNKNOWN, never tried again.

        :raises BackendUnavailable: nothing of the batch was written
        :raises Interrupted: see :class:`.batches.Interrupted`
        """

    @abc.abstractmethod
    def _pages(
        self, cursor: records.Cursor, namespaces: Collection[str] | None
    ) -> Iterable[Sequence[records.Record]]:
        """Read everything that is held, in pages of bounded size, read while iterated.

        Each record as it stands at the cursor or later, for all that is written
        meanwhile. Tombstones, and records of other namespaces, may be among them.
        Where the epoch ends meanwhile, what is read does not matter any more.

        :param cursor: what :meth:`_snapshot_cursor` returned just before
        :param namespaces: which are wanted; None: all
        :raises EpochEnded: see :mod:`.epoch_memory`
        """

    @abc.abstractmethod
    def _head(self) -> records.Cursor:
        """Return the head, as :meth:`head` does."""

    @abc.abstractmethod
    def _fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        """Return what changed, as :meth:`fetch` does."""

    @abc.abstractmethod
    def _collect(self, keep_seconds: float) -> contract.Collected:
        """Drop what is old, as :meth:`collect` does."""

    @abc.abstractmethod
    def _statistics(self) -> Mapping[str, int | float | str]:
        """Return counts, as :meth:`statistics` does."""

    @abc.abstractmethod
    def _reset(self) -> None:
        """Begin a new epoch, as :meth:`reset` does."""

    def _snapshot_cursor(self) -> records.Cursor:
        """Return the cursor that a snapshot begins at."""
        return self._head()

    def _wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        """Wait, as :meth:`wait` does, until the client is closed at the latest.

        Asks for the head, as seldom as :mod:`.polling` allows.
        """
        has_ended = self._poll.wait(
            lambda: not self._opening.is_open or self._has_news(cursor), timeout_seconds
        )
        return has_ended and self._opening.is_open

    def _has_news(self, cursor: records.Cursor) -> bool:
        """Say whether something is newer than a cursor, for :meth:`_wait`."""
        return self._head() != cursor

    def _now_seconds(self) -> float:
        """Return the time, as :meth:`now_seconds` does."""
        return self._clock.now_seconds()

    def head(self) -> records.Cursor:
        """See the contract."""
        self._opening.require()
        return self._head()

    def fetch(
        self, cursor: records.Cursor, limit: int = 1000
    ) -> records.Changes | records.ResyncNeeded:
        """See the contract."""
        self._opening.require()
        return self._fetch(cursor, limit)

    def wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        """See the contract."""
        self._opening.require()
        return self._wait(cursor, timeout_seconds)

    def now_seconds(self) -> float:
        """See the contract."""
        self._opening.require()
        return self._now_seconds()

    def collect(self, keep_seconds: float) -> contract.Collected:
        """See the contract."""
        self._opening.require()
        return self._collect(keep_seconds)

    def statistics(self) -> Mapping[str, int | float | str]:
        """See the contract."""
        self._opening.require()
        return self._statistics()

    def reset(self) -> None:
        """See the contract."""
        self._opening.require()
        self._reset()

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        """See the contract."""
        self._opening.require()
        cursor = self._snapshot_cursor()
        return contract.SnapshotPages(cursor, self._live_pages(cursor, namespaces))

    def _live_pages(
        self, cursor: records.Cursor, namespaces: Collection[str] | None
    ) -> Iterator[Sequence[records.Record]]:
        try:
            for page in self._pages(cursor, namespaces):
                wanted = _wanted(page, namespaces)
                if wanted:
                    yield wanted
                    # It may have been closed since.
                    self._opening.require()
        except epoch_memory.EpochEnded as error:
            raise contract.SnapshotInterrupted(str(error)) from error
        if self.head().epoch != cursor.epoch:
            raise contract.SnapshotInterrupted(f"epoch {cursor.epoch} ended")

    def size_of(self, write: records.Write) -> int:
        """Return what a write counts of BYTES_PER_BATCH."""
        return 0 if write.deleted else len(write.payload)

    def read(
        self, keys: Collection[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        """See the contract; nothing stands under a name that no record may have.

        Batches are of one epoch each. Where one that was left never comes back, all of them
        are of the same if it is in force before the first and behind the last.
        """
        self._opening.require()
        sound = [key for key in dict.fromkeys(keys) if key.fault is None]
        parts = list(batches.split(sound, self.READS_PER_BATCH))
        if len(parts) < 2:
            return self._read_parts(parts)
        for _ in range(epoch_memory.ATTEMPTS):
            epoch = self._head().epoch
            found = self._read_parts(parts)
            if self._head().epoch == epoch:
                return found
        raise self._unavailable(epoch_memory.UNSTABLE)

    def _read_parts(
        self, parts: Iterable[Sequence[records.RecordKey]]
    ) -> dict[records.RecordKey, records.Record]:
        return {
            record.key: record
            for part in parts
            for record in self._read_batch(part)
            if record is not None
        }

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        """See the contract."""
        self._opening.require()
        if len({write.key for write in writes}) != len(writes):
            raise ValueError("a key occurs twice in one call of write()")
        limit_bytes = self.capabilities.max_payload_bytes
        for write in writes:
            if not write.deleted and len(write.payload) > limit_bytes:
                raise errors.PayloadTooLarge(str(write.key), len(write.payload), limit_bytes)
        refused = {
            place: records.WriteResult(records.Verdict.REFUSED, reason=fault)
            for place, each in enumerate(writes)
            if (fault := each.key.fault) is not None
        }
        sound = [each for place, each in enumerate(writes) if place not in refused]
        sent = iter(self._write_in_batches(sound))
        return [refused[place] if place in refused else next(sent) for place in range(len(writes))]

    def _write_in_batches(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        results: list[records.WriteResult] = []
        for batch in batches.split(
            writes, self.WRITES_PER_BATCH, self.BYTES_PER_BATCH, self.size_of
        ):
            try:
                results += self._write_batch(batch)
            except batches.Interrupted as interrupted:
                results += interrupted.results
                break
            except errors.BackendUnavailable:
                if not batches.may_have_written(results):
                    raise
                break
        # An earlier batch was written, so "nothing was" would be a lie; of the rest
        # it is unknown, which makes the caller look.
        return results + [batches.UNKNOWN] * (len(writes) - len(results))


def _wanted(
    page: Sequence[records.Record], namespaces: Collection[str] | None
) -> Sequence[records.Record]:
    """Return what of a page a snapshot of some namespaces holds."""
    if isinstance(page, record_columns.RecordColumns):
        return page if namespaces is None or page.namespace in namespaces else ()
    return [
        record
        for record in page
        if not record.deleted and (namespaces is None or record.key.namespace in namespaces)
    ]


def resync_reason(
    cursor: records.Cursor, head: records.Cursor, floor: int
) -> records.ResyncNeeded | None:
    """Return why the feed cannot go on from a cursor; None where it can.

    :param head: behind the last accepted write
    :param floor: cursors below it miss what was dropped
    """
    reason = records.ResyncReason
    if cursor.epoch != head.epoch:
        return records.ResyncNeeded(reason.EPOCH_CHANGED, f"the epoch is {head.epoch}")
    if cursor.version > head.version:
        return records.ResyncNeeded(reason.HEAD_BEHIND_CURSOR, f"the head is {head.version}")
    if cursor.version < floor:
        return records.ResyncNeeded(reason.HISTORY_TRUNCATED, f"the floor is {floor}")
    return None


def changes_of(
    found: Sequence[records.Record], head: records.Cursor, *, more: bool
) -> records.Changes:
    """Return what a fetch found: all up to the head, or what comes next.

    :param more: whether there is more than was found
    """
    end = found[-1].version if more else head.version
    return records.Changes(tuple(found), records.Cursor(head.epoch, end), more)


def totals(
    head: records.Cursor, floor: int, live: int, dead: int, size_bytes: int
) -> dict[str, int | float | str]:
    """Return what every driver's ``statistics`` say, by the names that commands look for.

    :param live: records
    :param dead: tombstones
    :param size_bytes: of all that is held, as the back end counts it
    """
    return {
        "records": live,
        "tombstones": dead,
        "bytes": size_bytes,
        "floor": floor,
        "version": head.version,
        "epoch": head.epoch,
    }


def totals_of(
    held: Iterable[records.Record], head: records.Cursor, floor: int
) -> dict[str, int | float | str]:
    """Count records and tombstones that are at hand; see :func:`totals`."""
    counted = collections.Counter[bool]()
    size_bytes = 0
    for record in held:
        counted[record.deleted] += 1
        size_bytes += len(record.payload)
    return totals(head, floor, counted[False], counted[True], size_bytes)
