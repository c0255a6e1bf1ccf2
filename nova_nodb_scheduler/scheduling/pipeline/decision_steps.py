# SPDX-License-Identifier: Apache-2.0
"""The order of the steps of a decision, and what of it two requests share.

As Nova 34 does it (nova/scheduler/manager.py, host_manager.py, filters.py):
Placement's candidates; requested, ignored and forced hosts; filters in their
enabled order; weighers in their handler's order. What runs on Nova's own
objects runs after all that runs on columns, so that it sees the fewest hosts.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import candidates, plugin_contract

#: How the counts name what comes before the filters.
PLACEMENT = "placement"
REQUESTED_HOSTS = "requested hosts"
HELD_HOSTS = "hosts held for others"

#: A filter or weigher, or the name of one that only Nova's objects can run.
Filters: TypeAlias = Sequence[plugin_contract.Filter | str]
Weighers: TypeAlias = Sequence[plugin_contract.Weigher | str]


@attrs.frozen
class FilterCount:
    """How many hosts a step was given and how many it left."""

    name: str
    before: int
    after: int


@attrs.frozen(eq=False)
class DecisionSteps:
    """What one request takes.

    :param candidates: None where nothing is claimed (a rebuild)
    :param filters: those on columns that may refuse somebody, with their keys
    :param filters_on_objects: names, in order; one that screens hosts on columns
        before is among ``filters``, too
    :param weighers: those that may tell hosts apart, in order, with their keys;
        a name alone runs on Nova's objects
    """

    request: requests.Request
    candidates: candidates.Candidates | None
    filters: tuple[tuple[plugin_contract.Filter, Hashable], ...]
    filters_on_objects: tuple[str, ...]
    weighers: tuple[tuple[plugin_contract.Weigher, Hashable] | str, ...]

    @functools.cached_property
    def signature(self) -> Hashable:
        """Equal for requests whose columns give equal masks and weights."""
        return (
            self.candidates.key() if self.candidates is not None else None,
            self.request.cells,
            tuple([(own.name, key) for own, key in self.filters]),
            tuple([(own.name, key) for own, key in self.weighers_on_columns]),
        )

    @functools.cached_property
    def weighers_on_columns(self) -> tuple[tuple[plugin_contract.Weigher, Hashable], ...]:
        return tuple([each for each in self.weighers if not isinstance(each, str)])

    @functools.cached_property
    def on_columns(self) -> bool:
        """Whether columns alone decide."""
        return not self.filters_on_objects and len(self.weighers_on_columns) == len(self.weighers)

    @functools.cached_property
    def told_apart(self) -> bool:
        """Whether a weigher may tell hosts apart for the request's own sake.

        Of one that only Nova's objects run nobody here knows what it weighs.
        """
        on_columns = self.weighers_on_columns
        speaking = [own for own, _ in on_columns if own.speaks_for_request]
        return bool(speaking) or len(on_columns) < len(self.weighers)

    def known(
        self, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        """Return True for the rows of hosts that Nova looks at for the request at all."""
        cells = self.request.cells
        in_cell = frame.cell.where(rows, cells.__contains__)
        return frame.alive[rows] & in_cell

    def offered(
        self, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        """Return True for the rows that Placement offers and that have a service."""
        offered: plugin_contract.BoolArray = frame.has_service[rows]
        if self.candidates is None:
            return offered.copy()
        return offered & self.candidates.mask(frame, rows)


def steps(
    filters: Filters,
    weighers: Weighers,
    request: requests.Request,
    frame: host_frame.HostFrame,
    index: int = 0,
) -> DecisionSteps:
    """Say what a request takes; ``index`` counts its servers."""
    on_columns: list[tuple[plugin_contract.Filter, Hashable]] = []
    on_objects: list[str] = []
    for own in () if skips_filters(request) else filters:
        if isinstance(own, str):
            on_objects.append(own)
            continue
        if (index and own.once_per_request) or (request.is_rebuild and not own.on_rebuild):
            continue
        key = own.key(request, frame)
        if key is plugin_contract.OnHostObjects.NEEDED:
            on_objects.append(own.name)
            # Whoever is refused is out for the servers that follow, too, and Nova
            # may change what it asks for these.
            key = None if index else own.screen(request, frame)
        if key is not None:
            on_columns.append((own, key))
    weighing: list[tuple[plugin_contract.Weigher, Hashable] | str] = []
    for each in weighers:
        if isinstance(each, str):
            weighing.append(each)
            continue
        key = each.key(request, frame)
        if key is plugin_contract.OnHostObjects.NEEDED:
            weighing.append(each.name)
        elif key is not None:
            weighing.append((each, key))
    return DecisionSteps(
        request=request,
        candidates=candidates.Candidates(request.queries) if request.queries else None,
        filters=tuple(on_columns),
        filters_on_objects=tuple(on_objects),
        weighers=tuple(weighing),
    )


def skips_filters(request: requests.Request) -> bool:
    """Say whether a request forces hosts so that Nova asks no filter."""
    return bool(request.force_hosts or request.force_nodes) and not request.check_type


def named_rows(
    request: requests.Request, frame: host_frame.HostFrame, trees: list[str] | None
) -> npt.NDArray[np.intp] | None:
    """Return the rows that a request names, ascending; None if it names none.

    :param trees: providers in whose trees they must be besides
    """
    found: set[int] | None = None
    if request.destination is not None and request.destination.host is not None:
        host, node = request.destination.host, request.destination.node
        found = {
            row
            for row in frame.rows_of_name(host)
            if frame.place(row).host == host and (not node or frame.place(row).node == node)
        }
    if request.force_hosts:
        forced = {row for host in request.force_hosts for row in frame.rows_of_name(host)}
        found = forced if found is None else found & forced
    if request.force_nodes:
        nodes = frozenset(request.force_nodes)
        if found is None:
            found = frame.rows_of_nodes(nodes)
        found = {row for row in found if frame.place(row).node in nodes}
    if trees is not None:
        in_trees = {frame.row_of_tree(tree) for tree in trees} - {None}
        found = in_trees if found is None else found & in_trees  # type: ignore[assignment]
    return None if found is None else np.array(sorted(found), np.intp)


def ignored_rows(request: requests.Request, frame: host_frame.HostFrame) -> set[int]:
    """Return the rows that a request must not go to."""
    return {row for host in request.ignore_hosts for row in frame.rows_of_name(host)}


#: By uuid of a compute node that is held: the servers that it is held for.
Holds: TypeAlias = Mapping[str, frozenset[str]]


def held_rows(holds: Holds, request: requests.Request, frame: host_frame.HostFrame) -> set[int]:
    """Return the rows that are held for others than a request's servers.

    None of a request that names its host, for an operator wants it there; nor of one
    that takes no room.
    """
    if not holds or request.queries is None or request.force_hosts or request.force_nodes:
        return set()
    if request.destination is not None and request.destination.host is not None:
        return set()
    rows = (
        frame.row_of(uuid)
        for uuid, servers in holds.items()
        if request.instance_uuid not in servers
    )
    return {row for row in rows if row is not None}
