# SPDX-License-Identifier: Apache-2.0
"""Columns of a host frame that hold a number or a truth value as it is."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling import columns, host_facts

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
            setattr(self, name, columns.grown(getattr(self, name), rows))

    def own_consumable(self) -> None:
        """Replace what servers take of hosts by copies."""
        for name in _CONSUMABLE:
            setattr(self, name, getattr(self, name).copy())
