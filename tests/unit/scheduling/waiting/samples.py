# SPDX-License-Identifier: Apache-2.0
"""Requests, hosts and answers that the tests of waiting share."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import (
    grown_hosts,
    queue_settings,
    wait_queues,
    wake_ups,
)

RESOURCES = ("VCPU", "MEMORY_MB")
FOREVER = 1e9


def request(key: str, vcpus: int = 1, **fields: Any) -> pending.PendingRequest:
    """Make one that waits; its queue is named after what it needs."""
    servers = fields.pop("servers", 1)
    given: dict[str, Any] = {
        "servers": (key, *(f"{key}-{number}" for number in range(1, servers))),
        "project_id": "project",
        "user_id": "user",
        "flavor": f"flavor-{vcpus}",
        "priority_class": "normal",
        "needs": {"VCPU": vcpus, "MEMORY_MB": vcpus},
        "queue": f"queue-{vcpus}",
        "asked_at": 0.0,
        "deadline_at": FOREVER,
        "state": pending.PendingState.WAITING,
        "grant": pending.Grant(1, "conductor", 0.0),
        "parked_at": 1.0,
    }
    return pending.PendingRequest(key=key, **(given | fields))


def granted(
    waiting: pending.PendingRequest,
    until: float,
    host: str = "",
    state: pending.PendingState = pending.PendingState.GRANTED,
    attempt: int | None = None,
) -> pending.PendingRequest:
    """Return the record after the next grant."""
    if attempt is None:
        attempt = waiting.grant.attempt + 1
    return attrs.evolve(
        waiting, state=state, grant=pending.Grant(attempt, "scheduler", until, host=host)
    )


def queues(*requests: pending.PendingRequest, now: float = 0.0, **settings: Any):
    """Make queues that hold requests; all of them have been tried as newcomers."""
    made = wait_queues.WaitQueues(queue_settings.QueueSettings(**settings))
    for each in requests:
        made.put(each, now)
    tried(made.wake_fresh(now))
    return made


def growth(before: int | None = None, **free: int) -> grown_hosts.Growth:
    """Make hosts with so many vCPUs, and as many MiB, free."""
    after = np.array([[amount] * 2 for amount in free.values()], np.int64)
    was = None if before is None else np.full_like(after, before)
    return grown_hosts.Growth(tuple(free), RESOURCES, after, was)


def tried(walk: wake_ups.WakeUp) -> list[str]:
    """Refuse everybody; returns their keys."""
    keys = []
    while (candidate := walk.next()) is not None:
        keys.append(candidate.request.key)
        walk.refused()
    return keys


def served(walk: wake_ups.WakeUp, until: float = FOREVER) -> list[str]:
    """Grant everybody the first host that grew and has room; returns their keys."""
    keys = []
    while (candidate := walk.next()) is not None:
        hosts = candidate.hosts or ("anywhere",)
        if len(candidate.request.servers) > 1:
            hosts = hosts[:1] * len(candidate.request.servers)
        keys.append(candidate.request.key)
        walk.granted(hosts[:1] if len(candidate.request.servers) == 1 else hosts, until)
    return keys
