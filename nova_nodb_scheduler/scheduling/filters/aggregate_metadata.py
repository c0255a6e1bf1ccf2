# SPDX-License-Identifier: Apache-2.0
"""What the aggregates of a host say together.

Hosts in the same aggregates share an answer: it is looked for once for each
set of aggregates that some of the rows are in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from nova_nodb_scheduler.scheduling import contract, host_facts, host_frame

#: Values by key: split at commas, stripped, of all aggregates together.
Metadata: TypeAlias = Mapping[str, frozenset[str]]

_NO_LIMIT = 2**53


def judge(
    frame: host_frame.HostFrame, rows: contract.Rows, passes: Callable[[tuple[str, ...]], bool]
) -> contract.BoolArray:
    """Return what a predicate of aggregates' uuids says of each of the rows."""
    return frame.aggregate_sets.where(rows, passes)


def limits(
    frame: host_frame.HostFrame, rows: contract.Rows, key: str, default: int
) -> contract.FloatArray:
    """Return the least number that the rows' aggregates set, else a default.

    As in Nova one value that is no number makes the default count.
    """

    def limit(uuids: tuple[str, ...]) -> float:
        try:
            least = min(map(int, raw_values(frame, uuids, key)), default=default)
        except ValueError:
            return default
        # Counts of instances are exact in floats, and such a limit is none.
        return max(min(least, _NO_LIMIT), -_NO_LIMIT)

    return frame.aggregate_sets.map(rows, limit)


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


def vocabulary(frame: host_frame.HostFrame) -> Metadata:
    """Return all metadata of all aggregates together."""
    # Each request asks, and aggregates change rarely.
    global _latest
    aggregates, found = _latest
    if aggregates is not frame.aggregates:
        found = merged(frame, tuple(frame.aggregates))
        _latest = frame.aggregates, found
    return found


#: The aggregates of some frame, which are replaced whole, and their vocabulary.
_latest: tuple[Mapping[str, host_facts.Aggregate], Metadata] = ({}, {})


def some_host_in(frame: host_frame.HostFrame, uuids: frozenset[str]) -> bool:
    """Tell whether a host is in one of some aggregates."""
    if not uuids:
        return False
    inside = frame.aggregate_sets.where(slice(None), lambda sets: not uuids.isdisjoint(sets))
    return bool((inside & frame.alive).any())
