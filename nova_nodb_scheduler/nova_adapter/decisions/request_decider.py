# SPDX-License-Identifier: Apache-2.0
"""Decides a request from memory: plan, choose, hold the room, have it allocated, answer.

Nova's own manager has run its request filters and made its resource request;
what it then does in _schedule is done here over columns, with Nova's results.
A request is planned over what is known at present. Only the scopes that its
answer rests on are judged: a server that may not leave its cell is decided by
that cell's states, enabled or not (operators disable a cell to keep new servers
out, and move within it); what other cells lack is none of its concern.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
from nova import exception as nova_exception
from nova.i18n import _
from nova.objects import base as nova_base

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter import decision_log
from nova_nodb_scheduler.nova_adapter.conversion import request_conversion
from nova_nodb_scheduler.nova_adapter.decisions import host_objects, request_allocations
from nova_nodb_scheduler.nova_adapter.placement.mirror import chosen_trees, placement_reader
from nova_nodb_scheduler.nova_adapter.reads import request_views as views_module
from nova_nodb_scheduler.nova_adapter.reporting import scopes
from nova_nodb_scheduler.scheduling.facts import frame_keeper
from nova_nodb_scheduler.scheduling.pipeline import (
    candidates,
    chosen_hosts,
    decision_steps,
    placing,
    planning,
    plugin_contract,
    refusal_counts,
)
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.synchronizer.settlement import pending_waits

LOG = logging.getLogger(__name__)

#: How long it is tried to remove what is left of a request, before it goes another way:
#: a Placement that starts anew takes some seconds.
_ENDING_SECONDS = 10.0


#: Where a RequestSpec keeps the server it is about.
_SERVER = nova_base.get_attrname("instance_uuid")


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
    """What one worker decides requests with.

    :param host_manager: Nova's, ours in its place
    :param ways: how it places: what holds room and claims
    :param placement: what writes allocations
    :param places: (cell, host) of each place where the store knows a server: one
        that it knows moves, and may have allocations
    :param generation: grows when the store begins to be built anew
    :param snapshot: names the store's present
    """

    host_manager: Any
    engine: engine_module.Engine
    keeper: frame_keeper.FrameKeeper
    ways: placing.PlacingParts
    placement: request_allocations.AllocationAccess
    places: placing.Places
    generation: Callable[[], int]
    snapshot: Callable[[], store_snapshot.Snapshot]

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
        self._asked = asked
        self._spec = asked.spec
        self._keeper = parts.keeper
        self._engine = parts.engine
        self._host_manager = parts.host_manager
        self._generation = parts.generation
        self._snapshot = parts.snapshot
        self._view = view
        self._now = now
        self._explain = explain
        self.request = parts.request(asked.spec, asked.queries)
        self.objects = self._make_objects()
        self.first_counts: tuple[decision_steps.FilterCount, ...] = ()
        self._left_out = False
        self.planned_on = parts.snapshot()

    def plan(
        self,
        group_hosts: frozenset[str],
        *,
        among: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> planning.Plan:
        """See :class:`placing.PlanMaker`.

        :param among: uuids of the only hosts to look at; None for all
        :param without: uuids of hosts that are left out besides
        :raises MemoryCannotDecide: see there
        """
        # A store that is being built anew lacks hosts, and servers of groups.
        self.check()
        self.planned_on = self._snapshot()
        self._keeper.catch_up(self._now())
        self._check_whole()
        engine = self._engine
        with engine.lock:
            self._left_out = self._is_left_out()
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
            among=among,
            without=without,
        )
        self.first_counts = made.counts
        return made

    @property
    def leaves_out(self) -> bool:
        """Whether the latest plan may lack a host that the request might have gone to.

        For a record of it cannot be understood, or could not when the plan was begun: the
        plan looks at hosts again as long as it is asked for more.
        """
        return self._left_out or self._is_left_out()

    def _is_left_out(self) -> bool:
        elsewhere = functools.partial(candidates.may_be_elsewhere, self.request)
        return self._keeper.left_out(elsewhere) is not None

    def placement_parts(self) -> tuple[decision_steps.FilterCount, ...]:
        """Return which parts of Placement's question refuse how many hosts now."""
        return self._engine.placement_parts(self.request)

    def about(self, consumer: str) -> None:
        """Name the server; as in Nova, filters that look at it see the one they are asked about."""
        spec = self._spec
        if vars(spec).get(_SERVER) != consumer:
            spec.instance_uuid = consumer
        if "instance_uuid" in spec._changed_fields:
            spec.obj_reset_changes(["instance_uuid"])

    @property
    def server(self) -> str:
        """The server that was named last."""
        return str(self._spec.instance_uuid)

    def check(self) -> None:
        """Refuse a store other than the one that the view was proved on.

        All requests share the hosts that plans look at: one that finds out later that it may
        not decide has brought them to what there is of it.

        :raises MemoryCannotDecide: it began to be built anew meanwhile
        """
        seen = self._view.reads
        if self._generation() != seen.generation:
            raise MemoryCannotDecide("states not proved")

    def _check_whole(self) -> None:
        """The same, and refuse other cells than those that were proved.

        :raises MemoryCannotDecide: a cell was enabled after the request was judged
        """
        self.check()
        if not self._view.serves_all(self.request.cells):
            raise MemoryCannotDecide("states not proved")

    # -- what Nova's own filters need ---------------------------------------------

    def _make_objects(self) -> host_objects.NovaHostObjects:
        return host_objects.NovaHostObjects(
            self._host_manager, self._spec, self._make_states, self._candidates_of
        )

    def _tell_objects(self, request: requests.Request) -> None:
        """Have Nova's own filters see where the group is, and hosts as they are now."""
        group = self._spec.instance_group
        if request.group is not None:
            group.hosts = sorted(request.group.hosts)
            group.obj_reset_changes(["hosts"])
        self.objects = self._make_objects()

    def _make_states(self, uuids: Collection[str]) -> dict[str, Any]:
        engine = self._engine
        with engine.lock:
            rows = {uuid: engine.frame.row_of(uuid) for uuid in uuids}
            uuid_of = {
                (engine.frame.facts(row).host, engine.frame.facts(row).node): uuid
                for uuid, row in rows.items()
                if row is not None
            }
        states = self._host_manager.get_host_states_by_uuids(
            self._asked.context, list(uuids), self._spec
        )
        return {
            uuid_of[state.host, state.nodename]: state
            for state in states
            if (state.host, state.nodename) in uuid_of
        }

    def _candidates_of(self, uuid: str) -> Sequence[plugin_contract.AllocationRequest]:
        return self._engine.allocation_requests(self.request, uuid)


class FullHosts(enum.Enum):
    """What is known of hosts that a request was refused."""

    #: They were full.
    PROVED = "proved"
    #: By what is known now they are: who is refused by that, or by later, is for good.
    ONCE_MORE = "once more"
    #: Some were judged by what is over. What else is, is to be proved anew.
    CHANGED = "changed"
    #: Others held some of their room for a while: it may be free.
    WAITED = "waited"


#: See :class:`RequestDecider`.
ProvedFull = Callable[
    [
        ScheduleCall,
        float,
        store_snapshot.NamespaceView,
        store_snapshot.Snapshot,
        frozenset[str],
        pending_waits.RequestWait,
    ],
    FullHosts,
]


class RequestDecider:
    """One worker's decisions. Any thread.

    :param proved_full: asked before NoValidHost is said, with when the decision
        began, the claims of before, a snapshot that it was no older than, the
        hosts that took some of the servers, and what the request waits by: whether no
        host's record was behind Placement and no claim kept a host full for nothing, or
        may yet be given back; what was so is known better now. Raises
        MemoryCannotDecide where nobody can tell
    :param begin_waiting: makes what a request waits by
    :param deadline_seconds: how long a request's claims may take
    """

    def __init__(
        self,
        parts: DecisionEngine,
        proved_full: ProvedFull,
        begin_waiting: Callable[[], pending_waits.RequestWait],
        *,
        deadline_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.parts = parts
        self._writer = parts.placement.writer
        self._proved_full = proved_full
        self._begin_waiting = begin_waiting
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._now = now

    def schedule(self, asked: ScheduleCall, view: views_module.RequestView) -> list[list[Any]]:
        """Return for each server its Selection and the alternates.

        :raises NoValidHost: on proved state only
        :raises MemoryCannotDecide: see there; nothing is allocated
        :raises AllocationUpdateFailed: Nova's own: something may be, for Placement did
            not answer
        """
        deadline = self._clock() + self._deadline_seconds
        # As the host states have them; the columns are as new or newer.
        claims = view.reads.claims
        waiting = self._begin_waiting()
        found = FullHosts.CHANGED
        while True:
            decided_at = self._clock()
            decision = _Decision(self.parts, asked, view, deadline, self._now)
            writes = asked.queries is not None
            with self._writer.coming() if writes else contextlib.nullcontext():
                try:
                    selections = decision.decide()
                except MemoryCannotDecide:
                    decision.end_left(self._clock() + _ENDING_SECONDS)
                    raise
                except Exception:
                    # It is the answer: nobody goes on elsewhere.
                    with contextlib.suppress(nova_exception.AllocationUpdateFailed):
                        decision.end_left(self._clock() + _ENDING_SECONDS)
                    raise
            if selections is not None:
                return selections
            decision.end_left(self._clock() + _ENDING_SECONDS)
            if decision.given_up:
                # That hosts are full was not what ended it.
                raise MemoryCannotDecide("claims not answered in time")
            if decision.leaves_out:
                raise MemoryCannotDecide("unreadable records")
            if asked.queries is None or found is FullHosts.ONCE_MORE:
                # Claims end all the time: what ends behind the proof is no reason for another.
                found = FullHosts.PROVED
            else:
                found = self._found(asked, decided_at, claims, decision, waiting)
            if found is FullHosts.PROVED:
                decision.log_refusal()
                # As Nova words it, where Placement has no candidate and where it has some.
                why = (
                    "" if decision.lacks_candidates else _("There are not enough hosts available.")
                )
                raise nova_exception.NoValidHost(reason=why)
            if found is FullHosts.WAITED:
                # It held nothing while it waited: what it takes from now on is taken anew.
                deadline = self._clock() + self._deadline_seconds
            if self._clock() > deadline:
                raise MemoryCannotDecide("mirror behind")
            # What it saw is over: claims, and the records that hosts are judged by.
            if not view.renew():
                raise MemoryCannotDecide("states not proved")
            claims = view.reads.claims

    def _found(
        self,
        asked: ScheduleCall,
        decided_at: float,
        claims: store_snapshot.NamespaceView,
        decision: _Decision,
        waiting: pending_waits.RequestWait,
    ) -> FullHosts:
        try:
            planned_on, tried = decision.planned_on, decision.tried
            return self._proved_full(asked, decided_at, claims, planned_on, tried, waiting)
        except MemoryCannotDecide:
            raise
        except Exception as error:
            LOG.exception("Whether hosts are full cannot be proved; Placement is asked instead.")
            raise MemoryCannotDecide("fault of the plugin") from error

    def explain(
        self, asked: ScheduleCall, view: views_module.RequestView
    ) -> tuple[planning.Plan, tuple[decision_steps.FilterCount, ...]]:
        """Plan a request, and do no more: nothing is held or allocated.

        :returns: the plan, and which parts of Placement's question refuse how many hosts
        :raises MemoryCannotDecide: see there
        """
        planner = RequestPlanner(self.parts, asked, view, self._now, explain=True)
        return planner.plan(frozenset()), planner.placement_parts()


class _Decision:
    """One request's way from its plan to Nova's answer."""

    def __init__(
        self,
        parts: DecisionEngine,
        asked: ScheduleCall,
        view: views_module.RequestView,
        deadline: float,
        now: Callable[[], float],
    ) -> None:
        self._asked = asked
        self._trace = view.trace
        self._reads = view.reads
        spec = asked.spec
        self._group: Any = spec.instance_group if "instance_group" in spec else None
        self._group_hosts: list[str] | None = None
        if self._group and "hosts" in self._group:
            self._group_hosts = list(self._group.hosts)
        self._planner = RequestPlanner(parts, asked, view, now)
        self._allocations = request_allocations.RequestAllocations(
            parts.placement, asked.context, asked.spec, lambda: self._planner.planned_on
        )
        self._placing = placing.Placing(
            parts.ways,
            self._planner.request,
            asked.instance_uuids,
            self._planner,
            self._allocations,
            view.trace,
            parts.places,
            deadline,
        )

    @property
    def planned_on(self) -> store_snapshot.Snapshot:
        """A snapshot that the latest plan is no older than."""
        return self._planner.planned_on

    @property
    def tried(self) -> frozenset[str]:
        """Uuids of the hosts that were reserved for a server, whatever became of it."""
        return frozenset(self._placing.tried)

    @property
    def given_up(self) -> bool:
        """Whether a claim was not answered in time, or Placement cannot be asked."""
        return self._placing.given_up

    @property
    def leaves_out(self) -> bool:
        """See :class:`RequestPlanner`."""
        return self._planner.leaves_out

    @property
    def lacks_candidates(self) -> bool:
        """Whether Placement itself would have offered no host to begin with."""
        counts = self._planner.first_counts
        return bool(counts) and counts[0].name == decision_steps.PLACEMENT and not counts[0].after

    def decide(self) -> list[list[Any]] | None:
        """Choose and claim for all servers, and answer; None if there is not room for all.

        Whatever way it fails, nothing is left allocated or held.

        :raises MemoryCannotDecide: for a fault of ours, which is logged
        """
        answer = None
        try:
            chosen = self._placing.place()
            self._note(chosen)
            if chosen is not None:
                answer = self._selections(chosen)
        except (nova_exception.NovaException, MemoryCannotDecide):
            raise
        except placing.ClaimsUnavailable as error:
            LOG.warning(
                "No host can be claimed; Placement is asked instead: %(error)s", {"error": error}
            )
            raise MemoryCannotDecide("claims unavailable") from error
        except (
            placement_reader.PlacementUnanswered,
            errors.BackendUnavailable,
            chosen_trees.TreeNotCompared,
        ) as error:
            LOG.warning(
                "A chosen host cannot be compared with Placement: %(error)s", {"error": error}
            )
            raise MemoryCannotDecide("mirror not proved") from error
        except Exception as error:
            objects = self._planner.objects
            if error is objects.raised:
                raise
            LOG.exception("The choice in memory failed; Placement is asked instead.")
            raise MemoryCannotDecide("fault of the plugin") from error
        finally:
            if answer is None:
                self._placing.undo()
                self._restore_group()
        return answer

    def end_left(self, deadline: float) -> None:
        """See :meth:`request_allocations.RequestAllocations.end_left`; then claims end, too.

        Whatever becomes of that: of a request for several each server counts by itself.
        """
        try:
            self._allocations.end_left(deadline)
        finally:
            self._placing.end_doubt()

    def _restore_group(self) -> None:
        """Take the hosts that were chosen out of the request's group again.

        Host states put them there, as Nova's do; whoever decides next is not
        to find them.
        """
        if self._group_hosts is not None:
            self._group.hosts = self._group_hosts
            self._group.obj_reset_changes(["hosts"])

    # -- answering --------------------------------------------------------------------

    def _selections(self, chosen: Sequence[chosen_hosts.Choice]) -> list[list[Any]]:
        """Return the choices, each with its alternates, as Nova's Selections."""
        plan = self._placing.plan
        alternates = plan.alternates(chosen, self._asked.alternates)
        try:
            self._planner.check()
        except MemoryCannotDecide:
            # Its hosts were chosen before; others may have been looked for since.
            alternates = [[] for _ in chosen]
        return [
            [self._selection(each) for each in (choice, *others)]
            for choice, others in zip(chosen, alternates, strict=True)
        ]

    def _selection(self, choice: chosen_hosts.Choice) -> Any:
        claims = self._asked.queries is not None
        objects = self._planner.objects
        return request_conversion.selection(
            choice,
            choice.allocation_requests[0] if claims else None,
            self._asked.version if claims else None,
            objects.limits(choice.uuid),
            self._reads.aggregates_of_host,
        )

    def _note(self, chosen: Sequence[chosen_hosts.Choice] | None) -> None:
        """Tell the request's trace how the plan went."""
        self._trace.counts = decision_log.counts_of(
            self._planner.first_counts, self._placing.plan, is_placed=chosen is not None
        )
        if chosen is not None:
            servers = self._asked.instance_uuids
            self._trace.chosen = dict(zip(servers, chosen, strict=True))

    def log_refusal(self) -> None:
        """Say in one line which step left how many hosts, and which were refused."""
        servers = self._asked.instance_uuids
        trace = self._trace
        try:
            # Counted only now, for it costs more than the decision.
            parts = self._planner.placement_parts()
            trace.counts = refusal_counts.with_parts(trace.counts, parts)
        except Exception:
            LOG.exception("What of its candidates refused hosts cannot be told.")
        LOG.info(
            "No valid host for server %(server)s, one of %(servers)d in the request: %(trace)s.",
            {
                "server": self._planner.server,
                "servers": len(servers),
                "trace": trace.text(),
            },
        )


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
