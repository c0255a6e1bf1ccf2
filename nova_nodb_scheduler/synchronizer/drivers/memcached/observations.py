# SPDX-License-Identifier: Apache-2.0
"""What this client saw of the counter and when: proof that a hole is a hole.

A log slot that is not there was either never written (its writer crashed or is
slow) or was written and has expired since. Taking the second for the first
would skip a change in silence. It was never written if its version was given
out so lately that it could not have expired: an observation "at that time the
counter stood below it" says so.
"""

from __future__ import annotations

import bisect
import threading

from nova_nodb_scheduler.synchronizer.drivers.memcached import layout

#: Enough to go back half a time to live in steps of a thousandth of it.
KEPT = 1024


class Observations:
    """Observations of the epoch in force; any thread may call."""

    def __init__(self, spacing_seconds: float) -> None:
        self._spacing_seconds = spacing_seconds
        self._lock = threading.Lock()
        self._epoch = ""
        self._seen: list[layout.Settled] = []

    def add(self, epoch: str, seen: layout.Settled) -> None:
        """Note that after a time the counter stood at a version."""
        with self._lock:
            if epoch != self._epoch:
                self._epoch, self._seen = epoch, []
            last = self._seen[-1] if self._seen else None
            if last and seen.version < last.version:
                return
            if last and last.version == seen.version:
                # The later of two at the same version proves more.
                self._seen[-1] = seen
                return
            if len(self._seen) > 1:
                before = self._seen[-2]
                if seen.since_seconds - before.since_seconds < self._spacing_seconds:
                    self._seen[-1] = seen
                    return
            self._seen.append(seen)
            del self._seen[:-KEPT]

    def latest(self, epoch: str, version: int) -> layout.Settled | None:
        """Return the latest observation of a counter not above a version."""
        with self._lock:
            if epoch != self._epoch:
                return None
            place = bisect.bisect_right(self._seen, version, key=lambda seen: seen.version)
            return self._seen[place - 1] if place else None
