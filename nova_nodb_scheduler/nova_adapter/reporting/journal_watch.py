# SPDX-License-Identifier: Apache-2.0
"""Looks in heartbeat journals for what nobody reported, for the conductor that sweeps a cell.

Schedulers see it, too, and take Nova's own path until a sweep. But a ring is overwritten, and
who begins to read behind that sees nothing missing, while the sweep of a large cell lasts for
longer than a ring is long. So a conductor looks, and remembers what it found until it is swept.

Rings that no process writes any more it drops, once they are old.

It reads the journals whole, as it does services' records where those are written, and keeps
them in a store of its own, which goes when the last slot is gone.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Collection, Mapping
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
_JOURNALS: Final = known_namespaces.HEARTBEAT_JOURNALS.name
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
        #: By slot, its revision and since when it is seen to have it.
        self._unchanged: dict[str, tuple[int, float]] = {}

    def holds_some(self) -> bool:
        """Tell whether there are journals; where there were none at the last look, it looks.

        Whoever wrote one may be gone and forgotten since.

        :raises BackendUnavailable: nothing is known
        """
        return self._held is not None or any(self._synchronizer.snapshot([_JOURNALS]).pages)

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
        slots: dict[str, int] = {}
        try:
            for page in snapshot.pages:
                for record in page:
                    seen[record.key.namespace].add(record.key.key)
                    if record.key.namespace == _JOURNALS:
                        slots[record.key.key] = record.revision
                for _ in held.ingester.take(page):
                    pass
        except contract.SnapshotInterrupted as error:
            # Of another epoch by now, in which its cell is to be swept whatever is missing.
            LOG.debug("Heartbeat journals were not read to their end: %(error)s", {"error": error})
            return None
        self._note(slots)
        for name, keys in seen.items():
            held.store.retain(name, keys, snapshot.cursor.version)
        found = held.reader.unreported(held.store.snapshot())
        self._held = held if slots else None
        return snapshot.cursor if found.get(cell) else None

    def _note(self, slots: Mapping[str, int]) -> None:
        now = self._clock()
        before = self._unchanged
        self._unchanged = {}
        for key, revision in slots.items():
            known = before.get(key)
            is_same = known is not None and known[0] == revision
            self._unchanged[key] = known if known is not None and is_same else (revision, now)

    def drop_dead_rings(self, cell: str, written: Collection[str], keep_seconds: float) -> int:
        """Drop rings of a cell that no process writes, once none of their slots is young.

        As they were when it looked last. A process that is alive all the same, and was taken
        for gone, finds its slots gone and begins another ring.

        :param written: names of the rings that processes write
        :param keep_seconds: how long a ring is
        :returns: how many slots were dropped
        :raises BackendUnavailable: some may have been
        """
        rings: dict[str, list[str]] = collections.defaultdict(list)
        for key in self._unchanged:
            rings[key.rpartition(".")[0]].append(key)
        old_since = self._clock() - keep_seconds
        writes = [
            records.Write(
                records.RecordKey(_JOURNALS, each), self._unchanged[each][0], deleted=True
            )
            for ring, keys in rings.items()
            for each in keys
            if ring not in written
            and all(self._unchanged[key][1] <= old_since for key in keys)
            and all(self._cell_of(key) in (cell, None) for key in keys)
        ]
        if not writes:
            return 0
        results = self._synchronizer.write(writes)
        LOG.info(
            "%(count)d slots of heartbeat journals that nobody writes any more were dropped.",
            {"count": sum(result.won for result in results)},
        )
        return sum(result.won for result in results)

    def _cell_of(self, key: str) -> str | None:
        """Return which cell a slot is of; None where nobody can tell."""
        held = self._held
        view = None if held is None else held.store.snapshot().namespace(_JOURNALS)
        state = None if view is None else view.state(key)
        cell = None if state is None else state.get("cell")
        return cell if isinstance(cell, str) else None
