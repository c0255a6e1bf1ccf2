# SPDX-License-Identifier: Apache-2.0
"""Reading: the feed, snapshots in pages, waiting for something new, records by key.

The server gives versions one at a time, in the order in which scripts run, so
whatever stands above a cursor is all there is: nothing below it can still
appear. The sorted set of versions is the feed and the index of records at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.redis import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.redis import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.redis import layout, options, scripts
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory, record_names

RECORDS_PER_PAGE = 500
#: Names looked at in one call where only some namespaces are wanted: some 2 ms.
NAMES_PER_PAGE = 5000
#: One reply at the most, but for a single larger record.
BYTES_PER_REPLY = 4 * 1024 * 1024
_FETCH_LIMIT = 1000


class Follower:
    """Reads; any thread may call."""

    def __init__(
        self,
        settings: options.RedisOptions,
        connection: connection_module.Connection,
        keys: layout.Keys,
        epochs: epochs_module.Epochs,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._keys = keys
        self._epochs = epochs

    def head(self) -> records.Cursor:
        """See the contract."""
        return self._epochs.across(self._head)

    def _head(self) -> records.Cursor:
        seen = self._epochs.version_seen()
        epoch, answer = self._epochs.read(scripts.HEAD)
        if self._epochs.has_gone_back(epoch, answer[1], seen):
            raise epoch_memory.EpochEnded
        return records.Cursor(epoch.name, answer[1])

    def read(self, keys: Sequence[records.RecordKey]) -> dict[records.RecordKey, records.Record]:
        """Read a batch; see the contract."""
        names = [record_names.encode(key) for key in keys]
        epoch, answer = self._epochs.read(scripts.READ, *names)
        return {
            key: epoch.record(name, version, payload)
            for key, name, (version, payload) in zip(keys, names, answer[1:], strict=True)
            if version
        }

    def fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        """See the contract."""
        reason = records.ResyncReason
        seen = self._epochs.version_seen()
        epoch, answer = self._epochs.read(
            scripts.FETCH, cursor.version, min(limit, _FETCH_LIMIT), BYTES_PER_REPLY
        )
        if epoch.name != cursor.epoch:
            return records.ResyncNeeded(reason.EPOCH_CHANGED, f"the epoch is {epoch.name}")
        if answer[0] == b"BEHIND":
            if self._epochs.has_gone_back(epoch, answer[1], seen):
                return records.ResyncNeeded(
                    reason.EPOCH_CHANGED, f"epoch {epoch.name} went back to version {answer[1]}"
                )
            return records.ResyncNeeded(reason.HEAD_BEHIND_CURSOR, f"the head is {answer[1]}")
        if answer[0] == b"TRUNCATED":
            return records.ResyncNeeded(reason.HISTORY_TRUNCATED, f"the floor is {answer[1]}")
        self._epochs.memory.note_version(epoch.name, answer[1])
        return records.Changes(
            tuple(_records(epoch, answer[3:])),
            records.Cursor(epoch.name, answer[1]),
            more=bool(answer[2]),
        )

    def snapshot(self, namespaces: Collection[str] | None) -> contract.SnapshotPages:
        """See the contract."""
        cursor = self.head()
        return contract.SnapshotPages(cursor, self._pages(cursor.epoch, namespaces))

    def wait(
        self, cursor: records.Cursor, timeout_seconds: float, is_open: Callable[[], bool]
    ) -> bool:
        """See the contract; ends early where the client is closed.

        The stream's entries carry epoch and version, so reading behind the
        cursor's place in it misses no wake-up that comes between looking and
        blocking. Looking again now and then bounds what a lost one costs.
        """
        deadline = time.monotonic() + timeout_seconds
        epoch = layout.Epoch.parse(cursor.epoch)
        while is_open():
            if epoch is None or self.head() != cursor:
                return True
            left_seconds = min(
                deadline - time.monotonic(),
                self._settings.wake_check_seconds,
                # The answer must come before the connection's own time-out.
                self._settings.timeout_seconds / 2,
            )
            if left_seconds <= 0:
                return False
            if self._blocks(f"{epoch.began}-{cursor.version}", left_seconds):
                return True
        return False

    def _blocks(self, entry: str, seconds: float) -> bool:
        """Wait for a stream entry behind the given one; False if none came."""
        milliseconds = max(1, int(seconds * 1000))
        try:
            answer = self._connection.ask(
                "XREAD", "BLOCK", milliseconds, "STREAMS", self._keys.wake, entry
            )
        except errors.BackendUnavailable as error:
            if "UNBLOCKED" not in str(error.__cause__):
                raise
            # The server was demoted: the next look at the head tells.
            return True
        return bool(answer)

    def _pages(
        self, epoch_name: str, namespaces: Collection[str] | None
    ) -> Iterator[Sequence[records.Record]]:
        """Walk all records by version.

        One that is written meanwhile moves behind the others and is met there
        again, so the walk misses none; one that dies is left out.
        """
        if namespaces is not None and not namespaces:
            return
        names = RECORDS_PER_PAGE if namespaces is None else NAMES_PER_PAGE
        wanted = tuple(sorted(namespaces or ()))
        version = 0
        while version >= 0:
            epoch, answer = self._epochs.read(
                scripts.PAGE, version, names, RECORDS_PER_PAGE, BYTES_PER_REPLY, *wanted
            )
            if epoch.name != epoch_name:
                raise contract.SnapshotInterrupted(f"the epoch is {epoch.name}")
            page = list(_records(epoch, answer[2:]))
            if page:
                yield page
            version = answer[1]


def _records(epoch: layout.Epoch, flat: Sequence[Any]) -> Iterator[records.Record]:
    """Read the triples of name, version and payload that scripts answer with."""
    for at in range(0, len(flat), 3):
        yield epoch.record(flat[at], flat[at + 1], flat[at + 2])
