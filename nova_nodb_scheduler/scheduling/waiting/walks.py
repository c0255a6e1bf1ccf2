# SPDX-License-Identifier: Apache-2.0
"""Ways through the requests: whose turn is next, and who need not be looked at any more.

While a walk goes on, order keys only become worse: a grant raises a project's share, and
the next of a line is younger. So what was passed once need not be looked at again, and
whoever comes to stand behind is met later.
"""

from __future__ import annotations

import abc
import heapq
import itertools
from collections.abc import Iterable

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.waiting import grown_hosts
from nova_nodb_scheduler.scheduling.waiting.order import request_index, waiting_lines


@attrs.frozen
class Limits:
    """What one wake-up may cost.

    :param most_tried: candidates that are refused or lost
    :param most_passed: queues that are looked at and are no candidates
    :param most_moved: lines that stood too far in front, since their projects' shares have grown;
        once they are put right they cost no other wake-up anything
    """

    most_tried: int = 64
    most_passed: int = 256
    most_moved: int = 1024


class Costs:
    """What a walk has cost so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.tried = 0
        self.passed = 0
        self.moved = 0

    @property
    def is_spent(self) -> bool:
        """Whether that is enough."""
        limits = self._limits
        return (
            self.tried >= limits.most_tried
            or self.passed >= limits.most_passed
            or self.moved >= limits.most_moved
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
        #: Which rows of shapes fit still; None: all that did.
        self._fits: npt.NDArray[np.bool_] | None = None
        #: Shapes in order by their keys as they were: the rest cannot be before any of it.
        self._closed = index.shapes.fitting(hosts.most())
        #: Shapes that are looked at besides: none of theirs was there, or they did not fit.
        self._others: set[waiting_lines.Shape] = set()
        #: (key, number, shape): the next queue of each shape that was opened.
        self._open: list[tuple[waiting_lines.OrderKey, int, waiting_lines.Shape]] = []
        self._numbers = itertools.count()
        self._passing: tuple[waiting_lines.OrderKey, waiting_lines.Shape] | None = None
        self._refused: set[waiting_lines.Queue] = set()

    def next(self) -> waiting_lines.Entry | None:
        while self._holders:
            holder = self._holders.pop(0)
            if holder.stage is waiting_lines.Stage.READY:
                return holder
        while not self.costs.is_spent:
            self._go_on()
            if not self._open:
                return None
            key, _, shape = heapq.heappop(self._open)
            if not self._is_fitting(shape):
                continue
            self._passing = key, shape
            placed = shape.queues.after(key)
            if placed is None or placed[:4] != key:
                self.costs.passed += 1
                continue
            entry = self._first(placed[4])
            if entry is not None:
                return entry
        return None

    def refuse(self, entry: waiting_lines.Entry) -> None:
        # One that holds a host was asked about all others that grew, too.
        self._refused.add(entry.queue)

    def unhelped(self, entry: waiting_lines.Entry) -> None:
        index = self._index
        self.refuse(entry)
        if self._passing is None:
            return
        shape = self._passing[1]
        axis = index.shapes.axis
        if shape.is_exact or not self._hosts.is_any(axis.vector(shape.needs)):
            self._passing = None

    def again(self, entry: waiting_lines.Entry) -> None:
        for level in entry.queue.at_level:
            # Its line may count as another class now, in which none of the shape were.
            if level is None or level.shape in self._closed or level.shape in self._others:
                continue
            shape = level.shape
            self._others.add(shape)
            # Its row may have been another's when rows were looked at.
            self._hosts.is_less = True
            self._push(shape, shape.queues.first())

    def _first(self, level: waiting_lines.QueueLevel) -> waiting_lines.Entry | None:
        placed = level.lines.first()
        if placed is None or level.queue in self._refused:
            self.costs.passed += 1
            return None
        if not self._index.is_in_place(placed[4]):
            self.costs.moved += 1
            return None
        return self._index.first_entry(placed[4])

    def _go_on(self) -> None:
        if self._passing is not None:
            key, shape = self._passing
            self._passing = None
            # The least key behind it.
            self._push(shape, shape.queues.after((*key[:3], key[3] + "\0")))
        self._look_at_room()
        while (nearest := self._closed.nearest()) is not None:
            if self._open and self._open[0][0][:3] < nearest:
                break
            shape = self._closed.pop()
            self._push(shape, shape.queues.first())

    def _look_at_room(self) -> None:
        if not self._hosts.is_less:
            return
        self._hosts.is_less = False
        index = self._index
        room = self._hosts.most()
        self._fits = None if room is None else index.shapes.fits(room)
        if self._fits is not None:
            self._closed.narrow(self._fits)

    def _is_fitting(self, shape: waiting_lines.Shape) -> bool:
        self._look_at_room()
        # A row that came since then belongs to a shape that was not looked at yet.
        return self._fits is None or shape.row >= len(self._fits) or bool(self._fits[shape.row])

    def _push(self, shape: waiting_lines.Shape, placed: waiting_lines.Placed | None) -> None:
        if placed is not None:
            heapq.heappush(self._open, (placed[:4], next(self._numbers), shape))


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
            (line.placed[:4], level, line)
            for level in self._levels
            if (line := self._index.first(level)) is not None and line.placed is not None
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
            if line is not None and line.placed is not None and line.placed[:4] == key:
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
        if line is not None and line.placed is not None:
            heapq.heappush(self._open, (line.placed[:4], next(self._numbers), queue))
