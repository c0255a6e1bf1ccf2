# SPDX-License-Identifier: Apache-2.0
"""Waits for slow writers, and shuts them out: how a version comes to be stable.

A log slot that is not there was either never written (its writer crashed or is
slow) or was written and has expired since. Taking the second for the first
would skip a change in silence. It was never written if its version was given
out so lately that it could not have expired: an observation "at that time the
counter stood below it" says so.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Sequence

import attrs
from oslo_log import log

from nova_nodb_scheduler.synchronizer.drivers.memcached import clock as clock_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.memcached import layout, options, steps

LOG = log.getLogger(__name__)

#: Enough to go back half a time to live in steps of a thousandth of it.
KEPT = 1024


class Observations:
    """Observations of the epoch in force; any thread may call."""

    def __init__(self, spacing_seconds: float) -> None:
        self._spacing_seconds = spacing_seconds
        self._lock = threading.Lock()
        self._epoch = ""
        self._seen: list[layout.StableVersion] = []

    def add(self, epoch: str, seen: layout.StableVersion) -> None:
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

    def latest(self, epoch: str, version: int) -> layout.StableVersion | None:
        """Return the latest observation of a counter not above a version."""
        with self._lock:
            if epoch != self._epoch:
                return None
            place = bisect.bisect_right(self._seen, version, key=lambda seen: seen.version)
            return self._seen[place - 1] if place else None


FENCE_ATTEMPTS = 20
#: A void must outlast every pause of the writer it shuts out, and so the log: where it
#: is gone, the writer's ``add`` succeeds, and wins with a version that readers have
#: passed. It is the longest that memcached takes, 30 days; a void takes about 100 bytes.
VOID_TTL_SECONDS = 30 * 24 * 3600
#: Versions that are being waited for; beyond it the oldest are timed anew.
PENDING_KEPT = 10_000


class Unproven(Exception):
    """An empty slot may have expired, or may have been evicted."""


class VoidedLate(Unproven):
    """A log slot was voided that may have been written before: the void must go again."""

    def __init__(self, version: int) -> None:
        super().__init__(f"slot {version} may have expired before it was voided")
        self.version = version


class RecordGone(Exception):
    """A slot's record is missing: collected, or evicted."""

    def __init__(self, name: bytes) -> None:
        super().__init__(name)
        self.name = name


@attrs.define(eq=False)
class Fencing:
    """The versions one client waits for; any thread may call.

    :param seen: proofs that an empty slot was never written
    """

    _settings: options.MemcachedOptions
    _connection: connection_module.Connection
    _clock: clock_module.ServerClock
    _seen: Observations
    _at: steps.Observer
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    #: Versions waited for, and since when by the monotonic clock.
    _pending: dict[tuple[str, int], float] = attrs.field(init=False, factory=dict)
    #: For statistics.
    voids: int = attrs.field(init=False, default=0)
    fences: int = attrs.field(init=False, default=0)

    def begin_waiting(self, epoch: layout.Epoch, versions: Sequence[int]) -> None:
        """Note since when versions are waited for: all at once.

        One after the other, the versions of a writer that crashed in a large
        batch would hold up the feed for their number times the wait.
        """
        now = time.monotonic()
        with self._lock:
            if len(self._pending) > PENDING_KEPT:
                self._pending.clear()
            for version in versions:
                self._pending.setdefault((epoch.name, version), now)

    def is_overdue(self, epoch: layout.Epoch, version: int) -> bool:
        """Return whether a version was waited for long enough."""
        now = time.monotonic()
        with self._lock:
            since = self._pending.get((epoch.name, version), now)
        return now - since >= self._settings.fence_after_seconds

    def forget_pending(self, epoch: layout.Epoch, stable_version: int) -> None:
        with self._lock:
            self._pending = {
                (name, version): since
                for (name, version), since in self._pending.items()
                if name == epoch.name and version > stable_version
            }

    def void_if_overdue(
        self, epoch: layout.Epoch, stable: layout.StableVersion, version: int
    ) -> bytes | None:
        """Return what stands in an empty slot in the end; None: wait on.

        :raises Unproven: the slot may have held something
        """
        if not self.is_overdue(epoch, version):
            return None
        self._prove_never_written(epoch, stable, version)
        key = epoch.slot_key(version)
        self._at(steps.Step.VOID)
        [line] = self._connection.send_all(
            [connection_module.store(b"add", key, layout.VOID, ttl_seconds=VOID_TTL_SECONDS)]
        )
        if line != b"STORED":
            # Its writer was faster, or another reader.
            return self._connection.get([key]).get(key)
        try:
            # Once more: this client may have stood still before the add, for so long
            # that the slot was written, read by others, and has expired.
            self._prove_never_written(epoch, stable, version)
        except Unproven as error:
            raise VoidedLate(version) from error
        self.voids += 1
        LOG.info(
            "Version %(version)s of epoch %(epoch)s was never used: voided",
            {"version": version, "epoch": epoch.name},
        )
        return layout.VOID

    def _prove_never_written(
        self, epoch: layout.Epoch, stable: layout.StableVersion, version: int
    ) -> None:
        """See :mod:`.fencing`.

        :raises Unproven: it cannot be proved
        """
        candidates = [self._seen.latest(epoch.name, version - 1)]
        if stable.version < version:
            candidates.append(stable)
        proofs = [proof for proof in candidates if proof is not None]
        if not proofs:
            raise Unproven(f"slot {version} is missing, and may have expired")
        proof = max(proofs, key=lambda proof: proof.since_seconds)
        now = self._clock.sample()
        if now.seconds - proof.since_seconds > self._settings.log_ttl_seconds / 2:
            raise Unproven(f"slot {version} is missing, and has probably expired")
        if now.evictions != proof.evictions:
            raise Unproven(f"slot {version} is missing, and may have been evicted")

    def fence_if_overdue(
        self, epoch: layout.Epoch, version: int, name: bytes
    ) -> layout.Item | None:
        """Return the record once it stands at a version; None: wait on."""
        if not self.is_overdue(epoch, version):
            return None
        key = epoch.record_key(name)
        for _ in range(FENCE_ATTEMPTS):
            held = self._connection.gets([key]).get(key)
            if held is None:
                raise RecordGone(name)
            item = layout.Item.decode(held[0])
            if item.version >= version:
                return item
            fenced = attrs.evolve(item, version=version)
            self._at(steps.Step.FENCE)
            command = connection_module.store(b"cas", key, fenced.encode(), token=held[1])
            if self._connection.send_all([command]) == (b"STORED",):
                self.fences += 1
                LOG.info(
                    "The writer of %(record)s took version %(version)s and did not write: shut out",
                    {"record": item.key, "version": version},
                )
                return fenced
        return None
