# SPDX-License-Identifier: Apache-2.0
"""The conductor of a run: keeps requests as records, asks schedulers, parks who finds no room.

It takes the steps of the plugin's conductor with the plugin's ledger, and nothing else of it:
what Nova does with a request on the way (build requests, cells) is left out. Blocking steps are
taken in a thread of its own, or at once where a run goes step by step; the world's thread alone
knows what became of them.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.simulator.run import waiting_measures
from nova_nodb_scheduler.simulator.scenario import (
    made_hosts,
    run_clock,
    run_options,
    workload,
)
from nova_nodb_scheduler.simulator.schedulers import pipe_messages, simulated_scheduler
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules

T = TypeVar("T")

#: What a request was made with takes so much, deflated and encrypted.
_PAYLOAD_CHARACTERS = 2200
#: How long a step is tried while the back end is away, real seconds.
_INSIST_SECONDS = 60.0
_AGAIN_SECONDS = 0.5
#: Between two renewals of leases: a third of them.
_RENEWALS = 3.0

Done = Callable[[], None]
Job = Callable[[], "Done | None"]


class ConductorThread:
    """Runs jobs one after the other, and hands back what is to be done about them.

    :param at_once: in the caller's thread, instead of one of its own
    """

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if there is to be one."""
        if not self._at_once:
            self._thread = threading.Thread(target=self._run, name="conductor", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread after the job that it has; idempotent."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(10.0)
            self._thread = None

    def do(self, job: Job) -> None:
        """Have a job done."""
        if self._at_once:
            done = job()
            if done is not None:
                done()
        else:
            self._jobs.put(job)

    def finish(self) -> None:
        """Do what is to be done about the jobs that are over; the world's thread."""
        while True:
            try:
                done = self._done.get_nowait()
            except queue.Empty:
                return
            done()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                done = job()
            except Exception as error:  # noqa: BLE001 - the world is to fail by it, not this thread
                done = functools.partial(_fail, error)
            if done is not None:
                self._done.put(done)


def _fail(error: Exception) -> None:
    raise error


class ConductedWorld(Protocol):
    """What a conductor asks of the world; in its thread."""

    def ask(self, number: int) -> None:
        """Have a request decided by some scheduler."""

    def place(self, decision: pipe_messages.Decided, servers: Sequence[str]) -> None:
        """Send servers to the hosts that were chosen, in their order, and no others."""

    def undo(self, number: int) -> None:
        """Take back what was written for a request."""


@attrs.define
class _InHand:
    """A request that is being placed.

    :ivar if_absent: of a creation in doubt
    """

    holding: pending_rules.Holding
    servers: tuple[str, ...]
    if_absent: pending.PendingRequest | None = None


class MadeConductor:
    """All conductors of a run as one. The world's thread calls.

    :param measures: told of what becomes of each request
    """

    def __init__(
        self,
        options: run_options.RunOptions,
        arrivals: Sequence[workload.Arrival],
        ledger: pending_ledger.PendingLedger,
        measures: waiting_measures.WaitingMeasures,
        clock: run_clock.RunClock,
        events: run_clock.Events,
        thread: ConductorThread,
        world: ConductedWorld,
    ) -> None:
        self._options = options
        self._settings = options.queue.settings()
        self._arrivals = arrivals
        self._ledger = ledger
        self._measures = measures
        self._clock = clock
        self._events = events
        self._thread = thread
        self._world = world
        self._numbers = {each.uuids(options.seed)[0]: each.number for each in arrivals}
        self._in_hand: dict[int, _InHand] = {}
        #: Requests whose record could not be kept: they may not wait.
        self._unkept: set[int] = set()

    def begin(self) -> None:
        """Say from now on that the requests in hand are."""
        self._events.after(self._settings.lease_seconds / _RENEWALS, self._renew)

    def attempt(self, number: int) -> tuple[str, int] | None:
        """Return what a scheduler is told of a request: its record's key, and the attempt."""
        held = self._in_hand.get(number)
        return None if held is None else (held.holding.key, held.holding.attempt)

    def servers(self, number: int) -> tuple[str, ...]:
        """Return the servers of a request that are to be placed."""
        held = self._in_hand.get(number)
        return self._arrivals[number].uuids(self._options.seed) if held is None else held.servers

    # -- steps ------------------------------------------------------------------------

    def come(self, arrival: workload.Arrival) -> None:
        """Take a request that a user made."""
        now = self._clock.now_seconds()
        self._measures.came(arrival, now)
        record = self._record(arrival, now)
        self._thread.do(lambda: self._create(arrival.number, record))

    def _create(self, number: int, record: pending.PendingRequest) -> Done:
        try:
            kept = self._ledger.create(record, "x" * _PAYLOAD_CHARACTERS)
        except errors.BackendUnavailable:
            return lambda: self._go_on_unkept(number)
        doubtful = kept.request if isinstance(kept, pending_ledger.MaybeCreated) else None
        held = _InHand(pending_rules.holding_of(record), record.servers, doubtful)
        return lambda: self._ask(number, held)

    def _go_on_unkept(self, number: int) -> None:
        # As in Nova: it may not wait.
        self._measures.unkept += 1
        self._unkept.add(number)
        self._world.ask(number)

    def _ask(self, number: int, held: _InHand) -> None:
        self._in_hand[number] = held
        self._world.ask(number)

    def dispatch(self, said: pipe_messages.DispatchPending) -> None:
        """Take a request that a scheduler granted."""
        number = self._numbers[said.key]
        self._measures.granted(number, self._clock.now_seconds())
        owner = str(uuid.uuid4())
        self._thread.do(lambda: self._take(number, said.key, said.attempt, owner))

    def _take(self, number: int, key: str, attempt: int, owner: str) -> Done | None:
        try:
            step = self._ledger.take(key, attempt, owner)
        except errors.BackendUnavailable:
            # The grant's lease ends, and it is granted anew.
            return None
        if isinstance(step, pending_rules.Superseded):
            return None
        held = _InHand(pending_rules.holding_of(step), step.unsent)
        if step.grant.purpose is not pending.Purpose.PLACE or not step.unsent:
            ending = "expired" if step.unsent else "placed"
            return self._finish(number, held, ending)
        # What a former holder left of its servers is in the way.
        return lambda: self._ask_anew(number, held)

    def _ask_anew(self, number: int, held: _InHand) -> None:
        self._world.undo(number)
        self._ask(number, held)

    def answered(self, number: int, decision: pipe_messages.Decided) -> None:
        """Go on with a request behind a scheduler's answer."""
        is_placed = decision.outcome == simulated_scheduler.PLACED
        self._measures.answered(number, has_room=is_placed)
        if number in self._unkept:
            self._end_unkept(number, decision)
            return
        held = self._in_hand.pop(number)
        if is_placed:
            self._thread.do(lambda: self._build(number, held, decision))
        elif decision.outcome == simulated_scheduler.FULL:
            self._thread.do(lambda: self._finish(number, held, "refused"))
        else:
            is_tried = decision.outcome != simulated_scheduler.BEHIND
            self._park(number, held, decision.outcome, is_tried=is_tried)

    def unanswered(self, number: int) -> None:
        """Go on with a request whose scheduler died."""
        if number in self._unkept:
            self._measures.ended_as(number, "failed", self._clock.now_seconds())
            return
        held = self._in_hand.pop(number, None)
        if held is not None:
            self._park(number, held, "no answer", is_tried=True)

    def _end_unkept(self, number: int, decision: pipe_messages.Decided) -> None:
        ending = "failed"
        if decision.outcome == simulated_scheduler.PLACED:
            self._world.place(decision, self.servers(number))
            ending = "placed"
        self._measures.ended_as(number, ending, self._clock.now_seconds())

    def _park(self, number: int, held: _InHand, reason: str, *, is_tried: bool) -> None:
        attempts = self._measures.stories[number].attempts
        pause_seconds = self._settings.backoff_seconds(attempts) if is_tried else 0.0
        self._thread.do(lambda: self._parked(number, held, reason, pause_seconds))

    def _parked(self, number: int, held: _InHand, reason: str, pause_seconds: float) -> Done | None:
        step = _insist(
            lambda: self._ledger.park(held.holding, reason, pause_seconds, held.if_absent)
        )
        if not isinstance(step, pending.PendingRequest):
            return None
        now = self._clock.now_seconds()
        return lambda: self._measures.parked(number, now, now + pause_seconds)

    def _build(self, number: int, held: _InHand, decision: pipe_messages.Decided) -> Done:
        begun = _insist(lambda: self._ledger.begin(held.holding, held.if_absent))
        if not isinstance(begun, pending.PendingRequest):
            # Somebody else's by now: that one finds nothing of this attempt.
            return lambda: self._world.undo(number)
        sent = {
            server: host
            for server, host in zip(held.servers, decision.hosts, strict=True)
            if self._sent(held.holding, server)
        }
        kept = attrs.evolve(decision, hosts=tuple(sent.values()))
        place = functools.partial(self._world.place, kept, tuple(sent))
        if len(sent) < len(held.servers):
            return place
        finish = self._finish(number, held, "placed")

        def done() -> None:
            place()
            finish()

        return done

    def _sent(self, holding: pending_rules.Holding, server: str) -> bool:
        tries: list[None] = []

        def send() -> pending_rules.Step:
            tries.append(None)
            return self._ledger.sent(holding, server, again=len(tries) > 1)

        return isinstance(_insist(send), pending.PendingRequest)

    def _finish(self, number: int, held: _InHand, ending: str) -> Done:
        _insist(lambda: self._ledger.finish(held.holding))
        now = self._clock.now_seconds()
        return lambda: self._measures.ended_as(number, ending, now)

    # -- records ----------------------------------------------------------------------

    def _record(self, arrival: workload.Arrival, now: float) -> pending.PendingRequest:
        options = self._options
        servers = arrival.uuids(options.seed)
        asked_at = made_hosts.BEGINNING_SECONDS + now
        flavor = arrival.flavor
        return pending.PendingRequest(
            key=servers[0],
            servers=servers,
            project_id=arrival.project_id,
            user_id=arrival.project_id,
            flavor=flavor.name,
            priority_class=arrival.priority_class,
            needs=flavor.resources,
            queue=queue_digest(flavor.resources),
            asked_at=asked_at,
            deadline_at=asked_at + options.queue.wait_seconds,
            state=pending.PendingState.SCHEDULING,
            grant=pending.Grant(1, str(uuid.uuid4()), asked_at + self._settings.lease_seconds),
        )

    def _renew(self) -> None:
        holdings = [held.holding for held in self._in_hand.values() if held.if_absent is None]
        if holdings:
            self._thread.do(lambda: self._renewed(holdings))
        self.begin()

    def _renewed(self, holdings: Sequence[pending_rules.Holding]) -> None:
        try:
            self._ledger.renew(holdings)
        except errors.BackendUnavailable:
            return


def queue_digest(needs: Mapping[str, int]) -> str:
    """Return what requests have in common that a scheduler looks at alike: here what they need."""
    return uuid.uuid5(uuid.NAMESPACE_OID, repr(sorted(needs.items()))).hex


def _insist(step: Callable[[], T]) -> T | None:
    """Take a step, again while the back end is away; None where that lasts too long."""
    deadline = time.monotonic() + _INSIST_SECONDS
    while True:
        try:
            return step()
        except errors.BackendUnavailable:
            if time.monotonic() > deadline:
                return None
            time.sleep(_AGAIN_SECONDS)
