# SPDX-License-Identifier: Apache-2.0
"""Decides a request from memory: choose, hold the room, have it allocated, answer.

Nova's own manager has run its request filters and made its resource request;
what it then does in _schedule is done here over columns, with Nova's results.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
from nova import exception as nova_exception
from nova.i18n import _

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter import (
    claiming,
    decision_log,
    host_objects,
    request_conversion,
    selections,
)
from nova_nodb_scheduler.nova_adapter import room as room_module
from nova_nodb_scheduler.nova_adapter import views as views_module
from nova_nodb_scheduler.scheduling import candidates, choice, contract, frame_keeper, planning
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


class Decider:
    """One worker's decisions. Any thread.

    :param host_manager: Nova's, ours in its place
    :param known_instance: tells whether the store knows a server: it moves, then,
        and may have allocations
    :param proved_full: asked before NoValidHost is said, with when the decision
        began: True if no host's record was behind Placement, False if some were
        and are known better now; raises NeedsPlacement where nobody can tell
    :param generation: grows when the store begins to be built anew
    :param deadline_seconds: how long a request's claims may take
    """

    def __init__(
        self,
        host_manager: Any,
        engine: engine_module.Engine,
        keeper: frame_keeper.FrameKeeper,
        room: room_module.Room,
        claimer: claiming.Claimer,
        known_instance: Callable[[str], bool],
        proved_full: Callable[[Asked, float], bool],
        generation: Callable[[], int],
        *,
        deadline_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._host_manager = host_manager
        self._engine = engine
        self._keeper = keeper
        self._room = room
        self._claimer = claimer
        self._known = known_instance
        self._proved_full = proved_full
        self._generation = generation
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._now = now

    def schedule(self, asked: Asked, view: views_module.RequestView) -> list[list[Any]]:
        """Return for each server its Selection and the alternates.

        :raises NoValidHost: on proved state only
        :raises NeedsPlacement: see there; nothing was allocated
        """
        started = self._clock()
        while True:
            decided_at = self._clock()
            decision = _Decision(self, asked, view, started + self._deadline_seconds)
            selections = decision.decide()
            if selections is not None:
                return selections
            if decision.given_up:
                # That hosts are full was not what ended it.
                raise NeedsPlacement("claims not answered in time")
            if asked.queries is None or self._is_proved(asked, decided_at):
                decision.log_refusal()
                raise nova_exception.NoValidHost(reason=_("There are not enough hosts available."))
            if self._clock() > started + self._deadline_seconds:
                raise NeedsPlacement("mirror behind")

    def _is_proved(self, asked: Asked, decided_at: float) -> bool:
        try:
            return self._proved_full(asked, decided_at)
        except NeedsPlacement:
            raise
        except Exception as error:
            LOG.exception("Whether hosts are full cannot be proved; Placement is asked instead.")
            raise NeedsPlacement("fault of the plugin") from error

    def explain(self, asked: Asked, view: views_module.RequestView) -> planning.Plan:
        """Plan a request, and do no more: nothing is held or allocated.

        :raises NeedsPlacement: see there
        """
        return _Decision(self, asked, view, self._clock()).explained()


class _Decision:
    """One request's way through the pipeline."""

    def __init__(
        self, decider: Decider, asked: Asked, view: views_module.RequestView, deadline: float
    ) -> None:
        self._own = decider
        self._asked = asked
        self._view = view
        self._deadline = deadline
        group = asked.spec.instance_group if "instance_group" in asked.spec else None
        self._group_hosts = list(group.hosts) if group and "hosts" in group else None
        #: Whether a claim was not answered in time, or Placement cannot be asked.
        self.given_up = False
        self._claimed: list[claiming.Claim] = []
        #: Choices whose room is held, or was kept with an allocation, by server.
        self._held: dict[str, choice.Choice] = {}
        self._why: dict[str, str] = {}
        self._objects = host_objects.HostObjects(
            decider._host_manager, asked.spec, self._make_states, self._candidates_of
        )
        self._request: requests.Request
        self._plan: planning.Plan

    def _make_plan(self, *, explain: bool = False) -> None:
        own = self._own
        enabled = [str(cell.uuid) for cell in own._host_manager.enabled_cells]
        self._request = request_conversion.request(self._asked.spec, self._asked.queries, enabled)
        # A store that is being built anew lacks hosts, and servers of groups.
        self._check_whole()
        own._keeper.catch_up(own._now())
        self._check_whole()
        with own._engine.lock:
            for query in self._asked.queries or ():
                reason = candidates.outside(query, own._engine.frame)
                if reason is not None:
                    raise NeedsPlacement(reason)
        self._plan = own._engine.plan(
            self._request,
            self._objects,
            servers=len(self._asked.instance_uuids),
            explain=explain,
        )
        self._first_counts = self._plan.counts

    def _check_whole(self) -> None:
        """Refuse a store other than the one that the view was proved on.

        :raises NeedsPlacement: it began to be built anew meanwhile
        """
        if self._own._generation() != self._view.reads.generation:
            raise NeedsPlacement("states not proved")

    # -- what Nova's own filters need ---------------------------------------------

    def _make_states(self, uuids: Collection[str]) -> dict[str, Any]:
        frame = self._own._engine.frame
        with self._own._engine.lock:
            rows = {uuid: frame.row_of(uuid) for uuid in uuids}
            uuid_of = {
                (frame.facts(row).host, frame.facts(row).node): uuid
                for uuid, row in rows.items()
                if row is not None
            }
        states = self._own._host_manager.get_host_states_by_uuids(
            self._asked.context, list(uuids), self._asked.spec
        )
        return {
            uuid_of[state.host, state.nodename]: state
            for state in states
            if (state.host, state.nodename) in uuid_of
        }

    def _candidates_of(self, uuid: str) -> Sequence[contract.AllocationRequest]:
        return self._own._engine.allocation_requests(self._request, uuid)

    # -- choosing and claiming ------------------------------------------------------

    def decide(self) -> list[list[Any]] | None:
        """Choose and claim for all servers, and answer; None if there is not room for all.

        Whatever way it fails, nothing is left allocated or held.

        :raises NeedsPlacement: for a fault of ours, which is logged
        """
        answer = None
        try:
            chosen = self._claim_all()
            self.note(chosen)
            if chosen is not None:
                answer = self._selections(chosen)
        except (nova_exception.NovaException, NeedsPlacement):
            raise
        except Exception as error:
            if error is self._objects.raised:
                raise
            LOG.exception("The choice in memory failed; Placement is asked instead.")
            raise NeedsPlacement("fault of the plugin") from error
        finally:
            if answer is None:
                self._undo()
                self._restore_group()
        return answer

    def _claim_all(self) -> list[choice.Choice] | None:
        self._make_plan()
        waiting = list(self._asked.instance_uuids)
        placed: dict[str, choice.Choice] = {}
        while waiting:
            chosen = self._choose(waiting)
            if chosen is None:
                return None
            if self._asked.queries is None:
                placed.update(chosen)
                break
            results = self._claim(chosen)
            for consumer, result in results.items():
                if result in (claiming.Result.CLAIMED, claiming.Result.JOINED):
                    placed[consumer] = chosen[consumer]
                    continue
                self._view.trace.refuse(consumer, chosen[consumer], self._why[consumer])
                if result is claiming.Result.GIVEN_UP or self._too_late():
                    self.given_up = True
                    return None
                self._plan.refuse(chosen[consumer])
            waiting = [consumer for consumer in waiting if consumer not in placed]
        return [placed[consumer] for consumer in self._asked.instance_uuids]

    def _too_late(self) -> bool:
        return self._own._clock() > self._deadline

    def _choose(self, consumers: Sequence[str]) -> dict[str, choice.Choice] | None:
        """Choose a host for each server, and hold its room; None if one finds none."""
        chosen: dict[str, choice.Choice] = {}
        spec = self._asked.spec
        for consumer in consumers:
            # As Nova: filters that look at it see the server they are asked about.
            spec.instance_uuid = consumer
            spec.obj_reset_changes(["instance_uuid"])
            best = self._best(consumer)
            if best is None:
                return None
            chosen[consumer] = best
            if len(self._asked.instance_uuids) > 1:
                self._plan.take(best, consumer)
        return chosen

    def _best(self, consumer: str) -> choice.Choice | None:
        while best := self._plan.best(1):
            if self._asked.queries is None:
                return best[0]
            if best[0].allocation_requests and self._room.take(consumer, self._request, best[0]):
                self._held[consumer] = best[0]
                return best[0]
            self._view.trace.refuse(consumer, best[0], "room taken by another request")
            self._plan.refuse(best[0])
        return None

    def _claim(self, chosen: Mapping[str, choice.Choice]) -> dict[str, claiming.Result]:
        claims = [
            claiming.Claim(
                consumer,
                each.uuid,
                each.allocation_requests[0],
                is_new=not self._own._known(consumer),
            )
            for consumer, each in chosen.items()
        ]
        asked = self._asked
        results = self._own._claimer.claim(
            asked.context.elevated(), asked.spec, claims, self._deadline, self._why
        )
        held = claiming.held(claims, results)
        self._claimed += held
        for claim in held:
            self._room.keep(claim.consumer)
        for consumer in chosen.keys() - {claim.consumer for claim in held}:
            self._give_back(consumer)
        return results

    @property
    def _room(self) -> room_module.Room:
        return self._own._room

    def _give_back(self, consumer: str) -> None:
        self._room.give_back(consumer, self._held.pop(consumer))

    def _undo(self) -> None:
        """Remove what was allocated for some servers of a request that fails."""
        try:
            if self._claimed:
                asked = self._asked
                self._own._claimer.undo(asked.context, asked.spec, self._claimed, self._deadline)
        finally:
            self._claimed = []
            for consumer in list(self._held):
                self._give_back(consumer)

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
        alternates = self._plan.alternates(chosen, self._asked.alternates)
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
            self._objects.limits(choice.uuid),
            self._view.reads.aggregates_of_host,
        )

    def explained(self) -> planning.Plan:
        """Return the plan with each weigher's share."""
        self._make_plan(explain=True)
        return self._plan

    def note(self, chosen: Sequence[choice.Choice] | None) -> None:
        """Tell the request's trace how the plan went."""
        self._view.trace.counts = decision_log.counts_of(
            self._first_counts, self._plan, is_placed=chosen is not None
        )
        if chosen is not None:
            servers = self._asked.instance_uuids
            self._view.trace.chosen = dict(zip(servers, chosen, strict=True))

    def log_refusal(self) -> None:
        """Say in one line which step left how many hosts, and which were refused."""
        servers = self._asked.instance_uuids
        LOG.info(
            "No valid host for server %(server)s, one of %(servers)d in the request: %(trace)s.",
            {
                "server": self._asked.spec.instance_uuid,
                "servers": len(servers),
                "trace": self._view.trace.text(),
            },
        )
