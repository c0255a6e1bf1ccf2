# SPDX-License-Identifier: Apache-2.0
"""Decides a request from memory: choose, hold the room, have it allocated, answer.

Nova's own manager has run its request filters and made its resource request;
what it then does in _schedule is done here over columns, with Nova's results.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from nova import exception as nova_exception
from nova.i18n import _

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter import decision_log
from nova_nodb_scheduler.nova_adapter.conversion import request_conversion
from nova_nodb_scheduler.nova_adapter.decisions import request_allocations, request_planner
from nova_nodb_scheduler.nova_adapter.placement.mirror import chosen_trees, placement_reader
from nova_nodb_scheduler.nova_adapter.reads import request_views as views_module
from nova_nodb_scheduler.scheduling.pipeline import (
    chosen_hosts,
    decision_steps,
    placing,
    planning,
    refusal_counts,
)
from nova_nodb_scheduler.store import store_snapshot

LOG = logging.getLogger(__name__)

#: How long it is tried to remove what is left of a request, before it goes another way:
#: a Placement that starts anew takes some seconds.
_ENDING_SECONDS = 10.0

#: See :class:`RequestDecider`; the claims are None where they do not matter any more.
ProvedFull = Callable[
    [
        request_planner.ScheduleCall,
        float,
        store_snapshot.NamespaceView | None,
        store_snapshot.Snapshot,
    ],
    bool,
]


class RequestDecider:
    """One worker's decisions. Any thread.

    :param proved_full: asked before NoValidHost is said, with when the decision
        began, the claims of before, and a snapshot that it was no older than: True
        if no host's record was behind Placement and no claim kept a host full for
        nothing, False if some were and are known better now; raises MemoryCannotDecide
        where nobody can tell
    :param deadline_seconds: how long a request's claims may take
    """

    def __init__(
        self,
        parts: request_planner.DecisionEngine,
        proved_full: ProvedFull,
        *,
        deadline_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.parts = parts
        self._writer = parts.placement.writer
        self._proved_full = proved_full
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._now = now

    def schedule(
        self, asked: request_planner.ScheduleCall, view: views_module.RequestView
    ) -> list[list[Any]]:
        """Return for each server its Selection and the alternates.

        :raises NoValidHost: on proved state only
        :raises request_planner.MemoryCannotDecide: see there; nothing is allocated
        :raises AllocationUpdateFailed: Nova's own: something may be, for Placement did
            not answer
        """
        deadline = self._clock() + self._deadline_seconds
        # As the host states have them; the columns are as new or newer.
        claims: store_snapshot.NamespaceView | None = view.reads.claims
        while True:
            decided_at = self._clock()
            decision = _Decision(self.parts, asked, view, deadline, self._now)
            writes = asked.queries is not None
            with self._writer.coming() if writes else contextlib.nullcontext():
                try:
                    selections = decision.decide()
                except request_planner.MemoryCannotDecide:
                    decision.end_left(self._clock() + _ENDING_SECONDS)
                    raise
            if selections is not None:
                return selections
            decision.end_left(self._clock() + _ENDING_SECONDS)
            if decision.given_up:
                # That hosts are full was not what ended it.
                raise request_planner.MemoryCannotDecide("claims not answered in time")
            if decision.leaves_out:
                raise request_planner.MemoryCannotDecide("unreadable records")
            if asked.queries is None or self._is_proved(
                asked, decided_at, claims, decision.planned_on
            ):
                decision.log_refusal()
                # As Nova words it, where Placement has no candidate and where it has some.
                why = (
                    "" if decision.lacks_candidates else _("There are not enough hosts available.")
                )
                raise nova_exception.NoValidHost(reason=why)
            if self._clock() > deadline:
                raise request_planner.MemoryCannotDecide("mirror behind")
            # What it saw is over: claims, and the records that hosts are judged by.
            if not view.renew():
                raise request_planner.MemoryCannotDecide("states not proved")
            # Claims end all the time: that some did is looked at once.
            claims = None

    def _is_proved(
        self,
        asked: request_planner.ScheduleCall,
        decided_at: float,
        claims: store_snapshot.NamespaceView | None,
        planned_on: store_snapshot.Snapshot,
    ) -> bool:
        try:
            return self._proved_full(asked, decided_at, claims, planned_on)
        except request_planner.MemoryCannotDecide:
            raise
        except Exception as error:
            LOG.exception("Whether hosts are full cannot be proved; Placement is asked instead.")
            raise request_planner.MemoryCannotDecide("fault of the plugin") from error

    def explain(
        self, asked: request_planner.ScheduleCall, view: views_module.RequestView
    ) -> tuple[planning.Plan, tuple[decision_steps.FilterCount, ...]]:
        """Plan a request, and do no more: nothing is held or allocated.

        :returns: the plan, and which parts of Placement's question refuse how many hosts
        :raises request_planner.MemoryCannotDecide: see there
        """
        planner = request_planner.RequestPlanner(self.parts, asked, view, self._now, explain=True)
        return planner.plan(frozenset()), planner.placement_parts()


class _Decision:
    """One request's way from its plan to Nova's answer."""

    def __init__(
        self,
        parts: request_planner.DecisionEngine,
        asked: request_planner.ScheduleCall,
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
        self._planner = request_planner.RequestPlanner(parts, asked, view, now)
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
    def given_up(self) -> bool:
        """Whether a claim was not answered in time, or Placement cannot be asked."""
        return self._placing.given_up

    @property
    def leaves_out(self) -> bool:
        """See :class:`request_planner.RequestPlanner`."""
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
        except (nova_exception.NovaException, request_planner.MemoryCannotDecide):
            raise
        except placing.ClaimsUnavailable as error:
            LOG.warning(
                "No host can be claimed; Placement is asked instead: %(error)s", {"error": error}
            )
            raise request_planner.MemoryCannotDecide("claims unavailable") from error
        except (
            placement_reader.PlacementUnanswered,
            errors.BackendUnavailable,
            chosen_trees.KeptChanging,
        ) as error:
            LOG.warning(
                "A chosen host cannot be compared with Placement: %(error)s", {"error": error}
            )
            raise request_planner.MemoryCannotDecide("mirror not proved") from error
        except Exception as error:
            if error is self._planner.raised:
                raise
            LOG.exception("The choice in memory failed; Placement is asked instead.")
            raise request_planner.MemoryCannotDecide("fault of the plugin") from error
        finally:
            if answer is None:
                self._placing.undo()
                self._restore_group()
        return answer

    def end_left(self, deadline: float) -> None:
        """See :meth:`request_allocations.RequestAllocations.end_left`."""
        self._allocations.end_left(deadline)

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
        return [
            [self._selection(each) for each in (choice, *others)]
            for choice, others in zip(chosen, alternates, strict=True)
        ]

    def _selection(self, choice: chosen_hosts.Choice) -> Any:
        claims = self._asked.queries is not None
        return request_conversion.selection(
            choice,
            choice.allocation_requests[0] if claims else None,
            self._asked.version if claims else None,
            self._planner.limits(choice.uuid),
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
