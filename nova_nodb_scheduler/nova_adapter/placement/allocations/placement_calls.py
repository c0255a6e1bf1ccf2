# SPDX-License-Identifier: Apache-2.0
"""The HTTP calls that write, read and remove allocations of new servers, and who shares one.

A POST is sent as keystoneauth sent the last one, with another body and request id
(:mod:`.repeated_requests`). An answer other than a write's own ends that.

Writes of several requests share a call: a group commit without a thread of its own. Of the
threads that wait, one leads. It takes what is queued, makes the call, hands out the results
and goes; the next one that still waits leads then. A lone caller never waits; one that others
are known to follow waits for them, for a bounded time. Several calls may be under way at once,
but only for work that has nothing in common.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs
import orjson
from keystoneauth1 import exceptions as keystone

from nova_nodb_scheduler import tree_conditions
from nova_nodb_scheduler.nova_adapter.placement import repeated_requests
from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    conditional_writes,
    placement_replies,
    write_turns,
)
from nova_nodb_scheduler.nova_adapter.placement.mirror import write_hints

LOG = logging.getLogger(__name__)

Work = TypeVar("Work")
Result = TypeVar("Result")

#: Answers after which the next request may be the same: written, and refused.
_ORDINARY = (204, 409)


class LateClient:
    """Nova's report client, found when it is first used: making it may ask keystone.

    :param client: names it
    """

    def __init__(self, client: Callable[[], Any]) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client(), name)


class PostSender:
    """Sends for one process; any thread. Blocks as long as the client's timeouts allow.

    :param client: Nova's ``SchedulerReportClient``, or what stands for it: then
        every call is its own
    """

    def __init__(self, client: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._repeater = repeated_requests.Repeater(lambda: client, "post", _ORDINARY, clock)
        self._clock = clock
        self._trust = conditional_writes.ConditionTrust(clock)

    @property
    def repeated(self) -> int:
        """See :class:`.repeated_requests.Repeater`."""
        return self._repeater.repeated

    def takes_conditions(self) -> bool:
        """Say whether a condition would be sent and judged, for all that is known; no I/O.

        Nova's report client passes no headers on: what keystoneauth is to send has none.
        """
        return self._trust.holds() and self._repeater.is_ready()

    def post(
        self,
        path: str,
        data: Mapping[str, Any],
        *,
        version: str,
        request_id: str | None,
        marks: conditional_writes.Marks | None = None,
    ) -> Any:
        """Send a POST, and return the answer, with ``status_code``, ``text`` and ``json()``.

        :param marks: trees that Placement is to compare; whether it did its answer says
        :raises ClientException: of keystoneauth1
        """
        key = path, version
        more = tree_conditions.requested(marks) if marks else None
        response = self._send(key, data, request_id, more)
        self._trust.note(response, is_conditional=bool(marks))
        return response

    def _send(
        self,
        key: tuple[str, str],
        data: Mapping[str, Any],
        request_id: str | None,
        more: Mapping[str, str] | None,
    ) -> Any:
        path, version = key

        def again(pattern: repeated_requests.Pattern) -> repeated_requests.Send | None:
            if pattern.key != key:
                return None
            return pattern.with_body(orjson.dumps(data), request_id, more)

        def anew(client: Any) -> Any:
            return client.post(path, data, version=version, global_request_id=request_id)

        def learnt(client: Any, response: Any) -> repeated_requests.Pattern | None:
            own_id = None if request_id is None else repeated_requests.REQUEST_ID
            return repeated_requests.pattern_of(client, response, key, self._clock(), own_id)

        return self._repeater.send(
            again, anew, learnt, lambda send: write_hints.observe(path, data, send)
        )


_URL = "/allocations"
#: The first one with generations of consumers. Placement checks the schema of each call
#: anew, which is more than half of a POST's CPU time; with 1.36, which Nova uses and which
#: adds only mappings that Placement does not keep, a tenth of the POST more.
_MICROVERSION = "1.28"


#: Of an error that no call should raise. It may come from before the request, or from
#: after the answer: whoever wrote reads what became of it.
_STRANGE = "A call to Placement failed, and may have been carried out."


@attrs.frozen
class HeldAllocation:
    """What Placement has for a consumer.

    :param amounts: empty where it has nothing
    :param body: the whole answer, to be sent back with changes
    """

    amounts: placement_replies.Amounts
    body: Mapping[str, Any]


class AllocationCalls:
    """Speaks to Placement through Nova's report client; any thread may call.

    Blocks as long as the client's timeouts allow, and raises nothing, whatever
    the client or an answer does: each call comes to a reply.

    :param client: Nova's ``SchedulerReportClient``
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._sender = PostSender(client)
        self._lock = threading.Lock()
        # Consumers of which a failed write left a record behind, at generation 0.
        self._left: collections.OrderedDict[str, int] = collections.OrderedDict()
        #: Calls by kind: post, get, empty.
        self.calls: collections.Counter[str] = collections.Counter()

    def takes_conditions(self) -> bool:
        """See :meth:`PostSender.takes_conditions`."""
        return self._sender.takes_conditions()

    def post(
        self,
        servers: Sequence[placement_replies.NewServer],
        request_id: str | None = None,
        marks: conditional_writes.Marks | None = None,
    ) -> placement_replies.Reply:
        """Write the allocations of servers, all or none.

        :param marks: trees to be compared as it is written; the reply says if they were
        """
        data = {server.consumer: self._payload(server) for server in servers}
        if marks and not self.takes_conditions():
            marks = None
        reply = self._post("post", data, request_id, marks)
        if isinstance(reply, placement_replies.NoProvider):
            self.left_behind(server.consumer for server in servers)
        elif isinstance(reply, placement_replies.DoneReply) and self._left:
            with self._lock:
                for server in servers:
                    self._left.pop(server.consumer, None)
        return reply

    def empty(
        self, held: Iterable[tuple[placement_replies.NewServer, int]], request_id: str | None = None
    ) -> placement_replies.Reply:
        """Remove the allocations of servers at known consumer generations, all or none."""
        data = {
            server.consumer: {
                **self._payload(attrs.evolve(server, request={"allocations": {}})),
                "consumer_generation": generation,
            }
            for server, generation in held
        }
        return self._post("empty", data, request_id)

    def held(
        self, consumer: str, request_id: str | None = None
    ) -> HeldAllocation | placement_replies.Reply:
        """Read what a consumer has; a reply where no answer came."""

        def of(body: Mapping[str, Any]) -> HeldAllocation:
            amounts = {name: dict(part["resources"]) for name, part in body["allocations"].items()}
            return HeldAllocation(amounts, body)

        return self._get(f"{_URL}/{consumer}", of, request_id)

    def on_provider(self, provider: str) -> placement_replies.Amounts | placement_replies.Reply:
        """Read what each consumer has on one provider; a reply where no answer came."""
        return self._get(
            f"/resource_providers/{provider}/allocations",
            lambda body: {
                name: dict(part["resources"]) for name, part in body["allocations"].items()
            },
        )

    def left_behind(self, consumers: Iterable[str]) -> None:
        """Note that Placement has records of these consumers, without allocations."""
        with self._lock:
            for consumer in consumers:
                self._left[consumer] = 0
            while len(self._left) > 10_000:
                self._left.popitem(last=False)

    def not_left_behind(self, consumer: str) -> bool:
        """Forget such a note; False if there was none."""
        with self._lock:
            return self._left.pop(consumer, None) is not None

    def _payload(self, server: placement_replies.NewServer) -> dict[str, Any]:
        return {
            "allocations": server.request["allocations"],
            "project_id": server.project_id,
            "user_id": server.user_id,
            "consumer_generation": self._left.get(server.consumer),
        }

    def _get(
        self, url: str, read: Callable[[Mapping[str, Any]], Result], request_id: str | None = None
    ) -> Result | placement_replies.Reply:
        self._count("get")
        try:
            response = self._client.get(url, version=_MICROVERSION, global_request_id=request_id)
            if response.status_code != 200:
                return placement_replies.read_reply(response)
            return read(response.json())
        except keystone.ClientException as error:
            return placement_replies.read_failure(error)
        except Exception as error:
            LOG.exception(_STRANGE)
            return _unknown(error)

    def _post(
        self,
        kind: str,
        data: Mapping[str, Any],
        request_id: str | None,
        marks: conditional_writes.Marks | None = None,
    ) -> placement_replies.Reply:
        self._count(kind)
        try:
            response = self._sender.post(
                _URL, data, version=_MICROVERSION, request_id=request_id, marks=marks
            )
        except keystone.ClientException as error:
            if isinstance(error, keystone.EndpointNotFound):
                self._read_catalogue_again()
            return placement_replies.read_failure(error)
        except Exception as error:
            LOG.exception(_STRANGE)
            return _unknown(error)
        try:
            return placement_replies.read_reply(response)
        except Exception as error:
            LOG.exception(_STRANGE)
            return _unknown(error)

    def _read_catalogue_again(self) -> None:
        """Give the report client a new session, as Nova does."""
        # The client itself may not exist yet, for the same reason.
        with contextlib.suppress(keystone.ClientException):
            make = self._client._create_client
            # What was given may stand for the client; this is the client.
            make.__self__._client = make()

    def _count(self, kind: str) -> None:
        with self._lock:
            self.calls[kind] += 1


def _unknown(error: Exception) -> placement_replies.Reply:
    return placement_replies.LostReply(f"{type(error).__name__}: {error}", strange=True)


class LeaderEnded(Exception):
    """The thread that made the call for several was ended: its result is not known."""


class Overdue(Exception):
    """A call did not end in time.

    :param taken: the work is part of it, and its result is not known; else it
        still waited, and nothing is done
    """

    def __init__(self, taken: bool) -> None:
        super().__init__(taken)
        self.taken = taken

    def __str__(self) -> str:
        return "no answer in time" if self.taken else "an earlier call did not end in time"


@attrs.define(eq=False)
class _Place(Generic[Work, Result]):
    """One caller's place in the queue, and its turn among all who write."""

    work: Work
    size: int
    alone: bool
    touches: frozenset[Hashable]
    waits_until: float
    _held_up_from: Callable[[frozenset[Hashable]], float]
    began_at: float | None = None
    #: Of one process no two calls for the same are under way here as it is.
    alone_at: frozenset[Hashable] = frozenset()
    result: Result | None = None
    error: Exception | None = None
    done: bool = False

    @property
    def held_up_from(self) -> float:
        """See :class:`write_turns.WriteTurn`: by calls under way, for it waits for these too."""
        return self._held_up_from(self.touches)


@attrs.define(eq=False, slots=False)
class CallBatcher(Generic[Work, Result]):
    """Makes a few calls at a time, each for as many callers as wait for one.

    One at a time for what they touch: Placement over-commits a provider when
    writes to it race, and what it repeats for them costs as much as the write;
    those of one process need not race.

    :param call: does some work, in the leader's thread, and returns a result
        for each; what it raises is raised to all callers concerned
    :param window_seconds: how long a leader waits at most for those who said
        that they come (:meth:`coming`); 0: not at all
    :param max_size: sizes of the work that shares a call; a single larger one
        still gets a call of its own
    :param max_calls: calls under way at once. More of them wait less for one
        another, and share less
    :param touches: what no two calls under way may have in common
    :param turns: of all in this process that writes; who is alone somewhere keeps from a call
        what touches that, and waits for it
    """

    _call: Callable[[Sequence[Work]], Sequence[Result]]
    _window_seconds: float = attrs.field(default=0.0, kw_only=True)
    _max_size: int = attrs.field(default=16, kw_only=True)
    _max_calls: int = attrs.field(default=1, kw_only=True)
    _touches: Callable[[Work], frozenset[Hashable]] = attrs.field(
        default=lambda work: frozenset(), kw_only=True
    )
    _turns: write_turns.WriteTurns = attrs.field(factory=write_turns.WriteTurns, kw_only=True)
    #: The turns' own: what changes there changes who may go here.
    _lock: threading.Lock = attrs.field(
        init=False, default=attrs.Factory(lambda self: self._turns.lock, takes_self=True)
    )
    _changed: threading.Condition = attrs.field(
        init=False, default=attrs.Factory(lambda self: self._turns.changed, takes_self=True)
    )
    _queue: list[_Place[Work, Result]] = attrs.field(init=False, factory=list)
    #: Calls, and what they touch.
    _under_way: list[list[_Place[Work, Result]]] = attrs.field(init=False, factory=list)
    _touched: set[Hashable] = attrs.field(init=False, factory=set)
    #: Whether somebody waits for company.
    _gathering: bool = attrs.field(init=False, default=False)
    #: Threads that said so and have not submitted yet; each remembers its own.
    _coming: int = attrs.field(init=False, default=0)
    _said: threading.local = attrs.field(init=False, factory=threading.local)

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        """Say that this thread will submit something soon, or be known not to.

        Others wait for its first work, for :meth:`not_coming`, or for the end of
        this. Not to be nested.
        """
        with self._lock:
            self._coming += 1
        self._said.coming = True
        try:
            yield
        finally:
            with self._lock:
                self._come()
                self._changed.notify_all()

    def not_coming(self) -> None:
        """Say that this thread submits nothing after all, though it goes on."""
        with self._lock:
            self._come()
            self._changed.notify_all()

    def _come(self) -> None:
        if getattr(self._said, "coming", False):
            self._said.coming = False
            self._coming -= 1

    def untouched(self, things: frozenset[Hashable], patience_seconds: float) -> bool:
        """Wait until no call under way touches any of these; False if one still does then.

        Who gave a call up does not know its result, and it has none yet.
        """
        with self._lock:
            return self._changed.wait_for(
                lambda: self._touched.isdisjoint(things), max(0.0, patience_seconds)
            )

    def submit(
        self,
        work: Work,
        size: int,
        *,
        alone: bool = False,
        patience_seconds: float | None = None,
    ) -> Result:
        """Wait until the work is done, and return its result.

        Blocks for the call under way, those queued before and the own one.

        :param size: what counts towards the bound
        :param alone: not to share a call
        :param patience_seconds: how long to wait for calls of other threads; the
            own one is as patient as its client. None: without end
        :raises Overdue: such a call did not end by then
        :raises LeaderEnded: another caller's thread was killed during the call
        """
        now = self._turns.clock()
        until = None if patience_seconds is None else now + patience_seconds
        place: _Place[Work, Result] = _Place(
            work,
            size,
            alone,
            self._touches(work),
            now + write_turns.MOST_SECONDS,
            self._held_up_from,
        )
        with self._lock:
            self._queue.append(place)
            self._turns.line.append(place)
            self._come()
            self._changed.notify_all()
        while True:
            batch = self._wait(place, until)
            if not batch:
                break
            self._lead(batch)
        if place.error is not None:
            raise place.error
        return place.result  # type: ignore[return-value]

    def _wait(self, place: _Place[Work, Result], until: float | None) -> list[_Place[Work, Result]]:
        """Wait for a result, or for the lead and then return what to lead.

        Who leads is part of the call: another's would bind him beyond his patience.
        """
        with self._lock:
            try:
                while not place.done:
                    # One time for both: who is kept back by one look waits by the other.
                    now = self._turns.clock()
                    if self._may_lead(place, now):
                        self._wait_for_company()
                        batch, _ = self._next(self._turns.clock())
                        if place in batch:
                            self._take(batch)
                            return batch
                        # Those before it fill the call by now, and one of them leads.
                        self._changed.notify_all()
                        continue
                    self._changed.wait(self._left_seconds(place, until, now))
                return []
            except BaseException:
                # Too late, or a green thread was killed: nobody wants its result any more.
                if place in self._queue:
                    self._queue.remove(place)
                    self._turns.line.remove(place)
                # It may have been the first, whom others left the lead.
                self._changed.notify_all()
                raise

    def _left_seconds(
        self, place: _Place[Work, Result], until: float | None, now: float
    ) -> float | None:
        """Return how long to wait; None: until something changes.

        :raises Overdue: it is time
        """
        left = None if until is None else until - now
        if left is not None and left <= 0:
            raise Overdue(taken=place not in self._queue)
        if self._turns.alone and place.began_at is None:
            # Then it goes on beside whoever is alone, if it has a call.
            turn_left = self._turns.kept_back_until(place) - now
            if turn_left > 0:
                left = turn_left if left is None else min(left, turn_left)
        return left

    def _may_lead(self, place: _Place[Work, Result], now: float) -> bool:
        if self._gathering or len(self._under_way) >= self._max_calls:
            return False
        batch, _ = self._next(now)
        return place in batch

    def _held_up_from(self, touches: frozenset[Hashable]) -> float:
        """Return from when work waits behind a call that hangs, or behind as many as there may be.

        Under the lock; asked only where somebody is to be alone.
        """
        late, touching = -math.inf, math.inf
        for batch in self._under_way:
            hangs_from = (batch[0].began_at or 0.0) + write_turns.TURN_SECONDS
            late = max(late, hangs_from)
            if any(not touches.isdisjoint(each.touches) for each in batch):
                touching = min(touching, hangs_from)
        return min(touching, late) if len(self._under_way) >= self._max_calls else touching

    def _wait_for_company(self) -> None:
        if self._window_seconds > 0:
            self._gathering = True
            try:
                self._changed.wait_for(self._is_complete, self._window_seconds)
            finally:
                self._gathering = False

    def _is_complete(self) -> bool:
        _, closed = self._next(self._turns.clock())
        return closed or not self._coming

    def _next(self, now: float) -> tuple[list[_Place[Work, Result]], bool]:
        """Return the next call's work, and whether nothing more can join it.

        In order, up to the bound, of what touches nothing in use.
        """
        batch: list[_Place[Work, Result]] = []
        size = 0
        for each in self._queue:
            if not self._touched.isdisjoint(each.touches):
                continue
            # No call where nobody is alone anywhere, which is nearly always.
            if self._turns.alone and self._turns.kept_back_until(each) > now:
                continue
            if batch and (batch[0].alone or each.alone or size + each.size > self._max_size):
                return batch, True
            batch.append(each)
            size += each.size
        return batch, bool(batch) and (batch[0].alone or size >= self._max_size)

    def _take(self, batch: list[_Place[Work, Result]]) -> None:
        self._under_way.append(batch)
        for each in batch:
            self._queue.remove(each)
            self._turns.begin(each)
            self._touched |= each.touches
        if self._queue:
            # While this one gathered, nobody else led.
            self._changed.notify_all()

    def _lead(self, batch: list[_Place[Work, Result]]) -> None:
        error: Exception | None = None
        results: Sequence[Result] = ()
        try:
            results = self._call([place.work for place in batch])
        except Exception as raised:  # noqa: BLE001 - told to every caller concerned
            error = raised
        except BaseException as raised:
            # A green thread is killed so. It is the leader's own end, not the others'.
            error = LeaderEnded(repr(raised))
            raise
        finally:
            self._hand_out(batch, results, error)

    def _hand_out(
        self,
        batch: list[_Place[Work, Result]],
        results: Sequence[Result],
        error: Exception | None,
    ) -> None:
        with self._lock:
            for number, place in enumerate(batch):
                place.error = error
                if error is None:
                    place.result = results[number]
                place.done = True
                self._touched -= place.touches
                self._turns.line.remove(place)
            self._under_way.remove(batch)
            self._changed.notify_all()
