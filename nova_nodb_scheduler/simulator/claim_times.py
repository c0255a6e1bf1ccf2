# SPDX-License-Identifier: Apache-2.0
"""Times the claims of one scheduler: each take that was granted, and its confirm."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import claimer

#: Seconds of the take, of the confirm.
Times = tuple[float, float]


class TimedClaimer:
    """A claimer that notes how long it took. One thread.

    Servers that are claimed together count once, with the longest of their takes.
    """

    def __init__(
        self, inner: claimer.Claimer, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._takes: dict[str, float] = {}
        self._times: list[Times] = []

    def reap(self) -> tuple[Times, ...]:
        """Return the times of claims confirmed since the last call; forget the others."""
        times, self._times = tuple(self._times), []
        self._takes.clear()
        return times

    def take(
        self, request: requests.Request, wanted: Sequence[claimer.Wanted], deadline: float
    ) -> list[claimer.Taken | claimer.NotTaken]:
        """See :class:`claimer.Claimer`."""
        began = self._clock()
        answers = self._inner.take(request, wanted, deadline)
        seconds = self._clock() - began
        for answer in answers:
            if isinstance(answer, claimer.Taken):
                self._takes[answer.wanted.consumer] = seconds
        return answers

    def confirm(self, taken: Sequence[claimer.Taken]) -> list[bool]:
        """See :class:`claimer.Claimer`."""
        began = self._clock()
        stands = self._inner.confirm(taken)
        seconds = self._clock() - began
        takes = [
            self._takes.get(each.wanted.consumer, 0.0)
            for each, stood in zip(taken, stands, strict=True)
            if stood
        ]
        if takes:
            self._times.append((max(takes), seconds))
        return stands

    def release(self, taken: Sequence[claimer.Taken]) -> None:
        """See :class:`claimer.Claimer`."""
        self._inner.release(taken)
