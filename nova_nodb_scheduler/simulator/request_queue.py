# SPDX-License-Identifier: Apache-2.0
"""Requests on their way to schedulers: they come, wait, are asked, and are asked again."""

from __future__ import annotations

import collections
import functools
from collections.abc import Sequence

from nova_nodb_scheduler.simulator import (
    events,
    messages,
    processes,
    run_clock,
    run_options,
    workload,
)

#: Pause before a request is asked again that no claim could be taken for.
_AGAIN_SECONDS = 0.5


class RequestQueue:
    """The requests of one run. One thread."""

    def __init__(
        self,
        options: run_options.RunOptions,
        arrivals: Sequence[workload.Arrival],
        schedulers: Sequence[processes.SchedulerProcess],
        clock: run_clock.RunClock,
        happenings: events.Events,
    ) -> None:
        self.arrivals = arrivals
        self._options = options
        self._clock = clock
        self._events = happenings
        self._next_arrival = 0
        self._queue: collections.deque[int] = collections.deque()
        #: Requests that were tried in vain and come into the queue again.
        self._put_off = 0
        self._turns = collections.deque(schedulers)
        self._asked_at: dict[int, float] = {}

    def begin(self) -> None:
        """Arrange for the requests to come, unless they come when somebody is free."""
        if self._options.pace is run_clock.Pace.SATURATED:
            return
        for arrival in self.arrivals:
            come = functools.partial(self._queue.append, arrival.number)
            self._events.at(arrival.at_seconds, come)
        self._next_arrival = len(self.arrivals)

    @property
    def waits(self) -> bool:
        """Whether a request could be asked now."""
        return bool(self._queue)

    @property
    def waits_or_will(self) -> bool:
        """Whether a request was asked for and is not being decided."""
        return bool(self._queue or self._put_off)

    @property
    def is_used_up(self) -> bool:
        """Whether all have come, and none waits."""
        return self._next_arrival == len(self.arrivals) and not self._queue

    def dispatch(self) -> None:
        """Give requests to idle schedulers, in turn."""
        for _ in range(len(self._turns)):
            each = self._turns[0]
            self._turns.rotate(-1)
            if not each.is_idle:
                continue
            if not self._queue and self._options.pace is run_clock.Pace.SATURATED:
                if self._next_arrival < len(self.arrivals):
                    self._queue.append(self._next_arrival)
                    self._next_arrival += 1
            if not self._queue:
                return
            number = self._queue.popleft()
            arrival = self.arrivals[number]
            self._asked_at.setdefault(number, self._clock.now_seconds())
            asked = messages.Decide(number, arrival.flavor, arrival.uuids(self._options.seed))
            if not each.ask(asked):
                self._queue.appendleft(number)

    def is_patient(self, number: int, now: float) -> bool:
        """Return whether a request that came to no answer is to be asked again."""
        return now - self._asked_at[number] < self._options.patience_seconds

    def put_off(self, number: int) -> None:
        """Ask a request again, a little later."""
        self._put_off += 1
        self._events.after(_AGAIN_SECONDS, functools.partial(self._ask_again, number))

    def _ask_again(self, number: int) -> None:
        self._put_off -= 1
        self._queue.append(number)
