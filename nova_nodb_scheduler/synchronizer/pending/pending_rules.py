# SPDX-License-Identifier: Apache-2.0
"""What each step makes of a request that waits, or why it may not be taken. No I/O.

Who has a request in hand is named by (attempt, owner), and every step that its holder
takes asks for both. A scheduler that grants it anew raises the attempt, so that one
compare-and-set puts an end to whatever the former holder may still want.

Each step is asked again after a write whose outcome is not known. It then finds its
own mark in what stands there, and answers that it is done: nothing is ever undone or
counted twice. An owner's id must therefore be of one holding, never used again.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from nova_nodb_scheduler.model import pending


@attrs.frozen
class Holding:
    """By what name its holder has a request in hand.

    :param owner: id of this holding, unlike any other
    """

    key: str
    attempt: int
    owner: str

    def is_of(self, request: pending.PendingRequest | None) -> bool:
        """Tell whether a request is in the hand of this holder, or was when it was parked."""
        return request is not None and (request.grant.attempt, request.grant.owner) == (
            self.attempt,
            self.owner,
        )


@attrs.frozen
class Superseded:
    """A step may not be taken: the request is somebody else's, or past it.

    :param standing: how it stands; None where it has ended
    """

    standing: pending.PendingRequest | None


@attrs.frozen
class Granting:
    """A grant that a scheduler wants to make.

    :param attempt: of the record that it looked at
    """

    attempt: int
    owner: str
    until_seconds: float
    purpose: pending.Purpose = pending.Purpose.PLACE
    host: str = ""


#: What a step comes to: the request as it is to stand, which is as it stands already
#: where the step is done.
Step = pending.PendingRequest | Superseded

_SCHEDULING, _WAITING = pending.PendingState.SCHEDULING, pending.PendingState.WAITING
_GRANTED, _BUILDING = pending.PendingState.GRANTED, pending.PendingState.BUILDING


def holding_of(request: pending.PendingRequest) -> Holding:
    """Return by what name whoever has a request has it."""
    return Holding(request.key, request.grant.attempt, request.grant.owner)


def is_lapsed(request: pending.PendingRequest, now_seconds: float) -> bool:
    """Tell whether somebody had a request in hand and was silent for too long."""
    return request.state is not _WAITING and request.grant.until_seconds <= now_seconds


def created(standing: pending.PendingRequest | None, request: pending.PendingRequest) -> Step:
    """A conductor takes a request that is new."""
    if standing is None:
        return request
    return standing if holding_of(request).is_of(standing) else Superseded(standing)


def granted(standing: pending.PendingRequest | None, wanted: Granting, now_seconds: float) -> Step:
    """A scheduler gives a request that waits, or whose holder is gone, to conductors."""
    if standing is None:
        return Superseded(None)
    own = Holding(standing.key, wanted.attempt + 1, wanted.owner)
    if own.is_of(standing) and standing.state is _GRANTED:
        done = standing.grant.purpose is wanted.purpose
        return standing if done else Superseded(standing)
    if standing.grant.attempt != wanted.attempt:
        return Superseded(standing)
    if standing.state is not _WAITING and not is_lapsed(standing, now_seconds):
        return Superseded(standing)
    # Nobody took the former grant, so what is to be cleared away still is.
    after = standing.grant.after if standing.state is _GRANTED else standing.state
    grant = pending.Grant(
        attempt=wanted.attempt + 1,
        owner=wanted.owner,
        until_seconds=wanted.until_seconds,
        purpose=wanted.purpose,
        host=wanted.host,
        after=after,
    )
    return attrs.evolve(standing, state=_GRANTED, grant=grant)


def taken(standing: pending.PendingRequest | None, holding: Holding, until_seconds: float) -> Step:
    """A conductor takes in hand what a scheduler granted."""
    if standing is None or standing.grant.attempt != holding.attempt:
        return Superseded(standing)
    if standing.state is _SCHEDULING and holding.is_of(standing):
        return standing
    if standing.state is not _GRANTED:
        return Superseded(standing)
    grant = attrs.evolve(standing.grant, owner=holding.owner, until_seconds=until_seconds)
    return attrs.evolve(standing, state=_SCHEDULING, grant=grant)


def parked(
    standing: pending.PendingRequest | None,
    holding: Holding,
    reason: str,
    now_seconds: float,
    not_before: float,
) -> Step:
    """Its holder found no room: it waits."""
    if standing is None or not holding.is_of(standing):
        return Superseded(standing)
    if standing.state is _WAITING:
        return standing
    if standing.state is not _SCHEDULING:
        return Superseded(standing)
    return attrs.evolve(
        standing,
        state=_WAITING,
        parked_at=standing.parked_at or now_seconds,
        not_before=not_before,
        refusals=standing.refusals + 1,
        reason=reason,
    )


def begun(
    standing: pending.PendingRequest | None, holding: Holding, kept: Collection[str] = ()
) -> Step:
    """Its holder has hosts for it, and will write to cells.

    :param kept: servers that stand in a cell and go on from there; others are made anew
    """
    if standing is None or not holding.is_of(standing):
        return Superseded(standing)
    if standing.state is _BUILDING:
        return standing
    if standing.state is not _SCHEDULING:
        return Superseded(standing)
    mapped = tuple(server for server in standing.mapped if server in kept)
    # What an older release sends again is told from what is certain by ``mapped`` alone.
    certain = standing.sent_for_certain
    return attrs.evolve(standing, state=_BUILDING, hold=None, mapped=mapped, certain=certain)


def mapped(standing: pending.PendingRequest | None, holding: Holding, server: str) -> Step:
    """Its holder has mapped a server to its cell, then found its build request, to be deleted."""
    if standing is None or not holding.is_of(standing) or standing.state is not _BUILDING:
        return Superseded(standing)
    if server in standing.mapped:
        return standing
    if server not in standing.servers:
        return Superseded(standing)
    return attrs.evolve(standing, mapped=(*standing.mapped, server))


def sent(
    standing: pending.PendingRequest | None, holding: Holding, server: str, *, asked_before: bool
) -> Step:
    """Its holder is about to send a server to its host.

    :param asked_before: a write of this very call may have been carried out. Otherwise
        a server that counts as sent was sent, or is about to be, by somebody else
    """
    if standing is None or not holding.is_of(standing) or standing.state is not _BUILDING:
        return Superseded(standing)
    if server in standing.sent:
        return standing if asked_before else Superseded(standing)
    if server not in standing.servers:
        return Superseded(standing)
    return attrs.evolve(standing, sent=(*standing.sent, server))


def placed(
    standing: pending.PendingRequest | None,
    holding: Holding,
    now_seconds: float,
    until_seconds: float,
) -> Step:
    """Its holder has sent all that is left of it, and lets go of it.

    :param until_seconds: when it is looked at again
    """
    if standing is None or not holding.is_of(standing):
        return Superseded(standing)
    if pending.is_let_go(standing):
        return standing
    if standing.state not in (_SCHEDULING, _BUILDING):
        return Superseded(standing)
    return attrs.evolve(
        standing,
        state=_BUILDING,
        servers=standing.sent,
        placed_at=standing.placed_at or now_seconds,
        certain=(),
        grant=attrs.evolve(standing.grant, until_seconds=until_seconds),
    )


def arrived(standing: pending.PendingRequest | None) -> Step:
    """All its servers were seen on hosts: nothing is left of it."""
    if standing is None or not pending.is_let_go(standing):
        return Superseded(standing)
    return attrs.evolve(standing, servers=(), sent=(), mapped=(), certain=())


def given_up(
    standing: pending.PendingRequest | None, holding: Holding, server: str, now_seconds: float
) -> Step:
    """Its holder found that a server which was sent was given up: it is to be sent again.

    Others that were sent for certain still are.
    """
    if standing is None or not holding.is_of(standing) or standing.state is not _SCHEDULING:
        return Superseded(standing)
    if server not in standing.servers:
        return Superseded(standing)
    certain = tuple(each for each in standing.sent_for_certain if each != server)
    known = _known(standing, certain)
    mapped = known.mapped if server in known.mapped else (*known.mapped, server)
    sent = tuple(each for each in standing.sent if each != server)
    return attrs.evolve(
        known,
        sent=sent,
        mapped=mapped,
        placed_at=0.0,
        given_up_at=standing.given_up_at or now_seconds,
    )


def rested(
    standing: pending.PendingRequest | None,
    holding: Holding,
    until_seconds: float,
    uncertain: Collection[str],
) -> Step:
    """Its holder has sent all that is left of it, and cannot tell whether others were sent.

    :param until_seconds: when it is looked at again
    :param uncertain: servers of which nobody knows whether they were sent
    """
    step = renewed(standing, holding, until_seconds)
    if isinstance(step, Superseded):
        return step
    return _known(step, tuple(each for each in step.sent if each not in uncertain))


def _known(request: pending.PendingRequest, certain: tuple[str, ...]) -> pending.PendingRequest:
    """Return a request with what is known to be sent, of which nobody asks who mapped it."""
    mapped = tuple(each for each in request.mapped if each not in certain)
    return attrs.evolve(request, certain=certain, mapped=mapped)


def renewed(
    standing: pending.PendingRequest | None, holding: Holding, until_seconds: float
) -> Step:
    """Its holder lives: a lease lasts longer, and one that ended begins again if nobody came."""
    if standing is None or not holding.is_of(standing):
        return Superseded(standing)
    if standing.state not in (_SCHEDULING, _BUILDING) or pending.is_let_go(standing):
        return Superseded(standing)
    if until_seconds <= standing.grant.until_seconds:
        return standing
    return attrs.evolve(standing, grant=attrs.evolve(standing.grant, until_seconds=until_seconds))


def without_server(standing: pending.PendingRequest | None, server: str) -> Step:
    """Its user deleted a server before hosts were chosen; later, its holder finds out itself.

    So does whoever takes over from one that ended and may have left something of the server.
    """
    if standing is None:
        return Superseded(None)
    if server not in standing.servers:
        return standing
    is_left = standing.state is not _WAITING and standing.grant.after is not _WAITING
    if server in standing.sent or standing.state is _BUILDING or is_left:
        return Superseded(standing)
    return attrs.evolve(
        standing, servers=tuple(each for each in standing.servers if each != server)
    )


def promoted(standing: pending.PendingRequest | None, rank: int) -> Step:
    """An operator lets it go before others."""
    return Superseded(None) if standing is None else attrs.evolve(standing, rank=rank)


def held(standing: pending.PendingRequest | None, hold: pending.Hold, now_seconds: float) -> Step:
    """A scheduler holds a host for it, or goes on to."""
    if standing is None or standing.state is not _WAITING:
        return Superseded(standing)
    former = standing.hold
    if former is not None and former.host != hold.host and former.until_seconds > now_seconds:
        return Superseded(standing)
    return attrs.evolve(standing, hold=hold)


def unheld(standing: pending.PendingRequest | None, host: str) -> Step:
    """No host is held for it any more; one that is held instead stays."""
    if standing is None:
        return Superseded(None)
    if standing.hold is None or standing.hold.host != host:
        return standing
    return attrs.evolve(standing, hold=None)
