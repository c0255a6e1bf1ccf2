# SPDX-License-Identifier: Apache-2.0
"""When a driver that must ask for news asks: often while some come, seldom while none do.

A fixed pause is wrong in both states: 100 ms are felt in every decision of a
busy cloud, 25 ms are forty useless questions a second to each worker of an
idle one. So the pause follows the news: half their mean distance, which is at
most two looks for each that comes, within the two intervals that an operator
sets. That news came lately is not enough, for an idle cloud is never silent:
schedulers and reporters beat every few seconds.

After the news end the pause grows by a fiftieth of the silence, so that a gap
in a busy stream does not cost the next change its short delay.

Where news come faster than looks, a look that finds some only repeats what the
fetch behind it asks: whoever tells what its fetches bring is sent to fetch
without one, until a fetch brings nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import attrs

from nova_nodb_scheduler import errors

#: Between two looks where news come all the time, unless configured.
BUSY_SECONDS = 0.025

_LOOKS_FOR_EACH_NEWS = 2
#: Part of a silence that the pause grows to.
_SILENCE_SHARE = 1 / 50
#: News at a mean distance of so many of the shortest pauses are as good as sure.
_SURE_PAUSES = 1.5
#: Weight of the last distance between two news in their mean.
_LAST_WEIGHT = 1 / 4


@attrs.frozen
class Intervals:
    """Between two looks, in seconds.

    :param idle_seconds: where nothing comes
    :param busy_seconds: where news come all the time; not above the other
    """

    idle_seconds: float
    busy_seconds: float

    @classmethod
    def of(cls, group: str, idle_seconds: float, busy_seconds: float | None) -> Intervals:
        """Make them of a driver's options.

        :param group: of the options, for the error
        :param busy_seconds: None: the default, or the idle one if that is shorter
        :raises ConfigurationError: the busy one is longer than the idle one
        """
        if busy_seconds is None:
            busy_seconds = min(BUSY_SECONDS, idle_seconds)
        if busy_seconds > idle_seconds:
            raise errors.ConfigurationError(
                f"[{group}] busy_poll_interval_seconds",
                busy_seconds,
                f"set at most poll_interval_seconds, which is {idle_seconds:g}",
            )
        return cls(idle_seconds, busy_seconds)


#: Of a driver that has no options for them.
DEFAULT_INTERVALS = Intervals(0.1, BUSY_SECONDS)


class Poll:
    """The looks of one client at one feed; any thread may wait.

    Intervals count from look to look: what a caller does between two waits is
    part of the pause.

    :param clock: monotonic seconds
    """

    def __init__(
        self,
        intervals: Intervals,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._intervals = intervals
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._longest_gap_seconds = _LOOKS_FOR_EACH_NEWS * intervals.idle_seconds
        self._gap_seconds = self._longest_gap_seconds
        self._news_at = clock()
        self._looked_at: float | None = None
        #: Since when an answer without a look waits for what its fetch brings.
        self._trusted_at: float | None = None
        #: What the last fetch brought; None if nobody told since the last answer.
        self._fetched: bool | None = None

    def wait(self, look: Callable[[], bool], timeout_seconds: float) -> bool:
        """Look until there is something new; False after the time-out.

        Looks once at least, at the latest when the time is over; not where it
        is as good as sure that there is.

        :param look: whether there is; may block for an exchange with the back end
        """
        deadline = self._clock() + timeout_seconds
        while True:
            pause_seconds = min(self._due_in_seconds(), deadline - self._clock())
            if pause_seconds > 0:
                self._sleep(pause_seconds)
            if self._is_sure():
                return True
            at = self._clock()
            found = look()
            self._looked(at, found=found)
            if found:
                return True
            if self._clock() >= deadline:
                return False

    def fetched(self, found: bool) -> None:
        """Tell what a fetch brought: whether there was something new."""
        with self._lock:
            trusted_at, self._trusted_at = self._trusted_at, None
            self._fetched = found
        if trusted_at is not None:
            self._looked(trusted_at, found=found)

    def _is_sure(self) -> bool:
        with self._lock:
            longest_gap = _SURE_PAUSES * self._intervals.busy_seconds
            sure = bool(self._fetched) and self._gap_seconds <= longest_gap
            self._fetched = self._trusted_at = None
            if sure:
                self._trusted_at = self._looked_at = self._clock()
            return sure

    def _due_in_seconds(self) -> float:
        with self._lock:
            if self._looked_at is None:
                return 0.0
            now = self._clock()
            return self._looked_at + self._pause_seconds(now) - now

    def _pause_seconds(self, now: float) -> float:
        wanted = max(
            self._gap_seconds / _LOOKS_FOR_EACH_NEWS, (now - self._news_at) * _SILENCE_SHARE
        )
        intervals = self._intervals
        return min(max(wanted, intervals.busy_seconds), intervals.idle_seconds)

    def _looked(self, at: float, *, found: bool) -> None:
        with self._lock:
            self._looked_at = at
            if found:
                gap = min(max(0.0, at - self._news_at), self._longest_gap_seconds)
                self._gap_seconds += (gap - self._gap_seconds) * _LAST_WEIGHT
                self._news_at = at
