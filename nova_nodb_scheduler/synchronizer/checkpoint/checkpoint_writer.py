# SPDX-License-Identifier: Apache-2.0
"""The thread that writes a checkpoint now and then, beside the feed and the decisions.

It works on a snapshot, which nobody changes, and takes a share of a core at most: behind
each page it sleeps for longer than the page took. What it cannot do is told and tried
again an interval later; nothing of it ends the scheduler, or holds it up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nova_nodb_scheduler.synchronizer import step_thread
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract, local_checkpoint

WriteOutcome = checkpoint_contract.WriteOutcome

#: How soon a worker that began without a checkpoint looks whether it may write one.
_FIRST_LOOK_SECONDS = 5.0


class CheckpointWriter:
    """One thread's checkpoints; started in the worker, after any fork.

    :param moment: what to write, or why nothing may be written now
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        checkpoint: local_checkpoint.LocalCheckpoint,
        moment: Callable[[], checkpoint_contract.FeedMoment | str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoint = checkpoint
        self._options = checkpoint.options
        self._moment = moment
        self._clock = clock
        self._next_at: float | None = None
        self._thread = step_thread.StepThread(
            "nodb-checkpoint", self._turn, checkpoint.failed, lambda _running: None
        )

    def start(self) -> None:
        """Run in a thread of its own.

        :raises RuntimeError: it runs already
        """
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> bool:
        """End the thread, a checkpoint that is being written with it; idempotent.

        :returns: False if it did not end in time
        """
        if not self._thread.stop(timeout_seconds):
            return False
        self._checkpoint.close()
        return True

    def due_in_seconds(self) -> float:
        """Return how long until the next attempt."""
        if self._next_at is None:
            # A start that read everything has something to save at once; one that began
            # with a checkpoint has one, and restarts in a row shall cost nothing.
            status = self._checkpoint.status
            if not status.start:
                return _FIRST_LOOK_SECONDS
            restored = status.start == checkpoint_contract.RESTORED
            wait = self._options.interval_seconds if restored else _FIRST_LOOK_SECONDS
            self._next_at = self._clock() + wait
        return max(0.0, self._next_at - self._clock())

    def attempt(self, stop_event: threading.Event) -> WriteOutcome:
        """Write one, if this process is to; waits between its pages."""
        turned_at = self._clock()

        def pause() -> bool:
            nonlocal turned_at
            busy_seconds = max(0.0, self._clock() - turned_at)
            idle_ratio = 1.0 / self._options.busy_ratio - 1.0
            stopped = stop_event.wait(min(1.0, busy_seconds * idle_ratio))
            turned_at = self._clock()
            return not stopped

        outcome = self._checkpoint.write(self._moment, pause)
        # Of a feed that is not followed one waits for a moment, not for an interval.
        wait = self._options.interval_seconds
        if outcome is WriteOutcome.NOT_READY:
            wait = min(wait, _FIRST_LOOK_SECONDS)
        self._next_at = self._clock() + wait
        return outcome

    def _turn(self, stop_event: threading.Event) -> None:
        wait_seconds = self.due_in_seconds()
        if wait_seconds:
            stop_event.wait(min(wait_seconds, _FIRST_LOOK_SECONDS))
            return
        try:
            self.attempt(stop_event)
        except BaseException:
            self._next_at = self._clock() + self._options.interval_seconds
            raise
