# SPDX-License-Identifier: Apache-2.0
"""The world of one run: requests come, servers are built and end, hosts report, things fail.

One thread deals with events and with the schedulers' pipes; a second one
publishes what the hosts report, unless the run goes step by step.
"""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection as mp_connection

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.simulator import (
    backend_line,
    messages,
    mischief,
    processes,
    reporting,
    run_clock,
    run_options,
    scheduler,
    timeline,
    worker,
    workload,
)
from nova_nodb_scheduler.simulator import cluster as cluster_module
from nova_nodb_scheduler.simulator import fleet as fleet_module
from nova_nodb_scheduler.simulator import ledger as ledger_module
from nova_nodb_scheduler.simulator import measures as measures_module
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

#: How often hosts' beats and reports are looked after, simulated seconds.
_TICK_SECONDS = 0.5
#: After so long whoever asked a scheduler that was killed gives up, and deletes.
_ABANDONED_SECONDS = 5.0
#: Pause before a request is asked again that no claim could be taken for.
_AGAIN_SECONDS = 0.5
_LISTEN_SECONDS = 0.05


class SimulationFailed(errors.NodbError):
    """A scheduler's process ended with a fault: the run says nothing.

    :param detail: its traceback
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"a scheduler of the run failed:\n{self.detail}"


@attrs.frozen
class Progress:
    """Where a run stands, for a progress bar."""

    stage: str
    done: int
    of: int
    servers: int = 0
    overcommitted: int = 0
    waiting: int = 0


Told = Callable[[Progress], None]


def not_told(_progress: Progress) -> None:
    """Tell nobody."""


class World:
    """One run. One thread, beside the reporter's.

    :param faults: in the order of their times
    :param told: called a few times a second
    """

    def __init__(
        self,
        options: run_options.RunOptions,
        arrivals: Sequence[workload.Arrival],
        faults: Sequence[timeline.Fault] = (),
        told: Told = not_told,
    ) -> None:
        if options.pace is run_clock.Pace.VIRTUAL and options.schedulers != 1:
            raise errors.ConfigurationError(
                "--pace", "virtual", "it is for one scheduler; use real or saturated with several."
            )
        self.options = options
        self.measures = measures_module.Measures()
        self._arrivals = arrivals
        self._told = told
        self._told_at = 0.0
        context = multiprocessing.get_context("spawn")
        self._line = backend_line.Line(context)
        self._clock = run_clock.RunClock(context, options.pace, options.speed)
        self._lock = threading.RLock()
        self.cluster = cluster_module.Cluster(options.cluster)
        self.ledger = ledger_module.Ledger(self.cluster, checked=options.strategy.checked)
        self._fleet = fleet_module.Fleet(self.cluster, self.ledger, self._mark)
        self._synchronizer = backend_line.LinedSynchronizer(options.backend.make(), self._line)
        self.reporter = reporting.Reporter(
            self._synchronizer,
            self._fleet.state,
            self._lock,
            self._clock.now_seconds,
            updates_per_second=options.updates_per_second,
            beat_seconds=options.beat_seconds,
        )
        self.schedulers = [
            processes.SchedulerProcess(
                number, context, self._line, self._clock, self._worker_options()
            )
            for number in range(options.schedulers)
        ]
        self._mischief = mischief.Mischief(self, self._line, self._fleet)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._next_arrival = 0
        self._queue: collections.deque[int] = collections.deque()
        #: Requests that were tried in vain and come into the queue again.
        self._put_off = 0
        self._turns = collections.deque(self.schedulers)
        self._asked_at: dict[int, float] = {}
        self._written: dict[int, set[tuple[str, str]]] = {}
        self._end_seconds = timeline.end_seconds(faults)
        self._faults = faults
        self._ticked = 0.0
        self._began = 0.0
        #: Claims left at the end whose servers do not stand there; -1: not known.
        self.leaked_claims = 0

    def _mark(self, key: records.RecordKey) -> None:
        # The hosts are made before the reporter, which asks them what to tell.
        self.reporter.mark(key)

    def _worker_options(self) -> worker.WorkerOptions:
        options = self.options
        return worker.WorkerOptions(
            identity="",
            backend=options.backend,
            authority_seconds=options.authority_seconds,
            start_seconds=options.start_seconds,
            scheduler=scheduler.SchedulerOptions(
                strategy=options.strategy,
                seed=options.seed,
                in_step=options.pace is run_clock.Pace.VIRTUAL,
                service_down_seconds=options.service_down_seconds,
                cache_seconds=options.cache_seconds,
                beat_seconds=options.beat_seconds,
                deadline_seconds=options.deadline_seconds,
                claim_lease_seconds=options.claim_lease_seconds,
                claim_spread=options.claim_spread,
            ),
        )

    # -- the run ----------------------------------------------------------------------

    def run(self) -> None:
        """Carry the run out; the figures are in the attributes then.

        :raises SimulationFailed: a scheduler failed by itself
        :raises BackendUnavailable: it was away before the run began
        """
        thread = None
        try:
            self._prepare()
            self._begin()
            if not self._in_step:
                thread = reporting.ReporterThread(self.reporter)
                thread.start()
            while not self._is_over():
                self._happen()
                if self._in_step:
                    self.reporter.flush(everything=True)
                self._dispatch()
                self._listen(self._pause_seconds())
                self._watch()
            self._come_to_rest()
        finally:
            for each in self.schedulers:
                each.stop()
            if thread is not None:
                thread.stop()
            self._synchronizer.close()

    def _come_to_rest(self) -> None:
        """Wait until no claim is left but those of servers that stand, and count the others."""
        if not self.options.strategy.claims:
            return
        deadline = time.monotonic() + self.options.rest_seconds
        pass_seconds = self.options.build_seconds + _TICK_SECONDS
        while True:
            if self._in_step:
                self._let_pass(pass_seconds)
                for each in self.schedulers:
                    each.say(messages.Settle())
            self.leaked_claims = self._count_leaked()
            if not self.leaked_claims or time.monotonic() > deadline:
                return
            self._told(Progress("waiting for claims to end", 0, self.leaked_claims))
            for _ in range(10):
                if not self._in_step:
                    self._happen()
                self._listen(_LISTEN_SECONDS)

    def _let_pass(self, seconds: float) -> None:
        """Let simulated time pass in which nobody asks for anything, step by step."""
        until = self._clock.now_seconds() + seconds
        while self._events and self._events[0][0] <= until:
            self._happen()
            self.reporter.flush(everything=True)

    def _count_leaked(self) -> int:
        """Return claims of servers that do not stand on the host claimed."""
        try:
            pages = self._synchronizer.snapshot([namespaces.CLAIM_RECORDS.name]).pages
            found = [
                (consumer, record.key.key)
                for page in pages
                for record in page
                for consumer in codec.decode_state(record.payload).get("claims", {})
            ]
        except (errors.BackendUnavailable, contract.SnapshotInterrupted):
            return -1
        standing = self.ledger.standing
        return sum(standing.get(consumer) != host_uuid for consumer, host_uuid in found)

    @property
    def _in_step(self) -> bool:
        return self.options.pace is run_clock.Pace.VIRTUAL

    def _prepare(self) -> None:
        total = 5 * len(self.cluster)
        self._synchronizer.open()
        self.reporter.populate(
            self._fleet.everything(),
            lambda count: self._told(Progress("publishing hosts", count, total)),
        )
        for each in self.schedulers:
            each.start()
        ready = 0
        while ready < len(self.schedulers):
            self._told(Progress("starting schedulers", ready, len(self.schedulers)))
            self._listen(0.2)
            ready = sum(each.is_ready for each in self.schedulers)

    def _begin(self) -> None:
        self._clock.start()
        self._began = time.monotonic()
        for fault in self._faults:
            self._at(fault.at_seconds, functools.partial(self._mischief.begin, fault))
        self._at(0.0, self._tick)
        if self.options.pace is not run_clock.Pace.SATURATED:
            for arrival in self._arrivals:
                come = functools.partial(self._queue.append, arrival.number)
                self._at(arrival.at_seconds, come)
            self._next_arrival = len(self._arrivals)

    def _is_over(self) -> bool:
        now = self._clock.now_seconds()
        if self.options.seconds is not None and now >= self.options.seconds:
            return True
        is_answered = (
            self._next_arrival == len(self._arrivals)
            and not self._queue
            and len(self.measures.decisions) + self.measures.lost_requests >= len(self._arrivals)
        )
        return is_answered and now >= self._end_seconds

    def _pause_seconds(self) -> float:
        if self._in_step:
            return _LISTEN_SECONDS if self._is_held_up or not self._events else 0.0
        if not self._events:
            return _LISTEN_SECONDS
        due = self._clock.real_seconds(self._events[0][0] - self._clock.now_seconds())
        return min(max(due, 0.0), _LISTEN_SECONDS)

    @property
    def _is_held_up(self) -> bool:
        """Whether time stands still, step by step, until a scheduler has done something."""
        present = [each for each in self.schedulers if not each.is_away]
        return any(each.asked is not None for each in present) or bool(self._queue and present)

    @property
    def _is_deciding(self) -> bool:
        return any(each.asked is not None for each in self.schedulers)

    def _ask_again(self, number: int) -> None:
        self._put_off -= 1
        self._queue.append(number)

    def _watch(self) -> None:
        at = time.monotonic()
        waits = bool(self._queue or self._put_off)
        self.measures.demand(at - self._began, is_there=waits or self._is_deciding)
        if at - self._told_at > 0.2:
            self._told_at = at
            measures = self.measures
            self._told(
                Progress(
                    "deciding",
                    len(measures.decisions),
                    len(self._arrivals),
                    measures.servers_placed,
                    self.ledger.overcommitted_grants,
                    self.reporter.waiting,
                )
            )

    # -- events -----------------------------------------------------------------------

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._numbers), happen))

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Let something happen in some simulated seconds."""
        self._at(self._clock.now_seconds() + seconds, happen)

    def _happen(self) -> None:
        """Let happen what is due; step by step, the next thing once all is answered."""
        if self._in_step:
            if self._events and not self._is_held_up:
                self._clock.advance(self._events[0][0])
                with self._lock:
                    heapq.heappop(self._events)[2]()
            return
        now = self._clock.now_seconds()
        with self._lock:
            while self._events and self._events[0][0] <= now:
                heapq.heappop(self._events)[2]()

    def _tick(self) -> None:
        """Have those hosts beat and report whose time came since the last tick."""
        now = self._clock.now_seconds()
        for host in self._due(self.options.heartbeat_seconds, now):
            self._fleet.beat(host, now)
        for host in self._due(self.options.report_seconds, now):
            self._fleet.report(host, now)
        self.measures.fill.append((now, self.ledger.used_share()))
        self._ticked = now
        self._at(now + _TICK_SECONDS, self._tick)

    def _due(self, every_seconds: float, now: float) -> list[cluster_module.Host]:
        """Return the hosts whose turn is since the last tick; turns are spread evenly."""
        hosts = self.cluster.hosts
        first = int(self._ticked / every_seconds * len(hosts))
        last = min(int(now / every_seconds * len(hosts)), first + len(hosts))
        return [hosts[number % len(hosts)] for number in range(first, last)]

    # -- requests ---------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give requests to idle schedulers, in turn."""
        for _ in range(len(self._turns)):
            each = self._turns[0]
            self._turns.rotate(-1)
            if not each.is_idle:
                continue
            if not self._queue and self.options.pace is run_clock.Pace.SATURATED:
                if self._next_arrival < len(self._arrivals):
                    self._queue.append(self._next_arrival)
                    self._next_arrival += 1
            if not self._queue:
                return
            number = self._queue.popleft()
            arrival = self._arrivals[number]
            self._asked_at.setdefault(number, self._clock.now_seconds())
            asked = messages.Decide(number, arrival.flavor, arrival.uuids(self.options.seed))
            if not each.ask(asked):
                self._queue.appendleft(number)

    def _listen(self, timeout_seconds: float) -> None:
        """Answer what schedulers say."""
        pipes = {
            pipe: each
            for each in self.schedulers
            for pipe in (each.pipe, each.questions)
            if pipe is not None
        }
        if not pipes:
            time.sleep(timeout_seconds)
            return
        ready = set(mp_connection.wait(list(pipes), timeout_seconds))
        for pipe, said_by in pipes.items():
            if pipe not in ready:
                continue
            try:
                said = pipe.recv()
            except (EOFError, OSError) as error:
                if pipe is said_by.questions:
                    said_by.questions = None
                    continue
                raise SimulationFailed(
                    f"scheduler {said_by.number} ended without a word"
                ) from error
            with self._lock:
                if isinstance(said, messages.Question):
                    pipe.send(messages.Allocations(self.ledger.allocations_of(said.server)))
                else:
                    self._answer(said_by, said)

    def _answer(self, said_by: processes.SchedulerProcess, said: object) -> None:
        match said:
            case messages.Write():
                refused = self.ledger.write(said.allocations)
                for each in said.allocations:
                    if each.server not in refused:
                        self._written.setdefault(said.number, set()).add(
                            (each.server, each.host_uuid)
                        )
                        self._fleet.written(each.host_uuid)
                self._reply(said_by, messages.Answer(refused))
            case messages.Remove():
                for each in said.allocations:
                    self._take_back(said.number, each.server, each.host_uuid)
                self._reply(said_by, messages.Answer(frozenset()))
            case messages.Decided():
                said_by.asked = None
                self._decided(said)
            case messages.Ready():
                said_by.became_ready()
            case messages.Failed():
                raise SimulationFailed(said.text)

    @staticmethod
    def _reply(to: processes.SchedulerProcess, answer: messages.Answer) -> None:
        if to.pipe is not None:
            to.pipe.send(answer)

    def give_up(self, number: int) -> None:
        """Note that a request died with its scheduler.

        Whoever asked waits for an answer a while, and deletes the servers then.
        """
        self.measures.lost_requests += 1
        left = self._written.pop(number, set())

        def abandon() -> None:
            for server, host_uuid in left:
                self._take_back(-1, server, host_uuid)

        self.after(_ABANDONED_SECONDS, abandon)

    def now_seconds(self) -> float:
        """Return the simulated time."""
        return self._clock.now_seconds()

    def _take_back(self, number: int, server: str, host_uuid: str) -> None:
        if self.ledger.remove(server, host_uuid):
            self._fleet.written(host_uuid)
        self._written.get(number, set()).discard((server, host_uuid))

    def _decided(self, decision: messages.Decided) -> None:
        number, now = decision.number, self._clock.now_seconds()
        arrival = self._arrivals[number]
        waited = now - self._asked_at[number]
        if decision.outcome == scheduler.UNCLAIMABLE and waited < self.options.patience_seconds:
            self.measures.tried_in_vain(decision)
            self._put_off += 1
            self.after(_AGAIN_SECONDS, lambda: self._ask_again(number))
            return
        at = time.monotonic()
        self.measures.decided(at - self._began, now, decision)
        self.measures.stale_seconds.append(
            measures_module.staleness_seconds(
                self.reporter.figures.published, decision.version, at - decision.seconds
            )
        )
        self._written.pop(number, None)
        if decision.outcome != scheduler.PLACED:
            return
        servers = arrival.uuids(self.options.seed)
        for server, host_uuid in zip(servers, decision.hosts, strict=True):
            self._granted(arrival, server, host_uuid, decision.chosen_at_seconds)

    def _granted(
        self, arrival: workload.Arrival, server: str, host_uuid: str, chosen_at: float
    ) -> None:
        flavor = arrival.flavor
        self.ledger.grant(server, host_uuid, flavor.resources)
        self._fleet.accept(server, flavor, host_uuid)
        self.measures.servers_placed += 1
        self.measures.sequence.append((server, host_uuid))
        lost_at = self._fleet.lost_at(host_uuid)
        if lost_at is not None and chosen_at > lost_at:
            is_late = chosen_at > lost_at + self.options.service_down_seconds
            self.measures.late_choices += is_late
            self.measures.choices_of_lost += not is_late
        self.after(self.options.build_seconds, lambda: self.built(server))
        if arrival.lifetime_seconds is not None:
            # Nobody deletes what is not there yet.
            lifetime = max(arrival.lifetime_seconds, self.options.build_seconds)
            self.after(lifetime, lambda: self._deleted(server, flavor))

    def built(self, server: str) -> None:
        """Have a server's host count it, if the host lives."""
        self._fleet.built(server)

    def _deleted(self, server: str, flavor: workload.Flavor) -> None:
        if self.ledger.end(server, flavor.resources) is not None:
            self._fleet.deleted(server)
