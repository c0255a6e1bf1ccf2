# SPDX-License-Identifier: Apache-2.0
"""Where records are found: by key their rows, by indexed values the records that have them.

Keys lead to rows, and rows are parts of chunks. A row belongs to its key until the
record is removed; the lowest free one is taken next, so that rows stay dense.

Secondary indexes are persistent maps from values to the records that have them.
Most values of most indexes have one record (a host has one node), which is
kept bare; some have a few, kept together in one object; many are a persistent map of
their own, so that one more record copies a path of the map and not the whole set.
Where columns hold the texts of an index, values are codes of its last column and
records are rows, a few of which are four bytes each; elsewhere values are texts and
records are keys.

The writer's side is not thread-safe; the reader's may be used from any thread
without a lock.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import immutables
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.store import column_layout, key_rows, record_chunks, vocabulary

#: Returns the texts that are kept of keys elsewhere, None for none.
SameKeys = Callable[[Sequence[str]], list[str | None]]


class Rows:
    """The rows of one namespace in one epoch. Not thread-safe.

    :param make_chunk: returns an empty chunk of a generation
    :param uuid_keys: keys are kept packed, not as texts
    """

    def __init__(
        self, make_chunk: Callable[[int], record_chunks.Chunk], *, uuid_keys: bool = False
    ) -> None:
        self._make_chunk = make_chunk
        #: Of the chunks that are written from now on.
        self._generation = 0
        #: Bytes copied since the start because a snapshot saw them.
        self.bytes_copied = 0
        self._rows: key_rows.Transient[str, int] | key_rows.PackedRowsMutation = (
            key_rows.PackedRowsMutation() if uuid_keys else key_rows.Transient()
        )
        self._chunks: key_rows.Transient[int, record_chunks.Chunk] = key_rows.Transient()
        self._row_count = 0
        #: What packs keys; None where they are kept as texts.
        self.key_packing = (
            self._rows.packing if isinstance(self._rows, key_rows.PackedRowsMutation) else None
        )
        #: A heap: the lowest free row is taken first.
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows.open())

    def by_key(self) -> key_rows.KeyRowsMutation:
        """Return the rows of all keys; of use until the next :meth:`freeze`."""
        return self._rows.open()

    def texts(self, keys: Sequence[str]) -> list[str | None]:
        """Return the texts that are kept of keys; None where there is no such record."""
        chunks, size = self._chunks.open(), record_chunks.CHUNK_ROWS
        rows = map(self._rows.open().get, keys)
        return [None if row is None else chunks[row // size].keys[row % size] for row in rows]

    def revision(self, row: int) -> int:
        """Return the revision of the record in a row."""
        return self.chunk_of(row).revisions.item(row % record_chunks.CHUNK_ROWS)

    def packed(
        self, keys: Collection[str], *, gathered: bool = True
    ) -> npt.NDArray[np.uint8] | None:
        """Return keys packed, shape (n, 17), of which none is here.

        :param gathered: as of :meth:`.key_rows.PackedRowsMutation.has_any`
        :returns: None where some would be texts here
        :raises ValueError: one is here
        """
        known, packing = self._rows.open(), self.key_packing
        found = None
        if packing is not None and isinstance(keys, key_rows.UuidKeys):
            found = packing.adopt(keys)
        elif packing is not None and isinstance(keys, Sequence):
            found = packing.page(keys)
        if found is None or not isinstance(known, key_rows.PackedRowsMutation):
            is_known = any(map(known.__contains__, keys))
        else:
            is_known = known.has_any(found, gathered=gathered)
        if is_known:
            raise ValueError("a key is here already")
        return found

    def check(self) -> None:
        """Refuse keys that came twice because gathered ones were not looked at.

        :raises ValueError: there are some
        """
        known = self._rows.open()
        if isinstance(known, key_rows.PackedRowsMutation):
            known.check()

    def enter(self, packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
        """Return new rows, growing, for keys as :meth:`packed` returns them."""
        known = self._rows.open()
        assert isinstance(known, key_rows.PackedRowsMutation)
        rows = self._take_many(len(packed))
        known.enter_page(packed, rows)
        return rows

    def enter_texts(
        self, keys: Sequence[str], kin: Sequence[SameKeys]
    ) -> tuple[npt.NDArray[np.intp], Sequence[str]]:
        """Return new rows, growing, for keys that are not here, each once, and the texts to keep.

        :param kin: who may keep equal keys already
        """
        known, texts = self._rows.open(), _kept_texts(keys, kin)
        rows = self._take_many(len(keys))
        if isinstance(known, key_rows.PackedRowsMutation):
            for text, row in zip(texts, rows.tolist(), strict=True):
                known[text] = row
        else:
            known.update(zip(texts, vocabulary.shared_numbers(rows.tolist()), strict=True))
        return rows, texts

    def of(self, keys: Sequence[str], kin: Sequence[SameKeys]) -> tuple[list[int], Sequence[str]]:
        """Return the rows of keys, new ones for those that have none, and the texts to keep.

        :param kin: who may keep equal keys already
        """
        known = self._rows.open()
        rows = [known.get(key) for key in keys]
        if None not in rows:
            return rows, keys  # type: ignore[return-value]
        places = [at for at, row in enumerate(rows) if row is None]
        texts = list(keys)
        kept = _kept_texts([keys[at] for at in places], kin)
        for at, text in zip(places, kept, strict=True):
            texts[at] = text
            rows[at] = known[text] = self._take()
        return rows, texts  # type: ignore[return-value]

    def release(self, key: str, row: int) -> None:
        """Free the row of a key that is gone; its chunk was made writable before."""
        number, offset = divmod(row, record_chunks.CHUNK_ROWS)
        chunk = self.writable(number)
        chunk.clear(offset)
        if not chunk.live_count:
            del self._chunks.open()[number]
        del self._rows.open()[key]
        heapq.heappush(self._free, row)

    def _take_many(self, count: int) -> npt.NDArray[np.intp]:
        freed = [heapq.heappop(self._free) for _ in range(min(count, len(self._free)))]
        first = self._row_count
        self._row_count += count - len(freed)
        return np.concatenate((np.array(freed, np.intp), np.arange(first, self._row_count)))

    def _take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._row_count += 1
        row = self._row_count - 1
        # Packed, it is no object in a map: of millions that nobody keeps none are made to stay.
        return row if self.key_packing is not None else vocabulary.shared_number(row)

    # -- chunks -------------------------------------------------------------------

    def chunk_of(self, row: int) -> record_chunks.Chunk:
        """Return the chunk that a row in use is part of."""
        return self._chunks.open()[row // record_chunks.CHUNK_ROWS]

    def chunk(self, number: int) -> record_chunks.Chunk | None:
        """Return a chunk; None where no row of it is in use."""
        return self._chunks.open().get(number)

    def writable(self, number: int) -> record_chunks.Chunk:
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

    def freeze(self) -> tuple[key_rows.KeyRows, immutables.Map[int, record_chunks.Chunk]]:
        """Return rows by key and chunks by number, which nothing changes any more."""
        self._generation += 1
        return self._rows.freeze(), self._chunks.freeze()

    def all_chunks(self) -> immutables.Map[int, record_chunks.Chunk]:
        """Return chunks by number as they are now."""
        return self._chunks.freeze()


def _kept_texts(keys: Sequence[str], kin: Sequence[SameKeys]) -> Sequence[str]:
    """Return the texts to keep of new keys, one at least."""
    # Keys of a page come of one source: the first one tells for all.
    same = next((each for each in kin if each(keys[:1]) != [None]), None)
    if same is None:
        return keys
    return [text or key for text, key in zip(same(keys), keys, strict=True)]


#: More records than these stand in a map. A host's servers are 20 as a rule and seldom
#: more than these: as bytes they take 6 each, as a map 100.
_FEW = 64
_ROW_BYTES = 4

#: Texts at the paths of an index.
Texts = tuple[str, ...]

Value = TypeVar("Value", bound=Hashable)
#: A key or a row.
Record = TypeVar("Record", str, int)
#: One record, a few (rows as bytes, keys as a tuple), or many.
Postings: TypeAlias = Record | bytes | tuple[str, ...] | immutables.Map[Record, None]
Entries: TypeAlias = immutables.Map[Value, Postings[Record]]
EntriesMutation: TypeAlias = immutables.MapMutation[Value, Postings[Record]]


def add(entries: EntriesMutation[Value, Record], value: Value, record: Record) -> None:
    """Enter a record below a value."""
    postings: Any = entries.get(value)
    if postings is None:
        entries[value] = record
    elif isinstance(postings, immutables.Map):
        entries[value] = postings.set(record, None)
    else:
        entries[value] = _together((*_records(postings), record))


def discard(entries: EntriesMutation[Value, Record], value: Value, record: Record) -> None:
    """Take back what :func:`add` entered with the same arguments."""
    postings = entries[value]
    if isinstance(postings, immutables.Map):
        left = postings.delete(record)
        entries[value] = _together(tuple(left)) if len(left) <= _FEW // 2 else left
    elif isinstance(postings, (bytes, tuple)):
        rest = [each for each in _records(postings) if each != record]
        entries[value] = _together(tuple(rest))
    else:
        del entries[value]


def lookup(entries: Entries[Value, Record], value: Value) -> tuple[Record, ...]:
    """Return the records below a value, in no order."""
    postings = entries.get(value)
    return () if postings is None else _records(postings)


def _records(postings: Any) -> tuple[Any, ...]:
    """Return the records of postings."""
    if isinstance(postings, bytes):
        return struct.unpack(f"<{len(postings) // _ROW_BYTES}I", postings)
    return tuple(postings) if isinstance(postings, (tuple, immutables.Map)) else (postings,)


def _together(found: tuple[Any, ...]) -> Any:
    """Return postings of records, at least one."""
    if len(found) == 1:
        return found[0]
    if len(found) > _FEW:
        return immutables.Map(dict.fromkeys(found))
    return struct.pack(f"<{len(found)}I", *found) if isinstance(found[0], int) else found


#: Stands in the map for a code whose rows, as they were loaded, are gone.
_NO_ROWS = b""
#: Fewer rows than these stand in the map one by one.
_LEAST_TOGETHER = 1024
#: Nor do rows whose codes are so far between that places of codes would take more than rows.
_MOST_CODES_A_ROW = 4


class CodedRows:
    """Rows by code in two arrays, as one load brought them; nothing changes them.

    :param begins: shape (codes + 1,), uint32: where the rows of each code begin
    :param rows: shape (n,), uint32, in the order of their codes
    """

    __slots__ = ("_begins", "_rows")

    def __init__(self, begins: npt.NDArray[np.uint32], rows: npt.NDArray[np.uint32]) -> None:
        self._begins, self._rows = begins, rows

    @classmethod
    def of(cls, codes: npt.NDArray[np.int32], rows: npt.NDArray[np.uint32]) -> CodedRows | None:
        """Return rows by their codes; None where a map takes less."""
        if len(codes) < _LEAST_TOGETHER or codes.max() > _MOST_CODES_A_ROW * len(codes):
            return None
        begins = np.concatenate(((0,), np.bincount(codes).cumsum())).astype(np.uint32)
        return cls(begins, rows[np.argsort(codes, kind="stable")])

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes that both arrays take."""
        return self._begins.nbytes + self._rows.nbytes

    def codes(self) -> npt.NDArray[np.int32]:
        """Return the code of each row, growing."""
        counts = np.diff(self._begins)
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)

    def together(
        self, codes: npt.NDArray[np.int32], rows: npt.NDArray[np.uint32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint32]]:
        """Return codes and rows of these and others."""
        return np.concatenate((self.codes(), codes)), np.concatenate((self._rows, rows))

    def get(self, code: int) -> bytes | None:
        """Return the rows of a code as bytes; None for none."""
        if code + 1 >= len(self._begins):
            return None
        found = self._rows[self._begins.item(code) : self._begins.item(code + 1)]
        return found.tobytes() if len(found) else None


class LedEntries:
    """Rows by code as a snapshot sees them: those of one load, and what came of codes since.

    :param loaded: None for none
    :param entries: of each code whose rows are others than those that were loaded
    """

    __slots__ = ("_entries", "loaded")

    def __init__(self, loaded: CodedRows | None, entries: Entries[int, int]) -> None:
        self.loaded, self._entries = loaded, entries

    def rows(self, code: int) -> tuple[int, ...]:
        """Return the rows of a code, in no order."""
        found: Any = self._entries.get(code)
        if found is None and self.loaded is not None:
            found = self.loaded.get(code)
        return () if found is None else _records(found)


class LedRows:
    """Rows by the codes of a leading column, for the writer. Not thread-safe.

    Rows that have no code yet gather until somebody looks: a first load brings millions, in
    no order of their codes, and to enter each by itself would copy what its code has. Where
    they are many they stay in arrays: a map of all their codes, made one by one, was most of
    what a look behind a load took. The rows of a code that changes then go to the map; those
    of a code that has very many are there from the first, for to change one would copy them.

    :param number_of: returns the object that is kept of a row
    """

    __slots__ = ("_codes", "_entries", "_loaded", "_number_of", "_rows")

    def __init__(self, number_of: Callable[[int], int]) -> None:
        self._number_of = number_of
        self._loaded: CodedRows | None = None
        self._entries: key_rows.Transient[int, Postings[int]] = key_rows.Transient()
        self._codes: list[npt.NDArray[np.int32]] = []
        self._rows: list[npt.NDArray[np.uint32]] = []

    def enter(self, codes: npt.NDArray[np.int32], rows: npt.NDArray[np.intp]) -> None:
        """Enter rows that have no code; both of shape (n,)."""
        if len(codes):
            self._codes.append(codes)
            self._rows.append(rows.astype("<u4"))

    def move(self, row: int, former: int | None, present: int | None) -> None:
        """Move a row from one code, if it has one, to another, if it gets one."""
        entries, number = self._open(), self._number_of(row)
        if former is not None:
            self._own(entries, former)
            discard(entries, former, number)
            if former not in entries and self._loaded_of(former) is not None:
                entries[vocabulary.shared_number(former)] = _NO_ROWS
        if present is not None:
            self._own(entries, present)
            add(entries, vocabulary.shared_number(present), number)

    def freeze(self) -> LedEntries:
        """Return rows by code, which nothing changes any more."""
        self._open()
        return LedEntries(self._loaded, self._entries.freeze())

    def _own(self, entries: EntriesMutation[int, int], code: int) -> None:
        """Have the rows of a code in the map, as far as there are any."""
        loaded = None if code in entries else self._loaded_of(code)
        if loaded is not None:
            numbers = tuple(map(self._number_of, _records(loaded)))
            entries[vocabulary.shared_number(code)] = _together(numbers)

    def _loaded_of(self, code: int) -> bytes | None:
        return None if self._loaded is None else self._loaded.get(code)

    def _open(self) -> EntriesMutation[int, int]:
        if self._codes:
            codes, rows = np.concatenate(self._codes), np.concatenate(self._rows)
            self._codes, self._rows = [], []
            # Fewer than were loaded are not worth arrays of all.
            least = _LEAST_TOGETHER if self._loaded is None else len(self._loaded)
            if len(rows) >= max(least, _LEAST_TOGETHER):
                codes, rows = self._load(codes, rows)
            if len(rows):
                self._enter_each(codes, rows)
        return self._entries.open()

    def _load(
        self, codes: npt.NDArray[np.int32], rows: npt.NDArray[np.uint32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint32]]:
        """Have rows that have no code yet in arrays, with those that were loaded before.

        :returns: codes and rows of those that are to be entered in the map: their codes are
            there, or have so many rows that to change one would copy them
        """
        loaded = 0
        if self._loaded is not None:
            loaded = len(self._loaded)
            codes, rows = self._loaded.together(codes, rows)
        held = np.isin(codes, list(self._entries.freeze()))
        apart = held | (np.bincount(codes)[codes] > _FEW)
        self._loaded = CodedRows.of(codes[~apart], rows[~apart])
        if self._loaded is None:
            apart[:] = True
        # Of a code that the map has, those that were loaded are there as well.
        apart[:loaded] &= ~held[:loaded]
        return codes[apart], rows[apart]

    def _enter_each(self, codes: npt.NDArray[np.int32], rows: npt.NDArray[np.uint32]) -> None:
        entries = self._entries.open()
        order = np.argsort(codes, kind="stable")
        codes, packed = codes[order], rows[order].tobytes()
        begins = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist()]
        ends = [*begins[1:], len(codes)]
        for code, begin, end in zip(codes[begins].tolist(), begins, ends, strict=True):
            self._own(entries, code)
            self._append(entries, code, packed[begin * _ROW_BYTES : end * _ROW_BYTES])

    def _append(self, entries: EntriesMutation[int, int], code: int, rows: bytes) -> None:
        former = entries.get(code, _NO_ROWS)
        code = vocabulary.shared_number(code)
        if former == _NO_ROWS and _ROW_BYTES < len(rows) <= _FEW * _ROW_BYTES:
            entries[code] = rows
        else:
            for row in _records(rows):
                add(entries, code, self._number_of(row))


class IndexWriter:
    """Enters rows and keys. Not thread-safe.

    :param vocabularies: by position of a column
    """

    def __init__(
        self,
        row_layout: column_layout.ColumnLayout,
        vocabularies: Mapping[int, vocabulary.Vocabulary],
    ) -> None:
        self._layout = row_layout
        self._vocabularies = vocabularies
        #: Where keys are texts, their maps hold the rows, too: one object then serves both.
        number_of: Callable[[int], int] = (
            int if row_layout.namespace.uuid_keys else vocabulary.shared_number
        )
        #: By leading column.
        self._led = {column: LedRows(number_of) for column in row_layout.leading}
        #: By index: texts -> keys.
        self._texts: dict[int, key_rows.Transient[Texts, Postings[str]]] = {
            position: key_rows.Transient() for position in row_layout.by_text
        }

    def led(self) -> dict[int, LedEntries]:
        """Return rows by code, by leading column, which nothing changes any more."""
        return {column: entries.freeze() for column, entries in self._led.items()}

    def texts(self) -> dict[int, Entries[Texts, str]]:
        """Return keys by texts, by index, which nothing changes any more."""
        return {position: entries.freeze() for position, entries in self._texts.items()}

    def lead(
        self,
        chunk: record_chunks.Chunk,
        offsets: Sequence[int],
        places: Sequence[int],
        first_row: int,
        page: column_layout.StatePage,
    ) -> None:
        """Move rows from the codes that they had in leading columns to their new ones.

        To be called before the chunk's columns are written.

        :param places: where in the page the values of each offset stand
        :param page: with arrays of codes for texts, and arrays of what is absent
        """
        for column, led in self._led.items():
            codes, absent = page.cells[column], page.absent[column]
            if len(offsets) > 1 and not chunk.live[offsets].any():
                rows = np.array(offsets) + first_row
                has = ~absent[places]
                led.enter(codes[places][has], rows[has])
                continue
            formers = _codes_of(chunk, column, offsets)
            found = zip(map(codes.item, places), map(absent.item, places), strict=True)
            for offset, former, (code, lacking) in zip(offsets, formers, found, strict=True):
                present = None if lacking else code
                if former != present:
                    led.move(first_row + offset, former, present)

    def index(
        self,
        chunk: record_chunks.Chunk,
        offset: int,
        key: str,
        values: tuple[column_layout.IndexValues, ...],
    ) -> None:
        """Move a key from its former texts in the indexes by text to these."""
        former = chunk.index_values[offset]
        if former == values:
            return  # and keep the former texts: the maps already hold those
        values = tuple(
            self._shared(texts, self._layout.index_columns[position])
            for texts, position in zip(values, self._texts, strict=False)
        )
        for at, index in enumerate(self._texts.values()):
            old = former[at] if former else None
            new = values[at] if values else None
            if old != new:
                if old is not None:
                    discard(index.open(), old, key)
                if new is not None:
                    add(index.open(), new, key)
        chunk.index_values[offset] = values

    def lead_new(self, rows: npt.NDArray[np.intp], page: column_layout.StatePage) -> None:
        """Enter new rows, shape (n,), with their codes in leading columns; as :meth:`lead`."""
        for column, led in self._led.items():
            has = ~page.absent[column]
            led.enter(page.cells[column][has], rows[has])

    def forget(self, chunk: record_chunks.Chunk, offset: int, key: str, row: int) -> None:
        """Take a record out of all indexes; its values still stand in the chunk."""
        for column, led in self._led.items():
            (code,) = _codes_of(chunk, column, [offset])
            led.move(row, code, None)
        if chunk.index_values:
            self.index(chunk, offset, key, ())

    def _shared(
        self, values: column_layout.IndexValues, columns: tuple[int | None, ...]
    ) -> column_layout.IndexValues:
        """Return equal values made of the columns' own texts: few, where records are many."""
        if values is None:
            return None
        return tuple(
            [
                text if column is None else self._vocabularies[column].same(text)
                for text, column in zip(values, columns, strict=True)
            ]
        )


def _codes_of(chunk: record_chunks.Chunk, column: int, offsets: Sequence[int]) -> list[int | None]:
    """Return the codes rows have in a column; None for rows that are free or lack the value."""
    if not chunk.live_count:
        return [None] * len(offsets)  # as nearly always in a first load
    live, absent, codes = chunk.live, chunk.absent[column], chunk.arrays[column]
    return [
        codes.item(offset) if live.item(offset) and not absent.item(offset) else None
        for offset in offsets
    ]


class IndexReader:
    """Finds records by an index's values, and a record's values in an index.

    :param led: rows by code, by leading column
    :param texts: keys by texts, by index
    :param vocabularies: by position of a column
    """

    def __init__(
        self,
        row_layout: column_layout.ColumnLayout,
        rows: key_rows.KeyRows,
        row_chunks: immutables.Map[int, record_chunks.Chunk],
        led: Mapping[int, LedEntries],
        texts: Mapping[int, Entries[Texts, str]],
        vocabularies: Mapping[int, vocabulary.VocabularyView],
    ) -> None:
        self._layout = row_layout
        self._rows = rows
        self._chunks = row_chunks
        self._led = led
        self._texts = texts
        self._vocabularies = vocabularies
        # Filled by whoever asks first. Two threads may compute the same at
        # once; setdefault lets both return the same answer.
        self._looked_up: dict[tuple[int, tuple[str, ...]], tuple[str, ...]] = {}

    def lookup(self, name: str, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return the sorted keys of records with exactly these values.

        :raises KeyError: no such index
        :raises ValueError: not as many values as the index has
        """
        position = self._layout.index_position(name)
        index = self._layout.index(position)
        needed = len(index.paths)
        if len(values) != needed:
            raise ValueError(f"index {name} takes {needed} values, not {len(values)}")
        texts = tuple(map(column_layout.to_text, values))
        if index.few_values:
            return self._pass_over(position, texts)
        columns = self._layout.by_column.get(position)
        if columns is None:
            return tuple(sorted(lookup(self._texts[position], texts)))
        return self._look_up(columns, texts)

    def _look_up(self, columns: tuple[int, ...], texts: tuple[str, ...]) -> tuple[str, ...]:
        """Look up in an index whose texts are those of columns."""
        codes = [
            self._vocabularies[column].code(text)
            for column, text in zip(columns, texts, strict=True)
        ]
        if None in codes:
            return ()
        found = []
        leading = codes[-1]
        assert leading is not None
        for row in self._led[columns[-1]].rows(leading):
            number, offset = divmod(row, record_chunks.CHUNK_ROWS)
            chunk = self._chunks[number]
            for column, code in zip(columns[:-1], codes, strict=False):
                if chunk.arrays[column].item(offset) != code or chunk.absent[column].item(offset):
                    break
            else:
                found.append(chunk.keys[offset] or "")
        return tuple(sorted(found))

    def _pass_over(self, position: int, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Look up in an index of few values: the answers are kept."""
        kept = self._looked_up.get((position, texts))
        if kept is not None:
            return kept
        codes: list[tuple[int, int]] = []
        for column, text in zip(self._layout.index_columns[position], texts, strict=True):
            assert column is not None
            code = self._vocabularies[column].code(text)
            if code is None:
                return ()
            codes.append((column, code))
        found: list[str] = []
        for chunk in self._chunks.values():
            here = chunk.live.copy()
            for column, code in codes:
                here &= chunk.arrays[column] == code
            found.extend(chunk.keys[offset] or "" for offset in here.nonzero()[0].tolist())
        return self._looked_up.setdefault((position, texts), tuple(sorted(found)))

    def indexed(self, key: str, name: str) -> tuple[str, ...] | None:
        """Return the values an index holds of a record; None where it does not hold it.

        :raises KeyError: no such index
        """
        position = self._layout.index_position(name)
        row = self._rows.get(key)
        if row is None:
            return None
        number, offset = divmod(row, record_chunks.CHUNK_ROWS)
        chunk = self._chunks[number]
        if position in self._layout.by_text:
            return chunk.index_values[offset][self._layout.by_text.index(position)]
        for column in self._layout.by_column.get(position, ()):
            if chunk.absent[column].item(offset):
                return None
        return tuple(
            [
                self._vocabularies[column].text(chunk.arrays[column].item(offset))
                for column in self._layout.index_columns[position]
                if column is not None
            ]
        )
