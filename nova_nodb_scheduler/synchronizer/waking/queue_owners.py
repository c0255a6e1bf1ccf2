# SPDX-License-Identifier: Apache-2.0
"""Which scheduler grants which requests, so that they seldom want the same one.

Every digest belongs to one of the schedulers that work at the queue, by a rendezvous
hash: who comes or goes changes little. Who works at it tells so in its heartbeat. It is
only an agreement to save work: a grant is a compare-and-set, and what an owner lets lie
is taken over after a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import placing
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.replication import heartbeats

#: Field of a scheduler's heartbeat: whether it works at the queue.
FACT = "queue"

#: How often heartbeats are looked at.
_LOOK_SECONDS = 0.5


class QueueOwners:
    """Owners of digests as one scheduler sees them; any thread, no I/O.

    :param own: this worker's name, as of its heartbeat
    :param silent_seconds: see :class:`.heartbeats.SchedulerLiveness`
    :param works: whether this worker wakes requests now
    """

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        own: str,
        silent_seconds: float,
        works: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._heartbeats = heartbeats.Heartbeats(store, known_namespaces.SCHEDULERS.name)
        self._own = own
        self._silent_seconds = silent_seconds
        self._works = works
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = -_LOOK_SECONDS
        self._names: tuple[str, ...] = (own,)

    def is_own(self, digest: str) -> bool:
        """Say whether this worker grants the requests of a digest."""
        return placing.owner(digest, self.names()) == self._own

    def names(self) -> tuple[str, ...]:
        """Return who works at the queue, sorted; this worker only while it does itself."""
        now = self._clock()
        with self._lock:
            if now - self._looked_at >= _LOOK_SECONDS:
                self._looked_at = now
                self._names = self._look(now)
            return self._names

    def _look(self, now: float) -> tuple[str, ...]:
        view = self._store.snapshot().namespace(known_namespaces.SCHEDULERS.name)
        alive = self._heartbeats.alive(now, self._silent_seconds)
        names = {name for name in alive if (view.state(name) or {}).get(FACT)}
        names.discard(self._own)
        if self._works() or not names:
            names.add(self._own)
        return tuple(sorted(names))
