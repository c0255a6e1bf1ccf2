# SPDX-License-Identifier: Apache-2.0
"""Measures how long a batch is on its way: from its write's return into each scheduler's store.

A scheduler's process notes when its store came to which place in the feed; the
world knows when it wrote what. All processes of a machine share the monotonic
clock, so the two compare.
"""

from __future__ import annotations

import bisect
import collections
import time
from collections.abc import Callable, Sequence

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract

#: (monotonic seconds, version): everything up to there was applied by then.
Note = tuple[float, int]


class FeedLog:
    """Notes when one follower's store came how far; listens in the follower's thread."""

    def __init__(
        self, follower: replicator.Replicator, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._follower = follower
        self._clock = clock
        self._notes: collections.deque[Note] = collections.deque()

    def listen(self, changes: Sequence[records.Change]) -> None:
        """Take in what was applied; pages of a snapshot say nothing of an order."""
        if self._follower.status().state is replicator_contract.State.FOLLOWING:
            self._notes.append((self._clock(), max(change.record.version for change in changes)))

    def take(self) -> tuple[Note, ...]:
        """Return what was noted since the last call; any thread."""
        return tuple(self._notes.popleft() for _ in range(len(self._notes)))


@attrs.define
class _Follower:
    """One scheduler from one start to its end."""

    since: float
    times: list[float] = attrs.field(factory=list)
    versions: list[int] = attrs.field(factory=list)

    def lag_seconds(self, at: float, version: int) -> float | None:
        """Return how long a batch took; None if it was not there, or never got it."""
        place = bisect.bisect_left(self.versions, version)
        if at < self.since or place == len(self.versions):
            return None
        return max(0.0, self.times[place] - at)


class FeedLags:
    """What all schedulers of a run noted; for the world's thread."""

    def __init__(self) -> None:
        self._followers: dict[tuple[int, int], _Follower] = {}

    def begin(self, number: int, start: int, at: float) -> None:
        """Note that a scheduler's process follows.

        :param start: which of its starts it is
        :param at: monotonic seconds
        """
        self._followers[number, start] = _Follower(at)

    def add(self, number: int, start: int, notes: Sequence[Note]) -> None:
        """Take in what it noted, in its order."""
        found = self._followers[number, start]
        for at, version in notes:
            if not found.versions or version > found.versions[-1]:
                found.times.append(at)
                found.versions.append(version)

    def of(self, published: Sequence[tuple[float, int, int]]) -> list[float]:
        """Return for each batch how long it took to the slowest of those who got it.

        Who was started later, was killed before it came, or ended first is
        left out; a batch that nobody got, too.

        :param published: (monotonic seconds when its write had returned,
            version, ...) of each batch
        """
        slowest = []
        for at, version, _count in published:
            lags = [each.lag_seconds(at, version) for each in self._followers.values()]
            known = [lag for lag in lags if lag is not None]
            if known:
                slowest.append(max(known))
        return slowest
