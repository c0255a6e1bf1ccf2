# SPDX-License-Identifier: Apache-2.0
"""Reads what Placement has for consumers, again and again until a deadline."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import attrs

from nova_nodb_scheduler.nova_adapter.placement import outcomes, posting

_MIN_PAUSE_SECONDS = 0.01
_MAX_PAUSE_SECONDS = 0.5


@attrs.frozen
class Pauses:
    """Short waits with jitter, doubling.

    :param clock: monotonic seconds
    """

    clock: Callable[[], float]
    sleep: Callable[[float], None]
    rng: random.Random

    def pause(self, attempt: int, deadline: float) -> bool:
        """Wait; False, and at once, where the deadline has come."""
        left = deadline - self.clock()
        if left <= 0:
            return False
        seconds = min(_MAX_PAUSE_SECONDS, _MIN_PAUSE_SECONDS * 2.0 ** min(attempt, 10))
        self.sleep(min(left, seconds * self.rng.uniform(0.5, 1.5)))
        return True


@attrs.frozen
class ReadBack:
    """Reads for one request, in its thread.

    :param deadline: on the clock of the pauses
    """

    posts: posting.Posting
    pauses: Pauses
    deadline: float
    request_id: str | None

    def pause(self, attempt: int) -> bool:
        return self.pauses.pause(attempt, self.deadline)

    def left_seconds(self) -> float:
        return self.deadline - self.pauses.clock()

    def read(self, server: outcomes.Server) -> posting.Held | None:
        """Return what a consumer has; None where no answer came in time."""
        attempt = 0
        while True:
            held = self.posts.held(server.consumer, self.request_id)
            if isinstance(held, posting.Held):
                return held
            attempt += 1
            if not self.pause(attempt):
                return None

    def equal(self, servers: Iterable[outcomes.Server]) -> dict[outcomes.Server, int] | None:
        """Return which servers have just what they were to get, and at which generation."""
        found = {}
        for server in servers:
            held = self.read(server)
            if held is None:
                return None
            if held.amounts == server.amounts:
                found[server] = int(held.body["consumer_generation"])
        return found
