# SPDX-License-Identifier: Apache-2.0
"""Who asks for the same, whosever it is."""

from __future__ import annotations

from collections.abc import Mapping

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting.order import shape_index, waiting_lines

_DemandKey = tuple[str, int, Mapping[str, int]]


class DemandIndex:
    """Demands of queues that are known; O(1) each. Not safe for threads."""

    def __init__(self, shapes: shape_index.ShapeIndex) -> None:
        self._shapes = shapes
        self._demands: dict[_DemandKey, waiting_lines.Demand] = {}

    def find(self, request: pending.PendingRequest) -> waiting_lines.Demand | None:
        """Return what a request asks for; None where nobody else who is known does."""
        return self._demands.get(_demand_key(request))

    def enter(self, request: pending.PendingRequest) -> waiting_lines.Demand:
        """Return the demand of a queue that comes with this request."""
        key = _demand_key(request)
        found = self._demands.get(key)
        if found is None:
            shape = self._shapes.enter(request.needs, len(request.servers))
            found = self._demands[key] = waiting_lines.Demand(shape)
        found.shape.queues += 1
        return found

    def leave(self, request: pending.PendingRequest, queue: waiting_lines.Queue) -> None:
        """Forget a queue, with the last request of it."""
        demand, shape = queue.demand, queue.shape
        demand.queues.discard(queue)
        if not demand.queues:
            del self._demands[_demand_key(request)]
        shape.queues -= 1
        if not shape.queues:
            self._shapes.leave(shape)


def _demand_key(request: pending.PendingRequest) -> _DemandKey:
    return pending.demand(request.queue), len(request.servers), request.needs
