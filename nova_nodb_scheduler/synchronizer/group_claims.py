# SPDX-License-Identifier: Apache-2.0
"""Claims of server group members: a place in the group, then one on the host.

The naive way, to look at the group's members and then claim a host, lets two
schedulers put two members of an anti-affinity group on one host, each having
looked before the other claimed (measured on stock Nova: 7 of 12 servers in
ERROR, 21 reschedules). Here the group's policy is checked by a
compare-and-set on the group's own record, which names pending members too.

Portable protocol, one key at a time:

1. add a pending member to the group's record (the policy is checked here);
2. take the claim on the host;
3. (the caller writes the allocation;)
4. confirm the member, then the claim.

Undone in reverse: the claim, then the member. A crash after 1 leaves a member
that ends with its lease. A crash between the two confirms leaves a member
without a claim, which counts too much until a reconciliation; the other order
would leave a server without a member, and break the policy. With a strict
affinity policy the first member to get into the record decides the host.

A driver that writes two keys at once does 1 and 2 in one write, and 4 too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims, records
from nova_nodb_scheduler.model import group_claims as model
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import (
    claim_rules,
    contract,
    group_rules,
    record_editor,
)
from nova_nodb_scheduler.synchronizer import claims as ledger

LOG = logging.getLogger(__name__)

#: Answer of one record of a call: ids of members, grants of a host, a refusal.
_Joined = tuple[str, ...] | claims.Refused
_Part = _Joined | claim_rules.HostAnswer
_Refusal = claims.Refused | claims.Lost | claims.Unknown


class GroupLedger:
    """Claims of group members; any thread of any scheduler may call it.

    Blocks and raises as :class:`ledger.ClaimLedger` does.

    :param claim_ledger: takes the claims on hosts
    :param writer: see :class:`ledger.ClaimLedger`, as the other parameters
    """

    #: Points between which a scheduler may die, beside those of the claims.
    STEPS = ("joined", "left", "member confirmed")

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        claim_ledger: ledger.ClaimLedger,
        writer: str,
        make_id: Callable[[], str],
        lease_seconds: float,
        *,
        now_seconds: Callable[[], float] | None = None,
        after_step: Callable[[str], None] = ledger.no_crash,
        pause: Callable[[int], None] = record_editor.pause_briefly,
    ) -> None:
        self._synchronizer = synchronizer
        self._claims = claim_ledger
        self._writer = writer
        self._make_id = make_id
        self._lease_seconds = lease_seconds
        self._now_seconds = now_seconds or synchronizer.now_seconds
        self._after_step = after_step
        self._editor = record_editor.RecordEditor(
            synchronizer, [namespaces.GROUP_CLAIMS, namespaces.CLAIM_RECORDS], pause=pause
        )

    def read(self, group_uuid: str) -> model.GroupRecord:
        """Return a group's members as they stand in the back end."""
        state, _, version = self._editor.read(key_of(group_uuid))
        return model.GroupRecord.from_state(group_uuid, state, version)

    def claim(
        self,
        group: model.Group,
        claim: claims.Claim,
        fits: Callable[[claims.ClaimRecord], bool],
        view: records.Cursor,
        known: group_rules.Known,
    ) -> model.GroupGranted | _Refusal:
        """Take one claim with its place in a group; see :meth:`claim_all`."""
        answer = self.claim_all(group, [claim], lambda _, record: fits(record), view, known)
        return answer[0] if isinstance(answer, tuple) else answer

    def claim_all(
        self,
        group: model.Group,
        wanted: Sequence[claims.Claim],
        fits: claim_rules.Fits,
        view: records.Cursor,
        known: group_rules.Known,
    ) -> tuple[model.GroupGranted, ...] | _Refusal:
        """Take all claims with their places, or none once this returns.

        :param view: how far the state behind `fits` and `known` had come
        :param known: hosts by consumer as the authority shows the members
        """
        refused = self._claims.not_claimable(wanted)
        if refused is not None:
            return refused
        ids = {claim.consumer: self._make_id() for claim in wanted}
        join = (key_of(group.uuid), self._join(group, wanted, ids, view, known))
        if self._editor.atomic(1 + len({claim.host for claim in wanted})):
            return self._claim_at_once(group, wanted, ids, fits, view, join)
        edited = self._editor.edit(*join)
        if not isinstance(edited, record_editor.Edited):
            return _unwritten(edited, wanted, ids)
        if isinstance(edited.answer, claims.Refused):
            return edited.answer
        self._after_step("joined")
        try:
            granted = self._claims.claim_all(wanted, fits, view, ids)
        except errors.BackendUnavailable:
            self._leave_all(group, wanted, edited.answer, ids)
            raise
        if isinstance(granted, tuple):
            return _group_granted(group, edited.answer, granted)
        self._leave_all(group, wanted, edited.answer, ids)
        return granted

    def confirm(self, granted: model.GroupGranted) -> claims.ConfirmAnswer:
        """Say that the allocation of a grant is written.

        Gone if either the member or the claim is; the other one is given back
        then. A second call answers the same.
        """
        claim = granted.grant.claim
        keyed = self._confirm_member(granted), self._claims.confirmer(granted.grant)
        if self._editor.atomic(len(keyed)):
            edited = self._editor.edit_all(keyed)
            if not isinstance(edited, record_editor.Edited):
                return ledger.unwritten(edited, claim, granted.grant.claim_id)
            if isinstance(edited.answer, claims.Gone):
                self.release(granted)
                return edited.answer
            self._after_step("member confirmed")
            self._claims.replace(edited.answer)
            return edited.answer
        member = self._editor.edit(*keyed[0])
        if not isinstance(member, record_editor.Edited):
            return ledger.unwritten(member, claim, granted.grant.claim_id)
        if isinstance(member.answer, claims.Gone):
            self._claims.release(granted.grant)
            return member.answer
        self._after_step("member confirmed")
        answer = self._claims.confirm(granted.grant)
        if isinstance(answer, claims.Gone):
            self._leave(granted.group.uuid, claim.group_place, granted.member_id)
        return answer

    def release(self, granted: model.GroupGranted) -> claims.ReleaseAnswer:
        """Give a claim and its place back; a second call answers Gone."""
        answer = self._claims.release(granted.grant)
        claim = granted.grant.claim
        if isinstance(answer, claims.Released | claims.Gone):
            self._leave(granted.group.uuid, claim.group_place, granted.member_id)
        return answer

    def settle(
        self, group_uuid: str, places: Collection[model.Place], shown_at: records.Cursor
    ) -> tuple[model.Place, ...]:
        """Drop confirmed members that the authority's records show on those hosts.

        Only those confirmed before the records were written, as with
        :meth:`ledger.ClaimLedger.settle`.

        :param places: those shown by one record of the authority; call again
            for the next record
        :param shown_at: epoch and version of that record; views older than it
            are refused from now on
        """

        def choose(record: model.GroupRecord) -> tuple[model.Place, ...]:
            # After the record was read: versions of two epochs do not compare.
            if self._synchronizer.head().epoch != shown_at.epoch:
                return ()
            return group_rules.settled(record, places, shown_at.version)

        return self._drop(group_uuid, choose, shown_at)

    def expire(self, group_uuid: str) -> tuple[model.Place, ...]:
        """Drop pending members past their lease; every claim does this, too."""
        now_seconds = self._now_seconds()
        return self._drop(group_uuid, lambda record: group_rules.expired(record, now_seconds))

    def reconcile(
        self, group_uuid: str, exists: Callable[[str, str], bool]
    ) -> tuple[model.Place, ...]:
        """Drop confirmed members proved absent.

        :param exists: says whether a consumer still has a claim, an
            allocation, an instance or a migration on a host; asked after the
            member was read. May block; True where it cannot tell.
        """
        return self._drop(
            group_uuid,
            lambda record: [p for p in group_rules.confirmed(record) if not exists(*p)],
        )

    def _claim_at_once(
        self,
        group: model.Group,
        wanted: Sequence[claims.Claim],
        ids: dict[str, str],
        fits: claim_rules.Fits,
        view: records.Cursor,
        join: tuple[records.RecordKey, record_editor.Propose[_Joined]],
    ) -> tuple[model.GroupGranted, ...] | _Refusal:
        keyed: list[tuple[records.RecordKey, record_editor.Propose[_Part]]] = [join]
        keyed.extend(self._claims.proposers(wanted, ids, fits, view))
        edited = self._editor.edit_all(keyed)
        if not isinstance(edited, record_editor.Edited):
            return _unwritten(edited, wanted, ids)
        if isinstance(edited.answer, claims.Refused):
            return edited.answer
        self._after_step("joined")
        flat = [one for part in edited.answers if isinstance(part, tuple) for one in part]
        member_ids = [one for one in flat if isinstance(one, str)]
        grants = [one for one in flat if isinstance(one, claims.Granted)]
        by_place = {(g.claim.consumer, g.claim.host): g for g in grants}
        in_order = [by_place[claim.consumer, claim.host] for claim in wanted]
        granted = _group_granted(group, member_ids, in_order)
        changed = self._claims.epoch_changed(wanted[0], ids, view)
        if changed is None:
            return granted
        self._claims.undo(in_order, ids)
        self._leave_all(group, wanted, member_ids, ids)
        return changed

    def _join(
        self,
        group: model.Group,
        wanted: Sequence[claims.Claim],
        ids: dict[str, str],
        view: records.Cursor,
        known: group_rules.Known,
    ) -> record_editor.Propose[_Joined]:
        now_seconds = self._now_seconds()
        joining = group_rules.Joining(
            group, ids, self._writer, known, view, now_seconds, now_seconds + self._lease_seconds
        )
        return lambda state, version: group_rules.join(
            model.GroupRecord.from_state(group.uuid, state, version), wanted, joining
        )

    def _confirm_member(
        self, granted: model.GroupGranted
    ) -> tuple[records.RecordKey, record_editor.Propose[claims.Granted | claims.Gone]]:
        return key_of(granted.group.uuid), lambda state, version: group_rules.confirm(
            model.GroupRecord.from_state(granted.group.uuid, state, version), granted
        )

    def _leave_all(
        self,
        group: model.Group,
        wanted: Sequence[claims.Claim],
        member_ids: Sequence[str],
        ids: dict[str, str],
    ) -> None:
        """Take out in reverse the members that this call put in."""
        for claim, member_id in reversed(list(zip(wanted, member_ids, strict=True))):
            if member_id == ids[claim.consumer]:
                self._leave(group.uuid, claim.group_place, member_id)

    def _leave(self, group_uuid: str, place: model.Place, member_id: str) -> None:
        try:
            self._editor.edit(
                key_of(group_uuid),
                lambda state, version: group_rules.leave(
                    model.GroupRecord.from_state(group_uuid, state, version), place, member_id
                ),
            )
        except errors.BackendUnavailable as exc:
            LOG.warning(
                "%(consumer)s could not be taken out of group %(group)s; a pending place ends "
                "with its lease, a confirmed one with a reconciliation: %(reason)s",
                {"consumer": place[0], "group": group_uuid, "reason": exc},
            )
            return
        self._after_step("left")

    def _drop(
        self,
        group_uuid: str,
        choose: Callable[[model.GroupRecord], Collection[model.Place]],
        settled: records.Cursor | None = None,
    ) -> tuple[model.Place, ...]:
        def propose(
            state: record_editor.State | None, version: int
        ) -> record_editor.Proposal[tuple[model.Place, ...]]:
            record = model.GroupRecord.from_state(group_uuid, state, version)
            return group_rules.drop(record, choose(record), settled)

        edited = self._editor.edit(key_of(group_uuid), propose)
        return edited.answer if isinstance(edited, record_editor.Edited) else ()


def key_of(group_uuid: str) -> records.RecordKey:
    """Return the key of a server group's record."""
    return records.RecordKey(namespaces.GROUP_CLAIMS.name, group_uuid)


def _group_granted(
    group: model.Group, member_ids: Sequence[str], grants: Sequence[claims.Granted]
) -> tuple[model.GroupGranted, ...]:
    return tuple(
        model.GroupGranted(group, member_id, grant)
        for member_id, grant in zip(member_ids, grants, strict=True)
    )


def _unwritten(
    unwritten: record_editor.Unwritten, wanted: Sequence[claims.Claim], ids: dict[str, str]
) -> claims.Lost | claims.Unknown:
    return ledger.unwritten(unwritten, wanted[0], ids[wanted[0].consumer])
