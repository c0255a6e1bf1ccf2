# SPDX-License-Identifier: Apache-2.0
"""Raw weights to scores, in Nova's order of arithmetic (nova/weights.py).

Bit for bit what Nova adds up: each weigher's weight scaled by the extremes of
the hosts that passed, times its multiplier, summed in the weighers' order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from nova_nodb_scheduler.scheduling import contract

#: Of each weigher the lower end of its scale and the scale's length; None where
#: all weigh alike, which counts 0.
Scale: TypeAlias = tuple[tuple[float, float] | None, ...]
Multiplier: TypeAlias = float | contract.FloatArray
Bounds: TypeAlias = tuple[float | None, float | None]


def clipped(raw: contract.FloatArray, bounds: Bounds) -> contract.FloatArray:
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
    raw: Sequence[contract.FloatArray], multipliers: Sequence[Multiplier], scales: Scale, count: int
) -> contract.FloatArray:
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
    known: Multiplier, count: int, which: contract.Rows | contract.BoolArray, new: Multiplier
) -> Multiplier:
    """Return multipliers of ``count`` hosts with some of them new; may change ``known``."""
    if not isinstance(known, np.ndarray):
        if not isinstance(new, np.ndarray) and new == known:
            return known
        known = np.full(count, known)
    known[which] = new
    return known
