# SPDX-License-Identifier: Apache-2.0
"""Tells the order what projects have of the cloud, and what the cloud has."""

from __future__ import annotations

from collections.abc import Callable, Collection

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.facts import project_usage
from nova_nodb_scheduler.scheduling.frame import room_growth
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.waking import followed_requests

_INSTANCES = known_namespaces.INSTANCES.name

#: Between two looks at the servers of the cloud: one pass over their columns.
_USAGE_SECONDS = 2.0
_CAPACITY_SECONDS = 30.0
#: How long a server that was sent may be unknown; nova-compute may have failed to make it.
_UNKNOWN_SECONDS = 120.0


class UsageUpkeep:
    """For the worker's thread alone.

    :param places: where a server is known to stand
    """

    def __init__(
        self,
        followed: followed_requests.FollowedRequests,
        store: host_state_store.HostStateStore,
        engine: engine_module.Engine,
        places: Callable[[str], Collection[object]],
    ) -> None:
        self._followed = followed
        self._store = store
        self._engine = engine
        self._places = places
        self._queues: object = None
        self._told: dict[str, dict[str, int]] = {}
        self._begun: dict[str, tuple[pending.PendingRequest, float]] = {}
        self._usage_at = self._capacity_at = float("-inf")

    def begun(self, request: pending.PendingRequest, now: float) -> None:
        """Count a request that found hosts, and whose servers are not known there yet.

        At once: its grant counts no longer.
        """
        followed = self._followed
        is_counted = request.key in self._begun
        self._begun[request.key] = (request, now)
        if is_counted:
            return
        used = dict(self._told.get(request.project_id, {}))
        _add(used, request, len(request.servers))
        self._told[request.project_id] = used
        with followed.lock:
            followed.queues.set_usage(request.project_id, used, now)

    def run(self, now: float) -> None:
        """Look at the cloud's servers, and at its hosts, if it is time to and anybody waits."""
        followed = self._followed
        if not len(followed.queues):
            return
        if followed.queues is not self._queues:
            # A new epoch: the order of now was told nothing yet.
            self._queues = followed.queues
            self._told.clear()
            self._usage_at = self._capacity_at = float("-inf")
        # A time to come is of a clock that was set back.
        if not 0.0 <= now - self._usage_at < _USAGE_SECONDS:
            self._usage_at = now
            self._tell_usage(now)
        if not 0.0 <= now - self._capacity_at < _CAPACITY_SECONDS:
            self._capacity_at = now
            with self._engine.lock:
                found = room_growth.capacity(self._engine.frame, project_usage.RESOURCES)
            with followed.lock:
                followed.queues.set_capacity(found, now)

    def _tell_usage(self, now: float) -> None:
        followed = self._followed
        usage = project_usage.of_instances(self._store.snapshot().namespace(_INSTANCES))
        self._add_begun(usage, now)
        with followed.lock:
            for project in usage.keys() | self._told.keys():
                used = usage.get(project, {})
                if used != self._told.get(project):
                    followed.queues.set_usage(project, used, now)
        self._told = usage

    def _add_begun(self, usage: dict[str, dict[str, int]], now: float) -> None:
        for key, (request, since) in list(self._begun.items()):
            unknown = [each for each in request.servers if not self._places(each)]
            if not unknown or not 0.0 <= now - since < _UNKNOWN_SECONDS:
                del self._begun[key]
                continue
            _add(usage.setdefault(request.project_id, {}), request, len(unknown))


def _add(used: dict[str, int], request: pending.PendingRequest, servers: int) -> None:
    """Add what so many servers of a request take."""
    for name, amount in request.needs.items():
        if name in project_usage.RESOURCES:
            used[name] = used.get(name, 0) + amount * servers
