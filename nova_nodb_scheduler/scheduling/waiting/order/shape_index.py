# SPDX-License-Identifier: Apache-2.0
"""Which shapes fit into some room.

One row of arrays for each shape: what a server takes. An event looks at all rows at once: some
nanoseconds for each. Shapes are those of flavors; where there are more than :data:`MOST_EXACT` of
them, further ones share a row with those that are alike by powers of two. So rows have a bound,
whatever waits.
"""

from __future__ import annotations

from collections.abc import Mapping

import immutables
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.waiting.order import resource_axis, waiting_lines

#: Shapes with a row of their own.
MOST_EXACT = 4096

_FIRST_ROWS = 64


class ShapeRows:
    """Some rows of shapes.

    :ivar mask: a bit for each of them
    :ivar flags: by row, 1 for each of them
    """

    __slots__ = ("flags", "mask")

    def __init__(self, flags: bytearray, mask: int) -> None:
        self.flags = flags
        self.mask = mask

    @classmethod
    def of(cls, are_in: npt.NDArray[np.bool_]) -> ShapeRows:
        """Return those that an array says, shape (rows,)."""
        packed = np.packbits(are_in, bitorder="little").tobytes()
        return cls(bytearray(are_in.tobytes()), int.from_bytes(packed, "little"))

    def drop(self, row: int) -> None:
        """Leave out a row."""
        self.flags[row] = 0
        self.mask &= ~(1 << row)


class ShapeIndex:
    """Shapes of queues that are known. Not safe for threads.

    :ivar changes: how often a row was given to a shape
    :param most_exact: rows beyond which shapes share one
    """

    def __init__(self, *, most_exact: int = MOST_EXACT) -> None:
        self.axis = resource_axis.ResourceAxis()
        self.changes = 0
        self._most_exact = most_exact
        self._by_key: dict[tuple[Mapping[str, int], int, bool], waiting_lines.Shape] = {}
        self._free_rows = list(range(_FIRST_ROWS - 1, -1, -1))
        self._is_used = np.zeros(_FIRST_ROWS, np.bool_)
        self._needs: resource_axis.Vector = np.zeros((0, _FIRST_ROWS), np.int64)
        #: None: it was not asked for since a row was given away or came back.
        self._all: ShapeRows | None = None

    def __len__(self) -> int:
        return len(self._by_key)

    def enter(self, needs: Mapping[str, int], servers: int) -> waiting_lines.Shape:
        """Return the shape of queues, a new one or one that others have."""
        is_exact = True
        found = self._by_key.get((needs, servers, is_exact))
        if found is None and len(self._by_key) >= self._most_exact:
            is_exact = False
            servers = _floor(servers)
            needs = immutables.Map({name: _floor(amount) for name, amount in needs.items()})
            found = self._by_key.get((needs, servers, is_exact))
        if found is not None:
            return found
        self.learn(needs)
        if not self._free_rows:
            self._grow()
        row = self._free_rows.pop()
        found = waiting_lines.Shape(needs, servers, row, is_exact=is_exact)
        self._by_key[needs, servers, is_exact] = found
        self.changes += 1
        self._all = None
        self._is_used[row] = True
        self._needs[:, row] = self.axis.vector(needs)
        return found

    def leave(self, shape: waiting_lines.Shape) -> None:
        """Forget a shape of which no queue is left."""
        del self._by_key[shape.needs, shape.servers, shape.is_exact]
        self._all = None
        self._is_used[shape.row] = False
        self._free_rows.append(shape.row)

    def learn(self, needs: Mapping[str, int]) -> None:
        """Give resource classes a column that have none."""
        self.axis.learn(needs)
        missing = len(self.axis) - len(self._needs)
        if missing:
            more = np.zeros((missing, self._needs.shape[1]), np.int64)
            self._needs = np.concatenate([self._needs, more])

    def all(self) -> ShapeRows:
        """Return all rows; whoever asks leaves none out."""
        if self._all is None:
            self._all = ShapeRows.of(self._is_used)
        return self._all

    def only(self, shape: waiting_lines.Shape) -> ShapeRows:
        """Return the row of a shape."""
        flags = bytearray(len(self._is_used))
        flags[shape.row] = 1
        return ShapeRows(flags, 1 << shape.row)

    def fitting(self, room: resource_axis.Vector | None) -> ShapeRows:
        """Return of which rows shapes take no more than ``room``, shape (columns,).

        :param room: None: there is none
        """
        if room is None:
            return ShapeRows(bytearray(len(self._is_used)), 0)
        fits = self._is_used.copy()
        # Who takes nothing of a resource class fits where there is less than nothing, too.
        # Of classes learnt since the room was looked at there is nothing.
        free = np.zeros(len(self._needs), np.int64)
        free[: len(room)] = np.maximum(room, 0)
        for column, amount in zip(self._needs, free.tolist(), strict=True):
            fits &= column <= amount
        return ShapeRows.of(fits)

    def _grow(self) -> None:
        rows = len(self._is_used)
        self._free_rows = list(range(2 * rows - 1, rows - 1, -1))
        self._is_used = np.pad(self._is_used, (0, rows))
        self._needs = np.pad(self._needs, ((0, 0), (0, rows)))


def _floor(amount: int) -> int:
    """Return the greatest power of two that is no more; 0 of 0."""
    return 1 << (amount.bit_length() - 1) if amount else 0
