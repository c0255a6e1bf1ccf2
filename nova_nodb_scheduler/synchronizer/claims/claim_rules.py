# SPDX-License-Identifier: Apache-2.0
"""The protocol of claims on hosts, and its rules: what may become of a host's claim record.

Schedulers promise one another capacity in one record per host.

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

The rules are without any I/O. Each takes the record as read and gives a proposal for the
compare-and-set on it. All are idempotent: run again on a record that holds
their own change, they answer as if they had just made it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import attrs

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.records import record_editor

LOG = logging.getLogger(__name__)

T = TypeVar("T")


def host_key(host: str) -> records.RecordKey:
    """Return the key of a host's claim record."""
    return records.RecordKey(known_namespaces.CLAIM_RECORDS.name, host)


#: Hosts of which claims that were read are remembered, before all are forgotten.
_MOST_READ = 4096


class ReadClaims:
    """Reads claim records, and of each host only the claims that it did not read before.

    Any thread. What is remembered is never believed: each claim is compared with what
    the record holds.
    """

    def __init__(self) -> None:
        self._claims: dict[str, Mapping[str, model.HeldClaim]] = {}

    def record(
        self, host: str, state: record_editor.State | None, version: int
    ) -> model.ClaimRecord:
        """Return a record; see :meth:`model.ClaimRecord.from_state`."""
        found = model.ClaimRecord.from_state(host, state, version, self._claims.get(host, _NONE))
        if len(self._claims) >= _MOST_READ:
            self._claims = {}
        self._claims[host] = found.claims
        return found


_NONE: Mapping[str, model.HeldClaim] = {}


def on_host(
    key: records.RecordKey,
    rule: Callable[[model.ClaimRecord], record_editor.Proposal[T]],
    read: Callable[
        [str, record_editor.State | None, int], model.ClaimRecord
    ] = model.ClaimRecord.from_state,
) -> record_editor.Propose[T]:
    """Return a proposer that has a rule look at the claim record of a host.

    :param read: see :meth:`ReadClaims.record`
    """
    return lambda state, version: rule(read(key.key, state, version))


def stands(answer: model.Granted | model.Gone | record_editor.Unwritten) -> bool | None:
    """Tell whether a claim or a place stands; None where nobody can tell."""
    if isinstance(answer, record_editor.Unwritten):
        return None
    return isinstance(answer, model.Granted)


#: Says whether a claim fits beside what its host's record holds. The record
#: comes without the claimer's own entry and without expired ones. Called again
#: with what was read after each lost round; must not block.
Fits = Callable[[model.Claim, model.ClaimRecord], bool]

#: Says of a confirmed claim whether its consumer is known to have left the host
#: since: a server that moves begins there anew.
HasLeft = Callable[[model.Claim, model.HeldClaim], bool]


def never_left(claim: model.Claim, held: model.HeldClaim) -> bool:
    """Say no: a confirmed claim stands until it is dropped."""
    return False


@attrs.frozen
class Taking:
    """The circumstances of one call that takes claims.

    :param ids: claim id by consumer, made for this call
    :param view: how far the state that `fits` looks at had come
    :param now_seconds: the back end's clock at the start of the call
    """

    ids: Mapping[str, str]
    writer: str
    fits: Fits
    view: records.Cursor
    now_seconds: float
    deadline_seconds: float
    ended: HasLeft = never_left


def take_each(
    record: model.ClaimRecord, claims: Sequence[model.Claim], taking: Taking
) -> record_editor.Proposal[tuple[model.Granted | model.GrantRefused, ...]]:
    """Take each claim on one host by itself; what does not fit stays out."""
    stale = stale_view(record.settled, taking.view)
    if stale:
        refused = tuple(
            model.GrantRefused(each, model.RefusalReason.STALE_VIEW, stale) for each in claims
        )
        return record_editor.Proposal(refused)
    record = lapse(record, expired(record, taking.now_seconds))
    answers = []
    for claim in claims:
        answer, record = _take_one(record, claim, taking)
        answers.append(answer)
    granted = any(isinstance(answer, model.Granted) for answer in answers)
    return record_editor.Proposal(tuple(answers), record.to_state() if granted else None)


def lapse(record: model.ClaimRecord, consumers: Collection[str]) -> model.ClaimRecord:
    """Return a record without claims whose lease ended; name what it forgets for want of room.

    No host is over-committed for that: what such a claim's writer may have allocated counts
    as long as it stands in Placement. But whose it was is told by nobody any more, so that
    nobody takes it away of itself.
    """
    left = record.lapse(consumers)
    forgotten = (record.lapsed.keys() | {*consumers}) - left.lapsed.keys()
    if forgotten:
        LOG.warning(
            "Host %(host)s has more than %(most)d lapsed claims; those of %(servers)s are "
            "forgotten. What they may have left in Placement 'nova-nodb-manage allocations "
            "audit' finds.",
            {
                "host": record.host,
                "most": model.MOST_LAPSED,
                "servers": ", ".join(sorted(forgotten)),
            },
        )
    return left


def stale_view(settled: records.Cursor | None, view: records.Cursor) -> str:
    """Say how a view is too old for a settlement; empty if it is not.

    Cursors of different epochs do not compare: the epoch itself is checked
    after the write.
    """
    if settled is None or settled.epoch != view.epoch or settled.version <= view.version:
        return ""
    return f"view at {view.version}, settled up to {settled.version}"


def expired(record: model.ClaimRecord, now_seconds: float) -> tuple[str, ...]:
    """Return the consumers whose lease has ended, sorted."""
    # For every claim of a host, whichever changes.
    deadlines = {c: held.deadline_seconds for c, held in record.claims.items()}
    return tuple(sorted([c for c, at in deadlines.items() if at is not None and at <= now_seconds]))


def confirm_each(
    record: model.ClaimRecord, grants: Sequence[model.Granted]
) -> record_editor.Proposal[tuple[model.Granted | model.Gone, ...]]:
    """Turn pending claims on one host into confirmed ones, each by itself.

    Past its lease, too, if it still stands: it was counted all the time.
    """
    answers, after = [], record
    for granted in grants:
        answer, after = _confirm_one(after, granted)
        answers.append(answer)
    return record_editor.Proposal(tuple(answers), after.to_state() if after is not record else None)


def release_each(
    record: model.ClaimRecord, ids: Mapping[str, str]
) -> record_editor.Proposal[tuple[str, ...]]:
    """Drop claims by consumer and id, whatever their state; answers with those found."""
    dropped = tuple(
        c for consumer, claim_id in ids.items() for c in own(record, consumer, claim_id)
    )
    left = record.without(dropped).to_state() if dropped else None
    return record_editor.Proposal(dropped, left)


def own(record: model.ClaimRecord, consumer: str, claim_id: str) -> tuple[str, ...]:
    """Return the consumer if its claim is the one of that id."""
    held = record.claims.get(consumer)
    return (consumer,) if held is not None and held.claim_id == claim_id else ()


def confirmed(record: model.ClaimRecord, consumers: Collection[str]) -> tuple[str, ...]:
    """Return which of some consumers hold a confirmed claim, sorted.

    A pending claim is not settled even if its consumer is shown: its owner
    would find it gone at the confirm, and delete a good allocation.
    """
    return tuple(
        sorted(
            consumer
            for consumer in record.claims.keys() & set(consumers)
            if record.claims[consumer].state is model.ClaimState.CONFIRMED
        )
    )


def settled(
    record: model.ClaimRecord, consumers: Collection[str], shown_version: int
) -> tuple[str, ...]:
    """Return which of some consumers an authority's record of a version settles, sorted."""
    return tuple(
        consumer
        for consumer in confirmed(record, consumers)
        if shown_version > (record.claims[consumer].confirmed_by or shown_version)
    )


def find(
    record: model.ClaimRecord, claim: model.Claim, claim_id: str
) -> record_editor.Proposal[model.Granted | model.Gone]:
    """Tell whether a claim of unknown outcome stands.

    Where it does not, the record is written as it is: the write in doubt then
    names a revision that is gone, and loses whenever it arrives.
    """
    held = record.claims.get(claim.consumer)
    if held is None or held.claim_id != claim_id:
        return record_editor.Proposal(model.Gone(claim, claim_id), record.to_state())
    return record_editor.Proposal(model.Granted(claim, claim_id, held.state))


def _confirm_one(
    record: model.ClaimRecord, granted: model.Granted
) -> tuple[model.Granted | model.Gone, model.ClaimRecord]:
    claim = granted.claim
    held = record.claims.get(claim.consumer)
    if held is None or held.claim_id != granted.claim_id:
        return model.Gone(claim, granted.claim_id), record
    answer = model.Granted(claim, granted.claim_id, model.ClaimState.CONFIRMED)
    if held.state is model.ClaimState.CONFIRMED:
        return answer, record
    return answer, record.with_claim(claim.consumer, held.confirm())


def _take_one(
    record: model.ClaimRecord, claim: model.Claim, taking: Taking
) -> tuple[model.Granted | model.GrantRefused, model.ClaimRecord]:
    held = record.claims.get(claim.consumer)
    if (
        held is not None
        and dict(held.resources) == dict(claim.resources)
        and held.node == claim.node
    ):
        # The same claim again, or our own write of an unknown outcome.
        # A confirmed one is written anew, too: whoever judged it by what was
        # true before (its server may be gone since) loses, and judges again.
        # A lease never becomes shorter than another was promised.
        deadline = held.deadline_seconds
        if deadline is not None:
            deadline = max(deadline, taking.deadline_seconds)
        renewed = attrs.evolve(held, deadline_seconds=deadline, confirmed_by=None)
        granted = model.Granted(claim, held.claim_id, held.state)
        return granted, record.with_claim(claim.consumer, renewed)
    if (
        held is not None
        and held.state is model.ClaimState.CONFIRMED
        and not taking.ended(claim, held)
    ):
        return model.GrantRefused(
            claim, model.RefusalReason.HELD, str(dict(held.resources))
        ), record
    others = record.without([claim.consumer])
    if not taking.fits(claim, others):
        return model.GrantRefused(claim, model.RefusalReason.FULL), record
    claim_id = taking.ids[claim.consumer]
    taken = model.HeldClaim(
        resources=dict(claim.resources),
        state=model.ClaimState.PENDING,
        claim_id=claim_id,
        writer=taking.writer,
        deadline_seconds=taking.deadline_seconds,
        node=claim.node,
    )
    granted = model.Granted(claim, claim_id, model.ClaimState.PENDING)
    return granted, others.with_claim(claim.consumer, taken)
