# SPDX-License-Identifier: Apache-2.0
"""Which hosts to ask next for the extremes of weights among those that pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling import contract


def unsettled(
    ends: Sequence[contract.FloatArray], passed: contract.BoolArray, at_once: int
) -> npt.NDArray[np.intp]:
    """Return places of hosts to ask; none where a host that passed is greatest at each end.

    :param ends: numbers of the hosts that did not fail, none of them NaN, whose
        greatest is looked for; each of shape (n,)
    :param passed: which hosts are known to pass, shape (n,)
    :param at_once: how many to ask for each end, the greatest first
    """
    open_ends, tops = [], []
    for end in ends:
        is_top = end == end.max()
        if not (is_top & passed).any():
            open_ends.append(end)
            tops.append(is_top)
    if not open_ends:
        return np.zeros(0, np.intp)
    # Of equals the one that is greatest at other ends, too: one question for several.
    shared = np.sum(tops, axis=0)
    found: set[int] = set()
    for end, is_top in zip(open_ends, tops, strict=True):
        if found and is_top[list(found)].any():
            continue
        found.add(int(np.where(is_top, shared, -1).argmax()))
        if at_once > 1:
            unknown = np.flatnonzero(~passed)
            count = min(at_once, len(unknown))
            found.update(unknown[np.argpartition(-end[unknown], count - 1)[:count]].tolist())
    return np.array(sorted(found), np.intp)
