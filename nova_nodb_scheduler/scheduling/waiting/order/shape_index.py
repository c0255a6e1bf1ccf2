# SPDX-License-Identifier: Apache-2.0
"""Which shapes fit into some room, in the order of their first requests.

One row of arrays for each shape: what a server takes, and the order key of the first
request. An event looks at all rows at once: some nanoseconds for each. Shapes are those of
flavors; where there are more than :data:`MOST_EXACT` of them, further ones share a row
with those that are alike by powers of two. So rows have a bound, whatever waits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import immutables
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.waiting import queue_settings
from nova_nodb_scheduler.scheduling.waiting.order import resource_axis, waiting_lines

#: Shapes with a row of their own.
MOST_EXACT = 4096

_FIRST_ROWS = 64

#: Needs, number of servers, level, and whether all of the shape are equal.
_ShapeKey = tuple[Mapping[str, int], int, int, bool]

#: Order key of a shape's first request, without that one's own key.
FirstKey: TypeAlias = tuple[int, float, float]


class FittingShapes:
    """Shapes that fitted into some room at one moment, in order by their first requests of then.

    :param shapes: by row
    :param fits: shape (rows,)
    :param keys: tiers, shares and times of first requests, each of shape (rows,)
    """

    def __init__(
        self,
        shapes: npt.NDArray[np.object_],
        fits: npt.NDArray[np.bool_],
        keys: Sequence[npt.NDArray[Any]],
    ) -> None:
        self._known = shapes.copy()
        self._known[~fits] = None
        rows = np.flatnonzero(fits)
        first_keys = [column[rows] for column in keys]
        order = np.lexsort(first_keys[::-1])
        self._rows = rows[order]
        self._keys = [column[order] for column in first_keys]
        self._at = 0

    def __contains__(self, shape: waiting_lines.Shape) -> bool:
        """Say whether a shape was one of them, whatever has become of it."""
        return shape.row < len(self._known) and self._known[shape.row] is shape

    def nearest(self) -> FirstKey | None:
        """Return the key of the first of those that are left; None: there is none."""
        if self._at == len(self._rows):
            return None
        tier, share, asked_at = (column.item(self._at) for column in self._keys)
        return tier, share, asked_at

    def pop(self) -> waiting_lines.Shape:
        """Take the first of those that are left."""
        shape: waiting_lines.Shape = self._known[self._rows[self._at]]
        self._at += 1
        return shape

    def narrow(self, fits: npt.NDArray[np.bool_]) -> None:
        """Drop all of those that are left that do not fit into what is left of the room.

        :param fits: shape (rows,), of as many rows as there are now
        """
        is_left = fits[self._rows[self._at :]]
        self._keys = [column[self._at :][is_left] for column in self._keys]
        self._rows = self._rows[self._at :][is_left]
        self._at = 0


class ShapeIndex:
    """Lines by shape and level; see :mod:`waiting_lines`. Not safe for threads.

    :param most_exact: rows beyond which shapes share one
    """

    def __init__(
        self, settings: queue_settings.QueueSettings, *, most_exact: int = MOST_EXACT
    ) -> None:
        self.axis = resource_axis.ResourceAxis()
        self._settings = settings
        self._most_exact = most_exact
        self._by_key: dict[_ShapeKey, waiting_lines.Shape] = {}
        #: Shapes by row; None where a row is free.
        self._shapes: npt.NDArray[np.object_] = np.full(_FIRST_ROWS, None, object)
        self._free_rows = list(range(_FIRST_ROWS - 1, -1, -1))
        self._needs: resource_axis.Vector = np.zeros((0, _FIRST_ROWS), np.int64)
        self._levels: resource_axis.Vector = np.full(_FIRST_ROWS, -1, np.int64)
        self._tiers: resource_axis.Vector = np.zeros(_FIRST_ROWS, np.int64)
        self._shares: npt.NDArray[np.float64] = np.zeros(_FIRST_ROWS)
        self._asked: npt.NDArray[np.float64] = np.zeros(_FIRST_ROWS)

    def __len__(self) -> int:
        return len(self._by_key)

    def place(self, line: waiting_lines.Line, share: float, now: float) -> None:
        """Put a line where it belongs by a share: its first request, share or level is another."""
        old, old_level = line.placed, line.queue.at_level[line.level]
        head = line.requests.first()
        placed: waiting_lines.Placed | None = None
        line.rises_at = math.inf
        if head is not None:
            asked_at, key = head
            level = line.count_as(self._settings, asked_at, now)
            tier = waiting_lines.tier(line.rank, level)
            placed = (tier, share, asked_at, key, line)
            if old is not None and placed[:4] == old[:4]:
                return
            line.level = level
        line.placed = placed
        if old is not None and old_level is not None:
            old_level.lines.remove(old)
        if placed is not None:
            queue_level = self._queue_level(line.queue, line.level)
            queue_level.lines.add(placed)
            self._refresh(queue_level)
            if queue_level is old_level:
                return
        if old_level is not None:
            self._refresh(old_level)

    def learn(self, needs: Mapping[str, int]) -> None:
        """Give resource classes a column that have none."""
        self.axis.learn(needs)
        missing = len(self.axis) - len(self._needs)
        if missing:
            more = np.zeros((missing, self._needs.shape[1]), np.int64)
            self._needs = np.concatenate([self._needs, more])

    def fitting(self, room: resource_axis.Vector | None) -> FittingShapes:
        """Return shapes that take no more than ``room``, shape (columns,); None: there is none."""
        fits = np.zeros(len(self._levels), np.bool_) if room is None else self.fits(room)
        return FittingShapes(self._shapes, fits, (self._tiers, self._shares, self._asked))

    def fits(self, room: resource_axis.Vector) -> npt.NDArray[np.bool_]:
        """Return of which rows shapes take no more than ``room``, shape (rows,)."""
        fits = self._levels >= 0
        # Who takes nothing of a resource class fits where there is less than nothing, too.
        # Of classes learnt since the room was looked at there is nothing.
        free = np.zeros(len(self._needs), np.int64)
        free[: len(room)] = np.maximum(room, 0)
        for column, amount in zip(self._needs, free.tolist(), strict=True):
            fits &= column <= amount
        return fits

    def first(self, level: int) -> waiting_lines.Placed | None:
        """Return the place of the first line of a level; None where it has none."""
        rows = np.flatnonzero(self._levels == level)
        for column in (self._tiers, self._shares, self._asked):
            if len(rows) > 1:
                values = column[rows]
                rows = rows[values == values.min()]
        firsts = [shape.queues.first() for row in rows if (shape := self._shapes[row]) is not None]
        least = min((each for each in firsts if each is not None), default=None)
        return None if least is None else least[4].lines.first()

    def first_without(self, level: int, digests: Collection[str]) -> waiting_lines.Placed | None:
        """Return the same, but for queues of some digests; O(shapes and those queues)."""
        firsts = []
        for row in np.flatnonzero(self._levels == level).tolist():
            shape = self._shapes[row]
            for placed in shape.queues if shape is not None else ():
                if placed[4].queue.digest not in digests:
                    firsts.append(placed)
                    break
        least = min(firsts, default=None)
        return None if least is None else least[4].lines.first()

    def _queue_level(self, queue: waiting_lines.Queue, level: int) -> waiting_lines.QueueLevel:
        found = queue.at_level[level]
        if found is None:
            found = waiting_lines.QueueLevel(queue, level, self._shape(queue, level))
            queue.at_level[level] = found
        return found

    def _refresh(self, queue_level: waiting_lines.QueueLevel) -> None:
        """Put a queue where its first line belongs; forget what is empty."""
        old, first = queue_level.placed, queue_level.lines.first()
        shape, demand = queue_level.shape, queue_level.queue.demand
        if first is None:
            queue_level.queue.at_level[queue_level.level] = None
            queue_level.placed = None
        else:
            if old is not None and first[:4] == old[:4]:
                return
            queue_level.placed = (*first[:4], queue_level)
            shape.queues.add(queue_level.placed)
            demand.levels.add(queue_level.placed)
        if old is not None:
            shape.queues.remove(old)
            demand.levels.remove(old)
        self._refresh_row(shape)

    def _refresh_row(self, shape: waiting_lines.Shape) -> None:
        first = shape.queues.first()
        row = shape.row
        if first is None:
            del self._by_key[shape.needs, shape.servers, shape.level, shape.is_exact]
            self._shapes[row] = None
            self._levels[row] = -1
            self._free_rows.append(row)
            return
        self._tiers[row], self._shares[row], self._asked[row] = first[:3]

    def _shape(self, queue: waiting_lines.Queue, level: int) -> waiting_lines.Shape:
        needs, servers = queue.needs, queue.servers
        is_exact = True
        found = self._by_key.get((needs, servers, level, is_exact))
        if found is None and len(self._by_key) >= self._most_exact:
            is_exact = False
            servers = _floor(servers)
            needs = immutables.Map({name: _floor(amount) for name, amount in needs.items()})
            found = self._by_key.get((needs, servers, level, is_exact))
        if found is not None:
            return found
        if not self._free_rows:
            self._grow()
        row = self._free_rows.pop()
        found = waiting_lines.Shape(needs, servers, level, row, is_exact=is_exact)
        self._by_key[needs, servers, level, is_exact] = found
        self._shapes[row] = found
        self.learn(needs)
        self._needs[:, row] = self.axis.vector(needs)
        self._levels[row] = level
        return found

    def _grow(self) -> None:
        rows = len(self._shapes)
        self._shapes = np.concatenate([self._shapes, np.full(rows, None, object)])
        self._free_rows = list(range(2 * rows - 1, rows - 1, -1))
        self._needs = np.pad(self._needs, ((0, 0), (0, rows)))
        self._levels = np.pad(self._levels, (0, rows), constant_values=-1)
        self._tiers = np.pad(self._tiers, (0, rows))
        self._shares = np.pad(self._shares, (0, rows))
        self._asked = np.pad(self._asked, (0, rows))


def _floor(amount: int) -> int:
    """Return the greatest power of two that is no more; 0 of 0."""
    return 1 << (amount.bit_length() - 1) if amount else 0
