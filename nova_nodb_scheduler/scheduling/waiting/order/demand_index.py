# SPDX-License-Identifier: Apache-2.0
"""Who asks for the same, whosever it is: how many do, and who of them goes first.

A newcomer is compared with the first of all owners' queues, not with each queue's own first: it
is asked for under the lock, and a flavor may have as many owners that wait as there are projects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import queue_settings
from nova_nodb_scheduler.scheduling.waiting.order import waiting_lines

_DemandKey = tuple[str, int, Mapping[str, int]]


class DemandIndex:
    """Demands of queues that are known; O(log n) each. Not safe for threads."""

    def __init__(self, settings: queue_settings.QueueSettings) -> None:
        self._settings = settings
        self._demands: dict[_DemandKey, waiting_lines.Demand] = {}

    def find(self, request: pending.PendingRequest) -> waiting_lines.Demand | None:
        """Return what a request asks for; None where nobody else who is known does."""
        return self._demands.get(_demand_key(request))

    def enter(self, request: pending.PendingRequest) -> waiting_lines.Demand:
        """Return the demand of a queue that comes with this request."""
        key = _demand_key(request)
        found = self._demands.get(key)
        if found is None:
            found = self._demands[key] = waiting_lines.Demand()
        found.queues += 1
        return found

    def leave(self, request: pending.PendingRequest) -> None:
        """Forget a queue, with the last request of it."""
        key = _demand_key(request)
        found = self._demands[key]
        found.queues -= 1
        if not found.queues:
            del self._demands[key]

    def place(self, first: waiting_lines.FirstElsewhere, share: float, now: float) -> None:
        """Put the first of a queue that is parked elsewhere where it belongs by a share."""
        asked_at, key = first.head
        level = first.count_as(self._settings, asked_at, now)
        tier = waiting_lines.tier(first.rank, level)
        demand = first.queue.demand
        if first.placed is not None:
            demand.elsewhere.remove(first.placed)
        first.placed = (tier, share, asked_at, key, first)
        demand.elsewhere.add(first.placed)

    def unplace(self, first: waiting_lines.FirstElsewhere) -> None:
        """Forget one that is the first no longer."""
        demand = first.queue.demand
        if first.placed is not None:
            demand.elsewhere.remove(first.placed)
            first.placed = None
        first.rises_at = math.inf


def _demand_key(request: pending.PendingRequest) -> _DemandKey:
    return pending.demand(request.queue), len(request.servers), request.needs
