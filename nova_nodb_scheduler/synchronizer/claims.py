# SPDX-License-Identifier: Apache-2.0
"""The claims ledger: capacity promised among schedulers, one record per host.

The naive way, to check the store and then write, grants the last slot twice:
both schedulers checked before either wrote. Placement's own check races too
(measured: 33 to 38 servers in 24 slots). Here the check runs against the
record that the compare-and-set names; if another wrote in between, it loses,
and checks again.

pending -> (the caller writes the allocation) -> confirmed -> settled

- A lease covers only the pending state and ends by the back end's clock. A
  claim past its lease goes on counting until some compare-and-set drops it, so
  there is no moment at which one scheduler counts it and another does not.
- A confirm that finds the claim dropped answers Gone; the caller then deletes
  its allocation again.
- A confirmed claim is dropped when the authority's record shows its consumer
  (settle), or when it is proved absent everywhere (reconcile). Settling moves
  what is counted from this record into another one, which a claimer may not
  have seen yet: so the record says up to where a view must have come, and an
  older view is refused.
- In a new epoch all claims are gone. A host is not claimable until its owner
  has published it again; and a claim that was checked against a view of the
  former epoch is undone, because the epoch is read again after the write.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import claim_rules, contract, record_editor

LOG = logging.getLogger(__name__)

T = TypeVar("T")
_Keyed = tuple[records.RecordKey, record_editor.Propose[claim_rules.HostAnswer]]


def no_crash(_step: str) -> None:
    """Do nothing after a step; tests give a function that raises."""


class ClaimLedger:
    """Claims on hosts; any thread of any scheduler may call it.

    Every method blocks for the back end's answers, raises BackendUnavailable
    where nothing of it lasts (a pending claim ends with its lease), and
    UndecodableRecord where a newer release wrote the record.

    :param writer: id of this scheduler, kept in its claims
    :param make_id: maker of uuids
    :param lease_seconds: how long a pending claim is held; longer than the
        slowest write of an allocation takes
    :param claimable: says whether a host was published in the present epoch
    :param now_seconds: the back end's clock; only tests give another
    :param after_step: called with each of STEPS once done, to inject crashes
    :param pause: see :class:`record_editor.RecordEditor`
    """

    #: Points between which a scheduler may die.
    STEPS = ("claimed", "undone", "confirmed", "replaced", "released")

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        writer: str,
        make_id: Callable[[], str],
        lease_seconds: float,
        claimable: Callable[[str], bool],
        *,
        now_seconds: Callable[[], float] | None = None,
        after_step: Callable[[str], None] = no_crash,
        pause: Callable[[int], None] = record_editor.pause_briefly,
    ) -> None:
        self._synchronizer = synchronizer
        self._writer = writer
        self._make_id = make_id
        self._lease_seconds = lease_seconds
        self._claimable = claimable
        self._now_seconds = now_seconds or synchronizer.now_seconds
        self._after_step = after_step
        self._editor = record_editor.RecordEditor(
            synchronizer, [namespaces.CLAIM_RECORDS], pause=pause
        )

    def read(self, host: str) -> model.ClaimRecord:
        """Return a host's claims as they stand in the back end."""
        state, _, version = self._editor.read(key_of(host))
        return model.ClaimRecord.from_state(host, state, version)

    def claim(
        self, claim: model.Claim, fits: Callable[[model.ClaimRecord], bool], view: records.Cursor
    ) -> model.ClaimAnswer:
        """Take one claim; see :meth:`claim_all`.

        A second claim of the same consumer with the same resources on the
        same host is the same claim: it answers with the same id, its lease
        begins anew, nothing is counted twice. Whoever shares a claim in this
        way releases it for both. With other resources it replaces a pending
        claim, and is refused beside a confirmed one.
        """
        answer = self.claim_all([claim], lambda _, record: fits(record), view)
        return answer[0] if isinstance(answer, tuple) else answer

    def claim_all(
        self,
        claims: Sequence[model.Claim],
        fits: claim_rules.Fits,
        view: records.Cursor,
        ids: Mapping[str, str] | None = None,
    ) -> tuple[model.Granted, ...] | model.Refused | model.Lost | model.Unknown:
        """Take all claims, or none once this returns.

        In one write where the driver can; else host by host, undone in
        reverse on the first answer that is no grant. Others may see the part
        in between, and be refused by it; what a crash leaves of it ends with
        its lease.

        :param view: how far the state that `fits` looks at had come
        :param ids: claim id by consumer, where the caller makes them
        :returns: the grants in the order of the claims, all pending unless
            they were confirmed before; or the first answer that was no grant.
            After Unknown some may stand until their lease ends.
        """
        refused = self.not_claimable(claims)
        if refused is not None:
            return refused
        if ids is None:
            ids = {claim.consumer: self._make_id() for claim in claims}
        keyed = self.proposers(claims, ids, fits, view)
        grants: list[model.Granted] = []
        steps = [keyed] if self._editor.atomic(len(keyed)) else [[one] for one in keyed]
        for step in steps:
            try:
                answer = self._take(step, claims, ids)
            except errors.BackendUnavailable:
                self.undo(grants, ids)
                raise
            if not isinstance(answer, tuple):
                self.undo(grants, ids)
                return answer
            grants.extend(answer)
            self._after_step("claimed")
        changed = self.epoch_changed(claims[0], ids, view)
        if changed is not None:
            self.undo(grants, ids)
            return changed
        place = {(claim.host, claim.consumer): n for n, claim in enumerate(claims)}
        return tuple(sorted(grants, key=lambda g: place[g.claim.host, g.claim.consumer]))

    def confirm(self, granted: model.Granted) -> model.ConfirmAnswer:
        """Say that the allocation of a grant is written.

        Then drops what the claim replaces on other hosts. A second call
        answers the same. If the back end goes away after the confirm, the
        replaced claims stay for a reconciliation.
        """
        edited = self._editor.edit(*self.confirmer(granted))
        answer = _answer(edited, granted.claim, granted.claim_id)
        if isinstance(answer, model.Granted):
            self._after_step("confirmed")
            self.replace(answer)
        return answer

    def replace(self, granted: model.Granted) -> None:
        """Drop what a confirmed claim replaces on other hosts."""
        claim = granted.claim
        try:
            for host, claim_id in claim.replaces.items():
                choose = functools.partial(
                    claim_rules.own, consumer=claim.consumer, claim_id=claim_id
                )
                self._drop(host, choose)
                self._after_step("replaced")
        except errors.BackendUnavailable as exc:
            LOG.warning(
                "Claims of %(consumer)s that are replaced by a confirmed one stay until a "
                "reconciliation: %(reason)s",
                {"consumer": claim.consumer, "reason": exc},
            )

    def release(self, taken: model.Granted | model.Unknown) -> model.ReleaseAnswer:
        """Give a claim back, pending or confirmed; a second call answers Gone."""
        claim, claim_id = taken.claim, taken.claim_id
        edited = self._editor.edit(
            key_of(claim.host),
            lambda state, version: claim_rules.release(
                model.ClaimRecord.from_state(claim.host, state, version), claim, claim_id
            ),
        )
        self._after_step("released")
        return _answer(edited, claim, claim_id)

    def settle_unknown(
        self, unknown: model.Unknown, view: records.Cursor
    ) -> model.Granted | model.Gone | model.Lost | model.Unknown:
        """Learn what became of a claim whose outcome was unknown.

        After Gone it will never appear: a write still on its way is fenced.

        :param view: as it was given to the claim
        """
        claim = unknown.claim
        edited = self._editor.edit(
            key_of(claim.host),
            lambda state, version: claim_rules.find(
                model.ClaimRecord.from_state(claim.host, state, version), unknown
            ),
        )
        answer = _answer(edited, claim, unknown.claim_id)
        if isinstance(answer, model.Granted) and self._synchronizer.head().epoch != view.epoch:
            self.release(answer)
            return model.Gone(claim, unknown.claim_id)
        return answer

    def settle(
        self, host: str, consumers: Collection[str], shown_at: records.Cursor
    ) -> tuple[str, ...]:
        """Drop confirmed claims whose consumers the authority's record shows.

        Only if that record was written after the claim was confirmed. An
        older one may show the consumer's former stay on the host: dropped for
        that, a server that moved away and came back would be counted nowhere
        once a record from in between is seen.

        :param consumers: shown there with (at least) the claimed resources
        :param shown_at: epoch and version of that record; views older than it
            are refused from now on
        :returns: consumers whose claims were dropped; the call may be repeated
        """

        def choose(record: model.ClaimRecord) -> tuple[str, ...]:
            # After the record was read: versions of two epochs do not compare.
            if self._synchronizer.head().epoch != shown_at.epoch:
                return ()
            return claim_rules.settled(record, consumers, shown_at.version)

        return self._drop(host, choose, shown_at)

    def expire(self, host: str) -> tuple[str, ...]:
        """Drop pending claims past their lease; returns their consumers.

        Every claim on the host does this too: call it where nobody claims.
        """
        now_seconds = self._now_seconds()
        return self._drop(host, lambda record: claim_rules.expired(record, now_seconds))

    def reconcile(self, host: str, exists: Callable[[str], bool]) -> tuple[str, ...]:
        """Drop confirmed claims whose consumer is proved absent.

        :param exists: says whether a consumer still has an allocation, an
            instance or a migration anywhere; asked of each confirmed claim
            AFTER it was read, so that a claim confirmed later is never judged
            by an older answer. May block; True where it cannot tell.
        :returns: consumers whose claims were dropped
        """
        return self._drop(
            host,
            lambda record: [
                consumer
                for consumer in claim_rules.confirmed(record, record.claims)
                if not exists(consumer)
            ],
        )

    # Parts of the above, for the group ledger that puts its own beside them.

    def confirmer(
        self, granted: model.Granted
    ) -> tuple[records.RecordKey, record_editor.Propose[model.Granted | model.Gone]]:
        """Return the proposer of a confirm, with its key."""
        host = granted.claim.host
        return key_of(host), lambda state, version: claim_rules.confirm(
            model.ClaimRecord.from_state(host, state, version), granted
        )

    def not_claimable(self, claims: Sequence[model.Claim]) -> model.Refused | None:
        """Return a refusal if a host was not published in this epoch."""
        for claim in claims:
            if not self._claimable(claim.host):
                return model.Refused(claim, model.Reason.NOT_CLAIMABLE)
        return None

    def proposers(
        self,
        claims: Sequence[model.Claim],
        ids: Mapping[str, str],
        fits: claim_rules.Fits,
        view: records.Cursor,
    ) -> list[_Keyed]:
        """Return a proposer per host, hosts in order.

        One order for all: two claimers that take the same hosts in opposite
        orders would refuse each other, and both give up.
        """
        now_seconds = self._now_seconds()
        taking = claim_rules.Taking(
            ids, self._writer, fits, view, now_seconds, now_seconds + self._lease_seconds
        )
        by_host: dict[str, list[model.Claim]] = {}
        for claim in claims:
            by_host.setdefault(claim.host, []).append(claim)
        return [_proposer(host, wanted, taking) for host, wanted in sorted(by_host.items())]

    def epoch_changed(
        self, claim: model.Claim, ids: Mapping[str, str], view: records.Cursor
    ) -> model.Refused | model.Unknown | None:
        """Return a refusal if the view is of a former epoch; read after the write."""
        try:
            epoch = self._synchronizer.head().epoch
        except errors.BackendUnavailable:
            return model.Unknown(claim, ids[claim.consumer])
        if epoch == view.epoch:
            return None
        return model.Refused(
            claim, model.Reason.EPOCH_CHANGED, f"view of epoch {view.epoch}, now {epoch}"
        )

    def undo(self, grants: Sequence[model.Granted], ids: Mapping[str, str]) -> None:
        """Release in reverse what this call took; what stood before it stays."""
        try:
            for granted in reversed(grants):
                if granted.claim_id == ids[granted.claim.consumer]:
                    self.release(granted)
                    self._after_step("undone")
        except errors.BackendUnavailable as exc:
            LOG.warning(
                "Some of %(count)d claims could not be given back, they end with their "
                "lease: %(reason)s",
                {"count": len(grants), "reason": exc},
            )

    def _take(
        self, keyed: Sequence[_Keyed], claims: Sequence[model.Claim], ids: Mapping[str, str]
    ) -> claim_rules.HostAnswer | model.Lost | model.Unknown:
        edited = self._editor.edit_all(keyed)
        if isinstance(edited, record_editor.Edited):
            if isinstance(edited.answer, model.Refused):
                return edited.answer
            return tuple(granted for part in edited.answers for granted in _grants(part))
        hosts = {key.key for key, _ in keyed}
        first = next(claim for claim in claims if claim.host in hosts)
        return unwritten(edited, first, ids[first.consumer])

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
            return claim_rules.drop(record, choose(record), settled)

        edited = self._editor.edit(key_of(host), propose)
        return edited.answer if isinstance(edited, record_editor.Edited) else ()


def key_of(host: str) -> records.RecordKey:
    """Return the key of a host's claim record."""
    return records.RecordKey(namespaces.CLAIM_RECORDS.name, host)


def _proposer(host: str, claims: Sequence[model.Claim], taking: claim_rules.Taking) -> _Keyed:
    def propose(
        state: record_editor.State | None, version: int
    ) -> record_editor.Proposal[claim_rules.HostAnswer]:
        return claim_rules.take(model.ClaimRecord.from_state(host, state, version), claims, taking)

    return key_of(host), propose


def _grants(answer: claim_rules.HostAnswer) -> tuple[model.Granted, ...]:
    return answer if isinstance(answer, tuple) else ()


def unwritten(
    why: record_editor.Unwritten, claim: model.Claim, claim_id: str
) -> model.Lost | model.Unknown:
    """Return the answer for an edit that came to none."""
    if why is record_editor.Unwritten.UNKNOWN:
        return model.Unknown(claim, claim_id)
    return model.Lost(claim)


def _answer(
    edited: record_editor.Edited[T] | record_editor.Unwritten, claim: model.Claim, claim_id: str
) -> T | model.Lost | model.Unknown:
    if isinstance(edited, record_editor.Edited):
        return edited.answer
    return unwritten(edited, claim, claim_id)
