# SPDX-License-Identifier: Apache-2.0
"""Which host is held for which request, and which one is worth holding.

While a host is held, what is freed on it goes to nobody but the request it is held for.
So the first of a class, that fits nowhere while smaller ones behind it go on, gets its room
in the end. A request holds one host at most, and a host is held for one request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting.order import resource_axis


class HostHolds:
    """Holds as the records say; O(1) each. Not safe for threads.

    Two schedulers may write the same host into two records at the same moment: then the
    one whose lease ends first has it, and of equal ones the lesser key, for every reader.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, pending.Hold] = {}
        self._by_host: dict[str, set[str]] = {}
        self._ended: dict[str, None] = {}
        self._last: dict[str, str] = {}

    def put(self, key: str, hold: pending.Hold | None) -> None:
        """Say what a request's record holds."""
        old = self._by_key.get(key)
        if old == hold:
            return
        if old is not None:
            self._forget(key, old, is_renewed=hold is not None and hold.host == old.host)
        if hold is not None:
            self._by_key[key] = hold
            self._last[key] = hold.host
            self._by_host.setdefault(hold.host, set()).add(key)

    def drop(self, key: str) -> None:
        """Forget a request."""
        self.put(key, None)
        self._last.pop(key, None)

    def last(self, key: str) -> str | None:
        """Return the host that was held for a request the last time."""
        return self._last.get(key)

    def holder(self, host: str, now: float) -> str | None:
        """Return for whom a host is held."""
        keys = self._by_host.get(host)
        if not keys:
            return None
        living = [
            (hold.until_seconds, key)
            for key in keys
            if (hold := self._by_key[key]).until_seconds > now
        ]
        return min(living)[1] if living else None

    def held(self, key: str, now: float) -> str | None:
        """Return the host that is held for a request."""
        hold = self._by_key.get(key)
        if hold is None or self.holder(hold.host, now) != key:
            return None
        return hold.host

    def all(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield (host, key of the request it is held for)."""
        for host in self._by_host:
            key = self.holder(host, now)
            if key is not None:
                yield host, key

    def take_ended(self) -> tuple[str, ...]:
        """Return hosts that are held no longer; each once."""
        ended = tuple(self._ended)
        self._ended.clear()
        return ended

    def end_overdue(self, now: float) -> None:
        """Notice holds whose lease ended; O(holds)."""
        for key, hold in list(self._by_key.items()):
            if hold.until_seconds <= now:
                self._forget(key, hold, is_renewed=False)

    def _forget(self, key: str, hold: pending.Hold, *, is_renewed: bool) -> None:
        del self._by_key[key]
        keys = self._by_host[hold.host]
        keys.discard(key)
        if not keys:
            del self._by_host[hold.host]
        if not is_renewed:
            self._ended[hold.host] = None


def choose_host(
    needs: resource_axis.Vector,
    hosts: Sequence[str],
    free: resource_axis.Vector,
    whole: resource_axis.Vector,
    *,
    avoid: str | None = None,
) -> str | None:
    """Return the host on which the least must be freed for one server; None where none is enough.

    The least: of the resource class of which most is missing, by the part of what the server
    takes; then of all together; then the lesser uuid, so that all schedulers choose alike.

    :param needs: of one server, shape (columns,)
    :param hosts: node uuids that would take it if they were empty, and are held for nobody
    :param free: what they have, shape (n, columns)
    :param whole: what they have when empty, shape (n, columns)
    :param avoid: a host that was held in vain; chosen only where there is no other
    """
    enough: list[int] = np.flatnonzero((whole >= needs).all(axis=1)).tolist()
    if not enough:
        return None
    enough = [row for row in enough if hosts[row] != avoid] or enough
    asked = np.maximum(needs, 1)
    missing = np.maximum(needs - free[enough], 0) / asked
    greatest, together = missing.max(axis=1, initial=0.0), missing.sum(axis=1)
    missed = zip(greatest.tolist(), together.tolist(), strict=True)
    return min(zip(missed, (hosts[row] for row in enough), strict=True))[1]
