# SPDX-License-Identifier: Apache-2.0
"""Places of one request's servers in a server group: the group's side of their claims.

See :mod:`group_rules` for the protocol, of which this has the first step, the
first confirm, and the last step of the way back.
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
from nova_nodb_scheduler.synchronizer.claims import claim_rules, group_removal, group_rules
from nova_nodb_scheduler.synchronizer.records import record_editor

LOG = logging.getLogger(__name__)


@attrs.frozen
class GroupView:
    """A group whose policy is to be kept, and its members as the authority shows them."""

    group: group_model.ServerGroup
    known: group_rules.Known


class MemberMemory:
    """What a process remembers of groups' members beside the back end; this one, nothing.

    Any thread may call it; no I/O.
    """

    def of(
        self, group_uuid: str, epoch: str | None
    ) -> Mapping[group_model.Place, group_model.Member]:
        """Return members on their way to their hosts that an epoch's record may lack.

        :param epoch: None where the back end does not answer
        """
        return {}

    def stand(
        self, group_uuid: str, members: Mapping[group_model.Place, group_model.Member]
    ) -> None:
        """Take in members that are about to be confirmed here."""

    def left(self, group_uuid: str, ids: Mapping[group_model.Place, str]) -> None:
        """Forget members, by the ids of these."""

    def add(self, group_uuid: str, place: group_model.Place, writer: str) -> str:
        """Remember a member that the back end could not be told of; return its new id."""
        return ""

    def place_of(self, uuid: str) -> str:
        """Return the name of a node's host; its uuid where it is not known."""
        return uuid


@attrs.define(eq=False)
class GroupPlaces:
    """Takes, confirms and gives back places; any thread of one scheduler may call it.

    Blocks for the back end. Parameters as those of :class:`ledger_claimer.ClaimBatches`.

    :param memory: counts beside each record that a place is judged by
    """

    _editor: record_editor.BatchEditor
    _floor: group_removal.GroupFloor
    _writer: str
    _lease_seconds: float
    _now_seconds: Callable[[], float]
    _after_step: Callable[[str], None]
    _memory: MemberMemory = attrs.field(factory=MemberMemory)

    def join(
        self,
        wanted: Sequence[model.Claim],
        ids: Mapping[str, str],
        view: records.Cursor,
        group: GroupView,
        place_of: Callable[[str], str],
    ) -> dict[str, str | group_rules.PolicyBroken | record_editor.Unwritten]:
        """Add each server's place as a pending member; answers with their ids, by consumer.

        :param ids: claim id by consumer, made for this call
        :param view: how far the state behind the group's known members had come
        :param place_of: see :class:`group_rules.Joining`
        """
        if not wanted:
            return {}
        now_seconds = self._now_seconds()
        joining = group_rules.Joining(
            group.group,
            ids,
            self._writer,
            group.known,
            view,
            now_seconds,
            now_seconds + self._lease_seconds,
            place_of,
            self._memory.of(group.group.uuid, view.epoch),
        )
        key = group_rules.group_key(group.group.uuid)
        asked = False

        def join(
            record: group_model.GroupRecord,
        ) -> record_editor.Proposal[tuple[str | group_rules.PolicyBroken, ...]]:
            nonlocal asked
            asked |= group_removal.is_asked(record, view)
            return group_rules.join_each(record, wanted, joining)

        edited = self._editor.edit_each({key: group_rules.on_group(key, join)})[key]
        self._after_step("joined")
        why: record_editor.Unwritten | str = ""
        if not isinstance(edited, record_editor.Edited):
            why = edited
        elif asked and any(isinstance(one, str) for one in edited.answer):
            why = self._too_old(view)
        if isinstance(edited, record_editor.Edited) and not why:
            return {claim.consumer: one for claim, one in zip(wanted, edited.answer, strict=True)}
        if isinstance(edited, record_editor.Edited) or why is record_editor.Unwritten.UNKNOWN:
            self.leave({key.key: {claim.group_place: ids[claim.consumer] for claim in wanted}})
        return {claim.consumer: _not_joined(claim, why) for claim in wanted}

    def _too_old(self, view: records.Cursor) -> record_editor.Unwritten | str:
        """Say how a view is too old for a group's record that was removed; empty if it is not."""
        try:
            return self._floor.stale(view)
        except (errors.BackendUnavailable, errors.UndecodableRecord) as error:
            LOG.warning(
                "Whether a view of a group is too old is not known: %(error)s", {"error": error}
            )
            return record_editor.Unwritten.UNAVAILABLE

    def confirm(self, members: Sequence[group_model.GroupGranted]) -> dict[str, bool | None]:
        """Say that allocations are written; by consumer, whether its place stands.

        None where nobody can tell.
        """
        # Before it is written: who learns meanwhile that all is lost is to know of them.
        for each in members:
            standing = group_model.Member(model.ClaimState.CONFIRMED, each.member_id, self._writer)
            claim = each.grant.claim
            self._memory.stand(each.group_uuid, {claim.group_place: standing})
        found = self._editor.edit_entries(
            members,
            lambda each: group_rules.group_key(each.group_uuid),
            lambda key, here: group_rules.on_group(
                key, functools.partial(group_rules.confirm_each, grants=here)
            ),
        )
        return {
            each.grant.consumer: claim_rules.stands(outcome.answer)
            for each, outcome in zip(members, found, strict=True)
        }

    def leave(self, places: Mapping[str, Mapping[group_model.Place, str]]) -> None:
        """Give places back, by group and place with the id of the member; whatever its state."""
        proposers = {}
        for uuid, ids in places.items():
            self._memory.left(uuid, ids)
            key = group_rules.group_key(uuid)
            leave = functools.partial(group_rules.leave_each, ids=ids)
            proposers[key] = group_rules.on_group(key, leave)
        found = self._editor.edit_each(proposers)
        self._after_step("left")
        if not all(isinstance(each, record_editor.Edited) for each in found.values()):
            LOG.warning(
                "Places in server groups could not be given back; a pending one ends with its "
                "lease, a confirmed one with a reconciliation."
            )


def _not_joined(
    claim: model.Claim, why: record_editor.Unwritten | str
) -> group_rules.PolicyBroken | record_editor.Unwritten:
    if isinstance(why, str):
        return group_rules.PolicyBroken(
            model.GrantRefused(claim, model.RefusalReason.STALE_VIEW, why)
        )
    if why is record_editor.Unwritten.UNKNOWN:
        return record_editor.Unwritten.UNAVAILABLE
    return why
