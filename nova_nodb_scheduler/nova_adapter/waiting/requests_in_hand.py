# SPDX-License-Identifier: Apache-2.0
"""The requests that one conductor has in hand, and the thread that says so.

A lease says that this process lives, not that a request comes on: a call to a scheduler
may take as long as it likes. What could not be ended because the back end was away is
ended by the thread later; should the process end first, the lease does, and whoever
comes to have the request finds nothing left to do.
"""

from __future__ import annotations

import logging
import threading

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer import contract, step_thread
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules

LOG = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0


class RequestsInHand:
    """Any thread may call it."""

    def __init__(
        self, synchronizer: contract.Synchronizer, ledger: pending_ledger.PendingLedger
    ) -> None:
        self._synchronizer = synchronizer
        self._ledger = ledger
        self._lock = threading.Lock()
        self._held: set[pending_rules.Holding] = set()
        self._ended: set[pending_rules.Holding] = set()
        self._thread = step_thread.StepThread(
            "nodb-pending-leases", self._turn, lambda error: None, lambda running: None
        )
        self._is_open = False

    def start(self) -> None:
        """Open the back end, where it is there, and begin to renew."""
        try:
            self._open()
        except errors.NOT_USABLE as error:
            # Looked at again by each turn; until then nobody waits.
            LOG.warning("No request can wait for room yet: %(error)s", {"error": error})
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the back end; leases end by themselves."""
        self._thread.stop(_JOIN_SECONDS)
        self._synchronizer.close()

    def add(self, holding: pending_rules.Holding) -> None:
        """Renew a lease from now on."""
        with self._lock:
            self._held.add(holding)

    def remove(self, holding: pending_rules.Holding) -> None:
        """Renew it no longer."""
        with self._lock:
            self._held.discard(holding)

    def finish(self, holding: pending_rules.Holding) -> bool:
        """End a request, now or as soon as the back end answers.

        :returns: whether it has ended, and by this
        """
        self.remove(holding)
        try:
            return self._ledger.finish(holding)
        except errors.NodbError as error:
            LOG.warning(
                "Request %(key)s is done, and will be taken off the queue later: %(error)s",
                {"key": holding.key, "error": error},
            )
            with self._lock:
                self._ended.add(holding)
            return False

    def turn(self) -> None:
        """Renew all leases, end what is left to be ended.

        :raises NodbError: not all was done
        """
        self._open()
        with self._lock:
            held, ended = list(self._held), list(self._ended)
        for holding, step in self._ledger.renew(held).items():
            # None: its creation is in doubt. Otherwise its next step comes to nothing.
            if step.standing is not None:
                LOG.info("Request %(key)s is another's now", {"key": holding.key})
                self.remove(holding)
        for holding in ended:
            self._ledger.finish(holding)
            with self._lock:
                self._ended.discard(holding)

    def _open(self) -> None:
        if not self._is_open:
            self._synchronizer.open()
            self._is_open = True

    def _turn(self, stop_event: threading.Event) -> None:
        if stop_event.wait(self._ledger.lease_seconds / 3):
            return
        try:
            self.turn()
        except errors.NodbError as error:
            LOG.warning("Leases of requests were not renewed: %(error)s", {"error": error})
