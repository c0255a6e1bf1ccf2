# SPDX-License-Identifier: Apache-2.0
"""Pauses after failures, doubling up to a bound, kept without sleeping."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Says when to try again; for a loop that has other things to do meanwhile.

    :param clock: monotonic seconds
    """

    def __init__(self, min_seconds: float, max_seconds: float, clock: Callable[[], float]) -> None:
        self._min_seconds = min_seconds
        self._max_seconds = max_seconds
        self._clock = clock
        self._retry_at = 0.0
        #: Failures since the last success.
        self.failures = 0

    def remaining_seconds(self) -> float:
        """Return how long until the next attempt; 0 where it is time."""
        return max(0.0, self._retry_at - self._clock()) if self.failures else 0.0

    def failed(self) -> None:
        # The exponent is bounded: 2.0 ** 1024 is an error.
        pause_seconds = self._min_seconds * 2.0 ** min(self.failures, 30)
        self._retry_at = self._clock() + min(pause_seconds, self._max_seconds)
        self.failures += 1

    def succeeded(self) -> None:
        self.failures = 0
