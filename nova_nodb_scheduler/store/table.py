# SPDX-License-Identifier: Apache-2.0
"""The writer's side of one namespace: rows in chunks, and the maps that find them.

Not thread-safe; :class:`~nova_nodb_scheduler.store.host_state_store.HostStateStore`
holds a lock around every call.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import (
    chunks,
    indexes,
    keeping,
    layout,
    numbers,
    snapshot,
    transient,
    vocabulary,
)

Decoder = Callable[[keeping.Packing, keeping.Kept], Mapping[str, Any]]


#: What became of a change: whether it was newer, or why it cannot be taken.
Outcome = bool | Exception
#: Vocabularies by path: columns of one path, of any namespace, share theirs.
Vocabularies = dict[namespaces.Path, vocabulary.Vocabulary]


#: So many changes of one namespace at once come of a snapshot, or of a storm.
_ENOUGH_TO_BUNDLE = 64


class Table:
    """All records of one namespace.

    :param texts: shared with other tables of the same store and epoch
    """

    def __init__(
        self,
        namespace: namespaces.Namespace,
        decode: Decoder,
        make_packing: Callable[[], keeping.Packing],
        texts: Vocabularies,
    ) -> None:
        self._make_packing = make_packing
        self._layout = layout.Layout(namespace)
        self._namespace = namespace
        self._decode = decode
        self._kinds = tuple(column.kind for column in namespace.columns)
        self._epoch = 0
        #: Grows with every change a snapshot can see, across epochs too.
        self._version = 0
        self._generation = 0
        self.bytes_copied = 0
        self._view: snapshot.NamespaceView | None = None
        self._kin: tuple[Table, ...] = ()
        self._drop_all(texts)

    def _drop_all(self, texts: Vocabularies) -> None:
        self._rows: transient.Transient[str, int] = transient.Transient()
        self._chunks: transient.Transient[int, chunks.Chunk] = transient.Transient()
        #: By leading column: code -> rows.
        self._led: dict[int, transient.Transient[int, indexes.Postings[int]]] = {
            column: transient.Transient() for column in self._layout.leading
        }
        #: By index: texts -> keys.
        self._texts: dict[int, transient.Transient[indexes.Texts, indexes.Postings[str]]] = {
            position: transient.Transient() for position in self._layout.by_text
        }
        self._vocabularies = {
            position: texts.setdefault(column.path, vocabulary.Vocabulary())
            if column.kind is namespaces.Kind.CATEGORY
            else vocabulary.Vocabulary()
            for position, column in enumerate(self._namespace.columns)
            if column.kind in (namespaces.Kind.CATEGORY, namespaces.Kind.BITS)
        }
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

    def key(self, key: str) -> str | None:
        """Return the text that is kept of a key; None where there is no such record."""
        row = self._rows.open().get(key)
        return None if row is None else self._chunk_of(row).keys[row % chunks.CHUNK_ROWS]

    def share_keys(self, kin: Iterable[Table]) -> None:
        """Keep one text of a key that other tables hold as well."""
        self._kin = tuple(each for each in kin if each is not self)

    @property
    def tombstone_count(self) -> int:
        return len(self._tombstones)

    def apply(self, changes: Sequence[records.Change]) -> list[Outcome]:
        """Take over those changes that are newer than what is known of their records.

        :param changes: of different records
        :returns: for each what became of it; an InvalidRecord, or what else its
            state made the namespace's digest raise, changed nothing
        """
        outcomes: list[Outcome] = [False] * len(changes)
        rows = self._rows.open()
        taken: list[int] = []
        for at, change in enumerate(changes):
            record = change.record
            key = record.key.key
            try:
                revision = _checked(record, "revision", record.revision)
                version = _checked(record, "version", record.version)
            except errors.InvalidRecord as error:
                outcomes[at] = error
                continue
            row = rows.get(key)
            if row is not None:
                known = int(self._chunk_of(row).revisions[row % chunks.CHUNK_ROWS])
            else:
                known = self._tombstones.get(key, (0, 0))[0]
            if revision <= known:
                continue
            if record.deleted:
                if row is not None:
                    self._remove(key, row)
                self._tombstones[key] = (revision, version)
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

    def _take(
        self, changes: Sequence[records.Change], taken: Sequence[int], outcomes: list[Outcome]
    ) -> None:
        """Take live records over all at once, or each by itself where one is refused."""
        here = [changes[at] for at in taken]
        keys = [change.record.key.key for change in here]
        states: list[Mapping[str, Any]] = [change.state or {} for change in here]
        make_digest = self._namespace.digest
        try:
            page = self._layout.page(keys, states)
            digests = None if make_digest is None else self._digests(make_digest, keys, states)
        except (errors.NodbError, TypeError, ValueError) as error:
            if len(taken) == 1:
                outcomes[taken[0]] = error
                return
            for at in taken:
                self._take(changes, (at,), outcomes)
            return
        self._put(here, keys, page, digests)
        for at in taken:
            outcomes[at] = True

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
                kept = chunk.payloads[offset]
                if isinstance(kept, bytes):
                    chunk.payloads[offset] = self._packing.pack(kept)
            looked_at += chunk.live_count
        return looked_at

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
        self._drop_all(texts)

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
                led={column: entries.freeze() for column, entries in self._led.items()},
                texts={position: entries.freeze() for position, entries in self._texts.items()},
                vocabularies={
                    position: words.view() for position, words in self._vocabularies.items()
                },
                decode=self._decode,
                packing=self._packing,
            )
        return self._view

    def _digests(
        self,
        make_digest: namespaces.Digest,
        keys: Sequence[str],
        states: Sequence[Mapping[str, Any]],
    ) -> list[Any]:
        made = list(map(make_digest, keys, states))
        form = self._namespace.digest_form
        return made if form is None else list(map(form.keep, keys, states, made))

    # -- rows ---------------------------------------------------------------------

    def _put(
        self,
        changes: Sequence[records.Change],
        keys: Sequence[str],
        page: layout.Page,
        digests: Sequence[Any] | None,
    ) -> None:
        rows, keys = self._rows_for(keys)
        cells = [
            np.array(self._vocabularies[position].codes(values), np.int32)
            if kind is namespaces.Kind.CATEGORY
            else values
            for position, (kind, values) in enumerate(zip(self._kinds, page.cells, strict=True))
        ]
        absent = {column: np.array(flags) for column, flags in page.absent.items()}
        revisions = np.array([change.record.revision for change in changes], np.int64)
        versions = np.array([change.record.version for change in changes], np.int64)
        together = self._kept_together(changes)
        by_chunk: dict[int, list[int]] = {}
        for at, row in enumerate(rows):
            by_chunk.setdefault(row // chunks.CHUNK_ROWS, []).append(at)
        for number, places in by_chunk.items():
            chunk = self._writable(number)
            offsets = [rows[at] % chunks.CHUNK_ROWS for at in places]
            self._lead(chunk, offsets, places, number * chunks.CHUNK_ROWS, cells, absent)
            for position, (kind, values) in enumerate(zip(self._kinds, cells, strict=True)):
                if kind is namespaces.Kind.BITS:
                    for offset, at in zip(offsets, places, strict=True):
                        self._put_bits(chunk, offset, position, values[at])
                else:
                    chunk.arrays[position][offsets] = values[places]
            for column, flags in absent.items():
                chunk.absent[column][offsets] = flags[places]
            chunk.revisions[offsets] = revisions[places]
            chunk.versions[offsets] = versions[places]
            chunk.live[offsets] = True
            for offset, at in zip(offsets, places, strict=True):
                if page.index_values:
                    self._index(chunk, offset, keys[at], page.index_values[at])
                if chunk.keys[offset] is None:
                    chunk.live_count += 1
                    chunk.keys[offset] = keys[at]
                chunk.keep(offset, together[at] if together else self._kept(changes[at], number))
                if digests is not None:
                    chunk.digests[offset] = digests[at]
        self._changed()

    def _rows_for(self, keys: Sequence[str]) -> tuple[list[int], Sequence[str]]:
        """Return the rows of keys, new ones for those that have none, and the texts to keep."""
        known = self._rows.open()
        rows = [known.get(key) for key in keys]
        if None not in rows:
            return rows, keys  # type: ignore[return-value]
        first = keys[rows.index(None)]
        # Keys of a page come of one source: the first one tells for all.
        kin = next((each for each in self._kin if each.key(first) is not None), None)
        texts = list(keys)
        for at, key in enumerate(keys):
            if rows[at] is None:
                text = key if kin is None else kin.key(key) or key
                texts[at] = text
                rows[at] = known[text] = self._take_row()
                self._tombstones.pop(key, None)
        return rows, texts  # type: ignore[return-value]

    def _kept_together(self, changes: Sequence[records.Change]) -> Sequence[keeping.Kept]:
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
        return self._packing.pack_many([change.record.payload for change in changes], texts)

    def _kept(self, change: records.Change, number: int) -> bytes:
        """Return a payload as it is to be kept: packed where that costs no decompression."""
        payload = change.record.payload
        if len(payload) < self._packing.least_bytes:
            return payload
        if change.text is not None:
            return self._packing.pack(payload, change.text)
        self._unpacked.add(number)
        return payload

    def _put_bits(
        self, chunk: chunks.Chunk, offset: int, position: int, texts: tuple[str, ...]
    ) -> None:
        words = self._vocabularies[position]
        bits = 0
        for text in texts:
            bits |= 1 << words.code(text)
        self.bytes_copied += chunk.write_bits(position, offset, bits, words.view().words)

    # -- indexes --------------------------------------------------------------------

    def _lead(
        self,
        chunk: chunks.Chunk,
        offsets: Sequence[int],
        places: Sequence[int],
        first_row: int,
        cells: Sequence[Any],
        absent: Mapping[int, Any],
    ) -> None:
        """Move rows from the codes that they had in leading columns to their new ones."""
        for column, transient_entries in self._led.items():
            entries = transient_entries.open()
            formers = self._codes_of(chunk, column, offsets)
            codes = cells[column][places].tolist()
            flags = absent[column][places].tolist()
            for offset, former, code, lacking in zip(offsets, formers, codes, flags, strict=True):
                present = None if lacking else code
                if former != present:
                    if former is not None:
                        indexes.discard(entries, former, first_row + offset)
                    if present is not None:
                        row = numbers.shared(first_row + offset)
                        indexes.add(entries, numbers.shared(present), row)

    @staticmethod
    def _codes_of(chunk: chunks.Chunk, column: int, offsets: Sequence[int]) -> list[int | None]:
        """Return the codes rows have in a column; None for rows that are free or lack the value."""
        without = (chunk.absent[column] | ~chunk.live)[offsets].tolist()
        codes = chunk.arrays[column][offsets].tolist()
        return [None if none else code for none, code in zip(without, codes, strict=True)]

    def _index(
        self,
        chunk: chunks.Chunk,
        offset: int,
        key: str,
        values: tuple[layout.IndexValues, ...],
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
                    indexes.discard(index.open(), old, key)
                if new is not None:
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
        for column, entries in self._led.items():
            (code,) = self._codes_of(chunk, column, [offset])
            if code is not None:
                indexes.discard(entries.open(), code, row)
        if chunk.index_values:
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
        return numbers.shared(self._row_count - 1)

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
                with_index_values=bool(self._texts),
                marked=self._layout.marked,
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
