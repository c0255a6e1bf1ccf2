# SPDX-License-Identifier: Apache-2.0
"""Columns of a host frame: of numbers and truth values as they are, coded ones, resources.

Columns of a host frame that are more than one array of numbers.

Columns of a host frame that hold a number or a truth value as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.frame import host_facts

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


#: Each with the name of its field of HostFacts.
PLAIN_COLUMNS: dict[str, type[Any]] = {
    "updated": np.bool_,
    "memory_mb": np.int64,
    "free_ram_mb": np.int64,
    "local_gb": np.int64,
    "free_disk_mb": np.int64,
    "disk_mb_used": np.int64,
    "vcpus": np.int64,
    "vcpus_used": np.int64,
    "cpu_allocation_ratio": np.float64,
    "ram_allocation_ratio": np.float64,
    "disk_allocation_ratio": np.float64,
    "num_instances": np.int64,
    "num_io_ops": np.int64,
    "failed_builds": np.int64,
    "hypervisor_version": np.int64,
    "pci_free": np.int64,
    "has_service": np.bool_,
    "disabled": np.bool_,
    "forced_down": np.bool_,
    "last_seen_seconds": np.float64,
}

#: What a node's report gives; empty until the first.
REPORTED = (
    "memory_mb",
    "free_ram_mb",
    "local_gb",
    "free_disk_mb",
    "disk_mb_used",
    "vcpus",
    "vcpus_used",
    "num_instances",
    "num_io_ops",
    "failed_builds",
    "hypervisor_version",
    "pci_free",
)

_REPORTED = frozenset(REPORTED)
#: All but what tells whether a node ever reported.
_NUMBERS = tuple(name for name in PLAIN_COLUMNS if name != "updated")
_numbers_of = operator.attrgetter(*_NUMBERS)

#: What a server takes of a host when it is chosen; a fork has its own.
_CONSUMABLE = (
    "free_ram_mb",
    "free_disk_mb",
    "vcpus_used",
    "num_instances",
    "num_io_ops",
    "pci_free",
)


class PlainColumns:
    """One array by field, each of shape (rows,)."""

    free_ram_mb: npt.NDArray[np.int64]
    free_disk_mb: npt.NDArray[np.int64]
    vcpus: npt.NDArray[np.int64]
    vcpus_used: npt.NDArray[np.int64]
    memory_mb: npt.NDArray[np.int64]
    local_gb: npt.NDArray[np.int64]
    disk_mb_used: npt.NDArray[np.int64]
    num_instances: npt.NDArray[np.int64]
    num_io_ops: npt.NDArray[np.int64]
    failed_builds: npt.NDArray[np.int64]
    hypervisor_version: npt.NDArray[np.int64]
    pci_free: npt.NDArray[np.int64]
    cpu_allocation_ratio: npt.NDArray[np.float64]
    ram_allocation_ratio: npt.NDArray[np.float64]
    disk_allocation_ratio: npt.NDArray[np.float64]
    last_seen_seconds: npt.NDArray[np.float64]
    updated: npt.NDArray[np.bool_]
    has_service: npt.NDArray[np.bool_]
    disabled: npt.NDArray[np.bool_]
    forced_down: npt.NDArray[np.bool_]

    def __init__(self) -> None:
        for name, dtype in PLAIN_COLUMNS.items():
            setattr(self, name, np.zeros(0, dtype))

    def numbers(self, row: int) -> dict[str, Any]:
        """Return a row's values by name."""
        return {name: getattr(self, name).item(row) for name in PLAIN_COLUMNS}

    def put_numbers(self, row: int, facts: host_facts.HostFacts) -> bool:
        """Take a host's values over; say whether more than a heartbeat changed."""
        began_or_ended = self.updated.item(row) != facts.updated
        self.updated[row] = facts.updated
        numbers = zip(_NUMBERS, _numbers_of(facts), strict=True)
        return self.amend_numbers(row, dict(numbers)) or began_or_ended

    def amend_numbers(self, row: int, numbers: Mapping[str, Any]) -> bool:
        """Take some of a host's values over; say whether more than a heartbeat changed.

        Nova leaves the HostState of a node whose usage was never reported as it
        was made, but for its service, aggregates and instances.
        """
        reported = self.updated.item(row)
        changed = False
        for name, value in numbers.items():
            if not reported and name in _REPORTED:
                value = 0
            column = getattr(self, name)
            if column.item(row) != value:
                column[row] = value
                changed |= name != "last_seen_seconds"
        return changed

    def fill_numbers(self, rows: Sequence[int], numbers: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set many rows' values.

        :param numbers: by name, shape (n,)
        """
        for name in PLAIN_COLUMNS:
            getattr(self, name)[rows] = numbers[name]

    def grow_numbers(self, rows: int) -> None:
        """Have so many rows."""
        for name in PLAIN_COLUMNS:
            setattr(self, name, grown(getattr(self, name), rows))

    def own_consumable(self) -> None:
        """Replace what servers take of hosts by copies."""
        for name in _CONSUMABLE:
            setattr(self, name, getattr(self, name).copy())
