# SPDX-License-Identifier: Apache-2.0
"""Ends claims that have served: settled, expired, or proved to be nobody's.

- A confirmed claim is *settled* once the records of its host's authorities show
  all of it: the provider its allocation, the node (later than the instance or
  the migration that names the host) what it takes of the node. What it counted
  is counted there; a view older than those records is refused from then on. Where
  nobody judges claims it only tells whose the allocation is: the server on its host
  settles it.
- A pending claim past its lease is *expired*.
- A confirmed claim that stays unshown is *reconciled*: its allocations are asked
  of their authority, after the claim was read, and it goes only if nothing
  stands behind it. Time alone never ends it. Who begins to settle asks for those
  it finds at once: what ended while nobody settled hints at nothing any more.
- A group's record that nobody uses is *removed*, see :mod:`group_removal`.

Places in server groups likewise, but that they stay for a while once they are
shown: a request that was made before a member came names it not.

Each decision is made on the record as it was just read, see
:mod:`claim_reaper`; who loses the compare-and-set is looked at next time.

Each scheduler settles its own, and one at a time settles for all; a lease says which.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Event
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import backoff, contract, step_thread
from nova_nodb_scheduler.synchronizer.claims import group_removal
from nova_nodb_scheduler.synchronizer.records import leases, record_editor
from nova_nodb_scheduler.synchronizer.settlement import (
    claim_reaper,
    settlement_rules,
    settlement_schedule,
)

LOG = logging.getLogger(__name__)

_NODES = known_namespaces.COMPUTE_NODES.name
_PROVIDERS = known_namespaces.PROVIDERS.name
_INSTANCES = known_namespaces.INSTANCES.name
_MIGRATIONS = known_namespaces.MIGRATIONS.name


@attrs.frozen
class SettlementOptions:
    """Paces and bounds.

    :param batch_records: records read and written at once
    :param look_seconds: how often all records with claims are looked at, for
        what no change tells: a lease that ended, a claim that waits to be shown
    :param ask_after_seconds: how long a confirmed claim may be unshown before
        its allocations are asked for; doubled each time, up to the next
    :param hasten_seconds: the same after a change that hints at an end
    :param asks: queries to the authority that wait for an answer at once
    :param grace_seconds: how long a place in a group stays once it is shown;
        longer than anybody waits for a scheduler that has not begun (Nova's
        rpc_response_timeout) and than it then takes, waits for others' claims included
    :param cool_down_seconds: how long a record is left alone after it was settled
    :param others_seconds: how long what another process owns is left to it
    :param keep_seconds: how long a group's record stays that nobody uses; the views
        that claim are younger, so that hardly any meets the floor
    :param removal_seconds: how often such records are looked for
    """

    batch_records: int = 128
    look_seconds: float = 5.0
    ask_after_seconds: float = 60.0
    ask_most_seconds: float = 600.0
    hasten_seconds: float = 2.0
    asks: int = 8
    grace_seconds: float = 90.0
    cool_down_seconds: float = 2.0
    others_seconds: float = 10.0
    keep_seconds: float = 3600.0
    removal_seconds: float = 60.0


class Settler:
    """Ends claims that have served, of all schedulers or of one; one thread.

    Several may settle the same record: the compare-and-set decides.

    :param cursor: how far the store has come; None while that is not proved
    :param ask: called in a thread of its own once :attr:`queries` are started,
        else by the turns
    :param now_seconds: the back end's clock, without I/O
    :param clock: monotonic seconds
    :param is_own: see :class:`settlement_schedule.RecordOwnership`
    :param cache: where who claims here finds what was written
    :param is_judged: see :class:`settlement_rules.SettlementEvidence`
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        cursor: Callable[[], records.Cursor | None],
        ask: claim_reaper.Ask,
        now_seconds: Callable[[], float],
        options: SettlementOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_own: Callable[[str], bool] | None = None,
        cache: record_editor.RecordCache | None = None,
        is_judged: settlement_rules.IsJudged = settlement_rules.always_judged,
    ) -> None:
        self._store = store
        self._cursor = cursor
        self._is_judged = is_judged
        self._now_seconds = now_seconds
        self._clock = clock
        self._is_own = is_own
        self._subscription = store.subscribe(
            (*settlement_rules.LEDGERS, _NODES, _PROVIDERS, _INSTANCES, _MIGRATIONS)
        )
        self._unsettled = settlement_schedule.UnsettledIndex(clock)
        #: Records to look at, in the order in which they came.
        self._due: dict[records.RecordKey, None] = {}
        #: Those with a claim to ask for, put off while too many questions were under way.
        self._unasked: dict[records.RecordKey, None] = {}
        self._look_at = float("-inf")
        cache = cache or record_editor.RecordCache()
        self._removal = group_removal.GroupRemoval(synchronizer, cache)
        self.queries = claim_reaper.AllocationQueries(ask)
        self.status = claim_reaper.SettlementStatus()
        self._reaper = claim_reaper.ClaimReaper(
            synchronizer,
            store,
            cursor,
            now_seconds,
            cache,
            self.status,
            self._with_grace,
            is_judged,
        )
        self.pace(options or SettlementOptions())

    def pace(self, options: SettlementOptions) -> None:
        """Settle by these paces and bounds from the next turn on, and look at everything then."""
        #: By which it settles.
        self.options = options
        self._schedule = settlement_schedule.ReconcileSchedule(
            options.ask_after_seconds, options.ask_most_seconds, self._clock
        )
        self._ownership = settlement_schedule.RecordOwnership(
            self._is_own, options.cool_down_seconds, options.others_seconds, self._clock
        )
        self._grace = settlement_schedule.GracePeriods(options.grace_seconds, self._clock)
        self._unused = group_removal.UnusedGroups(options.keep_seconds, self._clock)
        self._remove_at = float("-inf")
        #: Whether it has looked at everything; what comes later it hears of.
        self.begun = False

    def look_anew(self) -> None:
        """Look at everything in the next turn; called by the thread that takes turns."""
        self.begun = False

    def start(self) -> None:
        """Have queries asked by a thread of their own; once, in the worker process."""
        self.queries.start()

    def stop(self) -> None:
        """End that thread; idempotent."""
        self.queries.stop()

    @property
    def ready(self) -> bool:
        """Whether the store is proved, and with it the back end reached."""
        return self._cursor() is not None

    def turn(self, *, for_all: bool = True) -> bool:
        """Look at what changed and what is due; True if more is waiting.

        Blocks for a read and a write.

        :param for_all: also what is not this process's own
        :raises BackendUnavailable: what was not written is looked at again
        """
        # First the cursor: the snapshot holds all up to it, and perhaps more.
        cursor = self._cursor()
        if cursor is None:
            return False
        if for_all and not self._ownership.for_all:
            # What was left alone until now is to be looked at.
            self.begun = False
        answers = self.queries.take()
        touched = self._subscription.drain()
        snapshot = self._store.snapshot()
        self._note(touched if self.begun else None, snapshot)
        self._unsettled.came_to(snapshot)
        if self.begun:
            self._note_answers(answers)
        self.begun = True
        self._due.update(dict.fromkeys(self._ownership.begin(for_all=for_all)))
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + self.options.look_seconds
            self._look()
        evidence = settlement_rules.SettlementEvidence(
            snapshot, is_judged=self._is_judged(snapshot)
        )
        wanted = self._wanted(snapshot, evidence)
        try:
            if wanted:
                self._end(wanted, evidence, cursor)
        except BaseException:
            self._due.update(dict.fromkeys(wanted))
            raise
        if for_all and now >= self._remove_at:
            self._remove_at = now + self.options.removal_seconds
            unused = self._unused.look(snapshot, self.options.batch_records)
            if unused:
                self.status.removed += self._removal.remove(unused)
        return bool(self._due) or self.queries.answered

    def _look(self) -> None:
        """Find what no change tells: leases that ended, claims to be asked for."""
        now_seconds = self._now_seconds()
        for key, waiting in self._unsettled.items():
            if (
                waiting.ends_seconds <= now_seconds
                or self._schedule.is_due(key)
                or self._grace.is_due(key)
                or self._ownership.takes_over(key, waiting.since)
            ):
                self._due[key] = None

    def _note(
        self,
        touched: Mapping[str, Collection[str]] | None,
        snapshot: snapshot_module.Snapshot,
    ) -> None:
        if touched is None:
            self._unsettled.clear()
            self._due.clear()
            self._unasked.clear()
            self._schedule.clear()
            self._reaper.clear()
            self.queries.clear()
            self._grace.clear()
            self._ownership.clear()
            self._unused.clear()
            self._look_at = float("-inf")
            for name in settlement_rules.LEDGERS:
                self._note_claims(name, snapshot.namespace(name).keys(), snapshot)
            for key, found in self._unsettled.items():
                # What hinted at their end came while nobody settled them, perhaps.
                self._schedule.hasten(key, found.entries, 0.0, found.entries)
            return
        for name in settlement_rules.LEDGERS:
            self._note_claims(name, touched.get(name, ()), snapshot)
        for name in (_NODES, _PROVIDERS):
            for uuid in touched.get(name, ()):
                key = records.RecordKey(known_namespaces.CLAIM_RECORDS.name, uuid)
                waiting = self._unsettled.get(key)
                if waiting is None:
                    continue
                self._due[key] = None
                if name == _PROVIDERS:
                    allocated = settlement_rules.fully_allocated(snapshot, uuid)
                    self._schedule.note_allocated(key, allocated, self.options.hasten_seconds)
        self._due.update(dict.fromkeys(self._unsettled.of_servers(touched, snapshot)))
        moving = self._unsettled.servers_of_moves(touched, snapshot)
        for key, ending in self._unsettled.ending(touched, snapshot).items():
            consumer = settlement_rules.LEDGERS[key.namespace].consumer
            moved = [entry for entry in ending if consumer(entry) in moving]
            self._schedule.hasten(key, ending, self.options.hasten_seconds, moved)

    def _note_claims(
        self, name: str, keys: Iterable[str], snapshot: snapshot_module.Snapshot
    ) -> None:
        for each in keys:
            key = records.RecordKey(name, each)
            waiting = self._unsettled.note(key, snapshot)
            if waiting is not None:
                self._due[key] = None
                self._schedule.keep(key, waiting.entries)
            else:
                self._schedule.forget(key)
                self._grace.forget(key)

    def _note_answers(self, answers: Collection[claim_reaper.AllocationAnswer]) -> None:
        for answer in answers:
            if answer.allocations is None:
                self.status.unanswered += 1
                continue
            self._reaper.note(answer)
            self._due[answer.query.key] = None
        # Each makes place for a question that waits.
        for key in list(itertools.islice(self._unasked, len(answers))):
            del self._unasked[key]
            self._due[key] = None

    def _wanted(
        self, snapshot: snapshot_module.Snapshot, evidence: settlement_rules.SettlementEvidence
    ) -> dict[records.RecordKey, frozenset[Any]]:
        """Return the records to change, with the entries to ask for, taken off what is due."""
        wanted: dict[records.RecordKey, frozenset[Any]] = {}
        asks = self.options.asks - self.queries.count
        for key in list(self._due):
            if len(wanted) >= self.options.batch_records:
                break
            del self._due[key]
            stored = snapshot.namespace(key.namespace).get(key.key)
            waiting = self._unsettled.get(key)
            if stored is None or waiting is None:
                self._reaper.forget(key)
                continue
            if not self._ownership.allows(key, waiting.since):
                continue
            verdict = self._reaper.judge(key, stored.state, stored.version, evidence)
            under_way = self.queries.under_way(key, verdict.unshown)
            to_ask = self._schedule.to_ask(key, verdict.unshown, under_way, asks)
            asks -= len(to_ask)
            if self._schedule.is_due(key):
                self._unasked[key] = None
            if verdict.ended or to_ask or self._reaper.has_answers(key):
                wanted[key] = to_ask
        return wanted

    def _with_grace(
        self, key: records.RecordKey, verdict: settlement_rules.SettlementVerdict
    ) -> settlement_rules.SettlementVerdict:
        return self._grace.judged(key, verdict)

    def _end(
        self,
        wanted: Mapping[records.RecordKey, frozenset[Any]],
        evidence: settlement_rules.SettlementEvidence,
        cursor: records.Cursor,
    ) -> None:
        ended = self._reaper.end(wanted, evidence, cursor)
        if ended is None:
            self.begun = False
            return
        for key in ended.written:
            self._ownership.wrote(key)
        self._due.update(dict.fromkeys(ended.lost))
        # Last: where no thread asks, nothing that is to be written waits for them.
        self.status.asked += len(ended.queries)
        self.queries.put(ended.queries)


LEASE = "claims"

#: How long a process that died keeps the others waiting.
LEASE_SECONDS = 15.0

_TURN_SECONDS = 0.25


class SettlementWorker:
    """The thread of one scheduler that ends claims; one at a time ends those of all.

    :param holder: unique per process start
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        settler: Settler,
        holder: str,
        *,
        turn_seconds: float = _TURN_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lease = leases.LeaseKeeper(synchronizer, LEASE, holder, lease_seconds)
        self._lease_seconds = lease_seconds
        self._settler = settler
        self._turn_seconds = turn_seconds
        self._clock = clock
        self._renew_at = float("-inf")
        self._backoff = backoff.Backoff(0.5, 30.0, clock)
        self._thread = step_thread.StepThread(
            "nodb-settlement", self._step, self._failed, lambda running: None
        )
        #: Whether this process settles for all.
        self.settles = False
        #: Turns that failed, and why the last one did.
        self.failures = 0
        self.last_error = ""

    @property
    def status(self) -> claim_reaper.SettlementStatus:
        """Counts since the start; any thread."""
        return self._settler.status

    def start(self) -> None:
        """Start the threads; once, in the worker process."""
        self._settler.start()
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End the threads and let the lease go; idempotent."""
        self._settler.stop()
        if self._thread.alive is None:
            return
        if self._thread.stop(timeout_seconds):
            self.leave()

    def leave(self) -> None:
        """Let the lease go."""
        self.settles = False
        try:
            self._lease.release()
        except errors.NodbError:
            LOG.debug("The lease for settling claims could not be released; it ends by itself.")

    def turn(self) -> bool:
        """Do what is due and this process's to do; True if more of it is waiting.

        :raises BackendUnavailable: it is tried again
        """
        if self._backoff.remaining_seconds() or not self._settler.ready:
            return False
        now = self._clock()
        if now >= self._renew_at:
            # Those that wait ask no more often than the holder renews.
            held = isinstance(self._lease.acquire(), leases.Lease)
            self._renew_at = now + self._lease_seconds / 3
            if held != self.settles:
                LOG.info(
                    "This process %(what)s claims for all.",
                    {"what": "settles" if held else "no longer settles"},
                )
            self.settles = held
        more = self._settler.turn(for_all=self.settles)
        self._backoff.succeeded()
        self.last_error = ""
        return more

    def _step(self, stop: Event) -> None:
        more = False
        try:
            more = self.turn()
        except errors.NodbError as error:
            if not self.last_error:
                LOG.warning(
                    "Claims are not settled now, it is tried again: %(error)s", {"error": error}
                )
            self._failed(error)
        if not more:
            stop.wait(self._turn_seconds)

    def _failed(self, error: Exception) -> None:
        self._backoff.failed()
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
