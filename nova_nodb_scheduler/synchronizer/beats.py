# SPDX-License-Identifier: Apache-2.0
"""Since when each process's beat did not change, by this process's own clock."""

from __future__ import annotations

from collections.abc import Mapping

from nova_nodb_scheduler.store import host_state_store


class Beats:
    """The beats of one namespace, as the own store shows them; one thread at a time.

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
        """Look at all beats; return of each its revision, and when that was first seen.

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

    def living(self, now: float, silent_seconds: float) -> frozenset[str]:
        """Look at all beats; return the names of those that changed within so many seconds.

        :param now: see :meth:`seen`
        """
        seen = self.seen(now)
        return frozenset(name for name, (_, at) in seen.items() if now - at < silent_seconds)
