# SPDX-License-Identifier: Apache-2.0
"""One scheduler as the plugin assembles it, less Nova: from the feed to the claims.

Driver, replicator, store, frame keeper, engine with Nova's default filters and
all weighers, placing and claimer are the plugin's own. What a run adds is the
strategy, and made hosts as the authority.
"""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from stevedore import extension

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.facts import (
    fact_source,
    frame_keeper,
    journal_follower,
    journal_reader,
)
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.namespaces import (
    heartbeat_journals,
    known_namespaces,
    node_facts,
)
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, placing, planning, plugin_contract
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.scheduling.reservations import host_reservations
from nova_nodb_scheduler.simulator.scenario import made_hosts, run_options, workload
from nova_nodb_scheduler.simulator.schedulers import (
    backend_line,
    feed_lag,
    pending_waker,
    pipe_messages,
    scheduler_claims,
)
from nova_nodb_scheduler.store import declarations, host_state_store
from nova_nodb_scheduler.synchronizer.replication import heartbeats, replicator, replicator_contract
from nova_nodb_scheduler.synchronizer.waking import queue_grants, queue_owners
from nova_nodb_scheduler.wire import codec, payload_packing

#: More hosts than any run has: one of all that pass is drawn.
_ALL = 10**9


def pipeline_settings(
    strategy: run_options.Strategy, *, service_down_seconds: float
) -> decision_settings.SchedulingOptions:
    """Return Nova's settings for a strategy: the defaults but for a few."""
    return decision_settings.SchedulingOptions(
        service_down_time=service_down_seconds,
        host_subset_size=_ALL if strategy.random else 1,
        choice=strategy.choice,
    )


def make_engine(
    nova_settings: decision_settings.SchedulingOptions,
    rng: random.Random,
    present: fact_source.Present | None = None,
) -> engine_module.Engine:
    """Return an engine without hosts.

    :param present: what tells it of what has no column; None where nothing asks
    """
    filters = _classes(plugin_contract.FILTERS)
    weighers = _classes(plugin_contract.WEIGHERS)
    frame = (
        host_frame.HostFrame()
        if present is None
        else host_frame.HostFrame(locate=present.locate, attribute=present.attribute)
    )
    return engine_module.Engine(
        nova_settings,
        [filters[name](nova_settings) for name in nova_settings.enabled_filters],
        [weighers[name](nova_settings) for name in sorted(weighers)],
        frame=frame,
        rng=rng,
    )


def _classes(group: str) -> Mapping[str, type]:
    return {each.name: each.plugin for each in extension.ExtensionManager(group)}


PLACED, NO_HOST, GIVEN_UP, UNCLAIMABLE = "placed", "no valid host", "given up", "unclaimable"
#: Of a request that came: others wait and go before it; or no more may wait.
BEHIND, FULL = "behind others", "queue full"

#: How long a heartbeat of a journal may look unreported: as the plugin's default.
_GRACE_SECONDS = 3.0

#: Schedulers beat every two seconds; one that does not for so long is taken for dead.
_SILENT_SECONDS = 8.0

#: A reporter's beat is late from here on; of heartbeats nothing is then concluded.
_LATE_BEATS = 3


class _PatientEngine:
    """An engine that concludes nothing from a silence in which nobody reported."""

    def __init__(self, inner: engine_module.Engine) -> None:
        self._down_seconds = inner.settings.service_down_time
        self.lock = inner.lock
        self.frame = inner.frame
        #: How long nobody reported, seconds.
        self.silence_seconds = 0.0

    def tick(self, now_seconds: float) -> None:
        with self.lock:
            down_seconds = self._down_seconds + self.silence_seconds
            self.frame.tick(now_seconds, down_seconds)


class SimulatedScheduler:
    """One scheduler. One thread, beside the replicator's.

    :param identity: unique among the schedulers of a run, restarts included
    :param now_seconds: simulated time
    :param ask: tells a server's allocations, to whoever settles claims
    :param conductors: told of requests that wait and are to be placed
    """

    def __init__(
        self,
        identity: str,
        synchronizer: backend_line.LinedSynchronizer,
        options: run_options.RunOptions,
        now_seconds: Callable[[], float],
        ask: scheduler_claims.Ask,
        conductors: queue_grants.Conductors,
    ) -> None:
        self._identity = identity
        self._synchronizer = synchronizer
        self._options = options
        self._strategy = options.strategy
        self._now_seconds = now_seconds
        self._clock = scheduler_claims.SimulatedBackendClock(synchronizer)
        declared = declarations.load_namespaces(known_namespaces.BUILT_IN)
        self.store = host_state_store.HostStateStore(
            declarations.followed(declared),
            codec.decode_state,
            packing=payload_packing.DictionaryPacking,
        )
        self.replicator = replicator.Replicator(
            synchronizer,
            self.store,
            declared,
            identity=identity,
            options=replicator_contract.ReplicatorOptions(
                reconnect_min_seconds=0.1, reconnect_max_seconds=1.0, wait_seconds=0.5
            ),
            heartbeat=self._beat,
        )
        self._feed_log = feed_lag.FeedLog(self.replicator)
        if not options.in_step:
            self.replicator.subscribe(self._feed_log.listen)
        present = fact_source.Present()
        self.engine = make_engine(
            pipeline_settings(
                options.strategy,
                service_down_seconds=options.service_down_seconds,
            ),
            random.Random(f"{options.seed} {identity}"),
            present,
        )
        self._patient = _PatientEngine(self.engine)
        self.reservations = host_reservations.Reservations(
            time.monotonic,
            pending_seconds=10 * options.deadline_seconds,
            confirmed_seconds=120.0,
        )
        self.keeper = frame_keeper.FrameKeeper(
            self.store,
            self._patient,
            present,
            ratios=node_facts.DefaultRatios(),
            reservations=self.reservations,
            journals=journal_reader.JournalReader(
                lambda: journal_follower.JournalFollower(
                    _GRACE_SECONDS,
                    heartbeat_journals.HORIZON_TIMES * options.service_down_seconds,
                    lambda: made_hosts.BEGINNING_SECONDS + now_seconds(),
                ),
                lambda: self.replicator.epoch,
                now_seconds,
            ),
        )
        self._looked_at: float | None = None
        self._version = 0
        self._chosen_at = 0.0
        self._claims: scheduler_claims.SchedulerClaims | None = None
        self._told_settling = 0
        claims: chosen_hosts.Claimer = chosen_hosts.NoClaims()
        spread = self._spread()
        if options.strategy.claims:
            self._claims = scheduler_claims.SchedulerClaims(
                synchronizer,
                self.store,
                self.replicator,
                self.engine,
                self._clock,
                identity=identity,
                lease_seconds=options.claim_lease_seconds,
                ask=ask,
                now_seconds=now_seconds if options.in_step else None,
                is_own=None if spread is None else spread.is_own,
            )
            claims = self._claims.claimer
        self._parts = placing.PlacingParts(
            placing.HostReservations(self.engine, self.reservations), claims, spread=spread
        )
        self.waker: pending_waker.PendingWaker | None = None
        if options.strategy.waits:
            self.waker = self._waker(conductors)

    def _waker(self, conductors: queue_grants.Conductors) -> pending_waker.PendingWaker:
        made = pending_waker.PendingWaker(
            self._identity,
            self._options.queue,
            self._synchronizer.beside(),
            self.store,
            self.replicator,
            self.engine,
            clock=lambda: made_hosts.BEGINNING_SECONDS + self._now_seconds(),
            catch_up=lambda: self.look(self._now_seconds()),
            conductors=conductors,
            silent_seconds=_SILENT_SECONDS,
        )
        self.replicator.subscribe(lambda _changes: made.news())
        return made

    def _beat(self) -> Mapping[str, Any]:
        self._clock.adjust()
        return {
            "host": self._identity,
            "beat_at": self._clock.now_seconds(),
            queue_owners.FACT: self._strategy.waits,
        }

    def _spread(self) -> placing.Spreading | None:
        if self._options.claim_spread == "off":
            return None
        alive = heartbeats.SchedulerLiveness(self.store, self._identity, _SILENT_SECONDS)
        return placing.Spreading(
            self._identity, alive, tolerant=self._options.claim_spread == "tolerant"
        )

    # -- life -----------------------------------------------------------------------

    def start(self, timeout_seconds: float) -> int:
        """Read everything; return the number of hosts known.

        :raises TimeoutError: the back end did not give it in time
        """
        self._synchronizer.open()
        deadline = time.monotonic() + timeout_seconds
        if not self._options.in_step:
            self.replicator.start()
        while self.replicator.status().cursor_version is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"scheduler {self._identity} got no snapshot in time")
            if self._options.in_step:
                self.replicator.step()
            else:
                time.sleep(0.01)
        if self._claims is not None and not self._options.in_step:
            self._claims.start()
        self.look(self._now_seconds())
        if self.waker is not None and not self._options.in_step:
            self.waker.start()
        return len(self.engine.frame)

    def stop(self) -> None:
        """End the threads, say goodbye and close the driver."""
        if self.waker is not None:
            self.waker.stop()
        if self._claims is not None:
            self._claims.stop()
        self.replicator.stop()
        self._synchronizer.close()

    # -- the view -------------------------------------------------------------------

    def look(self, now_seconds: float) -> None:
        """Bring the hosts to the present, or leave them as the strategy's cache has them."""
        status = self.replicator.status()
        version = status.cursor_version or 0
        looked_at = self._looked_at
        if (
            self._strategy.periodic
            and looked_at is not None
            and now_seconds - looked_at < self._options.cache_seconds
        ):
            return
        with self.engine.lock:
            self._look(now_seconds, version)

    def _look(self, now_seconds: float, version: int) -> None:
        beat_at = self._reporter_beat()
        late_after = _LATE_BEATS * self._options.beat_seconds
        silence = 0.0 if beat_at is None else now_seconds - beat_at
        self._patient.silence_seconds = silence if silence > late_after else 0.0
        self.keeper.catch_up(made_hosts.BEGINNING_SECONDS + now_seconds)
        self._looked_at, self._version = now_seconds, version

    def follow(self, timeout_seconds: float = 5.0) -> bool:
        """Apply all that the back end holds now; False if that was not to be had in time."""
        try:
            head = self._synchronizer.head()
        except errors.BackendUnavailable:
            return False
        if not self._options.in_step:
            return self.replicator.wait_until(head.version, timeout_seconds)
        deadline = time.monotonic() + timeout_seconds
        while (self.replicator.status().cursor_version or -1) < head.version:
            outcome = self.replicator.step()
            if (
                time.monotonic() > deadline
                or outcome is replicator_contract.StepOutcome.DISCONNECTED
            ):
                return False
        return True

    def _reporter_beat(self) -> float | None:
        """Return up to when hosts are known to be reported, in simulated seconds."""
        view = self.store.snapshot().namespace(known_namespaces.REPORTERS.name)
        known = [float(beat["beat_at"]) for _name, beat in view.states()]
        return max(known) - made_hosts.BEGINNING_SECONDS if known else None

    # -- deciding -------------------------------------------------------------------

    def decide(
        self, asked: pipe_messages.Decide, authority: placing.AllocationAuthority
    ) -> pipe_messages.Decided:
        """Place a request's servers, or say why not."""
        began = time.perf_counter()
        deadline = time.monotonic() + self._options.deadline_seconds
        before = self._synchronizer.writes_lost.copy()
        trace = _Trace()
        if self._options.in_step:
            self.go_in_step()
        outcome, hosts = self._admit_and_place(asked, authority, trace, deadline)
        return pipe_messages.Decided(
            number=asked.number,
            outcome=outcome,
            hosts=hosts,
            seconds=time.perf_counter() - began,
            chosen_at_seconds=self._chosen_at,
            version=self._version,
            reasons=dict(trace.reasons),
            conflicts=0 if self._claims is None else self._claims.reap_conflicts(),
            writes_lost=dict(self._synchronizer.writes_lost - before),
            unproved=self._patient.silence_seconds > 0,
            settling_writes_lost=self._settling_writes_lost(),
            claims=() if self._claims is None else self._claims.reap_times(),
            applied=self.applied(),
            wakes=self.wakes(),
        )

    def wakes(self) -> pipe_messages.WakeNotes:
        """Return what waking took, as noted since the last call."""
        waker = self.waker
        return pipe_messages.WakeNotes() if waker is None else waker.times.take()

    def wake(self) -> pipe_messages.Woken:
        """Know everything, and look whom that helps: for runs step by step."""
        self.follow()
        due_at = None if self.waker is None else self.waker.round()
        return pipe_messages.Woken(
            None if due_at is None else due_at - made_hosts.BEGINNING_SECONDS
        )

    def applied(self) -> tuple[feed_lag.Note, ...]:
        """Return when the store came how far, as noted since the last call."""
        return self._feed_log.take()

    def _settling_writes_lost(self) -> int:
        if self._claims is None:
            return 0
        told, self._told_settling = self._told_settling, self._claims.settling_writes_lost
        return self._told_settling - told

    def go_in_step(self) -> None:
        """Know everything, and settle what can be: neither changes what there is room for."""
        self.follow()
        if self._claims is not None:
            self._claims.turn()
            self.follow()

    def _admit_and_place(
        self,
        asked: pipe_messages.Decide,
        authority: placing.AllocationAuthority,
        trace: _Trace,
        deadline: float,
    ) -> tuple[str, tuple[str, ...]]:
        full = ""
        if self.waker is not None and asked.attempt is not None:
            admission = self.waker.ask(*asked.attempt)
            if admission.refusal:
                return (FULL if admission.full else BEHIND), ()
            full = admission.full
        outcome, hosts = self._place(asked, authority, trace, deadline)
        if outcome == NO_HOST and not self._strategy.periodic and self.follow():
            # As the plugin, which asks whether hosts are full before it says so.
            outcome, hosts = self._place(asked, authority, trace, deadline)
        return (FULL if full and outcome == NO_HOST else outcome), hosts

    def _place(
        self,
        asked: pipe_messages.Decide,
        authority: placing.AllocationAuthority,
        trace: _Trace,
        deadline: float,
    ) -> tuple[str, tuple[str, ...]]:
        request = workload.request(asked.flavor, asked.servers[0], asked.project_id)
        planner = _Planner(self, request, len(asked.servers))
        made = placing.Placing(
            self._parts,
            request,
            asked.servers,
            planner,
            authority,
            trace,
            lambda _server: (),
            deadline,
        )
        chosen: list[chosen_hosts.Choice] | None = None
        try:
            chosen = made.place()
        except placing.ClaimsUnavailable:
            return UNCLAIMABLE, ()
        finally:
            if chosen is None:
                made.undo()
        if chosen is not None:
            return PLACED, tuple(each.uuid for each in chosen)
        return (GIVEN_UP if made.given_up else NO_HOST), ()

    def plan(self, request: requests.Request, servers: int) -> planning.Plan:
        """Look, and plan a request."""
        self._chosen_at = self._now_seconds()
        self.look(self._chosen_at)
        return self.engine.plan(request, servers=servers)


class _Planner:
    """Makes one request's plans."""

    def __init__(
        self, scheduler: SimulatedScheduler, request: requests.Request, servers: int
    ) -> None:
        self._scheduler = scheduler
        self._request = request
        self._servers = servers

    def plan(self, group_hosts: frozenset[str]) -> planning.Plan:
        request = placing.with_group_hosts(self._request, group_hosts)
        return self._scheduler.plan(request, self._servers)

    def about(self, consumer: str) -> None:
        """No filter of a run looks at the server itself."""

    def check(self) -> None:
        """The schedulers of a run decide by what they know, proved or not."""


class _Trace:
    """Counts why hosts were passed over."""

    def __init__(self) -> None:
        self.reasons: collections.Counter[str] = collections.Counter()

    def refuse(self, server: str, chosen: chosen_hosts.Choice, reason: str) -> None:
        # What stands behind a colon differs from case to case.
        self.reasons[reason.partition(":")[0]] += 1
