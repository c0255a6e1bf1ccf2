# SPDX-License-Identifier: Apache-2.0
"""The duty of looking for orphans in a scheduler worker: of the one that settles for all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.orphans import finder as finder_module
from nova_nodb_scheduler.synchronizer import backoff, step_thread

LOG = logging.getLogger(__name__)

_TURN_SECONDS = 10.0


class OrphanDuty:
    """Owner of the thread.

    :param settles: whether this worker settles claims for all
    """

    def __init__(
        self,
        finder: finder_module.Finder,
        settles: Callable[[], bool],
        *,
        turn_seconds: float = _TURN_SECONDS,
    ) -> None:
        self.finder = finder
        self._settles = settles
        self._turn_seconds = turn_seconds
        self._backoff = backoff.Backoff(turn_seconds, 300.0, time.monotonic)
        self._thread = step_thread.StepThread(
            "nodb-orphans", self._step, self._failed, lambda running: None
        )
        #: Turns that failed.
        self.failures = 0

    def start(self) -> None:
        """Start the thread; once, in the worker process."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End the thread; idempotent. What it deletes just now is deleted, or is not."""
        self._thread.stop(timeout_seconds)

    def figures(self) -> dict[str, float]:
        """Return what is counted, for status and metrics; any thread."""
        status = self.finder.status
        return {
            **{f"orphans_{kind.name.lower()}": float(n) for kind, n in status.by_kind.items()},
            "orphans": float(sum(status.by_kind.values())),
            "orphans_deleted": float(status.deleted),
            "orphans_lost": float(status.lost),
            "orphan_failures": float(self.failures),
        }

    def _step(self, stop: Event) -> None:
        if stop.wait(self._turn_seconds) or self._backoff.remaining_seconds():
            return
        if not self._settles():
            self.finder.leave()
            return
        try:
            self.finder.turn()
            self._backoff.succeeded()
        except errors.NodbError as error:
            LOG.info("Orphans are not looked for now: %(error)s", {"error": error})
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._backoff.failed()
        self.failures += 1
