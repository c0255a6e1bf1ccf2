# SPDX-License-Identifier: Apache-2.0
"""Decides a request from memory: choose, hold the room, have it allocated, answer.

Nova's own manager has run its request filters and made its resource request;
what it then does in _schedule is done here over columns, with Nova's results.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
from nova import exception as nova_exception
from nova.i18n import _

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter import (
    decision_log,
    host_objects,
    request_allocations,
    request_conversion,
    selections,
)
from nova_nodb_scheduler.nova_adapter import views as views_module
from nova_nodb_scheduler.scheduling import (
    candidates,
    choice,
    contract,
    frame_keeper,
    pipeline,
    placing,
    planning,
    refusals,
)
from nova_nodb_scheduler.scheduling import engine as engine_module

LOG = logging.getLogger(__name__)


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
    """

    host_manager: Any
    engine: engine_module.Engine
    keeper: frame_keeper.FrameKeeper
    ways: placing.Parts
    placement: request_allocations.Placement
    places: placing.Places
    generation: Callable[[], int]


class Decider:
    """One worker's decisions. Any thread.

    :param proved_full: asked before NoValidHost is said, with when the decision
        began: True if no host's record was behind Placement, False if some were
        and are known better now; raises NeedsPlacement where nobody can tell
    :param deadline_seconds: how long a request's claims may take
    """

    def __init__(
        self,
        parts: Parts,
        proved_full: Callable[[Asked, float], bool],
        *,
        deadline_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.parts = parts
        self._proved_full = proved_full
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._now = now

    def schedule(self, asked: Asked, view: views_module.RequestView) -> list[list[Any]]:
        """Return for each server its Selection and the alternates.

        :raises NoValidHost: on proved state only
        :raises NeedsPlacement: see there; nothing was allocated
        """
        deadline = self._clock() + self._deadline_seconds
        while True:
            decided_at = self._clock()
            decision = _Decision(self.parts, asked, view, deadline, self._now)
            writes = asked.queries is not None
            with self.parts.placement.writer.coming() if writes else contextlib.nullcontext():
                selections = decision.decide()
            if selections is not None:
                return selections
            if decision.given_up:
                # That hosts are full was not what ended it.
                raise NeedsPlacement("claims not answered in time")
            if decision.leaves_out:
                raise NeedsPlacement("unreadable records")
            if asked.queries is None or self._is_proved(asked, decided_at):
                decision.log_refusal()
                raise nova_exception.NoValidHost(reason=_("There are not enough hosts available."))
            if self._clock() > deadline:
                raise NeedsPlacement("mirror behind")

    def _is_proved(self, asked: Asked, decided_at: float) -> bool:
        try:
            return self._proved_full(asked, decided_at)
        except NeedsPlacement:
            raise
        except Exception as error:
            LOG.exception("Whether hosts are full cannot be proved; Placement is asked instead.")
            raise NeedsPlacement("fault of the plugin") from error

    def explain(
        self, asked: Asked, view: views_module.RequestView
    ) -> tuple[planning.Plan, tuple[pipeline.FilterCount, ...]]:
        """Plan a request, and do no more: nothing is held or allocated.

        :returns: the plan, and which parts of Placement's question refuse how many hosts
        :raises NeedsPlacement: see there
        """
        planner = _Planner(self.parts, asked, view, self._now, explain=True)
        return planner.plan(frozenset()), planner.placement_parts()


class _Planner:
    """Plans one request over the present, as :class:`placing.Planner` has it.

    :ivar first_counts: of the latest plan, before any server was placed
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
        enabled = [str(cell.uuid) for cell in parts.host_manager.enabled_cells]
        self.request = request_conversion.request(asked.spec, asked.queries, enabled)
        self.objects = self._make_objects()
        self.first_counts: tuple[pipeline.FilterCount, ...] = ()
        self.leaves_out = False

    def plan(self, group_hosts: frozenset[str]) -> planning.Plan:
        """See :class:`placing.Planner`.

        :raises NeedsPlacement: see there
        """
        # A store that is being built anew lacks hosts, and servers of groups.
        self._check_whole()
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
        """Refuse a store other than the one that the view was proved on.

        :raises NeedsPlacement: it began to be built anew meanwhile
        """
        if self._parts.generation() != self._view.reads.generation:
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


class _Decision:
    """One request's way from its plan to Nova's answer."""

    def __init__(
        self,
        parts: Parts,
        asked: Asked,
        view: views_module.RequestView,
        deadline: float,
        now: Callable[[], float],
    ) -> None:
        self._asked = asked
        self._view = view
        group = asked.spec.instance_group if "instance_group" in asked.spec else None
        self._group_hosts = list(group.hosts) if group and "hosts" in group else None
        self._planner = _Planner(parts, asked, view, now)
        self._placing = placing.Placing(
            parts.ways,
            self._planner.request,
            asked.instance_uuids,
            self._planner,
            request_allocations.RequestAllocations(parts.placement, asked.context, asked.spec),
            view.trace,
            parts.places,
            deadline,
        )

    @property
    def given_up(self) -> bool:
        """Whether a claim was not answered in time, or Placement cannot be asked."""
        return self._placing.given_up

    @property
    def leaves_out(self) -> bool:
        """See :class:`_Planner`."""
        return self._planner.leaves_out

    def decide(self) -> list[list[Any]] | None:
        """Choose and claim for all servers, and answer; None if there is not room for all.

        Whatever way it fails, nothing is left allocated or held.

        :raises NeedsPlacement: for a fault of ours, which is logged
        """
        answer = None
        try:
            chosen = self._placing.place()
            self._note(chosen)
            if chosen is not None:
                answer = self._selections(chosen)
        except (nova_exception.NovaException, NeedsPlacement):
            raise
        except placing.Unclaimable as error:
            LOG.warning(
                "No host can be claimed; Placement is asked instead: %(error)s", {"error": error}
            )
            raise NeedsPlacement("claims unavailable") from error
        except Exception as error:
            if error is self._planner.objects.raised:
                raise
            LOG.exception("The choice in memory failed; Placement is asked instead.")
            raise NeedsPlacement("fault of the plugin") from error
        finally:
            if answer is None:
                self._placing.undo()
                self._restore_group()
        return answer

    def _restore_group(self) -> None:
        """Take the hosts that were chosen out of the request's group again.

        Host states put them there, as Nova's do; whoever decides next is not
        to find them.
        """
        if self._group_hosts is not None:
            group = self._asked.spec.instance_group
            group.hosts = self._group_hosts
            group.obj_reset_changes(["hosts"])

    # -- answering --------------------------------------------------------------------

    def _selections(self, chosen: Sequence[choice.Choice]) -> list[list[Any]]:
        """Return the choices, each with its alternates, as Nova's Selections."""
        alternates = self._placing.plan.alternates(chosen, self._asked.alternates)
        return [
            [self._selection(each) for each in (choice, *others)]
            for choice, others in zip(chosen, alternates, strict=True)
        ]

    def _selection(self, choice: choice.Choice) -> Any:
        claims = self._asked.queries is not None
        return selections.selection(
            choice,
            choice.allocation_requests[0] if claims else None,
            self._asked.version if claims else None,
            self._planner.objects.limits(choice.uuid),
            self._view.reads.aggregates_of_host,
        )

    def _note(self, chosen: Sequence[choice.Choice] | None) -> None:
        """Tell the request's trace how the plan went."""
        self._view.trace.counts = decision_log.counts_of(
            self._planner.first_counts, self._placing.plan, is_placed=chosen is not None
        )
        if chosen is not None:
            servers = self._asked.instance_uuids
            self._view.trace.chosen = dict(zip(servers, chosen, strict=True))

    def log_refusal(self) -> None:
        """Say in one line which step left how many hosts, and which were refused."""
        servers = self._asked.instance_uuids
        trace = self._view.trace
        try:
            # Counted only now, for it costs more than the decision.
            parts = self._planner.placement_parts()
            trace.counts = refusals.with_parts(trace.counts, parts)
        except Exception:
            LOG.exception("What of its candidates refused hosts cannot be told.")
        LOG.info(
            "No valid host for server %(server)s, one of %(servers)d in the request: %(trace)s.",
            {
                "server": self._asked.spec.instance_uuid,
                "servers": len(servers),
                "trace": trace.text(),
            },
        )
