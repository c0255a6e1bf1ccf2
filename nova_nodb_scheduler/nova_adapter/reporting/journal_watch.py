# SPDX-License-Identifier: Apache-2.0
"""Looks in heartbeat journals for what nobody reported, for the conductor that sweeps a cell.

Schedulers see it, too, and take Nova's own path until a sweep. But a ring is overwritten, and
who begins to read behind that sees nothing missing, while the sweep of a large cell lasts for
longer than a ring is long. So a conductor looks, and remembers what it found until it is swept.

It reads the journals whole, as it does services' records where those are written, and keeps
them in a store of its own, which goes when the last slot is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.facts import journal_follower, journal_reader
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

_READ: Final = (
    known_namespaces.HEARTBEAT_JOURNALS,
    known_namespaces.SERVICE_LIVENESS,
    known_namespaces.CELLS,
)
_MOST_KEPT_ASIDE: Final = 1000


class _Held:
    """What the back end held when it was looked at last."""

    def __init__(
        self,
        epoch: str,
        make_follower: Callable[[], journal_follower.JournalFollower],
        clock: Callable[[], float],
    ) -> None:
        self.epoch = epoch
        self.store = host_state_store.HostStateStore(_READ, codec.decode_state)
        self.ingester = ingest.Ingester(self.store, _READ, ingest.Quarantine(_MOST_KEPT_ASIDE))
        self.reader = journal_reader.JournalReader(make_follower, lambda: self.epoch, clock)


class JournalWatch:
    """One per conductor; the thread that sweeps.

    :param make_follower: makes a follower that has read nothing
    :param clock: monotonic, seconds
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        make_follower: Callable[[], journal_follower.JournalFollower],
        clock: Callable[[], float],
    ) -> None:
        self._synchronizer = synchronizer
        self._make_follower = make_follower
        self._clock = clock
        self._held: _Held | None = None

    @property
    def holds_some(self) -> bool:
        """Whether there were journals when it looked last."""
        return self._held is not None

    def unreported(self, cell: str) -> records.Cursor | None:
        """Look for heartbeats of a cell that nobody reported.

        :returns: None where there are none; else where the back end's head was. A sweep that
            began there, or behind it, makes them good
        :raises BackendUnavailable: nothing is known
        """
        snapshot = self._synchronizer.snapshot([each.name for each in _READ])
        epoch = snapshot.cursor.epoch
        held = self._held
        if held is None or held.epoch != epoch:
            held = _Held(epoch, self._make_follower, self._clock)
        seen: dict[str, set[str]] = {each.name: set() for each in _READ}
        try:
            for page in snapshot.pages:
                for record in page:
                    seen[record.key.namespace].add(record.key.key)
                for _ in held.ingester.take(page):
                    pass
        except contract.SnapshotInterrupted as error:
            # Of another epoch by now, in which its cell is to be swept whatever is missing.
            LOG.debug("Heartbeat journals were not read to their end: %(error)s", {"error": error})
            return None
        for name, keys in seen.items():
            held.store.retain(name, keys, snapshot.cursor.version)
        found = held.reader.unreported(held.store.snapshot())
        self._held = held if seen[known_namespaces.HEARTBEAT_JOURNALS.name] else None
        return snapshot.cursor if found.get(cell) else None
