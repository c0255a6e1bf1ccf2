# SPDX-License-Identifier: Apache-2.0
"""What becomes of a request that waits, as an event, and who takes events.

An event is told by the process that *won* the compare-and-set of the transition, behind
it: so each is told once at most, and one of a process that dies in between never. Who
needs certainty asks Nova.

========== ========================== ===========================================
kind       told by                    behind
========== ========================== ===========================================
parked     the conductor              scheduling -> waiting
dispatched the scheduler              waiting -> granted, to find hosts
placed     the conductor              its servers were sent; again if a host gave
                                      one up, and it was sent again
expired    the conductor              the record is gone, or what is left of it was
                                      sent: others ended in ERROR, too late; the
                                      event names those alone
cancelled  the conductor              likewise, by an operator's word
========== ========================== ===========================================
"""

from __future__ import annotations

import enum
from typing import Protocol

import attrs

from nova_nodb_scheduler.model import pending


class EventKind(enum.Enum):
    """What has become of a request."""

    PARKED = "parked"
    DISPATCHED = "dispatched"
    PLACED = "placed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


#: What becomes of servers that a grant of such a purpose ends.
ENDINGS = {
    pending.Purpose.EXPIRE: EventKind.EXPIRED,
    pending.Purpose.CANCEL: EventKind.CANCELLED,
}


@attrs.frozen
class WaitingEvent:
    """One transition of one request.

    :param request: as its record stands behind the transition, or stood last
    :param at_seconds: when, by the back end's clock
    :param reason: why, for the request's user; where empty the request's own stands
    """

    kind: EventKind
    request: pending.PendingRequest
    at_seconds: float
    reason: str = ""


class EventSink(Protocol):
    """Takes events, in the conductor's and the scheduler's threads."""

    def publish(self, event: WaitingEvent) -> None:
        """Take an event. Never blocks, never raises; what is told twice is two events."""

    def stop(self) -> None:
        """Hand on what can be within a bound, and end; idempotent."""
