# SPDX-License-Identifier: Apache-2.0
"""The redis driver: the contract, put together from its protocols."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Self

from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.redis import (
    connection,
    epochs,
    following,
    housekeeping,
    layout,
    options,
    server_check,
    steps,
    writing,
)
from nova_nodb_scheduler.synchronizer.drivers.support import driver_base, opening

#: The server takes 512 MB, and serves nobody else while it moves them.
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
#: Nobody else is served while a script runs: 500 writes of 3 kB take some 10 ms.
WRITES_PER_CALL = 500
BYTES_PER_CALL = 2 * 1024 * 1024


class RedisSynchronizer(driver_base.Driver):
    """One client of one Redis or Valkey server."""

    name = "redis"
    GROUP, OPTS = options.GROUP, options.OPTS
    STEPS = tuple(step.value for step in steps.Step)
    WRITES_PER_BATCH = WRITES_PER_CALL
    BYTES_PER_BATCH = BYTES_PER_CALL

    def __init__(self, settings: options.RedisOptions) -> None:
        super().__init__()
        settings.check()
        self._settings = settings
        keys = layout.Keys.of(settings.key_prefix)
        self._connection = connection.Connection(settings)
        self._epochs = epochs.Epochs(settings, self._connection, keys, self._report_step)
        self._follower = following.Follower(settings, self._connection, keys, self._epochs)
        self._writer = writing.Writer(self._connection, keys, self._epochs, self._report_step)
        self._housekeeper = housekeeping.Housekeeper(
            self._connection, keys, self._epochs, self._report_step
        )
        self._opening = opening.Opening(
            self._connect, self._connection.close, self._connection.unavailable
        )

    @classmethod
    def from_config(cls, conf: cfg.ConfigOpts) -> Self:
        return cls(options.from_config(conf))

    @property
    def capabilities(self) -> contract.Capabilities:
        # Not durable whatever the server's persistence: what it reads back
        # after a restart may lack acknowledged writes, and does not say so.
        return contract.Capabilities(
            durable=False,
            shared=True,
            feed=contract.Feed.PUSH,
            max_payload_bytes=MAX_PAYLOAD_BYTES,
        )

    def open(self) -> None:
        self._opening.open(self._check)

    def _connect(self) -> None:
        self._settings.warn_of_plain_password()
        self._connection.open()
        self._epochs.forget()

    def _check(self) -> None:
        try:
            server_check.check(self._settings, self._housekeeper)
            self._epochs.renew()
        except errors.BackendUnavailable as error:
            refused = server_check.explain(self._settings, error)
            if refused is None:
                raise
            raise refused from error

    def close(self) -> None:
        self._opening.close()

    def head(self) -> records.Cursor:
        return self._follower.head()

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        return self._follower.snapshot(namespaces)

    def fetch(
        self, cursor: records.Cursor, limit: int = 1000
    ) -> records.Changes | records.ResyncNeeded:
        return self._follower.fetch(cursor, limit)

    def wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        return self._follower.wait(cursor, timeout_seconds, lambda: self._opening.is_open)

    def _read_batch(
        self, keys: Sequence[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        return self._follower.read(keys)

    def _write_batch(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        return self._writer.write(writes)

    def now_seconds(self) -> float:
        return self._housekeeper.now_seconds()

    def collect(self, keep_seconds: float) -> contract.Collected:
        return self._housekeeper.collect(keep_seconds)

    def statistics(self) -> Mapping[str, int | float | str]:
        return self._housekeeper.statistics()

    def reset(self) -> None:
        self._housekeeper.reset()

    def _report_step(self, step: steps.Step) -> None:
        self.on_step(step.value)
