# SPDX-License-Identifier: Apache-2.0
"""Tells whether a process stood still: stopped, frozen, or without a processor for long.

One thread hangs where it waits, for a back end or a lock; the others go on, and hear what the
process is told meanwhile. Of all of them a thread that does nothing but look at the clock tells
best. How long a thread that does I/O was away says nothing of the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class StandstillWatch:
    """One per process; stops with its owner.

    :param clock: monotonic, seconds. Where it stands still with the process nothing is told
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, tick_seconds: float = 1.0
    ) -> None:
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._lock = threading.Lock()
        self._ticked_at: float | None = None
        self._longest_seconds = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, once in each process; what was before is forgotten.

        :raises RuntimeError: the process has no room for a thread
        """
        self._stop = threading.Event()
        self._ticked_at, self._longest_seconds = None, 0.0
        self.tick()
        thread = threading.Thread(target=self._run, name="nodb-standstill", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """End the thread; idempotent."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._stop.wait(self._tick_seconds):
            self.tick()

    def tick(self) -> None:
        """Note that the process goes on."""
        with self._lock:
            self._note()

    def take_longest(self) -> float:
        """Return the seconds of the longest standstill since this was asked last.

        Less than a tick or two say nothing. Any thread: one that goes on sooner than the
        watch's own behind a standstill is told of it, too.

        :returns: infinity where the thread has died
        """
        if self._thread is not None and not self._thread.is_alive():
            return float("inf")
        with self._lock:
            if self._ticked_at is not None:
                self._note()
            longest, self._longest_seconds = self._longest_seconds, 0.0
        return longest

    def _note(self) -> None:
        now = self._clock()
        if self._ticked_at is not None:
            self._longest_seconds = max(self._longest_seconds, now - self._ticked_at)
        self._ticked_at = now
