# SPDX-License-Identifier: Apache-2.0
"""What will happen in a run, in the order of its simulated times."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from nova_nodb_scheduler.simulator import run_clock

Happening = Callable[[], None]


class Events:
    """Everything that is to happen; of one time, in the order in which it was arranged.

    One thread.
    """

    def __init__(self, clock: run_clock.RunClock) -> None:
        self._clock = clock
        self._events: list[tuple[float, int, Happening]] = []
        self._numbers = itertools.count()

    def at(self, seconds: float, happen: Happening) -> None:
        """Let something happen at a simulated time."""
        heapq.heappush(self._events, (seconds, next(self._numbers), happen))

    def after(self, seconds: float, happen: Happening) -> None:
        """Let something happen in some simulated seconds."""
        self.at(self._clock.now_seconds() + seconds, happen)

    @property
    def next_seconds(self) -> float | None:
        """When the next thing is to happen; None if there is none."""
        return self._events[0][0] if self._events else None

    def happen_next(self) -> None:
        """Let the next thing happen, whatever its time."""
        heapq.heappop(self._events)[2]()

    def happen_until(self, seconds: float) -> None:
        """Let everything happen that is due by a time, what it brings about included."""
        while self._events and self._events[0][0] <= seconds:
            self.happen_next()
