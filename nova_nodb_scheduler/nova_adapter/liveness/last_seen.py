# SPDX-License-Identifier: Apache-2.0
"""When a compute service was heard of last, told by its row and by its record.

Both hold a count of heartbeats and a time, and neither time can be trusted before
the other: a row's is the clock of the conductor that wrote it. So **the highest
count is the latest heartbeat**, whatever the clocks say. Counts that lie so far
apart that they belong to two numberings (a service that was started while nobody
could tell it its count, a forged row) say nothing about one another: there the
later one counts, if it does not lie in the future.

Ages are kept instead of times. A record's is taken by the back end's clock, on
both ends; a row's by the reader's, as Nova does.
"""

from __future__ import annotations

import threading

import attrs

#: Counts that differ by more belong to two numberings: ten minutes of heartbeats,
#: by Nova's default interval.
MOST_APART = 60
#: A time that lies further in the future was told by a wrong clock.
FUTURE_SECONDS = 30.0

NEVER = float("inf")


@attrs.frozen
class LastSeen:
    """A service's latest heartbeat, as one source tells it.

    :param age_seconds: since it was heard; infinite where none ever was
    :param is_heard: the back end knows when; a record that was made of a row says what
        the row says, which may be long out of use
    """

    report_count: int
    age_seconds: float
    is_heard: bool = attrs.field(default=False, eq=False)

    @property
    def _likely_age_seconds(self) -> float:
        return self.age_seconds if self.age_seconds >= -FUTURE_SECONDS else NEVER

    def is_later_than(self, other: LastSeen) -> bool:
        """Tell whether this is a later heartbeat of the service than another source's."""
        apart = self.report_count - other.report_count
        if abs(apart) <= MOST_APART:
            return apart > 0
        return self._likely_age_seconds < other._likely_age_seconds


#: Services that are remembered; beyond it all are forgotten.
_MOST_REMEMBERED = 200_000


class SightMemory:
    """What a reader saw of each service last, for when it sees nothing. Any thread.

    **A reader that is blind lets nobody grow older.** Cut off from the back end alone,
    it would else take every living service for dead within a minute, and evacuate
    running servers. A service's age stands still at what was seen last; a row whose
    count has grown since is seen, and counts. Nobody comes to life by it: who was dead
    when the reader went blind stays dead.
    """

    def __init__(self, most: int = _MOST_REMEMBERED) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, LastSeen] = {}
        self._most = most

    def remember(self, service: str, seen: LastSeen) -> None:
        """Note what was seen of a service while heartbeats could be seen."""
        with self._lock:
            if len(self._seen) >= self._most and service not in self._seen:
                self._seen.clear()
            self._seen[service] = seen

    def known(self, service: str) -> LastSeen | None:
        """Return what was seen last; None if nothing was."""
        with self._lock:
            return self._seen.get(service)

    def blindly(self, service: str, row: LastSeen) -> LastSeen:
        """Return what a reader that sees rows alone must take for a service's latest heartbeat.

        A service that was never seen is taken to live: nothing tells that it does not.

        :param row: what its row says now; it may be long out of use
        """
        with self._lock:
            known = self._seen.get(service)
            if known is None:
                return LastSeen(row.report_count, 0.0)
            if row.is_later_than(known):
                self._seen[service] = known = row
            return known
