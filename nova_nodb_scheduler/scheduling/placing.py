# SPDX-License-Identifier: Apache-2.0
"""Places the servers of one request: choose, claim, have it written, confirm.

For each server the best host of the plan is taken, its room held in this
process and claimed among schedulers, the allocation written, the claim
confirmed. A host that is lost on the way is refused in the plan, and the next
best taken; what was learnt of a server group is planned with. Either all
servers are placed or nothing of the request is left.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import attrs

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import choice, claim_facts, claimer, planning, room, spreading

#: Plans made for one request, beyond which a host that would need another one
#: is passed over like any that is full.
_MOST_PLANS = 10


#: From a server to (cell, host) of each place where it is known to stand.
Places = Callable[[str], Collection[tuple[str, str]]]


class Result(enum.Enum):
    """What became of a server's allocation."""

    #: The authority has it.
    WRITTEN = "written"
    #: The authority has it, beside what the server had before.
    JOINED = "joined"
    #: Not on this host; another may do.
    NEXT_HOST = "next host"
    #: On no host, for the authority cannot be asked or does not answer in time.
    GIVEN_UP = "given up"

    @property
    def stands(self) -> bool:
        return self in (Result.WRITTEN, Result.JOINED)


@attrs.frozen
class Outcome:
    """A result, and in a few words why."""

    result: Result
    why: str = ""


class Authority(Protocol):
    """Who says what a server has: Placement, or a simulator's hosts. One request's."""

    def write(self, wanted: Sequence[claimer.Wanted], deadline: float) -> Mapping[str, Outcome]:
        """Write the allocations of some servers; return what became of them, by consumer.

        Whatever it raises, it leaves nothing of these servers written. May block
        for I/O until about the deadline (monotonic seconds).
        """

    def remove(self, wanted: Sequence[claimer.Wanted], deadline: float) -> None:
        """Take back what :meth:`write` wrote, of those hosts only; never raises for I/O."""


class Planner(Protocol):
    """What makes the plans of one request."""

    def plan(self, group_hosts: frozenset[str]) -> planning.Plan:
        """Look at the present and plan the request.

        :param group_hosts: names of hosts that hold members of the request's
            group beside those the request names
        """

    def about(self, consumer: str) -> None:
        """Say which server is planned next."""


class Trace(Protocol):
    """What remembers why a request came out as it did."""

    def refuse(self, server: str, chosen: choice.Choice, reason: str) -> None:
        """Note that a host could not be had."""


class Unclaimable(Exception):
    """The claims' back end does not answer: nobody can be placed now.

    What was placed of the request is to be undone, as with any other failure.
    """


@attrs.frozen
class Parts:
    """What places servers in one process, for all its requests.

    :param spread: which of several good hosts to take; None for the best
    :param clock: monotonic seconds
    :param sleep: pauses before a view that was behind is looked at again
    """

    room: room.Room
    claimer: claimer.Claimer
    spread: spreading.Spreading | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Placing:
    """One request's placing. One thread.

    :param places: where servers stand already; one that stands somewhere may
        have allocations
    :param deadline: monotonic seconds, after which a refusal ends the request
    :ivar plan: the latest, once :meth:`place` has made one
    :ivar given_up: whether it ended for want of an answer, not of hosts
    """

    def __init__(
        self,
        parts: Parts,
        request: requests.Request,
        servers: Sequence[str],
        planner: Planner,
        authority: Authority,
        trace: Trace,
        places: Places,
        deadline: float,
    ) -> None:
        self._parts = parts
        self._request = request
        self._servers = servers
        self._planner = planner
        self._authority = authority
        self._trace = trace
        self._places = places
        self._deadline = deadline
        self.plan: planning.Plan
        self.given_up = False
        self._plans = 0
        self._group_hosts: frozenset[str] = frozenset()
        #: Hosts that no plan of this request shall propose again.
        self._refused: set[str] = set()
        #: Names of hosts that hold as many members of the group as they may.
        self._full: frozenset[str] = frozenset()
        #: Of each server what it holds at the moment, for the undoing.
        self._held: dict[str, choice.Choice] = {}
        self._taken: dict[str, claimer.Taken] = {}
        self._written: dict[str, claimer.Wanted] = {}

    def place(self) -> list[choice.Choice] | None:
        """Return the servers' hosts, in their order; None if not all found one.

        The caller calls :meth:`undo` where it does not use the answer,
        whatever this returned or raised.

        :raises Unclaimable: see there
        """
        self._make_plan()
        placed: dict[str, choice.Choice] = {}
        waiting = list(self._servers)
        while waiting:
            chosen = self._choose(waiting)
            if chosen is None:
                return None
            if self._request.queries is None:
                # A rebuild: nothing is claimed, the server is there.
                return [chosen[consumer] for consumer in self._servers]
            again = self._settle(chosen, placed)
            if self.given_up:
                return None
            if again:
                self._make_plan()
            waiting = [consumer for consumer in waiting if consumer not in placed]
        return [placed[consumer] for consumer in self._servers]

    def undo(self) -> None:
        """Leave nothing of the request: allocations first, then claims, then room."""
        written, taken = list(self._written.values()), list(self._taken.values())
        self._written, self._taken = {}, {}
        try:
            if written:
                self._authority.remove(written, self._deadline)
        finally:
            try:
                if taken:
                    self._parts.claimer.release(taken)
            finally:
                for consumer in list(self._held):
                    self._give_back(consumer)

    def _make_plan(self) -> None:
        self.plan = self._planner.plan(self._group_hosts)
        self._plans += 1

    # -- choosing -----------------------------------------------------------------

    def _choose(self, consumers: Sequence[str]) -> dict[str, choice.Choice] | None:
        """Choose a host for each server, and hold its room; None if one finds none."""
        chosen: dict[str, choice.Choice] = {}
        for consumer in consumers:
            self._planner.about(consumer)
            best = self._best(consumer)
            if best is None:
                return None
            chosen[consumer] = best
            if len(self._servers) > 1:
                self.plan.take(best, consumer)
        return chosen

    def _best(self, consumer: str) -> choice.Choice | None:
        while best := self._proposed():
            if self._request.queries is None:
                return best
            if best.uuid in self._refused or best.host in self._full:
                # Found out before, and told of then.
                self.plan.refuse(best)
                continue
            if best.allocation_requests and self._parts.room.take(consumer, self._request, best):
                self._held[consumer] = best
                return best
            self._trace.refuse(consumer, best, "room taken by another request")
            self.plan.refuse(best)
        return None

    def _proposed(self) -> choice.Choice | None:
        """Return the host of the plan to try next; None if there are no more."""
        spread = self._parts.spread
        if spread is None or self._request.queries is None:
            return next(iter(self.plan.best(1)), None)
        return spread.choose(self.plan.best, self.plan.passed)

    # -- claiming and writing -------------------------------------------------------

    def _settle(
        self, chosen: Mapping[str, choice.Choice], placed: dict[str, choice.Choice]
    ) -> bool:
        """Bring each chosen host to its end; say whether a new plan is needed."""
        wanted = [self._wanted(consumer, each) for consumer, each in chosen.items()]
        taken, again = self._claim(wanted)
        if not taken:
            return again
        outcomes = self._authority.write([each.wanted for each in taken], self._deadline)
        written = [each for each in taken if outcomes[each.wanted.consumer].result.stands]
        # First of all, for the undoing: what follows may raise.
        self._written.update((each.wanted.consumer, each.wanted) for each in written)
        lost = [each for each in taken if each.wanted.consumer not in self._written]
        for each in lost:
            outcome = outcomes[each.wanted.consumer]
            self.given_up |= outcome.result is Result.GIVEN_UP
            self._pass_over(each.wanted, outcome.why)
        if lost:
            self._release(lost)
        self._confirm(written, placed)
        return again

    def _claim(self, wanted: Sequence[claimer.Wanted]) -> tuple[list[claimer.Taken], bool]:
        taken: list[claimer.Taken] = []
        unanswered: list[claimer.NotTaken] = []
        again = behind = False
        for answer in self._parts.claimer.take(self._request, wanted, self._deadline):
            if isinstance(answer, claimer.Taken):
                self._taken[answer.wanted.consumer] = answer
                taken.append(answer)
                continue
            again |= self._not_taken(answer)
            behind |= answer.failure is claimer.Failure.BEHIND
            if answer.failure is claimer.Failure.UNAVAILABLE:
                unanswered.append(answer)
        if unanswered:
            raise Unclaimable(unanswered[0].detail)
        if behind and again:
            # Once for all servers: it is the same view that is behind.
            self._parts.sleep(0.01 * self._plans)
        return taken, again

    def _not_taken(self, answer: claimer.NotTaken) -> bool:
        """Take in why a host was not claimed; say whether a new plan is needed."""
        why = f"claim refused: {answer.detail or answer.failure.value}"
        again = answer.failure is claimer.Failure.BEHIND
        if answer.failure is claimer.Failure.GROUP and answer.group_hosts:
            if self._keeps_apart:
                self._full |= answer.group_hosts
            else:
                again = not answer.group_hosts <= self._group_hosts
                self._group_hosts |= answer.group_hosts
        if again and self._plans < _MOST_PLANS:
            self._pass_over(answer.wanted, why, forever=False)
            return True
        self._pass_over(answer.wanted, why)
        return False

    @property
    def _keeps_apart(self) -> bool:
        group = self._request.group
        return group is not None and "anti-affinity" in {group.policy, *group.policies}

    def _confirm(self, written: Sequence[claimer.Taken], placed: dict[str, choice.Choice]) -> None:
        if not written:
            return
        late = []
        for each, stands in zip(written, self._parts.claimer.confirm(written), strict=True):
            consumer = each.wanted.consumer
            if stands:
                self._parts.room.keep(consumer)
                placed[consumer] = each.wanted.chosen
            else:
                late.append(each)
        if late:
            # Others may have been given the place while this process slept.
            self._authority.remove([each.wanted for each in late], self._deadline)
            for each in late:
                del self._written[each.wanted.consumer]
            self._release(late)
            for each in late:
                self._pass_over(each.wanted, "the claim's lease ended before it was confirmed")

    def _release(self, taken: Sequence[claimer.Taken]) -> None:
        self._parts.claimer.release(taken)
        for each in taken:
            self._taken.pop(each.wanted.consumer, None)

    def _pass_over(self, wanted: claimer.Wanted, why: str, *, forever: bool = True) -> None:
        self._trace.refuse(wanted.consumer, wanted.chosen, why)
        self._give_back(wanted.consumer)
        self.plan.refuse(wanted.chosen)
        if forever:
            self._refused.add(wanted.chosen.uuid)
        self.given_up |= self._parts.clock() > self._deadline

    def _give_back(self, consumer: str) -> None:
        held = self._held.pop(consumer, None)
        if held is not None:
            self._parts.room.give_back(consumer, held)

    def _wanted(self, consumer: str, chosen: choice.Choice) -> claimer.Wanted:
        places = self._places(consumer)
        return claimer.Wanted(
            consumer,
            chosen,
            room.resources_of(chosen),
            claim_facts.share_of(self._request, stays=(chosen.cell, chosen.host) in places),
            moves=bool(places),
        )


def with_group_hosts(request: requests.Request, hosts: Collection[str]) -> requests.Request:
    """Return a request whose group has members on some more hosts, by their names."""
    group = request.group
    if group is None:
        return request
    return attrs.evolve(request, group=attrs.evolve(group, hosts=group.hosts.union(hosts)))
