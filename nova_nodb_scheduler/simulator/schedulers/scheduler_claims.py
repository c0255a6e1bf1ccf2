# SPDX-License-Identifier: Apache-2.0
"""A scheduler's claims in a run: the plugin's claimer, timed, and its settlement worker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.scheduling.reservations import claim_fit
from nova_nodb_scheduler.simulator.schedulers import backend_line
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import claim_rules, claim_views, ledger_claimer
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.replication import replicator
from nova_nodb_scheduler.synchronizer.settlement import settlement_worker

#: Seconds of the take, of the confirm.
Times = tuple[float, float]


class TimedClaimer:
    """A claimer that notes how long it took. One thread.

    Servers that are claimed together count once, with the longest of their takes.
    """

    def __init__(
        self, inner: chosen_hosts.Claimer, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._takes: dict[str, float] = {}
        self._times: list[Times] = []

    def reap(self) -> tuple[Times, ...]:
        """Return the times of claims confirmed since the last call; forget the others."""
        times, self._times = tuple(self._times), []
        self._takes.clear()
        return times

    def take(
        self, request: requests.Request, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float
    ) -> list[chosen_hosts.TakenClaim | chosen_hosts.RefusedClaim]:
        """See :class:`claimer.Claimer`."""
        began = self._clock()
        answers = self._inner.take(request, wanted, deadline)
        seconds = self._clock() - began
        for answer in answers:
            if isinstance(answer, chosen_hosts.TakenClaim):
                self._takes[answer.wanted.consumer] = seconds
        return answers

    def confirm(self, taken: Sequence[chosen_hosts.TakenClaim]) -> list[bool]:
        """See :class:`claimer.Claimer`."""
        began = self._clock()
        stands = self._inner.confirm(taken)
        seconds = self._clock() - began
        takes = [
            self._takes.get(each.wanted.consumer, 0.0)
            for each, stood in zip(taken, stands, strict=True)
            if stood
        ]
        if takes:
            self._times.append((max(takes), seconds))
        return stands

    def release(self, taken: Sequence[chosen_hosts.TakenClaim]) -> None:
        """See :class:`claimer.Claimer`."""
        self._inner.release(taken)

    def release_places(self, taken: Sequence[chosen_hosts.TakenClaim]) -> None:
        """See :class:`claimer.Claimer`."""
        self._inner.release_places(taken)


#: (consumer) -> its allocations by host uuid, of the authority; None if it cannot be asked.
Ask = Callable[[str], "Mapping[str, Mapping[str, int]] | None"]

#: Servers of a run live for seconds, not for days: what they leave is asked for sooner.
#: All of it at once: which claims came first is a matter of their random ids.
_SETTLING = settlement_worker.SettlementOptions(
    look_seconds=1.0,
    ask_after_seconds=3.0,
    ask_most_seconds=10.0,
    asks=10_000,
    batch_records=10_000,
)


class ConflictMeter(ledger_claimer.ClaimMeter):
    """Counts claims that what others wrote left no way for. One thread."""

    def __init__(self) -> None:
        self._count = 0

    def claim_refused(self, reason: str) -> None:
        """See :class:`.claimer.Meter`."""
        self._count += ledger_claimer.is_conflict(reason)

    def reap(self) -> int:
        """Return how many there were since the last call."""
        count, self._count = self._count, 0
        return count


class SimulatedBackendClock:
    """The back end's clock without I/O, from an offset taken with each beat."""

    def __init__(self, synchronizer: contract.Synchronizer) -> None:
        self._synchronizer = synchronizer
        self._offset_seconds: float | None = None

    def adjust(self) -> None:
        """Take the offset anew; the old one stays where the back end is away."""
        try:
            self._offset_seconds = self._synchronizer.now_seconds() - time.monotonic()
        except errors.BackendUnavailable:
            return

    def now_seconds(self) -> float:
        """Return the back end's time as last known.

        :raises BackendUnavailable: it was never known
        """
        if self._offset_seconds is None:
            self._offset_seconds = self._synchronizer.now_seconds() - time.monotonic()
        return time.monotonic() + self._offset_seconds


class SchedulerClaims:
    """The claimer and the settling of one scheduler.

    :param lease_seconds: how long a pending claim is held
    :param ask: called in a thread of its own, or by a turn; may block
    :param now_seconds: simulated time, by which claims are settled where runs
        are to be reproducible; None for the real clock
    :param is_own: whether this scheduler prefers a host, by its uuid
    """

    def __init__(
        self,
        synchronizer: backend_line.LinedSynchronizer,
        store: host_state_store.HostStateStore,
        follower: replicator.Replicator,
        engine: engine_module.Engine,
        clock: SimulatedBackendClock,
        *,
        identity: str,
        lease_seconds: float,
        ask: Ask,
        now_seconds: Callable[[], float] | None = None,
        is_own: Callable[[str], bool] | None = None,
    ) -> None:
        cache = record_editor.RecordCache()
        self._bounds = claim_fit.InstanceLimits.of(engine.settings)
        views = claim_views.StoreViews(store, follower, self._fits)
        batches = ledger_claimer.ClaimBatches(
            synchronizer,
            identity,
            lambda: str(uuid.uuid4()),
            lease_seconds,
            views.claimable,
            now_seconds=clock.now_seconds,
            cache=cache,
            shown=views.shown,
        )
        self._meter = ConflictMeter()
        self.claimer = TimedClaimer(ledger_claimer.LedgerClaimer(batches, views, meter=self._meter))
        # What it loses no request waits for.
        self._settling = synchronizer.beside()
        settled_by = now_seconds or time.monotonic
        self._settler = settlement_worker.Settler(
            self._settling,
            store,
            follower.followed,
            ask,
            clock.now_seconds,
            _SETTLING,
            settled_by,
            is_own=is_own,
            cache=cache,
        )
        self._duty = settlement_worker.SettlementWorker(
            self._settling, self._settler, identity, clock=settled_by
        )

    def _fits(
        self, snapshot: snapshot_module.Snapshot, _request: requests.Request
    ) -> claim_rules.Fits:
        return claim_fit.make_fits(snapshot, self._bounds)

    def reap_conflicts(self) -> int:
        """Return how many claims others' writes left no way for since the last call."""
        return self._meter.reap()

    def reap_times(self) -> tuple[Times, ...]:
        """Return the times of claims confirmed since the last call."""
        return self.claimer.reap()

    @property
    def settling_writes_lost(self) -> int:
        """Compare-and-sets that the settling lost so far."""
        return sum(self._settling.writes_lost.values())

    def start(self) -> None:
        """Start settling in a thread; the feed is followed already."""
        self._duty.start()

    def turn(self) -> None:
        """Settle what is to be settled now, for those who have no thread for it."""
        try:
            while self._duty.turn():
                pass
        except errors.BackendUnavailable:
            return

    def stop(self) -> None:
        """End the thread and let the lease go."""
        self._duty.stop()
