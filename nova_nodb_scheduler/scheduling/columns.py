# SPDX-License-Identifier: Apache-2.0
"""Columns of a host frame that are more than one array of numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

#: Distinct values a column may hold beyond two for each row before it is made anew.
_SPARE_VALUES = 64


class CodedColumn:
    """Values that repeat: a code per row, and each distinct value once.

    :ivar codes: shape (rows,), int32
    :ivar values: by code; some may stand on no row any more
    """

    def __init__(self, rows: int, empty: Hashable) -> None:
        self.codes: npt.NDArray[np.int32] = np.zeros(rows, np.int32)
        self.values: list[Any] = [empty]
        self._code_of: dict[Hashable, int] = {empty: 0}

    def put(self, row: int, value: Hashable) -> bool:
        """Set a row's value; say whether it changed."""
        code = self._code_of.get(value)
        if code is None:
            if len(self.values) > 2 * len(self.codes) + _SPARE_VALUES:
                self._drop_unused()
            code = self._code_of[value] = len(self.values)
            self.values.append(value)
        if self.codes[row] == code:
            return False
        self.codes[row] = code
        return True

    def put_all(self, rows: Sequence[int], values: Sequence[Hashable]) -> None:
        """Set many rows' values."""
        if len(self.values) + len(set(values)) > 2 * len(self.codes) + _SPARE_VALUES:
            self._drop_unused()
        codes = []
        for value in values:
            code = self._code_of.get(value)
            if code is None:
                code = self._code_of[value] = len(self.values)
                self.values.append(value)
            codes.append(code)
        self.codes[rows] = codes

    def value(self, row: int) -> Any:
        """Return a row's value."""
        return self.values[self.codes.item(row)]

    def code(self, value: Hashable) -> int:
        """Return the code of a value; -1 where no row ever had it."""
        return self._code_of.get(value, -1)

    def grow(self, rows: int) -> None:
        self.codes = grown(self.codes, rows)

    def where(
        self, rows: slice | npt.NDArray[np.intp], predicate: Callable[[Any], bool]
    ) -> npt.NDArray[np.bool_]:
        """Return what a predicate says of each row's value; asked once a value at most."""
        return self._each(rows, predicate, np.bool_)

    def map(
        self, rows: slice | npt.NDArray[np.intp], function: Callable[[Any], float]
    ) -> npt.NDArray[np.float64]:
        """Return a number for each row's value; asked once a value at most."""
        return self._each(rows, function, np.float64)

    def _each(
        self, rows: slice | npt.NDArray[np.intp], function: Callable[[Any], Any], dtype: type[Any]
    ) -> npt.NDArray[Any]:
        codes = self.codes[rows]
        values = self.values
        if len(codes) >= len(values):
            return np.fromiter(map(function, values), dtype, len(values))[codes]
        if len(codes) == 1:
            # One host changed, the commonest question of all.
            return np.array([function(values[codes.item()])], dtype)
        wanted, places = np.unique(codes, return_inverse=True)
        answers = (function(values[code]) for code in wanted.tolist())
        return np.fromiter(answers, dtype, len(wanted))[places]

    def _drop_unused(self) -> None:
        # New objects: a copy of this column goes on with the old ones.
        wanted, places = np.unique(self.codes, return_inverse=True)
        empty = self.values[0]
        if wanted[0] == 0:
            values = [self.values[code] for code in wanted.tolist()]
        else:
            values = [empty, *(self.values[code] for code in wanted.tolist())]
            places = places + 1
        self.codes = places.astype(np.int32)
        self.values = values
        self._code_of = {value: code for code, value in enumerate(values)}


class ResourceColumns:
    """One resource class over all rows; capacity is -1 where a host has none of it."""

    def __init__(self, rows: int) -> None:
        self.capacity: npt.NDArray[np.int64] = np.full(rows, -1, np.int64)
        self.used: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.min_unit: npt.NDArray[np.int64] = np.ones(rows, np.int64)
        self.max_unit: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.step_size: npt.NDArray[np.int64] = np.ones(rows, np.int64)

    def row(self, row: int) -> tuple[int, int, int, int, int]:
        """Return capacity, used, least and greatest amount and step of a row."""
        return (
            self.capacity.item(row),
            self.used.item(row),
            self.min_unit.item(row),
            self.max_unit.item(row),
            self.step_size.item(row),
        )

    def put(self, row: int, values: tuple[int, int, int, int, int]) -> bool:
        """Set a row to what :meth:`row` gives; say whether it changed."""
        if self.row(row) == values:
            return False
        self.capacity[row] = values[0]
        self.used[row] = values[1]
        self.min_unit[row] = values[2]
        self.max_unit[row] = values[3]
        self.step_size[row] = values[4]
        return True

    def put_all(
        self, rows: Sequence[int], values: Sequence[tuple[int, int, int, int, int]]
    ) -> None:
        """Set many rows to what :meth:`row` gives of each."""
        columns = (self.capacity, self.used, self.min_unit, self.max_unit, self.step_size)
        for column, numbers in zip(columns, zip(*values, strict=True), strict=True):
            column[rows] = numbers

    def grow(self, rows: int) -> None:
        self.capacity = grown(self.capacity, rows, -1)
        self.used = grown(self.used, rows)
        self.min_unit = grown(self.min_unit, rows, 1)
        self.max_unit = grown(self.max_unit, rows)
        self.step_size = grown(self.step_size, rows, 1)


#: The row of a resource class that a host has no inventory of.
NO_INVENTORY = (-1, 0, 1, 0, 1)


def grown(array: npt.NDArray[Any], rows: int, fill: float = 0) -> npt.NDArray[Any]:
    """Return an array with more rows, the new ones filled."""
    longer = np.full(rows, fill, array.dtype)
    longer[: len(array)] = array
    return longer
