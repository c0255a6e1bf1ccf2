# SPDX-License-Identifier: Apache-2.0
"""Nova's notifications of requests that wait: one each when it is parked, dispatched, and ends.

In the unversioned format, of publisher ``scheduler.HOST``, with event types
``scheduler.queue.parked``, ``.dispatched``, ``.placed``, ``.expired`` and ``.cancelled``.
Told by the scheduler that grants the request, from what it sees of the record: one that
starts tells nothing of before, and while two think that a request is theirs it is told twice.
"""

from __future__ import annotations

import logging
from typing import Any

from nova import context as nova_context

from nova_nodb_scheduler.synchronizer.waking import waiting_events

LOG = logging.getLogger(__name__)

#: Of the payload. Fields are added without another number.
PAYLOAD_VERSION = 1


class QueueNotifications:
    """Tells of events through a notifier; fulfils :class:`.waiting_events.EventSink`.

    :param notifier: Nova's, of the unversioned format
    """

    def __init__(self, notifier: Any) -> None:
        self._notifier = notifier
        self._complained = False

    def publish(self, event: waiting_events.WaitingEvent) -> None:
        """Notify; what the notifier raises is logged once."""
        try:
            context = nova_context.get_admin_context()
            self._notifier.info(context, f"scheduler.queue.{event.kind.value}", payload(event))
        except Exception:
            if not self._complained:
                LOG.exception("Nobody can be notified of requests that wait.")
            self._complained = True

    def stop(self) -> None:
        """Nothing is kept back."""


def payload(event: waiting_events.WaitingEvent) -> dict[str, Any]:
    """Return what is told of an event: JSON values."""
    request = event.request
    return {
        "version": PAYLOAD_VERSION,
        "request": request.key,
        "instance_uuids": list(request.servers),
        "tenant_id": request.project_id,
        "user_id": request.user_id,
        "flavor": request.flavor,
        "priority_class": request.priority_class,
        "needs": dict(request.needs),
        "asked_at": request.asked_at,
        "deadline_at": request.deadline_at,
        "at": event.at_seconds,
        "waited_seconds": max(0.0, event.at_seconds - request.asked_at),
        "attempt": request.grant.attempt,
        "refusals": request.refusals,
        "reason": event.reason or request.reason,
    }
