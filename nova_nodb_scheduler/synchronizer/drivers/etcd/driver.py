# SPDX-License-Identifier: Apache-2.0
"""The etcd driver: reads, linearizable and in portions of bounded size; the rest by its parts."""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.etcd import (
    clock,
    connection,
    epochs,
    failures,
    following,
    housekeeping,
    layout,
    options,
    server_check,
    steps,
    transactions,
    writing,
)
from nova_nodb_scheduler.synchronizer.drivers.support import driver_base, epoch_memory

PAGE_RECORDS = 1000
#: A page of the next size is asked for by the size of the last one's records.
PAGE_BYTES = 16 * 1024 * 1024
_FIRST_PAGE_RECORDS = 100


class EtcdSynchronizer(driver_base.Driver):
    """One client of one etcd cluster."""

    name = "etcd"
    GROUP, OPTS, SETTINGS = options.GROUP, options.OPTS, options.EtcdOptions
    # As much as etcd's default --max-request-bytes of 1.5 MiB lets through.
    capabilities = contract.Capabilities(
        durable=True, feed=contract.Feed.PUSH, clock=contract.ClockSource.MEMBERS
    )
    STEPS = tuple(step.value for step in steps.Step)
    WRITES_PER_BATCH = writing.WRITES_PER_TRANSACTION
    BYTES_PER_BATCH = writing.BYTES_PER_TRANSACTION
    READS_PER_BATCH = 100

    def __init__(self, settings: options.EtcdOptions) -> None:
        super().__init__(connection.label_of(settings))
        settings.check()
        self._settings = settings
        self._keys = keys = layout.Layout(settings.key_prefix)
        self._clock: clock.ServerClock = clock.ServerClock(
            self._ask_anything, connection.label_of(settings)
        )
        self._connection = connection.Connection(settings, self._clock.note_date)
        self._epochs = epochs.Epochs(
            keys, self._connection, settings.cloud_name, self._clock.now_seconds
        )
        self._feed = following.Feed(
            keys,
            self._connection,
            functools.partial(following.Stream, settings, self._connection),
            settings.timeout_seconds,
        )
        self._writer = writing.Writer(
            keys,
            self._connection,
            self._epochs,
            settings.timeout_seconds,
            self._clock.now_seconds,
            self._report_step,
        )
        self._housekeeper = housekeeping.Housekeeper(
            keys,
            self._connection,
            self._epochs,
            self._clock.now_seconds,
            self._report_step,
            compacts=settings.compact,
        )

    def _connect(self) -> None:
        server_check.check_files(self._settings)
        self._settings.warn_of_plain_password()
        self._connection.open()
        self._feed.open()

    def _check(self) -> None:
        server_check.check_server(self._settings, self._connection)
        epochs.check_cloud(
            self._epochs.current(), self._settings.cloud_name, self._settings.key_prefix
        )
        self._epochs.require_one_life()

    def _disconnect(self) -> None:
        self._feed.close()
        self._connection.close()

    def _head(self) -> records.Cursor:
        return self._epochs.read().cursor

    def _pages(
        self, cursor: records.Cursor, namespaces: Collection[str] | None
    ) -> Iterator[Sequence[records.Record]]:
        """Read all records as they stood at one revision.

        Where etcd is compacted meanwhile, the rest is read as it stands then:
        the feed tells of what came between.
        """
        meta = self._epochs.read()
        epoch = meta.epoch
        everything = self._keys.records_of(epoch.name)
        ranges = [(everything, layout.past(everything))]
        if namespaces is not None:
            ranges = [self._keys.namespace_range(epoch.name, name) for name in sorted(namespaces)]
        revision, limit = meta.store_revision, _FIRST_PAGE_RECORDS
        for begin, end in ranges:
            more = True
            while more:
                request = transactions.get_range(
                    begin, end, limit=str(limit), revision=str(revision)
                )["request_range"]
                try:
                    reply = self._connection.call("/kv/range", request)
                except failures.Failure:
                    revision = 0
                    continue
                if reply["header"]["cluster_id"] != epoch.cluster:
                    # Which holds nothing below the epoch's keys, and may be left again.
                    raise epoch_memory.EpochEnded(f"another cluster than of {epoch.cursor_name}")
                found = reply.get("kvs", ())
                more = bool(reply.get("more"))
                if not found:
                    break
                begin = layout.key_of(found[-1]) + b"\x00"
                read = [self._keys.decode_record(epoch, held) for held in found]
                mean_bytes = 1 + sum(len(record.payload) for record in read) // len(read)
                # No more than tenfold at once: the next may be larger than these.
                limit = max(1, min(PAGE_RECORDS, 10 * limit, PAGE_BYTES // mean_bytes))
                yield read

    def _fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        meta = self._epochs.read()
        refused = driver_base.resync_reason(cursor, meta.cursor, meta.floor)
        if refused is not None:
            return refused
        return self._feed.fetch(meta, cursor.version, limit)

    def _wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        if not self._feed.is_watching(cursor):
            meta = self._epochs.read()
            if meta.cursor != cursor:
                return True
            self._feed.follow_from(meta, cursor.version)
        return self._feed.wait(cursor.version, deadline - time.monotonic())

    def _read_batch(self, keys: Sequence[records.RecordKey]) -> Iterable[records.Record]:
        return self._epochs.across(functools.partial(self._read, keys))

    def _read(self, wanted: Sequence[records.RecordKey]) -> list[records.Record]:
        epoch, witness = self._epochs.current(), self._epochs.witness
        # Beside the records, what was seen before: a store that was put back holds the epoch.
        seen = [] if witness is None else [witness.operation(self._keys)]
        shown = [transactions.get(self._keys.record_key(epoch.name, key)) for key in wanted]
        look = transactions.transaction([self._epochs.compare(epoch)], [*shown, *seen])
        try:
            reply = self._connection.call("/kv/txn", look)
        except failures.Failure as failure:
            if witness is None:
                raise
            self._epochs.question(witness, failure)
            raise epoch_memory.EpochEnded from failure
        same_cluster = reply["header"]["cluster_id"] == epoch.cluster
        if (
            not same_cluster
            or not transactions.succeeded(reply)
            or (witness is not None and witness.is_contradicted(transactions.last(reply)))
        ):
            self._epochs.forget(epoch)
            raise epoch_memory.EpochEnded
        held = [transactions.first(reply, place) for place in range(len(wanted))]
        return [self._keys.decode_record(epoch, each) for each in held if each]

    def _write_batch(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        return self._writer.write(writes)

    def size_of(self, write: records.Write) -> int:
        return writing.size_of(write)

    def _collect(self, keep_seconds: float) -> contract.Collected:
        return self._housekeeper.collect(keep_seconds)

    def _statistics(self) -> Mapping[str, int | float | str]:
        return {
            **self._housekeeper.statistics(),
            "watches": self._feed.watches,
            "times_not_told": self._clock.untold,
        }

    def _reset(self) -> None:
        self._epochs.begin_anew()
        self._housekeeper.sweep(self._epochs.current())

    def _report_step(self, step: steps.Step) -> None:
        self.on_step(step.value)

    def _ask_anything(self) -> None:
        """Have an answer, for its Date."""
        key = layout.encode(self._keys.epoch_key)
        self._connection.call("/kv/range", {"key": key})
