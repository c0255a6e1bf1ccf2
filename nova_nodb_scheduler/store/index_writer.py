# SPDX-License-Identifier: Apache-2.0
"""The writer's side of the indexes of one namespace in one epoch.

Where columns hold the texts of an index, it leads from the code of its last
column to rows; elsewhere it leads from texts to keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nova_nodb_scheduler.store import chunks, indexes, layout, numbers, transient, vocabulary


class IndexWriter:
    """Enters rows and keys. Not thread-safe.

    :param vocabularies: by position of a column
    """

    def __init__(
        self, row_layout: layout.Layout, vocabularies: Mapping[int, vocabulary.Vocabulary]
    ) -> None:
        self._layout = row_layout
        self._vocabularies = vocabularies
        #: By leading column: code -> rows.
        self._led: dict[int, transient.Transient[int, indexes.Postings[int]]] = {
            column: transient.Transient() for column in row_layout.leading
        }
        #: By index: texts -> keys.
        self._texts: dict[int, transient.Transient[indexes.Texts, indexes.Postings[str]]] = {
            position: transient.Transient() for position in row_layout.by_text
        }

    def led(self) -> dict[int, indexes.Entries[int, int]]:
        """Return rows by code, by leading column, which nothing changes any more."""
        return {column: entries.freeze() for column, entries in self._led.items()}

    def texts(self) -> dict[int, indexes.Entries[indexes.Texts, str]]:
        """Return keys by texts, by index, which nothing changes any more."""
        return {position: entries.freeze() for position, entries in self._texts.items()}

    def lead(
        self,
        chunk: chunks.Chunk,
        offsets: Sequence[int],
        places: Sequence[int],
        first_row: int,
        page: layout.Page,
    ) -> None:
        """Move rows from the codes that they had in leading columns to their new ones.

        To be called before the chunk's columns are written.

        :param places: where in the page the values of each offset stand
        :param page: with arrays of codes for texts, and arrays of what is absent
        """
        for column, transient_entries in self._led.items():
            entries = transient_entries.open()
            formers = _codes_of(chunk, column, offsets)
            codes = map(page.cells[column].item, places)
            flags = map(page.absent[column].item, places)
            for offset, former, code, lacking in zip(offsets, formers, codes, flags, strict=True):
                present = None if lacking else code
                if former != present:
                    row = numbers.shared(first_row + offset)
                    if former is not None:
                        indexes.discard(entries, former, row)
                    if present is not None:
                        indexes.add(entries, numbers.shared(present), row)

    def index(
        self, chunk: chunks.Chunk, offset: int, key: str, values: tuple[layout.IndexValues, ...]
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

    def forget(self, chunk: chunks.Chunk, offset: int, key: str, row: int) -> None:
        """Take a record out of all indexes; its values still stand in the chunk."""
        for column, entries in self._led.items():
            (code,) = _codes_of(chunk, column, [offset])
            if code is not None:
                indexes.discard(entries.open(), code, row)
        if chunk.index_values:
            self.index(chunk, offset, key, ())

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


def _codes_of(chunk: chunks.Chunk, column: int, offsets: Sequence[int]) -> list[int | None]:
    """Return the codes rows have in a column; None for rows that are free or lack the value."""
    if not chunk.live_count:
        return [None] * len(offsets)  # as nearly always in a first load
    live, absent, codes = chunk.live, chunk.absent[column], chunk.arrays[column]
    return [
        codes.item(offset) if live.item(offset) and not absent.item(offset) else None
        for offset in offsets
    ]
