# SPDX-License-Identifier: Apache-2.0
"""The gate that a scheduler worker's requests wait behind until what decides them is proved.

A worker that took requests at once would send the queue that gathered while
it was away through Nova's own path in one storm, where Placement itself
over-commits. So its states, its mirror of Placement and its claims are proved
first, or a bound passes. Only the start waits: what is lost later is the
affair of each request.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable

import attrs

LOG = logging.getLogger(__name__)

#: How often the judgement is made anew.
_LOOK_SECONDS = 0.1
#: How often a wait that lasts is logged.
_TELL_SECONDS = 10.0


@attrs.frozen
class Progress:
    """How far a start is.

    :param ratio: 0 to 1; roughly right, for people
    :param missing: what is not proved, and why; empty where all is
    """

    ratio: float
    missing: tuple[str, ...]

    @property
    def proved(self) -> bool:
        return not self.missing

    @property
    def percent(self) -> int:
        """Return whole per cent; 100 only where all is proved."""
        return 100 if self.proved else min(99, int(100 * self.ratio))

    def __str__(self) -> str:
        return f"starting, {self.percent}%"


class Outcome(enum.Enum):
    """Why a gate no longer holds requests back."""

    PROVED = "proved"
    #: The bound passed; Nova's own path serves what is not proved.
    UNPROVED = "unproved"
    #: The service ends; requests are for others.
    STOPPED = "stopped"


class Gate:
    """Holds a worker's requests back until all is proved, or a bound has passed.

    One thread waits; any thread asks.

    :param judge: see :meth:`.start_proof.StartProof.judge`
    :param bound_seconds: counted from :meth:`begin`; 0 opens at once
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        judge: Callable[[], Progress],
        bound_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._judge = judge
        self._bound_seconds = bound_seconds
        self._clock = clock
        self._began_at = clock()
        self._waiting = False
        self._progress = Progress(0.0, ("host states and claims: starting",))

    def begin(self) -> None:
        """Count the bound from now: the worker begins to prepare."""
        self._began_at = self._clock()

    @property
    def progress(self) -> Progress | None:
        """How far it was a moment ago; None while nobody waits. No I/O."""
        return self._progress if self._waiting else None

    def wait(self, stopped: threading.Event) -> Outcome:
        """Block until requests may be taken, or the service ends."""
        self._waiting = True
        try:
            return self._wait(stopped)
        finally:
            self._waiting = False

    def _wait(self, stopped: threading.Event) -> Outcome:
        told_at: float | None = None
        while not stopped.is_set():
            self._progress = progress = self._look()
            waited_seconds = self._clock() - self._began_at
            if progress.proved:
                LOG.info(
                    "States, mirror and claims are proved after %(seconds).1f s: this worker "
                    "takes requests.",
                    {"seconds": waited_seconds},
                )
                return Outcome.PROVED
            if waited_seconds >= self._bound_seconds:
                self._tell_of_bound(progress, waited_seconds)
                return Outcome.UNPROVED
            if told_at is None or self._clock() - told_at >= _TELL_SECONDS:
                told_at = self._clock()
                LOG.info(
                    "Starting, %(percent)d%%: no request is taken before these are proved, for "
                    "at most %(left).0f s more: %(missing)s.",
                    {
                        "percent": progress.percent,
                        "left": self._bound_seconds - waited_seconds,
                        "missing": "; ".join(progress.missing),
                    },
                )
            stopped.wait(_LOOK_SECONDS)
        return Outcome.STOPPED

    def _tell_of_bound(self, progress: Progress, waited_seconds: float) -> None:
        # With a bound of 0 an operator chose this; it is no news.
        LOG.log(
            logging.ERROR if self._bound_seconds else logging.INFO,
            "This worker takes requests after %(seconds).1f s although not all is proved; what "
            "is not goes Nova's own path: %(missing)s.",
            {"seconds": waited_seconds, "missing": "; ".join(progress.missing)},
        )

    def _look(self) -> Progress:
        try:
            return self._judge()
        except Exception:
            # The bound passes, and Nova's own path is taken.
            if self._progress.missing != _FAULT.missing:
                LOG.exception("Whether this worker may take requests cannot be judged.")
            return _FAULT


_FAULT = Progress(0.0, ("fault of the plugin: see the traceback in this log",))
