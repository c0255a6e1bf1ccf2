# SPDX-License-Identifier: Apache-2.0
"""Which hosts' services are up, told without asking every host each time.

Per block of rows the oldest word of a host that is up: while that is recent
enough, nobody in the block can have fallen silent.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling import columns

#: Rows that share one bound.
_BLOCK_ROWS = 256
#: A bound is compared in another order than a host's age: give rounding its due.
_SLACK_SECONDS = 1e-3


class Services(Protocol):
    """The columns of a frame that this reads, and the one that it keeps."""

    alive: npt.NDArray[np.bool_]
    forced_down: npt.NDArray[np.bool_]
    last_seen_seconds: npt.NDArray[np.float64]
    up: npt.NDArray[np.bool_]


class Liveness:
    """Keeps ``frame.up``. One thread at a time."""

    def __init__(self) -> None:
        self._now: float | None = None
        self._down_time = 0.0
        #: Per block, no later than the oldest word of a host that is up.
        self._oldest: npt.NDArray[np.float64] = np.zeros(0)
        #: Rows heard of so far in the future that they are not up yet.
        self._ahead: set[int] = set()

    def grow(self, rows: int) -> None:
        self._oldest = columns.grown(self._oldest, math.ceil(rows / _BLOCK_ROWS), math.inf)

    def look_at(self, frame: Services, row: int) -> bool:
        """Say whether a row that was put changed sides, as of the last tick."""
        if self._now is None:
            return False
        last_seen: float = frame.last_seen_seconds.item(row)
        near = abs(self._now - last_seen) <= self._down_time
        up = near and not frame.forced_down.item(row)
        if up:
            block = row // _BLOCK_ROWS
            self._oldest[block] = min(self._oldest.item(block), last_seen)
        if last_seen > self._now + self._down_time:
            self._ahead.add(row)
        if frame.up.item(row) == up:
            return False
        frame.up[row] = up
        return True

    def tick(self, frame: Services, now_seconds: float, down_time: float) -> npt.NDArray[np.intp]:
        """Bring ``frame.up`` to a time; return the rows that changed sides."""
        steady = self._now is not None and now_seconds >= self._now and down_time == self._down_time
        self._now, self._down_time = now_seconds, down_time
        if not steady:
            return self._settle(frame, np.arange(len(self._oldest)))
        due = self._oldest < now_seconds - down_time + _SLACK_SECONDS
        if self._ahead:
            due[[row // _BLOCK_ROWS for row in self._ahead]] = True
        elif not due.any():
            return np.zeros(0, np.intp)
        return self._settle(frame, np.flatnonzero(due))

    def _settle(self, frame: Services, blocks: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        assert self._now is not None
        rows = (blocks[:, None] * _BLOCK_ROWS + np.arange(_BLOCK_ROWS)).reshape(-1)
        last_seen = frame.last_seen_seconds[rows]
        up = np.abs(self._now - last_seen) <= self._down_time
        up &= ~frame.forced_down[rows] & frame.alive[rows]
        changed: npt.NDArray[np.intp] = rows[up != frame.up[rows]]
        frame.up[rows] = up
        heard = np.where(up, last_seen, math.inf).reshape(-1, _BLOCK_ROWS)
        self._oldest[blocks] = heard.min(axis=1)
        ahead = (last_seen > self._now + self._down_time) & frame.alive[rows]
        self._ahead.difference_update(rows.tolist())
        self._ahead.update(rows[ahead].tolist())
        return changed
