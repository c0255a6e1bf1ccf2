# SPDX-License-Identifier: Apache-2.0
"""Keeping house: collecting tombstones, starting over, counting, telling the time."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.redis import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.redis import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.redis import layout, scripts, steps
from nova_nodb_scheduler.synchronizer.drivers.support import driver_base, epoch_memory

#: Tombstones dropped in one call: some 5 ms, in which nobody else is served.
COLLECTION_LIMIT = 1000


class Housekeeper:
    """Looks after one server; any thread may call."""

    def __init__(
        self,
        connection: connection_module.Connection,
        keys: layout.Keys,
        epochs: epochs_module.Epochs,
        observer: steps.Observer,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._epochs = epochs
        self._observer = observer

    def collect(self, keep_seconds: float) -> contract.Collected:
        """See the contract; a feed without a log has no history to drop."""
        return self._epochs.across(functools.partial(self._collect, keep_seconds))

    def _collect(self, keep_seconds: float) -> contract.Collected:
        epoch = self._epochs.current()
        self._observer(steps.Step.COLLECT)
        try:
            answer = self._connection.run(
                scripts.COLLECT,
                self._keys.all,
                epoch.name,
                int(keep_seconds * 1000),
                COLLECTION_LIMIT,
            )
        except connection_module.ReplyLost as error:
            # Whoever collects next finds what was left.
            raise self._connection.unavailable(error) from error
        if answer[0] != b"OK":
            raise epoch_memory.EpochEnded
        return contract.Collected(answer[1], 0, answer[2])

    def reset(self) -> None:
        """See the contract."""
        self._epochs.renew("an operator asked for it")

    def now_seconds(self) -> float:
        """See the contract."""
        seconds, microseconds = self._connection.ask("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def statistics(self) -> Mapping[str, int | float | str]:
        """See the contract; ``bytes`` is what the whole server uses."""
        epoch, answer = self._epochs.read(scripts.HEAD)
        _verdict, version, floor, count, tombstones = answer
        memory = self.information("memory")
        head, used_bytes = records.Cursor(epoch.name, version), int(memory["used_memory"])
        totals = driver_base.totals(head, floor, count - tombstones, tombstones, used_bytes)
        return {**totals, "limit_bytes": int(memory.get("maxmemory", 0))}

    def rehearse(self) -> None:
        """Carry out every command of the driver, those of scripts on a key of its own."""
        self._connection.ask("XREAD", "COUNT", 1, "STREAMS", self._keys.wake, "$")
        try:
            self._connection.run(scripts.REHEARSAL, [self._keys.rehearsal])
        except connection_module.ReplyLost as error:
            raise self._connection.unavailable(error) from error

    def information(self, section: str) -> dict[str, str]:
        """Return a section of ``INFO``."""
        lines = self._connection.ask("INFO", section).decode(errors="replace").splitlines()
        pairs = (line.partition(":") for line in lines if ":" in line and line[0] != "#")
        return {name: value for name, _, value in pairs}
