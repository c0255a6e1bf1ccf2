# SPDX-License-Identifier: Apache-2.0
"""A named daemon thread that takes one turn after the other until it is stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

LOG = logging.getLogger(__name__)


class StepThread:
    """A named thread and its life; the methods may be called from any other.

    :param turn: called again and again; may wait for its event
    :param failed: told of an exception of a turn, after which the next turn
        begins; what is no Exception ends the thread
    :param running: told True at the thread's begin and False at its end
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[threading.Event], None],
        failed: Callable[[Exception], None],
        running: Callable[[bool], None],
    ) -> None:
        self._name = name
        self._turn = turn
        self._failed = failed
        self._running = running
        self._thread: threading.Thread | None = None
        self._stop_event = threading.Event()

    @property
    def alive(self) -> bool | None:
        """Whether the thread runs; None where none was started, or it was stopped."""
        return None if self._thread is None else self._thread.is_alive()

    @property
    def lost(self) -> bool:
        """Whether the thread ended though nobody stopped it."""
        return self.alive is False and not self._stop_event.is_set()

    def start(self) -> None:
        """Start the thread; not before the process has forked.

        :raises RuntimeError: it runs already
        """
        if self.alive:
            raise RuntimeError(f"thread {self._name} runs already")
        self._stop_event = threading.Event()
        self._thread = threading.Thread(
            target=self.run, args=(self._stop_event,), name=self._name, daemon=True
        )
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """End the thread; idempotent.

        :returns: False if it did not end in time; call again
        """
        if self._thread is None:
            return True
        self._stop_event.set()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            LOG.error("Thread %(name)s did not end in time", {"name": self._name})
            return False
        self._thread = None
        return True

    def run(self, stop_event: threading.Event) -> None:
        """Take turns in the calling thread."""
        self._running(True)
        try:
            while not stop_event.is_set():
                try:
                    self._turn(stop_event)
                except Exception as error:
                    LOG.error("A turn of %(name)s failed", {"name": self._name}, exc_info=error)
                    self._failed(error)
        except BaseException:
            LOG.critical("Thread %(name)s ends", {"name": self._name}, exc_info=True)
            raise
        finally:
            self._running(False)
