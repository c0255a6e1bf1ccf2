# SPDX-License-Identifier: Apache-2.0
"""What a client remembers of epochs, so that none that was left comes back.

An address may lead to server A, then to B, and to A again: a failover and back,
a name that flips, a restart with old data. What A still holds is whole, and
stale: claims that were acknowledged by B are not in it. Going on there, as the
naive way does, grants again what was granted.

So epochs have an order, and a client adopts none that comes before one it has
seen: it begins another in its place, behind both. Whoever comes next, new or
old, finds that one, and all agree. A client that has seen nothing has nothing
to go by; it learns with the first that has.

Where an address leads to two servers in turn, each turn would end an epoch
without end. So the replacements count their turns, in the epoch itself, for all
clients to see; and each waits twice as long as the one before it. Meanwhile a
client that comes to the older server refuses to work, which schedulers and
operators notice.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import ClassVar, TypeVar

import attrs

from nova_nodb_scheduler import errors

#: More changes of epoch than this during one call are no accident.
ATTEMPTS = 10
UNSTABLE = "its epoch changes all the time"
#: Above all versions; a double holds it exactly.
BEYOND_VERSIONS = 1 << 53

#: The wait before a second turn; the first is taken at once.
PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 3600.0

_T = TypeVar("_T")


class EpochEnded(Exception):
    """The epoch that something was done in is not in force; it is to be done in the next."""


@functools.total_ordering
@attrs.frozen
class Rank:
    """The place of an epoch in the order of epochs; a greater one is a later one.

    :param number: grows from epoch to epoch of a back end, over servers too:
        the server's time where it has one, and in any case above each number
        that the client which begins it has seen
    :param name: of the epoch; decides between two that began at once
    :param turns: replacements of an older epoch that led to this one
    """

    number: int
    name: str
    turns: int = attrs.field(default=0, eq=False)

    def __lt__(self, other: Rank) -> bool:
        # Each call to a back end compares: the order that attrs makes takes 16 calls.
        return (self.number, self.name) < (other.number, other.name)


class EpochMemory:
    """The newest epoch that one client has seen; any thread may call.

    It lasts as long as the client, over ``close()`` and ``open()``.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: Rank | None = None
        self._since = 0.0
        #: Of the newest, or of one before it in the same series: a client that slept
        #: through many turns may begin one that counts few.
        self._turns = 0
        #: Highest version seen in the newest.
        self._version = 0
        #: Whether the newest was found below it.
        self._went_back = False

    @property
    def newest(self) -> Rank | None:
        return self._newest

    def version_seen(self, name: str) -> int:
        """Return the highest version that was seen in an epoch, if it is the newest.

        Asked for before a back end is: where that then stands below, it went back
        (a machine restored from a snapshot, keys restored from a dump) and lacks
        what was acknowledged, though it says that it is the same epoch.
        """
        with self._lock:
            if self._newest is None or self._newest.name != name:
                return 0
            return BEYOND_VERSIONS if self._went_back else self._version

    def note_version(self, name: str, version: int) -> None:
        """Remember that an epoch stood at a version."""
        with self._lock:
            if self._newest is not None and self._newest.name == name:
                self._version = max(self._version, version)

    def note_gone_back(self, name: str) -> None:
        """Remember that an epoch went back, so that it is behind wherever it stands.

        The naive way, to have it replaced if it is still below what was seen, goes on in it
        where others, who have seen less, wrote enough meanwhile.
        """
        with self._lock:
            if self._newest is not None and self._newest.name == name:
                self._went_back = True

    def admits(self, found: Rank) -> bool:
        """Return whether an epoch may be adopted; it is remembered if so."""
        with self._lock:
            if self._newest is not None and found < self._newest:
                return False
            if found != self._newest:
                self._turns = max(found.turns, 0 if self._ended() else self._turns)
                self._newest, self._since, self._version = found, self._clock(), 0
                self._went_back = False
            return True

    def number_above(self, number: int) -> int:
        """Return a number for an epoch to begin: this one, or one above all that was seen.

        :param number: the server's time, where it has one
        """
        with self._lock:
            seen = max(self._newest.number, self._version) if self._newest is not None else -1
            return max(number, seen + 1)

    def turn_to_replace(
        self,
        found: Rank,
        unavailable: Callable[[str], errors.BackendUnavailable],
        version: int | None = None,
    ) -> int | None:
        """Return what an epoch counts that must be begun in the place of this one.

        :param unavailable: makes the error of a reason
        :param version: at which it stands, if that is known of the same moment; below
            what was seen, an older state of the epoch was put back
        :returns: None where this one may be adopted; it is remembered then
        :raises BackendUnavailable: none may be begun yet
        """
        if self.admits(found):
            went_back = version is not None and version < self.version_seen(found.name)
            return 0 if went_back else None
        if self.pause_seconds():
            raise unavailable(self.refusal(found.name))
        return self.next_turn()

    def next_turn(self) -> int:
        """Return what an epoch counts that is begun in the place of an older one now."""
        with self._lock:
            return 1 if self._ended() else self._turns + 1

    def pause_seconds(self) -> float:
        """Return how long no epoch may yet be begun in the place of an older one."""
        with self._lock:
            if not self._turns:
                return 0.0
            # The exponent is bounded: other clients' counts are only read.
            pause = PAUSE_SECONDS * 2.0 ** min(self._turns - 1, 16)
            ends_at = self._since + min(pause, LONGEST_PAUSE_SECONDS)
            return max(0.0, ends_at - self._clock())

    def _ended(self) -> bool:
        """Return whether the newest was in force for longer than any pause: the series ended."""
        return self._newest is None or self._clock() - self._since > LONGEST_PAUSE_SECONDS

    def refusal(self, found_name: str) -> str:
        """Return what to say of an older epoch that cannot be replaced yet."""
        newest = self.newest
        return (
            f"it holds epoch {found_name}, older than {newest.name if newest else 'none'} which "
            f"this client has seen: its address leads to different servers in turn. Let it lead "
            f"to one; nothing is read or written here for another {self.pause_seconds():.0f} s, "
            f"and then this server begins anew"
        )

    def why_replaced(self, found_name: str) -> str:
        """Return why an epoch is begun in the place of an older one."""
        newest = self.newest
        return (
            f"it held {found_name}, older than {newest.name if newest else 'none'} which was seen "
            f"since: the address led elsewhere meanwhile, or old data was restored"
        )


class EpochKeeper:
    """The epoch in force, as one client knows it; a driver's own extends it. Any thread may call.

    :param unavailable: makes the error of a reason
    """

    #: Why nothing can be done where epochs come and go.
    WHY_UNSTABLE: ClassVar[str] = UNSTABLE

    def __init__(self, unavailable: Callable[[str], errors.BackendUnavailable]) -> None:
        self._unavailable = unavailable

    def across(self, attempt: Callable[[], _T]) -> _T:
        """Return what an attempt does in the epoch in force.

        :param attempt: raises :class:`EpochEnded` where it did nothing
        :raises BackendUnavailable: epochs come and go
        """
        for _ in range(ATTEMPTS):
            try:
                return attempt()
            except EpochEnded:
                self.look_again()
        raise self._unavailable(self.WHY_UNSTABLE)

    def look_again(self) -> None:
        """Have the next attempt find out which epoch is in force."""
