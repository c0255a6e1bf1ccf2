# SPDX-License-Identifier: Apache-2.0
"""Scores best first, without sorting them all.

Two levels: scores, and the greatest score of each block of rows. A changed
score costs its block, the best host a look at the blocks and into one block.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling import host_frame

FloatArray = npt.NDArray[np.float64]

#: The score of a host that may not be chosen.
NEVER = -math.inf
#: The score of a host whose weight is not a number, or minus infinity: it comes last.
LAST = float(np.finfo(np.float64).min)

_BLOCK = host_frame.BLOCK_ROWS


class Ranking:
    """Scores of rows.

    :ivar scores: shape (n,), :data:`NEVER` where a row may not be chosen; a
        multiple of the block's rows; change it, then call :meth:`patch` or
        :meth:`renew`
    """

    def __init__(self, scores: FloatArray) -> None:
        missing = -len(scores) % _BLOCK
        if missing:
            scores = np.concatenate([scores, np.full(missing, NEVER)])
        self.scores = scores
        self._tops: FloatArray = np.zeros(len(scores) // _BLOCK)
        self.renew()

    @property
    def nbytes(self) -> int:
        return self.scores.nbytes + self._tops.nbytes

    def renew(self) -> None:
        """Look at all scores anew."""
        np.max(self.scores.reshape(-1, _BLOCK), axis=1, out=self._tops)

    def patch(self, blocks: npt.NDArray[np.intp]) -> None:
        """Look at the scores of some blocks anew."""
        if len(blocks) == 1:
            block = blocks.item()
            self._tops[block] = self.scores[block * _BLOCK : (block + 1) * _BLOCK].max()
            return
        self._tops[blocks] = self.scores.reshape(-1, _BLOCK)[blocks].max(axis=1)

    def best_first(self, rng: random.Random, *, shuffled: bool = False) -> Iterator[int]:
        """Yield the rows that may be chosen, best first.

        Equal scores come in the order of the rows from a random one on, so
        that schedulers do not all take the first; ``shuffled`` puts those of
        the very best score in random order. Stop before the scores change.
        """
        if not len(self._tops):
            return
        start = rng.randrange(len(self.scores))
        if not shuffled:
            yield from self._descend(start)
            return
        top = self._tops.max()
        if top == NEVER:
            return
        best = self.scores == top
        yield from _shuffled(np.flatnonzero(best), rng)
        rest = Ranking(np.where(best, NEVER, self.scores))
        yield from rest._descend(start)

    def _descend(self, start: int) -> Iterator[int]:
        first_block, first_row = divmod(start, _BLOCK)
        tops = self._tops.copy()
        opened: dict[int, FloatArray] = {}
        while True:
            block = _argmax_from(tops, first_block)
            if tops[block] == NEVER:
                return
            scores = opened.get(block)
            if scores is None:
                scores = self.scores[block * _BLOCK : (block + 1) * _BLOCK].copy()
                opened[block] = scores
            row = _argmax_from(scores, first_row)
            yield block * _BLOCK + row
            scores[row] = NEVER
            tops[block] = scores.max()

    def among(self, rows: npt.NDArray[np.intp], count: int, rng: random.Random) -> list[int]:
        """Return up to ``count`` of some rows, best first."""
        scores = self.scores[rows]
        start = rng.randrange(len(rows)) if len(rows) else 0
        order = np.roll(np.arange(len(rows)), -start)
        order = order[scores[order] > NEVER]
        if count < len(order) // 4:
            # All that are as good as the last one wanted, then those sorted.
            bar = -np.partition(-scores[order], count)[count]
            order = order[scores[order] >= bar]
        order = order[np.argsort(-scores[order], kind="stable")]
        found: list[int] = rows[order[:count]].tolist()
        return found


def _argmax_from(values: FloatArray, start: int) -> int:
    """Return the place of the greatest value; of equals the first from a place on."""
    tail = values[start:]
    behind = int(tail.argmax())
    if start == 0:
        return behind
    head = values[:start]
    before = int(head.argmax())
    return start + behind if tail[behind] >= head[before] else before


def _shuffled(rows: npt.NDArray[np.intp], rng: random.Random) -> Iterator[int]:
    # One exchange for each row that is taken: most often few of many are.
    moved: dict[int, int] = {}
    for place in range(len(rows)):
        other = rng.randrange(place, len(rows))
        yield rows.item(moved.get(other, other))
        moved[other] = moved.get(place, place)
