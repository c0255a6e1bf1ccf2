# SPDX-License-Identifier: Apache-2.0
"""A made cloud around WaitQueues: hosts, servers that end, and a worker that places."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
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
from tests.unit.scheduling.waiting import samples


@attrs.frozen(order=True)
class Running:
    """A server on a host, until it ends."""

    ends_at: float
    key: str
    host: str = attrs.field(order=False)
    request: pending.PendingRequest = attrs.field(order=False)


class MadeCloud:
    """Hosts of ``vcpus`` each, with as many MiB; what is granted runs at once.

    :ivar placed: requests in the order in which they were placed
    """

    def __init__(self, hosts: int, vcpus: int, seed: int, **settings: Any) -> None:
        self.chance = random.Random(seed)
        self.settings = queue_settings.QueueSettings(**settings)
        self.queues = wait_queues.WaitQueues(self.settings)
        self.vcpus = vcpus
        self.free = {f"host-{number}": vcpus for number in range(hosts)}
        self.seen = dict(self.free)
        self.now = 0.0
        self.running: list[Running] = []
        self.placed: list[pending.PendingRequest] = []
        self.used: dict[str, int] = {}
        whole = hosts * vcpus
        self.queues.set_capacity({"VCPU": whole, "MEMORY_MB": whole}, 0.0)

    def arrive(self, *requests: pending.PendingRequest) -> None:
        for each in requests:
            self.queues.put(each, self.now)

    def step(self, seconds: float) -> None:
        """Let time pass: servers end, and whoever can go goes."""
        self.now += seconds
        self.queues.advance(self.now)
        grown = set(self.queues.take_released())
        # Their room is as it was, but it is for others now.
        self.seen.update(dict.fromkeys(grown, 0))
        while self.running and self.running[0].ends_at <= self.now:
            ended = heapq.heappop(self.running)
            self._use(ended.request, ended.host, -1)
            grown.add(ended.host)
        for host in sorted(grown):
            self.wake(host)
        self.take(self.queues.wake_fresh(self.now))

    def wake(self, host: str) -> None:
        before, self.seen[host] = self.seen[host], self.free[host]
        growth = grown_hosts.Growth(
            (host,),
            samples.RESOURCES,
            np.array([[self.free[host]] * 2], np.int64),
            np.array([[before] * 2], np.int64),
        )
        self.take(self.queues.wake(growth, self.now))
        self.seen[host] = self.free[host]

    def take(self, walk: wake_ups.WakeUp) -> None:
        """Place whoever has room, and refuse all others."""
        while (candidate := walk.next()) is not None:
            hosts = self.fit(candidate.request, candidate.hosts)
            if hosts is None:
                walk.refused()
                continue
            walk.granted(hosts, self.now + 30.0)
            self._run(candidate.request, hosts)

    def fit(self, request: pending.PendingRequest, hosts: Iterable[str] | None) -> list[str] | None:
        """Return a host for each server; None if they do not all have one."""
        held = self.queues.held_hosts(self.now)
        rooms = dict(self.free)
        first = list(hosts or ())
        found: list[str] = []
        for _ in request.servers:
            for host in [*first, *rooms]:
                is_open = held.get(host, request.key) == request.key
                if is_open and rooms[host] >= request.needs["VCPU"]:
                    rooms[host] -= request.needs["VCPU"]
                    found.append(host)
                    break
        return found if len(found) == len(request.servers) else None

    def hold(self) -> None:
        """Hold hosts for those who want one."""
        hosts = list(self.free)
        free = np.array([[self.free[host]] * 2 for host in hosts], np.int64)
        whole = np.full_like(free, self.vcpus)
        for request in self.queues.wanting_hold(self.now):
            host = self.queues.choose_hold(request, hosts, samples.RESOURCES, free, whole, self.now)
            if host is not None:
                hold = pending.Hold(host, self.now + self.settings.hold_seconds)
                self.queues.put(attrs.evolve(request, hold=hold), self.now)

    def _run(self, request: pending.PendingRequest, hosts: list[str]) -> None:
        self.placed.append(request)
        for host in hosts:
            self._use(request, host, 1)
            lasts = self.chance.uniform(5, 15)
            heapq.heappush(
                self.running, Running(self.now + lasts, request.key + host, host, request)
            )
        self.queues.show(request.key, self.now)
        self.queues.drop(request.key, self.now)

    def _use(self, request: pending.PendingRequest, host: str, sign: int) -> None:
        amount = sign * request.needs["VCPU"]
        project = request.project_id
        self.free[host] -= amount
        assert self.free[host] >= 0, host
        if sign > 0:
            self.seen[host] = self.free[host]
        self.used[project] = self.used.get(project, 0) + amount
        used = self.used[project]
        self.queues.set_usage(project, {"VCPU": used, "MEMORY_MB": used}, self.now)
