# SPDX-License-Identifier: Apache-2.0
"""All hosts as columns, one row a compute node, for filters and weighers.

A row keeps its number as long as its node lives. Columns have spare rows;
:attr:`ReadableFrame.alive` says which rows count. What is read of hosts stands in
:class:`ReadableFrame`; in :class:`HostFrame` they come, change, are consumed from
and go. One thread at a time. Which rows changed is logged in order, so that
results follow row by row.

Whose services are up is told without asking every host each time: per block of
rows the oldest word of a host that is up is kept, and while that is recent
enough, nobody in the block can have fallen silent.
"""

from __future__ import annotations

import collections
import copy
import enum
import itertools
import math
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.frame import (
    frame_columns,
    host_facts,
    host_places,
    host_topology,
    provider_columns,
)


class ChangeLog:
    """The last changes by sequence number; bounded, so old questions go unanswered.

    :param limit: changes that are kept at least; no more than twice as many
    """

    def __init__(self, limit: int = 4096) -> None:
        self.limit = limit
        self._first = 0
        self._rows: list[int] = []

    @property
    def sequence(self) -> int:
        """How many changes there were."""
        return self._first + len(self._rows)

    def add(self, row: int) -> None:
        self._rows.append(row)
        if len(self._rows) > 2 * self.limit:
            self._drop()

    def extend(self, rows: Iterable[int]) -> None:
        self._rows.extend(rows)
        if len(self._rows) > 2 * self.limit:
            self._drop()

    def since(self, sequence: int) -> npt.NDArray[np.intp] | None:
        """Return the rows that changed after a sequence number, each once.

        None where they are too many, or the log does not go back so far.
        """
        start = sequence - self._first
        if start < 0 or len(self._rows) - start > self.limit:
            return None
        rows = self._rows[start:]
        if len(rows) > 1:
            rows = sorted(set(rows))
        return np.array(rows, np.intp)

    def _drop(self) -> None:
        excess = len(self._rows) - self.limit
        del self._rows[:excess]
        self._first += excess


#: Rows that are added, ranked, and share a bound, at a time.
BLOCK_ROWS = 256
#: A bound is compared in another order than a host's age: give rounding its due.
_SLACK_SECONDS = 1e-3


class ServiceLiveness:
    """Keeps ``frame.up``. One thread at a time."""

    def __init__(self) -> None:
        self._now: float | None = None
        self._down_time = 0.0
        #: Per block, no later than the oldest word of a host that is up.
        self._oldest: npt.NDArray[np.float64] = np.zeros(0)
        #: No later than any of these.
        self._first = math.inf
        #: Rows heard of so far in the future that they are not up yet.
        self._ahead: set[int] = set()

    def grow(self, rows: int) -> None:
        self._oldest = frame_columns.grown(self._oldest, math.ceil(rows / BLOCK_ROWS), math.inf)

    def look_at(self, frame: ReadableFrame, row: int) -> bool:
        """Say whether a row that was put changed sides, as of the last tick."""
        if self._now is None:
            return False
        last_seen: float = frame.last_seen_seconds.item(row)
        near = abs(self._now - last_seen) <= self._down_time
        up = near and not frame.forced_down.item(row)
        if up:
            block = row // BLOCK_ROWS
            self._oldest[block] = min(self._oldest.item(block), last_seen)
            self._first = min(self._first, last_seen)
        if not near and last_seen > self._now:
            self._ahead.add(row)
        if frame.up.item(row) == up:
            return False
        frame.up[row] = up
        return True

    def tick(
        self, frame: ReadableFrame, now_seconds: float, down_time: float
    ) -> npt.NDArray[np.intp]:
        """Bring ``frame.up`` to a time; return the rows that changed sides."""
        steady = self._now is not None and now_seconds >= self._now and down_time == self._down_time
        self._now, self._down_time = now_seconds, down_time
        if not steady:
            return self._settle(frame, np.arange(len(self._oldest)))
        silent_before = now_seconds - down_time + _SLACK_SECONDS
        if self._first >= silent_before and not self._ahead:
            return np.zeros(0, np.intp)
        due = self._oldest < silent_before
        due[[row // BLOCK_ROWS for row in self._ahead]] = True
        return self._settle(frame, np.flatnonzero(due))

    def _settle(self, frame: ReadableFrame, blocks: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        assert self._now is not None
        rows = (blocks[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)).reshape(-1)
        last_seen = frame.last_seen_seconds[rows]
        near = np.abs(self._now - last_seen) <= self._down_time
        up = near & ~frame.forced_down[rows] & frame.alive[rows]
        changed: npt.NDArray[np.intp] = rows[up != frame.up[rows]]
        frame.up[rows] = up
        heard = np.where(up, last_seen, math.inf).reshape(-1, BLOCK_ROWS)
        self._oldest[blocks] = heard.min(axis=1)
        self._first = self._oldest.min(initial=math.inf)
        # Asked as above: another order of the same numbers may round to neither.
        ahead = ~near & (last_seen > self._now) & frame.alive[rows]
        self._ahead.difference_update(rows.tolist())
        self._ahead.update(rows[ahead].tolist())
        return changed


Locate = Callable[[str], Iterable[tuple[str, str]]]
Attribute = Callable[[str, tuple[str, ...]], Hashable]


class ReadableFrame(frame_columns.PlainColumns):
    """All hosts, as columns named like the fields of HostFacts.

    :param locate: (instance uuid) -> (cell, host) of each place where the
        store knows an instance of that uuid
    :param attribute: (node uuid, path) -> what stands at a path of Nova's
        HostState (``("stats", "foo")``, ``("cpu_info",)``, ``("metrics", "x")``),
        hashable; for what has no column
    """

    def __init__(
        self,
        locate: Locate = lambda uuid: (),
        attribute: Attribute = lambda uuid, path: None,
    ) -> None:
        super().__init__()
        self._locate = locate
        self._attribute = attribute
        self.rows = 0
        #: What changed in a way that a decision can see.
        self.log = ChangeLog()
        #: Which rows hold a host.
        self.alive: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        #: How many hosts a row had so far.
        self.tenure: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        #: Whether the service is up; kept by whoever writes.
        self.up: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.cell = frame_columns.CodedColumn(0, "")
        #: Tuples of uuids of Nova's aggregates.
        self.aggregate_sets = frame_columns.CodedColumn(0, ())
        #: Nova's aggregates by uuid; replaced whole by :meth:`set_aggregates`.
        self.aggregates: Mapping[str, host_facts.HostAggregate] = {}
        #: Resource classes of providers that share them and are no compute nodes, by uuid.
        self.sharing: dict[str, frozenset[str]] = {}
        self._places = host_places.HostPlaces()
        self._provided = provider_columns.ProviderColumns()
        self._attributes: dict[tuple[str, ...], frame_columns.CodedColumn] = {}
        self._topologies: host_topology.TopologyColumns | None = None
        #: Instances placed by this fork: (cell, host) by uuid.
        self._placed: dict[str, tuple[str, str]] = {}
        self._liveness = ServiceLiveness()

    def __len__(self) -> int:
        return len(self._places)

    def facts(self, row: int) -> host_facts.HostFacts:
        """Return what a row was made from, but for the time its service was heard of.

        Of a fork, what was consumed is not in it any more.

        :raises KeyError: no host has that row
        """
        place = self.place(row)
        return host_facts.HostFacts(
            uuid=place.uuid,
            cell=place.cell,
            host=place.host,
            node=place.node,
            aggregates=self.aggregate_sets.value(row),
            provider=self._provided.of(row),
            **self.numbers(row),
        )

    @property
    def sequence(self) -> int:
        """How many changes there were so far that a decision can see."""
        return self.log.sequence

    def changed_since(self, sequence: int) -> npt.NDArray[np.intp] | None:
        """Return rows that changed after a sequence number, see :meth:`ChangeLog.since`."""
        return self.log.since(sequence)

    def rows_of_cell(self, cell: str) -> npt.NDArray[np.intp]:
        """Return the rows whose hosts are of a cell; free ones of its former hosts, too."""
        return np.flatnonzero(self.cell.codes == self.cell.code(cell))

    def place(self, row: int) -> host_places.HostPlace:
        """Return the names of a row's host.

        :raises KeyError: no host has that row
        """
        return self._places.place(row)

    def places_of(self, rows: Iterable[int]) -> list[host_places.HostPlace | None]:
        """Return the names of the hosts of some rows; None where there is none."""
        return self._places.of(rows)

    def uuids(self) -> list[str]:
        """Return the uuids of all nodes."""
        return [uuid for uuid, _row in self._places.rows()]

    def row_of(self, uuid: str) -> int | None:
        """Return the row of a compute node, or None."""
        return self._places.row_of(uuid)

    def row_of_tree(self, provider: str) -> int | None:
        """Return the row of the compute node in whose provider tree a provider is, or None."""
        row = self._places.row_of(provider)
        return row if row is not None else self._provided.row_of_child(provider)

    def rows_of_host(self, cell: str, host: str) -> Collection[int]:
        """Return the rows of the nodes of one host; several with ironic."""
        return self._places.rows_of_host(cell, host)

    def rows_of_name(self, host: str) -> Collection[int]:
        """Return the rows of hosts of a name in all cells, whatever its case."""
        return self._places.rows_of_name(host)

    def rows_of_nodes(self, nodes: Container[str]) -> set[int]:
        """Return the rows of nodes with one of some names; looks at all of them."""
        return self._places.rows_of_nodes(nodes)

    @property
    def traits(self) -> frame_columns.CodedColumn:
        """Frozensets of traits of the root provider."""
        return self._provided.traits

    @property
    def provider_aggregates(self) -> frame_columns.CodedColumn:
        """Frozensets of Placement's aggregates of the root provider."""
        return self._provided.aggregates

    @property
    def nested(self) -> collections.Counter[str]:
        """How many hosts have child providers with a resource class."""
        return self._provided.nested

    @property
    def broken(self) -> set[int]:
        """Rows whose provider breaks the model."""
        return self._provided.broken

    def provider(self, row: int) -> host_facts.ProviderFacts | None:
        """Return the provider tree of a row's host; None where it is not known."""
        return self._provided.of(row)

    def resource(self, name: str) -> frame_columns.ResourceColumns | None:
        """Return the columns of a resource class; None if no host has it."""
        return self._provided.resource(name)

    def attribute(self, *path: str) -> frame_columns.CodedColumn:
        """Return what stands at a path of each host's HostState.

        The first call for a path reads every host's record; later ones only
        those that changed.
        """
        column = self._attributes.get(path)
        if column is None:
            column = self._attributes[path] = frame_columns.CodedColumn(self.rows, None)
            for uuid, row in self._places.rows():
                column.put(row, self._attribute(uuid, path))
        return column

    @property
    def topologies(self) -> host_topology.TopologyColumns:
        """What is left in hosts' NUMA cells and PCI pools, as of :meth:`read_topologies`."""
        if self._topologies is None:
            self._topologies = host_topology.TopologyColumns(self.rows)
        return self._topologies

    def read_topologies(self) -> None:
        """Look at hosts that reported since the last call; before a request that asks.

        Some at a time: those that are left are refused nothing until then.
        """
        self.log.extend(self.topologies.refresh(self.alive, self._topology_texts))

    def _topology_texts(self, row: int) -> tuple[str | None, str | None]:
        texts: Any = self._attribute(self.place(row).uuid, host_topology.TEXTS)
        numa, pools = texts or (None, None)
        return numa, pools

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


_FLAGS = ("alive", "tenure", "up")


class Same(enum.Enum):
    """Stands for what is not given since it is as it was."""

    AS_BEFORE = enum.auto()


class HostFrame(ReadableFrame):
    """All hosts, to be read and written; parameters as its base's."""

    # -- writing ----------------------------------------------------------------

    def put(self, facts: host_facts.HostFacts) -> int:
        """Take one host in, or take its new facts over, as :meth:`take` does; return its row."""
        (row,) = self.take(frame_columns.HostPage.of(facts))
        return row

    def take(self, page: frame_columns.HostPage) -> list[int]:
        """Take hosts in, or take over what is new of them; return their rows.

        A change is logged unless no decision can tell the difference, as with most heartbeats.
        """
        places, entered = page.places, [self._enter(place) for place in page.places]
        rows = [row for row, _is_new in entered]
        try:
            changed = [
                self.put_rows(rows, page.rows),
                self.cell.put_all(rows, [place.cell for place in places]),
                self.aggregate_sets.put_all(rows, page.aggregates),
                self._provided.put_all(rows, page.providers),
            ]
            for path, column in self._attributes.items():
                values = [self._attribute(place.uuid, path) for place in places]
                changed.append(column.put_all(rows, values))
            if self._topologies is not None:
                self._topologies.forget(rows)
            changed.append([self._liveness.look_at(self, row) or is_new for row, is_new in entered])
        except BaseException:
            # Who takes them once more may find nothing new.
            self.log.extend(rows)
            raise
        self.log.extend(itertools.compress(rows, map(any, zip(*changed, strict=True))))
        return rows

    def amend(
        self,
        row: int,
        aggregates: tuple[str, ...],
        *,
        service: Sequence[Any] | Same = Same.AS_BEFORE,
        provider: host_facts.ProviderFacts | Same | None = Same.AS_BEFORE,
        consumable: Mapping[str, int] | Same = Same.AS_BEFORE,
    ) -> None:
        """Take over what is new of a host whose node's own record did not change.

        :param aggregates: all of the host's, by uuid
        :param service: see :meth:`.frame_columns.PlainColumns.put_service`
        :param consumable: see :meth:`.frame_columns.PlainColumns.put_consumable`
        """
        try:
            changed = self.aggregate_sets.put(row, aggregates)
            if not isinstance(consumable, Same):
                changed |= self.put_consumable(row, consumable)
            if not isinstance(service, Same):
                changed |= self.put_service(row, service)
                changed |= self._liveness.look_at(self, row)
            if not isinstance(provider, Same):
                changed |= self._provided.put(row, provider)
        except BaseException:
            # As in take(): who takes it once more may find nothing new.
            self.log.add(row)
            raise
        if changed:
            self.log.add(row)

    def expect(self, hosts: int) -> None:
        """Have rows for so many hosts, and none to spare."""
        lacking = hosts - len(self) - self._places.free
        if lacking > 0:
            self._grow(self.rows + lacking)

    def heard(self, row: int, last_seen_seconds: float) -> None:
        """Take over when a row's service was heard of; :meth:`facts` keep the former time."""
        self.last_seen_seconds[row] = last_seen_seconds
        if self._liveness.look_at(self, row):
            self.log.add(row)

    def remove(self, uuid: str) -> int | None:
        """Forget a host; return the row it had."""
        row = self._places.forget(uuid)
        if row is None:
            return None
        self._provided.put(row, None)
        self.alive[row] = False
        self.up[row] = False
        self.log.add(row)
        return row

    def set_aggregates(
        self, aggregates: Iterable[host_facts.HostAggregate]
    ) -> npt.NDArray[np.intp]:
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
        forked.own_consumable()
        forked.cell, forked.aggregate_sets = copy.copy(self.cell), copy.copy(self.aggregate_sets)
        forked._attributes = {path: copy.copy(own) for path, own in self._attributes.items()}
        forked._provided = self._provided.fork()
        forked._placed = dict(self._placed)
        forked.log = ChangeLog()
        return forked

    def consume(
        self,
        row: int,
        *,
        vcpus: int,
        memory_mb: int,
        disk_gb: int,
        resources: Mapping[str, int],
        devices: int = 0,
        instance_uuid: str | None = None,
        servers: int = 1,
    ) -> None:
        """Take servers' share of a host, as Nova's HostState and Placement would.

        :param devices: PCI devices of a server, whichever pools they come from
        :param servers: -1 gives one back
        """
        self.free_ram_mb[row] -= memory_mb * servers
        self.free_disk_mb[row] -= disk_gb * 1024 * servers
        self.vcpus_used[row] += vcpus * servers
        self.num_instances[row] += servers
        self.num_io_ops[row] += servers
        self.pci_free[row] -= devices * servers
        self.use(row, {name: amount * servers for name, amount in resources.items()})
        if instance_uuid is not None and servers > 0:
            place = self.place(row)
            self._placed[instance_uuid] = (place.cell, place.host)
        elif instance_uuid is not None:
            self._placed.pop(instance_uuid, None)

    def use(self, row: int, resources: Mapping[str, int]) -> None:
        """Add to what a host's provider has in use; negative amounts give back."""
        self._provided.use(row, resources)

    def recount(self, row: int) -> None:
        """Let the next :meth:`put` of a row count what is used anew, even from the same record."""
        self._provided.recount(row)

    # -- rows -------------------------------------------------------------------

    def _enter(self, place: host_places.HostPlace) -> tuple[int, bool]:
        """Give a host its row, and say whether its names are new.

        Before anything else of it is taken: what fails later leaves no row without a name.
        """
        row = self._places.row_of(place.uuid)
        if row is not None:
            return row, self._places.enter(row, place)
        if not self._places.free:
            self._grow(max(BLOCK_ROWS, self.rows + self.rows // 4))
        row = self._places.take()
        is_new = self._places.enter(row, place)
        self.tenure[row] += 1
        self.alive[row] = True
        return row, is_new

    def _grow(self, at_least: int) -> None:
        before = self.rows
        self.rows = math.ceil(at_least / BLOCK_ROWS) * BLOCK_ROWS
        if self.rows == before:
            self.rows += BLOCK_ROWS
        self.grow_numbers(self.rows)
        for name in _FLAGS:
            setattr(self, name, frame_columns.grown(getattr(self, name), self.rows))
        for column in (self.cell, self.aggregate_sets, *self._attributes.values()):
            column.grow(self.rows)
        self._provided.grow(self.rows)
        self._liveness.grow(self.rows)
        if self._topologies is not None:
            self._topologies.grow(self.rows)
        self._places.grow(self.rows)
        self.log.limit = max(4096, self.rows // 4)
