# SPDX-License-Identifier: Apache-2.0
"""Counts of one run, as it goes; and what they come to in the end."""

from __future__ import annotations

import bisect
import collections
import math
from collections.abc import Sequence

import attrs

from nova_nodb_scheduler.simulator.schedulers import pipe_messages


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile, ``share`` of 0 to 100; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return the percentiles that reports show."""
    return {
        "p50": percentile(values, 50),
        "p90": percentile(values, 90),
        "p99": percentile(values, 99),
        "max": max(values, default=None),
    }


@attrs.define
class Measures:
    """What happened. One thread.

    :ivar late_choices: servers sent to a host that was silent for longer than
        Nova's service_down_time when the choice was made
    :ivar choices_of_lost: servers sent to a host that was lost but not yet silent
        for so long
    :ivar lost_requests: given to a scheduler that was killed before it answered
    :ivar decisions: (real seconds from the beginning, simulated, real seconds
        it took, outcome) of each
    :ivar conflicts: claims that what others had written left no way for: the request
        was decided again
    :ivar writes_lost: compare-and-sets lost on claims while deciding, by what won
    :ivar settling_writes_lost: those lost while settling
    :ivar requests_with_lost_write: that lost one or more, and wrote again: on the same
        host, unless they are among the next
    :ivar requests_with_conflict: that were decided again
    :ivar claims: seconds of each take that was granted, and of its confirm
    :ivar sequence: (server, host uuid) of all servers placed, in order
    """

    outcomes: collections.Counter[str] = attrs.field(factory=collections.Counter)
    reasons: collections.Counter[str] = attrs.field(factory=collections.Counter)
    servers_placed: int = 0
    conflicts: int = 0
    writes_lost: collections.Counter[str] = attrs.field(factory=collections.Counter)
    settling_writes_lost: int = 0
    requests_with_lost_write: int = 0
    requests_with_conflict: int = 0
    unproved: int = 0
    late_choices: int = 0
    choices_of_lost: int = 0
    lost_requests: int = 0
    unclaimable_tries: int = 0
    decisions: list[tuple[float, float, float, str]] = attrs.field(factory=list)
    stale_seconds: list[float] = attrs.field(factory=list)
    claims: list[tuple[float, float]] = attrs.field(factory=list)
    sequence: list[tuple[str, str]] = attrs.field(factory=list)
    longest_gap_seconds: float = 0.0
    fill: list[tuple[float, float]] = attrs.field(factory=list)
    _waiting_since: float | None = None

    def demand(self, at: float, *, is_there: bool) -> None:
        """Note whether a request waits or is being decided: gaps count only then.

        :param at: real seconds
        """
        if not is_there:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = at
        else:
            self.longest_gap_seconds = max(self.longest_gap_seconds, at - self._waiting_since)

    def decided(self, at: float, simulated: float, decision: pipe_messages.Decided) -> None:
        """Note an answer.

        :param at: real seconds from the beginning of the run
        """
        if self._waiting_since is not None:
            self.longest_gap_seconds = max(self.longest_gap_seconds, at - self._waiting_since)
        self._waiting_since = at
        self.decisions.append((at, simulated, decision.seconds, decision.outcome))
        self.outcomes[decision.outcome] += 1
        self.reasons.update(decision.reasons)
        self._claimed(decision)
        self.requests_with_lost_write += bool(decision.writes_lost)
        self.requests_with_conflict += bool(decision.conflicts)
        self.unproved += decision.unproved

    def tried_in_vain(self, decision: pipe_messages.Decided) -> None:
        """Note an answer that only says to ask again."""
        self.unclaimable_tries += 1
        self._claimed(decision)

    def _claimed(self, decision: pipe_messages.Decided) -> None:
        self.conflicts += decision.conflicts
        self.writes_lost.update(decision.writes_lost)
        self.settling_writes_lost += decision.settling_writes_lost
        self.claims += decision.claims


def staleness_seconds(
    published: Sequence[tuple[float, int, int]], version: int, at: float
) -> float:
    """Return how long the oldest news was out that a view did not show.

    :param published: (monotonic seconds, version, ...) of what was published
    :param version: up to which the view had come
    :param at: monotonic seconds when it was used
    """
    place = bisect.bisect_right(published, version, key=lambda each: each[1])
    if place == len(published):
        return 0.0
    return max(0.0, at - published[place][0])
