# SPDX-License-Identifier: Apache-2.0
"""What one namespace holds in one epoch: rows, their columns' texts, indexes and payloads.

The writer's side; readers see what was frozen. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import (
    chunks,
    index_writer,
    keeping,
    layout,
    payloads,
    rows,
    vocabulary,
)

#: Vocabularies by path: columns of one path, of any namespace, share theirs.
Vocabularies = dict[namespaces.Path, vocabulary.Vocabulary]


class Contents:
    """Takes records in and out.

    :ivar rows: by key; not to be written by others
    :param texts: shared with other namespaces of the same store and epoch
    """

    def __init__(
        self, row_layout: layout.Layout, packing: keeping.Packing, texts: Vocabularies
    ) -> None:
        self._layout = row_layout
        self._namespace = row_layout.namespace
        self._kinds = tuple(column.kind for column in self._namespace.columns)
        self._steady = tuple(
            position for position, column in enumerate(self._namespace.columns) if column.steady
        )
        #: Whether a record came or went, or a value in a steady column changed, since
        #: somebody put this to False.
        self.stirred = True
        self.rows = rows.Rows(self._make_chunk)
        self.vocabularies = {
            position: texts.setdefault(column.path, vocabulary.Vocabulary())
            if column.kind is namespaces.Kind.CATEGORY
            else vocabulary.Vocabulary()
            for position, column in enumerate(self._namespace.columns)
            if column.kind in (namespaces.Kind.CATEGORY, namespaces.Kind.BITS)
        }
        self.indexes = index_writer.IndexWriter(row_layout, self.vocabularies)
        self.payloads = payloads.Payloads(packing)

    def _make_chunk(self, generation: int) -> chunks.Chunk:
        return chunks.Chunk(
            self._namespace.columns,
            generation,
            with_digests=self._namespace.digest is not None,
            with_index_values=bool(self._layout.by_text),
            marked=self._layout.marked,
        )

    def put(
        self,
        changes: Sequence[records.Change],
        keys: Sequence[str],
        page: layout.Page,
        digests: Sequence[Any] | None,
        kin: Sequence[rows.SameKey],
    ) -> None:
        """Take records in, or over.

        :param page: their values
        :param digests: None where the namespace needs none
        :param kin: who may keep equal keys already
        """
        rows_here, keys = self.rows.of(keys, kin)
        page = self._coded(page)
        revisions = np.array([change.record.revision for change in changes], np.int64)
        versions = np.array([change.record.version for change in changes], np.int64)
        numbers = [row // chunks.CHUNK_ROWS for row in rows_here]
        kept = self.payloads.kept(changes, numbers)
        by_chunk: dict[int, list[int]] = {}
        for at, number in enumerate(numbers):
            by_chunk.setdefault(number, []).append(at)
        for number, places in by_chunk.items():
            chunk = self.rows.writable(number)
            offsets = [rows_here[at] % chunks.CHUNK_ROWS for at in places]
            self.indexes.lead(chunk, offsets, places, number * chunks.CHUNK_ROWS, page)
            if self._steady and not self.stirred:
                self.stirred = self._stirs(chunk, offsets, places, page)
            self._write(chunk, offsets, places, page, revisions, versions)
            if page.index_values:
                for offset, at in zip(offsets, places, strict=True):
                    self.indexes.index(chunk, offset, keys[at], page.index_values[at])
            chunk.enter(offsets, [keys[at] for at in places], [kept[at] for at in places])
            if digests is not None:
                for offset, at in zip(offsets, places, strict=True):
                    chunk.digests[offset] = digests[at]

    def _coded(self, page: layout.Page) -> layout.Page:
        """Return a page with the codes of its texts."""
        cells = [
            np.array(self.vocabularies[position].codes(values), np.int32)
            if kind is namespaces.Kind.CATEGORY
            else values
            for position, (kind, values) in enumerate(zip(self._kinds, page.cells, strict=True))
        ]
        return layout.Page(cells, page.absent, page.index_values)

    def _stirs(
        self, chunk: chunks.Chunk, offsets: Sequence[int], places: Sequence[int], page: layout.Page
    ) -> bool:
        """Tell whether what is about to be written is new to a steady column."""
        here, there = _index(offsets), _index(places)
        return not np.all(chunk.live[here]) or any(
            np.any(chunk.arrays[position][here] != np.asarray(page.cells[position])[there])
            for position in self._steady
        )

    def _write(
        self,
        chunk: chunks.Chunk,
        offsets: Sequence[int],
        places: Sequence[int],
        page: layout.Page,
        revisions: npt.NDArray[np.int64],
        versions: npt.NDArray[np.int64],
    ) -> None:
        here, there = _index(offsets), _index(places)
        chunk.revisions[here] = revisions[there]
        chunk.versions[here] = versions[there]
        for position, (kind, values) in enumerate(zip(self._kinds, page.cells, strict=True)):
            if kind is namespaces.Kind.BITS:
                for offset, at in zip(offsets, places, strict=True):
                    self._put_bits(chunk, offset, position, values[at])
            else:
                chunk.arrays[position][here] = values[there]
        for column, flags in page.absent.items():
            chunk.absent[column][here] = flags[there]

    def _put_bits(
        self, chunk: chunks.Chunk, offset: int, position: int, texts: tuple[str, ...]
    ) -> None:
        words = self.vocabularies[position]
        bits = 0
        for text in texts:
            bits |= 1 << words.code(text)
        self.rows.bytes_copied += chunk.write_bits(position, offset, bits, words.view().words)

    def remove(self, key: str, row: int) -> None:
        """Forget the record of a key, which stands in a row."""
        number, offset = divmod(row, chunks.CHUNK_ROWS)
        self.stirred = True
        self.indexes.forget(self.rows.writable(number), offset, key, row)
        self.rows.release(key, row)

    def without(self, keys: Collection[str], version: int) -> Iterator[tuple[str, int]]:
        """Find keys and rows of records that are not among some keys and not above a version."""
        for number, chunk in self.rows.all_chunks().items():
            for offset in (chunk.live & (chunk.versions <= version)).nonzero()[0].tolist():
                key = chunk.keys[offset]
                if key is not None and key not in keys:
                    yield key, number * chunks.CHUNK_ROWS + offset


def _index(places: Sequence[int]) -> Any:
    """Return what NumPy takes quickest for some places: of one, as in most changes, a number."""
    return places[0] if len(places) == 1 else np.array(places, np.intp)
