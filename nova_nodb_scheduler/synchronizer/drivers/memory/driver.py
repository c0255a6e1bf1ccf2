# SPDX-License-Identifier: Apache-2.0
"""The memory driver: one client of a :class:`.hub.MemoryHub`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import attrs
from oslo_config import cfg

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.memory import faults, hub
from nova_nodb_scheduler.synchronizer.drivers.support import batches, driver_base, epoch_memory

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
    GROUP, OPTS, SETTINGS = GROUP, OPTS, MemoryOptions
    capabilities = contract.Capabilities(
        durable=False, shared=False, feed=contract.Feed.PUSH, max_payload_bytes=MAX_PAYLOAD_BYTES
    )
    # One step for a call, however large: a fault that is ordered meets all of it.
    WRITES_PER_BATCH = READS_PER_BATCH = None

    def __init__(
        self, options: MemoryOptions | None = None, shared_hub: hub.MemoryHub | None = None
    ) -> None:
        self._options = options or MemoryOptions()
        super().__init__(f"memory hub {self._options.hub_name}")
        self._hub = shared_hub
        self._memory = epoch_memory.EpochMemory()
        #: Faults of this client alone; ``hub.faults`` are everybody's.
        self.faults = faults.Faults(self._wake)

    @property
    def hub(self) -> hub.MemoryHub:
        """The hub this client belongs to; made at the first use."""
        if self._hub is None:
            self._hub = hub.MemoryHub.named(self._options.hub_name, self._options.history_entries)
        return self._hub

    def _check(self) -> None:
        if self._down:
            raise self._unavailable("it is down")

    def _disconnect(self) -> None:
        self._wake()

    def _head(self) -> records.Cursor:
        self._enter("head")
        return self.hub.head()

    def _snapshot_cursor(self) -> records.Cursor:
        self._enter("snapshot")
        return self.hub.head()

    def _pages(
        self, cursor: records.Cursor, namespaces: Collection[str] | None
    ) -> Iterator[Sequence[records.Record]]:
        for keys in batches.split(self.hub.keys(namespaces), PAGE_RECORDS):
            self._enter("snapshot")
            yield list(self.hub.read(keys).values())

    def _fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        self._enter("fetch")
        if self._frozen:
            return records.Changes((), cursor)
        return self.hub.fetch(cursor, limit)

    def _wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        self._enter("wait")
        news = self.hub.wait(
            cursor,
            timeout_seconds,
            silent=lambda: self._frozen,
            ended=lambda: self._down or not self._opening.is_open,
        )
        if self._down:
            raise self._unavailable("it went down")
        return news

    def _read_batch(self, keys: Sequence[records.RecordKey]) -> Iterable[records.Record]:
        self._enter("read")
        return self.hub.read(keys).values()

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

    def _now_seconds(self) -> float:
        self._enter("now")
        return self.hub.now_seconds()

    def _collect(self, keep_seconds: float) -> contract.Collected:
        self._enter("collect")
        return self.hub.collect(keep_seconds)

    def _statistics(self) -> Mapping[str, int | float | str]:
        self._enter("read")
        return self.hub.statistics()

    def _reset(self) -> None:
        self._suffer("write")
        self.hub.begin_epoch(self._memory.number_above(0))

    @property
    def _down(self) -> bool:
        return self.faults.down or self._common_faults.down

    @property
    def _frozen(self) -> bool:
        return self.faults.frozen or self._common_faults.frozen

    @property
    def _common_faults(self) -> faults.Faults:
        """Those of all clients of the hub."""
        return self.hub.faults

    def _carry_out(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        if not self._options.single_key:
            return self.hub.write(writes)
        # One step per key, so that others come between as with a real engine.
        return [result for write in writes for result in self.hub.write([write])]

    def _wake(self) -> None:
        self.hub.wake()

    def _enter(self, operation: str) -> faults.Fault | None:
        """Suffer an ordered fault; then meet no epoch older than one that was seen."""
        fault = self._suffer(operation)
        self.hub.admit(self._memory, self._unavailable)
        return fault

    def _suffer(self, operation: str) -> faults.Fault | None:
        """Suffer an ordered fault, this client's before everybody's."""
        fault = self.faults.take(operation) or self._common_faults.take(operation)
        if fault is faults.Fault.UNAVAILABLE:
            raise self._unavailable("it is down")
        return fault
