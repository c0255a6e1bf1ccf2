# SPDX-License-Identifier: Apache-2.0
"""What was changed in Nova's database and not yet published: names of records, heartbeats.

Values are not queued: two conductors may handle one host's saves, and a queued
value could overwrite a newer one. What is kept is the record's name; its row is
read when it is published. Names that are marked again while they wait stand once.
Heartbeats are kept with their counts, and judged by them (:mod:`.report_counts`). A journal
tells of each, so where one is written all counts are kept; a record sums them up.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Collection
from typing import NamedTuple

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import report_counts


@attrs.frozen
class DirtyRecord:
    """A record that waits to be published.

    :param scope: uuid of the cell whose database holds the row, or ``api``
    :param since_seconds: when it was first marked, by a monotonic clock
    """

    key: records.RecordKey
    scope: str
    since_seconds: float


class CountedHeartbeat(NamedTuple):
    """One heartbeat of a service.

    :param heard_at: seconds since the epoch
    """

    report_count: int
    heard_at: float


@attrs.define
class PendingHeartbeats:
    """Heartbeats of one service that wait to be published together.

    Their counts follow on one another; what does not is another's, so that a forged
    count takes no true one along.

    :param seen: how many a reporter saw
    :param report_count: highest count among them
    :param last_seen_up: ISO 8601 text in UTC, of the latest of them
    :param heard_at: when the latest was heard, seconds since the epoch
    :param each: count and time of each of them, the last of very many; None where no journal
        asks for them
    """

    service: str
    scope: str
    seen: int
    report_count: int
    last_seen_up: str | None
    heard_at: float
    each: collections.deque[CountedHeartbeat] | None = None

    def merge(self, other: PendingHeartbeats) -> bool:
        """Take others of the service in, in any order; False where they do not follow."""
        seconds = abs(other.heard_at - self.heard_at)
        low, high = sorted((self, other), key=lambda each: each.report_count)
        if not report_counts.follows(low.report_count, high.report_count, high.seen, seconds):
            return False
        self.seen += other.seen
        self.last_seen_up = high.last_seen_up or low.last_seen_up
        self.report_count = high.report_count
        self.heard_at = max(self.heard_at, other.heard_at)
        if self.each is None or other.each is None:
            self.each = None
        else:
            self.each += other.each
        return True


#: Of one service, by counts that do not follow on one another.
_MOST_HEARTBEATS = 4
#: Counts of those that follow on one another: of ten minutes, by Nova's default interval.
_MOST_COUNTS = 64


class DirtyRecords:
    """A bounded set of dirty names and heartbeats; every call but one returns at once.

    :param limit: most names that are kept; beyond it all are forgotten and
        their scopes are remembered as lost, to be swept
    :param rest_seconds: how long names rest that could not be published, so
        that a database that is down does not hold up the others' rows
    """

    def __init__(self, limit: int, clock: Callable[[], float], rest_seconds: float = 1.0) -> None:
        self._limit = limit
        self._clock = clock
        self._rest_seconds = rest_seconds
        self._rested_at = float("inf")
        self._resting: dict[records.RecordKey, DirtyRecord] = {}
        self._lock = threading.Lock()
        self._given_back = threading.Condition(self._lock)
        self._names: dict[records.RecordKey, DirtyRecord] = {}
        self._in_flight: dict[records.RecordKey, DirtyRecord] = {}
        self._heartbeats: dict[str, list[PendingHeartbeats]] = {}
        self._lost: set[str] = set()
        #: Set when there is something to do; the flushing thread waits on it.
        self.wake = threading.Event()

    def mark(self, scope: str, keys: Collection[records.RecordKey]) -> None:
        """Note that rows were written. Any thread."""
        now = self._clock()
        with self._lock:
            for key in keys:
                if key not in self._resting:
                    self._names.setdefault(key, DirtyRecord(key, scope, now))
            if len(self._names) + len(self._resting) > self._limit:
                for names in (self._names, self._resting):
                    self._lost.update(dirty.scope for dirty in names.values())
                    names.clear()
        self.wake.set()

    def wait_published(self, keys: Collection[records.RecordKey], seconds: float) -> bool:
        """Wait until marked records are published. Any thread but the publishing one.

        :returns: False where time ran out, one could not be published and rests, or names
            were forgotten
        """
        with self._given_back:
            # What is marked again meanwhile is another write, and another's to wait for.
            awaited = [
                names[key]
                for key in keys
                for names in (self._names, self._in_flight)
                if key in names
            ]
            self._given_back.wait_for(lambda: not self._helps(awaited), seconds)
            return not (
                self._lost
                or any(key in self._resting for key in keys)
                or any(map(self._waits, awaited))
            )

    def _helps(self, awaited: Collection[DirtyRecord]) -> bool:
        """Tell whether waiting for records helps."""
        if any(dirty.key in self._resting for dirty in awaited):
            return False
        return any(map(self._waits, awaited))

    def _waits(self, dirty: DirtyRecord) -> bool:
        return any(names.get(dirty.key) is dirty for names in (self._names, self._in_flight))

    def beat(
        self,
        scope: str,
        service: str,
        report_count: int,
        last_seen_up: str | None,
        heard_at: float,
        *,
        keeps_each: bool = False,
    ) -> None:
        """Note a heartbeat of a service. Any thread.

        :param heard_at: seconds since the epoch
        :param keeps_each: keep its count beside what it is merged with, for a journal
        """
        beat = PendingHeartbeats(service, scope, 1, report_count, last_seen_up, heard_at)
        if keeps_each:
            each = CountedHeartbeat(report_count, heard_at)
            beat.each = collections.deque((each,), _MOST_COUNTS)
        with self._lock:
            self._add(beat)

    def _add(self, beat: PendingHeartbeats) -> None:
        waiting = self._heartbeats.setdefault(beat.service, [])
        if any(each.merge(beat) for each in waiting):
            return
        waiting.append(beat)
        waiting.sort(key=lambda each: each.report_count)
        # Forged ones are the high ones: those that are low do no harm.
        del waiting[_MOST_HEARTBEATS:]

    def take(self, limit: int, *, rested: bool = False) -> list[DirtyRecord]:
        """Take the names that waited longest; end with :meth:`done`.

        :param rested: take those that rest, too
        """
        with self._lock:
            if rested or self._clock() >= self._rested_at:
                self._names = {**self._resting, **self._names}
                self._resting.clear()
                self._rested_at = float("inf")
            batch = [self._names.pop(key) for key in list(self._names)[:limit]]
            self._in_flight.update((dirty.key, dirty) for dirty in batch)
            if not self._names:
                self.wake.clear()
        return batch

    def done(
        self, batch: Collection[DirtyRecord], failed: Collection[records.RecordKey] = ()
    ) -> None:
        """Give a batch back: the failed ones rest, then wait with their old age."""
        with self._lock:
            for dirty in batch:
                self._in_flight.pop(dirty.key, None)
                if dirty.key in failed:
                    self._names.pop(dirty.key, None)
                    self._resting[dirty.key] = dirty
            if self._resting:
                self._rested_at = min(self._rested_at, self._clock() + self._rest_seconds)
            self._given_back.notify_all()

    def take_heartbeats(self) -> list[PendingHeartbeats]:
        """Take all waiting heartbeats; those of one service by their counts."""
        with self._lock:
            heartbeats = [beat for waiting in self._heartbeats.values() for beat in waiting]
            self._heartbeats.clear()
        return heartbeats

    def return_heartbeats(self, heartbeats: Collection[PendingHeartbeats]) -> None:
        """Give heartbeats back that could not be published."""
        with self._lock:
            for beat in heartbeats:
                self._add(beat)

    def take_lost(self) -> set[str]:
        """Take the scopes whose names were forgotten for want of room."""
        with self._lock:
            lost, self._lost = self._lost, set()
        return lost

    def lose(self, scopes: Collection[str]) -> None:
        """Note scopes whose changes are no longer known by name."""
        with self._lock:
            self._lost.update(scopes)

    def __len__(self) -> int:
        with self._lock:
            return len(self._names) + len(self._resting) + len(self._in_flight)

    def beats_waiting(self) -> int:
        """Count the services with heartbeats not yet published."""
        with self._lock:
            return len(self._heartbeats)

    def ages_seconds(self) -> dict[str, float]:
        """Return per scope how long its oldest name has waited."""
        now = self._clock()
        ages: dict[str, float] = {}
        with self._lock:
            waiting = (self._names, self._resting, self._in_flight)
            for dirty in (dirty for names in waiting for dirty in names.values()):
                age = now - dirty.since_seconds
                ages[dirty.scope] = max(age, ages.get(dirty.scope, 0.0))
            for scope in self._lost:
                ages[scope] = float("inf")
        return ages
