# SPDX-License-Identifier: Apache-2.0
"""Rows of a store as plain values, which another process's store takes over without decoding.

What decoding a record comes to (its columns, its digest) goes along with its payload as
it is packed. Only numbers, codes of texts and digests with a form go: a record that has
more (sets of texts, values of an index that no column holds, a digest without a form)
goes as a record, and is decoded where it arrives.

Codes of texts count those of the column in all pages so far: hosts' names would stand in each
page of their servers otherwise, and be looked up for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import column_layout, key_rows, record_chunks, vocabulary

#: Chunks of a page: some 400 kB, and some ms of whoever makes or takes it.
_CHUNKS_PER_PAGE = 8
#: Most rows that a page is believed to have.
MOST_ROWS = _CHUNKS_PER_PAGE * record_chunks.CHUNK_ROWS

#: What a page may make who takes it over raise: it is not of this store's making.
UNFIT = (errors.NodbError, ArithmeticError, LookupError, TypeError, ValueError)


class ToldTexts(Sequence[str]):
    """Texts of a column in all pages so far, each once. Only grows; used by one thread."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self._texts = list(texts)
        #: Their codes in the vocabulary that asked last, as far as it has asked.
        self._codes = np.empty(0, np.int32)
        self._asked_by: vocabulary.Vocabulary | None = None

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> list[str]: ...

    def __getitem__(self, at: int | slice) -> str | list[str]:
        return self._texts[at]

    def extend(self, texts: Iterable[str]) -> None:
        """Add texts."""
        self._texts += texts

    def codes(self, own: vocabulary.Vocabulary) -> npt.NDArray[np.int32]:
        """Return their codes in a vocabulary, new ones where they have none; shape (n,).

        :raises ValueError: one is no text
        """
        if self._asked_by is not own:
            self._asked_by, self._codes = own, np.empty(0, np.int32)
        news = self._texts[len(self._codes) :]
        if news:
            _check_texts(news)
            self._codes = np.concatenate((self._codes, own.codes(news)))
        return self._codes


@attrs.frozen(eq=False)
class TextColumn:
    """A CATEGORY column.

    :param codes: shape (n,), int32: places in ``texts``
    """

    codes: npt.NDArray[np.int32]
    texts: ToldTexts


@attrs.frozen(eq=False)
class DumpedDigests:
    """Digests of those rows whose digest is not None.

    :param rows: shape (m,), int32, growing: places of these rows
    """

    rows: npt.NDArray[np.int32]
    dumped: bytes


@attrs.frozen(eq=False)
class StoredPage:
    """Some rows of one namespace; arrays have shape (n,).

    :param keys: texts, or uuids as bytes where all are kept so
    :param revisions: int64
    :param versions: int64
    :param held: payloads as they are kept, dumped by the packing, each once
    :param owners: int32: which of them holds a row's payload
    :param places: uint8: where in it
    :param dictionary: of the packing
    :param columns: by name, but for those that digests hold: int64, float64, bool, or texts
    :param absent: by name of a column, where it makes a difference: which rows lack the value
    :param digests: None where the namespace makes none
    """

    keys: Sequence[str] | key_rows.UuidKeys
    revisions: npt.NDArray[np.int64]
    versions: npt.NDArray[np.int64]
    held: Sequence[bytes]
    owners: npt.NDArray[np.int32]
    places: npt.NDArray[np.uint8]
    dictionary: bytes
    columns: Mapping[str, npt.NDArray[Any] | TextColumn]
    absent: Mapping[str, npt.NDArray[np.bool_]]
    digests: DumpedDigests | None

    def __len__(self) -> int:
        return len(self.keys)


@attrs.frozen(eq=False)
class StoredRows:
    """What some chunks hold.

    :param page: rows that go as they are; None for none
    :param others: places of the others: number of a chunk among those, and offset
    """

    page: StoredPage | None
    others: Sequence[tuple[record_chunks.Chunk, int]]


def dumped(
    layout: column_layout.ColumnLayout,
    chunks: Sequence[record_chunks.Chunk],
    vocabularies: Mapping[int, vocabulary.VocabularyView],
    packing: record_chunks.PayloadPacking,
) -> Iterator[StoredRows]:
    """Yield the rows of chunks that nobody writes to any more, some chunks at a time."""
    dump = _Dump(layout, vocabularies, packing)
    for first in range(0, len(chunks), _CHUNKS_PER_PAGE):
        yield dump.of(chunks[first : first + _CHUNKS_PER_PAGE])


class _TextTelling:
    """Tells a column's texts when they are first met."""

    def __init__(self, words: vocabulary.VocabularyView) -> None:
        self._words = words
        self._told = ToldTexts()
        #: By code of the vocabulary: places among those told, -1 of the others.
        self._places = np.full(len(words), -1, np.int32)

    def column(self, codes: record_chunks.Numbers) -> TextColumn:
        """Return a column of codes of the vocabulary, shape (n,)."""
        news = np.unique(codes[self._places[codes] < 0])
        self._places[news] = np.arange(len(self._told), len(self._told) + len(news))
        self._told.extend(map(self._words.text, news.tolist()))
        return TextColumn(self._places[codes], self._told)


class _Dump:
    def __init__(
        self,
        layout: column_layout.ColumnLayout,
        vocabularies: Mapping[int, vocabulary.VocabularyView],
        packing: record_chunks.PayloadPacking,
    ) -> None:
        self._layout = layout
        self._namespace = layout.namespace
        self._texts = {position: _TextTelling(words) for position, words in vocabularies.items()}
        self._packing = packing
        self._form = layout.namespace.digest_form

    def of(self, chunks: Sequence[record_chunks.Chunk]) -> StoredRows:
        """Return the rows of some chunks."""
        offsets = [self._going(chunk) for chunk in chunks]
        digests = self._digests(chunks, offsets)
        if digests is None:
            offsets = [[] for _ in chunks]
        others = []
        for chunk, going in zip(chunks, offsets, strict=True):
            stay = set(chunk.live.nonzero()[0].tolist()).difference(going)
            others += [(chunk, offset) for offset in sorted(stay)]
        pairs = [(chunk, going) for chunk, going in zip(chunks, offsets, strict=True) if going]
        return StoredRows(self._page(pairs, digests) if pairs else None, others)

    def _going(self, chunk: record_chunks.Chunk) -> list[int]:
        """Return the offsets of rows that go without being decoded."""
        if not self._layout.is_plain:
            return []
        live: list[int] = chunk.live.nonzero()[0].tolist()
        if not chunk.digests:
            return live
        if self._form is None:
            # Where columns are read from digests, nothing stands for none.
            allowed = not self._layout.unpacked
            return [offset for offset in live if allowed and chunk.digests[offset] is None]
        has = self._form.has
        none_goes = not self._layout.unpacked
        return [
            offset
            for offset in live
            if has(chunk.digests[offset]) or (none_goes and chunk.digests[offset] is None)
        ]

    def _digests(
        self, chunks: Sequence[record_chunks.Chunk], offsets: Sequence[Sequence[int]]
    ) -> DumpedDigests | tuple[()] | None:
        """Return the digests of rows that go; () where there are none to tell, None for a fault."""
        if self._namespace.digest is None:
            return ()
        found: list[Any] = []
        for chunk, going in zip(chunks, offsets, strict=True):
            found += [chunk.digests[offset] for offset in going]
        rows = [at for at, each in enumerate(found) if each is not None]
        if self._form is None or not rows:
            return DumpedDigests(np.array(rows, np.int32), b"")
        try:
            made = self._form.dump([found[at] for at in rows])
        except (TypeError, ValueError):
            return None
        return DumpedDigests(np.array(rows, np.int32), made)

    def _page(
        self,
        pairs: Sequence[tuple[record_chunks.Chunk, Sequence[int]]],
        digests: DumpedDigests | tuple[()] | None,
    ) -> StoredPage:
        #: Kept meanwhile: the feed's thread packs payloads in place, and the number of an
        #: object that is gone is soon another one's.
        held: dict[int, tuple[int, Any]] = {}
        dumps: list[bytes] = []
        owners: list[int] = []
        for chunk, going in pairs:
            for offset in going:
                each = chunk.payloads[offset]
                owner, _each = held.setdefault(id(each), (len(dumps), each))
                if owner == len(dumps):
                    dumps.append(self._packing.dump(each))
                owners.append(owner)
        places = _gathered(pairs, lambda chunk: chunk.places)
        # Beside a payload by itself what stood there before may stand.
        alone = np.array([not self._is_bundle(chunk, at) for chunk, g in pairs for at in g])
        return StoredPage(
            keys=key_rows.given([(chunk.keys, going) for chunk, going in pairs]),
            revisions=_gathered(pairs, lambda chunk: chunk.revisions).astype(np.int64),
            versions=_gathered(pairs, lambda chunk: chunk.versions).astype(np.int64),
            held=dumps,
            owners=np.array(owners, np.int32),
            places=np.where(alone, 0, places).astype(np.uint8),
            dictionary=self._packing.dictionary,
            columns=self._columns(pairs),
            absent={
                self._name(position): _gathered(pairs, lambda chunk, at=position: chunk.absent[at])
                for position in self._layout.marked
            },
            digests=digests or None,
        )

    @staticmethod
    def _is_bundle(chunk: record_chunks.Chunk, offset: int) -> bool:
        return not isinstance(chunk.payloads[offset], bytes)

    def _columns(
        self, pairs: Sequence[tuple[record_chunks.Chunk, Sequence[int]]]
    ) -> dict[str, npt.NDArray[Any] | TextColumn]:
        columns: dict[str, npt.NDArray[Any] | TextColumn] = {}
        for position, column in enumerate(self._namespace.columns):
            if position in self._layout.unpacked:
                continue
            values = _gathered(pairs, lambda chunk, at=position: chunk.arrays[at])
            if column.kind is namespaces.Kind.CATEGORY:
                columns[column.name] = self._texts[position].column(values)
            else:
                columns[column.name] = values.astype(record_chunks.DTYPES[column.kind], copy=False)
        return columns

    def _name(self, position: int) -> str:
        return self._namespace.columns[position].name


def _gathered(pairs: Sequence[tuple[record_chunks.Chunk, Sequence[int]]], array_of: Any) -> Any:
    return np.concatenate([array_of(chunk)[going] for chunk, going in pairs])


class PageTaking:
    """Checks a page, and makes of it what a table writes.

    :param texts: by position of a column, the table's own
    """

    def __init__(
        self,
        layout: column_layout.ColumnLayout,
        texts: Mapping[int, vocabulary.Vocabulary],
        packing: record_chunks.PayloadPacking,
    ) -> None:
        self._layout = layout
        self._namespace = layout.namespace
        self._texts = texts
        self._packing = packing

    def check(self, page: StoredPage, most: int) -> None:
        """Refuse keys and numbers that are none.

        :param most: greatest revision and version
        :raises ValueError: they are
        """
        count = len(page)
        if not 0 < count <= MOST_ROWS or not self._layout.is_plain:
            raise ValueError(f"a page of {count} rows of namespace {self._namespace.name}")
        names: Sequence[str]
        if isinstance(page.keys, key_rows.UuidKeys):
            page.keys.check()
            names = page.keys.samples()
        else:
            names = page.keys
            if len(set(names)) != count:
                raise ValueError("a key occurs twice")
        fault = records.first_name_fault(self._namespace.name, names)
        if fault is not None:
            raise ValueError(fault)
        for numbers, least in ((page.revisions, 1), (page.versions, 0)):
            _check_shape(numbers, count, np.int64)
            if np.any(numbers < least) or np.any(numbers > most):
                raise ValueError("a revision or a version is none")

    def payloads(self, page: StoredPage) -> list[Any]:
        """Return what holds each row's payload; the places in it are those of the page.

        :raises ValueError: one leads nowhere
        """
        _check_shape(page.owners, len(page), np.int32)
        _check_shape(page.places, len(page), np.uint8)
        self._packing.adopt(page.dictionary)
        held = list(map(self._packing.load, page.held))
        owners, places = page.owners, page.places
        if np.any(owners < 0) or np.any(owners >= len(held)):
            raise ValueError("a payload leads nowhere")
        if np.any(places >= np.array(list(map(self._packing.places, held)))[owners]):
            raise ValueError("a payload leads nowhere")
        return list(map(held.__getitem__, owners.tolist()))

    def digests(self, page: StoredPage) -> list[Any] | None:
        """Return the rows' digests; None where the namespace makes none.

        :raises UNFIT: they are none
        """
        namespace, count = self._namespace, len(page)
        if namespace.digest is None:
            return None
        if page.digests is None:
            raise ValueError("its digests are missing")
        dumped = page.digests
        rows = dumped.rows.tolist()
        found: list[Any] = [None] * count
        if rows:
            if namespace.digest_form is None or rows != sorted(set(rows)) or rows[0] < 0:
                raise ValueError("its digests are of no row")
            for at, each in zip(
                rows, namespace.digest_form.load(dumped.dumped, len(rows)), strict=True
            ):
                found[at] = each
        if self._layout.unpacked and None in found:
            raise ValueError("a digest that columns are read from is missing")
        return found

    def cells(self, page: StoredPage) -> column_layout.StatePage:
        """Return the rows' values, with this table's codes.

        :raises UNFIT: a column is missing, or not what it is declared to be
        """
        cells: list[Any] = []
        for position, column in enumerate(self._namespace.columns):
            if position in self._layout.unpacked:
                cells.append(None)
            else:
                cells.append(self._column(position, column, page.columns[column.name], len(page)))
        absent = {}
        for position in self._layout.marked:
            flags = page.absent[self._namespace.columns[position].name]
            _check_flags(flags, len(page))
            absent[position] = flags
        return column_layout.StatePage(cells, absent, [])

    def _column(
        self,
        position: int,
        column: namespaces.Column,
        values: npt.NDArray[Any] | TextColumn,
        count: int,
    ) -> npt.NDArray[Any]:
        if column.kind is namespaces.Kind.CATEGORY:
            if not isinstance(values, TextColumn):
                raise ValueError(f"column {column.name} holds no texts")
            _check_shape(values.codes, count, np.int32)
            if np.any(values.codes < 0) or np.any(values.codes >= len(values.texts)):
                raise ValueError(f"a text of column {column.name} is missing")
            return values.texts.codes(self._texts[position])[values.codes]
        if isinstance(values, TextColumn):
            raise ValueError(f"column {column.name} holds texts")
        if column.kind is namespaces.Kind.BOOL:
            _check_flags(values, count)
        else:
            _check_shape(values, count, column_layout.DTYPES[column.kind])
        return values


def _check_shape(values: npt.NDArray[Any], count: int, dtype: Any) -> None:
    if values.shape != (count,) or values.dtype != dtype:
        raise ValueError(f"a column of {values.dtype} and shape {values.shape} for {count} rows")


def _check_flags(values: npt.NDArray[Any], count: int) -> None:
    _check_shape(values, count, np.bool_)
    if np.any(values.view(np.uint8) > 1):
        raise ValueError("a flag is neither true nor false")


def _check_texts(texts: Iterable[Any]) -> None:
    if not set(map(type, texts)) <= {str}:
        raise ValueError("a text is none")
