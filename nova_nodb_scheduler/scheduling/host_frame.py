# SPDX-License-Identifier: Apache-2.0
"""All hosts as columns, one row a compute node, for filters and weighers.

A row keeps its number as long as its node lives. Columns have spare rows;
:attr:`HostFrame.alive` says which rows count. One thread at a time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling import host_facts

#: Rows that are added, and ranked, at a time.
BLOCK_ROWS = 256

#: Columns that hold a number or truth value of HostFacts as it is.
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

#: What a server takes of a host when it is chosen; a fork has its own.
_CONSUMABLE = ("free_ram_mb", "free_disk_mb", "vcpus_used", "num_instances", "num_io_ops")

Locate = Callable[[str], Iterable[tuple[str, str]]]
Attribute = Callable[[str, tuple[str, ...]], Hashable]


class CodedColumn:
    """Values that repeat: a code per row, and each distinct value once.

    :ivar codes: shape (rows,), int32
    :ivar values: by code
    """

    def __init__(self, rows: int, empty: Hashable) -> None:
        self.codes: npt.NDArray[np.int32] = np.zeros(rows, np.int32)
        self.values: list[Any] = [empty]
        self._code_of: dict[Hashable, int] = {empty: 0}

    def put(self, row: int, value: Hashable) -> None:
        code = self._code_of.get(value)
        if code is None:
            code = self._code_of[value] = len(self.values)
            self.values.append(value)
        self.codes[row] = code

    def grow(self, rows: int) -> None:
        self.codes = _grown(self.codes, rows)

    def where(
        self, rows: slice | npt.NDArray[np.intp], predicate: Callable[[Any], bool]
    ) -> npt.NDArray[np.bool_]:
        """Return what a predicate says of each row's value; asked once a value."""
        codes = self.codes[rows]
        passes = np.fromiter(map(predicate, self.values), np.bool_, len(self.values))
        return passes[codes]

    def map(
        self, rows: slice | npt.NDArray[np.intp], function: Callable[[Any], float]
    ) -> npt.NDArray[np.float64]:
        """Return a number for each row's value; asked once a value."""
        numbers = np.fromiter(map(function, self.values), np.float64, len(self.values))
        return numbers[self.codes[rows]]


class ResourceColumns:
    """One resource class over all rows; capacity is -1 where a host has none of it."""

    def __init__(self, rows: int) -> None:
        self.capacity: npt.NDArray[np.int64] = np.full(rows, -1, np.int64)
        self.used: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.min_unit: npt.NDArray[np.int64] = np.ones(rows, np.int64)
        self.max_unit: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.step_size: npt.NDArray[np.int64] = np.ones(rows, np.int64)

    def grow(self, rows: int) -> None:
        self.capacity = _grown(self.capacity, rows, -1)
        self.used = _grown(self.used, rows)
        self.min_unit = _grown(self.min_unit, rows, 1)
        self.max_unit = _grown(self.max_unit, rows)
        self.step_size = _grown(self.step_size, rows, 1)


class HostFrame:
    """All hosts, as columns named like the fields of HostFacts.

    :param locate: (instance uuid) -> (cell, host) of each place where the
        store knows an instance of that uuid
    :param attribute: (node uuid, path) -> what stands at a path of Nova's
        HostState (``("stats", "foo")``, ``("cpu_info",)``, ``("metrics", "x")``),
        hashable; for what has no column
    """

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

    def __init__(
        self,
        locate: Locate = lambda uuid: (),
        attribute: Attribute = lambda uuid, path: None,
    ) -> None:
        self._locate = locate
        self._attribute = attribute
        self.rows = 0
        #: Which rows hold a host.
        self.alive: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        #: Whether the service is up; kept by :meth:`tick`.
        self.up: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        for name, dtype in PLAIN_COLUMNS.items():
            setattr(self, name, np.zeros(0, dtype))
        self.cell = CodedColumn(0, "")
        #: Tuples of uuids of Nova's aggregates.
        self.aggregate_sets = CodedColumn(0, ())
        #: Frozensets of traits, and of Placement's aggregates, of the root provider.
        self.traits = CodedColumn(0, frozenset())
        self.provider_aggregates = CodedColumn(0, frozenset())
        #: Nova's aggregates by uuid; replaced whole by :meth:`set_aggregates`.
        self.aggregates: Mapping[str, host_facts.Aggregate] = {}
        self._resources: dict[str, ResourceColumns] = {}
        self._facts: list[host_facts.HostFacts | None] = []
        self._row_of: dict[str, int] = {}
        self._rows_of_host: dict[tuple[str, str], set[int]] = {}
        self._free: list[int] = []
        self._attributes: dict[tuple[str, ...], CodedColumn] = {}
        #: Instances placed by this fork: (cell, host) by uuid.
        self._placed: dict[str, tuple[str, str]] = {}

    # -- reading ----------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._row_of)

    def facts(self, row: int) -> host_facts.HostFacts:
        """Return what a row was made from.

        :raises KeyError: no host has that row
        """
        found = self._facts[row]
        if found is None:
            raise KeyError(row)
        return found

    def row_of(self, uuid: str) -> int | None:
        """Return the row of a compute node, or None."""
        return self._row_of.get(uuid)

    def rows_of_host(self, cell: str, host: str) -> Collection[int]:
        """Return the rows of the nodes of one host; several with ironic."""
        return self._rows_of_host.get((cell, host), ())

    def resource(self, name: str) -> ResourceColumns | None:
        """Return the columns of a resource class; None if no host has it."""
        return self._resources.get(name)

    def attribute(self, *path: str) -> CodedColumn:
        """Return what stands at a path of each host's HostState.

        The first call for a path reads every host's record; later ones only
        those that changed.
        """
        column = self._attributes.get(path)
        if column is None:
            column = self._attributes[path] = CodedColumn(self.rows, None)
            for uuid, row in self._row_of.items():
                column.put(row, self._attribute(uuid, path))
        return column

    def instance_counts(self, uuids: Iterable[str]) -> dict[int, int]:
        """Return how many of some instances stand on each row; rows without are left out."""
        counts: dict[int, int] = {}
        for uuid in set(uuids):
            places = set(self._locate(uuid))
            if uuid in self._placed:
                places.add(self._placed[uuid])
            for row in {row for place in places for row in self.rows_of_host(*place)}:
                counts[row] = counts.get(row, 0) + 1
        return counts

    # -- writing ----------------------------------------------------------------

    def put(self, facts: host_facts.HostFacts) -> int:
        """Take a host in, or take its new facts over; return its row."""
        row = self._row_of.get(facts.uuid)
        if row is None:
            row = self._new_row()
            self._row_of[facts.uuid] = row
        else:
            self._forget_names(row)
        self._facts[row] = facts
        self._rows_of_host.setdefault((facts.cell, facts.host), set()).add(row)
        for name in PLAIN_COLUMNS:
            getattr(self, name)[row] = getattr(facts, name)
        self.cell.put(row, facts.cell)
        self.aggregate_sets.put(row, facts.aggregates)
        self._put_provider(row, facts.provider)
        for path, column in self._attributes.items():
            column.put(row, self._attribute(facts.uuid, path))
        self.alive[row] = True
        return row

    def remove(self, uuid: str) -> int | None:
        """Forget a host; return the row it had."""
        row = self._row_of.pop(uuid, None)
        if row is None:
            return None
        self._forget_names(row)
        self._facts[row] = None
        self.alive[row] = False
        self._free.append(row)
        return row

    def set_aggregates(self, aggregates: Iterable[host_facts.Aggregate]) -> None:
        """Take Nova's aggregates over; the caller puts hosts whose sets changed anew."""
        self.aggregates = {aggregate.uuid: aggregate for aggregate in aggregates}

    def tick(self, now_seconds: float, service_down_time: float) -> npt.NDArray[np.intp]:
        """Say which services are up at a time; return the rows that changed sides.

        As Nova's db driver: up is a service that was heard of within the bound,
        on either side of now, and is not forced down.
        """
        silence = np.abs(now_seconds - self.last_seen_seconds)
        up = (silence <= service_down_time) & ~self.forced_down & self.alive
        changed = np.flatnonzero(up != self.up)
        self.up = up
        return changed

    # -- what a request consumes --------------------------------------------------

    def fork(self) -> HostFrame:
        """Return a frame that may be consumed from and leaves this one as it is.

        It shares all else: it is of use only while this frame does not change.
        """
        forked = copy.copy(self)
        for name in _CONSUMABLE:
            setattr(forked, name, getattr(self, name).copy())
        forked._resources = {}
        for name, columns in self._resources.items():
            own = copy.copy(columns)
            own.used = columns.used.copy()
            forked._resources[name] = own
        forked._placed = dict(self._placed)
        return forked

    def consume(
        self,
        row: int,
        *,
        vcpus: int,
        memory_mb: int,
        disk_gb: int,
        resources: Mapping[str, int],
        instance_uuid: str | None = None,
    ) -> None:
        """Take a server's share of a host, as Nova's HostState and Placement would."""
        self.free_ram_mb[row] -= memory_mb
        self.free_disk_mb[row] -= disk_gb * 1024
        self.vcpus_used[row] += vcpus
        self.num_instances[row] += 1
        self.num_io_ops[row] += 1
        self.use(row, resources)
        if instance_uuid is not None:
            facts = self.facts(row)
            self._placed[instance_uuid] = (facts.cell, facts.host)

    def use(self, row: int, resources: Mapping[str, int]) -> None:
        """Add to what a host's provider has in use; negative amounts give back."""
        for name, amount in resources.items():
            columns = self._resources.get(name)
            if columns is not None:
                columns.used[row] += amount

    # -- rows -------------------------------------------------------------------

    def _put_provider(self, row: int, provider: host_facts.ProviderFacts | None) -> None:
        inventories = provider.inventories if provider is not None else {}
        for name in inventories:
            if name not in self._resources:
                self._resources[name] = ResourceColumns(self.rows)
        for name, columns in self._resources.items():
            inventory = inventories.get(name)
            if inventory is None or provider is None:
                columns.capacity[row] = -1
                columns.used[row] = 0
                continue
            columns.capacity[row] = inventory.capacity
            columns.used[row] = provider.used.get(name, 0)
            columns.min_unit[row] = inventory.min_unit
            columns.max_unit[row] = inventory.max_unit
            columns.step_size[row] = inventory.step_size
        self.traits.put(row, provider.traits if provider else frozenset())
        self.provider_aggregates.put(row, provider.aggregates if provider else frozenset())

    def _forget_names(self, row: int) -> None:
        facts = self.facts(row)
        rows = self._rows_of_host[facts.cell, facts.host]
        rows.discard(row)
        if not rows:
            del self._rows_of_host[facts.cell, facts.host]

    def _new_row(self) -> int:
        if not self._free:
            self._grow(max(BLOCK_ROWS, self.rows + self.rows // 4))
        return self._free.pop()

    def _grow(self, at_least: int) -> None:
        before = self.rows
        self.rows = math.ceil(at_least / BLOCK_ROWS) * BLOCK_ROWS
        if self.rows == before:
            self.rows += BLOCK_ROWS
        for name in (*PLAIN_COLUMNS, "alive", "up"):
            setattr(self, name, _grown(getattr(self, name), self.rows))
        for column in (
            self.cell,
            self.aggregate_sets,
            self.traits,
            self.provider_aggregates,
            *self._attributes.values(),
        ):
            column.grow(self.rows)
        for columns in self._resources.values():
            columns.grow(self.rows)
        self._facts.extend([None] * (self.rows - before))
        self._free.extend(range(self.rows - 1, before - 1, -1))


def _grown(array: npt.NDArray[Any], rows: int, fill: float = 0) -> npt.NDArray[Any]:
    grown = np.full(rows, fill, array.dtype)
    grown[: len(array)] = array
    return grown
