# SPDX-License-Identifier: Apache-2.0
"""All hosts as columns, one row a compute node, for filters and weighers.

A row keeps its number as long as its node lives. Columns have spare rows;
:attr:`HostFrame.alive` says which rows count. One thread at a time.
"""

from __future__ import annotations

import collections
import copy
import math
from collections.abc import (
    Callable,
    Collection,
    Container,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling import change_log, columns, host_facts, liveness
from nova_nodb_scheduler.store import numbers as shared_numbers

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
_CODED = ("cell", "aggregate_sets", "traits", "provider_aggregates")

CodedColumn = columns.CodedColumn
Locate = Callable[[str], Iterable[tuple[str, str]]]
Attribute = Callable[[str, tuple[str, ...]], Hashable]


@attrs.frozen(weakref_slot=False)
class Place:
    """The names of one compute node: all that a frame keeps of it beside columns."""

    uuid: str
    cell: str
    host: str
    node: str


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
        #: What changed in a way that a decision can see.
        self.log = change_log.ChangeLog()
        #: Which rows hold a host.
        self.alive: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        #: How many hosts a row had so far.
        self.tenure: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        #: Whether the service is up; kept by :meth:`put` and :meth:`tick`.
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
        #: Resource classes of providers that share them and are no compute nodes, by uuid.
        self.sharing: dict[str, frozenset[str]] = {}
        #: How many hosts have child providers with a resource class.
        self.nested: collections.Counter[str] = collections.Counter()
        #: Rows whose provider breaks the model.
        self.broken: set[int] = set()
        self._resources: dict[str, columns.ResourceColumns] = {}
        self._places: list[Place | None] = []
        self._providers: list[host_facts.ProviderFacts | None] = []
        self._row_of: dict[str, int] = {}
        self._row_of_child: dict[str, int] = {}
        #: By the host's name in small letters: a row, or several.
        self._rows_of_name: dict[str, int | tuple[int, ...]] = {}
        self._free: list[int] = []
        self._attributes: dict[tuple[str, ...], CodedColumn] = {}
        #: Instances placed by this fork: (cell, host) by uuid.
        self._placed: dict[str, tuple[str, str]] = {}
        self._liveness = liveness.Liveness()

    # -- reading ----------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._row_of)

    def facts(self, row: int) -> host_facts.HostFacts:
        """Return what a row was made from, but for the time its service was heard of.

        Of a fork, what was consumed is not in it any more.

        :raises KeyError: no host has that row
        """
        place = self.place(row)
        numbers = {name: getattr(self, name).item(row) for name in PLAIN_COLUMNS}
        return host_facts.HostFacts(
            uuid=place.uuid,
            cell=place.cell,
            host=place.host,
            node=place.node,
            aggregates=self.aggregate_sets.value(row),
            provider=self._providers[row],
            **numbers,
        )

    def place(self, row: int) -> Place:
        """Return the names of a row's host.

        :raises KeyError: no host has that row
        """
        found = self._places[row]
        if found is None:
            raise KeyError(row)
        return found

    def provider(self, row: int) -> host_facts.ProviderFacts | None:
        """Return the provider tree of a row's host; None where it is not known."""
        return self._providers[row]

    def row_of(self, uuid: str) -> int | None:
        """Return the row of a compute node, or None."""
        return self._row_of.get(uuid)

    def row_of_tree(self, provider: str) -> int | None:
        """Return the row of the compute node in whose provider tree a provider is, or None."""
        row = self._row_of.get(provider)
        return row if row is not None else self._row_of_child.get(provider)

    def rows_of_host(self, cell: str, host: str) -> Collection[int]:
        """Return the rows of the nodes of one host; several with ironic."""
        return [
            row
            for row in self.rows_of_name(host)
            if (self.place(row).host, self.place(row).cell) == (host, cell)
        ]

    def rows_of_name(self, host: str) -> Collection[int]:
        """Return the rows of hosts of a name in all cells, whatever its case."""
        rows = self._rows_of_name.get(host.lower(), ())
        return rows if isinstance(rows, tuple) else (rows,)

    def rows_of_nodes(self, nodes: Container[str]) -> set[int]:
        """Return the rows of nodes with one of some names; looks at all of them."""
        return {row for row in self._row_of.values() if self.place(row).node in nodes}

    def places_of(self, rows: Iterable[int]) -> list[Place | None]:
        """Return the names of the hosts of some rows; None where there is none."""
        return [self._places[row] for row in rows]

    def resource(self, name: str) -> columns.ResourceColumns | None:
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
                # A fork does not know the rows of hosts that came later.
                if row < self.rows:
                    counts[row] = counts.get(row, 0) + 1
        return counts

    # -- writing ----------------------------------------------------------------

    def put(self, facts: host_facts.HostFacts) -> int:
        """Take a host in, or take its new facts over; return its row.

        The change is logged unless no decision can tell the difference, as
        with most heartbeats.
        """
        shown = facts if facts.updated else _emptied(facts)
        row = self._row_of.get(facts.uuid)
        is_new = row is None
        if row is None:
            row = self._new_row()
            self.tenure[row] += 1
            self._row_of[facts.uuid] = row
        place = Place(facts.uuid, facts.cell, facts.host, facts.node)
        changed = self._places[row] != place
        if changed:
            self._forget_name(row)
            self._places[row] = place
            self._add_name(row, place)
        for name in PLAIN_COLUMNS:
            value = getattr(shown, name)
            if is_new or getattr(self, name).item(row) != value:
                getattr(self, name)[row] = value
                changed |= name != "last_seen_seconds"
        self.alive[row] = True
        changed |= self.cell.put(row, facts.cell)
        changed |= self.aggregate_sets.put(row, facts.aggregates)
        former = None if is_new else self._providers[row]
        if is_new or former is not facts.provider:
            changed |= self._put_provider(row, former, facts.provider)
            self._providers[row] = facts.provider
        for path, column in self._attributes.items():
            changed |= column.put(row, self._attribute(facts.uuid, path))
        changed |= self._liveness.look_at(self, row)
        if changed:
            self.log.add(row)
        return row

    def expect(self, hosts: int) -> None:
        """Have rows for so many hosts, and none to spare."""
        lacking = hosts - len(self) - len(self._free)
        if lacking > 0:
            self._grow(self.rows + lacking)

    def fill(
        self,
        places: Sequence[Place],
        numbers: Mapping[str, npt.NDArray[Any]],
        aggregates: Sequence[tuple[str, ...]],
        providers: Sequence[host_facts.ProviderFacts | None],
    ) -> None:
        """Take many new hosts in, as :meth:`put` does each of them.

        :param numbers: by plain column, shape (n,); of hosts that never
            reported their usage 0 where a report gives it
        """
        self.expect(len(self) + len(places))
        rows = [self._free.pop() for _place in places]
        self.tenure[rows] += 1
        for name in PLAIN_COLUMNS:
            getattr(self, name)[rows] = numbers[name]
        self.alive[rows] = True
        self.cell.put_all(rows, [place.cell for place in places])
        self.aggregate_sets.put_all(rows, aggregates)
        for row, place, provider in zip(rows, places, providers, strict=True):
            self._row_of[place.uuid] = row
            self._places[row] = place
            self._add_name(row, place)
            self._providers[row] = provider
            if provider is not None and _shape(provider) != _PLAIN_SHAPE:
                self._put_tree(row, None, provider)
            self._liveness.look_at(self, row)
        self._put_providers(rows, providers)
        for path, column in self._attributes.items():
            column.put_all(rows, [self._attribute(place.uuid, path) for place in places])
        self.log.extend(rows)

    def heard(self, row: int, last_seen_seconds: float) -> None:
        """Take over when a row's service was heard of; :meth:`facts` keep the former time."""
        self.last_seen_seconds[row] = last_seen_seconds
        if self._liveness.look_at(self, row):
            self.log.add(row)

    def remove(self, uuid: str) -> int | None:
        """Forget a host; return the row it had."""
        row = self._row_of.pop(uuid, None)
        if row is None:
            return None
        self._forget_name(row)
        self._places[row] = None
        self._put_provider(row, self._providers[row], None)
        self._providers[row] = None
        self.alive[row] = False
        self.up[row] = False
        self._free.append(row)
        self.log.add(row)
        return row

    def set_aggregates(self, aggregates: Iterable[host_facts.Aggregate]) -> npt.NDArray[np.intp]:
        """Take Nova's aggregates over; return the rows of hosts in those that changed.

        Hosts that joined or left one are put anew by the caller.
        """
        before = self.aggregates
        self.aggregates = {aggregate.uuid: aggregate for aggregate in aggregates}
        changed = {
            uuid
            for uuid in before.keys() | self.aggregates.keys()
            if before.get(uuid) != self.aggregates.get(uuid)
        }
        if not changed:
            return np.zeros(0, np.intp)
        touched = self.aggregate_sets.where(
            slice(None), lambda uuids: not changed.isdisjoint(uuids)
        )
        rows = np.flatnonzero(touched & self.alive)
        self.touch(rows.tolist())
        return rows

    def touch(self, rows: Iterable[int]) -> None:
        """Say that rows changed in what no column shows: their instances, or what was used."""
        self.log.extend(rows)

    def tick(self, now_seconds: float, service_down_time: float) -> npt.NDArray[np.intp]:
        """Say which services are up at a time; return the rows that changed sides.

        As Nova's db driver: up is a service that was heard of within the bound,
        on either side of now, and is not forced down.
        """
        changed = self._liveness.tick(self, now_seconds, service_down_time)
        self.log.extend(changed.tolist())
        return changed

    # -- what a request consumes --------------------------------------------------

    def fork(self) -> HostFrame:
        """Return a frame that may be consumed from and leaves this one as it is.

        It shares all else, so what changes here may show there too, row by
        row; hosts that come after the fork are not in it. Of a fork ask for
        row numbers, never for ``slice(None)``.
        """
        forked = copy.copy(self)
        for name in _CONSUMABLE:
            setattr(forked, name, getattr(self, name).copy())
        for name in _CODED:
            setattr(forked, name, copy.copy(getattr(self, name)))
        forked._attributes = {path: copy.copy(own) for path, own in self._attributes.items()}
        forked._resources = {}
        for name, shared in self._resources.items():
            own = copy.copy(shared)
            own.used = shared.used.copy()
            forked._resources[name] = own
        forked._placed = dict(self._placed)
        forked.log = change_log.ChangeLog()
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
        servers: int = 1,
    ) -> None:
        """Take servers' share of a host, as Nova's HostState and Placement would.

        :param servers: -1 gives one back
        """
        self.free_ram_mb[row] -= memory_mb * servers
        self.free_disk_mb[row] -= disk_gb * 1024 * servers
        self.vcpus_used[row] += vcpus * servers
        self.num_instances[row] += servers
        self.num_io_ops[row] += servers
        self.use(row, {name: amount * servers for name, amount in resources.items()})
        if instance_uuid is not None and servers > 0:
            place = self.place(row)
            self._placed[instance_uuid] = (place.cell, place.host)
        elif instance_uuid is not None:
            self._placed.pop(instance_uuid, None)

    def use(self, row: int, resources: Mapping[str, int]) -> None:
        """Add to what a host's provider has in use; negative amounts give back."""
        for name, amount in resources.items():
            found = self._resources.get(name)
            if found is not None:
                found.used[row] += amount

    def recount(self, row: int) -> None:
        """Let the next :meth:`put` of a row count what is used anew, even from the same record."""
        provider = self._providers[row]
        if provider is not None:
            self._providers[row] = attrs.evolve(provider)

    # -- rows -------------------------------------------------------------------

    def _put_provider(
        self,
        row: int,
        before: host_facts.ProviderFacts | None,
        provider: host_facts.ProviderFacts | None,
    ) -> bool:
        inventories = provider.inventories if provider is not None else {}
        changed = False
        for name in inventories:
            if name not in self._resources:
                self._resources[name] = columns.ResourceColumns(self.rows)
        for name, column in self._resources.items():
            inventory = inventories.get(name)
            if inventory is None or provider is None:
                changed |= column.put(row, columns.NO_INVENTORY)
                continue
            changed |= column.put(row, _resource(inventory, provider.used.get(name, 0)))
        changed |= self.traits.put(row, provider.traits if provider else frozenset())
        changed |= self.provider_aggregates.put(
            row, provider.aggregates if provider else frozenset()
        )
        return self._put_tree(row, before, provider) or changed

    def _put_providers(
        self, rows: Sequence[int], providers: Sequence[host_facts.ProviderFacts | None]
    ) -> None:
        """Fill resources, traits and aggregates of rows that had none."""
        values: dict[str, tuple[list[int], list[tuple[int, int, int, int, int]]]] = {}
        for row, provider in zip(rows, providers, strict=True):
            if provider is None:
                continue
            for name, inventory in provider.inventories.items():
                its_rows, its_values = values.setdefault(name, ([], []))
                its_rows.append(row)
                its_values.append(_resource(inventory, provider.used.get(name, 0)))
        for name in values:
            if name not in self._resources:
                self._resources[name] = columns.ResourceColumns(self.rows)
        for name, (its_rows, its_values) in values.items():
            self._resources[name].put_all(its_rows, its_values)
        nothing: frozenset[str] = frozenset()
        self.traits.put_all(rows, [each.traits if each else nothing for each in providers])
        self.provider_aggregates.put_all(
            rows, [each.aggregates if each else nothing for each in providers]
        )

    def _put_tree(
        self,
        row: int,
        before: host_facts.ProviderFacts | None,
        provider: host_facts.ProviderFacts | None,
    ) -> bool:
        shape = _shape(provider)
        if before is not None and shape == _shape(before):
            return False
        if before is not None:
            self.nested.subtract(before.nested)
            for uuid in before.tree:
                self._row_of_child.pop(uuid, None)
        self.broken.discard(row)
        if provider is None:
            return True
        self.nested.update(provider.nested)
        if provider.tree:
            self._row_of_child.update(dict.fromkeys(provider.tree, row))
        if provider.broken is not None:
            self.broken.add(row)
        return True

    def _add_name(self, row: int, place: Place) -> None:
        name = _folded(place.host)
        rows = self._rows_of_name.get(name)
        if rows is None:
            self._rows_of_name[name] = row
        else:
            self._rows_of_name[name] = (*(rows if isinstance(rows, tuple) else (rows,)), row)

    def _forget_name(self, row: int) -> None:
        place = self._places[row]
        if place is None:
            return
        name = _folded(place.host)
        rows = tuple(each for each in self.rows_of_name(name) if each != row)
        if rows:
            self._rows_of_name[name] = rows
        else:
            del self._rows_of_name[name]

    def _new_row(self) -> int:
        if not self._free:
            self._grow(max(BLOCK_ROWS, self.rows + self.rows // 4))
        return self._free.pop()

    def _grow(self, at_least: int) -> None:
        before = self.rows
        self.rows = math.ceil(at_least / BLOCK_ROWS) * BLOCK_ROWS
        if self.rows == before:
            self.rows += BLOCK_ROWS
        for name in (*PLAIN_COLUMNS, "alive", "tenure", "up"):
            setattr(self, name, columns.grown(getattr(self, name), self.rows))
        for name in _CODED:
            getattr(self, name).grow(self.rows)
        for column in self._attributes.values():
            column.grow(self.rows)
        for resource in self._resources.values():
            resource.grow(self.rows)
        self._liveness.grow(self.rows)
        self._places.extend([None] * (self.rows - before))
        self._providers.extend([None] * (self.rows - before))
        self._free.extend(map(shared_numbers.shared, range(self.rows - 1, before - 1, -1)))
        self.log.limit = max(4096, self.rows // 4)


def _emptied(facts: host_facts.HostFacts) -> host_facts.HostFacts:
    # Nova leaves the HostState of a node whose usage was never reported as it
    # was made, but for its service, aggregates and instances.
    empty: dict[str, Any] = dict.fromkeys(REPORTED, 0)
    return attrs.evolve(facts, **empty)


def _resource(inventory: host_facts.Inventory, used: int) -> tuple[int, int, int, int, int]:
    """Return a row of a resource class, see :meth:`.columns.ResourceColumns.row`."""
    return (
        inventory.capacity,
        used,
        inventory.min_unit,
        inventory.max_unit,
        inventory.step_size,
    )


def _shape(provider: host_facts.ProviderFacts | None) -> tuple[Any, ...] | None:
    if provider is None:
        return None
    return provider.nested, provider.tree, provider.broken


#: A root that stands alone and is sound.
_PLAIN_SHAPE: tuple[Any, ...] = (frozenset(), frozenset(), None)


def _folded(name: str) -> str:
    """Return a name in small letters, the very text where it has no other."""
    folded = name.lower()
    return name if folded == name else folded
