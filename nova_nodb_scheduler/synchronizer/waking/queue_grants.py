# SPDX-License-Identifier: Apache-2.0
"""Gives requests to conductors: a compare-and-set on the record, then a cast.

The record alone decides who has a request. A cast that is lost costs the grant's lease
and no more; a grant whose outcome is not known is left alone until its record tells.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import oslo_messaging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.synchronizer.pending import pending_ledger

LOG = logging.getLogger(__name__)


class Conductors(Protocol):
    """Who is told of grants."""

    def dispatch(self, key: str, attempt: int) -> None:
        """Have some conductor take a request that is granted."""


class QueueGrants:
    """The grants of one process; any thread.

    :param new_id: an id that nothing else has
    """

    def __init__(
        self,
        ledger: pending_ledger.PendingLedger,
        conductors: Conductors,
        new_id: Callable[[], str],
    ) -> None:
        self._ledger = ledger
        self._conductors = conductors
        self._new_id = new_id

    def grant(
        self,
        request: pending.PendingRequest,
        purpose: pending.Purpose = pending.Purpose.PLACE,
        host: str = "",
    ) -> pending.PendingRequest | None:
        """Grant a request as it is known here, and tell conductors; None where it was not won.

        Blocks for the back end and the bus.

        :param host: node uuid of the host whose room it is for
        :raises BackendUnavailable: not known whether it was
        """
        attempt, owner = request.grant.attempt, self._new_id()
        try:
            step = self._ledger.grant(request.key, attempt, owner, purpose, host)
        except errors.UndecodableRecord as error:
            # The feed keeps what it could read last. Whoever stands behind is not to wait.
            LOG.warning(
                "Request %(key)s is not granted, for its record cannot be read: %(error)s",
                {"key": request.key, "error": error},
            )
            return None
        if not isinstance(step, pending.PendingRequest):
            return None
        try:
            self._conductors.dispatch(step.key, step.grant.attempt)
        except (oslo_messaging.MessagingException, errors.NodbError) as error:
            LOG.warning(
                "No conductor could be told of request %(key)s: it is granted anew in "
                "%(seconds).0f s. %(error)s",
                {"key": step.key, "seconds": self._ledger.lease_seconds, "error": error},
            )
        return step
