# SPDX-License-Identifier: Apache-2.0
"""Events of requests that wait, as tests make them."""

from __future__ import annotations

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.synchronizer.waking import waiting_events

AT_SECONDS = 1_790_000_000.0


def event(
    kind: waiting_events.EventKind = waiting_events.EventKind.PARKED,
    project_id: str = "one",
    key: str = "a",
    servers: tuple[str, ...] = ("a", "b"),
    reason: str = "",
) -> waiting_events.WaitingEvent:
    """Return an event of a request that was asked for ten seconds before it."""
    request = pending.PendingRequest(
        key=key,
        servers=servers,
        project_id=project_id,
        user_id="user",
        flavor="m1.large",
        priority_class="normal",
        needs={"VCPU": 4},
        queue="digest",
        asked_at=AT_SECONDS - 10.0,
        deadline_at=AT_SECONDS + 590.0,
        state=pending.PendingState.WAITING,
        grant=pending.Grant(1, "owner", AT_SECONDS + 20.0, host="host-secret"),
        reason="no host has room",
        hold=pending.Hold("host-secret", AT_SECONDS + 20.0),
    )
    return waiting_events.WaitingEvent(kind, request, AT_SECONDS, reason)
