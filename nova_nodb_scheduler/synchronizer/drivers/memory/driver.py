# SPDX-License-Identifier: Apache-2.0
"""The memory driver: one client of a :class:`.hub.MemoryHub`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Self

import attrs
from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.memory import faults, hub
from nova_nodb_scheduler.synchronizer.drivers.support import driver_base, epoch_memory

GROUP = "nodb_memory"
PAGE_RECORDS = 1000
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "hub_name",
        default="default",
        help="""
Name of the hub inside this process: clients that name the same hub share its
records. Nothing leaves the process, so this driver is of use in tests and in
simulations only.
""",
    ),
    cfg.BoolOpt(
        "single_key",
        default=False,
        help="""
Carry out each write of a batch in a step of its own, between which others may
come, as memcached and Cassandra do. Turn it on to see that the protocols above
do without more.
""",
    ),
    cfg.IntOpt(
        "history_entries",
        default=100_000,
        min=1,
        help="""
How many changes the feed keeps. A reader that lags by more takes a snapshot;
raise it where readers are slow, lower it to save memory (about 100 bytes each).
""",
    ),
]


@attrs.frozen
class MemoryOptions:
    """Options of one client; see :data:`OPTS`."""

    hub_name: str = "default"
    single_key: bool = False
    history_entries: int = 100_000


class MemorySynchronizer(driver_base.Driver):
    """A client of a hub.

    :param shared_hub: the hub to use instead of the process's hub of
        ``options.hub_name``
    """

    name = "memory"
    GROUP, OPTS = GROUP, OPTS
    # One step for a call, however large: a fault that is ordered meets all of it.
    WRITES_PER_BATCH = READS_PER_BATCH = None

    def __init__(
        self, options: MemoryOptions | None = None, shared_hub: hub.MemoryHub | None = None
    ) -> None:
        super().__init__()
        self._options = options or MemoryOptions()
        self._hub = shared_hub
        self._open = False
        self._memory = epoch_memory.EpochMemory()
        #: Faults of this client alone; ``hub.faults`` are everybody's.
        self.faults = faults.Faults(self._wake)

    @classmethod
    def from_config(cls, conf: cfg.ConfigOpts) -> Self:
        group = conf[GROUP]
        return cls(MemoryOptions(group.hub_name, group.single_key, group.history_entries))

    @property
    def hub(self) -> hub.MemoryHub:
        """The hub this client belongs to; made at the first use."""
        if self._hub is None:
            self._hub = hub.MemoryHub.named(self._options.hub_name, self._options.history_entries)
        return self._hub

    @property
    def capabilities(self) -> contract.Capabilities:
        return contract.Capabilities(
            durable=False,
            shared=False,
            feed=contract.Feed.PUSH,
            max_payload_bytes=MAX_PAYLOAD_BYTES,
        )

    def open(self) -> None:
        if self._down:
            raise self._unavailable("it is down")
        self._open = True

    def close(self) -> None:
        self._open = False
        self._wake()

    def head(self) -> records.Cursor:
        self._enter("head")
        return self.hub.head()

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        self._enter("snapshot")
        cursor = self.hub.head()
        return contract.SnapshotPages(cursor, self._pages(cursor.epoch, namespaces))

    def fetch(
        self, cursor: records.Cursor, limit: int = 1000
    ) -> records.Changes | records.ResyncNeeded:
        self._enter("fetch")
        if self._frozen:
            return records.Changes((), cursor)
        return self.hub.fetch(cursor, limit)

    def wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        self._enter("wait")
        news = self.hub.wait(
            cursor,
            timeout_seconds,
            silent=lambda: self._frozen,
            ended=lambda: self._down or not self._open,
        )
        if self._down:
            raise self._unavailable("it went down")
        return news

    def read(
        self, keys: Collection[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        self._enter("read")
        return super().read(keys)

    def _read_batch(
        self, keys: Sequence[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        return self.hub.read(keys)

    def _write_batch(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        fault = self._enter("write")
        unknown = [records.WriteResult(records.Verdict.UNKNOWN) for _ in writes]
        if fault is faults.Fault.LATE:
            self.hub.delay(writes)
            return unknown
        if fault is faults.Fault.REQUEST_LOST:
            return unknown
        results = self._carry_out(writes)
        return unknown if fault is faults.Fault.REPLY_LOST else results

    def now_seconds(self) -> float:
        self._enter("now")
        return self.hub.now_seconds()

    def collect(self, keep_seconds: float) -> contract.Collected:
        self._enter("collect")
        return self.hub.collect(keep_seconds)

    def statistics(self) -> Mapping[str, int | float | str]:
        self._enter("read")
        return self.hub.statistics()

    def reset(self) -> None:
        self._suffer("write")
        self.hub.begin_epoch(self._memory.number_above(0))

    @property
    def _down(self) -> bool:
        return self.faults.down or self.hub.faults.down

    @property
    def _frozen(self) -> bool:
        return self.faults.frozen or self.hub.faults.frozen

    def _carry_out(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        if not self._options.single_key:
            return self.hub.write(writes)
        # One step per key, so that others come between as with a real engine.
        return [result for write in writes for result in self.hub.write([write])]

    def _pages(
        self, epoch: str, namespaces: Collection[str] | None
    ) -> Iterator[Sequence[records.Record]]:
        found_epoch, keys = self.hub.keys(namespaces)
        for start in range(0, len(keys), PAGE_RECORDS):
            self._enter("snapshot")
            page = self.hub.live(epoch, keys[start : start + PAGE_RECORDS])
            if page is None:
                break
            if page:
                yield page
        if found_epoch != epoch or self.hub.head().epoch != epoch:
            raise contract.SnapshotInterrupted(epoch)

    def _wake(self) -> None:
        self.hub.wake()

    def _enter(self, operation: str) -> faults.Fault | None:
        """Suffer an ordered fault; then meet no epoch older than one that was seen."""
        fault = self._suffer(operation)
        self.hub.admit(self._memory, self._unavailable)
        return fault

    def _suffer(self, operation: str) -> faults.Fault | None:
        """Suffer an ordered fault, this client's before everybody's."""
        if not self._open:
            raise self._unavailable("the client is not open")
        fault = self.faults.take(operation) or self.hub.faults.take(operation)
        if fault is faults.Fault.UNAVAILABLE:
            raise self._unavailable("it is down")
        return fault

    def _unavailable(self, reason: str) -> errors.BackendUnavailable:
        return errors.BackendUnavailable(f"memory hub {self._options.hub_name}", reason)
