# SPDX-License-Identifier: Apache-2.0
"""The contract between this project and a synchronizer driver.

A driver keeps records in a back end, gives accepted writes one order, and
hands out what changed since a cursor. It knows nothing of Nova, of columns or
of claims. Its author extends :class:`.drivers.support.driver_base.Driver`, which
leaves less to do. :mod:`nova_nodb_scheduler.testing.conformance` is the executable
form of this contract: every driver runs it against the real engine.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import ClassVar

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records


class Feed(enum.Enum):
    """How a reader learns that there is something new."""

    PUSH = "push"
    POLL = "poll"


class ClockSource(enum.Enum):
    """Whose time :meth:`Synchronizer.now_seconds` is, by which leases end."""

    #: The one server's own.
    SERVER = "server"
    #: That of the member which answers: as good as the members agree.
    MEMBERS = "members"
    #: By which the back end stamps what is written to it: each question is a write.
    WRITE_TIMESTAMP = "write timestamp"


@attrs.frozen
class Capabilities:
    """What a driver promises; the conformance suite fails it if it does not keep it.

    :param durable: accepted writes survive a restart of the back end
    :param shared: several processes see the same records
    :param feed: whether :meth:`Synchronizer.wait` is woken by a change
    :param max_payload_bytes: largest payload that is accepted
    :param clock: whose time it tells
    """

    durable: bool
    shared: bool = True
    feed: Feed = Feed.POLL
    max_payload_bytes: int = 1_000_000
    clock: ClockSource = ClockSource.SERVER


@attrs.frozen
class SnapshotPages:
    """Everything a back end holds.

    :param cursor: taken BEFORE the first page is read: following the feed
        from it misses nothing, whatever was written meanwhile
    :param pages: live records only, in pages of bounded size, read while
        iterated; each may already be newer than the cursor. A page of one namespace may
        be a :class:`~nova_nodb_scheduler.model.record_columns.RecordColumns`, whose records are
        made whenever somebody asks for them. May raise
        BackendUnavailable, or end the iteration with
        :class:`SnapshotInterrupted`.
    """

    cursor: records.Cursor
    pages: Iterator[Sequence[records.Record]]


class SnapshotInterrupted(Exception):
    """The epoch changed while a snapshot was read: begin again."""


@attrs.frozen
class Collected:
    """What a collection removed.

    :param tombstones: tombstones dropped
    :param history: entries of the feed's log dropped, where there is one
    :param floor: cursors below this version now need a resync
    """

    tombstones: int
    history: int
    floor: int


def _go_on(_step: str) -> None:
    """Do nothing."""


class Synchronizer(abc.ABC):
    """One back end.

    Life: constructed from its options (no I/O), ``open()`` in the process
    that uses it (after any fork), any method from any thread, ``close()``.
    While no ``open()`` has succeeded, beside one that is under way, behind one
    that was refused and behind ``close()``, every other call raises
    BackendUnavailable and does nothing; a ``wait()`` and a snapshot's pages end
    with their client.
    Every method but ``close`` may raise
    :class:`nova_nodb_scheduler.errors.BackendUnavailable`; a driver translates
    its client's errors once, at its edge, and never retries for longer than
    its configured time-out (``timeout_seconds``).

    Order: versions are one total order over all records of an epoch. No write
    is carried out at a version that a cursor may have passed, however long its
    writer was held up: a reader that follows from any cursor meets it, or is
    told to resync.

    Epochs: they are ordered too, over all servers that an address ever led to.
    **A client never adopts an epoch older than one it has seen**, whether an
    address led to another server and back, old data was restored, or a replica
    was promoted: it begins another in its place, later than both, so that all
    clients agree in the end, those that begin without a memory included. Where
    that comes again and again, it pauses between two for longer each time, and
    raises BackendUnavailable meanwhile (:mod:`.epoch_memory`). The memory is
    the client's and outlasts ``close()``; what nobody alive has seen, nobody
    can tell. A revision of one epoch wins in no other.

    No write is told as won unless its epoch was in force once it had been carried
    out: one that was held up while another epoch began, were it by somebody who died
    half-way, is lost, or unknown where it may have been carried out in the epoch that
    ended. Who is granted something by a write need not ask again in which epoch.
    """

    #: Name of the driver's entry point, for messages.
    name: str
    #: Where in its protocols a client may die or be held up, in order. The
    #: fault suite kills and freezes a client at each.
    STEPS: ClassVar[tuple[str, ...]] = ()
    #: Told each of STEPS before it is taken, in the caller's thread; for tests,
    #: which block or end the process there.
    on_step: Callable[[str], None] = staticmethod(_go_on)

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What this driver, configured as it is, can do. No I/O."""

    @property
    def database_url(self) -> str | None:
        """SQLAlchemy URL of the database that the back end is, credentials included. No I/O.

        None of any other back end.
        """
        return None

    def refuse_payload(
        self, key: records.RecordKey, payload: bytes
    ) -> errors.PayloadTooLarge | None:
        """Return why a payload is not accepted; None where it is. No I/O."""
        limit_bytes = self.capabilities.max_payload_bytes
        if len(payload) <= limit_bytes:
            return None
        return errors.PayloadTooLarge(str(key), len(payload), limit_bytes)

    @abc.abstractmethod
    def open(self) -> None:
        """Connect and check the schema; idempotent.

        One that fails closes nothing for who opened the client before, or opens
        it at the same time (:mod:`.opening`).

        :raises SchemaMismatch: the schema must be migrated first
        :raises ConfigurationError: an option, or the engine's own
            configuration, rules this driver out
        """

    def open_existing(self) -> None:
        """Open for who only looks: no file or table is made or migrated; see :meth:`open`.

        A driver whose :meth:`open` makes something must override this.

        :raises StoreMissing: there is nothing to look at yet
        """
        self.open()

    @abc.abstractmethod
    def close(self) -> None:
        """Release connections; idempotent, never raises."""

    @abc.abstractmethod
    def head(self) -> records.Cursor:
        """Return the cursor behind the last accepted write.

        Starts a new epoch where the back end holds none.
        """

    @abc.abstractmethod
    def snapshot(self, namespaces: Collection[str] | None = None) -> SnapshotPages:
        """Read all live records, of some namespaces or of all."""

    @abc.abstractmethod
    def fetch(
        self, cursor: records.Cursor, limit: int = 1000
    ) -> records.Changes | records.ResyncNeeded:
        """Return what changed since a cursor, tombstones included.

        Of a record that changed several times only the latest may be given.
        A change is given only when no change before it can still appear: the
        returned cursor never skips anything. The same call again gives the
        same changes or later states of them. Does not wait.
        """

    @abc.abstractmethod
    def wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        """Block until something newer than the cursor may be there.

        :returns: False after the time-out. A poll driver may return True
            early or late by its poll interval.
        """

    @abc.abstractmethod
    def read(
        self, keys: Collection[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        """Return the current records, tombstones included; absent keys are left out.

        Linearizable: a write that was accepted before the call is seen. What no
        record may be called (:mod:`nova_nodb_scheduler.model.records`) is
        absent, and keeps nothing else from being read.
        """

    @abc.abstractmethod
    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        """Carry out compare-and-sets; results stand in the order of the writes.

        Each write wins or loses by itself: nothing above needs more than one key
        at a time. The driver batches them as it can. No key may occur twice.

        What no record may be called is answered ``REFUSED`` with the reason, in
        every driver by the same rule, and the rest is carried out.

        :raises PayloadTooLarge: before anything is sent
        :raises BackendUnavailable: nothing was written
        :raises ValueError: a key occurs twice
        """

    @abc.abstractmethod
    def now_seconds(self) -> float:
        """Return the back end's own clock, in seconds; leases expire by it.

        The same clock for all clients of a back end; never goes back by more
        than the engine's own clock does.
        """

    @abc.abstractmethod
    def collect(self, keep_seconds: float) -> Collected:
        """Drop tombstones and feed history older than that; bounded work per call.

        Safe to be called by several processes at once.
        """

    @abc.abstractmethod
    def statistics(self) -> Mapping[str, int | float | str]:
        """Return counts for `status`: records, tombstones, bytes, floor, ..."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Drop everything and begin a new epoch; only on an operator's word.

        ``nova-nodb-manage synchronizer new-epoch`` calls it.
        """
