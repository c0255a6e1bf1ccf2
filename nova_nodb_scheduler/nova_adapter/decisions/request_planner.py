# SPDX-License-Identifier: Apache-2.0
"""Plans a request of Nova's over what is known at present, where columns can answer it.

Which scopes a request's answer rests on: those are judged, and no others.

A server that may not leave its cell is decided by that cell's states, enabled
or not (operators disable a cell to keep new servers out, and move within it);
what other cells lack is none of its concern.

One log line for a request that found no host among candidates of Placement itself.

Nova's own code filtered them one by one and kept no counts. The columns know
most of the hosts and filters, and tell how many each leaves.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter import decision_log
from nova_nodb_scheduler.nova_adapter.conversion import request_conversion
from nova_nodb_scheduler.nova_adapter.decisions import host_objects, request_allocations
from nova_nodb_scheduler.nova_adapter.reads import request_views as views_module
from nova_nodb_scheduler.nova_adapter.reporting import scopes
from nova_nodb_scheduler.scheduling.facts import frame_keeper
from nova_nodb_scheduler.scheduling.pipeline import (
    candidates,
    decision_steps,
    placing,
    planning,
    plugin_contract,
)
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.store import store_snapshot


def scopes_of_request(
    spec: Any, enabled_cells: Collection[str], all_cells: Collection[str]
) -> tuple[str, ...]:
    """Return the scopes that a choice for a RequestSpec looks at.

    :param spec: None where it is not known yet: the request may go anywhere
    :param all_cells: uuids of all cells but cell0
    """
    if spec is None:
        return (*sorted({*enabled_cells, *all_cells}), scopes.API)
    destination = request_conversion.destination(spec)
    cells = set(request_conversion.cells(destination, enabled_cells))
    if destination is not None and destination.cell:
        # Where a server stands that may leave its cell: its claims there stay.
        cells.add(destination.cell)
    return (*sorted(cells), scopes.API)


class MemoryCannotDecide(errors.NodbError):
    """The columns cannot say which hosts are candidates: Placement must be asked.

    :param reason: a few words, the same for all requests of a kind
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"Candidates are asked of Placement: {self.reason}."


@attrs.frozen
class ScheduleCall:
    """What Nova hands to _schedule, as far as memory needs it.

    :param queries: what Placement would be asked; None for a rebuild
    :param alternates: how many for each server
    """

    context: Any
    spec: Any
    instance_uuids: Sequence[str]
    queries: tuple[requests.CandidateQuery, ...] | None
    version: str | None
    alternates: int


@attrs.frozen
class DecisionEngine:
    """What decides in one worker.

    :param host_manager: Nova's, ours in its place
    :param ways: how it places: what holds room and claims
    :param placement: what writes allocations
    :param places: (cell, host) of each place where the store knows a server: one
        that it knows moves, and may have allocations
    :param generation: grows when the store begins to be built anew
    :param claims: claim records as the store has them now
    """

    host_manager: Any
    engine: engine_module.Engine
    keeper: frame_keeper.FrameKeeper
    ways: placing.PlacingParts
    placement: request_allocations.AllocationAccess
    places: placing.Places
    generation: Callable[[], int]
    claims: Callable[[], store_snapshot.NamespaceView]

    def request(
        self, spec: Any, queries: tuple[requests.CandidateQuery, ...] | None
    ) -> requests.Request:
        """Return what columns are asked for a RequestSpec, over the cells enabled now."""
        enabled = [str(cell.uuid) for cell in self.host_manager.enabled_cells]
        return request_conversion.request(spec, queries, enabled)


class RequestPlanner:
    """Plans one request over the present, as :class:`placing.PlanMaker` has it.

    :ivar first_counts: of the latest plan, before any server was placed
    :ivar planned_on: a snapshot that the latest plan is no older than
    :ivar leaves_out: whether it lacks a host that the request might have gone to,
        for a record of it cannot be understood
    """

    def __init__(
        self,
        parts: DecisionEngine,
        asked: ScheduleCall,
        view: views_module.RequestView,
        now: Callable[[], float],
        *,
        explain: bool = False,
    ) -> None:
        self._parts = parts
        self._asked = asked
        self._view = view
        self._now = now
        self._explain = explain
        self.request = parts.request(asked.spec, asked.queries)
        self.objects = self._make_objects()
        self.first_counts: tuple[decision_steps.FilterCount, ...] = ()
        self.leaves_out = False
        self.planned_on = parts.placement.chosen.snapshot()

    def plan(self, group_hosts: frozenset[str]) -> planning.Plan:
        """See :class:`placing.PlanMaker`.

        :raises MemoryCannotDecide: see there
        """
        # A store that is being built anew lacks hosts, and servers of groups.
        self._check_whole()
        self.planned_on = self._parts.placement.chosen.snapshot()
        self._parts.keeper.catch_up(self._now())
        self._check_whole()
        engine = self._parts.engine
        with engine.lock:
            self.leaves_out = (
                self._parts.keeper.left_out(
                    functools.partial(candidates.may_be_elsewhere, self.request)
                )
                is not None
            )
            for query in self._asked.queries or ():
                reason = candidates.outside(query, engine.frame)
                if reason is not None:
                    raise MemoryCannotDecide(reason)
        request = self.request
        if group_hosts:
            request = placing.with_group_hosts(request, group_hosts)
            self._tell_objects(request)
        made = engine.plan(
            request,
            self.objects,
            servers=len(self._asked.instance_uuids),
            explain=self._explain,
        )
        self.first_counts = made.counts
        return made

    def placement_parts(self) -> tuple[decision_steps.FilterCount, ...]:
        """Return which parts of Placement's question refuse how many hosts now."""
        return self._parts.engine.placement_parts(self.request)

    def about(self, consumer: str) -> None:
        """Name the server; as in Nova, filters that look at it see the one they are asked about."""
        spec = self._asked.spec
        spec.instance_uuid = consumer
        spec.obj_reset_changes(["instance_uuid"])

    def _check_whole(self) -> None:
        """Refuse a store other than the one that the view was proved on, and other cells.

        :raises MemoryCannotDecide: it began to be built anew meanwhile, or a cell was enabled
            after the request was judged
        """
        if self._parts.generation() != self._view.reads.generation:
            raise MemoryCannotDecide("states not proved")
        if not self._view.serves_all(self.request.cells):
            raise MemoryCannotDecide("states not proved")

    # -- what Nova's own filters need ---------------------------------------------

    def _make_objects(self) -> host_objects.NovaHostObjects:
        return host_objects.NovaHostObjects(
            self._parts.host_manager, self._asked.spec, self._make_states, self._candidates_of
        )

    def _tell_objects(self, request: requests.Request) -> None:
        """Have Nova's own filters see where the group is, and hosts as they are now."""
        group = self._asked.spec.instance_group
        if request.group is not None:
            group.hosts = sorted(request.group.hosts)
            group.obj_reset_changes(["hosts"])
        self.objects = self._make_objects()

    def _make_states(self, uuids: Collection[str]) -> dict[str, Any]:
        engine = self._parts.engine
        with engine.lock:
            rows = {uuid: engine.frame.row_of(uuid) for uuid in uuids}
            uuid_of = {
                (engine.frame.facts(row).host, engine.frame.facts(row).node): uuid
                for uuid, row in rows.items()
                if row is not None
            }
        states = self._parts.host_manager.get_host_states_by_uuids(
            self._asked.context, list(uuids), self._asked.spec
        )
        return {
            uuid_of[state.host, state.nodename]: state
            for state in states
            if (state.host, state.nodename) in uuid_of
        }

    def _candidates_of(self, uuid: str) -> Sequence[plugin_contract.AllocationRequest]:
        return self._parts.engine.allocation_requests(self.request, uuid)


LOG = logging.getLogger(__name__)


def log_refusal(
    parts: DecisionEngine | None,
    trace: decision_log.DecisionTrace,
    spec: Any,
    offered: Sequence[str],
    reason: str,
) -> None:
    """Log the line and have the trace keep its counts; never raises.

    Called once it is known that nobody is left: what is counted is of then.

    :param parts: None where what the columns know may be old: then nothing is counted
    :param offered: the providers of Placement's answer; empty where it had none
    :param reason: why Placement was asked
    """
    counts: tuple[decision_steps.FilterCount, ...] = ()
    uncounted: tuple[str, ...] = ()
    if parts is not None:
        try:
            counts, uncounted = _counts(parts, spec, offered)
            trace.counts = counts
        except Exception:
            LOG.exception("Which filters refused Placement's candidates cannot be told.")
    LOG.info(
        "No valid host for server %(server)s, one of %(servers)d in the request. Placement was "
        "asked (%(reason)s) and offered %(offered)d providers%(counts)s%(uncounted)s.",
        {
            "server": spec.instance_uuid if "instance_uuid" in spec else None,
            "servers": len(trace.servers),
            "reason": reason,
            "offered": len(offered),
            "counts": f": {trace.text()}" if counts else "",
            "uncounted": f"; not counted: {', '.join(uncounted)}" if uncounted else "",
        },
    )


def _counts(
    parts: DecisionEngine, spec: Any, offered: Sequence[str]
) -> tuple[tuple[decision_steps.FilterCount, ...], tuple[str, ...]]:
    parts.keeper.catch_up(time.time())
    return parts.engine.counts_among(parts.request(spec, None), offered)
