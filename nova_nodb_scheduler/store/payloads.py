# SPDX-License-Identifier: Apache-2.0
"""The payloads of one namespace in one epoch, packed when that costs least."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.store import chunks, keeping

#: So many changes of one namespace at once come of a snapshot, or of a storm.
_ENOUGH_TO_BUNDLE = 64


class Payloads:
    """What a table keeps of its records' payloads. Not thread-safe."""

    def __init__(self, packing: keeping.Packing) -> None:
        self.packing = packing
        #: Numbers of chunks that hold payloads as they came.
        self._unpacked: set[int] = set()

    def kept(
        self, changes: Sequence[records.Change], numbers: Sequence[int]
    ) -> Sequence[keeping.Kept]:
        """Return payloads as they are to be kept.

        :param numbers: of the chunks that they will stand in
        """
        return self._together(changes) or list(map(self._alone, changes, numbers))

    def _together(self, changes: Sequence[records.Change]) -> Sequence[keeping.Kept]:
        """Return payloads packed together; nothing where they are too few.

        A bundle stays until its last record is replaced. Records of a snapshot
        are replaced one by one, and records of a feed, too, which would leave
        many bundles with few records each.
        """
        if len(changes) < _ENOUGH_TO_BUNDLE:
            return ()
        texts = [change.text for change in changes if change.text is not None]
        if len(texts) < len(changes):
            return ()
        return self.packing.pack_many([change.record.payload for change in changes], texts)

    def _alone(self, change: records.Change, number: int) -> bytes:
        """Return a payload packed where that costs no decompression."""
        payload = change.record.payload
        if len(payload) < self.packing.least_bytes:
            return payload
        if change.text is not None:
            return self.packing.pack(payload, change.text)
        self._unpacked.add(number)
        return payload

    def pack(self, most_records: int, chunk_of: Callable[[int], chunks.Chunk | None]) -> int:
        """Pack chunks until so many records were looked at; return how many were.

        :param chunk_of: chunks by number; None for one that is gone
        """
        looked_at = 0
        while self._unpacked and looked_at < most_records:
            chunk = chunk_of(self._unpacked.pop())
            if chunk is None:
                continue
            # Not copied before, though snapshots may see it: to them the
            # payload is the same before and after.
            for offset in chunk.live.nonzero()[0]:
                kept = chunk.payloads[offset]
                if isinstance(kept, bytes):
                    chunk.payloads[offset] = self.packing.pack(kept)
            looked_at += chunk.live_count
        return looked_at
