# SPDX-License-Identifier: Apache-2.0
"""The redis driver: the feed, snapshots, reads and writes, each of them a script on the server.

The server gives versions one at a time, in the order in which scripts run, so
whatever stands above a cursor is all there is: nothing below it can still
appear. The sorted set of versions is the feed and the index of records at once.

A batch of writes is one script call, never sent twice. A call whose reply is lost
may have been carried out: sending it again would answer LOST to a writer who won,
so its outcome is reported as unknown.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.redis import (
    connection,
    epochs,
    layout,
    options,
    scripts,
    server_check,
    steps,
)
from nova_nodb_scheduler.synchronizer.drivers.support import (
    batches,
    driver_base,
    epoch_memory,
    record_names,
)

#: The server takes 512 MB, and serves nobody else while it moves them.
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
#: One reply at the most, but for a single larger record.
BYTES_PER_REPLY = 4 * 1024 * 1024
RECORDS_PER_PAGE = 500
#: Names looked at in one call where only some namespaces are wanted: some 2 ms.
NAMES_PER_PAGE = 5000
_FETCH_LIMIT = 1000
#: Tombstones dropped in one call: some 5 ms, in which nobody else is served.
COLLECTION_LIMIT = 1000


class RedisSynchronizer(driver_base.Driver):
    """One client of one Redis or Valkey server."""

    name = "redis"
    GROUP, OPTS, SETTINGS = options.GROUP, options.OPTS, options.RedisOptions
    STEPS = tuple(step.value for step in steps.Step)
    # Nobody else is served while a script runs: 500 writes of 3 kB take some 10 ms.
    WRITES_PER_BATCH = 500
    BYTES_PER_BATCH = 2 * 1024 * 1024
    # Not durable whatever the server's persistence: what it reads back
    # after a restart may lack acknowledged writes, and does not say so.
    capabilities = contract.Capabilities(
        durable=False, feed=contract.Feed.PUSH, max_payload_bytes=MAX_PAYLOAD_BYTES
    )

    def __init__(self, settings: options.RedisOptions) -> None:
        settings.check()
        self._settings = settings
        self._keys = layout.Keys.of(settings.key_prefix)
        self._connection = connection.Connection(settings)
        self._epochs = epochs.Epochs(settings, self._connection, self._keys, self._report_step)
        super().__init__(self._connection.label)

    def _report_step(self, step: steps.Step) -> None:
        self.on_step(step.value)

    # --- life ---

    def _connect(self) -> None:
        self._settings.warn_of_plain_password()
        self._connection.open()
        self._epochs.look_again()

    def _check(self) -> None:
        try:
            server_check.check(self._settings, self._connection, self._keys)
            self._epochs.renew()
        except errors.BackendUnavailable as error:
            refused = server_check.explain(self._settings, error)
            if refused is None:
                raise
            raise refused from error

    def _disconnect(self) -> None:
        self._connection.close()

    # --- reading ---

    def _head(self) -> records.Cursor:
        return self._epochs.across(self._read_head)

    def _read_head(self) -> records.Cursor:
        seen = self._epochs.version_seen()
        epoch, answer = self._epochs.read(scripts.HEAD)
        if self._epochs.has_gone_back(epoch, answer[1], seen):
            raise epoch_memory.EpochEnded
        return records.Cursor(epoch.name, answer[1])

    def _fetch(self, cursor: records.Cursor, limit: int) -> records.Changes | records.ResyncNeeded:
        reason = records.ResyncReason
        seen = self._epochs.version_seen()
        epoch, answer = self._epochs.read(
            scripts.FETCH, cursor.version, min(limit, _FETCH_LIMIT), BYTES_PER_REPLY
        )
        if epoch.name != cursor.epoch:
            return records.ResyncNeeded(reason.EPOCH_CHANGED, f"the epoch is {epoch.name}")
        if answer[0] == b"TRUNCATED":
            return records.ResyncNeeded(reason.HISTORY_TRUNCATED, f"the floor is {answer[1]}")
        # Of a cursor that is far behind, too: writers have seen more than their feed.
        if self._epochs.has_gone_back(epoch, answer[1], seen):
            return records.ResyncNeeded(
                reason.EPOCH_CHANGED, f"epoch {epoch.name} went back to version {answer[1]}"
            )
        if answer[0] == b"BEHIND":
            return records.ResyncNeeded(reason.HEAD_BEHIND_CURSOR, f"the head is {answer[1]}")
        return records.Changes(
            tuple(_records(epoch, answer[4:])),
            records.Cursor(epoch.name, answer[2]),
            more=bool(answer[3]),
        )

    def _wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        """See the contract; ends early where the client is closed.

        The stream's entries carry epoch and version, so reading behind the
        cursor's place in it misses no wake-up that comes between looking and
        blocking. Looking again now and then bounds what a lost one costs.
        """
        deadline = time.monotonic() + timeout_seconds
        epoch = layout.Epoch.parse(cursor.epoch)
        while self._opening.is_open:
            if epoch is None or self._head() != cursor:
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
        self, cursor: records.Cursor, namespaces: Collection[str] | None
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
            yield list(_records(epoch, answer[2:]))
            version = answer[1]

    def _read_batch(self, keys: Sequence[records.RecordKey]) -> Iterable[records.Record]:
        return self._epochs.across(functools.partial(self._read, keys))

    def _read(self, keys: Sequence[records.RecordKey]) -> list[records.Record]:
        names = [record_names.encode(key) for key in keys]
        seen = self._epochs.version_seen()
        epoch, answer = self._epochs.read(scripts.READ, *names)
        if self._epochs.has_gone_back(epoch, answer[1], seen):
            raise epoch_memory.EpochEnded
        return [
            epoch.record(name, version, payload)
            for name, (version, payload) in zip(names, answer[2:], strict=True)
            if version
        ]

    # --- writing ---

    def _write_batch(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        # Names are checked before anything is sent.
        names = [record_names.encode(write.key) for write in writes]
        try:
            results = self._epochs.across(functools.partial(self._send, writes, names))
        except connection.ReplyLost as error:
            self._report_step(steps.Step.DONE)
            raise batches.Interrupted from error
        self._report_step(steps.Step.DONE)
        return results

    def _send(
        self, writes: Sequence[records.Write], names: Sequence[bytes]
    ) -> list[records.WriteResult]:
        seen = self._epochs.version_seen()
        epoch = self._epochs.current()
        self._report_step(steps.Step.COMMIT)
        answer = self._epochs.run(
            epoch,
            scripts.WRITE,
            epoch.began,
            *_arguments(epoch, writes, names),
            on_sent=lambda: self._report_step(steps.Step.REPLY),
        )
        won = [found for found in answer[2:] if isinstance(found, int)]
        if self._epochs.is_behind(epoch, answer[1], seen):
            # Old data that were put back: what was written there now ends with them.
            if won:
                self._epochs.look_again()
                return [batches.UNKNOWN] * len(writes)
            self._epochs.renew()
            raise epoch_memory.EpochEnded
        self._epochs.note_version(epoch, max(won, default=0))
        return [
            _result(epoch, write, name, found)
            for write, name, found in zip(writes, names, answer[2:], strict=True)
        ]

    # --- keeping house ---

    def _now_seconds(self) -> float:
        seconds, microseconds = self._connection.ask("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def _collect(self, keep_seconds: float) -> contract.Collected:
        """See the contract; a feed without a log has no history to drop."""
        return self._epochs.across(functools.partial(self._collect_some, keep_seconds))

    def _collect_some(self, keep_seconds: float) -> contract.Collected:
        epoch = self._epochs.current()
        self._report_step(steps.Step.COLLECT)
        keep_milliseconds = int(keep_seconds * 1000)
        try:
            answer = self._epochs.run(epoch, scripts.COLLECT, keep_milliseconds, COLLECTION_LIMIT)
        except connection.ReplyLost as error:
            # Whoever collects next finds what was left.
            raise self._unavailable(error) from error
        return contract.Collected(answer[1], 0, answer[2])

    def _statistics(self) -> Mapping[str, int | float | str]:
        """See the contract; ``bytes`` is what the whole server uses."""
        epoch, answer = self._epochs.read(scripts.HEAD)
        _verdict, version, floor, count, tombstones = answer
        memory = self._connection.information("memory")
        head, used_bytes = records.Cursor(epoch.name, version), int(memory["used_memory"])
        totals = driver_base.totals(head, floor, count - tombstones, tombstones, used_bytes)
        return {**totals, "limit_bytes": int(memory.get("maxmemory", 0))}

    def _reset(self) -> None:
        self._epochs.renew("an operator asked for it")


def _records(epoch: layout.Epoch, flat: Sequence[Any]) -> Iterator[records.Record]:
    """Read the triples of name, version and payload that scripts answer with."""
    for at in range(0, len(flat), 3):
        yield epoch.record(flat[at], flat[at + 1], flat[at + 2])


def _arguments(
    epoch: layout.Epoch, writes: Sequence[records.Write], names: Sequence[bytes]
) -> Iterator[bytes | int]:
    for write, name in zip(writes, names, strict=True):
        yield name
        yield epoch.version_of(write.expected_revision)
        yield b"D" if write.deleted else b"P"
        yield b"" if write.deleted else write.payload


def _result(
    epoch: layout.Epoch, write: records.Write, name: bytes, found: Any
) -> records.WriteResult:
    if isinstance(found, int):
        record = epoch.record(name, found, None if write.deleted else write.payload)
        return records.WriteResult(records.Verdict.WON, record, epoch.name)
    version, standing = found
    return records.WriteResult(
        records.Verdict.LOST, epoch.record(name, version, standing) if version else None
    )
