# SPDX-License-Identifier: Apache-2.0
"""Plans a request of Nova's over what is known at present, where columns can answer it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter import (
    host_objects,
    request_allocations,
    request_conversion,
)
from nova_nodb_scheduler.nova_adapter import views as views_module
from nova_nodb_scheduler.scheduling import (
    candidates,
    contract,
    frame_keeper,
    pipeline,
    placing,
    planning,
)
from nova_nodb_scheduler.scheduling import engine as engine_module
from nova_nodb_scheduler.store import namespace_view


class NeedsPlacement(errors.NodbError):
    """The columns cannot say which hosts are candidates: Placement must be asked.

    :param reason: a few words, the same for all requests of a kind
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"Candidates are asked of Placement: {self.reason}."


@attrs.frozen
class Asked:
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
class Parts:
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
    ways: placing.Parts
    placement: request_allocations.Placement
    places: placing.Places
    generation: Callable[[], int]
    claims: Callable[[], namespace_view.NamespaceView]

    def request(
        self, spec: Any, queries: tuple[requests.CandidateQuery, ...] | None
    ) -> requests.Request:
        """Return what columns are asked for a RequestSpec, over the cells enabled now."""
        enabled = [str(cell.uuid) for cell in self.host_manager.enabled_cells]
        return request_conversion.request(spec, queries, enabled)


class Planner:
    """Plans one request over the present, as :class:`placing.Planner` has it.

    :ivar first_counts: of the latest plan, before any server was placed
    :ivar planned_on: a snapshot that the latest plan is no older than
    :ivar leaves_out: whether it lacks a host that the request might have gone to,
        for a record of it cannot be understood
    """

    def __init__(
        self,
        parts: Parts,
        asked: Asked,
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
        self.first_counts: tuple[pipeline.FilterCount, ...] = ()
        self.leaves_out = False
        self.planned_on = parts.placement.chosen.snapshot()

    def plan(self, group_hosts: frozenset[str]) -> planning.Plan:
        """See :class:`placing.Planner`.

        :raises NeedsPlacement: see there
        """
        # A store that is being built anew lacks hosts, and servers of groups.
        self._check_whole()
        self.planned_on = self._parts.placement.chosen.snapshot()
        self._parts.keeper.catch_up(self._now())
        self._check_whole()
        engine = self._parts.engine
        with engine.lock:
            self.leaves_out = self._parts.keeper.left_out(self.request) is not None
            for query in self._asked.queries or ():
                reason = candidates.outside(query, engine.frame)
                if reason is not None:
                    raise NeedsPlacement(reason)
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

    def placement_parts(self) -> tuple[pipeline.FilterCount, ...]:
        """Return which parts of Placement's question refuse how many hosts now."""
        return self._parts.engine.placement_parts(self.request)

    def about(self, consumer: str) -> None:
        """Name the server; as in Nova, filters that look at it see the one they are asked about."""
        spec = self._asked.spec
        spec.instance_uuid = consumer
        spec.obj_reset_changes(["instance_uuid"])

    def _check_whole(self) -> None:
        """Refuse a store other than the one that the view was proved on, and other cells.

        :raises NeedsPlacement: it began to be built anew meanwhile, or a cell was enabled
            after the request was judged
        """
        if self._parts.generation() != self._view.reads.generation:
            raise NeedsPlacement("states not proved")
        if not self._view.serves_all(self.request.cells):
            raise NeedsPlacement("states not proved")

    # -- what Nova's own filters need ---------------------------------------------

    def _make_objects(self) -> host_objects.HostObjects:
        return host_objects.HostObjects(
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

    def _candidates_of(self, uuid: str) -> Sequence[contract.AllocationRequest]:
        return self._parts.engine.allocation_requests(self.request, uuid)
