# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for room, for operators: what version 1.3 of the RPC API brought.

Any scheduler answers, for all of them follow the records. What is told may be behind by
the feed's lag; what is done is done by compare-and-set on the records themselves.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import attrs
import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.rpc import api, endpoint
from nova_nodb_scheduler.wire import pending_objects

#: Hosts that are listed at most for one request.
MAX_HOSTS = 100
#: What ranks may be: JSON's whole numbers, and room for one more.
MAX_RANK = 2**31
#: Of a scheduler whose knowledge is older nobody hears that a request is not there.
MOST_PROOF_AGE_SECONDS = 60.0
#: A marker names a time and a key.
_MAX_MARKER_BYTES = 2 * endpoint.MAX_TEXT_BYTES


class Outcome(enum.Enum):
    """What became of something that was wanted of a request."""

    DONE = "done"
    #: Somebody places it at the moment.
    BUSY = "busy"
    GONE = "gone"
    #: Its record cannot be read: it ends when its time is over.
    UNREADABLE = "unreadable"


@attrs.frozen
class Changed:
    """An outcome, and the request as it stands."""

    outcome: Outcome
    request: pending.PendingRequest | None = None


@attrs.frozen
class KnownRequests:
    """All requests at one moment.

    :param unreadable: how many records are none of a request
    :param now_seconds: by the back end's clock
    :param proof_age_seconds: all that was written longer ago is among them; None where
        nothing is proved
    """

    requests: Sequence[pending.PendingRequest]
    unreadable: int
    now_seconds: float
    proof_age_seconds: float | None


class PendingOperations(Protocol):
    """What a scheduler can tell and do of requests that wait; any thread."""

    def known(self) -> KnownRequests:
        """Return all requests. No I/O."""

    def find(self, server: str) -> pending.PendingRequest | None:
        """Return the request of a server. No I/O."""

    def details(
        self, context: Any, request: pending.PendingRequest, hosts: int
    ) -> pending_objects.PendingDetails:
        """Tell why a request does not fit. May read its payload from the back end."""

    def cancel(self, context: Any, request: pending.PendingRequest) -> Changed:
        """Have a request end in ERROR.

        :raises BackendUnavailable: not known whether it will
        """

    def promote(self, request: pending.PendingRequest, rank: int) -> Changed:
        """Give a request another rank.

        :raises BackendUnavailable: not known whether it has it
        """


@attrs.frozen
class Conditions:
    """Which requests are meant; None: any, but of states those that are not placed."""

    project: str | None = None
    priority_class: str | None = None
    flavor: str | None = None
    state: str | None = None

    def hold_for(self, request: pending.PendingRequest) -> bool:
        """Say whether a request is meant."""
        return (
            self.project in (None, request.project_id)
            and self.priority_class in (None, request.priority_class)
            and self.flavor in (None, request.flavor)
            and self._has_state(request)
        )

    def _has_state(self, request: pending.PendingRequest) -> bool:
        state = pending_objects.state_of(request)
        return state != pending_objects.PLACED if self.state is None else state == self.state


_expected = oslo_messaging.expected_exceptions(
    errors.InvalidArgument,
    errors.LimitExceeded,
    errors.PendingNotFound,
    errors.UndecodableRecord,
    *errors.NOT_USABLE,
)


class QueueEndpoint:
    """What version 1.3 of the RPC API brought; beside :class:`.endpoint.StateEndpoint`.

    :param page_size: most requests in a page
    """

    target = oslo_messaging.Target(namespace=api.NAMESPACE, version=api.VERSION)

    def __init__(self, desk: PendingOperations, page_size: int) -> None:
        self._desk = desk
        self._page_size = page_size

    @_expected  # type: ignore[untyped-decorator]
    @endpoint.checked
    def list_pending(
        self,
        ctxt: Any,
        project: str | None = None,
        priority_class: str | None = None,
        flavor: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        marker: str | None = None,
    ) -> pending_objects.PendingPage:
        """List requests that wait or are being placed, those first that were asked for first.

        :param state: ``scheduling``, ``waiting``, ``granted``, ``building`` or ``placed``;
            None: any but ``placed``, of which nothing waits for room any more
        :param limit: most requests wanted; the server's page size at most
        :param marker: ``next_marker`` of the page before
        :raises InvalidArgument: naming the one that is not what it must be
        """
        method = "list_pending"
        conditions = _conditions(method, project, priority_class, flavor, state)
        known = self._desk.known()
        meant = [each for each in known.requests if conditions.hold_for(each)]
        found, next_marker = self._page(method, meant, limit, marker)
        return pending_objects.PendingPage(
            requests=[pending_objects.of_request(each) for each in found],
            total=len(meant),
            servers=sum(len(each.servers) for each in meant),
            unreadable=known.unreadable,
            now=known.now_seconds,
            proof_age_seconds=known.proof_age_seconds,
            next_marker=next_marker,
        )

    @_expected  # type: ignore[untyped-decorator]
    @endpoint.checked
    def get_pending(
        self, ctxt: Any, instance_uuid: str, hosts: int = 5
    ) -> pending_objects.PendingDetails:
        """Tell of the request of a server why it waits, and what would have to be freed.

        It costs what a request for a new kind of server costs, twice.

        :param instance_uuid: of any of its servers
        :param hosts: most hosts to list, where the least would have to be freed; 100 at most
        :raises PendingNotFound: no request of that server is known
        :raises BackendUnavailable: nor would it be, for this scheduler may not know all
        """
        method = "get_pending"
        most = _within(method, "hosts", hosts, 0, MAX_HOSTS)
        return self._desk.details(ctxt, self._found(method, instance_uuid), most)

    @_expected  # type: ignore[untyped-decorator]
    @endpoint.checked
    def cancel_pending(self, ctxt: Any, instance_uuid: str) -> pending_objects.PendingOutcome:
        """Have the request of a server end in ERROR, with all its servers.

        The same call again does no more.

        :raises PendingNotFound: no request of that server is known
        """
        request = self._found("cancel_pending", instance_uuid)
        return _told(request.key, self._desk.cancel(ctxt, request))

    @_expected  # type: ignore[untyped-decorator]
    @endpoint.checked
    def promote_pending(
        self, ctxt: Any, instance_uuid: str, rank: int | None = None
    ) -> pending_objects.PendingOutcome:
        """Let the request of a server go before all of a lesser rank.

        :param rank: None: one more than any has
        :raises PendingNotFound: no request of that server is known
        """
        method = "promote_pending"
        request = self._found(method, instance_uuid)
        if rank is None:
            greatest = max((each.rank for each in self._desk.known().requests), default=0)
            rank = min(max(greatest, 0) + 1, MAX_RANK)
        wanted = _within(method, "rank", rank, -MAX_RANK, MAX_RANK)
        return _told(request.key, self._desk.promote(request, wanted))

    @_expected  # type: ignore[untyped-decorator]
    @endpoint.checked
    def drain_pending(
        self,
        ctxt: Any,
        project: str | None = None,
        priority_class: str | None = None,
        flavor: str | None = None,
        limit: int | None = None,
        marker: str | None = None,
    ) -> pending_objects.PendingOutcomes:
        """Have requests end in ERROR, a page at a time; see :meth:`list_pending`.

        Those that are placed are left to their hosts, and what cannot be read to its time.

        :param limit: most requests that are looked at; the server's page size at most
        :raises BackendUnavailable: some may end; call again with the same marker. Or this
            scheduler may not know all
        """
        method = "drain_pending"
        conditions = _conditions(method, project, priority_class, flavor, None)
        known = self._desk.known()
        _check_proof(known)
        meant = (each for each in known.requests if conditions.hold_for(each))
        found, next_marker = self._page(method, meant, limit, marker)
        return pending_objects.PendingOutcomes(
            outcomes=[_told(each.key, self._cancelled(ctxt, each)) for each in found],
            next_marker=next_marker,
        )

    def _cancelled(self, ctxt: Any, request: pending.PendingRequest) -> Changed:
        try:
            return self._desk.cancel(ctxt, request)
        except errors.UndecodableRecord:
            # The feed keeps what it could read last. Others behind it are to end.
            return Changed(Outcome.UNREADABLE)

    def _found(self, method: str, server: object) -> pending.PendingRequest:
        name = endpoint.text(method, "instance_uuid", server)
        found = self._desk.find(name)
        if found is None:
            _check_proof(self._desk.known())
            raise errors.PendingNotFound(name)
        return found

    def _page(
        self,
        method: str,
        meant: Iterable[pending.PendingRequest],
        limit: object,
        marker: object,
    ) -> tuple[list[pending.PendingRequest], str | None]:
        wanted = self._page_size
        if limit is not None:
            wanted = min(max(1, endpoint.number(method, "limit", limit)), wanted)
        behind = None if marker is None else _behind(method, marker)
        left = (each for each in meant if behind is None or _place(each) > behind)
        found = heapq.nsmallest(wanted + 1, left, key=_place)
        if len(found) <= wanted:
            return found, None
        last = found[wanted - 1]
        return found[:wanted], f"{last.asked_at!r} {last.key}"


def _check_proof(known: KnownRequests) -> None:
    """Let nobody hear that somebody does not wait from a scheduler that may not know.

    :raises BackendUnavailable: it may not
    """
    age = known.proof_age_seconds
    if age is None or age > MOST_PROOF_AGE_SECONDS:
        raise errors.BackendUnavailable(
            "of the scheduler that answered",
            "it does not follow its feed, and may not know all requests",
        )


def _place(request: pending.PendingRequest) -> tuple[float, str]:
    return request.asked_at, request.key


def _behind(method: str, marker: object) -> tuple[float, str]:
    text = endpoint.text(method, "marker", marker, _MAX_MARKER_BYTES)
    at, _, key = text.partition(" ")
    try:
        seconds = float(at)
    except ValueError:
        seconds = math.nan
    # Behind what is no time nothing comes: it would look like the end.
    if not math.isfinite(seconds):
        raise errors.InvalidArgument(method, "marker", "it is no next_marker of a page")
    return seconds, key


def _conditions(method: str, *values: object) -> Conditions:
    names: Iterator[attrs.Attribute[Any]] = iter(attrs.fields(Conditions))
    given = {
        field.name: None if value is None else endpoint.text(method, field.name, value)
        for field, value in zip(names, values, strict=True)
    }
    states = pending_objects.STATES
    if given["state"] not in (None, *states):
        raise errors.InvalidArgument(method, "state", f"it is one of {', '.join(states)}")
    return Conditions(**given)


def _within(method: str, name: str, value: object, least: int, most: int) -> int:
    number = endpoint.number(method, name, value)
    if not least <= number <= most:
        raise errors.InvalidArgument(method, name, f"give {least} to {most}")
    return number


def _told(key: str, changed: Changed) -> pending_objects.PendingOutcome:
    standing = changed.request
    return pending_objects.PendingOutcome(
        key=key,
        outcome=changed.outcome.value,
        request=None if standing is None else pending_objects.of_request(standing),
    )
