# SPDX-License-Identifier: Apache-2.0
"""The reader's side of the indexes of one namespace at one moment.

May be used from any thread without a lock.
"""

from __future__ import annotations

from collections.abc import Mapping

import immutables

from nova_nodb_scheduler.store import chunks, conversions, indexes, layout, vocabulary


class IndexReader:
    """Finds records by an index's values, and a record's values in an index.

    :param led: rows by code, by leading column
    :param texts: keys by texts, by index
    :param vocabularies: by position of a column
    """

    def __init__(
        self,
        row_layout: layout.Layout,
        rows: immutables.Map[str, int],
        row_chunks: immutables.Map[int, chunks.Chunk],
        led: Mapping[int, indexes.Entries[int, int]],
        texts: Mapping[int, indexes.Entries[indexes.Texts, str]],
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
        index = self._layout.namespace.indexes[position]
        needed = len(index.paths)
        if len(values) != needed:
            raise ValueError(f"index {name} takes {needed} values, not {len(values)}")
        texts = tuple(map(conversions.to_text, values))
        if index.few_values:
            return self._pass_over(position, texts)
        columns = self._layout.by_column.get(position)
        if columns is None:
            return tuple(sorted(indexes.lookup(self._texts[position], texts)))
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
        for row in indexes.lookup(self._led[columns[-1]], leading):
            number, offset = divmod(row, chunks.CHUNK_ROWS)
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
            found.extend(chunk.keys[offset] or "" for offset in here.nonzero()[0])
        return self._looked_up.setdefault((position, texts), tuple(sorted(found)))

    def indexed(self, key: str, name: str) -> tuple[str, ...] | None:
        """Return the values an index holds of a record; None where it does not hold it.

        :raises KeyError: no such index
        """
        position = self._layout.index_position(name)
        row = self._rows.get(key)
        if row is None:
            return None
        number, offset = divmod(row, chunks.CHUNK_ROWS)
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
