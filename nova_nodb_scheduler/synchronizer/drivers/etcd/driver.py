# SPDX-License-Identifier: Apache-2.0
"""The etcd driver: the contract, put together from its protocols."""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from oslo_config import cfg

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.etcd import (
    clock,
    connection,
    epochs,
    following,
    housekeeping,
    layout,
    options,
    reading,
    server_check,
    steps,
    writing,
)
from nova_nodb_scheduler.synchronizer.drivers.support import driver_base, opening

#: etcd's default --max-request-bytes is 1.5 MiB.
MAX_PAYLOAD_BYTES = 1_000_000


class EtcdSynchronizer(driver_base.Driver):
    """One client of one etcd cluster."""

    name = "etcd"
    GROUP, OPTS = options.GROUP, options.OPTS
    STEPS = tuple(step.value for step in steps.Step)
    WRITES_PER_BATCH = writing.WRITES_PER_TRANSACTION
    BYTES_PER_BATCH = writing.BYTES_PER_TRANSACTION
    READS_PER_BATCH = reading.KEYS_PER_TRANSACTION

    def __init__(self, settings: options.EtcdOptions) -> None:
        super().__init__()
        settings.check()
        self._settings = settings
        keys = layout.Layout(settings.key_prefix)
        self._clock: clock.ServerClock = clock.ServerClock(
            self._ask_anything, connection.label_of(settings)
        )
        self._connection = connection.Connection(settings, self._clock.note_date)
        self._epochs = epochs.Epochs(
            keys, self._connection, settings.cloud_name, self._clock.now_seconds
        )
        self._reader = reading.Reader(keys, self._connection, self._epochs)
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
        self._opening = opening.Opening(
            self._connect, self._connection.close, self._connection.unavailable
        )

    @classmethod
    def from_config(cls, conf: cfg.ConfigOpts) -> Self:
        return cls(options.from_config(conf))

    @property
    def capabilities(self) -> contract.Capabilities:
        return contract.Capabilities(
            durable=True,
            shared=True,
            feed=contract.Feed.PUSH,
            max_payload_bytes=MAX_PAYLOAD_BYTES,
            clock=contract.ClockSource.MEMBERS,
        )

    def open(self) -> None:
        self._opening.open(self._check)

    def _connect(self) -> None:
        server_check.check_files(self._settings)
        self._settings.warn_of_plain_password()
        self._connection.open()

    def _check(self) -> None:
        server_check.check_server(self._settings, self._connection)
        epochs.check_cloud(
            self._epochs.current(), self._settings.cloud_name, self._settings.key_prefix
        )
        self._epochs.require_one_life()

    def close(self) -> None:
        self._feed.close()
        self._opening.close()

    def head(self) -> records.Cursor:
        return self._epochs.read().cursor

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        meta = self._epochs.read()
        return contract.SnapshotPages(meta.cursor, self._reader.pages(meta, namespaces))

    def fetch(
        self, cursor: records.Cursor, limit: int = 1000
    ) -> records.Changes | records.ResyncNeeded:
        meta = self._epochs.read()
        refused = driver_base.resync_reason(cursor, meta.cursor, meta.floor)
        if refused is not None:
            return refused
        return self._feed.fetch(meta, cursor.version, limit)

    def wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        if not self._feed.is_watching(cursor):
            meta = self._epochs.read()
            if meta.cursor != cursor:
                return True
            self._feed.follow_from(meta, cursor.version)
        return self._feed.wait(cursor.version, deadline - time.monotonic())

    def _read_batch(
        self, keys: Sequence[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        return self._reader.read(keys)

    def _write_batch(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        return self._writer.write(writes)

    def size_of(self, write: records.Write) -> int:
        return writing.size_of(write)

    def collect(self, keep_seconds: float) -> contract.Collected:
        return self._housekeeper.collect(keep_seconds)

    def statistics(self) -> Mapping[str, int | float | str]:
        return {
            **self._housekeeper.statistics(),
            "watches": self._feed.watches,
            "times_not_told": self._clock.untold,
        }

    def reset(self) -> None:
        self._epochs.begin_anew()
        self._housekeeper.sweep(self._epochs.current())

    def _report_step(self, step: steps.Step) -> None:
        self.on_step(step.value)

    def _ask_anything(self) -> None:
        """Have an answer, for its Date."""
        key = layout.encode(layout.Layout(self._settings.key_prefix).epoch_key)
        self._connection.call("/kv/range", {"key": key})
