# SPDX-License-Identifier: Apache-2.0
"""Which parts of what Placement would be asked refuse how many hosts.

A decision tests all parts at once and keeps one count. Here each is tested by
itself, one after the other: only for somebody who asks why hosts were refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import candidates, decision_steps, plugin_contract

#: Parts that are no resource class.
SERVICE = "service"
BROKEN = "broken provider"
UNMIRRORED = "provider"
TRAITS = "traits"
AGGREGATES = "aggregates"
TREE = "tree"

#: The others stand in the place of the empty name.
_ORDER = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB", "", TRAITS, AGGREGATES, TREE)

_WITHOUT_ROOM = frozenset({TRAITS, AGGREGATES, TREE})

_NOTHING = requests.CandidateQuery(resources={})


def part(name: str) -> str:
    """Return how a part of the step is named among the steps."""
    return f"{decision_steps.PLACEMENT}: {name}"


def of_placement(
    steps: decision_steps.DecisionSteps, frame: host_frame.HostFrame, rows: npt.NDArray[np.intp]
) -> tuple[decision_steps.FilterCount, ...]:
    """Return the parts that refuse somebody, in order, with the hosts before and after.

    Of several queries a host needs one that passes all parts. Use it under the
    engine's lock.

    :param rows: those that the request names, or all, less those it ignores
    """
    rows = rows[steps.known(frame, rows)]
    queries = steps.candidates.queries if steps.candidates is not None else (_NOTHING,)
    passing = np.ones((len(queries), len(rows)), np.bool_)
    counts = []
    before = len(rows)
    for name, masks in _tests(queries, steps.candidates is not None, frame, rows):
        for place, mask in enumerate(masks):
            passing[place] &= mask
        after = int(passing.any(axis=0).sum())
        if after < before:
            counts.append(decision_steps.FilterCount(part(name), before, after))
        before = after
    return tuple(counts)


def but_for_room(
    steps: decision_steps.DecisionSteps, frame: host_frame.HostFrame, rows: npt.NDArray[np.intp]
) -> plugin_contract.BoolArray:
    """Return which of the rows all parts pass but resources. Use it under the engine's lock."""
    known = steps.known(frame, rows) & frame.has_service[rows]
    if steps.candidates is None:
        return known
    passing = np.zeros(len(rows), np.bool_)
    for query in steps.candidates.queries:
        parts = _parts(query)
        own = np.ones(len(rows), np.bool_)
        for name in _WITHOUT_ROOM & parts.keys():
            own &= candidates.Candidates((parts[name],)).mask(frame, rows)
        passing |= own
    return known & passing


def with_parts(
    counts: Sequence[decision_steps.FilterCount], parts: Sequence[decision_steps.FilterCount]
) -> tuple[decision_steps.FilterCount, ...]:
    """Return steps with the parts of the first server's candidates behind their sum."""
    for place, count in enumerate(counts, start=1):
        if count.name == decision_steps.PLACEMENT:
            return (*counts[:place], *parts, *counts[place:])
    return tuple(counts)


def without_candidates(
    counts: Sequence[decision_steps.FilterCount],
) -> tuple[decision_steps.FilterCount, ...]:
    """Return steps in which nobody was asked for candidates: their step looked at services."""
    return tuple(
        attrs.evolve(each, name=SERVICE) if each.name == decision_steps.PLACEMENT else each
        for each in counts
    )


def _tests(
    queries: Sequence[requests.CandidateQuery],
    claims: bool,
    frame: host_frame.HostFrame,
    rows: npt.NDArray[np.intp],
) -> Iterator[tuple[str, list[plugin_contract.BoolArray]]]:
    """Yield each part's name, and for each query which of the rows pass it."""
    yield SERVICE, [frame.has_service[rows]] * len(queries)
    if not claims:
        return
    yield BROKEN, [~np.isin(rows, np.fromiter(frame.broken, np.intp))] * len(queries)
    yield UNMIRRORED, [_mirrored(queries, frame, rows)] * len(queries)
    by_query = [_parts(query) for query in queries]
    for name in sorted({name for parts in by_query for name in parts}, key=_place):
        yield (
            name,
            [
                candidates.Candidates((parts.get(name, _NOTHING),)).mask(frame, rows)
                for parts in by_query
            ],
        )


def _place(name: str) -> tuple[int, str]:
    """Return where a part stands: the usual classes first, and the last parts last."""
    return (_ORDER.index(name) if name in _ORDER else _ORDER.index(""), name)


def _mirrored(
    queries: Sequence[requests.CandidateQuery],
    frame: host_frame.HostFrame,
    rows: npt.NDArray[np.intp],
) -> plugin_contract.BoolArray:
    """Return whether the mirror knows a provider of each row."""
    known = np.zeros(len(rows), np.bool_)
    for name in {name for query in queries for name in query.resources}:
        has = frame.resource(name)
        if has is not None:
            known |= has.capacity[rows] >= 0
    # Few are left: those that have none of what is asked for.
    for place in np.flatnonzero(~known).tolist():
        known[place] = frame.provider(rows.item(place)) is not None
    return known


def _parts(query: requests.CandidateQuery) -> dict[str, requests.CandidateQuery]:
    """Return a query as several, each with one part of it."""
    parts = {
        name: attrs.evolve(_NOTHING, resources={name: amount})
        for name, amount in query.resources.items()
    }
    traits = attrs.evolve(
        _NOTHING,
        required_traits=query.required_traits,
        forbidden_traits=query.forbidden_traits,
        root_required=query.root_required,
        root_forbidden=query.root_forbidden,
    )
    aggregates = attrs.evolve(
        _NOTHING, member_of=query.member_of, forbidden_aggregates=query.forbidden_aggregates
    )
    tree = attrs.evolve(_NOTHING, in_tree=query.in_tree)
    named = {TRAITS: traits, AGGREGATES: aggregates, TREE: tree}
    return parts | {name: own for name, own in named.items() if own != _NOTHING}
