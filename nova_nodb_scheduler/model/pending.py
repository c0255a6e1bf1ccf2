# SPDX-License-Identifier: Apache-2.0
"""A request that waits for room, as its record in namespace ``pending`` says it.

The record is small, for every scheduler holds all of them. What the conductor was
called with, from which the servers are built in the end, stands in namespace
``pending_payloads`` under the same key, and nobody follows that.

========== ============================================ ==========================
state      what it means                                who moves on
========== ============================================ ==========================
scheduling a conductor has it in hand                   that conductor, while its
                                                        lease lasts
waiting    there was no room                            any scheduler: ``granted``
granted    a scheduler has told a conductor to try it   the conductor that takes
                                                        it, while the lease lasts
building   hosts are chosen, and servers are written    that conductor, while its
           to their cells and sent to their hosts       lease lasts
========== ============================================ ==========================

Once all servers of a request are sent it is *placed*, and in nobody's hand. Its record stays
until its servers are seen on hosts, and somebody looks at it when its lease ends: what a
nova-compute gave up before it had begun is sent again.

Each grant is an *attempt* of its own: whoever acts for a former one loses its next
compare-and-set and stops there. A lease that ended, in any state but ``waiting``,
lets any scheduler grant the request anew.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs
import immutables

#: Scheduler hint by which a conductor tells a scheduler whose hosts it asks for: a list of
#: one text, see :func:`hint`. It is never saved, and no filter gets to see it.
HINT = "_nodb_pending"

#: Stands in the reason of a NoValidHost: no more may wait, and the request is not parked.
QUEUE_FULL = "the queue is full"

#: Fields of a record's state that are left out where they say nothing.
OPTIONAL_FIELDS = frozenset({"hold", "mapped", "placed_at", "certain", "given_up_at"})

#: How long behind its deadline a server is sent again that computes give up.
MOST_TRYING_SECONDS = 1800.0


def hint(key: str, attempt: int) -> list[str]:
    """Return the value of :data:`HINT` for an attempt of a request."""
    return [f"{key}:{attempt}"]


def read_hint(value: object) -> tuple[str, int] | None:
    """Return the key and the attempt that a hint names; None where it names none.

    Any user may send a hint of that name.
    """
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        return None
    key, _, attempt = value.rpartition(":")
    if not key or not attempt.isascii() or not attempt.isdigit():
        return None
    return key, int(attempt)


class PendingState(enum.Enum):
    """How far a request has come."""

    SCHEDULING = "scheduling"
    WAITING = "waiting"
    GRANTED = "granted"
    BUILDING = "building"


class Purpose(enum.Enum):
    """What a grant is for."""

    #: Find hosts for it.
    PLACE = "place"
    #: Its deadline has passed: its servers end in ERROR.
    EXPIRE = "expire"
    #: An operator took it out of the queue: likewise.
    CANCEL = "cancel"


class MalformedPending(Exception):
    """A record is none of a pending request; the text names the field."""


def _frozen(value: Mapping[str, int]) -> immutables.Map[str, int]:
    # Many requests may share one.
    return value if isinstance(value, immutables.Map) else immutables.Map(value)


@attrs.frozen
class Grant:
    """One attempt that a scheduler began.

    :param attempt: counts grants of the request, from 1
    :param owner: id of the process that has it in hand: the scheduler that granted it,
        then the conductor that took it
    :param until_seconds: end of the lease, by the back end's clock
    :param host: node uuid of the host whose room it is for; empty where there is none
    :param after: the state it was in before. Other than ``waiting``: whoever had it is
        gone, and what that one has left is to be cleared away first
    """

    attempt: int
    owner: str
    until_seconds: float
    purpose: Purpose = Purpose.PLACE
    host: str = ""
    after: PendingState = PendingState.WAITING


@attrs.frozen
class Hold:
    """A host that takes nobody else while room for the request is freed on it.

    :param host: node uuid
    :param until_seconds: end of the lease, by the back end's clock
    """

    host: str
    until_seconds: float


@attrs.frozen
class PendingRequest:
    """One request that waits, or is being placed. Times are seconds by the back end's clock.

    :param key: the record's: uuid of the first server
    :param servers: uuids of all servers of the request, which wait as one
    :param sent: uuids of those whose build was sent to a host
    :param mapped: uuids of those that stand mapped in a cell, and whose build request was
        still there behind that: where it is gone, a conductor has deleted it and no user
    :param placed_at: when the last of its servers was sent; 0 while any is to be
    :param certain: see :attr:`sent_for_certain`
    :param given_up_at: when a host was first found to have given up a server of it; 0 before
    :param flavor: its name, for people
    :param priority_class: name of the class, see the options
    :param needs: amounts by resource class for ONE server, as its allocation will be
    :param queue: digest of everything a scheduler looks at: requests with an equal one
        have equal chances at any moment. See :func:`demand`
    :param rank: of an operator's promotion; the greatest goes first
    :param asked_at: when the conductor took it first
    :param deadline_at: when it ends in ERROR
    :param parked_at: when it was first put to wait; 0 before
    :param not_before: no attempt before that, for the last ones failed
    :param refusals: attempts in a row that found no room
    :param reason: why it waits, for people
    """

    key: str
    servers: tuple[str, ...]
    project_id: str
    user_id: str
    flavor: str
    priority_class: str
    needs: Mapping[str, int] = attrs.field(converter=_frozen)
    queue: str
    asked_at: float
    deadline_at: float
    state: PendingState
    grant: Grant
    rank: int = 0
    sent: tuple[str, ...] = ()
    parked_at: float = 0.0
    not_before: float = 0.0
    refusals: int = 0
    reason: str = ""
    hold: Hold | None = None
    mapped: tuple[str, ...] = ()
    placed_at: float = 0.0
    certain: tuple[str, ...] = ()
    given_up_at: float = 0.0

    @property
    def ends_at(self) -> float:
        """When servers that are to be sent end in ERROR: later where some were sent before."""
        return self.deadline_at + (MOST_TRYING_SECONDS if was_sent(self) else 0.0)

    @property
    def sent_for_certain(self) -> tuple[str, ...]:
        """Servers whose message left for their hosts; of the others in ``sent`` it may have."""
        if self.placed_at:
            return self.sent
        # An older release that sends one again leaves it in ``certain``, and in ``mapped``.
        return tuple(each for each in self.certain if each in self.sent and each not in self.mapped)

    @property
    def unsent(self) -> tuple[str, ...]:
        """Servers that are still to be sent to a host."""
        return tuple(server for server in self.servers if server not in self.sent)

    def to_state(self) -> dict[str, Any]:
        """Return the record's state: JSON values, without the key."""
        state: dict[str, Any] = {
            "servers": list(self.servers),
            "project_id": self.project_id,
            "user_id": self.user_id,
            "flavor": self.flavor,
            "class": self.priority_class,
            "needs": dict(self.needs),
            "queue": self.queue,
            "asked_at": self.asked_at,
            "deadline_at": self.deadline_at,
            "state": self.state.value,
            "grant": {
                "attempt": self.grant.attempt,
                "owner": self.grant.owner,
                "until": self.grant.until_seconds,
                "purpose": self.grant.purpose.value,
                "host": self.grant.host,
                "after": self.grant.after.value,
            },
            "rank": self.rank,
            "sent": list(self.sent),
            "parked_at": self.parked_at,
            "not_before": self.not_before,
            "refusals": self.refusals,
            "reason": self.reason,
        }
        if self.hold is not None:
            state["hold"] = {"host": self.hold.host, "until": self.hold.until_seconds}
        if self.mapped:
            state["mapped"] = list(self.mapped)
        if self.placed_at:
            state["placed_at"] = self.placed_at
        if self.certain:
            state["certain"] = list(self.certain)
        if self.given_up_at:
            state["given_up_at"] = self.given_up_at
        return state


def is_let_go(request: PendingRequest) -> bool:
    """Say whether all servers of a request were sent, and nobody has it in hand."""
    return request.state is PendingState.BUILDING and request.placed_at > 0


def was_sent(request: PendingRequest) -> bool:
    """Say whether a request was placed, now or before a host gave a server of it up."""
    return request.placed_at > 0 or request.given_up_at > 0


def queue_name(demand_digest: str, owner_digest: str) -> str:
    """Return the digest of a request of what it asks for, and of whose it is."""
    return f"{demand_digest}-{owner_digest}"


def demand(queue: str) -> str:
    """Return what a queue's requests ask for, whosever they are.

    Those of another owner have equal chances but where hosts are set aside for somebody.
    """
    return queue.partition("-")[0]


def of_state(key: str, state: Mapping[str, Any]) -> PendingRequest:
    """Read a record.

    :raises MalformedPending: a field is missing or of another kind
    """
    reader = _Reader(state)
    grant = reader.part("grant")
    hold = reader.part("hold") if state.get("hold") is not None else None
    return PendingRequest(
        key=key,
        servers=reader.texts("servers"),
        sent=reader.texts("sent"),
        project_id=reader.text("project_id"),
        user_id=reader.text("user_id"),
        flavor=reader.text("flavor"),
        priority_class=reader.text("class"),
        needs=reader.amounts("needs"),
        queue=reader.text("queue"),
        asked_at=reader.number("asked_at"),
        deadline_at=reader.number("deadline_at"),
        state=reader.choice("state", PendingState),
        grant=Grant(
            attempt=grant.count("attempt"),
            owner=grant.text("owner"),
            until_seconds=grant.number("until"),
            purpose=grant.choice("purpose", Purpose),
            host=grant.text("host"),
            after=grant.choice("after", PendingState),
        ),
        rank=reader.count("rank"),
        parked_at=reader.number("parked_at"),
        not_before=reader.number("not_before"),
        refusals=reader.count("refusals"),
        reason=reader.text("reason"),
        hold=None if hold is None else Hold(hold.text("host"), hold.number("until")),
        mapped=reader.texts("mapped") if "mapped" in state else (),
        placed_at=reader.number("placed_at") if "placed_at" in state else 0.0,
        certain=reader.texts("certain") if "certain" in state else (),
        given_up_at=reader.number("given_up_at") if "given_up_at" in state else 0.0,
    )


@attrs.frozen
class _Reader:
    """Fields of a state, each of the kind that is asked for."""

    _state: Mapping[str, Any]

    def _get(self, name: str, *kinds: type[Any]) -> Any:
        value = self._state.get(name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise MalformedPending(f"field {name!r} is {type(value).__name__}")
        return value

    def text(self, name: str) -> str:
        return str(self._get(name, str))

    def number(self, name: str) -> float:
        return float(self._get(name, int, float))

    def count(self, name: str) -> int:
        return int(self._get(name, int))

    def part(self, name: str) -> _Reader:
        return _Reader(self._get(name, Mapping))

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._get(name, list, tuple)
        if not all(isinstance(value, str) for value in values):
            raise MalformedPending(f"field {name!r} holds what is no text")
        return tuple(values)

    def amounts(self, name: str) -> dict[str, int]:
        values = self._get(name, Mapping)
        for resource, amount in values.items():
            if not isinstance(amount, int) or isinstance(amount, bool) or amount < 0:
                raise MalformedPending(f"field {name!r}: {resource} is no amount")
        return dict(values)

    def choice(self, name: str, kind: type[Any]) -> Any:
        value = self._state.get(name)
        try:
            return kind(value)
        except ValueError as error:
            raise MalformedPending(f"field {name!r} is {value!r}") from error
