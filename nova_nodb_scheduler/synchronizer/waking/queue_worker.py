# SPDX-License-Identifier: Apache-2.0
"""Wakes requests that wait: looks at what happened, finds whom it helps, grants.

One thread. A round takes over the records that came, grants what time demands, looks at
hosts whose room grew, and has those tried whom that helps, in their order. Hosts are
asked for on columns, with grants in flight taken off; the conductor that is told then
asks a scheduler as ever, so that a mistake here costs an attempt and no more.

While the states in memory are not proved nobody is woken: growth is not lost by that, it
is found in the first round behind. What has to end (deadlines, leases) ends all the same.

Every scheduler goes through all of this and comes to the same order. A request whose
digest is another's is left to that one for :data:`TAKE_OVER_SECONDS`, and then granted by
whoever finds it still waiting: a scheduler that died, or sleeps, stops nobody.
"""

from __future__ import annotations

import collections
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.frame import room_growth
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.scheduling.waiting import (
    grown_hosts,
    request_book,
    wait_queues,
    wake_ups,
)
from nova_nodb_scheduler.synchronizer.waking import (
    followed_requests,
    pending_fit,
    queue_grants,
    waiting_events,
)

LOG = logging.getLogger(__name__)

#: How long what is another scheduler's to grant is left to it.
TAKE_OVER_SECONDS = 3.0
#: Hosts that one walk is for at most; of more that grew at once there are several.
_HOSTS_AT_ONCE = 256
#: Between two rounds at least: changes of hosts come in crowds.
_LEAST_PAUSE_SECONDS = 0.02
#: The same while nobody waits: a round looks at what changed, and a busy feed has no end.
_IDLE_PAUSE_SECONDS = 0.25
#: Between two rounds at most, whatever happens: time passes without an event, too.
_MOST_PAUSE_SECONDS = 0.5
_SWEEP_SECONDS = 1.0
#: After an unexpected error.
_FAILURE_SECONDS = 1.0
#: Walks of one round for requests that came, before events are looked at again.
_FRESH_AT_ONCE = 16
#: Between two attempts at requests of one kind of which memory tells nothing, at most; the
#: pause doubles from a second on, for days if need be.
_MOST_BLIND_SECONDS = 60.0
_MOST_DOUBLINGS = 6
#: What is remembered of digests and requests that others are to grant, or nobody can plan.
_MOST_REMEMBERED = 10_000


class Owners(Protocol):
    """Says whose requests are."""

    def is_own(self, digest: str) -> bool:
        """Say whether this worker grants the requests of a digest."""


class UsageCounter(Protocol):
    """Counts what projects use."""

    def begun(self, request: pending.PendingRequest, now: float) -> None:
        """Count a request that found hosts, and whose servers are not known there yet."""

    def run(self, now: float) -> None:
        """Look at what there is, if it is time to."""


class WakeMeter(Protocol):
    """Counts what a worker does; none of it blocks."""

    def left(self, priority_class: str, ending: str, waited_seconds: float) -> None:
        """Record a request that left the queue; by one scheduler for all, and once for each.

        One that is sent again since a host gave it up does not leave it again. Where an older
        release gave it up nothing in its record says so, and where its digest is another
        scheduler's by then both may count it, or none.
        """

    def looked_at(self, result: str) -> None:
        """Record what became of a candidate."""

    def round_took(self, seconds: float) -> None:
        """Record a look at what happened, with all grants that came of it."""

    def failed(self) -> None:
        """Record an unexpected error."""


class Upkeep(Protocol):
    """What is done beside waking, now and then, in the worker's thread."""

    def run(self, now: float) -> None:
        """Do what is due; may block for the back end."""


class Arrivals(Protocol):
    """Ends requests whose servers are seen on hosts."""

    def placed(self, key: str) -> None:
        """Look for the servers of a request from now on."""

    def run(self, now: float) -> None:
        """End those that are to be ended; may block for the back end."""


class Holds(Protocol):
    """Has the engine heed what is held."""

    def run(self, now: float) -> None:
        """Take over what the records say is held now."""

    def forget(self) -> None:
        """Hold nothing, while nobody looks when holds end."""


@attrs.frozen
class WorkerParts:
    """What a worker works with.

    :param engine: whose hosts are looked at
    :param catch_up: brings the engine's hosts to the store's present
    :param is_following: whether the feed is followed at all
    :param holds: taken over in each round; none stands while rounds are not made
    :param proved_upkeep: run in order, in each round in which hosts are proved, behind all else
    :param usages: run in these rounds, too, before anybody is woken
    :param arrivals: told of requests that are placed, and run in each round
    :param granted: told of requests that this worker granted to be placed
    :param observed: told of what became of requests that are this worker's
    :param clock: seconds by the back end's clock
    """

    followed: followed_requests.FollowedRequests
    plans: pending_fit.FitPlanner
    grants: queue_grants.QueueGrants
    owners: Owners
    engine: engine_module.Engine
    catch_up: Callable[[], Any]
    is_following: Callable[[], bool]
    meter: WakeMeter
    granted: Sequence[waiting_events.EventSink]
    observed: Sequence[waiting_events.EventSink]
    clock: Callable[[], float]
    holds: Holds
    proved_upkeep: Sequence[Upkeep] = ()
    usages: Sequence[UsageCounter] = ()
    arrivals: Arrivals | None = None
    monotonic: Callable[[], float] = time.monotonic


@attrs.define
class _Pacing:
    """When a digest of which memory tells nothing is tried again."""

    attempts: int = 0
    next_at: float = 0.0


class QueueWorker:
    """See the module. Made per start; :meth:`round` is public for those who have no thread.

    :ivar proved: whether hosts could be looked at in the last round
    """

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._event = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._growth: room_growth.RoomGrowth | None = None
        self._swept_at = float("-inf")
        #: By key: the attempt that another is to grant, and since when.
        self._left: collections.OrderedDict[str, tuple[int, float]] = collections.OrderedDict()
        self._untold: collections.OrderedDict[str, _Pacing] = collections.OrderedDict()
        #: Requests that this worker granted, as their records stood then: the feed may bring
        #: nothing more of one but that it is gone.
        self._granted: collections.OrderedDict[str, pending.PendingRequest] = (
            collections.OrderedDict()
        )
        #: Requests whose servers are among what hosts use as of the next catch-up.
        self._showing: list[str] = []
        #: Hosts that grew, by uuid, whose walk broke off: nobody tells of them again.
        self._unlooked: dict[str, None] = {}
        self._why_unproved = ""
        self.proved = False

    # -- life -----------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; in the worker process, after the feed was started."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="nodb-queue", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; grants that were made stand. Idempotent."""
        parts = self._parts
        self._stop.set()
        self._event.set()
        if self._thread is not None:
            self._thread.join(10.0)
            self._thread = None
        self.proved = False
        parts.holds.forget()

    def wake(self) -> None:
        """Say that something happened; from any thread."""
        self._event.set()

    def is_running(self) -> bool:
        """Say whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        parts = self._parts
        complained = False
        while not self._stop.is_set():
            self._event.wait(self._pause_seconds())
            self._event.clear()
            if self._stop.is_set():
                return
            try:
                self.round()
                complained = False
            except errors.BackendUnavailable as error:
                # It is tried again; the feed says loudly enough what is wrong.
                LOG.info("Nobody is woken for the moment: %(error)s", {"error": error})
                self._stop.wait(_FAILURE_SECONDS)
            except Exception:
                parts.meter.failed()
                parts.holds.forget()
                if not complained:
                    LOG.exception("Requests that wait could not be looked at.")
                complained = True
                self._stop.wait(_FAILURE_SECONDS)
            self._stop.wait(self._rest_seconds())

    def _rest_seconds(self) -> float:
        parts = self._parts
        with parts.followed.lock:
            return _LEAST_PAUSE_SECONDS if self._queues.active() else _IDLE_PAUSE_SECONDS

    def _pause_seconds(self) -> float:
        parts = self._parts
        followed = parts.followed
        with followed.lock:
            due_at = followed.queues.next_due_at()
        if due_at is None:
            return _MOST_PAUSE_SECONDS
        return min(max(due_at - parts.clock(), 0.0), _MOST_PAUSE_SECONDS)

    # -- a round ----------------------------------------------------------------------

    def round(self) -> None:
        """Look at what happened since the last one. Blocks for the back end and the bus.

        :raises BackendUnavailable: some of it is looked at again in the next round
        """
        parts = self._parts
        if not parts.is_following():
            self.proved = False
            parts.holds.forget()
            return
        began = parts.monotonic()
        now = parts.clock()
        for transition in parts.followed.follow(now):
            self._note(transition, now)
        parts.holds.run(now)
        if parts.arrivals is not None:
            parts.arrivals.run(now)
        self._grant_due(now)
        self._wake_whom_it_helps(now)
        parts.meter.round_took(parts.monotonic() - began)

    def _wake_whom_it_helps(self, now: float) -> None:
        parts = self._parts
        try:
            view = parts.plans.view()
        except pending_fit.HostsUnproved as why:
            self._tell_unproved(str(why))
            return
        try:
            self._tell_unproved("")
            grown = self._look_at_hosts()
            for usage in parts.usages:
                # Before anybody is woken: it tells who goes first.
                usage.run(now)
            self._wake_for(grown, view, now)
            self._wake_for(self._released(), view, now)
            for _ in range(_FRESH_AT_ONCE):
                if not self._walk(functools.partial(self._queues.wake_fresh, now), view, now):
                    break
            # A time to come is of a clock that was set back.
            if not 0.0 <= now - self._swept_at < _SWEEP_SECONDS:
                self._swept_at = now
                self._walk(functools.partial(self._queues.sweep, now), view, now)
            for each in parts.proved_upkeep:
                each.run(now)
        except pending_fit.HostsUnproved as why:
            self._tell_unproved(str(why))

    def _wake_for(self, growths: Sequence[grown_hosts.Growth], view: Any, now: float) -> None:
        """Have those tried whom hosts that grew may help; what breaks off is not forgotten."""
        left = collections.deque(growths)
        try:
            while left:
                self._walk(functools.partial(self._queues.wake, left[0], now), view, now)
                left.popleft()
        finally:
            for growth in left:
                self._unlooked.update(dict.fromkeys(growth.hosts))

    @property
    def _queues(self) -> wait_queues.WaitQueues:
        parts = self._parts
        return parts.followed.queues

    def _tell_unproved(self, why: str) -> None:
        if why and why != self._why_unproved:
            LOG.warning(
                "Requests that wait are not woken, for hosts are not proved: %(why)s.", {"why": why}
            )
        elif not why and self._why_unproved:
            LOG.info("Requests that wait are woken again.")
        self._why_unproved = why
        self.proved = not why

    # -- what happened ------------------------------------------------------------------

    def _look_at_hosts(self) -> list[grown_hosts.Growth]:
        """Return the hosts that grew since the last look, some hundreds together."""
        parts = self._parts
        parts.catch_up()
        resources = parts.followed.resources
        found: list[grown_hosts.Growth] = []
        with parts.engine.lock:
            frame = parts.engine.frame
            growths = [self._growth] if self._growth is not None else []
            if self._growth is None or self._growth.resources != resources:
                # The former one is asked once more: what grew by it is not lost.
                self._growth = room_growth.RoomGrowth(resources)
                growths.append(self._growth)
            for growth in growths:
                for grown in growth.look(frame):
                    found += _growths(frame, growth.resources, grown)
        with parts.followed.lock:
            now = parts.clock()
            for key in self._showing:
                self._queues.show(key, now)
        self._showing.clear()
        return found

    def _released(self) -> list[grown_hosts.Growth]:
        """Return hosts on which a grant came to nothing, a hold ended, or a walk broke off."""
        parts = self._parts
        assert self._growth is not None
        with parts.followed.lock:
            uuids = dict.fromkeys(self._queues.take_released())
        uuids.update(self._unlooked)
        self._unlooked.clear()
        if not uuids:
            return []
        with parts.engine.lock:
            frame = parts.engine.frame
            rows = [row for uuid in uuids if (row := frame.row_of(uuid)) is not None]
            at = np.array(rows, np.intp)
            grown = room_growth.GrownRows(at, self._growth.free(frame, at))
            return list(_growths(frame, self._growth.resources, grown))

    def _note(self, transition: followed_requests.Transition, now: float) -> None:
        """Take in what became of a request; tell of it where it is this worker's."""
        parts = self._parts
        request = transition.request
        if transition.step is followed_requests.RequestStep.GONE:
            granted = self._granted.pop(request.key, None)
            if granted is not None and granted.grant.attempt > request.grant.attempt:
                request = granted
                transition = attrs.evolve(transition, request=granted)
        if request.state is not pending.PendingState.WAITING:
            self._left.pop(request.key, None)
        if request.placed_at and parts.arrivals is not None:
            parts.arrivals.placed(request.key)
        if _has_hosts(transition):
            self._showing.append(request.key)
            self._untold.pop(request.queue, None)
            for usage in parts.usages:
                usage.begun(request, now)
        if not parts.owners.is_own(request.queue):
            return
        kind = _kind(transition)
        if kind is not None:
            told = request
            if kind in waiting_events.ENDINGS.values():
                told = attrs.evolve(request, servers=request.unsent)
            self._tell(parts.observed, kind, told, now)
        if _has_left_first(transition) and request.parked_at:
            waited_seconds = now - request.asked_at
            parts.meter.left(request.priority_class, _ending(request), waited_seconds)

    @staticmethod
    def _tell(
        sinks: Sequence[waiting_events.EventSink],
        kind: waiting_events.EventKind,
        request: pending.PendingRequest,
        now: float,
    ) -> None:
        for sink in sinks:
            sink.publish(waiting_events.WaitingEvent(kind, request, now))

    # -- grants -------------------------------------------------------------------------

    def _grant_due(self, now: float) -> None:
        """Grant what time demands: deadlines that passed, holders that fell silent."""
        parts = self._parts
        with parts.followed.lock:
            dues: Sequence[request_book.Due] = self._queues.advance(now)
        for due in dues:
            if not self._is_ours(due.request, due.attempt, now):
                continue
            LOG.info(
                "Request %(key)s is granted again (%(purpose)s): %(reason)s.",
                {
                    "key": due.request.key,
                    "purpose": due.purpose.value,
                    "reason": due.reason.value,
                },
            )
            standing = parts.grants.grant(due.request, due.purpose)
            if standing is None:
                continue
            self._remember(standing)
            with parts.followed.lock:
                self._queues.regranted(due, standing.grant.until_seconds, now)

    def _remember(self, standing: pending.PendingRequest) -> None:
        self._granted[standing.key] = standing
        self._granted.move_to_end(standing.key)
        if len(self._granted) > _MOST_REMEMBERED:
            self._granted.popitem(last=False)

    def _is_ours(self, request: pending.PendingRequest, attempt: int, now: float) -> bool:
        """Say whether this worker grants an attempt: it is its own, or its owner let it lie."""
        parts = self._parts
        if parts.owners.is_own(request.queue):
            return True
        left = self._left.get(request.key)
        if left is None or left[0] != attempt:
            self._left[request.key] = (attempt, now)
            self._left.move_to_end(request.key)
            if len(self._left) > _MOST_REMEMBERED:
                self._left.popitem(last=False)
            return False
        return not 0.0 <= now - left[1] < TAKE_OVER_SECONDS

    def _walk(self, make: Callable[[], wake_ups.WakeUp], view: Any, now: float) -> bool:
        """Go through the candidates of a wake-up; say whether there was one."""
        parts = self._parts
        lock = parts.followed.lock
        with lock:
            queues, walk = self._queues, make()
        is_any = False
        while not self._stop.is_set():
            with lock:
                if self._queues is not queues:
                    return is_any
                candidate = walk.next()
            if candidate is None:
                return is_any
            is_any = True
            try:
                self._try(walk, candidate, view, now)
            except pending_fit.HostsUnproved:
                with lock:
                    walk.refused()
                raise
            except errors.BackendUnavailable:
                with lock:
                    # Left alone until its record tells what became of it.
                    walk.lost()
                raise
        return is_any

    def _try(
        self,
        walk: wake_ups.WakeUp,
        candidate: wake_ups.Candidate,
        view: Any,
        now: float,
    ) -> None:
        """Plan a candidate, and answer for it."""
        parts, request = self._parts, candidate.request
        # The room of one server was told less all charges; several need other hosts, too.
        among = candidate.hosts if len(request.unsent) == 1 else None
        fit = parts.plans.fit(
            request, view, among=among, charged=self._charged() if among is None else None
        )
        result = "does not fit"
        if isinstance(fit, pending_fit.NotTold):
            hosts = candidate.hosts[:1] if candidate.hosts else ()
            if not self._may_be_tried_blindly(request, fit, now):
                fit, result = pending_fit.NoRoom(), "cannot be told"
        elif isinstance(fit, pending_fit.ServersFit):
            hosts = fit.hosts
        with parts.followed.lock:
            if isinstance(fit, pending_fit.NoRoom):
                walk.refused()
                parts.meter.looked_at(result)
                return
            if not self._is_ours(request, candidate.attempt, now):
                walk.left(hosts, now + TAKE_OVER_SECONDS)
                parts.meter.looked_at("left")
                return
        standing = parts.grants.grant(request, host=hosts[0] if hosts else "")
        with parts.followed.lock:
            if standing is None:
                walk.lost()
                parts.meter.looked_at("lost")
                return
            walk.granted(hosts, standing.grant.until_seconds)
        self._remember(standing)
        parts.meter.looked_at("granted")
        kind = waiting_events.EventKind.DISPATCHED
        self._tell((*parts.granted, *parts.observed), kind, standing, now)

    def _charged(self) -> pending_fit.Amounts:
        """Return what grants in flight take; O(hosts that they are on)."""
        parts = self._parts
        with parts.followed.lock:
            return {host: dict(amounts) for host, amounts in self._queues.charged().items()}

    def _may_be_tried_blindly(
        self, request: pending.PendingRequest, why: pending_fit.NotTold, now: float
    ) -> bool:
        """Say whether a request of which memory tells nothing is tried: one of its kind at a time.

        Only an attempt tells whether it fits, and there may be thousands of them.
        """
        pacing = self._untold.setdefault(request.queue, _Pacing())
        self._untold.move_to_end(request.queue)
        if len(self._untold) > _MOST_REMEMBERED:
            self._untold.popitem(last=False)
        if 0.0 < pacing.next_at - now <= _MOST_BLIND_SECONDS:
            return False
        if not pacing.attempts:
            LOG.info(
                "Whether requests like %(key)s fit cannot be told from memory (%(why)s): one of "
                "them is tried now and then.",
                {"key": request.key, "why": why.reason},
            )
        pacing.next_at = now + min(
            2.0 ** min(pacing.attempts, _MOST_DOUBLINGS), _MOST_BLIND_SECONDS
        )
        pacing.attempts += 1
        return True


def _growths(
    frame: Any, resources: tuple[str, ...], grown: room_growth.GrownRows
) -> Iterator[grown_hosts.Growth]:
    """Return hosts that grew as the order takes them, some hundreds at a time."""
    for start in range(0, len(grown), _HOSTS_AT_ONCE):
        part = slice(start, start + _HOSTS_AT_ONCE)
        places = frame.places_of(grown.rows[part].tolist())
        there = [at for at, place in enumerate(places) if place is not None]
        yield grown_hosts.Growth(
            [places[at].uuid for at in there],
            resources,
            grown.after[part][there],
            None if grown.before is None else grown.before[part][there],
        )


def _has_hosts(transition: followed_requests.Transition) -> bool:
    """Say whether a request found hosts since it was looked at last.

    One may be built and gone between two looks. One that failed, or whose user deleted it,
    while a conductor had it in hand looks the same, and counts as one for a while.
    """
    request, before = transition.request, transition.before
    if transition.step is followed_requests.RequestStep.PLACED:
        if before is None or before.state is not pending.PendingState.BUILDING:
            return True
        return before.grant.attempt != request.grant.attempt
    if transition.step is not followed_requests.RequestStep.GONE:
        # What was placed is met here by who begins; by others, where it was looked for in vain.
        is_looked_for = before is not None and request.placed_at > 0
        return transition.step is followed_requests.RequestStep.BUILDING and not is_looked_for
    in_hand = (pending.PendingState.GRANTED, pending.PendingState.SCHEDULING)
    is_new = request.state in in_hand and not request.placed_at
    return is_new and request.grant.purpose is pending.Purpose.PLACE


def _has_left(transition: followed_requests.Transition) -> bool:
    """Say whether a request waits no more since it was looked at last."""
    if transition.step is followed_requests.RequestStep.GONE:
        return not transition.request.placed_at
    return transition.step is followed_requests.RequestStep.PLACED


def _has_left_first(transition: followed_requests.Transition) -> bool:
    """Say whether a request waits no more, and never left the queue before."""
    before, is_gone = transition.before, transition.step is followed_requests.RequestStep.GONE
    if before is None:
        return _has_left(transition) and not transition.request.given_up_at
    return not pending.was_sent(before) and (is_gone or pending.was_sent(transition.request))


def _ending(request: pending.PendingRequest) -> str:
    """Return how a request left the queue; as it stands, or stood last."""
    kind = _ending_kind(request)
    if kind is not None:
        return kind.value
    return "deleted" if request.state is pending.PendingState.WAITING else "dispatched"


def _kind(transition: followed_requests.Transition) -> waiting_events.EventKind | None:
    """Return what is told of a transition; None for nothing."""
    request, before = transition.request, transition.before
    if transition.step is followed_requests.RequestStep.PARKED:
        first = before is None or not before.parked_at
        return waiting_events.EventKind.PARKED if first else None
    if not _has_left(transition):
        return None
    ending = _ending_kind(request)
    if ending is not None:
        return ending
    is_placed = bool(request.sent) or request.state is pending.PendingState.BUILDING
    return waiting_events.EventKind.PLACED if is_placed else None


def _ending_kind(request: pending.PendingRequest) -> waiting_events.EventKind | None:
    """Return how servers of a request ended in ERROR; None where all that are left were sent."""
    if request.sent and not request.unsent:
        return None
    return waiting_events.ENDINGS.get(request.grant.purpose)
