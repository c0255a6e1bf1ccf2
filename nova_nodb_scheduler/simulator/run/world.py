# SPDX-License-Identifier: Apache-2.0
"""The world of one run: requests come, servers are built and end, hosts report, things fail.

One thread deals with events and with the schedulers' pipes; a second one
publishes what the hosts report, unless the run goes step by step.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from multiprocessing import context as mp_context

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.simulator.run import (
    departures,
    fault_injection,
    fleet,
    grants,
    host_reporter,
    made_conductor,
    scheduler_traffic,
    true_ledger,
    waiting_measures,
)
from nova_nodb_scheduler.simulator.run import measures as measures_module
from nova_nodb_scheduler.simulator.scenario import made_hosts as cluster_module
from nova_nodb_scheduler.simulator.scenario import (
    run_clock,
    run_options,
    standing_servers,
    timeline,
    workload,
)
from nova_nodb_scheduler.simulator.schedulers import (
    backend_line,
    feed_lag,
    pipe_messages,
    scheduler_process,
    simulated_scheduler,
)
from nova_nodb_scheduler.store import collector
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring


@attrs.frozen
class RunProgress:
    """Where a run stands, for a progress bar."""

    stage: str
    done: int
    of: int
    servers: int = 0
    overcommitted: int = 0
    waiting: int = 0


Told = Callable[[RunProgress], None]

#: Step by step: so long the end is put off for claims that are to end, simulated. What settles
#: them looks at those that it could not end once in a while.
_REST_SECONDS = 600.0

#: Step by step: after so long schedulers look whom they may have passed by.
_SWEEP_SECONDS = 1.0


def not_told(_progress: RunProgress) -> None:
    """Tell nobody."""


class World:
    """One run. One thread, beside the reporter's.

    :param faults: in the order of their times
    :param told: called a few times a second
    :param processes: how schedulers' processes are made; by default each from nothing
    """

    def __init__(
        self,
        options: run_options.RunOptions,
        arrivals: Sequence[workload.Arrival],
        faults: Sequence[timeline.PlannedFault] = (),
        told: Told = not_told,
        processes: mp_context.SpawnContext | mp_context.ForkServerContext | None = None,
    ) -> None:
        if options.in_step and options.schedulers != 1:
            raise errors.ConfigurationError(
                "--pace", "virtual", "it is for one scheduler; use real or saturated with several."
            )
        self.options = options
        self.strategy = options.strategy
        self.measures = measures_module.Measures()
        self._told = told
        self._told_at = 0.0
        context = processes or multiprocessing.get_context("spawn")
        self._line = backend_line.BackendLine(context)
        self._clock = run_clock.RunClock(context, options.pace, options.speed)
        self._lock = threading.RLock()
        self._events = run_clock.Events(self._clock)
        self.cluster = cluster_module.Cluster(options.cluster)
        self.ledger = true_ledger.TrueLedger(self.cluster, checked=self.strategy.checked)
        self._fleet = fleet.Fleet(self.cluster, self.ledger, self._mark, self._hear)
        self._synchronizer = backend_line.LinedSynchronizer(options.backend.make(), self._line)
        self.reporter = host_reporter.HostReporter(
            self._synchronizer,
            self._fleet.state,
            self._lock,
            self._clock.now_seconds,
            updates_per_second=options.updates_per_second,
            beat_seconds=options.beat_seconds,
            journal=self._journal() if options.heartbeat_journals else None,
        )
        self.schedulers = [
            scheduler_process.SchedulerProcess(number, context, self._line, self._clock, options)
            for number in range(options.schedulers)
        ]
        self.waiting: waiting_measures.WaitingMeasures | None = None
        self._conductor: made_conductor.MadeConductor | None = None
        self._conductor_thread = made_conductor.ConductorThread(at_once=options.in_step)
        if self.strategy.waits:
            self.waiting = _waiting_measures(options)
            self._conductor = self._made_conductor(arrivals, self.waiting)
        self._ticks = fleet.HostTicks(
            options,
            self.cluster,
            self._fleet,
            self.ledger,
            self.measures,
            self._clock,
            self._events,
            self.waiting,
        )
        self._queue = scheduler_traffic.RequestQueue(
            options,
            arrivals,
            self.schedulers,
            self._clock,
            self._events,
            self._asked,
            None if self._conductor is None else self._conductor.come,
        )
        flavors = [each.flavor for each in arrivals for _ in range(each.servers)]
        departing = self._stand(flavors)
        self.standing_servers = len(self.ledger.standing)
        self.departures = departures.Departures(
            self.cluster,
            self.ledger,
            self._fleet,
            self._events,
            options.departures_per_second,
            flavors,
            random.Random(f"departures {options.seed}"),
            departing,
        )
        self._is_news = True
        self._wake_at = math.inf
        self._grants = grants.Grants(options, self.ledger, self._fleet, self.measures, self._events)
        self._mischief = fault_injection.FaultInjection(
            options,
            self.schedulers,
            self.reporter,
            self._line,
            self._fleet,
            self._grants,
            self._unanswered,
            self._clock,
            self._events,
        )
        self._listener = scheduler_traffic.Listener(
            self.schedulers,
            self._lock,
            self._grants,
            self._decided,
            self._dispatch,
            self._woken,
        )
        self._end_seconds = timeline.end_seconds(faults)
        self._faults = faults
        #: Monotonic seconds; and those of the run itself, real and simulated, once it is over.
        self.began_at = 0.0
        self.took_seconds = 0.0
        self.simulated_seconds = 0.0
        #: Claims left at the end whose servers do not stand there; -1: not known.
        self.leaked_claims = 0

    def _mark(self, key: records.RecordKey) -> None:
        # The hosts are made before the reporter, which asks them what to tell.
        self.reporter.mark(key)

    def _hear(self, service: str, report_count: int, seconds: float) -> None:
        self.reporter.hear(service, report_count, seconds)

    def _journal(self) -> heartbeat_ring.HeartbeatRing:
        beats_per_second = len(self.cluster) / self.options.heartbeat_seconds
        return heartbeat_ring.HeartbeatRing(
            self._synchronizer,
            cluster_module.CELL,
            lambda: str(uuid.uuid4()),
            host_reporter.ring_options(beats_per_second, self.options.service_down_seconds),
            self._clock.now_seconds,
        )

    def _stand(
        self, flavors: Sequence[workload.MadeFlavor]
    ) -> list[standing_servers.StandingServer]:
        """Have servers stand there since before the run; return those that may depart."""
        departing = []
        with collector.at_rest():
            for each in standing_servers.draw(self.cluster, self.options.servers_per_host, flavors):
                self.ledger.stand(each.uuid, each.host_uuid, each.flavor.resources)
                self._fleet.stand(each.uuid, each.flavor, each.host_uuid)
                if self.options.departures_per_second:
                    departing.append(each)
        return departing

    @property
    def feed_lags(self) -> feed_lag.FeedLags:
        """How far schedulers' stores had come when."""
        return self._listener.feed_lags

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
            if not self.options.in_step:
                thread = host_reporter.ReporterThread(self.reporter)
                thread.start()
            self._conductor_thread.start()
            while not self._is_over():
                self._happen()
                if self.options.in_step:
                    self._is_news |= self.reporter.is_room_waiting
                    self.reporter.flush(everything=True)
                with self._lock:
                    self._conductor_thread.finish()
                self._wake_in_step()
                self._queue.dispatch()
                self._listener.listen(self._pause_seconds())
                self._watch()
            self.simulated_seconds = self._clock.now_seconds()
            self.took_seconds = time.monotonic() - self.began_at
            self._come_to_rest()
            self._listener.hear_last()
        finally:
            self._conductor_thread.stop()
            for each in self.schedulers:
                each.stop()
            if thread is not None:
                thread.stop()
            self._synchronizer.close()

    def _prepare(self) -> None:
        total = 5 * len(self.cluster) + self.standing_servers
        stage = "publishing hosts" + (" and servers" if self.standing_servers else "")
        self._synchronizer.open()
        with collector.at_rest():
            self.reporter.populate(
                self._fleet.everything(),
                lambda count: self._told(RunProgress(stage, count, total)),
            )
        # Of millions of servers none is garbage.
        collector.settle()
        for each in self.schedulers:
            each.start()
        ready = 0
        while ready < len(self.schedulers):
            self._told(RunProgress("starting schedulers", ready, len(self.schedulers)))
            self._listener.listen(0.2)
            ready = sum(each.is_ready for each in self.schedulers)

    def _begin(self) -> None:
        self._clock.start()
        self.began_at = time.monotonic()
        for fault in self._faults:
            self._events.at(fault.at_seconds, functools.partial(self._mischief.begin, fault))
        self._events.at(0.0, self._ticks.tick)
        self._queue.begin()
        self.departures.begin()
        if self._conductor is not None:
            self._conductor.begin()

    def _is_over(self) -> bool:
        now = self._clock.now_seconds()
        if self.options.seconds is not None and now >= self.options.seconds:
            return True
        answered = len(self.measures.decisions) + self.measures.lost_requests
        if self.waiting is not None:
            # A request that waits is answered several times.
            answered = self.waiting.ended
        is_answered = self._queue.is_used_up and answered >= len(self._queue.arrivals)
        return is_answered and now >= self._end_seconds

    def _come_to_rest(self) -> None:
        """Wait until no claim is left but those of servers that stand, and count the others."""
        if not self.strategy.claims:
            return
        real_deadline = time.monotonic() + self.options.rest_seconds
        deadline = self._clock.now_seconds() + _REST_SECONDS
        pass_seconds = self.options.build_seconds + fleet.TICK_SECONDS
        while True:
            if self.options.in_step:
                self._let_pass(pass_seconds)
                for each in self.schedulers:
                    each.say(pipe_messages.SettleClaims())
            self.leaked_claims = true_ledger.count_leaked_claims(self._synchronizer, self.ledger)
            # Step by step the machine's speed decides nothing, but for a back end that is away.
            if self.options.in_step and self.leaked_claims >= 0:
                is_late = self._clock.now_seconds() > deadline
            else:
                is_late = time.monotonic() > real_deadline
            if not self.leaked_claims or is_late:
                return
            self._told(RunProgress("waiting for claims to end", 0, self.leaked_claims))
            for _ in range(10):
                if not self.options.in_step:
                    self._happen()
                self._listener.listen(scheduler_traffic.LISTEN_SECONDS)

    def _watch(self) -> None:
        at = time.monotonic()
        waits = self._queue.waits_or_will
        self.measures.demand(at - self.began_at, is_there=waits or self._is_deciding)
        if at - self._told_at > 0.2:
            self._told_at = at
            measures = self.measures
            self._told(
                RunProgress(
                    "deciding",
                    len(measures.decisions),
                    len(self._queue.arrivals),
                    measures.servers_placed,
                    self.ledger.overcommitted_grants,
                    self.reporter.waiting,
                )
            )

    def _decided(self, decision: pipe_messages.Decided) -> None:
        number, now = decision.number, self._clock.now_seconds()
        is_vain = decision.outcome == simulated_scheduler.UNCLAIMABLE
        if is_vain and self._queue.is_patient(number, now):
            self.measures.tried_in_vain(decision)
            self._queue.put_off(number)
            return
        at = time.monotonic()
        self.measures.decided(at - self.began_at, now, decision)
        self.measures.stale_seconds.append(
            measures_module.staleness_seconds(
                self.reporter.published, decision.version, at - decision.seconds
            )
        )
        if self._conductor is not None:
            self._is_news = True
            if decision.outcome != simulated_scheduler.PLACED:
                self._grants.end(number)
            self._conductor.answered(number, decision)
            return
        self._grants.end(number)
        if decision.outcome == simulated_scheduler.PLACED:
            arrival = self._queue.arrivals[number]
            self._grants.place(arrival, decision, arrival.uuids(self.options.seed))

    # -- requests that wait ---------------------------------------------------------------

    def _made_conductor(
        self, arrivals: Sequence[workload.Arrival], waiting: waiting_measures.WaitingMeasures
    ) -> made_conductor.MadeConductor:
        options = self.options
        return made_conductor.MadeConductor(
            self.options,
            arrivals,
            pending_ledger.PendingLedger(
                self._synchronizer.beside(),
                options.queue.lease_seconds,
                lambda: cluster_module.BEGINNING_SECONDS + self._clock.now_seconds(),
            ),
            waiting,
            self._clock,
            self._events,
            self._conductor_thread,
            self,
        )

    def ask(self, number: int) -> None:
        """See :class:`made_conductor.ConductedWorld`."""
        self._is_news = True
        self._queue.append(number)

    def place(self, decision: pipe_messages.Decided, servers: Sequence[str]) -> None:
        """See :class:`made_conductor.ConductedWorld`."""
        self._grants.keep(decision.number, servers)
        self._grants.place(self._queue.arrivals[decision.number], decision, servers)
        self._grants.undo(decision.number)

    def undo(self, number: int) -> None:
        """See :class:`made_conductor.ConductedWorld`."""
        self._grants.undo(number)

    def _asked(self, arrival: workload.Arrival) -> pipe_messages.Decide:
        if self._conductor is None:
            servers, attempt = arrival.uuids(self.options.seed), None
        else:
            servers = self._conductor.servers(arrival.number)
            attempt = self._conductor.attempt(arrival.number)
        return pipe_messages.Decide(
            arrival.number, arrival.flavor, servers, arrival.project_id, attempt
        )

    def _unanswered(self, number: int) -> None:
        conductor = self._conductor
        self._grants.give_up(number, is_lost=conductor is None)
        if conductor is not None:
            self._events.after(
                grants.ABANDONED_SECONDS, functools.partial(conductor.unanswered, number)
            )

    def _dispatch(self, said: pipe_messages.DispatchPending) -> None:
        if self._conductor is not None:
            self._conductor.dispatch(said)

    def _woken(self, said: pipe_messages.Woken | pipe_messages.WakeNotes) -> None:
        if isinstance(said, pipe_messages.WakeNotes):
            if self.waiting is not None and said != pipe_messages.WakeNotes():
                self.waiting.wakes.append(said)
            return
        now = self._clock.now_seconds()
        due = math.inf if said.due_seconds is None else max(said.due_seconds, now)
        if self.waiting is not None and self.waiting.waiting:
            due = min(due, now + _SWEEP_SECONDS)
        if due < self._wake_at:
            self._wake_at = due
            self._events.at(due, self._time_wakes)

    def _time_wakes(self) -> None:
        self._is_news, self._wake_at = True, math.inf

    def _wake_in_step(self) -> None:
        """Step by step, have schedulers look whom helps what happened, before more does."""
        if not self.options.in_step or self._conductor is None or not self._is_news:
            return
        idle = [each for each in self.schedulers if each.is_idle]
        if idle and not self._is_deciding_in_step:
            self._is_news = False
            for each in idle:
                each.wake()

    # -- time ---------------------------------------------------------------------------

    def _happen(self) -> None:
        """Let happen what is due; step by step, the next thing once all is answered."""
        if self.options.in_step:
            due = self._events.next_seconds
            if due is not None and not self._is_held_up:
                self._clock.advance(due)
                with self._lock:
                    self._events.happen_next()
            return
        now = self._clock.now_seconds()
        with self._lock:
            self._events.happen_until(now)

    def _let_pass(self, seconds: float) -> None:
        """Let simulated time pass in which nobody asks for anything, step by step."""
        until = self._clock.now_seconds() + seconds
        while (due := self._events.next_seconds) is not None and due <= until:
            if self._is_deciding_in_step:
                self._listener.listen(scheduler_traffic.LISTEN_SECONDS)
                continue
            self._clock.advance(due)
            with self._lock:
                self._events.happen_next()
            self.reporter.flush(everything=True)

    def _pause_seconds(self) -> float:
        due = self._events.next_seconds
        if self.options.in_step:
            return scheduler_traffic.LISTEN_SECONDS if self._is_held_up or due is None else 0.0
        if due is None:
            return scheduler_traffic.LISTEN_SECONDS
        left = self._clock.real_seconds(due - self._clock.now_seconds())
        return min(max(left, 0.0), scheduler_traffic.LISTEN_SECONDS)

    @property
    def _is_held_up(self) -> bool:
        """Whether time stands still, step by step, until a scheduler has done something."""
        present = any(not each.is_away for each in self.schedulers)
        is_asked = self._queue.waits or (self._conductor is not None and self._is_news)
        return self._is_deciding_in_step or (is_asked and present)

    @property
    def _is_deciding_in_step(self) -> bool:
        return any(
            each.asked is not None or each.is_waking for each in self.schedulers if not each.is_away
        )

    @property
    def _is_deciding(self) -> bool:
        return any(each.asked is not None for each in self.schedulers)


def _waiting_measures(options: run_options.RunOptions) -> waiting_measures.WaitingMeasures:
    speed = options.speed if options.pace is run_clock.Pace.REAL else 1.0
    return waiting_measures.WaitingMeasures(
        {each.name: each.number for each in options.queue.classes},
        options.queue.aging_seconds,
        waiting_measures.SLACK_SECONDS * speed,
    )
