# SPDX-License-Identifier: Apache-2.0
"""The write protocol: one script call per batch, never sent twice.

A call whose reply is lost may have been carried out. Sending it again would
answer LOST to a writer who won, so its outcome is reported as unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.redis import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.redis import epochs as epochs_module
from nova_nodb_scheduler.synchronizer.drivers.redis import layout, scripts, steps
from nova_nodb_scheduler.synchronizer.drivers.support import batches, epoch_memory, record_names


@attrs.frozen
class _Named:
    """A write and the name of its record; names are checked before anything is sent."""

    write: records.Write
    name: bytes


class Writer:
    """Carries out compare-and-sets; any thread may call."""

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

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        """Carry out a batch; see the contract."""
        named = [_Named(write, record_names.encode(write.key)) for write in writes]
        try:
            results = self._epochs.across(functools.partial(self._send, named))
        except connection_module.ReplyLost as error:
            self._observer(steps.Step.DONE)
            raise batches.Interrupted from error
        self._observer(steps.Step.DONE)
        return results

    def _send(self, batch: Sequence[_Named]) -> list[records.WriteResult]:
        epoch = self._epochs.current()
        self._observer(steps.Step.COMMIT)
        answer = self._connection.run(
            scripts.WRITE,
            self._keys.all,
            epoch.name,
            epoch.began,
            *_arguments(epoch, batch),
            on_sent=lambda: self._observer(steps.Step.REPLY),
        )
        if answer[0] != b"OK":
            # Nothing was written; a revision of the old epoch will lose.
            raise epoch_memory.EpochEnded
        won = [found for found in answer[1:] if isinstance(found, int)]
        self._epochs.memory.note_version(epoch.name, max(won, default=0))
        return [_result(epoch, each, found) for each, found in zip(batch, answer[1:], strict=True)]


def _arguments(epoch: layout.Epoch, batch: Sequence[_Named]) -> Iterator[bytes | int]:
    for each in batch:
        yield each.name
        yield epoch.version_of(each.write.expected_revision)
        yield b"D" if each.write.deleted else b"P"
        yield b"" if each.write.deleted else each.write.payload


def _result(epoch: layout.Epoch, each: _Named, found: Any) -> records.WriteResult:
    if isinstance(found, int):
        payload = None if each.write.deleted else each.write.payload
        record = epoch.record(each.name, found, payload)
        return records.WriteResult(records.Verdict.WON, record, epoch.name)
    version, standing = found
    return records.WriteResult(
        records.Verdict.LOST, epoch.record(each.name, version, standing) if version else None
    )
