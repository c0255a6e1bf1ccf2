# SPDX-License-Identifier: Apache-2.0
"""All hosts as columns, one row a compute node, for filters and weighers.

A row keeps its number as long as its node lives. What is read of it stands in
:mod:`.readable_frame`; here hosts come, change, are consumed from and go. One
thread at a time.
"""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling import (
    change_log,
    columns,
    host_facts,
    host_places,
    readable_frame,
)

#: Rows that are added, and ranked, at a time.
BLOCK_ROWS = 256

_FLAGS = ("alive", "tenure", "up")

CodedColumn = columns.CodedColumn


class Same(enum.Enum):
    """Stands for what is not given since it is as it was."""

    AS_BEFORE = enum.auto()


class HostFrame(readable_frame.ReadableFrame):
    """All hosts, to be read and written; parameters as its base's."""

    # -- writing ----------------------------------------------------------------

    def put(self, facts: host_facts.HostFacts) -> int:
        """Take a host in, or take its new facts over; return its row.

        The change is logged unless no decision can tell the difference, as
        with most heartbeats.
        """
        row = self._places.row_of(facts.uuid)
        if row is None:
            row = self._new_row()
            self.tenure[row] += 1
        changed = self._places.enter(
            row, host_places.Place(facts.uuid, facts.cell, facts.host, facts.node)
        )
        changed |= self.put_numbers(row, facts)
        self.alive[row] = True
        changed |= self.cell.put(row, facts.cell)
        changed |= self.aggregate_sets.put(row, facts.aggregates)
        changed |= self._provided.put(row, facts.provider)
        for path, column in self._attributes.items():
            changed |= column.put(row, self._attribute(facts.uuid, path))
        if self._topologies is not None:
            self._topologies.forget(row)
        changed |= self._liveness.look_at(self, row)
        if changed:
            self.log.add(row)
        return row

    def amend(
        self,
        row: int,
        numbers: Mapping[str, Any],
        aggregates: tuple[str, ...],
        provider: host_facts.ProviderFacts | Same | None = Same.AS_BEFORE,
    ) -> None:
        """Take over what is new of a host whose node's record did not change, as :meth:`put` would.

        :param numbers: by plain column, those that are new
        :param aggregates: all of the host's, by uuid
        """
        changed = self.amend_numbers(row, numbers)
        changed |= self.aggregate_sets.put(row, aggregates)
        if not isinstance(provider, Same):
            changed |= self._provided.put(row, provider)
        changed |= self._liveness.look_at(self, row)
        if changed:
            self.log.add(row)

    def expect(self, hosts: int) -> None:
        """Have rows for so many hosts, and none to spare."""
        lacking = hosts - len(self) - self._places.free
        if lacking > 0:
            self._grow(self.rows + lacking)

    def fill(
        self,
        places: Sequence[host_places.Place],
        numbers: Mapping[str, npt.NDArray[Any]],
        aggregates: Sequence[tuple[str, ...]],
        providers: Sequence[host_facts.ProviderFacts | None],
    ) -> None:
        """Take many new hosts in, as :meth:`put` does each of them.

        :param numbers: by plain column, shape (n,); of hosts that never
            reported their usage 0 where a report gives it
        """
        self.expect(len(self) + len(places))
        rows = [self._places.take() for _place in places]
        self.tenure[rows] += 1
        self.fill_numbers(rows, numbers)
        self.alive[rows] = True
        self.cell.put_all(rows, [place.cell for place in places])
        self.aggregate_sets.put_all(rows, aggregates)
        for row, place in zip(rows, places, strict=True):
            self._places.enter(row, place)
            self._liveness.look_at(self, row)
        self._provided.fill(rows, providers)
        for path, column in self._attributes.items():
            column.put_all(rows, [self._attribute(place.uuid, path) for place in places])
        if self._topologies is not None:
            self._topologies.forget_all(rows)
        self.log.extend(rows)

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
        forked.own_consumable()
        forked.cell, forked.aggregate_sets = copy.copy(self.cell), copy.copy(self.aggregate_sets)
        forked._attributes = {path: copy.copy(own) for path, own in self._attributes.items()}
        forked._provided = self._provided.fork()
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

    def _new_row(self) -> int:
        if not self._places.free:
            self._grow(max(BLOCK_ROWS, self.rows + self.rows // 4))
        return self._places.take()

    def _grow(self, at_least: int) -> None:
        before = self.rows
        self.rows = math.ceil(at_least / BLOCK_ROWS) * BLOCK_ROWS
        if self.rows == before:
            self.rows += BLOCK_ROWS
        self.grow_numbers(self.rows)
        for name in _FLAGS:
            setattr(self, name, columns.grown(getattr(self, name), self.rows))
        for column in (self.cell, self.aggregate_sets, *self._attributes.values()):
            column.grow(self.rows)
        self._provided.grow(self.rows)
        self._liveness.grow(self.rows)
        if self._topologies is not None:
            self._topologies.grow(self.rows)
        self._places.grow(self.rows)
        self.log.limit = max(4096, self.rows // 4)
