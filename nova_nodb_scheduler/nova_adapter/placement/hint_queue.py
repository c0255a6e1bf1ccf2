# SPDX-License-Identifier: Apache-2.0
"""Providers to be looked at soon, each a few times, until what was hinted at is there."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.nova_adapter.placement import feed_hints


@attrs.define
class _Waiting:
    due: float
    attempt: int
    hints: set[feed_hints.Hint]


class HintQueue:
    """Hints by provider; one thread. Hints of one provider are followed together.

    nova-compute frees an allocation after the server's row is gone: a look at
    once would see it still there.

    :param delays_seconds: before the first look, and before each further one
    :param limit: most providers that wait; the oldest are forgotten beyond it,
        and the sweep finds them
    """

    def __init__(
        self,
        clock: Callable[[], float],
        delays_seconds: tuple[float, ...] = (1.0, 5.0, 20.0),
        limit: int = 50_000,
    ) -> None:
        self._clock = clock
        self._delays = delays_seconds
        self._limit = limit
        self._waiting: dict[str, _Waiting] = {}
        self._heap: list[tuple[float, str]] = []
        #: Hints forgotten for want of room.
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, provider: object) -> bool:
        return provider in self._waiting

    def add(self, hints: Iterable[feed_hints.Hint]) -> None:
        """Have providers looked at after the first delay."""
        for hint in hints:
            waiting = self._waiting.get(hint.provider)
            if waiting is not None:
                waiting.hints.add(hint)
                if waiting.attempt:
                    # A first look serves those that wait for a later one, too.
                    self._put(hint.provider, 0, waiting.hints)
            elif len(self._waiting) >= self._limit:
                self.forgotten += 1
            else:
                self._put(hint.provider, 0, {hint})

    def due(self, limit: int) -> dict[str, tuple[int, set[feed_hints.Hint]]]:
        """Take providers whose time has come: attempt and hints of each."""
        taken: dict[str, tuple[int, set[feed_hints.Hint]]] = {}
        now = self._clock()
        while self._heap and len(taken) < limit and self._heap[0][0] <= now:
            due, provider = heapq.heappop(self._heap)
            waiting = self._waiting.get(provider)
            if waiting is None or waiting.due != due:
                # Put again since, for another time.
                continue
            del self._waiting[provider]
            taken[provider] = (waiting.attempt, waiting.hints)
        return taken

    def looked(
        self,
        provider: str,
        attempt: int,
        hints: set[feed_hints.Hint],
        allocations: Mapping[str, Any] | None,
    ) -> None:
        """Keep those hints of a look that saw nothing of them, for a later look."""
        left = {hint for hint in hints if not _seen(hint, attempt, allocations)}
        if not left or attempt + 1 >= len(self._delays):
            return
        waiting = self._waiting.get(provider)
        if waiting is None:
            self._put(provider, attempt + 1, left)
        else:
            waiting.hints |= left

    def put_back(self, provider: str, attempt: int, hints: set[feed_hints.Hint]) -> None:
        """Return what could not be looked at."""
        if provider in self._waiting:
            self._waiting[provider].hints |= hints
        else:
            self._put(provider, attempt, hints)

    def _put(self, provider: str, attempt: int, hints: set[feed_hints.Hint]) -> None:
        due = self._clock() + self._delays[attempt]
        self._waiting[provider] = _Waiting(due, attempt, hints)
        heapq.heappush(self._heap, (due, provider))


def _seen(hint: feed_hints.Hint, attempt: int, allocations: Mapping[str, Any] | None) -> bool:
    if hint.expect is feed_hints.Expect.UNKNOWN:
        # It may have come before the change did: looked at twice.
        return attempt >= 1
    if hint.expect is feed_hints.Expect.MIRRORED:
        return allocations is not None
    present = allocations is not None and hint.consumer in allocations
    return present is (hint.expect is feed_hints.Expect.PRESENT)
