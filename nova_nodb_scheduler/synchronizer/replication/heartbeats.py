# SPDX-License-Identifier: Apache-2.0
"""Which processes live, as their heartbeats in the own store show.

A heartbeat is a record that its process rewrites while it lives. Who is silent is
told by this process's own clock: since when it has not seen the record change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store


class Heartbeats:
    """The heartbeats of one namespace, as the own store shows them; one thread at a time.

    :param namespace: whose records the processes rewrite while they live
    """

    def __init__(self, store: host_state_store.HostStateStore, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._seen: dict[str, tuple[int, float]] = {}

    def forget(self) -> None:
        """Begin to count anew: revisions of another epoch say nothing."""
        self._seen = {}

    def seen(self, now: float) -> Mapping[str, tuple[int, float]]:
        """Look at all heartbeats; return of each its revision, and when that was first seen.

        :param now: seconds, by the same clock in each call
        """
        view = self._store.snapshot().namespace(self._namespace)
        seen: dict[str, tuple[int, float]] = {}
        for key in view.row_keys():
            stored = view.get(key)
            if stored is not None:
                known = self._seen.get(key)
                changed = known is None or known[0] != stored.revision
                seen[key] = (stored.revision, now) if changed or known is None else known
        self._seen = seen
        return seen

    def alive(self, now: float, silent_seconds: float) -> frozenset[str]:
        """Look at all heartbeats; return the names of those that changed within so many seconds.

        :param now: see :meth:`seen`
        """
        seen = self.seen(now)
        return frozenset(name for name, (_, at) in seen.items() if now - at < silent_seconds)


#: How often heartbeats are looked at.
_LOOK_SECONDS = 0.5


class SchedulerLiveness:
    """Names of the scheduler workers whose heartbeats change; any thread, no I/O.

    Only roughly right: a heartbeat is late with the feed, and a dead worker's stays
    for a while.

    :param own: this worker's name; it always lives
    :param silent_seconds: a heartbeat that did not change for that long, by this
        process's own clock, is a dead worker's; several heartbeats' interval
    """

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        own: str,
        silent_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heartbeats = Heartbeats(store, known_namespaces.SCHEDULERS.name)
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
        alive = self._heartbeats.alive(now, self._silent_seconds)
        self._names = tuple(sorted(alive | {self._own}))
