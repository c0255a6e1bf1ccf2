# SPDX-License-Identifier: Apache-2.0
"""Slow chores beside the feed: the back end's past, and the heartbeats of the dead.

Every replicator does them, for nobody is chosen to: collecting is safe by
several at once, and a heartbeat is removed by compare-and-set, which its owner's
next one wins against.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.replication import heartbeats

LOG = logging.getLogger(__name__)


class FeedHousekeeping:
    """Chores of one replicator; used by its thread alone.

    :param namespace: of the replicators' own records
    :param keep_seconds: how much of the back end's past stays
    :param silent_seconds: a heartbeat that did not change for that long, by this
        process's own clock, is a dead process's
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        namespace: namespaces.Namespace,
        *,
        interval_seconds: float,
        keep_seconds: float,
        silent_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._synchronizer = synchronizer
        self._store = store
        self._namespace = namespace.name
        self._interval_seconds = interval_seconds
        self._keep_seconds = keep_seconds
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._next_at = 0.0
        self._seen = heartbeats.Heartbeats(store, namespace.name)

    def restart(self) -> None:
        """Begin to count anew: revisions of another epoch say nothing."""
        self._seen.forget()
        self._next_at = self._clock() + self._interval_seconds

    def step(self, cursor: records.Cursor) -> None:
        """Do the chores if it is time; blocks for a few requests at most.

        :param cursor: up to where the store has applied the feed
        :raises BackendUnavailable: the rest is done next time
        """
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + self._interval_seconds
        collected = self._synchronizer.collect(self._keep_seconds)
        # Nothing up to here can come again, by feed or by snapshot.
        self._store.forget_tombstones(min(collected.floor, cursor.version) + 1)
        self._remove(self._silent_keys())

    def _silent_keys(self) -> dict[str, int]:
        """Return the revisions of the heartbeats that fell silent, by key."""
        now = self._clock()
        return {
            key: revision
            for key, (revision, since) in self._seen.seen(now).items()
            if now - since >= self._silent_seconds
        }

    def _remove(self, silent: dict[str, int]) -> None:
        if not silent:
            return
        self._synchronizer.write(
            [
                records.Write(records.RecordKey(self._namespace, key), revision, deleted=True)
                for key, revision in silent.items()
            ]
        )
        LOG.info(
            "Removed the beats of %(count)d processes that are silent for more than "
            "%(seconds)g s: %(keys)s",
            {
                "count": len(silent),
                "seconds": self._silent_seconds,
                "keys": ", ".join(sorted(silent)[:10]),
            },
        )
