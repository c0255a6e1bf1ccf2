# SPDX-License-Identifier: Apache-2.0
"""Placement's allocation candidates, from the columns that mirror it.

Covers one unsuffixed request group on trees where only the root has what is
asked for; :func:`outside` says when that does not hold. There Placement 16
asks of the root: room for each amount within capacity and units, all required
and no forbidden traits, an aggregate of each ``member_of`` set and none of the
forbidden ones (placement/objects/research_context.py; an aggregate of a root
spans its tree, so children add nothing).

Of a host that the frame leaves out some record cannot be understood. Its name and
cell are known all the same, and with them what the request itself rules out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Hashable

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

#: Rows up to which one by one is faster than array by array.
_FEW_ROWS = 8

#: Traits that exist only where somebody made them.
_CUSTOM = "CUSTOM_"


class Candidates:
    """Which hosts Placement would offer for some queries, asked one after the other."""

    def __init__(self, queries: tuple[requests.CandidateQuery, ...]) -> None:
        self.queries = queries

    def key(self) -> Hashable:
        """Return what decides besides the rows."""
        return self.queries

    def trees(self) -> list[str] | None:
        """Return the providers in whose trees hosts must be; None if a query takes any."""
        trees = [query.in_tree for query in self.queries]
        named = [tree for tree in trees if tree is not None]
        return named if len(named) == len(trees) else None

    def mask(
        self, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        """Return True for each of the rows that at least one query offers."""
        passes = self._passes(self.queries[0], frame, rows)
        for query in self.queries[1:]:
            passes |= self._passes(query, frame, rows)
        return passes

    def allocation_requests(
        self, frame: host_frame.HostFrame, row: int, *, passed: bool = False
    ) -> tuple[plugin_contract.AllocationRequest, ...]:
        """Return a row's allocation requests, in the order of the queries.

        :param passed: at least one query is known to offer the row
        """
        uuid = frame.place(row).uuid
        if passed and len(self.queries) == 1:
            return (allocation_request(self.queries[0], uuid),)
        return tuple(
            [
                allocation_request(query, uuid)
                for query in self.queries
                if _offers_row(query, frame, row)
            ]
        )

    def offer_row(self, frame: host_frame.HostFrame, row: int) -> bool:
        """Say whether at least one query offers a row."""
        return any(_offers_row(query, frame, row) for query in self.queries)

    def has_room(self, frame: host_frame.HostFrame, row: int, place: int) -> bool:
        """Say whether the query at a place still offers a row."""
        return _offers_row(self.queries[place], frame, row)

    def offers(
        self, frame: host_frame.HostFrame, rows: npt.NDArray[np.intp]
    ) -> plugin_contract.BoolArray:
        """Return which queries offer each row, shape (queries, rows)."""
        return np.array([self._passes(query, frame, rows) for query in self.queries], np.bool_)

    def _passes(
        self,
        query: requests.CandidateQuery,
        frame: host_frame.HostFrame,
        rows: plugin_contract.Rows,
    ) -> plugin_contract.BoolArray:
        if not isinstance(rows, slice) and len(rows) <= _FEW_ROWS:
            return np.array([_offers_row(query, frame, row) for row in rows.tolist()], np.bool_)
        passes = _room(query, frame, rows)
        wanted = query.required_traits | query.root_required
        unwanted = query.forbidden_traits | query.root_forbidden
        if wanted or unwanted:
            passes &= frame.traits.where(rows, functools.partial(_has_traits, wanted, unwanted))
        if query.member_of or query.forbidden_aggregates:
            passes &= frame.provider_aggregates.where(rows, query.admits)
        if query.in_tree is not None:
            row = frame.row_of_tree(query.in_tree)
            numbers = np.arange(frame.rows)[rows] if isinstance(rows, slice) else rows
            passes &= numbers == (-1 if row is None else row)
        return passes


def allocation_request(
    query: requests.CandidateQuery, provider: str
) -> plugin_contract.AllocationRequest:
    """Return what Placement would answer where one provider gives all."""
    return {
        "allocations": {provider: {"resources": dict(query.resources)}},
        "mappings": {"": [provider]},
    }


def outside(query: requests.CandidateQuery, frame: host_frame.HostFrame) -> str | None:
    """Return why Placement itself must be asked; None if the columns can tell.

    A host without a provider in the mirror is no candidate, as one without a
    provider in Placement is none. That it has one since is found like room that
    was freed: before "no valid host" is said. So are hosts whose provider breaks
    the model (:func:`any_broken`): one of them in a cloud of thousands must not
    send every request to Placement.
    """
    resources = query.resources
    if any(count > 0 and name in resources for name, count in frame.nested.items()):
        return "nested"
    if any(not shared.isdisjoint(resources) for shared in frame.sharing.values()):
        return "sharing"
    forbidden = query.forbidden_traits | query.root_forbidden
    for trait in forbidden:
        # Placement refuses a query that names a trait it never heard of.
        if trait.startswith(_CUSTOM) and not any(map(_holds(trait), frame.traits.values)):
            return "unknown trait"
    return None


def _holds(trait: str) -> Callable[[frozenset[str]], bool]:
    return lambda traits: trait in traits


def any_broken(frame: host_frame.HostFrame, cells: Container[str]) -> bool:
    """Say whether some cells have a host of which only Placement can tell."""
    return any(frame.has_service[row] and frame.place(row).cell in cells for row in frame.broken)


def _room(
    query: requests.CandidateQuery, frame: host_frame.HostFrame, rows: plugin_contract.Rows
) -> plugin_contract.BoolArray:
    passes: plugin_contract.BoolArray = frame.alive[rows].copy()
    for name, amount in query.resources.items():
        has = frame.resource(name)
        if has is None:
            return np.zeros_like(passes)
        passes &= has.used[rows] + amount <= has.capacity[rows]
        if has.admits(amount):
            continue
        passes &= has.min_unit[rows] <= amount
        passes &= has.max_unit[rows] >= amount
        if (step := has.step_size[rows]).max(initial=1) > 1:
            passes &= amount % np.maximum(step, 1) == 0
    return passes


def _offers_row(query: requests.CandidateQuery, frame: host_frame.HostFrame, row: int) -> bool:
    """Say of one row what the columns say of many."""
    if not _room_in_row(query, frame, row):
        return False
    wanted = query.required_traits | query.root_required
    unwanted = query.forbidden_traits | query.root_forbidden
    if (wanted or unwanted) and not _has_traits(wanted, unwanted, frame.traits.value(row)):
        return False
    if (query.member_of or query.forbidden_aggregates) and not query.admits(
        frame.provider_aggregates.value(row)
    ):
        return False
    return query.in_tree is None or frame.row_of_tree(query.in_tree) == row


def _has_traits(wanted: frozenset[str], unwanted: frozenset[str], traits: frozenset[str]) -> bool:
    return wanted <= traits and unwanted.isdisjoint(traits)


def _room_in_row(query: requests.CandidateQuery, frame: host_frame.HostFrame, row: int) -> bool:
    if not frame.alive.item(row):
        return False
    for name, amount in query.resources.items():
        has = frame.resource(name)
        if has is None:
            return False
        capacity, used, least, greatest, step = has.row(row)
        if used + amount > capacity or not least <= amount <= greatest or amount % max(step, 1):
            return False
    return True


def may_be_elsewhere(
    request: requests.Request,
    frame: host_frame.HostFrame,
    uuid: str,
    place: tuple[str, str] | None,
) -> bool:
    """Return False where the request names other hosts only, or rules this one out.

    :param uuid: of the compute node
    :param place: (cell, host); None where not even that is known
    """
    if request.queries:
        trees = Candidates(request.queries).trees()
        # Who is in the frame is another host; of a child nobody knows whose it is.
        if trees is not None and all(
            tree != uuid and frame.row_of_tree(tree) is not None for tree in trees
        ):
            return False
    if place is None:
        return True
    cell, host = place
    if cell not in request.cells or _is_among(host, request.ignore_hosts):
        return False
    destination = request.destination
    if destination is not None and destination.host not in (None, host):
        return False
    return not request.force_hosts or _is_among(host, request.force_hosts)


def _is_among(host: str, names: tuple[str, ...]) -> bool:
    return host.lower() in map(str.lower, names)
