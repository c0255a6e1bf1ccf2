# SPDX-License-Identifier: Apache-2.0
"""Which schedulers live, as their beats in the own store show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import beats

#: How often beats are looked at.
_LOOK_SECONDS = 0.5


class LivingSchedulers:
    """Names of the scheduler workers whose beats change; any thread, no I/O.

    Only roughly right: a beat is late with the feed, and a dead worker's stays
    for a while.

    :param own: this worker's name; it always lives
    :param silent_seconds: a beat that did not change for that long, by this
        process's own clock, is a dead worker's; several beats' interval
    """

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        own: str,
        silent_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._beats = beats.Beats(store, namespaces.SCHEDULERS.name)
        self._own = own
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = -_LOOK_SECONDS
        self._names: tuple[str, ...] = (own,)

    def __call__(self) -> tuple[str, ...]:
        """Return the names, sorted."""
        now = self._clock()
        if now - self._looked_at >= _LOOK_SECONDS and self._lock.acquire(blocking=False):
            try:
                self._look(now)
            finally:
                self._lock.release()
        return self._names

    def _look(self, now: float) -> None:
        self._looked_at = now
        living = self._beats.living(now, self._silent_seconds)
        self._names = tuple(sorted(living | {self._own}))
