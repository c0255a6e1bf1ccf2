# SPDX-License-Identifier: Apache-2.0
"""What one signature makes of all hosts: who passes, how far the others got, scores.

Computed for all rows once, then row by row as hosts change. Extremes of the
weighers are kept per block of rows; scores are recomputed for all only when an
extreme of those that pass has moved.

Evaluations are kept, bounded in bytes, of signatures that come a second time: most
requests repeat a few sizes, and those that never come again would only push the
others out.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import decision_steps, plugin_contract, weighing

_BLOCK = host_frame.BLOCK_ROWS
_ALL = slice(None)


@attrs.define
class EngineCounters:
    """What the engine did, for the metrics. All only grow."""

    signature_hits: int = 0
    signature_misses: int = 0
    cold_evaluations: int = 0
    rows_patched: int = 0
    rescales: int = 0
    evictions: int = 0


class Evaluation:
    """One signature's results over a frame. Use it under the engine's lock.

    :ivar sequence: of the frame's change log, how far this has followed
    :ivar stage: shape (rows,), how many steps a row passed: 0 if it is no
        host of the request's, :attr:`last` if it passed all
    :ivar choosable: shape (rows,); a node that never reported passes and
        weighs, but Nova knows no uuid to claim it by
    :ivar raw: shape (weighers, rows), floor and ceiling applied; of use only
        where a row passes
    :ivar histogram: how many rows are at each stage
    :ivar blocks_renewed: how often the extremes of a block were looked for among all its rows
    """

    def __init__(self, steps: decision_steps.DecisionSteps, frame: host_frame.HostFrame) -> None:
        self.steps = steps
        self.rows = frame.rows
        self.sequence = frame.sequence
        self.last = len(steps.filters) + 2
        self.weighers = [own for own, _ in steps.weighers_on_columns]
        self.bounds = [(own.minval, own.maxval) for own in self.weighers]
        self.stage = stages(steps, frame, _ALL)
        self.histogram = np.bincount(self.stage, minlength=self.last + 1).tolist()
        passing = self.stage == self.last
        self.choosable = passing & frame.updated
        self.raw = np.empty((len(self.weighers), self.rows))
        self.multipliers: list[weighing.Multiplier] = []
        blocks = self.rows // _BLOCK
        self._lows = np.empty((len(self.weighers), blocks))
        self._highs = np.empty((len(self.weighers), blocks))
        for place, own in enumerate(self.weighers):
            raw = weighing.clipped(own.raw(steps.request, frame, _ALL), self.bounds[place])
            self.raw[place] = raw
            self.multipliers.append(_multiplier(own.multiplier(steps.request, frame, _ALL)))
            low = np.where(passing, self.raw[place], np.inf).reshape(blocks, _BLOCK)
            high = np.where(passing, self.raw[place], -np.inf).reshape(blocks, _BLOCK)
            self._lows[place] = np.fmin.reduce(low, axis=1)
            self._highs[place] = np.fmax.reduce(high, axis=1)
        self.blocks_renewed = 0
        self._scale: weighing.Scale | None = None
        self._ranking = weighing.Ranking(np.full(self.rows, weighing.NOT_CHOOSABLE))
        self._unranked: set[int] = set()

    @property
    def nbytes(self) -> int:
        """How much memory this takes."""
        arrays = (self.stage, self.choosable, self.raw, self._lows, self._highs)
        owned = sum(each.nbytes for each in arrays) + self._ranking.nbytes
        return owned + sum(each.nbytes for each in self.multipliers if isinstance(each, np.ndarray))

    @property
    def passed(self) -> int:
        """How many hosts passed all steps."""
        return int(self.histogram[self.last])

    def patch(
        self,
        steps: decision_steps.DecisionSteps,
        frame: host_frame.HostFrame,
        rows: npt.NDArray[np.intp],
    ) -> bool:
        """Follow the frame in some rows; ``steps`` of a request of the same signature.

        :returns: whether it takes more memory than before
        """
        if not len(rows):
            return False
        new, former = stages(steps, frame, rows), self.stage[rows]
        left = np.bincount(former, minlength=self.last + 1)
        came = np.bincount(new, minlength=self.last + 1)
        self.histogram = (self.histogram + came - left).tolist()
        self.stage[rows] = new
        passing = new == self.last
        self.choosable[rows] = passing & frame.updated[rows]
        self._unranked.update(rows.tolist())
        if not self.weighers:
            return False
        blocks = _blocks_of(rows)
        # To look through one block costs no more than to see whether that is needed.
        raw = None
        if len(blocks) > 1:
            raw = np.where(former == self.last, self.raw[:, rows], np.nan)
        has_grown = False
        if passing.any():
            has_grown = self._weigh(steps, frame, rows if passing.all() else rows[passing])
        if raw is None:
            self._renew_extremes(blocks)
        else:
            self._follow_extremes(rows, raw, np.where(passing, self.raw[:, rows], np.nan))
        return has_grown

    def _weigh(
        self,
        steps: decision_steps.DecisionSteps,
        frame: host_frame.HostFrame,
        rows: npt.NDArray[np.intp],
    ) -> bool:
        """Weigh some rows anew; say whether a multiplier became one for each row by that."""
        has_grown = False
        for place, (own, _) in enumerate(steps.weighers_on_columns):
            raw = own.raw(steps.request, frame, rows)
            self.raw[place, rows] = weighing.clipped(raw, self.bounds[place])
            multiplier, known = own.multiplier(steps.request, frame, rows), self.multipliers[place]
            if multiplier is known:
                # The very number: of most weighers it is an option's.
                continue
            new = weighing.patched(known, self.rows, rows, _multiplier(multiplier))
            has_grown |= new is not known
            self.multipliers[place] = new
        return has_grown

    def _follow_extremes(
        self,
        rows: npt.NDArray[np.intp],
        former: plugin_contract.FloatArray,
        present: plugin_contract.FloatArray,
    ) -> None:
        """Have the blocks' extremes be those of the rows that pass now.

        A block is only looked through where the row that made an extreme has left it: one in a
        hundred changes, where a block has hundreds of rows.

        :param former: shape (weighers, n), the rows' raw weights before; not a number where a
            row did not pass
        :param present: the same now
        """
        blocks = rows // _BLOCK
        lows, highs = self._lows[:, blocks], self._highs[:, blocks]
        stale = (former <= lows) & ~(present <= lows) | (former >= highs) & ~(present >= highs)
        # Where no row that passed had a number no row made the extreme.
        stale |= np.isnan(lows)
        lower, higher = present < lows, present > highs
        if lower.any():
            places, at = lower.nonzero()
            np.fmin.at(self._lows, (places, blocks[at]), present[lower])
        if higher.any():
            places, at = higher.nonzero()
            np.fmax.at(self._highs, (places, blocks[at]), present[higher])
        if stale.any():
            self._renew_extremes(np.unique(blocks[stale.any(axis=0)]))

    def _renew_extremes(self, blocks: npt.NDArray[np.intp]) -> None:
        self.blocks_renewed += len(blocks)
        if len(blocks) == 1:
            block = blocks.item()
            part = slice(block * _BLOCK, (block + 1) * _BLOCK)
            passing, raw = self.stage[part] == self.last, self.raw[:, part]
            np.fmin.reduce(np.where(passing, raw, np.inf), axis=1, out=self._lows[:, block])
            np.fmax.reduce(np.where(passing, raw, -np.inf), axis=1, out=self._highs[:, block])
            return
        passing = self.stage.reshape(-1, _BLOCK)[blocks] == self.last
        raw = self.raw.reshape(len(self.weighers), -1, _BLOCK)[:, blocks]
        self._lows[:, blocks] = np.fmin.reduce(np.where(passing, raw, np.inf), axis=2)
        self._highs[:, blocks] = np.fmax.reduce(np.where(passing, raw, -np.inf), axis=2)

    def scale(self) -> weighing.Scale:
        """Return the scales of the weighers over the hosts that pass now."""
        lows = np.fmin.reduce(self._lows, axis=1, initial=np.inf).tolist()
        highs = np.fmax.reduce(self._highs, axis=1, initial=-np.inf).tolist()
        return weighing.scale(self.bounds, lows, highs, self.multipliers, self.passed)

    def scales_without(self, rows: npt.NDArray[np.intp]) -> bool:
        """Say whether the scores hold for the others if some rows did not pass."""
        passing = rows[self.stage[rows] == self.last]
        return not len(passing) or self._scale_without(passing) == self.scale()

    def _scale_without(self, rows: npt.NDArray[np.intp]) -> weighing.Scale:
        lows, highs = self._lows.copy(), self._highs.copy()
        stage, self.stage = self.stage, self.stage.copy()
        stored = self._lows, self._highs
        out = int((self.stage[rows] == self.last).sum())
        self.stage[rows] = 0
        self._lows, self._highs = lows, highs
        if self.weighers:
            self._renew_extremes(np.unique(rows // _BLOCK))
        self.stage, (self._lows, self._highs) = stage, stored
        return weighing.scale(
            self.bounds,
            np.fmin.reduce(lows, axis=1, initial=np.inf).tolist(),
            np.fmax.reduce(highs, axis=1, initial=-np.inf).tolist(),
            self.multipliers,
            self.passed - out,
        )

    def ranked(self, counters: EngineCounters) -> weighing.Ranking:
        """Return the hosts that may be chosen by score, up to date."""
        scale = self.scale()
        if scale != self._scale:
            counters.rescales += self._scale is not None
            self._ranking.scores[:] = rankable(
                weighing.scores(list(self.raw), self.multipliers, scale, self.rows), self.choosable
            )
            self._ranking.renew()
            # Last: of scores that could not be made it would say that they are.
            self._scale = scale
        elif self._unranked:
            rows = np.fromiter(self._unranked, np.intp, len(self._unranked))
            self._ranking.scores[rows] = rankable(
                weighing.scores(
                    list(self.raw[:, rows]),
                    [
                        each[rows] if isinstance(each, np.ndarray) else each
                        for each in self.multipliers
                    ],
                    scale,
                    len(rows),
                ),
                self.choosable[rows],
            )
            self._ranking.patch(_blocks_of(rows))
        self._unranked.clear()
        return self._ranking


def _blocks_of(rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return the blocks of some rows, ascending."""
    # Of the few rows that change at a time this is less than np.unique's own preparation.
    return np.array(sorted({*(rows // _BLOCK).tolist()}), np.intp)


def stages(
    steps: decision_steps.DecisionSteps, frame: host_frame.HostFrame, rows: plugin_contract.Rows
) -> npt.NDArray[np.uint8]:
    """Return how many steps each of the rows passes before the first that refuses it."""
    passing = steps.known(frame, rows)
    stage = passing.astype(np.uint8)
    passing &= steps.offered(frame, rows)
    stage += passing
    for own, _ in steps.filters:
        if len(passing) == 1 and not passing.item():
            break
        passing &= own.mask(steps.request, frame, rows)
        stage += passing
    return stage


def rankable(
    scores: plugin_contract.FloatArray, choosable: plugin_contract.BoolArray
) -> plugin_contract.FloatArray:
    """Return scores as a ranking wants them."""
    scores[~(scores > weighing.LOWEST_SCORE)] = weighing.LOWEST_SCORE
    scores[~choosable] = weighing.NOT_CHOOSABLE
    return scores


def _multiplier(multiplier: float | plugin_contract.FloatArray) -> weighing.Multiplier:
    if isinstance(multiplier, np.ndarray):
        return multiplier.astype(np.float64)
    return float(multiplier)


#: Evaluations kept at most; in a small cloud the signatures weigh more than they.
_KEPT = 1024
#: Signatures remembered as having come once.
_ONCE = 1024


class SignatureCache:
    """The evaluations used last. Use it under the engine's lock."""

    def __init__(self, limit_bytes: int, counters: EngineCounters) -> None:
        self._limit_bytes = limit_bytes
        self._counters = counters
        self._kept: collections.OrderedDict[Hashable, tuple[Evaluation, int]] = (
            collections.OrderedDict()
        )
        self._bytes = 0
        #: Hashes only: that two collide costs no more than keeping one too early.
        self._once: collections.OrderedDict[int, None] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """How much memory the evaluations take."""
        return self._bytes

    def get(self, signature: Hashable) -> Evaluation | None:
        """Return the evaluation of a signature, if it is kept."""
        found = self._kept.get(signature)
        if found is None:
            self._counters.signature_misses += 1
            return None
        self._counters.signature_hits += 1
        self._kept.move_to_end(signature)
        return found[0]

    def offer(self, signature: Hashable, made: Evaluation) -> None:
        """Keep an evaluation if its signature came before and it is not too large."""
        mark = hash(signature)
        if mark not in self._once:
            self._once[mark] = None
            if len(self._once) > _ONCE:
                self._once.popitem(last=False)
            return
        self._once.move_to_end(mark)
        self.drop(signature)
        size = made.nbytes
        if size > self._limit_bytes:
            return
        self._kept[signature] = (made, size)
        self._bytes += size
        self._shrink()

    def count_again(self, signature: Hashable) -> None:
        """See how large a kept evaluation is now: a multiplier may have become a column."""
        found = self._kept.get(signature)
        if found is None:
            return
        made, before = found
        size = made.nbytes
        if size != before:
            self._kept[signature] = (made, size)
            self._bytes += size - before
            self._shrink()

    def _shrink(self) -> None:
        while self._bytes > self._limit_bytes or len(self._kept) > _KEPT:
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed
            self._counters.evictions += 1

    def drop(self, signature: Hashable) -> None:
        """Forget an evaluation."""
        found = self._kept.pop(signature, None)
        if found is not None:
            self._bytes -= found[1]
