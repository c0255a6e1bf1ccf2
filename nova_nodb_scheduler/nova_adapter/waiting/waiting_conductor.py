# SPDX-License-Identifier: Apache-2.0
"""Keeps requests of a conductor as records, and parks those for which there is no room.

One :class:`Attempt` is one run of Nova's ``schedule_and_build_instances`` for a request
that may wait. Nova's method runs as it is; what it calls on its way takes the steps:

======================================== ============================================
Nova is about to                         step
======================================== ============================================
run at all                               the request is kept (``create``), or was taken
ask for hosts                            none
bury it for want of room, or of an       ``park``, and nothing is buried
answer
write to cells, cell0 included           ``begin``
make an instance, map it, put all into   none; it stops if it was overtaken
ERROR
delete a build request                   ``mapped``
send a server to its host                ``sent``
return                                   ``place`` where servers were sent, ``finish``
                                         where none was
======================================== ============================================

Whoever is overtaken stops where it is, by an exception that Nova's handlers do not catch.
So does whoever cannot reach the back end for longer than a lease: the record stands, and
the request is taken up when it can be. One that could not be kept, since the back end does
not answer, goes on as in Nova while there is room for it (:class:`Unkept`); where there is
none, it is kept then, for which it waits until the back end has been away for a lease.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import attrs
import oslo_messaging
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.reads import unread_cells
from nova_nodb_scheduler.nova_adapter.waiting import (
    abandoned_requests,
    request_payload,
    request_records,
    requests_in_hand,
    wait_policy,
)
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules
from nova_nodb_scheduler.synchronizer.waking import waiting_events

LOG = logging.getLogger(__name__)

_T = TypeVar("_T")

#: What a scheduler answers where there is no room, or none is known.
_REFUSALS = (nova_exception.NoValidHost, unread_cells.HostsNotRead)
#: What a scheduler's call ends in then, or where no scheduler answers.
NO_HOSTS = (
    *_REFUSALS,
    oslo_messaging.MessagingTimeout,
    oslo_messaging.MessageDeliveryFailure,
)

_RETRY_SECONDS = 0.5
#: How long a back end that did not answer is not asked to keep requests.
_AWAY_SECONDS = 5.0
#: Characters of a reason that a record keeps.
_MOST_REASON = 500


class LeftAlone(BaseException):
    """This conductor has nothing more to do with the request."""


@attrs.define(eq=False)
class Attempt:
    """A request in the hand of one thread of this conductor.

    :ivar doubtful: of a creation whose outcome is not known, as it is to stand
    :ivar has_begun: hosts were chosen, and cells may be written
    :ivar kept: servers that another one wrote to their cells, and that are sent on from there
    :ivar is_cleaned: Nova has put all servers into ERROR itself
    :ivar is_kept: False once it goes on without a record
    :ivar has_sent: servers were sent, now or formerly, and may not be on their hosts yet
    :ivar uncertain: servers of which nobody knows whether they were
    :ivar outcome: what is told of it when it has ended
    """

    request: pending.PendingRequest
    doubtful: pending.PendingRequest | None = None
    has_begun: bool = False
    kept: tuple[str, ...] = ()
    is_cleaned: bool = False
    is_kept: bool = True
    has_sent: bool = False
    uncertain: tuple[str, ...] = ()
    outcome: waiting_events.EventKind | None = None

    @property
    def holding(self) -> pending_rules.Holding:
        return pending_rules.holding_of(self.request)

    def may_be(self, standing: pending.PendingRequest | None) -> bool:
        """Tell whether what stands is in this hand; of one without a record nobody knows."""
        return not self.is_kept or self.holding.is_of(standing)

    def has(self, server: str) -> bool:
        return self.is_kept and server in self.request.servers


@attrs.frozen(eq=False)
class Unkept:
    """A request in the hand of one thread that may wait, and that nobody could keep yet."""

    context: Any
    arguments: request_payload.BuildArguments
    terms: wait_policy.WaitTerms


@attrs.frozen(eq=False)
class Ways:
    """What Nova does with servers that are dispatched, each given the user's context.

    :param build: schedule_and_build_instances, given build requests and what it was called with
    :param send_on: finds a host for a server that stands in its cell, and sends it there
    :param bury: puts servers into ERROR in cell0, like ``build``, given the fault
    """

    build: Callable[[Any, list[Any], request_payload.BuildArguments], None]
    send_on: Callable[[Any, str, request_payload.BuildArguments], None]
    bury: Callable[[Any, list[Any], request_payload.BuildArguments, Exception], None]


class WaitingConductor:
    """The requests of one conductor that may wait; any thread.

    :param settings: who may wait
    :param look_seconds: how long behind its sending a server is looked for on its host:
        longer than a nova-compute takes to give a build up
    :param events: told what becomes of requests
    :param pause: sleeps for some seconds
    """

    def __init__(
        self,
        records: request_records.RequestRecords,
        in_hand: requests_in_hand.RequestsInHand,
        settings: wait_policy.WaitSettings,
        abandoned: abandoned_requests.AbandonedRequests,
        *,
        look_seconds: float,
        events: waiting_events.EventSink | None = None,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = records.ledger
        self._records = records
        self._in_hand = in_hand
        self._settings = settings
        self._abandoned = abandoned
        self._look_seconds = look_seconds
        self._events = events
        self._pause = pause
        self._clock = clock
        self._away_until = float("-inf")
        self._away_since: float | None = None
        self._of_thread = threading.local()
        #: How requests came out, by the outcomes of :mod:`...observe.conductor_metrics`.
        self.counts: collections.Counter[str] = collections.Counter()

    def start(self) -> None:
        """Begin to hold requests; in the process that does."""
        self._in_hand.start()

    def stop(self) -> None:
        """Hold none any more: what is in hand is others' when the leases end."""
        self._in_hand.stop()
        if self._events is not None:
            self._events.stop()

    @property
    def current(self) -> Attempt | None:
        """What the calling thread has in hand."""
        return getattr(self._of_thread, "attempt", None)

    # -- from the API --------------------------------------------------------------------

    def keep(
        self, context: Any, arguments: request_payload.BuildArguments
    ) -> Attempt | Unkept | None:
        """Keep a request that may wait, before anything is done for it.

        :returns: None for one that goes on as in Nova
        :raises LeftAlone: it is kept already, and somebody has it
        """
        unkept = None
        try:
            terms = request_records.terms(arguments, self._settings)
            if terms is None:
                return None
            unkept = Unkept(context, arguments, terms)
            if self._clock() < self._away_until:
                return unkept
            return self._create(unkept)
        except errors.BackendUnavailable as error:
            self._is_away(error)
            return unkept
        except Exception as error:
            # Whatever it is: a request must not fail for want of a record.
            LOG.warning(
                "Request of servers %(servers)s cannot wait, and goes on as in Nova: %(error)s",
                {
                    "servers": [spec.instance_uuid for spec in arguments.request_specs],
                    "error": error,
                },
                exc_info=not isinstance(error, errors.NodbError),
            )
            self.counts["not_kept"] += 1
            return None

    def _is_away(self, error: errors.BackendUnavailable) -> None:
        now = self._clock()
        is_known = now < self._away_until + self._ledger.lease_seconds
        # Others need not find out one time-out after the other.
        self._away_until = now + _AWAY_SECONDS
        if self._away_since is None or not is_known:
            self._away_since = now
            LOG.warning(
                "Requests are kept only where there is no room: %(error)s", {"error": error}
            )

    def _create(self, unkept: Unkept) -> Attempt:
        request = self._records.newcomer(unkept.arguments, unkept.terms)
        created = self._records.create(unkept.context, unkept.arguments, request)
        self._away_since, self._away_until = None, float("-inf")
        if isinstance(created, pending_rules.Superseded):
            LOG.info("Request %(key)s was asked twice", {"key": request.key})
            raise LeftAlone
        if isinstance(created, pending_ledger.MaybeCreated):
            return Attempt(request, doubtful=request)
        return Attempt(created)

    # -- one attempt -----------------------------------------------------------------------

    def conduct(self, attempt: Attempt, build: Callable[[], None]) -> None:
        """Run Nova's method for a request in hand, to whatever end.

        An error that it raises passes through. The request ends with it only where Nova has
        put its servers into ERROR; otherwise somebody takes it up when the lease ends.
        """
        self._of_thread.attempt = attempt
        self._in_hand.add(attempt.holding)
        try:
            build()
        except LeftAlone:
            return
        except Exception:
            if attempt.is_cleaned:
                self._end(attempt)
            raise
        else:
            self._end(attempt)
        finally:
            self._in_hand.remove(attempt.holding)
            self._of_thread.attempt = None

    def conduct_unkept(self, unkept: Unkept, build: Callable[[], None]) -> None:
        """Run Nova's method for a request that is kept only if there is no room for it."""
        self._of_thread.unkept = unkept
        try:
            build()
        except LeftAlone:
            return
        finally:
            self._of_thread.unkept = None

    def _end(self, attempt: Attempt) -> None:
        if not attempt.is_kept:
            return
        if attempt.has_sent:
            has_ended = self._let_go(attempt)
        else:
            has_ended = self._in_hand.finish(attempt.holding)
        if has_ended and attempt.outcome is not None:
            self._tell(attempt.outcome, attempt.request)

    def _let_go(self, attempt: Attempt) -> bool:
        """Leave servers that were sent to their hosts, to be looked for later.

        Blocks for a lease where the back end does not answer. Behind that they are looked for
        as such of which nobody knows whether they were sent.

        :returns: whether the request stands as placed, and by this
        """
        # No thread is to renew what nobody has.
        self._in_hand.remove(attempt.holding)
        holding, seconds, uncertain = attempt.holding, self._look_seconds, attempt.uncertain

        def let_go() -> pending_rules.Step:
            if uncertain:
                return self._ledger.rest(holding, seconds, uncertain)
            return self._ledger.place(holding, seconds)

        try:
            step = self._insist(attempt, let_go)
        except LeftAlone:
            return False
        return isinstance(step, pending.PendingRequest) and not uncertain

    def _tell(self, kind: waiting_events.EventKind, request: pending.PendingRequest) -> None:
        if self._events is not None:
            at_seconds = time.time()
            self._events.publish(waiting_events.WaitingEvent(kind, request, at_seconds))

    def choose(self, request_spec: Any, servers: Sequence[str], select: Callable[[], _T]) -> _T:
        """Have Nova ask for hosts for the request in hand, as the attempt that it is.

        :param servers: for which hosts are asked for: not those that were sent already
        :raises LeftAlone: there is no room, and it waits; or it is somebody else's
        """
        attempt = self.current
        if attempt is None or not attempt.is_kept:
            return self._choose_unkept(servers, select)
        try:
            with _hinted(request_spec, attempt.request):
                chosen = select()
        except NO_HOSTS as error:
            if pending.QUEUE_FULL in str(error):
                self.counts["queue_full"] += 1
                raise
            if attempt.has_begun:
                # Some of its servers were sent on: the others are tried again with the lease.
                self._leave(attempt, _reason(error))
            self._give_back(attempt, servers, error)
            self._park(attempt, _reason(error))
            raise LeftAlone from error
        self.begin()
        return chosen

    def _choose_unkept(self, servers: Sequence[str], select: Callable[[], _T]) -> _T:
        unkept: Unkept | None = getattr(self._of_thread, "unkept", None)
        try:
            return select()
        except NO_HOSTS as error:
            attempt = None if unkept is None else self._kept_late(unkept)
            if attempt is None:
                raise
            self._in_hand.add(attempt.holding)
            try:
                self._give_back(attempt, servers, error)
                self._park(attempt, _reason(error))
            finally:
                self._in_hand.remove(attempt.holding)
            raise LeftAlone from error

    def _kept_late(self, unkept: Unkept) -> Attempt | None:
        """Keep a request behind its first try; None where the back end is away for too long.

        :raises LeftAlone: it is kept already, and somebody has it
        """
        while True:
            try:
                return self._create(unkept)
            except errors.BackendUnavailable as error:
                self._is_away(error)
                since = self._away_since if self._away_since is not None else self._clock()
                if self._clock() < since + self._ledger.lease_seconds:
                    self._pause(_RETRY_SECONDS)
                    continue
                why: Exception = error
            except errors.NodbError as error:
                why = error
            self.counts["not_kept"] += 1
            LOG.warning(
                "Request of servers %(servers)s cannot wait, and ends as in Nova: %(error)s",
                {
                    "servers": [spec.instance_uuid for spec in unkept.arguments.request_specs],
                    "error": why,
                },
            )
            return None

    def begin(self) -> None:
        """Say that cells are written for the request in hand.

        :raises LeftAlone: it is somebody else's, or nobody can tell
        """
        attempt = self.current
        if attempt is None or not attempt.is_kept:
            return
        if attempt.has_begun:
            self.check()
            return
        step = self._insist(
            attempt,
            lambda: self._ledger.begin(
                attempt.holding, if_absent=attempt.doubtful, kept=attempt.kept
            ),
        )
        if step is None:
            return
        self._stop_if_superseded(step)
        attempt.has_begun, attempt.doubtful = True, None

    def still_holds(self, server: str) -> None:
        """Look whether the request is in hand still.

        Not a fence, for that is ``sent``: it keeps who slept from taking a server away under
        the hands of who came after.

        :raises LeftAlone: it is somebody else's, or nobody can tell
        """
        attempt = self.current
        if attempt is not None and attempt.has(server):
            self.check()

    def check(self) -> None:
        """Look whether the request is in hand still, for all of its servers.

        :raises LeftAlone: it is somebody else's, or nobody can tell
        """
        attempt = self.current
        if attempt is None or not attempt.is_kept:
            return
        self._look(attempt)

    def _look(self, attempt: Attempt) -> None:
        """Look whether a request is in that hand; one whose creation is in doubt may come yet."""
        standing = self._insist(
            attempt, lambda: self._ledger.standing(attempt.request.key, attempt.doubtful)
        )
        if not attempt.may_be(standing):
            self._stop_if_superseded(pending_rules.Superseded(standing))

    def mapped(self, server: str, is_requested: Callable[[], bool]) -> None:
        """Say that a server stands mapped in its cell, if its build request is there still.

        From then on whoever finds that request gone knows that a conductor has deleted it, or
        a user who has deleted the instance, too. Without a word a user may have deleted it
        before the mapping could be seen, and been told that nothing is left.

        :param is_requested: looks for the build request
        :raises LeftAlone: it is somebody else's, or nobody can tell
        """
        attempt = self.current
        if attempt is None or not attempt.has(server):
            return
        if not is_requested():
            self.check()
            return
        step = self._insist(attempt, lambda: self._ledger.mapped(attempt.holding, server))
        if step is not None:
            self._stop_if_superseded(step)

    def send(self, server: str) -> None:
        """Say that a server is sent now.

        :raises LeftAlone: it must not be
        """
        attempt = self.current
        if attempt is None or not attempt.has(server):
            return
        tries = 0

        def say() -> pending_rules.Step:
            nonlocal tries
            tries += 1
            return self._ledger.sent(attempt.holding, server, again=tries > 1)

        step = self._insist(attempt, say)
        if step is not None:
            self._stop_if_superseded(step)
            attempt.has_sent, attempt.outcome = True, waiting_events.EventKind.PLACED

    def cleaned(self) -> None:
        """Nova has put all servers of the request in hand into ERROR."""
        if self.current is not None:
            self.current.is_cleaned = True

    def _give_back(self, attempt: Attempt, servers: Sequence[str], error: Exception) -> None:
        """Take back what a scheduler that did not answer may have allocated.

        One that was killed behind its write leaves an allocation. Parked with it, a request
        would wait for the very room that it holds itself, and no host ever grows by that.

        :param servers: that it was asked about. Others of the request may live on hosts
        :raises LeftAlone: it stays, and who takes the request up by its lease tries again; or
            the request is somebody else's
        """
        if isinstance(error, _REFUSALS):
            return

        def check(_server: str) -> None:
            # Not of this thread's request alone: one that is kept late is none.
            self._look(attempt)
            if not attempt.is_kept:
                raise abandoned_requests.NotCleared("nobody can tell whose they are")

        admin = nova_context.get_admin_context()
        try:
            self._abandoned.clear_allocations(admin, servers, check)
        except abandoned_requests.NotCleared as stays:
            if not attempt.is_kept:
                raise error from stays
            if attempt.doubtful is None:
                self._leave(attempt, f"no scheduler answered, and {stays}")
            LOG.warning(
                "Request %(key)s is parked with what it may hold: %(why)s",
                {"key": attempt.request.key, "why": stays},
            )

    def _park(self, attempt: Attempt, reason: str) -> None:
        settings = self._settings
        refusals = attempt.request.refusals
        # The first refusal says that others are before it, or that there is no room: it is
        # woken when that changes. Pauses are for what was told to fit, and did not.
        pause = settings.queue.backoff_seconds(refusals) if refusals else 0.0
        step = self._insist(
            attempt,
            lambda: self._ledger.park(attempt.holding, reason, pause, if_absent=attempt.doubtful),
        )
        if step is None:
            raise nova_exception.NoValidHost(reason=reason)
        self._stop_if_superseded(step)
        self.counts["parked"] += 1
        assert isinstance(step, pending.PendingRequest)
        self._tell(waiting_events.EventKind.PARKED, step)
        LOG.info(
            "Request %(key)s waits for room: %(reason)s",
            {"key": attempt.request.key, "reason": reason},
        )

    def _insist(self, attempt: Attempt, call: Callable[[], _T]) -> _T | None:
        """Make a call to the back end until it answers, for the time of a lease.

        :returns: None where the request goes on without a record, for none is known to stand
        :raises LeftAlone: a record stands, and it does not answer
        """
        until = self._clock() + self._ledger.lease_seconds
        while True:
            try:
                return call()
            except errors.BackendUnavailable as error:
                if self._clock() < until:
                    self._pause(_RETRY_SECONDS)
                    continue
                if attempt.doubtful is not None:
                    attempt.is_kept = False
                    self.counts["not_kept"] += 1
                    LOG.warning(
                        "Request %(key)s goes on as in Nova: %(error)s",
                        {"key": attempt.request.key, "error": error},
                    )
                    return None
                self._leave(attempt, str(error))
            except errors.NodbError as error:
                self._leave(attempt, str(error))

    def _leave(self, attempt: Attempt, why: str) -> NoReturn:
        self.counts["left"] += 1
        LOG.warning(
            "Request %(key)s is left to who takes it up next: %(why)s",
            {"key": attempt.request.key, "why": why},
        )
        raise LeftAlone

    def _stop_if_superseded(self, step: pending_rules.Step) -> None:
        if isinstance(step, pending_rules.Superseded):
            self.counts["overtaken"] += 1
            LOG.info(
                "A request was overtaken: it stands as %(standing)s", {"standing": step.standing}
            )
            raise LeftAlone

    # -- from a scheduler --------------------------------------------------------------------

    def dispatch(self, key: str, attempt: int, ways: Ways) -> None:
        """Take a request that a scheduler granted, and try it; or end it where that is said.

        A second cast of the same grant comes to nothing.
        """
        step = self._ledger.take(key, attempt, self._records.new_owner())
        if isinstance(step, pending_rules.Superseded):
            self.counts["vain_casts"] += 1
            return
        taken = Attempt(step)
        self.conduct(taken, lambda: self._try(taken, ways))

    def _try(self, attempt: Attempt, ways: Ways) -> None:
        request = attempt.request
        admin = nova_context.get_admin_context()
        try:
            remains = self._abandoned.clear(admin, request, self.still_holds)
        except abandoned_requests.NotCleared as error:
            # Not parked: who finds a request parked takes it that nothing is left of it.
            self._leave(attempt, f"what a former attempt left is not cleared: {error}")
        if under_way := _with(remains, abandoned_requests.Remains.UNDER_WAY):
            attempt.has_sent = True
            certain = request.sent_for_certain
            attempt.uncertain = tuple(each for each in under_way if each not in certain)
        given_up = _with(remains, abandoned_requests.Remains.SEND_AGAIN)
        for server in given_up:
            request = self._give_up(attempt, server)
        if given_up and self._ledger.now_seconds() >= request.ends_at:
            seconds = int(pending.MOST_TRYING_SECONDS)
            self._fail(given_up, abandoned_requests.NeverArrived(seconds=seconds))
            given_up = ()
        build_requests = _build_requests(admin, _with(remains, abandoned_requests.Remains.PLACE))
        attempt.kept = (*_with(remains, abandoned_requests.Remains.SEND), *given_up)
        if not build_requests and not attempt.kept:
            return
        restored = self._restore(request)
        now = self._ledger.now_seconds()
        if isinstance(restored, errors.UndecodableRecord):
            self._without_payload(attempt, build_requests, restored, ways, now)
            return
        context, arguments = restored
        for each in build_requests:
            each._context = context
        is_placed = request.grant.purpose is pending.Purpose.PLACE
        if is_placed and (group := _renew_group(context, arguments)) is not None:
            # With nothing to keep it apart, or together, it is not what its user asked for.
            self.counts["group_deleted"] += 1
            fault = _fault_of_group(group)
        elif is_placed:
            self._place(attempt, context, build_requests, arguments, ways)
            return
        else:
            fault = _fault(request, now)
        self._fail(attempt.kept, fault)
        if build_requests:
            ways.bury(context, build_requests, _prepared(arguments, build_requests), fault)
        if not is_placed:
            # Nobody is told of others that stand on their hosts.
            attempt.request = attrs.evolve(request, servers=request.unsent)
            attempt.outcome = waiting_events.ENDINGS[request.grant.purpose]
            self.counts[attempt.outcome.value] += 1

    def _give_up(self, attempt: Attempt, server: str) -> pending.PendingRequest:
        """Say that a server is to be sent again, whose host gave it up.

        :raises LeftAlone: it is somebody else's, or nobody can tell
        """
        step = self._insist(attempt, lambda: self._ledger.give_up(attempt.holding, server))
        assert step is not None
        self._stop_if_superseded(step)
        assert isinstance(step, pending.PendingRequest)
        self.counts["given_up"] += 1
        LOG.warning(
            "Server %(server)s was given up by the nova-compute that it was sent to, before "
            "anything of it was built: it is sent again",
            {"server": server},
        )
        attempt.request = step
        return step

    def _place(
        self,
        attempt: Attempt,
        context: Any,
        build_requests: list[Any],
        arguments: request_payload.BuildArguments,
        ways: Ways,
    ) -> None:
        for server in attempt.kept:
            self.counts["sent_on"] += 1
            LOG.info(
                "Server %(server)s stands in its cell, and is sent from there",
                {"server": server},
            )
            try:
                ways.send_on(context, server, _alone(arguments.of_servers([server])))
            except abandoned_requests.NotCleared as error:
                self._leave(attempt, f"a server that cannot be sent is not cleared: {error}")
        if build_requests:
            ways.build(context, build_requests, _prepared(arguments, build_requests))

    def _fail(self, servers: Sequence[str], fault: Exception) -> None:
        """Put servers that stand in their cells, and are not to be sent on, into ERROR."""
        context = nova_context.get_admin_context()
        for server in servers:
            found = abandoned_requests.instance_of(context, server)
            if found is not None:
                self.still_holds(server)
                abandoned_requests.fail(context, *found, fault)

    def _restore(
        self, request: pending.PendingRequest
    ) -> tuple[Any, request_payload.BuildArguments] | errors.UndecodableRecord:
        try:
            payload = self._ledger.read_payload(request.key)
            if payload is None:
                return errors.UndecodableRecord(f"the payload of request {request.key} is gone")
            return request_payload.unpack(self._records.cipher, request.key, payload)
        except errors.UndecodableRecord as error:
            return error

    def _without_payload(
        self,
        attempt: Attempt,
        build_requests: list[Any],
        error: errors.UndecodableRecord,
        ways: Ways,
        now_seconds: float,
    ) -> None:
        """End a request that cannot be built; before its deadline an operator may mend it."""
        request = attempt.request
        LOG.error("Request %(key)s: %(error)s", {"key": request.key, "error": error})
        if request.grant.purpose is pending.Purpose.PLACE and now_seconds < request.ends_at:
            self._park(attempt, str(error))
            raise LeftAlone
        self.counts["undecodable"] += 1
        context = nova_context.get_admin_context()
        fault = _fault(attrs.evolve(request, reason=str(error)), now_seconds)
        self._fail(attempt.kept, fault)
        for each in build_requests:
            arguments = request_payload.BuildArguments(
                [abandoned_requests.request_spec_of(context, each.instance)],
                image=None,
                admin_password=None,
                injected_files=[],
                requested_networks=None,
                # With which its volumes are found when it is deleted.
                block_device_mapping=_unsaved(context, each.block_device_mappings),
                tags=each.tags,
            )
            ways.bury(context, [each], arguments, fault)


@contextlib.contextmanager
def _hinted(spec: Any, request: pending.PendingRequest) -> Iterator[None]:
    """Tell the scheduler by a hint whose hosts are asked for; it is never saved."""
    had = spec.scheduler_hints if "scheduler_hints" in spec else None
    was_changed = "scheduler_hints" in spec.obj_what_changed()
    spec.scheduler_hints = {
        **(had or {}),
        pending.HINT: pending.hint(request.key, request.grant.attempt),
    }
    try:
        yield
    finally:
        spec.scheduler_hints = had
        if not was_changed:
            spec.obj_reset_changes(["scheduler_hints"])


def _reason(error: Exception) -> str:
    if isinstance(error, unread_cells.HostsNotRead):
        # Users read it. Which cells and databases there are is for the log.
        LOG.warning("%(error)s", {"error": error})
        return "the hosts of some cells could not be read"
    if not isinstance(error, nova_exception.NoValidHost):
        return "no scheduler answered"
    return str(error)[:_MOST_REASON]


def _build_requests(context: Any, servers: Sequence[str]) -> list[Any]:
    found = []
    for server in servers:
        with contextlib.suppress(nova_exception.BuildRequestNotFound):
            found.append(objects.BuildRequest.get_by_instance_uuid(context, server))
    return found


def _unsaved(context: Any, mappings: Any) -> Any:
    """Return block device mappings of a build request as its user sent them.

    Nova writes to a cell what has changed, and of what was read nothing has.
    """
    made = []
    for each in mappings:
        fresh = objects.BlockDeviceMapping(context)
        for name in each.fields:
            if name != "id" and each.obj_attr_is_set(name):
                setattr(fresh, name, getattr(each, name))
        made.append(fresh)
    return objects.BlockDeviceMappingList(context, objects=made)


def _with(
    remains: Mapping[str, abandoned_requests.Remains], wanted: abandoned_requests.Remains
) -> tuple[str, ...]:
    return tuple(server for server, remain in remains.items() if remain is wanted)


def _prepared(
    arguments: request_payload.BuildArguments, build_requests: Sequence[Any]
) -> request_payload.BuildArguments:
    """Return what to call Nova with for those servers that are left, as of now."""
    return _alone(arguments.of_servers([each.instance_uuid for each in build_requests]))


def _alone(left: request_payload.BuildArguments) -> request_payload.BuildArguments:
    for spec in left.request_specs:
        spec.num_instances = len(left.request_specs)
        spec.obj_reset_changes()
    return left


def _renew_group(context: Any, arguments: request_payload.BuildArguments) -> str | None:
    """Take over who is in the request's server group now, and where they are.

    :returns: the group, where it was deleted since
    """
    for spec in arguments.request_specs:
        group = spec.instance_group if "instance_group" in spec else None
        if group is not None:
            try:
                spec.instance_group = objects.InstanceGroup.get_by_uuid(context, group.uuid)
            except nova_exception.InstanceGroupNotFound:
                return str(group.uuid)
            spec.obj_reset_changes(["instance_group"])
    return None


def _fault_of_group(uuid: str) -> Exception:
    fault: Exception = nova_exception.NoValidHost(
        reason=f"its server group {uuid} was deleted while it waited for room"
    )
    return fault


def _fault(request: pending.PendingRequest, now_seconds: float) -> Exception:
    """Return what a user is told of a request that waited in vain."""
    needs = ", ".join(f"{amount} {name}" for name, amount in sorted(request.needs.items()))
    many = f" each for {len(request.unsent)} servers" if len(request.unsent) > 1 else ""
    waited = max(0, round(now_seconds - request.asked_at))
    reason = f"waited {waited} s for {needs}{many}"
    if request.grant.purpose is pending.Purpose.CANCEL:
        reason += ", and was cancelled by an operator"
    fault: Exception = nova_exception.NoValidHost(reason=f"{reason}: {request.reason or 'no room'}")
    return fault
