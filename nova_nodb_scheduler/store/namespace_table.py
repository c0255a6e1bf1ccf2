# SPDX-License-Identifier: Apache-2.0
"""The writer's side of one namespace: which changes are taken over, and what it then holds.

Readers see what was frozen. Not thread-safe;
:class:`~nova_nodb_scheduler.store.host_state_store.HostStateStore` holds a lock
around every call.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, record_columns, records
from nova_nodb_scheduler.store import (
    column_layout,
    record_chunks,
    record_index,
    store_snapshot,
    stored_pages,
    vocabulary,
)

_OF_RECORD = operator.attrgetter(
    "record.key.key", "record.revision", "record.version", "record.payload"
)
_DELETED, _STATE, _TEXT = map(operator.attrgetter, ("record.deleted", "state", "text"))

#: Where the widths of these stand, beside those of columns.
_REVISIONS, _VERSIONS = -1, -2

#: Vocabularies by path: columns of one path, of any namespace, share theirs.
Vocabularies = dict[namespaces.Path, vocabulary.Vocabulary]


@attrs.frozen(eq=False)
class TakenRows:
    """Records on their way into rows, in one order.

    :param revisions: shape (n,), int64
    :param versions: shape (n,), int64
    :param page: their values, with codes for texts
    :param digests: None where the namespace needs none
    """

    keys: Sequence[str]
    revisions: npt.NDArray[np.int64]
    versions: npt.NDArray[np.int64]
    page: column_layout.StatePage
    digests: Sequence[Any] | None


class NamespaceContents:
    """Takes records in and out.

    :ivar rows: by key; not to be written by others
    :param texts: shared with other namespaces of the same store and epoch
    """

    def __init__(
        self,
        row_layout: column_layout.ColumnLayout,
        packing: record_chunks.PayloadPacking,
        texts: Vocabularies,
    ) -> None:
        self._layout = row_layout
        self._namespace = row_layout.namespace
        self._kinds = tuple(column.kind for column in self._namespace.columns)
        #: Columns of whole numbers and codes.
        self._whole = tuple(
            position
            for position, kind in enumerate(self._kinds)
            if kind in (namespaces.Kind.INT, namespaces.Kind.CATEGORY)
            and position not in row_layout.unpacked
        )
        #: Columns of sets of texts.
        self._sets = tuple(
            position for position, kind in enumerate(self._kinds) if kind is namespaces.Kind.BITS
        )
        self._steady = tuple(
            position for position, column in enumerate(self._namespace.columns) if column.steady
        )
        #: Whether a record came or went, or a value in a steady column changed, since
        #: somebody put this to False.
        self.stirred = True
        self.rows = record_index.Rows(self._make_chunk, uuid_keys=self._namespace.uuid_keys)
        self.vocabularies = {
            position: texts.setdefault(column.path, vocabulary.Vocabulary())
            if column.kind is namespaces.Kind.CATEGORY
            else vocabulary.Vocabulary()
            for position, column in enumerate(self._namespace.columns)
            if column.kind in (namespaces.Kind.CATEGORY, namespaces.Kind.BITS)
        }
        self.indexes = record_index.IndexWriter(row_layout, self.vocabularies)
        self.payloads = record_chunks.Payloads(packing)

    def _make_chunk(self, generation: int) -> record_chunks.Chunk:
        return record_chunks.Chunk(
            self._namespace.columns,
            generation,
            with_digests=self._namespace.digest is not None,
            with_index_values=bool(self._layout.by_text),
            marked=self._layout.marked,
            without=self._layout.unpacked,
            key_packing=self.rows.key_packing,
        )

    @property
    def bytes_copied(self) -> int:
        """Bytes of rows copied so far because a snapshot saw them."""
        return self.rows.bytes_copied

    def kept_keys(self, keys: Sequence[str]) -> list[str | None]:
        """Return the texts that are kept of keys; None where there is no such record."""
        return self.rows.texts(keys)

    def check(self) -> None:
        """Refuse keys that came with two pages; see :meth:`.record_index.Rows.check`."""
        self.rows.check()

    def pack(self, most_records: int) -> int:
        """Pack chunks until so many records were looked at; return how many were."""
        return self.payloads.pack(most_records, self.rows.chunk)

    def put(
        self,
        taken: TakenRows,
        kept_in: Callable[[Sequence[int]], Sequence[record_chunks.Kept]],
        kin: Sequence[record_index.SameKeys],
    ) -> None:
        """Take records in, or over.

        :param kept_in: returns the payloads as they are to be kept, given the numbers of
            the chunks that they will stand in
        :param kin: who may keep equal keys already
        """
        rows_here, keys = self.rows.of(taken.keys, kin)
        page, digests = taken.page, taken.digests
        numbers = [row // record_chunks.CHUNK_ROWS for row in rows_here]
        kept = kept_in(numbers)
        widths = self._widths(taken)
        by_chunk: dict[int, list[int]] = {}
        for at, number in enumerate(numbers):
            by_chunk.setdefault(number, []).append(at)
        for number, places in by_chunk.items():
            chunk = self.rows.writable(number)
            offsets = [rows_here[at] % record_chunks.CHUNK_ROWS for at in places]
            self.indexes.lead(chunk, offsets, places, number * record_chunks.CHUNK_ROWS, page)
            if self._steady and not self.stirred:
                self.stirred = self._stirs(chunk, offsets, places, page)
            self._write(chunk, _index(offsets), _index(places), taken, widths)
            for position in self._sets:
                for offset, at in zip(offsets, places, strict=True):
                    self._put_bits(chunk, offset, position, page.cells[position][at])
            if page.index_values:
                for offset, at in zip(offsets, places, strict=True):
                    self.indexes.index(chunk, offset, keys[at], page.index_values[at])
            chunk.enter(offsets, [keys[at] for at in places], [kept[at] for at in places])
            if digests is not None:
                for offset, at in zip(offsets, places, strict=True):
                    chunk.digests[offset] = digests[at]

    def put_new(
        self,
        taken: TakenRows,
        packed: npt.NDArray[np.uint8] | None,
        held: Sequence[Any],
        places: npt.NDArray[np.uint8],
        kin: Sequence[record_index.SameKeys],
    ) -> None:
        """Take new records in whose columns hold all, by runs of rows instead of row by row.

        :param packed: their keys, shape (n, 17); ``keys`` of what is taken are not asked then
        :param held: what holds each payload, and ``places`` where in it, shape (n,)
        :param kin: as of :meth:`put`
        """
        keys: Sequence[str] | npt.NDArray[np.uint8]
        if packed is None:
            rows, keys = self.rows.enter_texts(taken.keys, kin)
        else:
            rows, keys = self.rows.enter(packed), packed
        self.indexes.lead_new(rows, taken.page)
        self.stirred = self.stirred or bool(self._steady)
        widths = self._widths(taken)
        breaks = (np.diff(rows) != 1) | (rows[1:] % record_chunks.CHUNK_ROWS == 0)
        begins = [0, *(np.flatnonzero(breaks) + 1).tolist()]
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
            number, first = divmod(rows.item(begin), record_chunks.CHUNK_ROWS)
            chunk, there = self.rows.writable(number), slice(begin, end)
            here = slice(first, first + end - begin)
            self._write(chunk, here, there, taken, widths)
            chunk.enter_run(first, keys[there], held[there], places[there])
            if taken.digests is not None:
                chunk.digests[here] = taken.digests[there]

    def coded(self, page: column_layout.StatePage) -> column_layout.StatePage:
        """Return a page with the codes of its texts."""
        cells = [
            self.vocabularies[position].codes(values)
            if kind is namespaces.Kind.CATEGORY
            else values
            for position, (kind, values) in enumerate(zip(self._kinds, page.cells, strict=True))
        ]
        return column_layout.StatePage(cells, page.absent, page.index_values)

    def _stirs(
        self,
        chunk: record_chunks.Chunk,
        offsets: Sequence[int],
        places: Sequence[int],
        page: column_layout.StatePage,
    ) -> bool:
        """Tell whether what is about to be written is new to a steady column."""
        here, there = _index(offsets), _index(places)
        return not np.all(chunk.live[here]) or any(
            np.any(chunk.arrays[position][here] != np.asarray(page.cells[position])[there])
            for position in self._steady
        )

    def _write(
        self,
        chunk: record_chunks.Chunk,
        here: Any,
        there: Any,
        taken: TakenRows,
        widths: Mapping[int, int],
    ) -> None:
        """Write all but sets of texts.

        :param here: offsets in the chunk, and ``there`` places in what is taken, as indexes
        """
        page = taken.page
        age = (widths[_REVISIONS], widths[_VERSIONS])
        chunk.write_age(here, taken.revisions[there], taken.versions[there], age)
        for position, values in enumerate(page.cells):
            if position in widths:
                chunk.write_numbers(position, here, values[there], widths[position])
            elif values is not None and position not in self._sets:
                chunk.arrays[position][here] = values[there]
        for column, flags in page.absent.items():
            chunk.absent[column][here] = flags[there]

    def _widths(self, taken: TakenRows) -> dict[int, int]:
        """Return how many bytes numbers and codes need, by position of their column."""
        needed = {
            position: record_chunks.bytes_needed(taken.page.cells[position])
            for position in self._whole
        }
        needed[_REVISIONS] = record_chunks.bytes_needed(taken.revisions)
        needed[_VERSIONS] = record_chunks.bytes_needed(taken.versions)
        return needed

    def _put_bits(
        self, chunk: record_chunks.Chunk, offset: int, position: int, texts: tuple[str, ...]
    ) -> None:
        words = self.vocabularies[position]
        bits = 0
        for text in texts:
            bits |= 1 << words.code(text)
        self.rows.bytes_copied += chunk.write_bits(position, offset, bits, words.view().words)

    def remove(self, key: str, row: int) -> None:
        """Forget the record of a key, which stands in a row."""
        number, offset = divmod(row, record_chunks.CHUNK_ROWS)
        self.stirred = True
        self.indexes.forget(self.rows.writable(number), offset, key, row)
        self.rows.release(key, row)

    def without(self, keys: Collection[str], version: int) -> Iterator[tuple[str, int]]:
        """Find keys and rows of records that are not among some keys and not above a version."""
        for number, chunk in self.rows.all_chunks().items():
            for offset in (chunk.live & (chunk.versions <= version)).nonzero()[0].tolist():
                key = chunk.keys[offset]
                if key is not None and key not in keys:
                    yield key, number * record_chunks.CHUNK_ROWS + offset


def _index(places: Sequence[int]) -> Any:
    """Return what NumPy takes quickest for some places: of one, as in most changes, a number."""
    return places[0] if len(places) == 1 else np.array(places, np.intp)


Decoder = Callable[[record_chunks.PayloadPacking, record_chunks.Kept], Mapping[str, Any]]

#: What became of a change: whether it was newer, or why it cannot be taken.
Outcome = bool | Exception
#: Greatest revision and version.
_GREATEST = 2**62


class NamespaceTable:
    """All records of one namespace.

    :param texts: shared with other tables of the same store and epoch
    """

    def __init__(
        self,
        namespace: namespaces.Namespace,
        decode: Decoder,
        make_packing: Callable[[], record_chunks.PayloadPacking],
        texts: Vocabularies,
    ) -> None:
        self._make_packing = make_packing
        self._layout = column_layout.ColumnLayout(namespace)
        self._namespace = namespace
        self._decode = decode
        self._epoch = 0
        #: Grows with every change a snapshot can see, across epochs too.
        self._version = 0
        self._copied_before = 0
        self._view: store_snapshot.NamespaceView | None = None
        self._steady_mark = object()
        self._kin: tuple[record_index.SameKeys, ...] = ()
        self._begin(texts)

    def _begin(self, texts: Vocabularies) -> None:
        self._contents = NamespaceContents(self._layout, self._make_packing(), texts)
        #: key -> (revision, version) of records that are gone
        self._tombstones: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._contents.rows)

    def kept_keys(self, keys: Sequence[str]) -> list[str | None]:
        """Return the texts that are kept of keys; None where there is no such record."""
        return self._contents.kept_keys(keys)

    def share_keys(self, kin: Iterable[NamespaceTable]) -> None:
        """Keep one text of a key that other tables hold as well.

        Tables of uuids have no texts to share.
        """
        if self._namespace.uuid_keys:
            return
        self._kin = tuple(
            each.kept_keys for each in kin if each is not self and not each._namespace.uuid_keys
        )

    @property
    def bytes_copied(self) -> int:
        """Bytes copied since the start so that snapshots stay as they were."""
        return self._copied_before + self._contents.bytes_copied

    @property
    def tombstone_count(self) -> int:
        return len(self._tombstones)

    def apply(self, changes: Sequence[records.Change]) -> list[Outcome]:
        """Take over those changes that are newer than what is known of their records.

        :param changes: of different records
        :returns: for each what became of it; an InvalidRecord, or what else its
            state made the namespace's digest raise, changed nothing
        """
        if len(changes) >= record_chunks.ENOUGH_TOGETHER:
            page = self._in_columns(changes)
            if page is not None and self._take_new(page):
                return [True] * len(changes)
            changes = list(changes)
        outcomes: list[Outcome] = [False] * len(changes)
        known, tombstones = self._contents.rows, self._tombstones
        row_of = known.by_key()
        taken: list[int] = []
        for at, change in enumerate(changes):
            record = change.record
            try:
                revision = _checked(record, "revision", record.revision)
                version = _checked(record, "version", record.version)
            except errors.InvalidRecord as error:
                outcomes[at] = error
                continue
            key = record.key.key
            row = row_of.get(key)
            if row is not None:
                if revision <= known.revision(row):
                    continue
            elif tombstones and revision <= tombstones.get(key, (0, 0))[0]:
                continue
            if record.deleted:
                if row is not None:
                    self._remove(key, row)
                tombstones[key] = (revision, version)
                outcomes[at] = True
            elif isinstance(change.state, Mapping):
                taken.append(at)
            else:
                outcomes[at] = errors.InvalidRecord(
                    str(record.key), "(state)", "it is not an object"
                )
        if taken:
            self._take(changes, taken, outcomes)
        return outcomes

    def _in_columns(self, changes: Sequence[records.Change]) -> record_columns.ChangeColumns | None:
        """Return changes as columns; None where there is a tombstone."""
        if isinstance(changes, record_columns.ChangeColumns):
            return changes
        if any(map(_DELETED, changes)):
            return None
        columns = zip(*map(_OF_RECORD, changes), strict=True)
        page = record_columns.RecordColumns(self._namespace.name, *map(list, columns))
        states, texts = list(map(_STATE, changes)), list(map(_TEXT, changes))
        return record_columns.ChangeColumns(page, states, texts)

    def _take_new(self, page: record_columns.ChangeColumns) -> bool:
        """Take new records over in a few calls for all, as a first load brings them.

        :param page: of different records
        :returns: False where one of them is not new, or not as it should be; nothing was
            changed then
        """
        found = page.page
        if not self._layout.is_plain or set(map(type, page.states)) != {dict}:
            return False
        for numbers in (found.revisions, found.versions):
            if set(map(type, numbers)) != {int} or min(numbers) < 1 or max(numbers) > _GREATEST:
                return False
        keys, held = found.keys, self._contents
        if not self._tombstones.keys().isdisjoint(keys):
            return False
        try:
            packed = held.rows.packed(keys)
            make_digest = self._namespace.digest
            digests = None if make_digest is None else list(map(make_digest, keys, page.states))
            values = self._layout.page(keys, page.states, digests)
        except (errors.NodbError, TypeError, ValueError):
            return False
        kept = held.payloads.columns_together(found.payloads, page.texts)
        if not kept:
            return False
        rows = TakenRows(
            keys,
            np.array(found.revisions, np.int64),
            np.array(found.versions, np.int64),
            held.coded(values),
            digests,
        )
        held.put_new(rows, packed, *record_chunks.parted(kept), self._kin)
        self._changed()
        return True

    def _take(
        self, changes: Sequence[records.Change], taken: Sequence[int], outcomes: list[Outcome]
    ) -> None:
        """Take live records over all at once, or each by itself where one is refused."""
        here = [changes[at] for at in taken]
        keys = [change.key.key for change in here]
        states: list[Mapping[str, Any]] = [change.state or {} for change in here]
        make_digest = self._namespace.digest
        try:
            digests = None if make_digest is None else list(map(make_digest, keys, states))
            page = self._layout.page(keys, states, digests)
        except (errors.NodbError, TypeError, ValueError) as error:
            if len(taken) == 1:
                outcomes[taken[0]] = error
                return
            for at in taken:
                self._take(changes, (at,), outcomes)
            return
        held = self._contents
        rows = TakenRows(
            keys,
            np.array([change.record.revision for change in here], np.int64),
            np.array([change.record.version for change in here], np.int64),
            held.coded(page),
            digests,
        )
        kept_in = functools.partial(held.payloads.kept, here)
        held.put(rows, kept_in, self._kin)
        self._changed()
        if self._tombstones:
            for key in keys:
                self._tombstones.pop(key, None)
        for at in taken:
            outcomes[at] = True

    def restore(self, page: stored_pages.StoredPage) -> None:
        """Take over rows that another process's table held, none of whose keys is here.

        Nothing is decoded, and what all rows have in common is done once. Whether a key came
        with another page as well :meth:`check_restored` tells.

        :raises UNFIT: it cannot be believed; nothing was changed
        """
        held = self._contents
        taking = stored_pages.PageTaking(self._layout, held.vocabularies, held.payloads.packing)
        taking.check(page, _GREATEST)
        if self._tombstones and not self._tombstones.keys().isdisjoint(page.keys):
            raise ValueError("a key was removed")
        packed = held.rows.packed(page.keys, gathered=False)
        payloads, digests = taking.payloads(page), taking.digests(page)
        rows = TakenRows(
            list(page.keys) if packed is None else (),
            page.revisions,
            page.versions,
            taking.cells(page),
            digests,
        )
        held.put_new(rows, packed, payloads, page.places, self._kin)
        self._changed()

    def check_restored(self) -> None:
        """Refuse what pages brought together, where one by one they were fit.

        :raises ValueError: a key came twice; the table is not to be used
        """
        self._contents.check()

    def retain(self, keys: Collection[str], version: int) -> list[str]:
        """Drop rows whose key is not among these and whose version is not above.

        Returns the keys dropped.

        Nothing is remembered of them: if one was dropped because a snapshot
        read missed it, a sweep can bring it back as it was.
        """
        keys = keys if isinstance(keys, (set, frozenset, Mapping)) else frozenset(keys)
        doomed = list(self._contents.without(keys, version))
        for key, row in doomed:
            self._remove(key, row)
        return [key for key, _row in doomed]

    def pack(self, most_records: int) -> int:
        """Pack chunks until so many records were looked at; return how many were."""
        return self._contents.pack(most_records)

    def forget_tombstones(self, below_version: int) -> int:
        """Forget removed records whose last change is older than that."""
        kept = {key: seen for key, seen in self._tombstones.items() if seen[1] >= below_version}
        forgotten = len(self._tombstones) - len(kept)
        self._tombstones = kept
        return forgotten

    def clear(self, texts: Vocabularies) -> None:
        """Begin a new epoch with nothing; snapshots keep what they hold."""
        self._epoch += 1
        self._changed()
        self._copied_before = self.bytes_copied
        self._begin(texts)

    def view(self) -> store_snapshot.NamespaceView:
        """Return what there is now, for good; the same object until a change."""
        if self._view is None:
            held = self._contents
            if held.stirred:
                held.stirred, self._steady_mark = False, object()
            row_of, row_chunks = held.rows.freeze()
            vocabularies = {position: words.view() for position, words in held.vocabularies.items()}
            self._view = store_snapshot.NamespaceView(
                self._layout,
                version=self._version,
                epoch=self._epoch,
                steady_mark=self._steady_mark,
                rows=row_of,
                row_chunks=row_chunks,
                indexes=record_index.IndexReader(
                    self._layout,
                    row_of,
                    row_chunks,
                    held.indexes.led(),
                    held.indexes.texts(),
                    vocabularies,
                ),
                vocabularies=vocabularies,
                decode=self._decode,
                packing=held.payloads.packing,
            )
        return self._view

    def _remove(self, key: str, row: int) -> None:
        self._contents.remove(key, row)
        self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._view = None


def _checked(record: records.Record, field: str, value: object) -> int:
    if type(value) is int and 0 < value <= _GREATEST:
        return value  # nearly always
    try:
        number = column_layout.to_int64(value)
    except ValueError as error:
        raise errors.InvalidRecord(str(record.key), f"({field})", str(error)) from error
    if number < (field == "revision"):
        raise errors.InvalidRecord(str(record.key), f"({field})", f"{number} is too small")
    return number
