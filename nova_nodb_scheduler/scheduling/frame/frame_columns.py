# SPDX-License-Identifier: Apache-2.0
"""Columns of a host frame: numbers as they are, values that repeat, resources; and pages of hosts.

A page is how hosts come into a frame, one or all of them.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.frame import host_facts, host_places

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

    def put_all(self, rows: Sequence[int], values: Sequence[Hashable]) -> list[bool]:
        """Set rows' values; say of each whether it changed."""
        if len(rows) == 1:
            return [self.put(rows[0], values[0])]
        if len(self.values) + len(set(values)) > 2 * len(self.codes) + _SPARE_VALUES:
            self._drop_unused()
        codes = []
        for value in values:
            code = self._code_of.get(value)
            if code is None:
                code = self._code_of[value] = len(self.values)
                self.values.append(value)
            codes.append(code)
        changed: list[bool] = (self.codes[rows] != codes).tolist()
        self.codes[rows] = codes
        return changed

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


@attrs.define
class _UnitBounds:
    """Units within which an amount is refused by no row; they only ever narrow."""

    least: int = 1
    greatest: int = 2**63 - 1
    step: int = 1

    def narrow(self, least: int, greatest: int, step: int) -> None:
        self.least = max(self.least, least)
        self.greatest = min(self.greatest, greatest)
        self.step = max(self.step, step)


class ResourceColumns:
    """One resource class over all rows; capacity is far below 0 where a host has none of it."""

    capacity: npt.NDArray[np.int64]
    min_unit: npt.NDArray[np.int64]
    max_unit: npt.NDArray[np.int64]
    step_size: npt.NDArray[np.int64]

    def __init__(self, rows: int) -> None:
        self.used: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        # One object for all forks, as the limits are.
        self._bounds = _UnitBounds()
        # Of one array: a row's numbers are read together.
        self._bind(np.repeat(np.array(_NO_LIMITS, np.int64)[:, None], rows, axis=1))

    def _bind(self, limits: npt.NDArray[np.int64]) -> None:
        self._limits = limits
        self.capacity, self.min_unit, self.max_unit, self.step_size = limits

    def row(self, row: int) -> tuple[int, int, int, int, int]:
        """Return capacity, used, least and greatest amount and step of a row."""
        capacity, least, greatest, step = self._limits[:, row].tolist()
        return capacity, self.used.item(row), least, greatest, step

    def admits(self, amount: int) -> bool:
        """Say whether no row can refuse an amount for its units; False says nothing."""
        bounds = self._bounds
        return bounds.least <= amount <= bounds.greatest and bounds.step <= 1

    def put_used(self, row: int, used: int) -> bool:
        """Set what is used of a row; say whether it changed."""
        if self.used.item(row) == used:
            return False
        self.used[row] = used
        return True

    def put(self, row: int, values: tuple[int, int, int, int, int]) -> bool:
        """Set a row to what :meth:`row` gives; say whether it changed."""
        if self.row(row) == values:
            return False
        if values[0] >= 0:
            self._bounds.narrow(*values[2:])
        self.capacity[row] = values[0]
        self.used[row] = values[1]
        self.min_unit[row] = values[2]
        self.max_unit[row] = values[3]
        self.step_size[row] = values[4]
        return True

    def put_all(
        self, rows: Sequence[int], values: Sequence[tuple[int, int, int, int, int]]
    ) -> None:
        """Set many rows to what :meth:`row` gives of each, of what hosts have."""
        for least, greatest, step in {each[2:] for each in values}:
            self._bounds.narrow(least, greatest, step)
        columns = (self.capacity, self.used, self.min_unit, self.max_unit, self.step_size)
        for column, numbers in zip(columns, zip(*values, strict=True), strict=True):
            column[rows] = numbers

    def grow(self, rows: int) -> None:
        self.used = grown(self.used, rows)
        before = self._limits
        more = np.repeat(np.array(_NO_LIMITS, np.int64)[:, None], rows - before.shape[1], axis=1)
        self._bind(np.concatenate([before, more], axis=1))


#: So little that no amount fits, whatever is given back of what is used.
_NO_CAPACITY = -(2**62)
#: Capacity, least and greatest amount and step where a host has no inventory of a class.
_NO_LIMITS = (_NO_CAPACITY, 1, 0, 1)
#: The row of a resource class that a host has no inventory of.
NO_INVENTORY = (_NO_CAPACITY, 0, 1, 0, 1)


def grown(array: npt.NDArray[Any], rows: int, fill: float = 0) -> npt.NDArray[Any]:
    """Return an array with more rows, the new ones filled."""
    longer = np.full(rows, fill, array.dtype)
    longer[: len(array)] = array
    return longer


BoolArray: TypeAlias = npt.NDArray[np.bool_]

#: What a node's report gives; 0 until the first. Names here are fields of HostFacts.
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
RATIOS = ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio")

#: What the service's records give.
OF_SERVICE = ("has_service", "disabled", "forced_down", "last_seen_seconds")
_DTYPES: dict[str, type[Any]] = {
    **dict.fromkeys(REPORTED, np.int64),
    **dict.fromkeys(RATIOS, np.float64),
    **dict.fromkeys(("updated", *OF_SERVICE[:-1]), np.bool_),
    OF_SERVICE[-1]: np.float64,
}
PLAIN_COLUMNS = tuple(_DTYPES)
_numbers_of = operator.attrgetter(*PLAIN_COLUMNS)

#: A host's packed row: all of its plain columns, in their order. First what the node's record
#: gives, as :data:`NODE`, then the rest, as :data:`REST`.
_NODE_FORM, _REST_FORM = f"{len(REPORTED)}q{len(RATIOS)}d", "4?d"
NODE = struct.Struct(f"={_NODE_FORM}")
REST = struct.Struct(f"={_REST_FORM}")
ROW = struct.Struct(f"={_NODE_FORM}{_REST_FORM}")
#: How packed rows are read in place.
_ROWS = np.dtype(list(_DTYPES.items()))
assert _ROWS.itemsize == ROW.size

#: What a server takes of a host when it is chosen; a fork has its own.
CONSUMABLE = (
    "free_ram_mb",
    "free_disk_mb",
    "vcpus_used",
    "num_instances",
    "num_io_ops",
    "pci_free",
)
_consumable_of = operator.attrgetter(*CONSUMABLE)


@attrs.define(eq=False)
class HostPage:
    """Some hosts, each once, as a frame takes them; each list has an item for each.

    :param rows: packed as :data:`ROW`; what is :data:`REPORTED` is 0 of hosts that never reported
    :param aggregates: uuids of Nova's aggregates, in the order of their ids
    """

    places: list[host_places.HostPlace] = attrs.field(factory=list)
    rows: list[bytes] = attrs.field(factory=list)
    aggregates: list[tuple[str, ...]] = attrs.field(factory=list)
    providers: list[host_facts.ProviderFacts | None] = attrs.field(factory=list)

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def of(cls, *hosts: host_facts.HostFacts) -> HostPage:
        """Return a page of hosts whose facts are at hand."""
        return cls(
            [host_places.HostPlace(each.uuid, each.cell, each.host, each.node) for each in hosts],
            [_row_of(each) for each in hosts],
            [each.aggregates for each in hosts],
            [each.provider for each in hosts],
        )


def _row_of(facts: host_facts.HostFacts) -> bytes:
    numbers = _numbers_of(facts)
    if not facts.updated:
        numbers = (*(0 for _name in REPORTED), *numbers[len(REPORTED) :])
    return ROW.pack(*numbers)


def numbers_of(packed: bytes) -> dict[str, Any]:
    """Return the values of a packed row by name."""
    return dict(zip(PLAIN_COLUMNS, ROW.unpack(packed), strict=True))


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
        self._plain: tuple[npt.NDArray[Any], ...] = ()
        self._bind(tuple(np.zeros(0, dtype) for dtype in _DTYPES.values()))

    def _bind(self, arrays: tuple[npt.NDArray[Any], ...]) -> None:
        self._plain = arrays
        for name, array in zip(PLAIN_COLUMNS, arrays, strict=True):
            setattr(self, name, array)

    def numbers(self, row: int) -> dict[str, Any]:
        """Return a row's values by name."""
        return {name: getattr(self, name).item(row) for name in PLAIN_COLUMNS}

    def put_rows(self, rows: Sequence[int], packed: Sequence[bytes]) -> list[bool]:
        """Take hosts' packed rows over; say of which more than a heartbeat changed."""
        if len(rows) == 1:
            # NumPy's cost for each call is thrice that of one host.
            return [self._put(rows[0], self._plain, ROW.unpack(packed[0]))]
        taken, at = np.frombuffer(b"".join(packed), _ROWS), np.array(rows, np.intp)
        changed: BoolArray = np.zeros(len(rows), np.bool_)
        for name, column in zip(PLAIN_COLUMNS, self._plain, strict=True):
            if column is not self.last_seen_seconds:
                changed |= column[at] != taken[name]
            column[at] = taken[name]
        found: list[bool] = changed.tolist()
        return found

    def put_service(self, row: int, service: Sequence[Any]) -> bool:
        """Take over what a service's records give; say whether more than a heartbeat changed.

        :param service: in the order of :data:`OF_SERVICE`
        """
        return self._put(row, self._plain[-len(OF_SERVICE) :], service)

    def put_consumable(self, row: int, numbers: Mapping[str, int]) -> bool:
        """Take over what is left of what servers take of a host; say whether it changed.

        :param numbers: of each of :data:`CONSUMABLE`, in their order
        """
        return self._put(row, _consumable_of(self), [*numbers.values()])

    def _put(self, row: int, columns: Sequence[npt.NDArray[Any]], values: Sequence[Any]) -> bool:
        changed = False
        for column, value in zip(columns, values, strict=True):
            if column.item(row) != value:
                column[row] = value
                changed |= column is not self.last_seen_seconds
        return changed

    def grow_numbers(self, rows: int) -> None:
        """Have so many rows."""
        self._bind(tuple(grown(array, rows) for array in self._plain))

    def own_consumable(self) -> None:
        """Replace what servers take of hosts by copies."""
        for name in CONSUMABLE:
            setattr(self, name, getattr(self, name).copy())
