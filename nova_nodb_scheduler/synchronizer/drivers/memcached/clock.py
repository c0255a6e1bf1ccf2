# SPDX-License-Identifier: Apache-2.0
"""The server's time and its count of evictions, asked for at most once a second."""

from __future__ import annotations

import threading
import time

import attrs

from nova_nodb_scheduler.synchronizer.drivers.memcached import connection as connection_module

CACHE_SECONDS = 1.0
#: The server counts whole seconds, and ticks a little late under load.
TICK_SECONDS = 2.0


@attrs.frozen
class Sample:
    """What the server said.

    :param seconds: its time, cut to whole seconds
    :param evictions: items it dropped for want of memory since it started
    """

    seconds: float
    evictions: int


class ServerClock:
    """The server's time between samples; any thread may call.

    A whole second from the server says only that its true time lies in the
    second after it. The greatest offset to the monotonic clock that was ever
    seen comes close to the true one from below, and so never runs back; only
    where the server's own clock was set back does this one follow.
    """

    def __init__(self, connection: connection_module.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._offset: float | None = None
        self._sampled_at = 0.0
        self._last = Sample(0.0, 0)

    def sample(self) -> Sample:
        """Ask the server.

        :raises BackendUnavailable: it does not answer
        """
        statistics = self._connection.statistics()
        received_at = time.monotonic()
        sample = Sample(float(statistics["time"]), _evictions(statistics))
        offset = sample.seconds - received_at
        with self._lock:
            known = self._offset
            if known is None or offset > known or known - offset > TICK_SECONDS:
                self._offset = offset
            self._sampled_at, self._last = received_at, sample
        return sample

    def now_seconds(self) -> float:
        """Return the server's time, at most a second too early."""
        if self._stale():
            self.sample()
        with self._lock:
            assert self._offset is not None
            return self._offset + time.monotonic()

    def lower_bounds(self) -> Sample:
        """Return a time and a count that the server has reached for certain."""
        now = self.now_seconds()
        with self._lock:
            return Sample(now, self._last.evictions)

    def _stale(self) -> bool:
        with self._lock:
            return self._offset is None or time.monotonic() - self._sampled_at > CACHE_SECONDS


def _evictions(statistics: dict[str, object]) -> int:
    return sum(
        int(str(statistics.get(name, 0))) for name in ("evictions", "slab_reassign_evictions_nomem")
    )
