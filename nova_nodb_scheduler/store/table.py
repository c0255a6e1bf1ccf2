# SPDX-License-Identifier: Apache-2.0
"""The writer's side of one namespace: rows in chunks, and the maps that find them.

Not thread-safe; :class:`~nova_nodb_scheduler.store.host_state_store.HostStateStore`
holds a lock around every call.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import (
    chunks,
    indexes,
    keeping,
    layout,
    snapshot,
    transient,
    vocabulary,
)

Decoder = Callable[[keeping.Packing, bytes], Mapping[str, Any]]


class Table:
    """All records of one namespace."""

    def __init__(
        self,
        namespace: namespaces.Namespace,
        decode: Decoder,
        make_packing: Callable[[], keeping.Packing] = keeping.AsTheyAre,
    ) -> None:
        self._make_packing = make_packing
        self._layout = layout.Layout(namespace)
        self._namespace = namespace
        self._decode = decode
        self._kinds = tuple(column.kind for column in namespace.columns)
        self._bits = [
            position for position, kind in enumerate(self._kinds) if kind is namespaces.Kind.BITS
        ]
        self._epoch = 0
        #: Grows with every change a snapshot can see, across epochs too.
        self._version = 0
        self._generation = 0
        self.bytes_copied = 0
        self._view: snapshot.NamespaceView | None = None
        self._drop_all()

    def _drop_all(self) -> None:
        self._rows: transient.Transient[str, int] = transient.Transient()
        self._chunks: transient.Transient[int, chunks.Chunk] = transient.Transient()
        self._indexes: list[transient.Transient[indexes.Values, indexes.Postings]] = [
            transient.Transient() for _ in self._namespace.indexes
        ]
        self._vocabularies = {
            position: vocabulary.Vocabulary()
            for position, column in enumerate(self._namespace.columns)
            if column.kind in (namespaces.Kind.CATEGORY, namespaces.Kind.BITS)
        }
        self._words: list[Any] = [
            self._vocabularies.get(position) for position in range(len(self._kinds))
        ]
        self._packing = self._make_packing()
        #: Numbers of chunks that hold payloads as they came.
        self._unpacked: set[int] = set()
        self._row_count = 0
        #: A heap: the lowest free row is taken first, so that rows stay dense.
        self._free_rows: list[int] = []
        #: key -> (revision, version) of records that are gone
        self._tombstones: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._rows.open())

    @property
    def tombstone_count(self) -> int:
        return len(self._tombstones)

    def apply(self, change: records.Change) -> bool:
        """Take a change over if it is newer than what is known of its record.

        :returns: False if it is not newer
        :raises InvalidRecord: nothing was changed
        """
        record = change.record
        key = record.key.key
        revision = _checked(record, "revision", record.revision)
        version = _checked(record, "version", record.version)
        row = self._rows.open().get(key)
        if row is not None:
            known = int(self._chunk_of(row).revisions[row % chunks.CHUNK_ROWS])
        else:
            known = self._tombstones.get(key, (0, 0))[0]
        if revision <= known:
            return False
        if record.deleted:
            if row is not None:
                self._remove(key, row)
            self._tombstones[key] = (revision, version)
            return True
        if not isinstance(change.state, Mapping):
            raise errors.InvalidRecord(str(record.key), "(state)", "it is not an object")
        values = self._layout.row(record.key, change.state)
        make_digest = self._namespace.digest
        digest = None if make_digest is None else make_digest(key, change.state)
        self._tombstones.pop(key, None)
        self._put(row, record, values, digest)
        return True

    def retain(self, keys: Collection[str], version: int) -> list[str]:
        """Drop rows whose key is not among these and whose version is not above.

        Returns the keys dropped.

        Nothing is remembered of them: if one was dropped because a snapshot
        read missed it, a sweep can bring it back as it was.
        """
        keys = keys if isinstance(keys, (set, frozenset, Mapping)) else frozenset(keys)
        doomed = []
        for number, chunk in self._chunks.freeze().items():
            for offset in (chunk.live & (chunk.versions <= version)).nonzero()[0]:
                key = chunk.keys[offset]
                if key is not None and key not in keys:
                    doomed.append((key, number * chunks.CHUNK_ROWS + int(offset)))
        for key, row in doomed:
            self._remove(key, row)
        return [key for key, _row in doomed]

    def pack(self, most_records: int) -> int:
        """Pack chunks until so many records were looked at; return how many were."""
        looked_at = 0
        while self._unpacked and looked_at < most_records:
            chunk = self._chunks.open().get(self._unpacked.pop())
            if chunk is None:
                continue
            # Not copied before, though snapshots may see it: to them the
            # payload is the same before and after.
            for offset in chunk.live.nonzero()[0]:
                chunk.payloads[offset] = self._packing.pack(chunk.payloads[offset])
            looked_at += chunk.live_count
        return looked_at

    def forget_tombstones(self, below_version: int) -> int:
        """Forget removed records whose last change is older than that."""
        kept = {key: seen for key, seen in self._tombstones.items() if seen[1] >= below_version}
        forgotten = len(self._tombstones) - len(kept)
        self._tombstones = kept
        return forgotten

    def clear(self) -> None:
        """Begin a new epoch with nothing; snapshots keep what they hold."""
        self._epoch += 1
        self._changed()
        self._drop_all()

    def view(self) -> snapshot.NamespaceView:
        """Return what there is now, for good; the same object until a change."""
        if self._view is None:
            self._generation += 1
            self._view = snapshot.NamespaceView(
                self._layout,
                version=self._version,
                epoch=self._epoch,
                rows=self._rows.freeze(),
                row_chunks=self._chunks.freeze(),
                entries=[index.freeze() for index in self._indexes],
                vocabularies={
                    position: words.view() for position, words in self._vocabularies.items()
                },
                decode=self._decode,
                packing=self._packing,
            )
        return self._view

    def _put(
        self, row: int | None, record: records.Record, values: layout.Row, digest: Any
    ) -> None:
        key = record.key.key
        if row is None:
            row = self._take_row()
            self._rows.open()[key] = row
        chunk = self._writable(row // chunks.CHUNK_ROWS)
        offset = row % chunks.CHUNK_ROWS
        if not chunk.live[offset]:
            chunk.live[offset] = True
            chunk.live_count += 1
            chunk.keys[offset] = key
        cells, index_values = values
        for array, kind, value, words in zip(
            chunk.arrays, self._kinds, cells, self._words, strict=True
        ):
            if kind is namespaces.Kind.CATEGORY:
                array[offset] = words.code(value)
            elif kind is not namespaces.Kind.BITS:
                array[offset] = value
        for position in self._bits:
            self._put_bits(chunk, offset, position, cells[position])
        self._index(chunk, offset, key, index_values)
        chunk.revisions[offset] = record.revision
        chunk.versions[offset] = record.version
        chunk.payloads[offset] = record.payload
        if len(record.payload) >= self._packing.least_bytes:
            self._unpacked.add(row // chunks.CHUNK_ROWS)
        if chunk.digests:
            chunk.digests[offset] = digest
        self._changed()

    def _put_bits(
        self, chunk: chunks.Chunk, offset: int, position: int, texts: tuple[str, ...]
    ) -> None:
        words = self._vocabularies[position]
        bits = 0
        for text in texts:
            bits |= 1 << words.code(text)
        self.bytes_copied += chunk.write_bits(position, offset, bits, words.view().words)

    def _index(
        self,
        chunk: chunks.Chunk,
        offset: int,
        key: str,
        values: tuple[layout.IndexValues, ...],
    ) -> None:
        """Move a key from its former index values to these."""
        former = chunk.index_values[offset]
        if former == values:
            return  # and keep the former texts: the maps already hold those
        values = tuple(map(self._shared, values, self._layout.index_columns))
        for position, index in enumerate(self._indexes):
            old = former[position] if former else None
            new = values[position] if values else None
            if old != new:
                indexes.discard(index.open(), old, key)
                indexes.add(index.open(), new, key)
        chunk.index_values[offset] = values

    def _shared(
        self, values: layout.IndexValues, columns: tuple[int | None, ...]
    ) -> layout.IndexValues:
        """Return equal values made of the columns' own texts: few, where records are many."""
        if values is None:
            return None
        return tuple(
            [
                text if column is None else self._vocabularies[column].same(text)
                for text, column in zip(values, columns, strict=True)
            ]
        )

    def _remove(self, key: str, row: int) -> None:
        number, offset = divmod(row, chunks.CHUNK_ROWS)
        chunk = self._writable(number)
        self._index(chunk, offset, key, ())
        chunk.live[offset] = False
        chunk.live_count -= 1
        chunk.keys[offset] = None
        chunk.payloads[offset] = b""
        if chunk.digests:
            chunk.digests[offset] = None
        if not chunk.live_count:
            del self._chunks.open()[number]
        del self._rows.open()[key]
        heapq.heappush(self._free_rows, row)
        self._changed()

    def _take_row(self) -> int:
        if self._free_rows:
            return heapq.heappop(self._free_rows)
        self._row_count += 1
        return self._row_count - 1

    def _chunk_of(self, row: int) -> chunks.Chunk:
        return self._chunks.open()[row // chunks.CHUNK_ROWS]

    def _writable(self, number: int) -> chunks.Chunk:
        """Return a chunk that no snapshot sees: new, own, or copied now."""
        chunk = self._chunks.open().get(number)
        if chunk is None:
            chunk = chunks.Chunk(
                self._namespace.columns,
                self._generation,
                with_digests=self._namespace.digest is not None,
            )
        elif chunk.generation == self._generation:
            return chunk
        else:
            self.bytes_copied += chunk.size_bytes
            chunk = chunk.copy(self._generation)
        self._chunks.open()[number] = chunk
        return chunk

    def _changed(self) -> None:
        self._version += 1
        self._view = None


def _checked(record: records.Record, field: str, value: object) -> int:
    if type(value) is int and 0 < value <= 2**62:
        return value  # nearly always
    try:
        number = layout.to_int64(value)
    except ValueError as error:
        raise errors.InvalidRecord(str(record.key), f"({field})", str(error)) from error
    if number < (field == "revision"):
        raise errors.InvalidRecord(str(record.key), f"({field})", f"{number} is too small")
    return number
