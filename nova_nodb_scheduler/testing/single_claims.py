# SPDX-License-Identifier: Apache-2.0
"""Claims one at a time, as values: what schedulers and the settlement worker do, for tests.

Taken, confirmed and given back by :class:`.ledger_claimer.ClaimBatches`, as in a
scheduler. What the settlement worker finds out by itself, a test tells.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import (
    claim_rules,
    group_places,
    group_rules,
    ledger_claimer,
)
from nova_nodb_scheduler.synchronizer.records import record_editor

#: Says whether a claim fits beside a record of claims.
Fits = Callable[[model.ClaimRecord], bool]

_NAMESPACES = (known_namespaces.CLAIM_RECORDS, known_namespaces.GROUP_CLAIMS)


@attrs.frozen
class GrantLost:
    """Others won every round on the record; nothing of this call stands."""

    claim: model.Claim


@attrs.frozen
class GrantUnknown:
    """A claim of which nobody knows whether it was written: settle it before going on."""

    claim: model.Claim
    claim_id: str


#: What became of a claim.
ClaimAnswer = model.Granted | model.GrantRefused | GrantLost | GrantUnknown


class _Claims:
    """Claims in one kind of records. Blocks for the back end.

    :param now_seconds: the back end's clock
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        batches: ledger_claimer.ClaimBatches,
        now_seconds: Callable[[], float],
        pause: Callable[[int], None] = record_editor.pause_briefly,
    ) -> None:
        self._synchronizer = synchronizer
        self._batches = batches
        self._now_seconds = now_seconds
        self._editor = record_editor.RecordEditor(synchronizer, _NAMESPACES, pause=pause)


class HostClaimsOneByOne(_Claims):
    """Claims on hosts."""

    def read(self, host: str) -> model.ClaimRecord:
        """Return a host's claims as they stand in the back end.

        :raises BackendUnavailable: it does not answer
        """
        state, _, version = self._editor.read(claim_rules.host_key(host))
        return model.ClaimRecord.from_state(host, state, version)

    def claim(self, claim: model.Claim, fits: Fits, view: records.Cursor) -> ClaimAnswer:
        """Take one claim.

        :raises BackendUnavailable: nothing of it stands
        """
        answer = take(self._batches, claim, fits, view)
        return answer.granted if isinstance(answer, ledger_claimer.StandingClaim) else answer

    def confirm(self, granted: model.Granted) -> model.Granted | model.Gone:
        """Say that the allocation of a grant is written.

        :raises BackendUnavailable: nobody can tell what became of it
        """
        return confirm(self._batches, ledger_claimer.StandingClaim(granted))

    def release(self, taken: model.Granted | GrantUnknown) -> None:
        """Give a claim back, pending or confirmed; idempotent."""
        self._batches.release([ledger_claimer.StandingClaim(_granted(taken))])

    def settle_unknown(
        self, unknown: GrantUnknown, view: records.Cursor
    ) -> model.Granted | model.Gone | GrantUnknown:
        """Learn what became of a claim in doubt.

        :param view: as it was given to the claim
        """
        unsure = ledger_claimer.InDoubt(ledger_claimer.StandingClaim(_granted(unknown)))
        found = self._batches.settle(unsure, ledger_claimer.ClaimView(view, lambda *_: False))
        if isinstance(found, ledger_claimer.StandingClaim):
            return found.granted
        if isinstance(found, ledger_claimer.InDoubt):
            return unknown
        return model.Gone(unknown.claim, unknown.claim_id)

    def settle(
        self, host: str, consumers: Collection[str], shown_at: records.Cursor
    ) -> tuple[str, ...]:
        """Drop confirmed claims whose consumers a record of the authority shows.

        :param shown_at: epoch and version of that record
        :returns: whose claims were dropped
        """

        def choose(record: model.ClaimRecord) -> tuple[str, ...]:
            # After the record was read: versions of two epochs do not compare.
            if self._synchronizer.head().epoch != shown_at.epoch:
                return ()
            return claim_rules.settled(record, consumers, shown_at.version)

        return self._drop(host, choose, shown_at)

    def expire(self, host: str) -> tuple[str, ...]:
        """Drop pending claims past their lease; return whose."""
        now_seconds = self._now_seconds()
        return self._drop(host, lambda record: claim_rules.expired(record, now_seconds))

    def reconcile(self, host: str, exists: Callable[[str], bool]) -> tuple[str, ...]:
        """Drop confirmed claims of consumers that do not exist; return whose."""
        return self._drop(
            host,
            lambda record: [
                consumer
                for consumer in claim_rules.confirmed(record, record.claims)
                if not exists(consumer)
            ],
        )

    def _drop(
        self,
        host: str,
        choose: Callable[[model.ClaimRecord], Collection[str]],
        settled: records.Cursor | None = None,
    ) -> tuple[str, ...]:
        def propose(
            state: record_editor.State | None, version: int
        ) -> record_editor.Proposal[tuple[str, ...]]:
            record = model.ClaimRecord.from_state(host, state, version)
            dropped = tuple(sorted(choose(record)))
            left = record.without(dropped)
            left = left.settled_up_to(settled) if settled is not None else left
            return record_editor.Proposal(dropped, left.to_state() if dropped else None)

        edited = self._editor.edit(claim_rules.host_key(host), propose)
        return edited.answer if isinstance(edited, record_editor.Edited) else ()


class GroupClaimsOneByOne(_Claims):
    """Claims of group members."""

    def read(self, group_uuid: str) -> group_model.GroupRecord:
        """Return a group's members as they stand in the back end."""
        state, _, version = self._editor.read(group_rules.group_key(group_uuid))
        return group_model.GroupRecord.from_state(group_uuid, state, version)

    def claim(
        self,
        group: group_model.ServerGroup,
        claim: model.Claim,
        fits: Fits,
        view: records.Cursor,
        known: group_rules.Known,
    ) -> group_model.GroupGranted | model.GrantRefused | GrantLost | GrantUnknown:
        """Take one claim with its place in a group; see :meth:`HostClaimsOneByOne.claim`."""
        place = group_places.GroupView(group, known)
        answer = take(self._batches, claim, fits, view, place)
        if isinstance(answer, ledger_claimer.StandingClaim):
            assert answer.member is not None
            return answer.member
        return answer

    def confirm(self, granted: group_model.GroupGranted) -> model.Granted | model.Gone:
        """Say that the allocation of a grant is written; see :meth:`HostClaimsOneByOne.confirm`."""
        return confirm(self._batches, ledger_claimer.StandingClaim(granted.grant, granted))

    def release(self, granted: group_model.GroupGranted) -> None:
        """Give a claim and its place back; idempotent."""
        self._batches.release([ledger_claimer.StandingClaim(granted.grant, granted)])

    def settle(
        self, group_uuid: str, places: Collection[group_model.Place], shown_at: records.Cursor
    ) -> tuple[group_model.Place, ...]:
        """Drop confirmed members that a record shows; see :meth:`HostClaimsOneByOne.settle`."""

        def choose(record: group_model.GroupRecord) -> tuple[group_model.Place, ...]:
            if self._synchronizer.head().epoch != shown_at.epoch:
                return ()
            return group_rules.settled(record, places, shown_at.version)

        return self._drop(group_uuid, choose, shown_at)

    def expire(self, group_uuid: str) -> tuple[group_model.Place, ...]:
        """Drop pending members past their lease."""
        now_seconds = self._now_seconds()
        return self._drop(group_uuid, lambda record: group_rules.expired(record, now_seconds))

    def reconcile(
        self, group_uuid: str, exists: Callable[[str, str], bool]
    ) -> tuple[group_model.Place, ...]:
        """Drop confirmed members that do not exist: a consumer on a host."""
        return self._drop(
            group_uuid,
            lambda record: [p for p in group_rules.confirmed(record) if not exists(*p)],
        )

    def _drop(
        self,
        group_uuid: str,
        choose: Callable[[group_model.GroupRecord], Collection[group_model.Place]],
        settled: records.Cursor | None = None,
    ) -> tuple[group_model.Place, ...]:
        def propose(
            state: record_editor.State | None, version: int
        ) -> record_editor.Proposal[tuple[group_model.Place, ...]]:
            record = group_model.GroupRecord.from_state(group_uuid, state, version)
            dropped = tuple(sorted(choose(record)))
            left = record.without(dropped)
            left = left.settled_up_to(settled) if settled is not None else left
            return record_editor.Proposal(dropped, left.to_state() if dropped else None)

        edited = self._editor.edit(group_rules.group_key(group_uuid), propose)
        return edited.answer if isinstance(edited, record_editor.Edited) else ()


def stranger(
    synchronizer: contract.Synchronizer, lease_seconds: float = 60.0
) -> HostClaimsOneByOne:
    """Return claims on hosts by a scheduler of its own."""
    batches = ledger_claimer.ClaimBatches(
        synchronizer, "stranger", lambda: str(uuid.uuid4()), lease_seconds, lambda host: True
    )
    return HostClaimsOneByOne(synchronizer, batches, synchronizer.now_seconds)


def take(
    batches: ledger_claimer.ClaimBatches,
    claim: model.Claim,
    fits: Fits,
    view: records.Cursor,
    group: group_places.GroupView | None = None,
) -> ledger_claimer.StandingClaim | model.GrantRefused | GrantLost | GrantUnknown:
    """Take one claim; see :meth:`HostClaimsOneByOne.claim`."""
    seen = ledger_claimer.ClaimView(view, lambda _, record: fits(record))
    answer = batches.take([claim], seen, group)[claim.consumer]
    if isinstance(answer, ledger_claimer.InDoubt):
        return GrantUnknown(claim, answer.claim_id)
    if isinstance(answer, group_rules.PolicyBroken):
        return answer.refused
    if answer is record_editor.Unwritten.LOST:
        return GrantLost(claim)
    if isinstance(answer, record_editor.Unwritten):
        raise errors.BackendUnavailable("the back end of claims", answer.value)
    return answer


def confirm(
    batches: ledger_claimer.ClaimBatches, held: ledger_claimer.StandingClaim
) -> model.Granted | model.Gone:
    """Confirm one claim; see :meth:`HostClaimsOneByOne.confirm`."""
    [stands] = batches.confirm([held])
    if stands is None:
        raise errors.BackendUnavailable("the back end of claims", "nobody can tell")
    if stands:
        return attrs.evolve(held.granted, state=model.ClaimState.CONFIRMED)
    return model.Gone(held.granted.claim, held.granted.claim_id)


def _granted(taken: model.Granted | GrantUnknown) -> model.Granted:
    return model.Granted(taken.claim, taken.claim_id, model.ClaimState.PENDING)
