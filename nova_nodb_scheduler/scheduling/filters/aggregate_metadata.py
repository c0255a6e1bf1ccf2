# SPDX-License-Identifier: Apache-2.0
"""What the aggregates of a host say together.

Hosts in the same aggregates share an answer: it is looked for once for each
set of aggregates that some of the rows are in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling import contract, host_frame

#: Values by key: split at commas, stripped, of all aggregates together.
Metadata: TypeAlias = Mapping[str, frozenset[str]]

_T = TypeVar("_T")


def judge(
    frame: host_frame.HostFrame, rows: contract.Rows, passes: Callable[[tuple[str, ...]], bool]
) -> contract.BoolArray:
    """Return what a predicate of aggregates' uuids says of each of the rows."""
    codes, answers = _answers(frame, rows, passes)
    return np.array(answers, np.bool_)[codes]


def limits(
    frame: host_frame.HostFrame, rows: contract.Rows, key: str, default: int
) -> npt.NDArray[np.int64]:
    """Return the least number that the rows' aggregates set, else a default.

    As in Nova one value that is no number makes the default count.
    """

    def limit(uuids: tuple[str, ...]) -> int:
        try:
            least = min(map(int, raw_values(frame, uuids, key)), default=default)
        except ValueError:
            return default
        return min(max(least, -(2**62)), 2**62)

    codes, answers = _answers(frame, rows, limit)
    return np.array(answers, np.int64)[codes]


def raw_values(frame: host_frame.HostFrame, uuids: tuple[str, ...], key: str) -> frozenset[str]:
    """Return the values of one key, whole as they are stored."""
    return frozenset(
        frame.aggregates[uuid].metadata[key]
        for uuid in uuids
        if uuid in frame.aggregates and key in frame.aggregates[uuid].metadata
    )


def merged(frame: host_frame.HostFrame, uuids: tuple[str, ...]) -> Metadata:
    """Return all metadata of some aggregates together."""
    found: dict[str, set[str]] = {}
    for uuid in uuids:
        aggregate = frame.aggregates.get(uuid)
        for key, text in aggregate.metadata.items() if aggregate is not None else ():
            found.setdefault(key, set()).update(value.strip() for value in text.split(","))
    return {key: frozenset(values) for key, values in found.items()}


def live_sets(frame: host_frame.HostFrame) -> list[tuple[str, ...]]:
    """Return each set of aggregates that some host is in."""
    column = frame.aggregate_sets
    used = np.zeros(len(column.values), np.bool_)
    used[column.codes[frame.alive]] = True
    return [column.values[code] for code in np.flatnonzero(used)]


def _answers(
    frame: host_frame.HostFrame, rows: contract.Rows, function: Callable[[tuple[str, ...]], _T]
) -> tuple[npt.NDArray[np.intp], list[_T]]:
    """Return a number for each of the rows, and the answer that has the number."""
    column = frame.aggregate_sets
    distinct, numbers = np.unique(column.codes[rows], return_inverse=True)
    return numbers, [function(column.values[code]) for code in distinct.tolist()]
