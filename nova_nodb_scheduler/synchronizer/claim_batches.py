# SPDX-License-Identifier: Apache-2.0
"""Claims of one request's servers: each by itself, all of them in one write.

The protocol is that of :mod:`claims` and :mod:`group_claims`, one key at a
time: a place in the group (where its policy is strict), then one on the host;
in the same order the confirms; undone in reverse. A step of the protocol is
one write for all servers, and a read only where somebody else wrote meanwhile.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import (
    claim_edits,
    claim_rules,
    claims,
    contract,
    group_claims,
    group_floor,
    group_places,
    group_rules,
    latest_records,
    record_editor,
)

LOG = logging.getLogger(__name__)


@attrs.frozen
class View:
    """What a scheduler knows when it claims, all of one moment.

    :param cursor: how far the state behind the rest had come
    :param record: a host's record of claims, or a group's, as the scheduler's own
        store has it
    :param ended: see :data:`claim_rules.Ended`
    :param place_of: see :class:`group_rules.Joining`; no I/O
    """

    cursor: records.Cursor
    fits: claim_rules.Fits
    record: Callable[[records.RecordKey], records.Record | None] = lambda key: None
    ended: claim_rules.Ended = claim_rules.never_ended
    place_of: Callable[[str], str] = str


@attrs.frozen
class Held:
    """A claim that stands.

    :param member: with its place in a group, where it has one
    :param epoch: that it was written in, where the driver says it
    """

    granted: model.Granted
    member: group_model.GroupGranted | None = None
    epoch: str | None = None


@attrs.frozen
class Doubt:
    """A claim that may or may not stand: :meth:`ClaimBatches.settle` it."""

    held: Held


#: What became of one claim.
Answer = Held | Doubt | model.Refused | group_rules.Broken | record_editor.Unwritten

#: What became of a claim's write.
_Written = claim_edits.EntryOutcome[model.Granted | model.Refused]


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
    :param latest: shared with who settles here
    :param shown: see :class:`claim_edits.ClaimEdits`; by default nothing is shown
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
        after_step: Callable[[str], None] = claims.no_crash,
        pause: Callable[[int], None] = record_editor.pause_briefly,
        count_lost: Callable[[int], None] = lambda count: None,
        count_absorbed: Callable[[int], None] = lambda count: None,
        latest: latest_records.LatestRecords | None = None,
        shown: claim_edits.Shown = lambda keys: None,
    ) -> None:
        self._synchronizer = synchronizer
        self._writer = writer
        self._make_id = make_id
        self._lease_seconds = lease_seconds
        self._claimable = claimable
        self._now_seconds = now_seconds or synchronizer.now_seconds
        self._after_step = after_step
        self._edits = claim_edits.ClaimEdits(
            synchronizer,
            pause,
            count_lost,
            count_absorbed,
            latest or latest_records.LatestRecords(),
            shown,
        )
        self._groups = group_places.GroupPlaces(
            self._edits,
            group_floor.GroupFloor(synchronizer),
            writer,
            lease_seconds,
            self._now_seconds,
            after_step,
        )

    def take(
        self, wanted: Sequence[model.Claim], view: View, group: group_places.GroupView | None = None
    ) -> dict[str, Answer]:
        """Claim for each consumer by itself; answers by consumer.

        Of an answer other than Held and Doubt nothing stands that this call took.
        """
        ids = {claim.consumer: self._make_id() for claim in wanted}
        answers: dict[str, Answer] = {
            claim.consumer: model.Refused(claim, model.Reason.NOT_CLAIMABLE)
            for claim in wanted
            if not self._claimable(claim.host)
        }
        keys = {claims.key_of(claim.host) for claim in wanted}
        if group is not None:
            keys.add(group_claims.key_of(group.group.uuid))
        # First of all: of another epoch nothing may be remembered, of groups neither.
        self._edits.see(view.cursor.epoch, filter(None, map(view.record, keys)))
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
            and not isinstance(answers[claim.consumer], Held | Doubt)
        }
        if group is not None and outside:
            self._groups.leave({group.group.uuid: outside})
        self._check_epoch(answers, view, frozenset(ids.values()))
        return answers

    def settle(self, doubt: Doubt, view: View) -> Answer | model.Gone:
        """Learn what became of a claim in doubt.

        After Gone it will never appear: a write still on its way is fenced.
        """
        claim, claim_id = doubt.held.granted.claim, doubt.held.granted.claim_id
        unknown = model.Unknown(claim, claim_id)
        found = self._edits.hosts(
            {claim.host: functools.partial(claim_rules.find, unknown=unknown)}
        )[claim.host]
        if not isinstance(found, record_editor.Edited):
            return doubt
        if isinstance(found.answer, model.Gone):
            self._give_back([doubt.held], claim_id.__eq__)
            return found.answer
        answers: dict[str, Answer] = {
            claim.consumer: attrs.evolve(doubt.held, granted=found.answer)
        }
        self._check_epoch(answers, view, frozenset([claim_id]))
        return answers[claim.consumer]

    def confirm(self, held: Sequence[Held]) -> list[bool | None]:
        """Say that allocations are written; False where a claim is gone.

        What is left of one that is gone is given back. None where nobody can
        tell; the call may be repeated.
        """
        stands: dict[str, bool | None] = {}
        members = [each.member for each in held if each.member is not None]
        if members:
            stands.update(self._groups.confirm(members))
            self._after_step("member confirmed")
        left = [each for each in held if stands.get(each.granted.claim.consumer, True)]
        stands.update(self._confirm_claims([each.granted for each in left]))
        self._after_step("confirmed")
        gone = [each for each in held if stands[each.granted.claim.consumer] is False]
        if gone:
            self.release(gone)
        return [stands[each.granted.claim.consumer] for each in held]

    def release(self, held: Sequence[Held]) -> None:
        """Give claims and places back, pending or confirmed; in doubt as well.

        Where the back end is away they end with their lease, or a reconciliation.
        """
        self._give_back(held, lambda _id: True)

    def _give_back(self, held: Sequence[Held], is_own: Callable[[str], bool]) -> None:
        """Release what bears certain ids of claims and members.

        The same claim taken again is the one that stands, with its id: it may be
        another scheduler's, which was asked for the same server and relies on it.
        """
        by_host: dict[str, dict[str, str]] = {}
        places: dict[str, dict[group_model.Place, str]] = {}
        for each in held:
            claim = each.granted.claim
            if is_own(each.granted.claim_id):
                by_host.setdefault(claim.host, {})[claim.consumer] = each.granted.claim_id
            if each.member is not None and is_own(each.member.member_id):
                of_group = places.setdefault(each.member.group.uuid, {})
                of_group[claim.group_place] = each.member.member_id
        found = self._edits.hosts(
            {
                host: functools.partial(claim_rules.release_each, ids=ids)
                for host, ids in by_host.items()
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
        if places:
            self._groups.leave(places)

    # -- taking --------------------------------------------------------------------

    def _claim(
        self,
        wanted: Sequence[model.Claim],
        ids: Mapping[str, str],
        view: View,
    ) -> list[_Written]:
        if not wanted:
            return []
        now_seconds = self._now_seconds()
        taking = claim_rules.Taking(
            ids,
            self._writer,
            view.fits,
            view.cursor,
            now_seconds,
            now_seconds + self._lease_seconds,
            view.ended,
        )
        found = claim_edits.edit_entries(
            self._edits.hosts,
            wanted,
            lambda claim: claim.host,
            functools.partial(claim_rules.take_each, taking=taking),
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
        held = Held(answer, member, written.epoch)
        return Doubt(held) if in_doubt else held

    def _check_epoch(
        self, answers: dict[str, Answer], view: View, made_ids: frozenset[str]
    ) -> None:
        """Undo what was checked against a view of a former epoch.

        The epoch is that of the write, or one read after it.

        :param made_ids: those of this call; nothing else was its doing
        """
        held = {
            name: answer
            for name, answer in answers.items()
            if isinstance(answer, Held) and answer.epoch != view.cursor.epoch
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
                answers[name] = model.Refused(claim, model.Reason.EPOCH_CHANGED, detail)

    # -- confirming ------------------------------------------------------------------

    def _confirm_claims(self, grants: Sequence[model.Granted]) -> dict[str, bool | None]:
        found = claim_edits.edit_entries(
            self._edits.hosts, grants, lambda granted: granted.claim.host, claim_rules.confirm_each
        )
        return {
            granted.claim.consumer: outcome.stands
            for granted, outcome in zip(grants, found, strict=True)
        }
