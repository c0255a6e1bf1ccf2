# SPDX-License-Identifier: Apache-2.0
"""Keep a store equal to a back end: snapshot, then follow the feed, in a thread of its own.

The cursor is taken before the snapshot is read, so that following from it
misses nothing; what the feed brings twice is not newer, and ignored. Whenever
continuity is in doubt (the feed says so, the canary does not come back, a
sweep finds another past) everything is read again. Until then the store
serves what it has, and :meth:`Replicator.alive` says that it proves nothing.

The first snapshot may be a checkpoint of this machine's (:mod:`..checkpoint`), which is
followed from its own cursor. Whatever speaks against it, the back end is read.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces as scheduling_namespaces
from nova_nodb_scheduler.store import declarations, host_state_store, store_snapshot
from nova_nodb_scheduler.synchronizer import backoff, contract, step_thread
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract, local_checkpoint
from nova_nodb_scheduler.synchronizer.replication import (
    anti_entropy,
    canary,
    feed_housekeeping,
    ingest,
    rebuild,
    replicator_contract,
)
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

State = replicator_contract.State
StepOutcome = replicator_contract.StepOutcome


#: Records looked at while nothing else is to be done: some 5 ms.
_PACKED_AT_A_TIME = 256

_NOT_FOLLOWED = "the feed is not followed"

Listener = Callable[[Sequence[records.Change]], None]


class Replicator:
    """One feed into one store.

    Either the thread is started, or somebody calls ``step``: never both. Everything
    else may be called from any thread and blocks for no I/O. A silent feed is
    answered by closing and opening the driver: give the replicator a driver instance
    of its own where others must not be disturbed.

    :param declared: the namespaces of the store, and those that are not followed;
        ``schedulers`` among them, for the canary lives there
    :param identity: key of the canary: unique among the running processes,
        for a crash leaves the record until others find it silent
    :param clock: monotonic seconds
    :param heartbeat: what the canary's record tells others beside the
        replicator's own figures; called in the stepping thread
    :param checkpoint: what the first snapshot may be; None for none
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        store: host_state_store.HostStateStore,
        declared: Sequence[namespaces.Namespace],
        *,
        identity: str,
        options: replicator_contract.ReplicatorOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        decode: Callable[[bytes], codec.Decoded] = codec.decode,
        heartbeat: Callable[[], Mapping[str, Any]] = dict,
        meter: replicator_contract.ReplicationMeter = replicator_contract.ReplicationMeter(),  # noqa: B008 - it has no state
        checkpoint: local_checkpoint.LocalCheckpoint | None = None,
    ) -> None:
        schedulers = scheduling_namespaces.SCHEDULERS
        if schedulers.name not in {namespace.name for namespace in declared}:
            raise ValueError(f"namespace {schedulers.name!r} must be declared")
        self._synchronizer = synchronizer
        self._store = store
        self._identity = identity
        self._options = options or replicator_contract.ReplicatorOptions()
        self._clock = clock
        self._extra_heartbeat = heartbeat
        self._meter = meter
        self._checkpoint = checkpoint
        #: Whether the next snapshot may be the checkpoint.
        self._may_restore = checkpoint is not None
        self.quarantine = ingest.Quarantine(self._options.quarantine_limit)
        self._ingester = ingest.Ingester(store, declared, self.quarantine, decode)
        followed = declarations.followed(declared)
        self._rebuild = rebuild.Rebuild(
            synchronizer, store, followed, self._ingester, self.quarantine
        )
        self._canary = canary.Canary(
            synchronizer,
            schedulers,
            identity,
            interval_seconds=self._options.canary_interval_seconds,
            bound_seconds=self._options.silence_seconds,
            clock=clock,
            heartbeat=self._heartbeat,
        )
        self._anti_entropy = anti_entropy.AntiEntropy(
            synchronizer,
            store,
            followed,
            self._ingester,
            self.quarantine,
            interval_seconds=self._options.anti_entropy_interval_seconds,
            page_seconds=self._options.anti_entropy_page_seconds,
            clock=clock,
            on_repaired=self._applied_changes,
        )
        self._housekeeping = feed_housekeeping.FeedHousekeeping(
            synchronizer,
            store,
            schedulers,
            interval_seconds=self._options.collect_interval_seconds,
            keep_seconds=self._options.collect_keep_seconds,
            silent_seconds=self._options.silent_heartbeat_seconds,
            clock=clock,
        )
        self._backoff = backoff.Backoff(
            self._options.reconnect_min_seconds, self._options.reconnect_max_seconds, clock
        )
        self._listeners: list[tuple[Listener | None, Callable[[], None]]] = []
        self._started_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")

        self._state = State.STARTING
        self._opened = False
        self._cursor: records.Cursor | None = None
        self._cursor_moved = threading.Condition()
        self._fetched_at: float | None = None
        self._resyncs: Counter[str] = Counter()
        self._applied = 0
        self._detail = ""
        self._failures = 0
        # Its own, since after an unexpected error the back end answers well.
        self._failure_pause = backoff.Backoff(
            self._options.reconnect_min_seconds, self._options.reconnect_max_seconds, clock
        )
        self._thread = step_thread.StepThread(
            f"nodb-replicator-{identity}", self._turn, self._fail, self._meter.replicator_running
        )

    def subscribe(
        self, listener: Listener | None, on_reset: Callable[[], None] = lambda: None
    ) -> None:
        """Have a callable told of changes, in the replicator's thread.

        It is given every readable record of a snapshot, changed or not, and
        of the feed what was applied, tombstones included; the cursor moves
        (and :meth:`wait_until` returns) after it. If it raises, the
        replicator fails and takes a new snapshot. It must not block.

        :param listener: None for who wants to know of snapshots alone. With any other no
            checkpoint is begun with: what is in it is decoded for nobody.
        :param on_reset: called before a snapshot: what was derived from
            earlier changes is void, and every live record is given again
        """
        self._listeners.append((listener, on_reset))

    def alive(self, bound_seconds: float) -> bool:
        """Return whether everything older than the bound is proved to be in the store.

        False from the moment a resync is needed until the first canary behind
        its snapshot came back.
        """
        proved_at = self._canary.proved_at
        return (
            self._cursor is not None
            and proved_at is not None
            and self._clock() - proved_at <= bound_seconds
        )

    @property
    def generation(self) -> int:
        """A count that changes with each begin and each end of a rebuild of the store.

        A snapshot of the store is whole if it was the same before the
        snapshot was taken and after :meth:`alive` was asked: otherwise the
        snapshot may show a half-built store, and the proof the finished one.
        """
        return self._rebuild.generation

    @property
    def epoch(self) -> str:
        """The epoch of what is applied, as :meth:`status` gives it, without the rest."""
        return self._rebuild.epoch

    def followed(self) -> records.Cursor | None:
        """Return how far the feed was followed; None while it is not.

        A snapshot of the store that is taken afterwards holds all up to there, and
        perhaps more, if :attr:`generation` is then what it was before this call.
        """
        generation = self.generation
        cursor = self._cursor
        if self._state is not State.FOLLOWING or self._thread.lost:
            return None
        return cursor if generation == self.generation else None

    def feed_moment(self) -> checkpoint_contract.FeedMoment | str:
        """Return a snapshot of the store with the place in the feed from which it goes on.

        Or why there is none: the feed is not followed, or records are kept aside: who begins
        with what the store holds would take their older states, or none, for theirs.
        """
        generation, cursor = self.generation, self.followed()
        if cursor is None:
            return _NOT_FOLLOWED
        aside = sum(self.quarantine.count_by_namespace().values())
        if aside:
            return f"{aside} records are kept aside, for this release cannot read them"
        snapshot = self._store.snapshot()

        def stands() -> bool:
            return self.generation == generation and self.followed() is not None

        return (
            checkpoint_contract.FeedMoment(cursor, snapshot, stands) if stands() else _NOT_FOLLOWED
        )

    def status(self) -> replicator_contract.ReplicatorStatus:
        """Return figures of now; consistent each by itself, not among one another."""
        now = self._clock()
        cursor = self._cursor
        return replicator_contract.ReplicatorStatus(
            state=State.DEAD if self._thread.lost else self._state,
            identity=self._identity,
            driver=self._synchronizer.name,
            epoch=self._rebuild.epoch,
            cursor_version=None if cursor is None else cursor.version,
            lag_seconds=self._canary.lag_seconds(),
            proof_age_seconds=_age(now, self._canary.proved_at),
            fetch_age_seconds=_age(now, self._fetched_at),
            resyncs=dict(self._resyncs),
            snapshots=self._rebuild.count,
            applied=self._applied,
            quarantined=len(self.quarantine),
            anti_entropy=self._anti_entropy.found,
            sweeps=self._anti_entropy.sweeps,
            failures=self._failures,
            detail=self._detail,
            thread_alive=self._thread.alive,
        )

    def wait_until(self, cursor_version: int, timeout_seconds: float) -> bool:
        """Block until everything up to a version is applied; False after the time-out.

        For tests and fixtures: a version says nothing across epochs.
        """
        with self._cursor_moved:
            return self._cursor_moved.wait_for(
                lambda: self._cursor is not None and self._cursor.version >= cursor_version,
                timeout_seconds,
            )

    def tell_former(self, tell: Callable[[store_snapshot.Snapshot], None]) -> None:
        """Have somebody given what the store held, whenever all of it is given up.

        For the back end began a new epoch, or lost writes.

        :param tell: called in the stepping thread, behind those that were named before;
            without I/O
        """
        before = self._rebuild.tell_former

        def told(former: store_snapshot.Snapshot) -> None:
            before(former)
            try:
                tell(former)
            except Exception:
                LOG.exception("What the store held is given up and was not looked at.")

        self._rebuild.tell_former = told

    def start(self) -> None:
        """Run in a thread of its own; not before the process has forked.

        :raises RuntimeError: it runs already
        """
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> bool:
        """End the thread and take the canary's record away; idempotent.

        The driver stays open.

        :returns: False if the thread did not end in time
        """
        if self._thread.alive is None:
            return True
        if not self._thread.stop(timeout_seconds):
            return False
        try:
            self._canary.retire()
        except errors.NodbError as error:
            LOG.info("The beat stays in the back end: %(error)s", {"error": error})
        return True

    def run(self, stop_event: threading.Event) -> None:
        """Step until told to stop, in the calling thread."""
        self._thread.run(stop_event)

    # -- the thread -----------------------------------------------------------

    def _turn(self, stop_event: threading.Event) -> None:
        pause_seconds = self._failure_pause.remaining_seconds()
        if pause_seconds:
            stop_event.wait(min(pause_seconds, self._options.wait_seconds))
            return
        outcome = self.step()
        if self._canary.proved_at is not None:
            self._failure_pause.succeeded()
        if not outcome.work_is_waiting:
            self._wait(outcome, stop_event)

    def _wait(self, outcome: StepOutcome, stop_event: threading.Event) -> None:
        """Wait for a change, or until something is due."""
        if self._cursor is None or outcome in (
            StepOutcome.BACKING_OFF,
            StepOutcome.DISCONNECTED,
        ):
            stop_event.wait(min(self._backoff.remaining_seconds(), self._options.wait_seconds))
            return
        timeout_seconds = min(
            self._options.wait_seconds,
            self._canary.due_in_seconds(),
            self._anti_entropy.due_in_seconds(),
        )
        try:
            self._synchronizer.wait(self._cursor, max(0.001, timeout_seconds))
        except errors.NOT_USABLE as error:
            self._disconnect(error)

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._meter.replicator_failed()
        self._state, self._detail = State.DEAD, f"{type(error).__name__}: {error}"
        self._failure_pause.failed()

    # -- one step -------------------------------------------------------------

    def step(self) -> StepOutcome:
        """Do one bounded piece of work, without waiting for changes.

        Expected trouble (no back end, an interrupted snapshot) is an outcome.
        Anything else is raised, after the cursor was given up.
        """
        now = self._clock()
        if self._backoff.remaining_seconds():
            return StepOutcome.BACKING_OFF
        try:
            if not self._opened:
                self._synchronizer.open()
                self._opened = True
            if self._cursor is None:
                return self._read_page(now)
            return self._follow(self._cursor, now)
        except contract.SnapshotInterrupted:
            return self._resync(replicator_contract.SNAPSHOT_INTERRUPTED)
        except rebuild.CheckpointUnfit as error:
            self._rebuild.abandon()
            damage = checkpoint_contract.CheckpointRefusalReason.DAMAGED
            self._refuse_checkpoint(checkpoint_contract.CheckpointRefusal(damage, str(error)))
            return StepOutcome.SNAPSHOT
        except errors.NOT_USABLE as error:
            return self._disconnect(error)
        except BaseException:
            # Changes may be in the store of which no listener knows.
            self._resync(replicator_contract.FAILURE)
            raise

    def _read_page(self, now: float) -> StepOutcome:
        if not self._rebuild.in_progress:
            if not self._begin_with_checkpoint():
                self._rebuild.begin()
            for _listener, on_reset in self._listeners:
                on_reset()
        self._canary.announce_if_due()
        restored = self._rebuild.from_checkpoint
        taken = self._rebuild.read_page()
        self._answered(now, State.SNAPSHOT)
        if isinstance(taken, records.Cursor):
            self._begin_to_follow(taken, restored=restored)
        else:
            self._count(len(taken.applied))
            self._tell(taken.readable)
        return StepOutcome.SNAPSHOT

    def _begin_with_checkpoint(self) -> bool:
        """Begin to read the checkpoint, if there is one that can be begun with.

        :raises BackendUnavailable: it is tried again
        """
        if not self._may_restore or self._checkpoint is None:
            return False
        if any(listener is not None for listener, _on_reset in self._listeners):
            told = checkpoint_contract.CheckpointRefusalReason.NOT_TOLD
            return self._refuse_checkpoint(checkpoint_contract.CheckpointRefusal(told))
        opened = self._checkpoint.open()
        if isinstance(opened, checkpoint_contract.CheckpointRefusal):
            return self._refuse_checkpoint(opened)
        refused: checkpoint_contract.CheckpointRefusal | None = None
        began = False
        try:
            refused = self._rebuild.begin_with(opened)
            began = refused is None
        finally:
            if not began:
                opened.close()
        if refused is None:
            return True
        return self._refuse_checkpoint(refused)

    def _refuse_checkpoint(self, refused: checkpoint_contract.CheckpointRefusal) -> bool:
        """Say why everything is read from the back end; returns False."""
        assert self._checkpoint is not None
        self._may_restore = False
        absent = refused.reason is checkpoint_contract.CheckpointRefusalReason.ABSENT
        LOG.log(
            logging.INFO if absent else logging.WARNING,
            "No checkpoint is begun with, all is read from %(name)s: %(reason)s",
            {"name": self._synchronizer.name, "reason": refused},
        )
        self._checkpoint.began(refused)
        if refused.reason in (
            checkpoint_contract.CheckpointRefusalReason.HEAD_BEHIND_CURSOR,
            checkpoint_contract.CheckpointRefusalReason.LOST_WRITES,
        ):
            self._checkpoint.give_up(str(refused))
        return False

    def _distrust_store(self, why: str) -> None:
        """Have the next snapshot begin with an empty store, and no start with a checkpoint."""
        self._rebuild.distrust_store()
        if self._checkpoint is not None:
            self._checkpoint.give_up(why)

    def _begin_to_follow(self, cursor: records.Cursor, *, restored: bool) -> None:
        self._state = State.FOLLOWING
        # What was restored is compared with the back end as soon as may be.
        self._anti_entropy.restart(at_once=restored)
        self._may_restore = False
        if restored and self._checkpoint is not None:
            self._checkpoint.began(None)
        self._housekeeping.restart()
        self._meter.quarantine_size(len(self.quarantine))
        LOG.info(
            "Snapshot %(number)d from %(source)s is applied; following epoch %(epoch)s from "
            "version %(version)d (%(aside)d unreadable records)",
            {
                "number": self._rebuild.count,
                "source": "the local checkpoint" if restored else self._synchronizer.name,
                "epoch": cursor.epoch,
                "version": cursor.version,
                "aside": len(self.quarantine),
            },
        )
        self._move_cursor(cursor)

    def _follow(self, cursor: records.Cursor, now: float) -> StepOutcome:
        self._canary.send_if_due()
        changes = self._synchronizer.fetch(cursor, self._options.batch_limit)
        if isinstance(changes, records.ResyncNeeded):
            outcome = self._resync(changes.reason.value, changes.detail)
            if changes.reason is records.ResyncReason.HEAD_BEHIND_CURSOR:
                self._distrust_store(changes.reason.value)
            return outcome
        self._answered(now, State.FOLLOWING)
        if changes.records:
            for taken in self._ingester.take(changes.records):
                self._applied_changes(taken.applied)
                del taken  # not held while the next part is decoded
            self._meter.quarantine_size(len(self.quarantine))
            lag_seconds = self._canary.observe(changes.records)
            if lag_seconds is not None:
                self._meter.feed_lag(lag_seconds)
        self._move_cursor(changes.cursor)
        if changes.more:
            # It lags, but it brings: not silent, whatever the canary.
            return StepOutcome.MORE
        if self._canary.silent(now):
            return self._feed_died()
        return self._upkeep(changes) or (
            StepOutcome.CHANGES if changes.records else StepOutcome.IDLE
        )

    def _upkeep(self, changes: records.Changes) -> StepOutcome | None:
        """Sweep and collect a little, now that nothing is waiting."""
        found = self._anti_entropy.step(changes.cursor)
        for finding, count in found.items():
            self._meter.anti_entropy_found(finding.value, count)
        if found:
            LOG.warning(
                "Anti-entropy found %(found)s",
                {"found": ", ".join(f"{n} {finding.value}" for finding, n in found.items())},
            )
        if found[anti_entropy.Divergence.DIVERGED]:
            outcome = self._resync(replicator_contract.DIVERGED)
            # Behind it: no writer of checkpoints believes the store any more.
            self._distrust_store(replicator_contract.DIVERGED)
            return outcome
        self._housekeeping.step(changes.cursor)
        self._store.pack(_PACKED_AT_A_TIME)
        return None

    # -- what a step comes to -------------------------------------------------

    def _applied_changes(self, applied: Sequence[records.Change]) -> None:
        self._count(len(applied))
        self._tell(applied)

    def _count(self, applied: int) -> None:
        self._applied += applied
        self._meter.changes_applied(applied)

    def _tell(self, changes: Sequence[records.Change]) -> None:
        if changes:
            for listener, _on_reset in self._listeners:
                if listener is not None:
                    listener(changes)

    def _move_cursor(self, cursor: records.Cursor | None) -> None:
        with self._cursor_moved:
            self._cursor = cursor
            self._cursor_moved.notify_all()

    def _answered(self, now: float, state: State) -> None:
        if self._backoff.failures:
            LOG.info(
                "Back end %(name)s answers again after %(failures)d failures",
                {"name": self._synchronizer.name, "failures": self._backoff.failures},
            )
        self._backoff.succeeded()
        self._detail = ""
        self._fetched_at, self._state = now, state

    def _resync(self, reason: str, detail: str = "") -> StepOutcome:
        """Give the cursor up: the next step begins a snapshot."""
        LOG.warning(
            "Taking a new snapshot from %(name)s: %(reason)s %(detail)s",
            {"name": self._synchronizer.name, "reason": reason, "detail": detail},
        )
        self._resyncs[reason] += 1
        self._meter.resynced(reason)
        if self._may_restore:
            # Once is enough: what made it fail may be in the checkpoint.
            unfit = checkpoint_contract.CheckpointRefusalReason.INTERRUPTED
            self._refuse_checkpoint(checkpoint_contract.CheckpointRefusal(unfit, reason))
        self._canary.reset()
        self._anti_entropy.restart()
        self._rebuild.abandon()
        self._move_cursor(None)
        return StepOutcome.RESYNC

    def _feed_died(self) -> StepOutcome:
        self._synchronizer.close()
        self._opened = False
        self._resync(
            replicator_contract.SILENCE,
            f"(the canary did not come back within {self._options.silence_seconds:g} s)",
        )
        self._state = State.DEAD
        self._detail = "the feed fell silent"
        return StepOutcome.RESYNC

    def _disconnect(self, error: Exception) -> StepOutcome:
        """Keep cursor and store; try again after a pause that doubles.

        A snapshot begins again: its pages cannot be continued.
        """
        if not self._backoff.failures:
            LOG.warning("%(error)s", {"error": error})
        self._state, self._detail = State.DISCONNECTED, str(error)
        # Who shares the driver may have closed it; to open one that is open costs little.
        self._opened = False
        self._rebuild.abandon()
        self._anti_entropy.interrupt()
        self._backoff.failed()
        return StepOutcome.DISCONNECTED

    def _heartbeat(self) -> Mapping[str, Any]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            "epoch": self._rebuild.epoch,
            "cursor_version": self._cursor.version if self._cursor is not None else 0,
            "lag_seconds": self._canary.flight_seconds,
            "applied": self._applied,
            "quarantined": len(self.quarantine),
            "resyncs": self._resyncs.total(),
            **self._extra_heartbeat(),
        }


def _age(now: float, then: float | None) -> float | None:
    return None if then is None else max(0.0, now - then)


def followed_snapshot(
    store: host_state_store.HostStateStore, follower: Replicator
) -> tuple[records.Cursor, store_snapshot.Snapshot] | None:
    """Return how far the feed was followed, and what it brought; None if it is not.

    :param store: the one that is kept
    """
    generation = follower.generation
    # First the cursor: the snapshot holds all up to it, and perhaps more.
    cursor = follower.followed()
    snapshot = store.snapshot()
    if cursor is None or generation != follower.generation:
        return None
    return cursor, snapshot
