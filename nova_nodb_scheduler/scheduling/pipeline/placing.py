# SPDX-License-Identifier: Apache-2.0
"""Places the servers of one request: choose, claim, have it written, confirm.

For each server the best host of the plan is taken, reserved in this process and
claimed among schedulers, the allocation written, the claim confirmed. A host that
is lost on the way is refused in the plan, and the next best taken; what was
learnt of a server group is planned with. Either all servers are placed or
nothing of the request is left.

:class:`Spreading` keeps several schedulers from wanting the same host at the same
moment. Where hosts weigh exactly the same, Nova takes any of them. Here each host
belongs to one of the schedulers that live, by a rendezvous hash of both names: a
scheduler prefers its own among those that Nova might take. Who lives is known
only roughly, and need not be agreed on: two that think differently meet now and
then, and the claim decides.

What Nova might take is a tie for the best, and with ``host_subset_size`` all that
weigh no less than the host that was drawn among the best, each of which might have
been drawn. Where no two hosts weigh the same, all schedulers want the same host:
who loses the claim is told what was claimed before, and claims what is left of it.

An operator may tolerate more (``claim_spread = tolerant``): hosts about as good
as the best count as ties, a deviation from Nova's order. Not where a weigher
speaks for the request itself; a scheduler that is alone never deviates.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import attrs

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.namespaces import claim_facts
from nova_nodb_scheduler.scheduling.pipeline import candidates, chosen_hosts, planning
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.scheduling.reservations import host_reservations as reservations_module

#: For the tolerant: scores that differ by no more count as the same: a twentieth of
#: what one weigher with a multiplier of 1 can give.
TOLERANCE = 0.05

#: Of the hosts that pass all filters, the share that counts as the same as well: in a
#: cloud that fills unevenly few hosts weigh nearly the same.
BEST_SHARE = 0.01

#: But not those that are worse by more than one weigher with a multiplier of 1 can
#: give: a greater one, as for hosts that failed to build servers, is to be heeded.
MOST_TOLERANCE = 1.0

#: Most hosts looked at for each living scheduler, twice as many each time until one
#: is its own. What others took a moment ago is still among the best here.
MOST_PER_SCHEDULER = 128


class Spreading:
    """The preference of one scheduler; any thread.

    :param own: this scheduler's name, as ``living`` gives it
    :param living: names of the schedulers that live, this one's among them;
        no I/O
    :param tolerant: whether hosts about as good as the best count as ties
    """

    def __init__(
        self, own: str, living: Callable[[], Sequence[str]], *, tolerant: bool = False
    ) -> None:
        self._own = own
        self._living = living
        self._tolerant = tolerant

    def is_own(self, host: str) -> bool:
        """Say whether a host, by its uuid, belongs to this scheduler."""
        return owner(host, tuple(self._living())) == self._own

    def choose(
        self,
        best: Callable[[int], Sequence[chosen_hosts.Choice]],
        passed: int,
        *,
        is_told_apart: bool = False,
    ) -> chosen_hosts.Choice | None:
        """Return the host this scheduler tries next; None if there is none.

        :param best: from a number to so many hosts or all there are, best first, as Nova
            orders them: the host that it would take is the first
        :param passed: how many hosts there are that pass all filters
        :param is_told_apart: whether a weigher speaks for the request: nothing is tolerated
        """
        living = tuple(self._living())
        if len(living) < 2:
            return next(iter(best(1)), None)
        alike, tolerance, most_tolerance = 0, 0.0, 0.0
        if self._tolerant and not is_told_apart:
            alike = int(passed * BEST_SHARE)
            tolerance, most_tolerance = TOLERANCE, MOST_TOLERANCE
        wanted, most = len(living), MOST_PER_SCHEDULER * len(living)
        while hosts := best(wanted):
            score = hosts[0].score
            near = [
                each
                for rank, each in enumerate(hosts)
                if each.score >= score - (most_tolerance if rank < alike else tolerance)
            ]
            own = next((each for each in near if owner(each.uuid, living) == self._own), None)
            if own is not None:
                return own
            if len(near) < wanted or wanted >= most:
                return hosts[0]
            wanted *= 2
        return None


@functools.lru_cache(maxsize=16384)
def owner(host: str, schedulers: tuple[str, ...]) -> str:
    """Return the scheduler a host belongs to: when one comes or goes, few hosts change hands."""
    return max(schedulers, key=lambda name: (_weight(name, host), name))


def _weight(scheduler: str, host: str) -> bytes:
    return hashlib.blake2b(f"{scheduler}\0{host}".encode(), digest_size=8).digest()


class HostReservations:
    """Reservations and the columns they are counted in, kept together. Any thread."""

    def __init__(
        self,
        engine: engine_module.Engine,
        reservations: reservations_module.Reservations,
    ) -> None:
        self._engine = engine
        self._reservations = reservations

    def reserve(
        self, consumer: str, request: requests.Request, chosen: chosen_hosts.Choice
    ) -> bool:
        """Count what a server takes of its host; False if others took that meanwhile."""
        with self._engine.lock:
            frame = self._engine.frame
            row = frame.row_of(chosen.uuid)
            if row is None or not request.queries:
                return False
            if not candidates.Candidates(request.queries).offer_row(frame, row):
                return False
            resources, provider = resources_of(chosen), frame.provider(row)
            generation = -1 if provider is None else provider.generation
            self._reservations.reserve(consumer, chosen.uuid, resources, generation)
            frame.use(row, resources)
            frame.touch((row,))
            return True

    def confirm(self, consumer: str) -> None:
        """The allocation is written: keep the reservation until the host's record shows it."""
        self._reservations.confirm(consumer)

    def release(self, consumer: str, chosen: chosen_hosts.Choice) -> None:
        """Give a reservation back, for nothing was written; no-op for a consumer without one."""
        with self._engine.lock:
            if self._reservations.release(consumer) is not None:
                self._engine.use(
                    chosen.uuid, {name: -amount for name, amount in resources_of(chosen).items()}
                )

    def left(self, chosen: chosen_hosts.Choice) -> Mapping[str, int]:
        """Return what is left of each class that a choice takes, by all that is known here."""
        with self._engine.lock:
            frame = self._engine.frame
            row = frame.row_of(chosen.uuid)
            if row is None:
                return {}
            found = {name: frame.resource(name) for name in resources_of(chosen)}
            return {
                name: int(has.capacity[row]) - int(has.used[row])
                for name, has in found.items()
                if has is not None
            }


def resources_of(chosen: chosen_hosts.Choice) -> Mapping[str, int]:
    """Return what a choice takes of its host's root provider."""
    part = chosen.allocation_requests[0]["allocations"].get(chosen.uuid, {})
    return dict(part.get("resources", {}))


#: Plans made for one request, beyond which a host that would need another one
#: is passed over like any that is full.
_MOST_PLANS = 10


#: From a server to (cell, host) of each place where it is known to stand.
Places = Callable[[str], Collection[tuple[str, str]]]


class AllocationResult(enum.Enum):
    """What became of a server's allocation."""

    #: The authority has it.
    WRITTEN = "written"
    #: The authority has it, beside what the server had before.
    JOINED = "joined"
    #: Not on this host; another may do.
    NEXT_HOST = "next host"
    #: The host is not what the plan took it for; what it is, is known now.
    PLAN_AGAIN = "plan again"
    #: On no host, for the authority cannot be asked or does not answer in time.
    GIVEN_UP = "given up"

    @property
    def stands(self) -> bool:
        return self in (AllocationResult.WRITTEN, AllocationResult.JOINED)


@attrs.frozen
class AllocationOutcome:
    """A result, and in a few words why."""

    result: AllocationResult
    why: str = ""


class AllocationAuthority(Protocol):
    """Who says what a server has: Placement, or a simulator's hosts. One request's."""

    def write(
        self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float
    ) -> Mapping[str, AllocationOutcome]:
        """Write the allocations of some servers; return what became of them, by consumer.

        Whatever it raises, it leaves nothing of these servers written but what
        :meth:`is_in_doubt` tells. May block for I/O until about the deadline
        (monotonic seconds).
        """

    def remove(self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float) -> None:
        """Take back what :meth:`write` wrote, of those hosts only; never raises for I/O."""

    def is_in_doubt(self, wanted: chosen_hosts.WantedClaim) -> bool:
        """Say whether a server's allocation may be on that host, or come there yet.

        Of one that is not written, or was taken back; whatever was said or raised
        before. Without I/O.
        """


class PlanMaker(Protocol):
    """What makes the plans of one request."""

    def plan(self, group_hosts: frozenset[str]) -> planning.Plan:
        """Look at the present and plan the request.

        :param group_hosts: names of hosts that hold members of the request's
            group beside those the request names
        """

    def about(self, consumer: str) -> None:
        """Say which server is planned next."""

    def check(self) -> None:
        """Refuse what plans looked at, where that may be other states than were proved.

        Called behind each look, and before anything is done for it: a plan that is asked
        for more hosts looks at those of then.

        :raises Exception: of its own; the request is to be undone
        """


class RefusalTrace(Protocol):
    """What remembers why a request came out as it did."""

    def refuse(self, server: str, chosen: chosen_hosts.Choice, reason: str) -> None:
        """Note that a host could not be had."""


class ClaimsUnavailable(Exception):
    """The claims' back end does not answer: nobody can be placed now.

    What was placed of the request is to be undone, as with any other failure.
    """


@attrs.frozen
class PlacingParts:
    """What places servers in one process, for all its requests.

    :param spread: which of several good hosts to take; None for the best
    :param clock: monotonic seconds
    :param sleep: pauses before a view that was behind is looked at again
    """

    reservations: HostReservations
    claimer: chosen_hosts.Claimer
    spread: Spreading | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Placing:
    """One request's placing. One thread.

    :param places: where servers stand already; one that stands somewhere may
        have allocations
    :param deadline: monotonic seconds, after which a refusal ends the request
    :ivar plan: the latest, once :meth:`place` has made one
    :ivar given_up: whether it ended for want of an answer, not of hosts
    :ivar tried: uuids of the hosts that were reserved for a server, whatever became of it
    """

    def __init__(
        self,
        parts: PlacingParts,
        request: requests.Request,
        servers: Sequence[str],
        planner: PlanMaker,
        authority: AllocationAuthority,
        trace: RefusalTrace,
        places: Places,
        deadline: float,
    ) -> None:
        self._parts = parts
        self._claimer, self._reservations = parts.claimer, parts.reservations
        self._request = request
        self._servers = servers
        self._planner = planner
        self._authority = authority
        self._trace = trace
        self._places = places
        self._deadline = deadline
        self.plan: planning.Plan
        self.given_up = False
        self.tried: set[str] = set()
        self._plans = 0
        self._group_hosts: frozenset[str] = frozenset()
        #: Hosts that no plan of this request shall propose again.
        self._refused: set[str] = set()
        #: Names of hosts that hold as many members of the group as they may.
        self._full: frozenset[str] = frozenset()
        #: Of each server what it holds at the moment, for the undoing.
        self._held: dict[str, chosen_hosts.Choice] = {}
        self._taken: dict[str, chosen_hosts.TakenClaim] = {}
        self._written: dict[str, chosen_hosts.WantedClaim] = {}
        #: Claims that were not given back, for their allocation may be there or come yet.
        self._in_doubt: list[chosen_hosts.TakenClaim] = []

    def place(self) -> list[chosen_hosts.Choice] | None:
        """Return the servers' hosts, in their order; None if not all found one.

        The caller calls :meth:`undo` where it does not use the answer,
        whatever this returned or raised.

        :raises Unclaimable: see there
        """
        self._make_plan()
        placed: dict[str, chosen_hosts.Choice] = {}
        waiting = list(self._servers)
        while waiting:
            chosen = self._choose(waiting)
            self._planner.check()
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
        """Leave nothing of the request: allocations first, then claims, then reservations.

        What is in doubt keeps its claim until :meth:`end_doubt`, or until its lease ends:
        others would be given the room that it takes.
        """
        written, taken = list(self._written.values()), list(self._taken.values())
        self._written = {}
        try:
            if written:
                self._authority.remove(written, self._deadline)
        finally:
            try:
                self._release(taken)
            finally:
                for consumer in list(self._held):
                    self._give_back(consumer)

    def end_doubt(self) -> None:
        """Release the claims that are in doubt no more; the others end with their lease."""
        ended = [each for each in self._in_doubt if not self._authority.is_in_doubt(each.wanted)]
        self._in_doubt = [each for each in self._in_doubt if each not in ended]
        if ended:
            self._claimer.release(ended)

    def _make_plan(self) -> None:
        self.plan = self._planner.plan(self._group_hosts)
        self._plans += 1

    # -- choosing -----------------------------------------------------------------

    def _choose(self, consumers: Sequence[str]) -> dict[str, chosen_hosts.Choice] | None:
        """Choose a host for each server, and reserve it; None if one finds none."""
        chosen: dict[str, chosen_hosts.Choice] = {}
        for consumer in consumers:
            self._planner.about(consumer)
            best = self._best(consumer)
            if best is None:
                return None
            chosen[consumer] = best
            if len(self._servers) > 1:
                self.plan.take(best, consumer)
        return chosen

    def _best(self, consumer: str) -> chosen_hosts.Choice | None:
        while best := self._proposed():
            if self._request.queries is None:
                return best
            if best.uuid in self._refused or best.host in self._full:
                # Found out before, and told of then.
                self.plan.refuse(best)
                continue
            if best.allocation_requests and self._reservations.reserve(
                consumer, self._request, best
            ):
                self._held[consumer] = best
                self.tried.add(best.uuid)
                return best
            self._trace.refuse(consumer, best, "room taken by another request")
            self.plan.refuse(best)
        return None

    def _proposed(self) -> chosen_hosts.Choice | None:
        """Return the host of the plan to try next; None if there are no more."""
        spread = self._parts.spread
        plan = self.plan
        if spread is None or plan.is_drawn or self._request.queries is None:
            # What was drawn keeps schedulers apart by itself.
            return next(iter(plan.best(1)), None)
        return spread.choose(plan.best, plan.passed, is_told_apart=plan.is_told_apart)

    # -- claiming and writing -------------------------------------------------------

    def _settle(
        self, chosen: Mapping[str, chosen_hosts.Choice], placed: dict[str, chosen_hosts.Choice]
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
            behind = outcome.result is AllocationResult.PLAN_AGAIN
            once_more = behind and self._plans < _MOST_PLANS
            again |= once_more
            # One that goes on changing is nobody's to refuse for good.
            self.given_up |= outcome.result is AllocationResult.GIVEN_UP or (
                behind and not once_more
            )
            self._pass_over(each.wanted, outcome.why, forever=not once_more)
        self._release(lost)
        self._confirm(written, placed)
        return again

    def _claim(
        self, wanted: Sequence[chosen_hosts.WantedClaim]
    ) -> tuple[list[chosen_hosts.TakenClaim], bool]:
        taken: list[chosen_hosts.TakenClaim] = []
        unanswered: list[chosen_hosts.RefusedClaim] = []
        again = behind = False
        for answer in self._claimer.take(self._request, wanted, self._deadline):
            if isinstance(answer, chosen_hosts.TakenClaim):
                self._taken[answer.wanted.consumer] = answer
                taken.append(answer)
                continue
            again |= self._not_taken(answer)
            behind |= answer.failure is chosen_hosts.ClaimRefusal.BEHIND
            if answer.failure is chosen_hosts.ClaimRefusal.UNAVAILABLE:
                unanswered.append(answer)
        if unanswered:
            raise ClaimsUnavailable(unanswered[0].detail)
        if behind and again:
            # Once for all servers: it is the same view that is behind.
            self._parts.sleep(0.01 * self._plans)
        return taken, again

    def _not_taken(self, answer: chosen_hosts.RefusedClaim) -> bool:
        """Take in why a host was not claimed; say whether a new plan is needed."""
        why = f"claim refused: {answer.detail or answer.failure.value}"
        again = answer.failure is chosen_hosts.ClaimRefusal.BEHIND
        if answer.failure is chosen_hosts.ClaimRefusal.GROUP and answer.group_hosts:
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

    def _confirm(
        self, written: Sequence[chosen_hosts.TakenClaim], placed: dict[str, chosen_hosts.Choice]
    ) -> None:
        if not written:
            return
        late = []
        for each, stands in zip(written, self._claimer.confirm(written), strict=True):
            consumer = each.wanted.consumer
            if stands:
                self._reservations.confirm(consumer)
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

    def _release(self, taken: Sequence[chosen_hosts.TakenClaim]) -> None:
        """Give claims back; of what is in doubt only what holds no room."""
        in_doubt = [each for each in taken if self._authority.is_in_doubt(each.wanted)]
        ended = [each for each in taken if each not in in_doubt]
        self._in_doubt += in_doubt
        for each in taken:
            self._taken.pop(each.wanted.consumer, None)
        try:
            if ended:
                self._claimer.release(ended)
        finally:
            if in_doubt:
                self._claimer.release_places(in_doubt)

    def _pass_over(
        self, wanted: chosen_hosts.WantedClaim, why: str, *, forever: bool = True
    ) -> None:
        self._trace.refuse(wanted.consumer, wanted.chosen, why)
        self._give_back(wanted.consumer)
        self.plan.refuse(wanted.chosen)
        if forever:
            self._refused.add(wanted.chosen.uuid)
        self.given_up |= self._parts.clock() > self._deadline

    def _give_back(self, consumer: str) -> None:
        held = self._held.pop(consumer, None)
        if held is not None:
            self._reservations.release(consumer, held)

    def _wanted(self, consumer: str, chosen: chosen_hosts.Choice) -> chosen_hosts.WantedClaim:
        places = self._places(consumer)
        return chosen_hosts.WantedClaim(
            consumer,
            chosen,
            resources_of(chosen),
            claim_facts.share_of(self._request, stays=(chosen.cell, chosen.host) in places),
            moves=bool(places),
        )


def with_group_hosts(request: requests.Request, hosts: Collection[str]) -> requests.Request:
    """Return a request whose group has members on some more hosts, by their names."""
    group = request.group
    if group is None:
        return request
    return attrs.evolve(request, group=attrs.evolve(group, hosts=group.hosts.union(hosts)))
