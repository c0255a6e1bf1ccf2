# SPDX-License-Identifier: Apache-2.0
"""What readers see: records, namespaces and the store at one moment, which never changes again.

Everything here may be used from any thread without a lock. Results that cost
a pass over all rows are kept with the view, and a view lives on in later
snapshots for as long as its namespace does not change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import immutables
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import (
    column_layout,
    key_rows,
    record_chunks,
    record_index,
    stored_pages,
    vocabulary,
)


@attrs.frozen
class StoredRecord:
    """A record as the store holds it."""

    key: str
    revision: int
    version: int
    _kept: record_chunks.Kept = attrs.field(eq=False, repr=False)
    _packing: record_chunks.PayloadPacking = attrs.field(eq=False, repr=False)
    _decode: Callable[[record_chunks.PayloadPacking, record_chunks.Kept], Mapping[str, Any]] = (
        attrs.field(eq=False, repr=False)
    )

    @property
    def payload(self) -> bytes:
        """A payload of the text that came; see :meth:`.record_chunks.PayloadPacking.unpack`."""
        return self._packing.unpack(self._kept)

    def holds(self, payload: bytes) -> bool:
        """Return whether the record's payload has the same text as another."""
        return self._packing.holds(self._kept, payload)

    @property
    def state(self) -> Mapping[str, Any]:
        """The decoded payload, shared with other readers: not to be changed.

        :raises UndecodableRecord: the payload is damaged
        """
        return self._decode(self._packing, self._kept)


class NamespaceView:
    """All live records of one namespace at one moment.

    Rows have an order: ``row_keys()[i]`` names the record whose values stand
    at ``column(name)[i]``. It may differ from one view to the next.
    """

    def __init__(
        self,
        row_layout: column_layout.ColumnLayout,
        *,
        version: int,
        epoch: int,
        steady_mark: object,
        rows: key_rows.KeyRows,
        row_chunks: immutables.Map[int, record_chunks.Chunk],
        indexes: record_index.IndexReader,
        vocabularies: Mapping[int, vocabulary.VocabularyView],
        decode: Callable[[record_chunks.PayloadPacking, record_chunks.Kept], Mapping[str, Any]],
        packing: record_chunks.PayloadPacking,
    ) -> None:
        self._packing = packing
        self._layout = row_layout
        self._version = version
        self._epoch = epoch
        self._steady_mark = steady_mark
        self._rows = rows
        self._chunks = row_chunks
        self._indexes = indexes
        self._vocabularies = vocabularies
        self._decode = decode
        # Filled by whoever asks first. Two threads may compute the same at
        # once; setdefault lets both return the same array.
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._row_keys: tuple[str, ...] | None = None
        self._ordered: tuple[record_chunks.Chunk, ...] | None = None
        #: Digests as rows, and the places of those that are none.
        self._unpacked: tuple[npt.NDArray[Any], list[int]] | None = None

    @property
    def namespace(self) -> namespaces.Namespace:
        return self._layout.namespace

    @property
    def version(self) -> int:
        """A count of changes: views of a store with the same count are the same."""
        return self._version

    @property
    def epoch_number(self) -> int:
        """A count of the epochs of this store: versions and revisions of two do not compare."""
        return self._epoch

    @property
    def steady_mark(self) -> object:
        """The same object in all views with the same records and values in steady columns.

        What was made of those columns alone may be kept until it is another one.
        """
        return self._steady_mark

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: str) -> bool:
        return self._rows.get(key) is not None

    def keys(self) -> Iterator[str]:
        """Iterate over all keys, in no order."""
        return iter(self._rows)

    def get(self, key: str) -> StoredRecord | None:
        """Return the record of a key, or None where there is none."""
        row = self._rows.get(key)
        if row is None:
            return None
        number, offset = divmod(row, record_chunks.CHUNK_ROWS)
        chunk = self._chunks[number]
        return StoredRecord(
            key,
            int(chunk.revisions[offset]),
            int(chunk.versions[offset]),
            chunk.kept(offset),
            self._packing,
            self._decode,
        )

    def state(self, key: str) -> Mapping[str, Any] | None:
        """Return the decoded state of a record, or None where there is none."""
        found = self.get(key)
        return None if found is None else found.state

    def states(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Iterate over all keys with their decoded states, in no order."""
        for key in self._rows:
            state = self.state(key)
            assert state is not None  # of a row of this very view
            yield key, state

    def version_of(self, key: str) -> int | None:
        """Return the version of a record's last write; None where there is no record."""
        row = self._rows.get(key)
        if row is None:
            return None
        number, offset = divmod(row, record_chunks.CHUNK_ROWS)
        return self._chunks[number].versions.item(offset)

    def lookup(self, index: str, *values: str) -> tuple[str, ...]:
        """Return the sorted keys of records with exactly these values.

        A record that lacks one of the index's values is not found by it.
        Numbers are compared by their text.

        :raises KeyError: no such index
        :raises ValueError: not as many values as the index has
        """
        return self._indexes.lookup(index, values)

    def indexed(self, key: str, index: str) -> tuple[str, ...] | None:
        """Return the values an index holds of a record, without decoding it.

        :returns: None where there is no such record, or where the index does
            not hold it
        :raises KeyError: no such index
        """
        return self._indexes.indexed(key, index)

    def pages(self) -> Iterator[stored_pages.StoredPage | list[records.Record]]:
        """Yield all records for another process's store: rows as they are, others as records.

        Each takes some ms to make. All rows come before the first records.
        """
        others: list[records.Record] = []
        chunks = self._chunks_in_order()
        for rows in stored_pages.dumped(self._layout, chunks, self._vocabularies, self._packing):
            if rows.page is not None:
                yield rows.page
            others += [self._record(chunk, offset) for chunk, offset in rows.others]
        for first in range(0, len(others), stored_pages.MOST_ROWS):
            yield others[first : first + stored_pages.MOST_ROWS]

    def _record(self, chunk: record_chunks.Chunk, offset: int) -> records.Record:
        return records.Record(
            records.RecordKey(self.namespace.name, chunk.keys[offset] or ""),
            int(chunk.revisions[offset]),
            int(chunk.versions[offset]),
            self._packing.unpack(chunk.kept(offset)),
        )

    def newest(self, most: int) -> list[StoredRecord]:
        """Return some records that were written last."""
        parts: list[tuple[record_chunks.Numbers, npt.NDArray[np.int64], int]] = []
        for number in sorted(self._chunks):
            chunk = self._chunks[number]
            offsets = chunk.live.nonzero()[0]
            parts.append((chunk.versions[offsets], offsets, number))
        if not parts:
            return []
        versions = np.concatenate([part[0] for part in parts])
        rows = np.concatenate([part[1] + part[2] * record_chunks.CHUNK_ROWS for part in parts])
        if len(versions) > most:
            few = np.argpartition(-versions, most)[:most]
            versions, rows = versions[few], rows[few]
        found = []
        for row in rows[np.argsort(-versions, kind="stable")].tolist():
            number, offset = divmod(row, record_chunks.CHUNK_ROWS)
            record = self.get(self._chunks[number].keys[offset] or "")
            if record is not None:
                found.append(record)
        return found

    def digest(self, key: str) -> Any:
        """Return what the namespace's digest made of a record; None where there is none."""
        row = self._rows.get(key)
        if row is None:
            return None
        number, offset = divmod(row, record_chunks.CHUNK_ROWS)
        return self._chunks[number].digests[offset]

    def digests(self) -> list[Any]:
        """Return all digests, one for each of :meth:`row_keys`."""
        found: list[Any] = []
        for chunk in self._chunks_in_order():
            is_full = chunk.live_count == record_chunks.CHUNK_ROWS
            found += (
                chunk.digests if is_full else itertools.compress(chunk.digests, chunk.live.tolist())
            )
        return found

    def texts(self, key: str, *names: str) -> tuple[str, ...] | None:
        """Return what stands in some CATEGORY columns of a record; None where there is none.

        :raises KeyError: no such column
        """
        row = self._rows.get(key)
        if row is None:
            return None
        number, offset = divmod(row, record_chunks.CHUNK_ROWS)
        chunk = self._chunks[number]
        return tuple(
            [
                self._vocabularies[position].text(chunk.arrays[position].item(offset))
                for position in map(self._layout.column_position, names)
            ]
        )

    def numbers(self, key: str, *names: str) -> tuple[Any, ...]:
        """Return what stands in some columns of numbers of a record.

        Only of columns that stand beside the digests.

        :raises KeyError: no such column, or no such record
        """
        row = self._rows.get(key)
        if row is None:
            raise KeyError(key)
        number, offset = divmod(row, record_chunks.CHUNK_ROWS)
        arrays = self._chunks[number].arrays
        return tuple(
            [arrays[position].item(offset) for position in map(self._layout.column_position, names)]
        )

    def row_keys(self) -> tuple[str, ...]:
        """Return the keys in the order of the rows of :meth:`column`."""
        if self._row_keys is None:
            self._row_keys = tuple(
                key for chunk in self._chunks_in_order() for key in chunk.keys if key is not None
            )
        return self._row_keys

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column, read-only, a value for each of :meth:`row_keys`.

        Shape (n,): int64, float64, bool, or for CATEGORY int32 codes of
        :meth:`vocabulary`. For BITS shape (n, words), uint64: bit ``c % 64``
        of word ``c // 64`` says whether the set holds the text of code c.

        The first call for a view costs a pass over the rows, as any filter
        over them does; further calls return the same array.

        :raises KeyError: no such column
        """
        array = self._arrays.get(name)
        if array is None:
            position = self._layout.column_position(name)
            gather = self._unpack if position in self._layout.unpacked else self._gather
            array = gather(position)
            array.flags.writeable = False
            array = self._arrays.setdefault(name, array)
        return array

    def vocabulary(self, name: str) -> vocabulary.VocabularyView:
        """Return the texts behind a CATEGORY or BITS column.

        :raises KeyError: no such column, or one of numbers
        """
        position = self._layout.column_position(name)
        if position not in self._vocabularies:
            raise KeyError(f"column {name} of namespace {self.namespace.name} holds no texts")
        return self._vocabularies[position]

    def changed_since(self, older: NamespaceView) -> set[str]:
        """Return keys that came, went, or have another revision than in ``older``.

        Costs as much as the chunks that changed in between. Across a new epoch
        everything counts as changed: revisions of two epochs do not compare.

        :raises ValueError: a view of another namespace
        """
        if older.namespace.name != self.namespace.name:
            raise ValueError(
                f"a view of {self.namespace.name} cannot be compared with "
                f"one of {older.namespace.name}"
            )
        if older._epoch != self._epoch:
            return {*self._rows, *older._rows}
        if older._version == self._version:
            return set()
        touched: set[str] = set()
        for number in {*self._chunks, *older._chunks}:
            mine, its = self._chunks.get(number), older._chunks.get(number)
            if mine is not its:
                touched |= _keys_that_differ(mine, its)
        # A record may have moved to another row and be the same.
        return {key for key in touched if self._revision(key) != older._revision(key)}

    def _revision(self, key: str) -> int | None:
        row = self._rows.get(key)
        if row is None:
            return None
        number, offset = divmod(row, record_chunks.CHUNK_ROWS)
        return int(self._chunks[number].revisions[offset])

    def _chunks_in_order(self) -> tuple[record_chunks.Chunk, ...]:
        if self._ordered is None:
            self._ordered = tuple(self._chunks[number] for number in sorted(self._chunks))
        return self._ordered

    def _unpack(self, position: int) -> npt.NDArray[Any]:
        """Return a column that the digests hold."""
        if self._unpacked is None:
            form = self.namespace.digest_row
            assert form is not None
            digests, others = self.digests(), []
            try:
                packed = b"".join(digests)
            except TypeError:
                others = [at for at, each in enumerate(digests) if type(each) is not bytes]
                for at in others:
                    digests[at] = bytes(form.itemsize)
                packed = b"".join(digests)
            self._unpacked = np.frombuffer(packed, form), others
        rows, others = self._unpacked
        column = rows[self.namespace.columns[position].name].astype(
            record_chunks.DTYPES[self.namespace.columns[position].kind]
        )
        if others:
            records = [self.get(self.row_keys()[at]) for at in others]
            column[others] = self._layout.cells(
                position, [(each.key, each.state) for each in records if each is not None]
            )
        return column

    def _gather(self, position: int) -> npt.NDArray[Any]:
        column = self.namespace.columns[position]
        bits = column.kind is namespaces.Kind.BITS
        words = self._vocabularies[position].words if bits else 0
        parts: list[npt.NDArray[Any]] = [
            np.empty((0, words) if bits else 0, record_chunks.DTYPES[column.kind])
        ]
        for chunk in self._chunks_in_order():
            part = chunk.arrays[position]
            if chunk.live_count < record_chunks.CHUNK_ROWS:
                part = part[chunk.live]
            if bits and part.shape[1] < words:
                # Written when the vocabulary was smaller.
                part = np.pad(part, ((0, 0), (0, words - part.shape[1])))
            parts.append(part)
        return np.concatenate(parts)


def _keys_that_differ(
    one: record_chunks.Chunk | None, other: record_chunks.Chunk | None
) -> set[str]:
    """Return keys of rows whose key or revision is not the same in both."""
    if one is None or other is None:
        present = one or other
        return {key for key in present.keys if key is not None} if present else set()
    changed = (one.live != other.live) | (one.revisions != other.revisions)
    # The same revision in the same row may now be another record's.
    offsets = key_rows.differing(one.keys, other.keys).union(changed.nonzero()[0].tolist())
    differing = {chunk.keys[offset] for chunk in (one, other) for offset in offsets}
    return {key for key in differing if key is not None}


@attrs.frozen(eq=False)
class Snapshot:
    """All namespaces at one moment.

    :param number: grows from one snapshot of a store to the next
    """

    number: int
    _views: Mapping[str, NamespaceView] = attrs.field(repr=False)

    def namespace(self, name: str) -> NamespaceView:
        """Return the view of a namespace.

        :raises UnknownNamespace: it is not declared
        """
        try:
            return self._views[name]
        except KeyError:
            raise errors.UnknownNamespace(name, ", ".join(sorted(self._views))) from None

    def namespaces(self) -> tuple[str, ...]:
        """Return the declared names, sorted."""
        return tuple(sorted(self._views))

    def followed_by(self, views: Mapping[str, NamespaceView]) -> Snapshot:
        """Return the next snapshot; this one where none of some namespaces' views is another."""
        if all(self._views.get(name) is view for name, view in views.items()):
            return self
        return Snapshot(self.number + 1, {**self._views, **views})
