# SPDX-License-Identifier: Apache-2.0
"""Run a follower in a thread of its own, and say where it stands."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import backoff, contract, step_thread
from nova_nodb_scheduler.synchronizer.replication import follower, replicator_contract
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)


class Replicator(follower.Follower):
    """A follower with its thread; parameters as :class:`.follower.Follower`.

    Either the thread is started, or somebody calls ``step``: never both.
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
        beat: Callable[[], Mapping[str, Any]] = dict,
        meter: replicator_contract.ReplicationMeter = replicator_contract.NoReplicationMeter(),  # noqa: B008 - it has no state
    ) -> None:
        super().__init__(
            synchronizer,
            store,
            declared,
            identity=identity,
            options=options,
            clock=clock,
            decode=decode,
            beat=beat,
            meter=meter,
        )
        self._failures = 0
        # Its own, since after an unexpected error the back end answers well.
        self._failure_pause = backoff.Backoff(
            self._options.reconnect_min_seconds, self._options.reconnect_max_seconds, self._clock
        )
        self._thread = step_thread.StepThread(
            f"nodb-replicator-{identity}", self._turn, self._fail, self._meter.replicator_running
        )

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
        if self._state is not replicator_contract.State.FOLLOWING or self._thread.lost:
            return None
        return cursor if generation == self.generation else None

    def status(self) -> replicator_contract.ReplicatorStatus:
        """Return figures of now; consistent each by itself, not among one another."""
        now = self._clock()
        cursor = self._cursor
        return replicator_contract.ReplicatorStatus(
            state=replicator_contract.State.DEAD if self._thread.lost else self._state,
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
                lambda: replicator_contract.cursor_reaches(self._cursor, cursor_version),
                timeout_seconds,
            )

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

    def _wait(self, outcome: replicator_contract.StepOutcome, stop_event: threading.Event) -> None:
        """Wait for a change, or until something is due."""
        if self._cursor is None or outcome in (
            replicator_contract.StepOutcome.BACKING_OFF,
            replicator_contract.StepOutcome.DISCONNECTED,
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
        except follower.NOT_USABLE as error:
            self._disconnect(error)

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._meter.replicator_failed()
        self._state, self._detail = (
            replicator_contract.State.DEAD,
            f"{type(error).__name__}: {error}",
        )
        self._failure_pause.failed()


def _age(now: float, then: float | None) -> float | None:
    return None if then is None else max(0.0, now - then)
