# SPDX-License-Identifier: Apache-2.0
"""Settles claims: each scheduler its own, and one at a time for all; a lease says which."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer import (
    backoff,
    contract,
    leases,
    settling,
    settling_status,
    step_thread,
)

LOG = logging.getLogger(__name__)

LEASE = "claims"

#: How long a process that died keeps the others waiting.
LEASE_SECONDS = 15.0

_TURN_SECONDS = 0.25


class SettlingDuty:
    """One named thread per scheduler; one of them all does what no other does.

    :param holder: unique per process start
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        settler: settling.Settler,
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
            "nodb-settling", self._step, self._failed, lambda running: None
        )
        #: Whether this process settles for all.
        self.settles = False
        #: Turns that failed, and why the last one did.
        self.failures = 0
        self.last_error = ""

    @property
    def status(self) -> settling_status.SettlingStatus:
        """Counts since the start; any thread."""
        return self._settler.status

    def start(self) -> None:
        """Start the threads; once, in the worker process."""
        self._settler.questions.start()
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End the threads and let the lease go; idempotent."""
        self._settler.questions.stop()
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
