# SPDX-License-Identifier: Apache-2.0
"""Tells allocations that somebody was answered with from those that their writer withdrew.

Where no claim can be judged, a scheduler writes first and looks afterwards: what did not fit it
takes back before anybody is answered. So a host may show more than it has for a moment, and no
server is sent there. Only what became of an allocation tells whether it was such a one, so that a
sample in which a host holds too much is judged when the round is over.

An allocation whose server is to be deleted may have gone with it, so that nobody can tell by the
tables alone who took it back. Its writer's own log can: it says so before it takes it back.

It may also be that another's deletion makes room before its writer looks: then it stays, and
rightly. Its writer's log tells that, too: it answered when the host held no more than it has.
Since when that was, samples tell late; Placement's log tells when it deleted what made the room.

Where Placement does not answer, its writer cannot take it back. Then it answers an error, and says
so: what it wrote may stand for long, and nobody is sent there.
"""

import collections
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

import attrs

from tests.chaos import audit
from tests.chaos import snapshot as snapshot_module
from tests.chaos.logs import withdrawals

WITHDRAWN = "withdrawn again"
"""Kind of what is judged to be none of the faults, see :mod:`.audit`."""

WITHDRAWN_SECONDS = 20.0
"""Who looks at what it wrote has answered by then, whatever it came to; what stands for longer
counts as given away, unless its writer says that it took it back."""

_LEAVING = "its deletion was asked for"
"""A deletion takes allocations as well as their writers do."""

Told = Callable[[], Collection[withdrawals.Told]]
"""Reads what writers say they took back, answered and refused, and Placement that it deleted;
``at`` in monotonic seconds."""


@attrs.define
class Holding:
    """One allocation of a consumer on a provider, from its first sample to its last.

    :ivar row: its number in Placement's table; written anew it has another one
    :ivar why: a server or a move of it said that it is there, or nobody can tell; in words
    :ivar unseen_at: of the last sample without it, before the first with it
    :ivar unseen_since: before that sample was taken: it may have been written since
    :ivar idle_since: before the last sample, of those without it, in which nothing was under way
        with its server
    :ivar sent_at: of the first sample in which a server or a move said so
    :ivar gone_at: of the first sample without it, behind the last with it; None while it stands
    :ivar is_answered: its writer says that it answered with it
    :ivar is_withdrawn: its writer says that it took it back
    :ivar is_refused: its writer says that it answered an error, and nobody says otherwise
    """

    consumer: str
    provider: str
    provider_uuid: str
    row: int
    unseen_at: float
    unseen_since: float
    idle_since: float
    first_at: float
    last_at: float
    why: str = ""
    sent_at: float | None = None
    gone_at: float | None = None
    is_answered: bool = False
    is_withdrawn: bool = False
    is_refused: bool = False

    def judge(self, told: "_ToldOfOne") -> None:
        """Take in what its writer and Placement say of it."""
        taken_back = [each.at for each in told.taken_back if self._is_told_by(each, told)]
        self.is_withdrawn = bool(taken_back)
        # Once that is carried out, an answer is with what was written anew.
        ends = [at for at in told.changes for back in taken_back if back < at]
        self.is_answered = self._was_answered_with(told, min(ends, default=self._until))
        self.is_refused = self._was_refused(told)

    def _is_told_by(self, withdrawal: withdrawals.Withdrawal, told: "_ToldOfOne") -> bool:
        """Say whether it is the allocation that its writer took back, and no other one there.

        What was taken back before the first sample is another one: this one was written anew.
        """
        begin = self.first_at if self.stood_long else self.unseen_at
        return (
            withdrawal.provider == self.provider_uuid
            and self.gone_at is not None
            and begin <= withdrawal.at <= self.gone_at
            and not any(withdrawal.at < at <= self.first_at for at in told.changes)
        )

    def _was_answered_with(self, told: "_ToldOfOne", until: float) -> bool:
        """Say whether its writer answered with its host while it stood."""
        return any(
            self.unseen_since <= each.at <= until
            for each in told.answers
            if each.host == self.provider
        )

    def _was_refused(self, told: "_ToldOfOne") -> bool:
        """Say whether its writer answered an error while it stood, and nobody a host.

        Who began later did not write it. A conductor that was answered with a host for a move
        goes on to an alternate without a word.
        """
        refused = any(
            self.unseen_at <= each.at <= self._until and each.began_at <= self.first_at
            for each in told.refusals
        )
        return refused and not any(
            self.idle_since <= each.at <= self._until for each in told.answers
        )

    def was_answered_behind(self, moment: float, answers: Collection[withdrawals.Answer]) -> bool:
        """Say whether its writer answered with it, and not before a moment.

        A conductor that moves its server to an alternate says nothing of that: what is
        answered behind that, or behind its end, is another request, of a move of the server.

        :param answers: when its server's requests were answered
        """
        ends = [at for at in (self.sent_at, self.gone_at) if at is not None]
        until = min(ends, default=float("inf"))
        of_this = [each for each in answers if self.unseen_since <= each.at <= until]
        with_it = any(each.host == self.provider for each in of_this)
        return with_it and all(each.at > moment for each in of_this)

    def ended_at(self, deletions: Collection[float]) -> float | None:
        """Return when it went, at the latest; None while it stands.

        :param deletions: when Placement had deleted all that its consumer had
        """
        if self.gone_at is None:
            return None
        of_this = [at for at in deletions if self.last_at < at <= self.gone_at]
        return min(of_this, default=self.gone_at)

    @property
    def was_answered(self) -> str:
        """Why somebody may have been answered with it; empty if nobody was."""
        if self.why not in ("", _LEAVING):
            return self.why
        if self.is_answered:
            return "its writer answered with it"
        if self.is_refused:
            return ""
        if self.why and not self.is_withdrawn:
            return self.why
        if self.gone_at is None:
            return "to the end"
        return "for long" if self.stood_long and not self.is_withdrawn else ""

    @property
    def _until(self) -> float:
        return float("inf") if self.gone_at is None else self.gone_at

    @property
    def stood_long(self) -> bool:
        """Whether it stood for longer than :data:`WITHDRAWN_SECONDS`."""
        return self.last_at - self.first_at > WITHDRAWN_SECONDS


@attrs.define
class _ToldOfOne:
    """What is told of one consumer.

    :ivar deletions: when Placement had deleted all that it had
    :ivar changes: these, and when it had written that anew
    """

    taken_back: list[withdrawals.Withdrawal] = attrs.field(factory=list)
    answers: list[withdrawals.Answer] = attrs.field(factory=list)
    refusals: list[withdrawals.Refusal] = attrs.field(factory=list)
    deletions: list[float] = attrs.field(factory=list)
    changes: list[float] = attrs.field(factory=list)


def _by_consumer(told: Collection[withdrawals.Told]) -> Mapping[str, _ToldOfOne]:
    """Return all that is told, sorted."""
    found: dict[str, _ToldOfOne] = collections.defaultdict(_ToldOfOne)
    for each in told:
        match each:
            case withdrawals.Withdrawal():
                found[each.server].taken_back.append(each)
            case withdrawals.Answer():
                found[each.server].answers.append(each)
            case withdrawals.Refusal():
                found[each.server].refusals.append(each)
            case withdrawals.Deletion():
                found[each.consumer].deletions.append(each.at)
                found[each.consumer].changes.append(each.at)
            case withdrawals.Rewriting():
                found[each.consumer].changes.append(each.at)
    return found


@attrs.define
class _Sample:
    """A host that held too much of a class: each holding with what it had of it.

    :param unsent: of which no server or move named the host by then
    :ivar until: of the first sample behind it in which it held no more than it has
    :ivar is_last: the next one was that
    """

    at: float
    provider: str
    kind: str
    capacity: float
    held: Sequence[tuple[Holding, int, str]]
    unsent: Collection[str]
    until: float | None = None
    is_last: bool = True

    @property
    def subject(self) -> str:
        return f"{self.provider} {self.kind}"

    def room_at(self, told: Mapping[str, _ToldOfOne]) -> float | None:
        """Return since when at the latest it held no more than it has; None: it never did.

        :param told: by consumer
        """
        if self.until is None or not self.is_last:
            # What came between samples that both hold too much, nobody knows.
            return self.until
        left = sum(amount for _, amount, _ in self.held)
        ends = [(each.ended_at(told[each.consumer].deletions), n) for each, n, _ in self.held]
        for at, amount in sorted((at, n) for at, n in ends if at is not None and at <= self.until):
            left -= amount
            if left <= self.capacity:
                return at
        return self.until


class Grants:
    """Follows the allocations of one round. One thread at a time."""

    def __init__(self, told: Told = tuple) -> None:
        self._told = told
        self._at = self._since = 0.0
        self._idle: dict[str, float] = {}
        self._standing: dict[tuple[str, str], Holding] = {}
        self._over: list[_Sample] = []
        self._going_on: list[_Sample] = []

    def look(self, now: snapshot_module.Snapshot, leaving: Container[str]) -> None:
        """Take a sample into account; see :func:`.audit.at_any_moment`."""
        before, self._standing = self._standing, {}
        for consumer, providers in now.allocated.items():
            for provider in providers:
                key = consumer, provider
                row = now.rows.get(key, 0)
                holding = before.get(key)
                if holding is None or holding.row != row:
                    uuid = now.provider_uuids.get(provider, "")
                    holding = Holding(
                        consumer,
                        provider,
                        uuid,
                        row,
                        unseen_at=self._at,
                        unseen_since=self._since,
                        idle_since=self._idle.get(consumer, float("-inf")),
                        first_at=now.at,
                        last_at=now.at,
                    )
                else:
                    before.pop(key)
                holding.last_at = now.at
                if holding.sent_at is None:
                    holding.why = _why(now, consumer, provider, leaving) or holding.why
                    holding.sent_at = None if holding.why in ("", _LEAVING) else now.at
                self._standing[key] = holding
        for holding in before.values():
            holding.gone_at = now.at
            if not holding.why and (holding.consumer, holding.provider) not in self._standing:
                # Since the last sample with it.
                holding.why = _LEAVING if holding.consumer in leaving else ""
        self._at, self._since = now.at, now.since
        self._idle |= {each.uuid: now.since for each in now.servers.values() if each.is_settled}
        over = list(audit.over_committed(now))
        subjects = {finding.subject for finding in over}
        for sample in self._going_on:
            if sample.subject in subjects:
                sample.is_last = False
            else:
                sample.until = now.at
        self._going_on = [sample for sample in self._going_on if sample.until is None]
        for finding in over:
            provider, kind = finding.subject.rsplit(" ", 1)
            held = [
                (holding, amounts[provider][kind], _state(now, consumer))
                for consumer, amounts in sorted(now.allocated.items())
                if kind in amounts.get(provider, {})
                for holding in (self._standing[consumer, provider],)
            ]
            capacity = now.capacity.get((provider, kind), 0.0)
            unsent = {each.consumer for each, _, _ in held if each.why in ("", _LEAVING)}
            sample = _Sample(now.at, provider, kind, capacity, held, unsent)
            self._over.append(sample)
            self._going_on.append(sample)

    def judged(self) -> Iterator[tuple[float, audit.Finding]]:
        """Yield what each such sample is found to be by now, with its moment."""
        told = _by_consumer(self._told() if self._over else ())
        for sample in self._over:
            for holding, _, _ in sample.held:
                holding.judge(told[holding.consumer])
            used = sum(amount for _, amount, _ in sample.held)
            room_at = sample.room_at(told)
            why = {
                holding.consumer: _why_kept(
                    holding, sample, room_at, told[holding.consumer].answers
                )
                for holding, _, _ in sample.held
            }
            kept = sum(amount for holding, amount, _ in sample.held if why[holding.consumer])
            words = "; ".join(
                _told(holding, state, sample.at, why[holding.consumer])
                for holding, _, state in sample.held
            )
            where = f"{sample.kind} are allocated on {sample.provider}"
            if kept > sample.capacity:
                detail = f"{kept} of {sample.capacity:.0f} {where}: {words}"
                excess = int(kept - sample.capacity)
                yield sample.at, audit.Finding(audit.OVER_COMMIT, sample.subject, detail, excess)
            else:
                detail = f"{used} of {sample.capacity:.0f} {where}, {kept} for good: {words}"
                excess = int(used - sample.capacity)
                yield sample.at, audit.Finding(WITHDRAWN, sample.subject, detail, excess)


def _why_kept(
    holding: Holding,
    sample: _Sample,
    room_at: float | None,
    answers: Collection[withdrawals.Answer],
) -> str:
    """Return why somebody may have been answered with a holding while its host held too much."""
    if (
        room_at is not None
        and holding.consumer in sample.unsent
        and holding.was_answered_behind(room_at, answers)
    ):
        return ""
    return holding.was_answered


def _why(
    now: snapshot_module.Snapshot, consumer: str, provider: str, leaving: Container[str]
) -> str:
    """Say why an allocation is, or may be, one that somebody was answered with."""
    server = now.servers.get(consumer)
    if server is not None and provider in (server.host, server.node):
        return "its server is there"
    if consumer in now.migrations:
        return "a move's own"
    if any(
        provider in (move.source, move.target)
        for move in now.migrations.values()
        if move.server == consumer and not move.is_over
    ):
        return "a move names the host"
    return _LEAVING if consumer in leaving else ""


def _state(now: snapshot_module.Snapshot, consumer: str) -> str:
    """Say whose an allocation is, in a few words."""
    migration = now.migrations.get(consumer)
    if migration is not None:
        return f"move of {migration.server}, {migration.status}"
    server = now.servers.get(consumer)
    if server is not None:
        return f"{server.name} {server.vm_state}, {server.task_state} on {server.host}"
    return "requested" if consumer in now.build_requests else "nobody"


def _told(holding: Holding, state: str, at: float, why: str) -> str:
    age_seconds = at - holding.first_at
    unanswered = "its request failed" if holding.is_refused else "withdrawn"
    if holding.was_answered:
        unanswered = "answered later"
    kept = f"kept, {why}" if why else unanswered
    return f"{holding.consumer} ({state}; {kept}, for {age_seconds:.1f} s by then)"
