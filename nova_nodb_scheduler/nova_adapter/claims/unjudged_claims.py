# SPDX-License-Identifier: Apache-2.0
"""What stands for a claim where none can be judged: a note for others, and a look afterwards.

Before states and mirror are proved, or while they are not used, nobody here can
say whether a claim fits. Nova's own code chooses and allocates then. Two things
keep capacity all the same:

* Where the back end answers, the server is *noted* in its host's claims, whatever
  they say: whoever judges a claim there from now on counts it, and should this process
  die, it is known whose the allocation is. Where anybody judges claims a strict server
  group's policy is judged all the same, by the members that its record names: those
  that whoever sent the request cannot know of yet.
* After the write, what Placement shows is verified (:mod:`..placement.allocations.verification`),
  together with the pending claims that were noted before the own one. Who noted
  a claim later has judged it beside ours, so of two that do not fit together
  exactly the second one gives way.

Claims are read before Placement: one that is confirmed by then is written, and
Placement shows it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from nova import exception as nova_exception

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter.claims import outside_claims
from nova_nodb_scheduler.nova_adapter.placement.allocations import verification
from nova_nodb_scheduler.scheduling.namespaces import claim_facts
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.scheduling.reservations import claim_fit
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import (
    claim_rules,
    claim_views,
    group_places,
    group_rules,
    ledger_claimer,
)
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

#: How long a back end that did not answer is not asked again: each question
#: costs a request its client's timeout.
_REST_SECONDS = 5.0

#: One that answers later is let rest as well, where nobody counts what is noted:
#: a request waits for each of its servers.
_LATE_SECONDS = 1.0

#: Claims by consumer.
_Held = Mapping[str, model.HeldClaim]


class _Views:
    """A view that refuses nothing, and remembers who was there before. One claim's."""

    def __init__(self, synchronizer: contract.Synchronizer, place_of: Callable[[str], str]) -> None:
        self._synchronizer = synchronizer
        self._place_of = place_of
        #: Claims of others in the record that the own one was added to; None where
        #: the own one stood there already.
        self.earlier: _Held | None = None

    def view(self, request: requests.Request) -> ledger_claimer.ClaimView | None:
        """See :class:`ledger_claimer.ClaimViews`."""
        try:
            return ledger_claimer.ClaimView(
                self._synchronizer.head(), self._fits, place_of=self._place_of
            )
        except errors.BackendUnavailable:
            return None

    def _fits(self, claim: model.Claim, record: model.ClaimRecord) -> bool:
        # Called with what each compare-and-set is made on: the last one won.
        self.earlier = dict(record.claims)
        return True

    def members(self, group: requests.Group) -> group_rules.Known:
        """See :class:`ledger_claimer.ClaimViews`: older members are the filters' to look at."""
        return {}


@attrs.frozen
class NotedClaim:
    """A claim that stands for others to see. One thread's."""

    _notes: ClaimNotes
    _own: ledger_claimer.LedgerClaimer
    _taken: chosen_hosts.TakenClaim
    _earlier: _Held | None

    def claimed_amounts(self) -> verification.ClaimedAmounts:
        """Return what others may be about to write on the host, noted before the own claim.

        Without an answer of the back end all that was noted then counts.
        """
        wanted = self._taken.wanted
        host, earlier = wanted.chosen.uuid, self._earlier
        try:
            standing = self._notes.read(host)
        except (errors.BackendUnavailable, errors.UndecodableRecord):
            standing = earlier or {}
        pending = {
            consumer: dict(held.resources)
            for consumer, held in standing.items()
            if consumer != wanted.consumer
            and held.state is model.ClaimState.PENDING
            and (earlier is None or _is_of(earlier.get(consumer), held))
        }
        return {host: pending}

    def confirm(self) -> bool:
        """Say that the allocation stands; False where the note's lease ended before.

        Where nobody judges claims nobody built on the note: without an answer of the
        back end it lapses, which tells whose the allocation is as well.
        """
        if self._notes.are_judged():
            return self._own.confirm([self._taken])[0]
        return self._notes.confirmed_once(self._taken)

    def release(self) -> None:
        """Take the note back."""
        self._own.release([self._taken])

    def release_place(self) -> None:
        """Take back what is noted in a server group; the room stands until the lease ends."""
        self._own.release_places([self._taken])


@attrs.frozen
class AgainstPolicy:
    """A host would break a strict group's policy: no claim is noted there.

    :param why: for a log line
    """

    why: str


def _is_of(before: model.HeldClaim | None, held: model.HeldClaim) -> bool:
    return before is not None and before.claim_id == held.claim_id


@attrs.define(eq=False, slots=False)
class ClaimNotes:
    """Notes claims without judging them; any thread. Blocks for the back end.

    :param batches: of this process, for hosts that it need not know
    :param deadline_seconds: how long a claim is tried
    :param strict: group policies that are judged; of others members are only noted
    :param are_judged: says whether anybody judges claims; where nobody does, a group has
        no record, and its policy is Nova's filters' alone
    :param is_there: says whether a server is on a node already, by its uuid and the node's, as
        far as this process knows; no I/O. Resized there, it has what it had beside the note
    :param memory: what this process knows of groups' members that the back end may not tell;
        where it cannot be asked a strict group's policy is judged by these
    :param clock: monotonic seconds
    """

    _synchronizer: contract.Synchronizer
    _batches: ledger_claimer.ClaimBatches
    _deadline_seconds: float
    _strict: frozenset[ledger_claimer.Policy] = frozenset()
    are_judged: Callable[[], bool] = lambda: True
    _is_there: Callable[[str, str], bool] = lambda consumer, node: False
    _memory: group_places.MemberMemory = attrs.field(factory=group_places.MemberMemory)
    _clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _rests_until: float = attrs.field(init=False, default=float("-inf"))

    def note(self, move: outside_claims.OutsideMove) -> NotedClaim | AgainstPolicy | None:
        """Note a server on its host; None where that is not possible now. Raises nothing."""
        began = self._clock()
        with self._lock:
            rests = began < self._rests_until
        try:
            if not rests:
                noted = self._note(move)
                self._rest_if_late(began)
                if noted is not None:
                    return noted
        except errors.NOT_USABLE as error:
            self._rest(str(error))
        except Exception:
            # Without it the allocation is still looked at.
            LOG.exception("Server %(server)s cannot be noted.", {"server": move.consumer})
        return self._broken_by_memory(move) if self._strict else None

    def _broken_by_memory(self, move: outside_claims.OutsideMove) -> AgainstPolicy | None:
        """Judge a group's policy by what this process knows; None where nothing speaks against."""
        try:
            broken = self._why_broken(move)
        except Exception:
            LOG.exception("Whether a group's policy is kept cannot be told.")
            return None
        return AgainstPolicy(broken) if broken else None

    def _why_broken(self, move: outside_claims.OutsideMove) -> str:
        group = ledger_claimer.judged_group(move.request, self._strict)
        if group is None or not self.are_judged():
            return ""
        place = self._memory.place_of(move.host)
        lost = self._memory.of(group.uuid, None)
        if not lost or place == move.host:
            return ""
        members = {
            (consumer, self._memory.place_of(host)): member
            for (consumer, host), member in lost.items()
        }
        record = group_model.GroupRecord(group.uuid, members)
        claim = model.Claim(move.consumer, move.host, move.resources, place=place)
        return group_rules.policy_broken(record, claim, group, {})

    def remember(self, move: outside_claims.OutsideMove) -> AgainstPolicy | None:
        """Keep a member that nobody can be told of until the back end can.

        Two threads may have judged before either was kept: it is looked at once more.
        """
        group = ledger_claimer.judged_group(move.request, self._strict)
        if group is None or not self.are_judged():
            return None
        place = move.consumer, self._memory.place_of(move.host)
        member_id = self._memory.add(group.uuid, place, self._batches.writer)
        broken = self._broken_by_memory(move)
        if broken is not None:
            self._memory.left(group.uuid, {place: member_id})
        return broken

    def _note(self, move: outside_claims.OutsideMove) -> NotedClaim | AgainstPolicy | None:
        self._synchronizer.open()
        views = _Views(self._synchronizer, self._memory.place_of)
        if move.request.group is not None and not self.are_judged():
            move = attrs.evolve(move, request=attrs.evolve(move.request, group=None))
        place = self._place(move)
        # A group's record has hosts by their names: without it nothing can be compared.
        strict = self._strict if place else frozenset()
        own = ledger_claimer.LedgerClaimer(self._batches, views, strict=strict, clock=self._clock)
        chosen = chosen_hosts.Choice(-1, move.host, "", place, "", 0.0, ())
        stays = self._is_there(move.consumer, move.host)
        share = claim_facts.share_of(move.request, stays=stays)
        wanted = chosen_hosts.WantedClaim(move.consumer, chosen, move.resources, share, moves=True)
        [answer] = own.take(move.request, [wanted], self._clock() + self._deadline_seconds)
        if isinstance(answer, chosen_hosts.TakenClaim):
            return NotedClaim(self, own, answer, views.earlier)
        if answer.failure is chosen_hosts.ClaimRefusal.GROUP:
            return AgainstPolicy(answer.detail)
        if answer.failure is chosen_hosts.ClaimRefusal.UNAVAILABLE:
            self._rest(answer.detail)
        else:
            LOG.info(
                "Server %(server)s is not noted on node %(node)s: %(why)s",
                {"server": move.consumer, "node": move.host, "why": answer.detail},
            )
        return None

    def _place(self, move: outside_claims.OutsideMove) -> str:
        """Return the host's name for a server of a group; empty where it is not known."""
        group = move.request.group
        if group is None or not group.uuid:
            return ""
        views = claim_views.DirectViews(
            self._synchronizer, move.host, lambda snapshot: claim_fit.fits_anything
        )
        try:
            place = views.place()
        except errors.UndecodableRecord:
            place = None
        if place is None:
            # What lost its data may not have been told of the node again.
            known = self._memory.place_of(move.host)
            place = "" if known == move.host else known
        return place

    def confirmed_once(self, taken: chosen_hosts.TakenClaim) -> bool:
        """Confirm a note without trying again; False where it is gone."""
        began = self._clock()
        [stands] = self._batches.confirm([taken.grant])
        if stands is None:
            self._rest("a note cannot be confirmed")
        else:
            self._rest_if_late(began)
        return stands is not False

    def read(self, host: str) -> _Held:
        """Return what is claimed on a host now.

        :raises BackendUnavailable: nobody can tell
        :raises UndecodableRecord: it is damaged, or a newer release wrote it
        """
        key = claim_rules.host_key(host)
        record = self._synchronizer.read([key]).get(key)
        if record is None or record.deleted:
            return {}
        state: Any = codec.decode(record.payload).state
        return model.ClaimRecord.from_state(host, state, record.version).claims

    def _rest_if_late(self, began: float) -> None:
        took_seconds = self._clock() - began
        if took_seconds > _LATE_SECONDS and not self.are_judged():
            self._rest(f"the back end took {took_seconds:.1f} s")

    def _rest(self, why: str) -> None:
        with self._lock:
            self._rests_until = self._clock() + _REST_SECONDS
        LOG.warning(
            "Allocations by Nova's own path are verified without claims: %(why)s", {"why": why}
        )


@attrs.frozen
class UnjudgedClaimsMaker:
    """What one scheduler worker makes :class:`UnjudgedClaims` of.

    :param notes: None where nobody claims
    :param tell_left: see :class:`UnjudgedClaims`
    """

    verifier: verification.AllocationVerifier
    notes: ClaimNotes | None
    tell_left: verification.TellLeft = verification.tell_nobody

    def claims(self, summaries: Mapping[str, Any] | None) -> UnjudgedClaims:
        """Return what allocates for one request.

        :param summaries: ``provider_summaries`` of Placement's offer
        """
        capacities = {
            provider: {name: each["capacity"] for name, each in summary["resources"].items()}
            for provider, summary in (summaries or {}).items()
        }
        return UnjudgedClaims(self.verifier, self.notes, capacities, self.tell_left)


@attrs.define(eq=False, slots=False)
class UnjudgedClaims:
    """Allocates as Nova does, and verifies it: :class:`outside_claims.OutsideClaimer`. Any thread.

    :param notes: None where nobody claims, so nobody would count the note or end it
    :param capacities: by provider and class, as Placement just offered them
    :param tell_left: told of what may be left, for a note may be lost with the back end
    """

    _verifier: verification.AllocationVerifier
    _notes: ClaimNotes | None = None
    _capacities: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict)
    _tell_left: verification.TellLeft = verification.tell_nobody

    def stop(self) -> None:
        """Nothing is kept."""

    def claimed(
        self,
        move: outside_claims.OutsideMove,
        allocate: outside_claims.Allocate,
        take_back: Callable[[], None],
    ) -> bool:
        """Note it, have it allocated, verify; False if the next host is to be tried."""
        noted = self._notes.note(move) if self._notes is not None else None
        if isinstance(noted, AgainstPolicy):
            LOG.info(
                "Server %(server)s cannot go to node %(node)s: %(why)s",
                {"server": move.consumer, "node": move.host, "why": noted.why},
            )
            return False
        wanted = verification.VerifiedAllocation(
            move.consumer,
            move.amounts or {move.host: move.resources},
            capacities=self._capacities,
            repeats=move.repeats,
            is_alone=noted is None,
        )
        if noted is None:
            wanted = self._verifier.without_former(wanted)
            if not self._told(move, lambda: self._verifier.allocated(wanted, allocate))():
                return False
            noted = self._noted_late(move, wanted)
            if noted is None:
                return True
            if isinstance(noted, NotedClaim):
                return self._confirmed(move, noted, wanted)
            LOG.info(
                "Server %(server)s cannot stay on node %(node)s: %(why)s",
                {"server": move.consumer, "node": move.host, "why": noted.why},
            )
            self._take_back(move, wanted)
            return False
        try:
            wanted = self._verifier.without_former(wanted)
            amounts = noted.claimed_amounts
            stands = self._told(move, lambda: self._verifier.allocated(wanted, allocate, amounts))()
        except nova_exception.NovaException as error:
            if verification.may_be_left(error):
                noted.release_place()
            else:
                noted.release()
            raise
        # Of any other error nobody knows what was written, or is written yet: the
        # note stands until its lease ends, and tells whose allocation that is.
        if stands is None:
            # It may come yet, and takes room then, though the server goes elsewhere.
            noted.release_place()
            return False
        if not stands:
            noted.release()
            return False
        return self._confirmed(move, noted, wanted)

    def _noted_late(
        self, move: outside_claims.OutsideMove, wanted: verification.VerifiedAllocation
    ) -> NotedClaim | AgainstPolicy | None:
        """Note a member of a group behind its write, where the back end answers again.

        Whoever noted another member meanwhile did not see this one.
        """
        if self._notes is None or not move.group_uuid:
            return None
        try:
            noted = self._notes.note(move) or self._notes.remember(move)
        except BaseException:
            # A green thread's end.
            self._withdrawn(move, wanted)
            raise
        if noted is None:
            LOG.warning(
                "Server %(server)s of group %(group)s goes to node %(node)s and nobody can be "
                "told: nova-compute's own look at the group's policy is left.",
                {"server": move.consumer, "group": move.group_uuid, "node": move.host},
            )
        return noted

    def _confirmed(
        self,
        move: outside_claims.OutsideMove,
        noted: NotedClaim,
        wanted: verification.VerifiedAllocation,
    ) -> bool:
        """Say for others that it stands; taken back where nobody counts it any more."""
        try:
            if noted.confirm():
                return True
        except BaseException:
            if self._withdrawn(move, wanted):
                noted.release()
            raise
        LOG.warning(
            "The claim of server %(server)s on node %(node)s ended before it was confirmed; "
            "its allocation there is taken back.",
            {"server": move.consumer, "node": move.host},
        )
        self._take_back(move, wanted)
        return False

    def _withdrawn(
        self, move: outside_claims.OutsideMove, wanted: verification.VerifiedAllocation
    ) -> bool:
        """Withdraw what nobody answers with, so that it is nobody's; False where it may be left."""
        if self._verifier.withdraw(wanted) is not verification.Withdrawal.UNKNOWN:
            return True
        self.may_be_left(move)
        return False

    def _take_back(
        self, move: outside_claims.OutsideMove, wanted: verification.VerifiedAllocation
    ) -> None:
        with self._telling(move):
            self._verifier.take_back(wanted)

    def may_be_left(self, move: outside_claims.OutsideMove) -> None:
        """See :class:`outside_claims.UnjudgedClaimer`."""
        self._tell_left(move.consumer, move.host, move.resources)

    @contextlib.contextmanager
    def _telling(self, move: outside_claims.OutsideMove) -> Iterator[None]:
        """Tell of it where an error leaves open what was written; a green thread's end, too."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, nova_exception.NovaException) or verification.may_be_left(
                error
            ):
                self.may_be_left(move)
            raise

    def verified(
        self, move: outside_claims.OutsideMove, allocate: outside_claims.Allocate
    ) -> outside_claims.Allocate:
        """Return what allocates under a claim on the node, and verifies it.

        The claim was judged by what is known of the node, which may be nothing of what
        its provider gives: what lost its data is not told of all providers again at
        once. And others may write there whose claims nobody could judge. Devices,
        bandwidth and shared storage are other providers', which no claim covers.
        """
        wanted = verification.VerifiedAllocation(
            move.consumer,
            move.amounts or {move.host: move.resources},
            capacities=self._capacities,
            repeats=move.repeats,
        )
        return self._told(
            move,
            lambda: self._verifier.allocated(self._verifier.without_former(wanted), allocate),
        )

    def _told(
        self, move: outside_claims.OutsideMove, allocate: outside_claims.Allocate
    ) -> outside_claims.Allocate:
        def told() -> bool | None:
            with self._telling(move):
                granted = allocate()
            if granted is None:
                self.may_be_left(move)
            return granted

        return told
