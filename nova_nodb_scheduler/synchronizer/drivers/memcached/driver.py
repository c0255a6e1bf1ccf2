# SPDX-License-Identifier: Apache-2.0
"""The memcached driver: the contract, put together from its protocols."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.memcached import (
    clock,
    collection,
    connection,
    epochs,
    following,
    index,
    layout,
    options,
    server_check,
    steps,
    writing,
)
from nova_nodb_scheduler.synchronizer.drivers.support import batches, driver_base, record_names

PAGE_RECORDS = 500


class MemcachedSynchronizer(driver_base.Driver):
    """One client of one memcached server."""

    name = "memcached"
    GROUP, OPTS, SETTINGS = options.GROUP, options.OPTS, options.MemcachedOptions
    # Payloads below :data:`.server_check.ITEM_BYTES`, which hold name and headers, too.
    capabilities = contract.Capabilities(durable=False)
    STEPS = tuple(step.value for step in steps.Step)
    READS_PER_BATCH = WRITES_PER_BATCH = connection.KEYS_BESIDE_EPOCH

    def __init__(self, settings: options.MemcachedOptions) -> None:
        settings.check()
        self._settings = settings
        self._connection = connection.Connection(settings)
        super().__init__(self._connection.label, settings.poll_intervals())
        self._clock: clock.ServerClock = clock.ServerClock(self._connection)
        self._epochs = epochs.Epochs(settings, self._connection, self._clock, self._report_step)
        self._index = index.Index(self._connection, self._epochs, self._report_step)
        self._follower = following.Follower(
            settings, self._connection, self._clock, self._epochs, self._index, self._report_step
        )
        self._writer = writing.Writer(
            settings, self._connection, self._clock, self._epochs, self._index, self._report_step
        )
        self._collector = collection.Collector(
            *(self._connection, self._clock, self._epochs, self._index),
            *(self._follower, self._report_step),
        )
        self._stabilised_at = 0.0

    def _report_step(self, step: steps.Step) -> None:
        self.on_step(step.value)

    def _connect(self) -> None:
        self._connection.open()

    def _check(self) -> None:
        server_check.check(self._settings, self._connection)
        self._epochs.current()
        self._stabilised_at = time.monotonic()

    def _disconnect(self) -> None:
        self._connection.close()

    def _head(self) -> records.Cursor:
        watermarks = self._epochs.across(self._follower.watermarks)
        return records.Cursor(watermarks.epoch.name, watermarks.sequence)

    def _snapshot_cursor(self) -> records.Cursor:
        return self._epochs.across(self._follower.stabilise)

    def _fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        return self._follower.fetch(cursor, limit)

    def _read_batch(self, keys: Sequence[records.RecordKey]) -> Iterable[records.Record | None]:
        names = {record_names.encode(key) for key in keys}
        return self._epochs.across(functools.partial(self._read, names))

    def _read(self, names: Collection[bytes]) -> list[records.Record | None]:
        epoch, _version, found = self._epochs.get_beside_counter(
            lambda epoch: [epoch.record_key(name) for name in names]
        )
        missing = [name for name in names if epoch.record_key(name) not in found]
        # The index is asked where there is a doubt only: its pages are large.
        if missing and self._clock.sample().evictions:
            self._index.check_not_evicted(epoch, missing)
        return [layout.Item.decode(value).record for value in found.values()]

    def _write_batch(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        results = self._writer.write(writes)
        self._stabilise_now_and_then()
        return results

    def _collect(self, keep_seconds: float) -> contract.Collected:
        return self._epochs.across(functools.partial(self._collector.collect, keep_seconds))

    def _statistics(self) -> Mapping[str, int | float | str]:
        return self._epochs.across(self._count)

    def _reset(self) -> None:
        self._epochs.begin_anew()

    def _count(self) -> dict[str, int | float | str]:
        watermarks = self._follower.watermarks()
        epoch = watermarks.epoch
        names = set().union(*self._index.pages(epoch))
        found = self._connection.get(epoch.deletion_log_pages)
        announced: set[bytes] = set()
        for value in found.values():
            announced.update(layout.decode_deletions(value))
        dead = self._connection.get([epoch.record_key(name) for name in announced & names])
        kinds = [layout.Item.decode(value).kind for value in dead.values()]
        tombstones = kinds.count(layout.Kind.TOMBSTONE)
        hidden = kinds.count(layout.Kind.PLACEHOLDER) + kinds.count(layout.Kind.COLLECTED)
        server = self._connection.statistics()
        head = records.Cursor(epoch.name, watermarks.sequence)
        live, size_bytes = len(names) - tombstones - hidden, int(server["bytes"])
        return {
            **driver_base.totals(head, watermarks.floor, live, tombstones, size_bytes),
            "limit_bytes": int(server["limit_maxbytes"]),
            "evictions": int(server["evictions"]),
            "settled": watermarks.stable.version,
            **self._follower.shut_out(),
            "repeats": self._writer.repeats,
        }

    def _pages(
        self, cursor: records.Cursor, namespaces: Collection[str] | None
    ) -> Iterator[Sequence[records.Record]]:
        epoch = self._epochs.current()
        for names in self._index.pages(epoch):
            wanted = sorted(
                name
                for name in names
                if namespaces is None or record_names.decode(name).namespace in namespaces
            )
            for some in batches.split(wanted, PAGE_RECORDS):
                yield self._page(epoch, some)

    def _page(self, epoch: layout.Epoch, names: Sequence[bytes]) -> list[records.Record]:
        found = self._connection.get([epoch.record_key(name) for name in names])
        missing = [name for name in names if epoch.record_key(name) not in found]
        if missing:
            self._index.check_not_evicted(epoch, missing)
        standing = (layout.Item.decode(value).record for value in found.values())
        return [record for record in standing if record is not None]

    def _stabilise_now_and_then(self) -> None:
        """Keep the log stable where there is no reader, so that it may expire.

        The writes are done: a failure in this is nobody's.
        """
        now = time.monotonic()
        if now - self._stabilised_at < self._settings.log_ttl_seconds / 8:
            return
        self._stabilised_at = now
        with contextlib.suppress(errors.BackendUnavailable, epochs.EpochBroken):
            self._follower.stabilise()
