# SPDX-License-Identifier: Apache-2.0
"""Raw weights to scores, in Nova's order of arithmetic (nova/weights.py), and scores best first.

Bit for bit what Nova adds up: each weigher's weight scaled by the extremes of
the hosts that passed, times its multiplier, summed in the weighers' order.

A ranking has two levels and is never sorted whole: scores, and the greatest score
of each block of rows. A changed score costs its block, the best host a look at
the blocks and into one block.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

#: Of each weigher the lower end of its scale and the scale's length; None where
#: all weigh alike, which counts 0.
Scale: TypeAlias = tuple[tuple[float, float] | None, ...]
Multiplier: TypeAlias = float | plugin_contract.FloatArray
Bounds: TypeAlias = tuple[float | None, float | None]


def clipped(raw: plugin_contract.FloatArray, bounds: Bounds) -> plugin_contract.FloatArray:
    """Apply a weigher's floor and ceiling."""
    minval, maxval = bounds
    if minval is not None:
        raw = np.maximum(raw, minval)
    if maxval is not None:
        raw = np.minimum(raw, maxval)
    return raw


def scale(
    bounds: Sequence[Bounds],
    lows: Sequence[float],
    highs: Sequence[float],
    multipliers: Sequence[Multiplier],
    count: int,
) -> Scale:
    """Return the scales of weighers over ``count`` hosts with those extremes."""
    if count <= 1:
        return (None,) * len(bounds)
    ends: list[tuple[float, float] | None] = []
    for (minval, maxval), low, high, multiplier in zip(
        bounds, lows, highs, multipliers, strict=True
    ):
        low = low if minval is None else float(minval)
        high = high if maxval is None else float(maxval)
        idle = isinstance(multiplier, float) and multiplier == 0.0
        ends.append(None if low == high or idle else (low, high - low))
    return tuple(ends)


def scores(
    raw: Sequence[plugin_contract.FloatArray],
    multipliers: Sequence[Multiplier],
    scales: Scale,
    count: int,
) -> plugin_contract.FloatArray:
    """Return the sum of the shares of ``count`` hosts, shape (count,)."""
    total = np.zeros(count)
    share = np.empty(count)
    with np.errstate(invalid="ignore", over="ignore"):
        for weights, multiplier, ends in zip(raw, multipliers, scales, strict=True):
            if ends is None:
                continue
            low, length = ends
            np.subtract(weights, low, out=share)
            np.divide(share, length, out=share)
            np.multiply(share, multiplier, out=share)
            np.add(total, share, out=total)
    return total


def patched(
    known: Multiplier,
    count: int,
    which: plugin_contract.Rows | plugin_contract.BoolArray,
    new: Multiplier,
) -> Multiplier:
    """Return multipliers of ``count`` hosts with some of them new; may change ``known``."""
    if not isinstance(known, np.ndarray):
        if not isinstance(new, np.ndarray) and new == known:
            return known
        known = np.full(count, known)
    known[which] = new
    return known


FloatArray = npt.NDArray[np.float64]

#: The score of a host that may not be chosen.
NOT_CHOOSABLE = -math.inf
#: The score of a host whose weight is not a number, or minus infinity: it comes last.
LOWEST_SCORE = float(np.finfo(np.float64).min)

_BLOCK = host_frame.BLOCK_ROWS

#: Rows that are tried in vain before all are looked at, where one is drawn.
_MOST_MISSES = 32


class Ranking:
    """Scores of rows.

    :ivar scores: shape (n,), :data:`NOT_CHOOSABLE` where a row may not be chosen; a
        multiple of the block's rows; change it, then call :meth:`patch` or
        :meth:`renew`
    """

    def __init__(self, scores: FloatArray) -> None:
        missing = -len(scores) % _BLOCK
        if missing:
            scores = np.concatenate([scores, np.full(missing, NOT_CHOOSABLE)])
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
        """Return the rows that may be chosen, best first.

        Equal scores come in the order of the rows from a random one on, so
        that schedulers do not all take the first; ``shuffled`` puts those of
        the very best score in random order. Stop before the scores change.
        """
        if not len(self._tops):
            return iter(())
        start = rng.randrange(len(self.scores))
        return self._shuffle_best(start, rng) if shuffled else self._descend(start)

    def _shuffle_best(self, start: int, rng: random.Random) -> Iterator[int]:
        top = self._tops.max()
        if top == NOT_CHOOSABLE:
            return
        best = self.scores == top
        yield from _shuffled(np.flatnonzero(best), rng)
        rest = Ranking(np.where(best, NOT_CHOOSABLE, self.scores))
        yield from rest._descend(start)

    def at_random(
        self, rng: random.Random, among: npt.NDArray[np.intp] | None = None
    ) -> Iterator[int]:
        """Yield the rows that may be chosen, each drawn from all that are left.

        Where many may be, one is found in a few tries, whatever their number. Stop before
        the scores change.

        :param among: rows to draw from; None for all
        """
        drawn: set[int] = set()
        count = len(self.scores) if among is None else len(among)
        misses = 0 if count else _MOST_MISSES
        while misses < _MOST_MISSES:
            place = rng.randrange(count)
            row = place if among is None else among.item(place)
            if row in drawn or self.scores.item(row) == NOT_CHOOSABLE:
                misses += 1
                continue
            misses = 0
            drawn.add(row)
            yield row
        rows = np.arange(count) if among is None else among
        left = rows[self.scores[rows] > NOT_CHOOSABLE]
        if drawn:
            left = left[~np.isin(left, np.fromiter(drawn, np.intp, len(drawn)))]
        yield from _shuffled(left, rng)

    def _descend(self, start: int) -> Iterator[int]:
        first_block, first_row = divmod(start, _BLOCK)
        tops = self._tops.copy()
        opened: dict[int, FloatArray] = {}
        while True:
            block = _argmax_from(tops, first_block)
            if tops[block] == NOT_CHOOSABLE:
                return
            scores = opened.get(block)
            if scores is None:
                scores = self.scores[block * _BLOCK : (block + 1) * _BLOCK].copy()
                opened[block] = scores
            row = _argmax_from(scores, first_row)
            yield block * _BLOCK + row
            scores[row] = NOT_CHOOSABLE
            tops[block] = scores.max()

    def among(self, rows: npt.NDArray[np.intp], count: int, rng: random.Random) -> list[int]:
        """Return up to ``count`` of some rows, best first."""
        scores = self.scores[rows]
        start = rng.randrange(len(rows)) if len(rows) else 0
        order = np.roll(np.arange(len(rows)), -start)
        order = order[scores[order] > NOT_CHOOSABLE]
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
