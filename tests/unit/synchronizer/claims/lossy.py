# SPDX-License-Identifier: Apache-2.0
"""A client of any driver whose writes get lost on their way there, or back.

What the memory driver does to its own clients, before a driver that cannot.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Collection, Mapping, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import memory


class Wire:
    """Writes under way between all clients of a back end and the back end; any thread.

    :ivar lost: how many writes met which fault
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._late: list[Sequence[records.Write]] = []
        self.lost: collections.Counter[memory.Fault] = collections.Counter()

    def note(self, fault: memory.Fault) -> None:
        with self._lock:
            self.lost[fault] += 1

    def delay(self, writes: Sequence[records.Write]) -> None:
        with self._lock:
            self._late.append(writes)

    def deliver_late(self, client: contract.Synchronizer) -> None:
        """Let delayed writes arrive; nobody is told what became of them."""
        with self._lock:
            late, self._late = self._late, []
        for writes in late:
            with contextlib.suppress(errors.BackendUnavailable):
                client.write(writes)


class LossyClient(contract.Synchronizer):
    """A driver's client; one thread orders faults and calls."""

    def __init__(self, inner: contract.Synchronizer, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire
        self.name = inner.name
        self._fault: memory.Fault | None = None
        self._writes_before = 0

    def lose(self, fault: memory.Fault, writes_before: int) -> None:
        """Let one of the next writes fail; an order that was not carried out yet is forgotten."""
        self._fault, self._writes_before = fault, writes_before

    def deliver_late(self) -> None:
        self._wire.deliver_late(self._inner)

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        fault = self._take()
        if fault is None:
            return self._inner.write(writes)
        self._wire.note(fault)
        if fault is memory.Fault.UNAVAILABLE:
            raise errors.BackendUnavailable(self.name, "the test says so")
        if fault is memory.Fault.LATE:
            self._wire.delay(writes)
        elif fault is memory.Fault.REPLY_LOST:
            self._inner.write(writes)
        return [records.WriteResult(records.Verdict.UNKNOWN) for _ in writes]

    def _take(self) -> memory.Fault | None:
        if self._fault is None:
            return None
        if self._writes_before:
            self._writes_before -= 1
            return None
        fault, self._fault = self._fault, None
        return fault

    # -- unchanged --------------------------------------------------------------------

    @property
    def capabilities(self) -> contract.Capabilities:
        return self._inner.capabilities

    def open(self) -> None:
        self._inner.open()

    def close(self) -> None:
        self._inner.close()

    def head(self) -> records.Cursor:
        return self._inner.head()

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        return self._inner.snapshot(namespaces)

    def fetch(
        self, cursor: records.Cursor, limit: int = 1000
    ) -> records.Changes | records.ResyncNeeded:
        return self._inner.fetch(cursor, limit)

    def wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        return self._inner.wait(cursor, timeout_seconds)

    def read(
        self, keys: Collection[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        return self._inner.read(keys)

    def now_seconds(self) -> float:
        return self._inner.now_seconds()

    def collect(self, keep_seconds: float) -> contract.Collected:
        return self._inner.collect(keep_seconds)

    def statistics(self) -> Mapping[str, int | float | str]:
        return self._inner.statistics()

    def reset(self) -> None:
        self._inner.reset()
