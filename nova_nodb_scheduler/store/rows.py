# SPDX-License-Identifier: Apache-2.0
"""Where records stand: keys lead to rows, and rows are parts of chunks.

A row belongs to its key until the record is removed; the lowest free one is
taken next, so that rows stay dense.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import immutables

from nova_nodb_scheduler.store import chunks, numbers, transient

#: Returns the text that is kept of a key elsewhere; None for none.
SameKey = Callable[[str], str | None]


class Rows:
    """The rows of one namespace in one epoch. Not thread-safe.

    :param make_chunk: returns an empty chunk of a generation
    """

    def __init__(self, make_chunk: Callable[[int], chunks.Chunk]) -> None:
        self._make_chunk = make_chunk
        #: Of the chunks that are written from now on.
        self._generation = 0
        #: Bytes copied since the start because a snapshot saw them.
        self.bytes_copied = 0
        self._rows: transient.Transient[str, int] = transient.Transient()
        self._chunks: transient.Transient[int, chunks.Chunk] = transient.Transient()
        self._row_count = 0
        #: A heap: the lowest free row is taken first.
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows.open())

    def by_key(self) -> immutables.MapMutation[str, int]:
        """Return the rows of all keys; of use until the next :meth:`freeze`."""
        return self._rows.open()

    def key(self, key: str) -> str | None:
        """Return the text that is kept of a key; None where there is no such record."""
        row = self._rows.open().get(key)
        return None if row is None else self.chunk_of(row).keys[row % chunks.CHUNK_ROWS]

    def revision(self, row: int) -> int:
        """Return the revision of the record in a row."""
        return self.chunk_of(row).revisions.item(row % chunks.CHUNK_ROWS)

    def of(self, keys: Sequence[str], kin: Sequence[SameKey]) -> tuple[list[int], Sequence[str]]:
        """Return the rows of keys, new ones for those that have none, and the texts to keep.

        :param kin: who may keep equal keys already
        """
        known = self._rows.open()
        rows = [known.get(key) for key in keys]
        if None not in rows:
            return rows, keys  # type: ignore[return-value]
        first = keys[rows.index(None)]
        # Keys of a page come of one source: the first one tells for all.
        same = next((each for each in kin if each(first) is not None), None)
        texts = list(keys)
        for at, key in enumerate(keys):
            if rows[at] is None:
                text = key if same is None else same(key) or key
                texts[at] = text
                rows[at] = known[text] = self._take()
        return rows, texts  # type: ignore[return-value]

    def release(self, key: str, row: int) -> None:
        """Free the row of a key that is gone; its chunk was made writable before."""
        number, offset = divmod(row, chunks.CHUNK_ROWS)
        chunk = self.writable(number)
        chunk.clear(offset)
        if not chunk.live_count:
            del self._chunks.open()[number]
        del self._rows.open()[key]
        heapq.heappush(self._free, row)

    def _take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._row_count += 1
        return numbers.shared(self._row_count - 1)

    # -- chunks -------------------------------------------------------------------

    def chunk_of(self, row: int) -> chunks.Chunk:
        """Return the chunk that a row in use is part of."""
        return self._chunks.open()[row // chunks.CHUNK_ROWS]

    def chunk(self, number: int) -> chunks.Chunk | None:
        """Return a chunk; None where no row of it is in use."""
        return self._chunks.open().get(number)

    def writable(self, number: int) -> chunks.Chunk:
        """Return a chunk that no snapshot sees: new, own, or copied now."""
        chunk = self._chunks.open().get(number)
        if chunk is None:
            chunk = self._make_chunk(self._generation)
        elif chunk.generation == self._generation:
            return chunk
        else:
            self.bytes_copied += chunk.size_bytes
            chunk = chunk.copy(self._generation)
        self._chunks.open()[number] = chunk
        return chunk

    def freeze(self) -> tuple[immutables.Map[str, int], immutables.Map[int, chunks.Chunk]]:
        """Return rows by key and chunks by number, which nothing changes any more."""
        self._generation += 1
        return self._rows.freeze(), self._chunks.freeze()

    def all_chunks(self) -> immutables.Map[int, chunks.Chunk]:
        """Return chunks by number as they are now."""
        return self._chunks.freeze()
