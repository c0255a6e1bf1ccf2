# SPDX-License-Identifier: Apache-2.0
"""What Nova's HostState shows under a name, for filters whose requests name it.

Such a filter judges values, not hosts: :func:`judge` asks it once for each
combination of values that some of the rows have.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

#: A code for each row, and the value of each code.
Coded: TypeAlias = tuple[npt.NDArray[np.intp], Sequence[Any]]

#: Up to so many rows, a loop costs less than arrays do.
_FEW_ROWS = 16

#: Below this whole numbers are exact as floats.
_EXACT = 2**53


class ValueSource(abc.ABC):
    """Where a value of a host is read."""

    @abc.abstractmethod
    def read(self, frame: host_frame.HostFrame, rows: plugin_contract.Rows) -> Coded:
        """Return the rows' values."""


@attrs.frozen
class NumberSource(ValueSource):
    """A number that has a column.

    :param unknown: what Nova shows of a host whose usage was never reported
    """

    column: str
    unknown: int | None = 0

    def read(self, frame: host_frame.HostFrame, rows: plugin_contract.Rows) -> Coded:
        distinct, codes = np.unique(getattr(frame, self.column)[rows], return_inverse=True)
        values = [None if _is_nan(value) else value for value in distinct.tolist()]
        return np.where(frame.updated[rows], codes, len(values)), [*values, self.unknown]


@attrs.frozen
class RecordSource(ValueSource):
    """What stands at a path of the host's record."""

    path: tuple[str, ...]

    def read(self, frame: host_frame.HostFrame, rows: plugin_contract.Rows) -> Coded:
        column = frame.attribute(*self.path)
        # Code 0 is None, which Nova shows of a host that was never reported.
        return np.where(frame.updated[rows], column.codes[rows], 0), column.values


@attrs.frozen
class NameSource(ValueSource):
    """A name of the host, as its facts have it.

    :param when_reported: Nova knows it only from the first report on
    """

    field: str
    when_reported: bool = False

    def read(self, frame: host_frame.HostFrame, rows: plugin_contract.Rows) -> Coded:
        numbers = row_numbers(frame, rows)
        values = [self._of(frame, row) if frame.alive[row] else None for row in numbers.tolist()]
        return np.arange(len(values)), values

    def _of(self, frame: host_frame.HostFrame, row: int) -> Any:
        if self.when_reported and not frame.updated[row]:
            return None
        return getattr(frame.place(row), self.field)


#: Numbers of HostState by name.
NUMBERS: dict[str, NumberSource] = {
    "total_usable_ram_mb": NumberSource("memory_mb"),
    "total_usable_disk_gb": NumberSource("local_gb"),
    "disk_mb_used": NumberSource("disk_mb_used"),
    "free_ram_mb": NumberSource("free_ram_mb"),
    "free_disk_mb": NumberSource("free_disk_mb"),
    "vcpus_total": NumberSource("vcpus"),
    "vcpus_used": NumberSource("vcpus_used"),
    "num_instances": NumberSource("num_instances"),
    "num_io_ops": NumberSource("num_io_ops"),
    "failed_builds": NumberSource("failed_builds"),
    "hypervisor_version": NumberSource("hypervisor_version", None),
    "cpu_allocation_ratio": NumberSource("cpu_allocation_ratio", None),
    "ram_allocation_ratio": NumberSource("ram_allocation_ratio", None),
    "disk_allocation_ratio": NumberSource("disk_allocation_ratio", None),
}

#: Texts of HostState by name.
TEXTS: dict[str, ValueSource] = {
    "host": NameSource("host"),
    "nodename": NameSource("node"),
    "uuid": NameSource("uuid", when_reported=True),
    "cell_uuid": NameSource("cell"),
    "hypervisor_type": RecordSource(("hypervisor_type",)),
    "hypervisor_hostname": RecordSource(("hypervisor_hostname",)),
    "cpu_info": RecordSource(("cpu_info",)),
}

#: Names that a HostState of any of the supported releases has besides: objects
#: and methods, which only Nova's own code can look into.
OBJECTS: frozenset[str] = frozenset(
    [
        "aggregates",
        "allocation_candidates",
        "consume_from_request",
        "host_ip",
        "instances",
        "limits",
        "metrics",
        "numa_topology",
        "pci_stats",
        "service",
        "stats",
        "supported_instances",
        "update",
        "updated",
    ]
)


def stat(name: str) -> RecordSource:
    """Return where an entry of the compute node's stats is read."""
    return RecordSource(("stats", name))


def row_numbers(frame: host_frame.HostFrame, rows: plugin_contract.Rows) -> npt.NDArray[np.intp]:
    """Return the numbers of rows, shape (k,)."""
    return np.arange(frame.rows)[rows]


def among(
    frame: host_frame.HostFrame, rows: plugin_contract.Rows, chosen: frozenset[int]
) -> plugin_contract.BoolArray:
    """Return True for each of the rows that is one of the chosen."""
    if isinstance(rows, np.ndarray):
        return np.fromiter((row in chosen for row in rows.tolist()), np.bool_, len(rows))
    mask = np.zeros(frame.rows, np.bool_)
    mask[list(chosen)] = True
    return mask[rows]


def rows_of_names(frame: host_frame.HostFrame, names: Collection[str]) -> frozenset[int]:
    """Return the rows of the hosts with these names, in whatever cell."""
    return frozenset(
        row
        for cell in frame.cell.values
        for name in names
        for row in frame.rows_of_host(cell, name)
    )


def compare(
    frame: host_frame.HostFrame,
    source: ValueSource,
    rows: plugin_contract.Rows,
    operation: Callable[[Any, Any], Any],
    number: float,
) -> plugin_contract.BoolArray | None:
    """Compare a number of each of the rows with one number, or return None.

    None means that some values are no numbers, or are too large for arrays to
    compare them exactly: judge them one by one.
    """
    if not isinstance(source, NumberSource) or source.unknown is None or not abs(number) < _EXACT:
        return None
    values = getattr(frame, source.column)[rows]
    if len(values) <= _FEW_ROWS:
        return None  # a loop costs less
    result: plugin_contract.BoolArray = operation(np.where(frame.updated[rows], values, 0), number)
    return result


def equal(
    frame: host_frame.HostFrame, source: ValueSource, rows: plugin_contract.Rows, text: str
) -> plugin_contract.BoolArray | None:
    """Tell which of the rows have a text, or return None: judge them one by one."""
    if source == TEXTS["host"]:
        return among(frame, rows, rows_of_names(frame, [text]))
    if not isinstance(source, RecordSource):
        return None
    column = frame.attribute(*source.path)
    same: plugin_contract.BoolArray = np.equal(column.codes[rows], column.code(text))
    return same & frame.updated[rows]


def some_unreported(frame: host_frame.HostFrame) -> bool:
    """Tell whether Placement may offer a host whose usage was never reported.

    Most of what Nova shows of it is None, at which some of its filters raise.
    """
    rows = np.flatnonzero(frame.alive & ~frame.updated).tolist()
    providers = map(frame.provider, rows)
    return any(provider is None or provider.inventories for provider in providers)


def judge(
    frame: host_frame.HostFrame,
    sources: Sequence[ValueSource],
    rows: plugin_contract.Rows,
    passes: Callable[..., bool],
) -> plugin_contract.BoolArray:
    """Return what a predicate of values says of each of the rows.

    :param passes: called with a value of each source; asked once for each
        combination, of rows without a host too, hence it must not raise
    """
    read = [source.read(frame, rows) for source in sources]
    count = len(read[0][0])
    if count <= _FEW_ROWS:
        return np.fromiter(
            (passes(*(values[codes[i]] for codes, values in read)) for i in range(count)),
            np.bool_,
            count,
        )
    combined = np.zeros(count, np.int64)
    size = 1
    for codes, values in read:
        combined, size = _narrow(combined * len(values) + codes, size * len(values))
    # Some row of each combination; which one does not matter.
    witness = np.full(size, -1, np.int64)
    witness[combined] = np.arange(count)
    verdicts = np.zeros(size, np.bool_)
    for combination in np.flatnonzero(witness >= 0).tolist():
        row = witness[combination]
        verdicts[combination] = passes(*(values[codes[row]] for codes, values in read))
    return verdicts[combined]


def _narrow(combined: npt.NDArray[np.int64], size: int) -> tuple[npt.NDArray[np.int64], int]:
    """Number combinations anew where there are far more than rows."""
    if size <= 4 * len(combined):
        return combined, size
    distinct, narrow = np.unique(combined, return_inverse=True)
    return narrow, len(distinct)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
