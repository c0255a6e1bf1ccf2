# SPDX-License-Identifier: Apache-2.0
"""A run's time, which all its processes read: simulated seconds; and what will happen in it."""

from __future__ import annotations

import enum
import heapq
import itertools
import time
from collections.abc import Callable
from multiprocessing import context as mp_context


class Pace(enum.Enum):
    """How a run's time goes by."""

    #: From one event to the next, as fast as they are dealt with: what is
    #: decided does not depend on the machine. For one scheduler.
    VIRTUAL = "virtual"
    #: With the real clock, at some speed; requests come when they come.
    REAL = "real"
    #: With the real clock; a request comes whenever a scheduler is free.
    SATURATED = "saturated"


class RunClock:
    """Made by the world, which alone sets it, and handed to each process at its start.

    The monotonic clock is one for all processes of a machine.

    :param speed: simulated seconds in a real one; for :attr:`Pace.REAL`
    """

    def __init__(self, context: mp_context.BaseContext, pace: Pace, speed: float = 1.0) -> None:
        self._is_virtual = pace is Pace.VIRTUAL
        self._speed = speed if pace is Pace.REAL else 1.0
        self._zero = context.RawValue("d", 0.0)
        self._now = context.RawValue("d", 0.0)

    def start(self) -> None:
        """Begin the run; time stands at 0 until then."""
        self._zero.value = time.monotonic()

    def advance(self, now_seconds: float) -> None:
        """Set a virtual clock; it never goes back."""
        self._now.value = max(self._now.value, now_seconds)

    def now_seconds(self) -> float:
        """Return the simulated time."""
        if self._is_virtual:
            return float(self._now.value)
        zero = self._zero.value
        return (time.monotonic() - zero) * self._speed if zero else 0.0

    def real_seconds(self, simulated_seconds: float) -> float:
        """Return how long a simulated span takes."""
        return 0.0 if self._is_virtual else simulated_seconds / self._speed


Happening = Callable[[], None]


class Events:
    """Everything that is to happen; of one time, in the order in which it was arranged.

    One thread.
    """

    def __init__(self, clock: RunClock) -> None:
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
