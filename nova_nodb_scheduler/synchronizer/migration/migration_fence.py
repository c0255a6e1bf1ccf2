# SPDX-License-Identifier: Apache-2.0
"""The fence between two back ends: a marker, and who looks at it.

A move must never let two back ends grant the same capacity, nor lose what a
writer was told is written. So at each moment at most one of them takes writes:
a record in each says whether it is being filled (*incoming*), serves (*live*,
or no record at all) or was left (*moved*). Each process looks at it through
:class:`FencedSynchronizer`:

- at every opening and snapshot, in every batch of the feed, and
- **after every write**, unless it looked less than LOOK_SECONDS ago. The naive
  way, to look before it, lets a writer that pauses in between write what nobody
  carries over. This way the writer writes and then looks, the mover marks,
  waits for longer than LOOK_SECONDS and then reads: one of the two sees the
  other. A write behind that is answered "unknown"; its writer reads to
  settle it, and is told that the back end was left. A claim it cannot settle
  is granted to nobody, and a report stays queued.

The seconds are those of a clock that goes on while a process, or its machine,
sleeps. In a virtual machine that was paused from outside it may stand still:
what was paused in mid-write, for the whole of a move, may be told of one write
more that nobody carries. Its next look ends that.

What is accepted in time stands in the feed before the mover's last reading of
the head; it reads the feed up to there (:mod:`.migrator`).
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import record_columns, records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.support import opening

#: Of no declared namespace: stores never see it.
NAMESPACE = "moves"
MARKER = records.RecordKey(NAMESPACE, "marker")
_ROUNDS = 8
#: How long a look at the marker holds good for writes.
LOOK_SECONDS = 0.5


class FencePlace(enum.Enum):
    """What a back end is in a move."""

    INCOMING = "incoming"
    LIVE = "live"
    MOVED = "moved"


@attrs.frozen
class FenceMark:
    """The marker of one back end.

    :param move: id of the move it belongs to
    :param other: name of the other back end's driver
    :param at: when it was set, by this back end's clock
    """

    place: FencePlace
    move: str
    other: str
    at: float = 0.0

    def to_payload(self) -> bytes:
        """Return the marker's bytes."""
        return json.dumps(
            {"place": self.place.value, "move": self.move, "other": self.other, "at": self.at}
        ).encode()


def mark_of(record: records.Record | None) -> FenceMark | None:
    """Read a marker; None where there is none.

    :raises BackendUnavailable: nobody can read it here, so that nobody knows what may be written
    """
    if record is None or record.deleted:
        return None
    try:
        state = json.loads(record.payload)
        return FenceMark(FencePlace(state["place"]), state["move"], state["other"], state["at"])
    except (ValueError, KeyError, TypeError) as error:
        raise errors.BackendUnavailable(
            f"behind {MARKER}",
            f"its marker of a move cannot be read ({type(error).__name__}: {error}): run one "
            "release on all services, that which began the move",
        ) from error


def read_mark(synchronizer: contract.Synchronizer) -> FenceMark | None:
    """Read the marker of a back end as it stands now; see :func:`mark_of`."""
    return mark_of(synchronizer.read([MARKER]).get(MARKER))


def set_mark(synchronizer: contract.Synchronizer, place: FencePlace, move: str, other: str) -> int:
    """Set a back end's marker; returns the version by which it stands.

    :raises BackendUnavailable: it may or may not stand
    """
    mark = FenceMark(place, move, other, synchronizer.now_seconds())
    for _ in range(_ROUNDS):
        standing = synchronizer.read([MARKER]).get(MARKER)
        former = mark_of(standing)
        if standing is not None and former is not None:
            if (former.place, former.move) == (place, move):
                return standing.version
        revision = 0 if standing is None or standing.deleted else standing.revision
        [result] = synchronizer.write([records.Write(MARKER, revision, mark.to_payload())])
        if result.won and result.record is not None:
            return result.record.version
    raise errors.BackendUnavailable(synchronizer.name, "its marker cannot be written")


def remove_mark(synchronizer: contract.Synchronizer) -> None:
    """Remove a back end's marker: it serves."""
    for _ in range(_ROUNDS):
        standing = synchronizer.read([MARKER]).get(MARKER)
        if standing is None or standing.deleted:
            return
        synchronizer.write([records.Write(MARKER, standing.revision, deleted=True)])
    raise errors.BackendUnavailable(synchronizer.name, "its marker cannot be removed")


def closed(synchronizer: contract.Synchronizer, mark: FenceMark | None) -> errors.NodbError | None:
    """Return why a back end takes no writes from services; None if it does."""
    if mark is None or mark.place is FencePlace.LIVE:
        return None
    if mark.place is FencePlace.INCOMING:
        reason = (
            f"it is being filled from {mark.other} and does not serve yet: wait for "
            "'nova-nodb-manage synchronizer move' to end, or run it again"
        )
    else:
        reason = (
            f"the records were moved to {mark.other}: set [nodb_scheduler] synchronizer = "
            f"{mark.other} and its options, and restart this service"
        )
    return errors.BackendUnavailable(synchronizer.name, reason)


def _seconds() -> float:
    """Return seconds that go on while the machine sleeps, where the system has them."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class FencedSynchronizer(contract.Synchronizer):
    """A driver that goes by the marker; what services use.

    Costs one read of one key per call that writes, twice a second at most.

    :param clock: seconds; goes on while the process sleeps
    """

    def __init__(
        self, inner: contract.Synchronizer, clock: Callable[[], float] | None = None
    ) -> None:
        self._clock = clock or _seconds
        self._looked_at = float("-inf")
        self._inner = inner
        self.name = inner.name
        self.STEPS = inner.STEPS  # type: ignore[misc]
        self._closed = False
        self._opening = opening.Opening(
            lambda: None,
            inner.close,
            lambda reason: errors.BackendUnavailable(inner.name, reason),
        )

    @property
    def inner(self) -> contract.Synchronizer:
        """The driver itself."""
        return self._inner

    @property
    def on_step(self) -> Callable[[str], None]:
        """The driver's own."""
        return self._inner.on_step

    @on_step.setter
    def on_step(self, value: Callable[[str], None]) -> None:
        self._inner.on_step = value

    @property
    def capabilities(self) -> contract.Capabilities:
        return self._inner.capabilities

    @property
    def database_url(self) -> str | None:
        return self._inner.database_url

    def open(self) -> None:
        """Open the driver; a back end that does not serve is unavailable.

        Who opened it before keeps it open, whatever is met now.
        """
        self._open_by(self._inner.open)

    def open_existing(self) -> None:
        """Open the driver for who only looks; see :meth:`open`."""
        self._open_by(self._inner.open_existing)

    def _open_by(self, open_inner: Callable[[], None]) -> None:
        def check() -> None:
            open_inner()
            self._look()

        if self._opening.is_open:
            check()
        else:
            self._opening.open(check)

    def close(self) -> None:
        self._opening.close()

    def head(self) -> records.Cursor:
        self._look_if_closed()
        return self._inner.head()

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        self._opening.require()
        self._look()
        taken = self._inner.snapshot(namespaces)
        return attrs.evolve(taken, pages=self._pages(taken.pages))

    def _pages(self, pages: Iterator[Sequence[records.Record]]) -> Iterator[Any]:
        for page in pages:
            if not isinstance(page, record_columns.RecordColumns):
                yield [record for record in page if record.key.namespace != NAMESPACE]
            elif page.namespace != NAMESPACE:
                yield page

    def fetch(
        self, cursor: records.Cursor, limit: int = 1000
    ) -> records.Changes | records.ResyncNeeded:
        self._look_if_closed()
        fetched = self._inner.fetch(cursor, limit)
        if isinstance(fetched, records.ResyncNeeded):
            return fetched
        own = [record for record in fetched.records if record.key == MARKER]
        if not own:
            return fetched
        self._judge(mark_of(own[-1]))
        others = tuple(record for record in fetched.records if record.key != MARKER)
        return attrs.evolve(fetched, records=others)

    def wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        self._look_if_closed()
        return self._inner.wait(cursor, timeout_seconds)

    def read(
        self, keys: Collection[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        self._look_if_closed()
        return self._inner.read(keys)

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        """Write, then look whether it was in time."""
        self._look_if_closed()
        results = self._inner.write(writes)
        if not any(result.won for result in results):
            return results
        if self._clock() - self._looked_at < LOOK_SECONDS:
            return results
        try:
            self._look()
        except errors.BackendUnavailable:
            return [
                records.WriteResult(records.Verdict.UNKNOWN) if result.won else result
                for result in results
            ]
        return results

    def now_seconds(self) -> float:
        self._opening.require()
        return self._inner.now_seconds()

    def collect(self, keep_seconds: float) -> contract.Collected:
        self._look_if_closed()
        return self._inner.collect(keep_seconds)

    def statistics(self) -> Mapping[str, int | float | str]:
        self._opening.require()
        return self._inner.statistics()

    def reset(self) -> None:
        self._opening.require()
        self._inner.reset()

    def _look(self) -> None:
        began = self._clock()
        self._judge(read_mark(self._inner))
        self._looked_at = began

    def _look_if_closed(self) -> None:
        # The driver is open already while an opening looks at the marker.
        self._opening.require()
        # A move that was called off opens it again.
        if self._closed:
            self._look()

    def _judge(self, mark: FenceMark | None) -> None:
        reason = closed(self._inner, mark)
        self._closed = reason is not None
        if self._closed:
            self._looked_at = float("-inf")
        if reason is not None:
            raise reason
