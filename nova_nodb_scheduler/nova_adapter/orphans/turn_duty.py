# SPDX-License-Identifier: Apache-2.0
"""A duty that takes turns in a thread: at leisure, soon where there is more, seldom in failure."""

from __future__ import annotations

import abc
import logging
import threading
import time

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer import backoff, step_thread

LOG = logging.getLogger(__name__)

_TURN_SECONDS = 10.0
#: Where more is due than one turn does. Turns are bounded, and whom they ask rests between them.
_NEXT_SECONDS = 1.0
#: What such turns take of the processor at the most: whoever schedules in this process needs it.
_MOST_SHARE = 0.1


class TurnDuty(abc.ABC):
    """Calls :meth:`_turn` again and again until it is stopped.

    :param name: of the thread
    :param failing: what does not happen while a turn fails, for the log
    :param most_seconds: between two turns that fail
    """

    def __init__(self, name: str, failing: str, most_seconds: float) -> None:
        self._failing = failing
        self._turn_seconds = _TURN_SECONDS
        self._backoff = backoff.Backoff(_TURN_SECONDS, most_seconds, time.monotonic)
        self._thread = step_thread.StepThread(name, self._step, self._failed, lambda running: None)
        self._is_more_due = False
        #: Processor time of the last turn.
        self._busy_seconds = 0.0
        #: Turns that failed.
        self.failures = 0

    @abc.abstractmethod
    def _turn(self) -> bool:
        """Do what is due; say whether more is than one turn does.

        :raises NodbError: it is tried again later
        """

    def start(self) -> None:
        """Start the thread; once, in the worker process."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End the thread; idempotent. What a turn does just now is done, or is not."""
        self._thread.stop(timeout_seconds)

    def _step(self, stop: threading.Event) -> None:
        pause = self._turn_seconds
        if self._is_more_due:
            pause = min(pause, max(_NEXT_SECONDS, self._busy_seconds / _MOST_SHARE))
        if stop.wait(pause) or self._backoff.remaining_seconds():
            return
        self._is_more_due = False
        begun = time.thread_time()
        try:
            self._is_more_due = self._turn()
            self._backoff.succeeded()
        except errors.NodbError as error:
            LOG.info("%(what)s now: %(why)s", {"what": self._failing, "why": error})
            self._failed(error)
        finally:
            self._busy_seconds = time.thread_time() - begun

    def _failed(self, error: Exception) -> None:
        self._backoff.failed()
        self.failures += 1
