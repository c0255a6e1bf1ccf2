# SPDX-License-Identifier: Apache-2.0
"""What a move has brought into its target: records that nobody else writes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract

LOG = logging.getLogger(__name__)

_BATCH_RECORDS = 500
_BATCH_BYTES = 4 << 20
_ROUNDS = 8

#: Payloads by key; None for a record that shall be gone.
_Wanted = Mapping[records.RecordKey, bytes | None]


class Carried:
    """Brings records into a target; used by one thread."""

    def __init__(self, target: contract.Synchronizer) -> None:
        self._target = target
        #: Of what was written or found there; 0: no live record.
        self._revisions: dict[records.RecordKey, int] = {}
        #: What was put there and not dropped since.
        self.keys: set[records.RecordKey] = set()

    def put(self, batch: Sequence[records.Record]) -> None:
        """Bring live records to the target.

        What no record may be called any more is left behind, and said.

        :raises PayloadTooLarge: the target cannot hold one of them
        :raises BackendUnavailable: some may have been written
        """
        unnamed = [record.key for record in batch if record.key.fault is not None]
        if unnamed:
            LOG.warning(
                "%(count)d records are left behind, for no record may have their names; for "
                "example %(example)s: %(fault)s",
                {"count": len(unnamed), "example": unnamed[0], "fault": unnamed[0].fault},
            )
            batch = [record for record in batch if record.key.fault is None]
        self._write({record.key: record.payload for record in batch})
        self.keys.update(record.key for record in batch)

    def drop(self, keys: Sequence[records.RecordKey]) -> None:
        """Delete records from the target; raises as :meth:`put` does."""
        self._write(dict.fromkeys(keys))
        self.keys.difference_update(keys)

    def _write(self, wanted: _Wanted) -> None:
        limit_bytes = self._target.capabilities.max_payload_bytes
        for key, payload in wanted.items():
            if payload is not None and len(payload) > limit_bytes:
                raise errors.PayloadTooLarge(str(key), len(payload), limit_bytes)
        for part in _parts(wanted):
            left: _Wanted = part
            for _ in range(_ROUNDS):
                left = self._write_once(left)
                if not left:
                    break
            else:
                raise errors.BackendUnavailable(
                    self._target.name, f"somebody else writes {next(iter(left))} in it"
                )

    def _write_once(self, wanted: _Wanted) -> dict[records.RecordKey, bytes | None]:
        """Write what is wanted; returns what was not known to be written."""
        unknown = [key for key in wanted if key not in self._revisions]
        if unknown:
            for key, record in self._target.read(unknown).items():
                self._revisions[key] = 0 if record.deleted else record.revision
        writes = [
            records.Write(key, self._revisions.get(key, 0), payload or b"", deleted=payload is None)
            for key, payload in wanted.items()
            if payload is not None or self._revisions.get(key)
        ]
        left: dict[records.RecordKey, bytes | None] = {}
        for write, result in zip(writes, self._target.write(writes), strict=True):
            if result.won and result.record is not None:
                self._revisions[write.key] = 0 if write.deleted else result.record.revision
            else:
                self._revisions.pop(write.key, None)
                left[write.key] = wanted[write.key]
        return left


def _parts(
    wanted: Mapping[records.RecordKey, bytes | None],
) -> list[dict[records.RecordKey, bytes | None]]:
    """Cut a batch into writes of a bounded size."""
    parts: list[dict[records.RecordKey, bytes | None]] = []
    size_bytes = _BATCH_BYTES
    for key, payload in wanted.items():
        if size_bytes >= _BATCH_BYTES or len(parts[-1]) >= _BATCH_RECORDS:
            parts.append({})
            size_bytes = 0
        parts[-1][key] = payload
        size_bytes += len(payload or b"")
    return parts
