# SPDX-License-Identifier: Apache-2.0
"""Takes, confirms and releases claims for one scheduler process, one write a step.

The protocol is that of :mod:`claim_rules` and :mod:`group_rules`, one key at a
time: a place in the group (where its policy is strict), then one on the host;
in the same order the confirms; undone in reverse. :class:`ClaimBatches` does it
for all servers of a request: each is claimed by itself, but a step of the protocol
is one write for all of them, and a read only where somebody else wrote meanwhile.

:class:`LedgerClaimer` is what a decision is given
(:class:`pipeline.chosen_hosts.Claimer`): what is lost it tries again, what is in
doubt it settles by reading, both until the request's deadline; what is refused it
says in the words of whoever decides.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import (
    claim_rules,
    group_places,
    group_removal,
    group_rules,
)
from nova_nodb_scheduler.synchronizer.records import record_editor

LOG = logging.getLogger(__name__)


def _shows_none(key: records.RecordKey) -> records.Record | None:
    """Return nothing: no feed is followed that would have brought a record."""
    return None


@attrs.frozen
class ClaimView:
    """What a scheduler knows when it claims, all of one moment.

    :param cursor: how far the state behind the rest had come
    :param record: a host's record of claims, or a group's, as the scheduler's own
        store has it; None where it has none. By default there is no such store
    :param ended: see :data:`claim_rules.HasLeft`
    :param place_of: see :class:`group_rules.Joining`; no I/O
    """

    cursor: records.Cursor
    fits: claim_rules.Fits
    record: Callable[[records.RecordKey], records.Record | None] = _shows_none
    ended: claim_rules.HasLeft = claim_rules.never_left
    place_of: Callable[[str], str] = str


@attrs.frozen
class StandingClaim:
    """A claim that stands.

    :param member: with its place in a group, where it has one
    :param epoch: that it was written in, where the driver says it
    """

    granted: model.Granted
    member: group_model.GroupGranted | None = None
    epoch: str | None = None

    @property
    def claim(self) -> model.Claim:
        return self.granted.claim

    @property
    def claim_id(self) -> str:
        return self.granted.claim_id


@attrs.frozen
class InDoubt:
    """A claim that may or may not stand: :meth:`ClaimBatches.settle` it."""

    held: StandingClaim

    @property
    def claim(self) -> model.Claim:
        return self.held.claim

    @property
    def claim_id(self) -> str:
        return self.held.claim_id


#: What became of one claim.
Answer = (
    StandingClaim
    | InDoubt
    | model.GrantRefused
    | group_rules.PolicyBroken
    | record_editor.Unwritten
)

#: What became of a claim's write.
_Written = record_editor.EntryOutcome[model.Granted | model.GrantRefused]


class ClaimBatches:
    """Takes, confirms and releases claims; any thread of one scheduler may call it.

    Blocks for the back end.

    :param writer: id of this scheduler, kept in its claims
    :param make_id: maker of uuids
    :param lease_seconds: how long a pending claim is held; longer than the
        slowest write of an allocation takes
    :param claimable: says whether a host was published in the present epoch
    :param now_seconds: the back end's clock; only tests give another
    :param after_step: called with each of STEPS once done, to inject crashes
    :param pause: see :class:`record_editor.RecordEditor`
    :param count_lost: told of compare-and-sets that were lost, with how many
    :param count_absorbed: told of changes of a record that lost one and were then
        written to the same record all the same, with how many
    :param cache: shared with who settles here
    :param shown: see :class:`record_editor.BatchEditor`; by default nothing is shown
    :param memory: what this process knows of groups' members though the back end lost it
    """

    #: Points between which a scheduler may die.
    STEPS = ("joined", "claimed", "left", "member confirmed", "confirmed", "released")

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        writer: str,
        make_id: Callable[[], str],
        lease_seconds: float,
        claimable: Callable[[str], bool],
        *,
        now_seconds: Callable[[], float] | None = None,
        after_step: Callable[[str], None] = lambda step: None,
        pause: Callable[[int], None] = record_editor.pause_briefly,
        count_lost: Callable[[int], None] = lambda count: None,
        count_absorbed: Callable[[int], None] = lambda count: None,
        cache: record_editor.RecordCache | None = None,
        shown: record_editor.RecordsShown = lambda keys: None,
        memory: group_places.MemberMemory = group_places.MemberMemory(),  # noqa: B008 - no state
    ) -> None:
        self._synchronizer = synchronizer
        #: Id of this scheduler, kept in its claims.
        self.writer = writer
        self._make_id = make_id
        self._lease_seconds = lease_seconds
        self._claimable = claimable
        self._now_seconds = now_seconds or synchronizer.now_seconds
        self._after_step = after_step
        self._cache = cache or record_editor.RecordCache()
        self._read = claim_rules.ReadClaims().record
        self._editor = record_editor.BatchEditor(
            synchronizer,
            [known_namespaces.CLAIM_RECORDS, known_namespaces.GROUP_CLAIMS],
            pause=pause,
            count_lost=count_lost,
            count_absorbed=count_absorbed,
            cache=self._cache,
            shown=shown,
        )
        self._groups = group_places.GroupPlaces(
            self._editor,
            group_removal.GroupFloor(synchronizer),
            writer,
            lease_seconds,
            self._now_seconds,
            after_step,
            memory,
        )

    def take(
        self,
        wanted: Sequence[model.Claim],
        view: ClaimView,
        group: group_places.GroupView | None = None,
    ) -> dict[str, Answer]:
        """Claim for each consumer by itself; answers by consumer.

        Of an answer other than StandingClaim and InDoubt nothing stands that this call took.
        """
        ids = {claim.consumer: self._make_id() for claim in wanted}
        answers: dict[str, Answer] = {
            claim.consumer: model.GrantRefused(claim, model.RefusalReason.NOT_CLAIMABLE)
            for claim in wanted
            if not self._claimable(claim.host)
        }
        keys = {claim_rules.host_key(claim.host) for claim in wanted}
        if group is not None:
            keys.add(group_rules.group_key(group.group.uuid))
        # First of all: of another epoch nothing may be remembered, of groups neither.
        self._cache.see(view.cursor.epoch, filter(None, map(view.record, keys)))
        members: dict[str, str] = {}
        if group is not None:
            left = [claim for claim in wanted if claim.consumer not in answers]
            joined = self._groups.join(left, ids, view.cursor, group, view.place_of)
            for consumer, place in joined.items():
                if isinstance(place, str):
                    members[consumer] = place
                else:
                    answers[consumer] = place
        left = [claim for claim in wanted if claim.consumer not in answers]
        for claim, written in zip(left, self._claim(left, ids, view), strict=True):
            answers[claim.consumer] = self._with_member(claim, written, ids, group, members)
        outside = {
            claim.group_place: members[claim.consumer]
            for claim in left
            if claim.consumer in members
            and members[claim.consumer] == ids[claim.consumer]
            and not isinstance(answers[claim.consumer], StandingClaim | InDoubt)
        }
        if group is not None and outside:
            self._groups.leave({group.group.uuid: outside})
        self._check_epoch(answers, view, frozenset(ids.values()))
        return answers

    def settle(self, unsure: InDoubt, view: ClaimView) -> Answer | model.Gone:
        """Learn what became of a claim in doubt.

        After Gone it will never appear: a write still on its way is fenced.
        """
        claim, claim_id = unsure.claim, unsure.claim_id
        key = claim_rules.host_key(claim.host)
        find = functools.partial(claim_rules.find, claim=claim, claim_id=claim_id)
        found = self._editor.edit_each({key: claim_rules.on_host(key, find)})[key]
        if not isinstance(found, record_editor.Edited):
            return unsure
        if isinstance(found.answer, model.Gone):
            self._give_back([unsure.held], claim_id.__eq__)
            return found.answer
        answers: dict[str, Answer] = {
            claim.consumer: attrs.evolve(unsure.held, granted=found.answer)
        }
        self._check_epoch(answers, view, frozenset([claim_id]))
        return answers[claim.consumer]

    def confirm(self, held: Sequence[StandingClaim]) -> list[bool | None]:
        """Say that allocations are written; False where a claim is gone.

        What is left of one that is gone is given back. None where nobody can
        tell; the call may be repeated.
        """
        stands: dict[str, bool | None] = {}
        members = [each.member for each in held if each.member is not None]
        if members:
            stands.update(self._groups.confirm(members))
            self._after_step("member confirmed")
        left = [each for each in held if stands.get(each.granted.consumer, True)]
        confirmed = self._editor.edit_entries(
            [each.granted for each in left],
            lambda granted: claim_rules.host_key(granted.claim.host),
            lambda key, here: claim_rules.on_host(
                key, functools.partial(claim_rules.confirm_each, grants=here), self._read
            ),
        )
        stands.update(
            (each.granted.consumer, claim_rules.stands(outcome.answer))
            for each, outcome in zip(left, confirmed, strict=True)
        )
        self._after_step("confirmed")
        gone = [each for each in held if stands[each.granted.consumer] is False]
        if gone:
            self.release(gone)
        return [stands[each.granted.consumer] for each in held]

    def release(self, held: Sequence[StandingClaim]) -> None:
        """Give claims and places back, pending or confirmed; in doubt as well.

        Where the back end is away they end with their lease, or a reconciliation.
        """
        self._give_back(held, lambda _id: True)

    def release_places(self, held: Sequence[StandingClaim]) -> None:
        """Give places in groups back alone; the claims on hosts stand as they are."""
        places = _places(held, lambda _id: True)
        if places:
            self._groups.leave(places)

    def _give_back(self, held: Sequence[StandingClaim], is_own: Callable[[str], bool]) -> None:
        """Release what bears certain ids of claims and members.

        The same claim taken again is the one that stands, with its id: it may be
        another scheduler's, which was asked for the same server and relies on it.
        """
        by_host: dict[records.RecordKey, dict[str, str]] = {}
        for each in held:
            claim = each.granted.claim
            if is_own(each.granted.claim_id):
                on_host = by_host.setdefault(claim_rules.host_key(claim.host), {})
                on_host[claim.consumer] = each.granted.claim_id
        found = self._editor.edit_each(
            {
                key: claim_rules.on_host(key, functools.partial(claim_rules.release_each, ids=ids))
                for key, ids in by_host.items()
            }
        )
        self._after_step("released")
        kept = [each for each in found.values() if not isinstance(each, record_editor.Edited)]
        if kept:
            LOG.warning(
                "Claims on %(count)d hosts could not be given back; a pending one ends with "
                "its lease, a confirmed one with a reconciliation.",
                {"count": len(kept)},
            )
        places = _places(held, is_own)
        if places:
            self._groups.leave(places)

    # -- taking --------------------------------------------------------------------

    def _claim(
        self,
        wanted: Sequence[model.Claim],
        ids: Mapping[str, str],
        view: ClaimView,
    ) -> list[_Written]:
        if not wanted:
            return []
        now_seconds = self._now_seconds()
        taking = claim_rules.Taking(
            ids,
            self.writer,
            view.fits,
            view.cursor,
            now_seconds,
            now_seconds + self._lease_seconds,
            view.ended,
        )
        found = self._editor.edit_entries(
            wanted,
            lambda claim: claim_rules.host_key(claim.host),
            lambda key, here: claim_rules.on_host(
                key,
                functools.partial(claim_rules.take_each, claims=here, taking=taking),
                self._read,
            ),
            is_shown=view.record is not _shows_none,
        )
        self._after_step("claimed")
        return found

    def _with_member(
        self,
        claim: model.Claim,
        written: _Written,
        ids: Mapping[str, str],
        group: group_places.GroupView | None,
        members: Mapping[str, str],
    ) -> Answer:
        answer = written.answer
        in_doubt = answer is record_editor.Unwritten.UNKNOWN
        if in_doubt:
            answer = model.Granted(claim, ids[claim.consumer], model.ClaimState.PENDING)
        if not isinstance(answer, model.Granted):
            return answer
        member = None
        if group is not None:
            member = group_model.GroupGranted(group.group, members[claim.consumer], answer)
        held = StandingClaim(answer, member, written.epoch)
        return InDoubt(held) if in_doubt else held

    def _check_epoch(
        self, answers: dict[str, Answer], view: ClaimView, made_ids: frozenset[str]
    ) -> None:
        """Undo what was checked against a view of a former epoch.

        The epoch is that of the write, or one read after it.

        :param made_ids: those of this call; nothing else was its doing
        """
        held = {
            name: answer
            for name, answer in answers.items()
            if isinstance(answer, StandingClaim) and answer.epoch != view.cursor.epoch
        }
        if not held:
            return
        try:
            epoch = self._synchronizer.head().epoch
        except errors.BackendUnavailable:
            epoch = None
        told = {each.epoch for each in held.values()} - {None}
        if epoch == view.cursor.epoch and not told:
            return
        self._give_back(list(held.values()), made_ids.__contains__)
        for name, each in held.items():
            if epoch is None:
                answers[name] = record_editor.Unwritten.UNAVAILABLE
            else:
                detail = f"view of epoch {view.cursor.epoch}, now {epoch}"
                claim = each.granted.claim
                answers[name] = model.GrantRefused(claim, model.RefusalReason.EPOCH_CHANGED, detail)


def _places(
    held: Sequence[StandingClaim], is_own: Callable[[str], bool]
) -> dict[str, dict[group_model.Place, str]]:
    """Return the places that claims hold, with the ids of the members, by group."""
    places: dict[str, dict[group_model.Place, str]] = {}
    for each in held:
        if each.member is not None and is_own(each.member.member_id):
            of_group = places.setdefault(each.member.group_uuid, {})
            of_group[each.claim.group_place] = each.member.member_id
    return places


# -- what a decision is given ----------------------------------------------------------

#: Policies that rule hosts out.
Policy = group_model.Policy
STRICT = (group_model.Policy.AFFINITY, group_model.Policy.ANTI_AFFINITY)

_SOFT = {
    group_model.Policy.AFFINITY: group_model.Policy.SOFT_AFFINITY,
    group_model.Policy.ANTI_AFFINITY: group_model.Policy.SOFT_ANTI_AFFINITY,
}

#: What a refusal means to whoever decides.
_FAILURES = {
    model.RefusalReason.FULL: chosen_hosts.ClaimRefusal.NEXT_HOST,
    model.RefusalReason.HELD: chosen_hosts.ClaimRefusal.BEHIND,
    model.RefusalReason.STALE_VIEW: chosen_hosts.ClaimRefusal.BEHIND,
    model.RefusalReason.EPOCH_CHANGED: chosen_hosts.ClaimRefusal.BEHIND,
    model.RefusalReason.NOT_CLAIMABLE: chosen_hosts.ClaimRefusal.NEXT_HOST,
    model.RefusalReason.GROUP_POLICY: chosen_hosts.ClaimRefusal.GROUP,
}

#: Reasons of refusals that nobody who claimed meanwhile is behind.
_NO_CONFLICTS = frozenset(
    (
        record_editor.Unwritten.UNAVAILABLE.value,
        record_editor.Unwritten.UNREADABLE.value,
        model.RefusalReason.NOT_CLAIMABLE.value,
        model.RefusalReason.EPOCH_CHANGED.value,
    )
)

#: Answers after which nothing of a claim stands, and another try may take it.
_AGAIN = (None, record_editor.Unwritten.LOST)

#: Between two questions about what is in doubt.
_PAUSE_SECONDS = 0.05


def is_conflict(reason: str) -> bool:
    """Tell whether a claim was refused for what others wrote since the host was chosen.

    The request is decided again then. A compare-and-set that was lost is none where
    the claim, judged by what it was lost to, was written to the same host.
    """
    return reason not in _NO_CONFLICTS


class ClaimViews(Protocol):
    """What shows the present to a claimer; any thread, without I/O."""

    def view(self, request: requests.Request) -> ClaimView | None:
        """Return what is known now; None while no feed is followed."""

    def members(self, group: requests.Group) -> group_rules.Known:
        """Return the names of the hosts of a group's members, as of the view or later."""


class ClaimMeter:
    """What counts claims, none of it by itself; none of it blocks."""

    def claimed(self, count: int, seconds: float) -> None:
        """Claims of one call that were taken, and how long the call took."""

    def claim_refused(self, reason: str) -> None:
        """One claim that was not taken; see :func:`is_conflict`."""

    def claims_confirmed(self, count: int, gone: int, seconds: float) -> None:
        """Claims of one call that were confirmed, and that were gone."""


def _count(counting: Callable[..., None], *figures: Any) -> None:
    """Have something counted: what was claimed stands, whatever becomes of that."""
    try:
        counting(*figures)
    except Exception:
        LOG.exception("Claims could not be counted.")


class LedgerClaimer:
    """Claims for one scheduler process; any thread. Blocks for the back end.

    :param strict: group policies that a filter enforces; others are noted only
    :param confirm_seconds: how long a confirm is tried before the claim is
        taken for gone
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        batches: ClaimBatches,
        views: ClaimViews,
        *,
        strict: frozenset[group_model.Policy] = frozenset(STRICT),
        confirm_seconds: float = 5.0,
        meter: ClaimMeter = ClaimMeter(),  # noqa: B008 - it has no state
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._batches = batches
        self._views = views
        self._strict = strict
        self._confirm_seconds = confirm_seconds
        self._meter = meter
        self._clock = clock
        self._sleep = sleep

    def take(
        self,
        request: requests.Request,
        wanted: Sequence[chosen_hosts.WantedClaim],
        deadline: float,
    ) -> list[chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim]:
        """See :class:`pipeline.chosen_hosts.Claimer`."""
        started = self._clock()
        answers: dict[str, chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim] = {}
        left = {each.consumer: each for each in wanted}
        while left:
            view = self._views.view(request)
            if view is None:
                for each in left.values():
                    answers[each.consumer] = _unavailable(each, "the feed is not followed")
                break
            # After the view: a member that it lacks is one of the record's then.
            group = self._group(request)
            taken = self._batches.take([_claim(each) for each in left.values()], view, group)
            for consumer, found in taken.items():
                answer: Answer | None = found
                if isinstance(found, InDoubt):
                    answer = self._settled(found, view, deadline)
                if answer in _AGAIN and self._clock() < deadline:
                    continue
                answers[consumer] = self._told(left.pop(consumer), answer)
        taken_count = sum(isinstance(each, chosen_hosts.TakenClaim) for each in answers.values())
        _count(self._meter.claimed, taken_count, self._clock() - started)
        return [answers[each.consumer] for each in wanted]

    def confirm(self, taken: Sequence[chosen_hosts.TakenClaim]) -> list[bool]:
        """See :class:`pipeline.chosen_hosts.Claimer`."""
        started = self._clock()
        stands: dict[str, bool] = {}
        left = list(taken)
        while left:
            found = self._batches.confirm([each.grant for each in left])
            stands.update(
                (each.wanted.consumer, stood)
                for each, stood in zip(left, found, strict=True)
                if stood is not None
            )
            left = [each for each in left if each.wanted.consumer not in stands]
            if left and self._clock() - started > self._confirm_seconds:
                # Whether they stand nobody can tell: so they must not be built on.
                self._batches.release([each.grant for each in left])
                stands.update((each.wanted.consumer, False) for each in left)
                break
            if left:
                self._sleep(_PAUSE_SECONDS)
        gone = sum(not stood for stood in stands.values())
        _count(self._meter.claims_confirmed, len(stands) - gone, gone, self._clock() - started)
        return [stands[each.wanted.consumer] for each in taken]

    def release(self, taken: Sequence[chosen_hosts.TakenClaim]) -> None:
        """See :class:`pipeline.chosen_hosts.Claimer`."""
        self._batches.release([each.grant for each in taken])

    def release_places(self, taken: Sequence[chosen_hosts.TakenClaim]) -> None:
        """See :class:`pipeline.chosen_hosts.Claimer`."""
        self._batches.release_places([each.grant for each in taken])

    # -- parts of taking ---------------------------------------------------------------

    def _group(self, request: requests.Request) -> group_places.GroupView | None:
        group = judged_group(request, self._strict)
        if group is None or request.group is None:
            return None
        return group_places.GroupView(group, self._views.members(request.group))

    def _settled(self, unsure: InDoubt, view: ClaimView, deadline: float) -> Answer | None:
        """Return what became of a claim in doubt; None if it is to be tried again."""
        while True:
            found = self._batches.settle(unsure, view)
            if isinstance(found, model.Gone):
                return None
            if not isinstance(found, InDoubt):
                return found
            if self._clock() > deadline:
                self._batches.release([unsure.held])
                return record_editor.Unwritten.UNAVAILABLE
            self._sleep(_PAUSE_SECONDS)

    def _told(
        self, wanted: chosen_hosts.WantedClaim, answer: Answer | None
    ) -> chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim:
        if isinstance(answer, StandingClaim):
            return chosen_hosts.TakenClaim(wanted, answer)
        told, reason = _refusal(wanted, answer)
        _count(self._meter.claim_refused, reason)
        return told


def judged_group(
    request: requests.Request, strict: Collection[group_model.Policy]
) -> group_model.ServerGroup | None:
    """Return the group in whose record a request's servers have places; None without one.

    :param strict: policies that rule hosts out; of others members are noted only
    """
    asked = request.group
    if asked is None or not asked.uuid:
        return None
    names = {asked.policy} if asked.policy else asked.policies
    policy = next((each for each in STRICT if each.value in names), None)
    if policy is None:
        return None
    forced = (request.force_hosts or request.force_nodes) and not request.check_type
    if forced or policy not in strict:
        # No filter rules such a host out; others are to know of the member.
        policy = _SOFT[policy]
    return group_model.ServerGroup(asked.uuid, policy, asked.max_server_per_host)


def _claim(wanted: chosen_hosts.WantedClaim) -> model.Claim:
    return model.Claim(
        wanted.consumer,
        wanted.chosen.uuid,
        wanted.resources,
        node=wanted.node,
        place=wanted.chosen.host,
    )


def _unavailable(wanted: chosen_hosts.WantedClaim, detail: str) -> chosen_hosts.RefusedClaim:
    return chosen_hosts.RefusedClaim(wanted, chosen_hosts.ClaimRefusal.UNAVAILABLE, detail)


def _refusal(
    wanted: chosen_hosts.WantedClaim, answer: Answer | None
) -> tuple[chosen_hosts.RefusedClaim, str]:
    """Return an answer in the words of whoever decides, and its reason as it is counted."""
    hosts = None
    if isinstance(answer, group_rules.PolicyBroken):
        hosts, answer = answer.hosts, answer.refused
    if isinstance(answer, model.GrantRefused):
        reason = answer.reason.value
        detail = f"{reason}: {answer.detail}" if answer.detail else reason
        return chosen_hosts.RefusedClaim(wanted, _FAILURES[answer.reason], detail, hosts), reason
    if answer is record_editor.Unwritten.UNREADABLE:
        detail = "a record of its claims, or of its server group, cannot be read here"
        return chosen_hosts.RefusedClaim(
            wanted, chosen_hosts.ClaimRefusal.NEXT_HOST, detail
        ), answer.value
    if answer is record_editor.Unwritten.REFUSED:
        detail = "no record may have its name"
        return chosen_hosts.RefusedClaim(
            wanted, chosen_hosts.ClaimRefusal.NEXT_HOST, detail
        ), answer.value
    if answer in _AGAIN:
        detail = "others won every round"
        return chosen_hosts.RefusedClaim(
            wanted, chosen_hosts.ClaimRefusal.NEXT_HOST, detail
        ), "lost"
    detail = "the synchronizer's back end does not answer"
    return _unavailable(wanted, detail), record_editor.Unwritten.UNAVAILABLE.value
