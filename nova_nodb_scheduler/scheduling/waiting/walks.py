# SPDX-License-Identifier: Apache-2.0
"""Ways through the requests: whose turn is next, and who need not be looked at any more.

Requests come, go and move between two steps: a grant raises a project's share, and one that comes
to nothing lowers it; somebody comes back who is older than those who were tried; others grow older.
Each step goes to the first of all as they stand by then, but for those whose like was refused. Who
comes back may be tried twice by one walk: it has refused nobody, or has taken room.
"""

from __future__ import annotations

import abc
import collections
import heapq
import itertools
from collections.abc import Iterable

import attrs

from nova_nodb_scheduler.scheduling.waiting import grown_hosts
from nova_nodb_scheduler.scheduling.waiting.order import request_index, shape_index, waiting_lines


@attrs.frozen
class Limits:
    """What one wake-up may cost.

    :param most_tried: candidates that are refused or lost
    :param most_passed: requests that are looked at and are no candidates
    :param most_looked_at: lines that fit by their flavor and are looked at on the way, those of
        queues that were refused among them
    """

    most_tried: int = 64
    most_passed: int = 256
    most_looked_at: int = 1024


class Costs:
    """What a walk has cost so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.tried = 0
        self.passed = 0
        #: Whether as many lines were looked at as may be.
        self.is_looked_out = False

    @property
    def most_looked_at(self) -> int:
        """Lines that may be looked at."""
        return self._limits.most_looked_at

    @property
    def is_spent(self) -> bool:
        """Whether that is enough."""
        limits = self._limits
        return (
            self.is_looked_out
            or self.tried >= limits.most_tried
            or self.passed >= limits.most_passed
        )


class Walk(abc.ABC):
    """Gives requests in order, each the first of its line."""

    def __init__(self, index: request_index.RequestIndex, costs: Costs) -> None:
        self.costs = costs
        self._index = index

    @abc.abstractmethod
    def next(self) -> waiting_lines.Entry | None:
        """Return the next request; None at the end, or when it has cost enough."""

    @abc.abstractmethod
    def refuse(self, entry: waiting_lines.Entry) -> None:
        """Leave out whoever has no better chance than this one."""

    def unhelped(self, entry: waiting_lines.Entry) -> None:
        """Leave out, too, whoever cannot be helped since this one cannot."""
        self.refuse(entry)

    @abc.abstractmethod
    def again(self, entry: waiting_lines.Entry) -> None:
        """Go on with those behind one that is in its line no more."""


class FittingWalk(Walk):
    """All whose shape fits into some room; who does not fit is passed over.

    :param holders: requests that have a host of their own among those that grew; they go
        first, for nobody else may have that
    """

    def __init__(
        self,
        index: request_index.RequestIndex,
        costs: Costs,
        hosts: grown_hosts.GrownHosts,
        holders: Iterable[waiting_lines.Entry],
    ) -> None:
        super().__init__(index, costs)
        self._hosts = hosts
        self._holders = list(holders)
        self._is_holder = False
        self._shapes = index.shapes
        self._axis = index.shapes.axis
        self._reader = index.reader(costs.most_looked_at)
        self._refused: set[waiting_lines.Queue] = set()
        #: The same by shape.
        self._refused_of: collections.defaultdict[waiting_lines.Shape, set[waiting_lines.Queue]] = (
            collections.defaultdict(set)
        )
        #: Shapes of which nobody can be helped any more.
        self._closed: set[waiting_lines.Shape] = set()
        self._rows = self._look_at_room()

    def next(self) -> waiting_lines.Entry | None:
        while self._holders:
            holder = self._holders.pop(0)
            if holder.stage is waiting_lines.Stage.READY:
                self._is_holder = True
                return holder
        self._is_holder = False
        if self.costs.is_spent:
            return None
        if self._hosts.is_less or self._changes != self._shapes.changes:
            self._rows = self._look_at_room()
        refused = self._refused
        line = self._reader.next(self._rows, lambda line: line.queue not in refused)
        self.costs.is_looked_out = self._reader.is_cut_short
        return self._index.first_entry(line) if isinstance(line, waiting_lines.Line) else None

    def refuse(self, entry: waiting_lines.Entry) -> None:
        # One that holds a host was asked about all others that grew, too.
        queue, shape = entry.queue, entry.queue.shape
        refused = self._refused_of[shape]
        self._refused.add(queue)
        refused.add(queue)
        # Some may be gone meanwhile: they are none of those that the shape has.
        if shape.queues <= len(refused):
            if shape.queues <= sum(each.requests > 0 for each in refused):
                self._close(shape)

    def unhelped(self, entry: waiting_lines.Entry) -> None:
        self.refuse(entry)
        if self._is_holder:
            return
        shape = entry.queue.shape
        if shape.is_exact or not self._hosts.is_any(self._axis.vector(shape.needs)):
            self._close(shape)

    def again(self, entry: waiting_lines.Entry) -> None:
        """Do nothing: the next of its line has a place of its own."""

    def _close(self, shape: waiting_lines.Shape) -> None:
        # The row of one that is gone may be another's.
        if shape.queues:
            self._closed.add(shape)
            self._rows.drop(shape.row)

    def _look_at_room(self) -> shape_index.ShapeRows:
        self._hosts.is_less = False
        self._changes = self._shapes.changes
        rows = self._shapes.fitting(self._hosts.most())
        for shape in self._closed:
            if shape.queues:
                rows.drop(shape.row)
        return rows


class FirstsWalk(Walk):
    """The first of each class, and the next one only once that is out of the way."""

    def __init__(self, index: request_index.RequestIndex, costs: Costs) -> None:
        super().__init__(index, costs)
        self._levels = set(range(len(index.settings.classes)))
        self._level = 0

    def next(self) -> waiting_lines.Entry | None:
        if self.costs.is_spent:
            return None
        firsts = [
            (line.order_key(), level, line)
            for level in self._levels
            if (line := self._index.first(level)) is not None
        ]
        if not firsts:
            return None
        _, self._level, line = min(firsts)
        return self._index.first_entry(line)

    def refuse(self, entry: waiting_lines.Entry) -> None:
        self._levels.discard(self._level)

    def again(self, entry: waiting_lines.Entry) -> None:
        """Do nothing: the firsts are looked up each time."""


class QueuesWalk(Walk):
    """The first requests of some queues, wherever there may be room."""

    def __init__(
        self,
        index: request_index.RequestIndex,
        costs: Costs,
        queues: Iterable[waiting_lines.Queue],
    ) -> None:
        super().__init__(index, costs)
        self._numbers = itertools.count()
        self._open: list[tuple[waiting_lines.OrderKey, int, waiting_lines.Queue]] = []
        for queue in queues:
            self._push(queue)

    def next(self) -> waiting_lines.Entry | None:
        while self._open and not self.costs.is_spent:
            key, _, queue = heapq.heappop(self._open)
            line = self._index.first_of(queue)
            if line is not None and line.order_key() == key:
                return self._index.first_entry(line)
            # A grant has changed its project's share.
            self._push(queue)
        return None

    def refuse(self, entry: waiting_lines.Entry) -> None:
        """Do nothing: a queue comes again only after one of it was out of the way."""

    def again(self, entry: waiting_lines.Entry) -> None:
        self._push(entry.queue)

    def _push(self, queue: waiting_lines.Queue) -> None:
        line = self._index.first_of(queue)
        if line is not None:
            heapq.heappush(self._open, (line.order_key(), next(self._numbers), queue))
