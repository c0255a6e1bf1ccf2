# SPDX-License-Identifier: Apache-2.0
"""Measures what an event costs while very many requests wait: engine and queues in one process.

All hosts are full. Each event frees the room of one server on a host, whose project has less in use
then, and two requests come for it, so that the queue grows as in a cloud that is asked for twice of
what it frees. What is placed is in use by its project. A *wake-up
decision* is all that a scheduler does about it: find the host that grew, find out whom it may
help, plan each of them, and answer. What is left out is the back end: the compare-and-set of the
grant, and the feed. As in a scheduler, a newcomer is planned beside what is granted and does not
show yet; and in the end no host that was filled has more in use than it has.
"""

import concurrent.futures
import gc
import itertools
import multiprocessing
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import namespaces, pending, records, requests
from nova_nodb_scheduler.scheduling.frame import host_frame, room_growth
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.scheduling.waiting import (
    grown_hosts,
    queue_settings,
    wait_queues,
    wake_ups,
)
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.waking import pending_fit
from nova_nodb_scheduler.wire import codec, payload_packing
from tools.bench import figures
from tools.bench.clouds import cluster as cluster_module
from tools.bench.clouds import core_hosts, workload
from tools.bench.processes import serving
from tools.bench.waiting import parked_requests

EVENTS = 2000
_WARM_EVENTS = 200
_COME_FOR_EACH = 2
RESOURCES = ("VCPU", "MEMORY_MB", "DISK_GB")
_PENDING: namespaces.Namespace = known_namespaces.PENDING
_PAGE = 1000
_LEASE_SECONDS = 30.0
#: That each project has more in use than the one before.
_VCPUS_MORE = 40


def measure(
    hosts: int, parked: int, events: int = EVENTS, *, restart: bool = False
) -> dict[str, Any]:
    """Measure one number of parked requests in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, hosts, parked, events, restart).result()


def _measure(hosts: int, parked: int, events: int, restart: bool) -> dict[str, Any]:
    cluster = cluster_module.Cluster(hosts)
    engine = core_hosts.make_engine()
    core_hosts.fill(engine, cluster)
    _take_all_room(engine)
    trial = _Trial(engine, cluster)
    gc.collect()
    before = serving.resident_mb()
    trial.park(parked)
    gc.collect()
    stored = serving.resident_mb()
    if not restart:
        trial.use_all()
    started = time.perf_counter()
    trial.put_all()
    put_seconds = time.perf_counter() - started
    gc.collect()
    memory = serving.resident_mb()
    gc.freeze()
    shares_seconds = 0.0
    if restart:
        started = time.perf_counter()
        trial.use_all()
        shares_seconds = time.perf_counter() - started
    else:
        trial.run(_WARM_EVENTS)
        trial.forget_times()
    trial.run(events)
    return {
        "hosts": hosts,
        "parked": parked,
        "events": events,
        "restart": restart,
        "shares_ms": shares_seconds * 1e3,
        "store_bytes_a_request": (stored - before) * 2**20 / parked,
        "queue_bytes_a_request": (memory - stored) * 2**20 / parked,
        "put_microseconds": put_seconds / parked * 1e6,
        **trial.figures(),
    }


@attrs.define
class _Times:
    """Wall and processor seconds of what was done again and again."""

    walls: list[float] = attrs.field(factory=list)
    processor: list[float] = attrs.field(factory=list)

    def time(self, do: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        done = do()
        self.processor.append(time.thread_time() - cpu)
        self.walls.append(time.perf_counter() - wall)
        return done

    def milliseconds(self) -> dict[str, float]:
        return {
            f"{name}_{percent}": 1000 * figures.percentile(values, percent)
            for name, values in (("wall", self.walls), ("cpu", self.processor))
            for percent in (50, 99, 100)
            if values
        }


class _Trial:
    """Requests that wait, on one engine, and events."""

    def __init__(
        self, engine: engine_module.Engine, cluster: cluster_module.Cluster, seed: int = 7
    ) -> None:
        self._engine = engine
        self._made = core_hosts.Requests(cluster)
        self._store = host_state_store.HostStateStore(
            [_PENDING], codec.decode_state, packing=payload_packing.DictionaryPacking
        )
        settings = queue_settings.QueueSettings(
            project_weights=parked_requests.project_weights(),
            # Nobody's class changes meanwhile: all would have at once.
            aging_seconds=0.0,
            max_pending=10**9,
            max_pending_per_project=10**9,
        )
        self.queues = wait_queues.WaitQueues(settings)
        self._growth = room_growth.RoomGrowth(RESOURCES)
        self._chance = random.Random(seed)
        self._stream = parked_requests.stream(seed)
        self._numbers = itertools.count()
        self._requests: dict[str, requests.Request] = {}
        #: VCPUs in use by project.
        self._used = {
            project: _VCPUS_MORE * number
            for number, project in enumerate(parked_requests.project_weights())
        }
        self._healthy = [
            host.node_uuid for host in cluster.hosts() if not (host.is_disabled or host.is_down)
        ]
        self._now = 1.1e9
        with engine.lock:
            self._was_over = _over(engine.frame)
            self._growth.look(engine.frame)
            self._capacity = room_growth.capacity(engine.frame, RESOURCES)
        self.forget_times()

    def forget_times(self) -> None:
        """Begin to measure anew."""
        self._wakes, self._comes, self._gates, self._keeps, self._usages = (
            _Times() for _ in range(5)
        )
        self._granted = self._tried = self._cut = 0

    def park(self, count: int) -> None:
        """Put requests into the store, as the feed does."""
        for page in _pages(self._new_requests(count)):
            changes = []
            for each in page:
                state = each.to_state()
                key = records.RecordKey(_PENDING.name, each.key)
                text = codec.encode(state, _PENDING.schema)
                changes.append(records.Change(records.Record(key, 1, 1, text), state))
            self._store.apply_page(changes)

    def put_all(self) -> None:
        """Put what the store holds into the queues, as a scheduler does at its start."""
        self.queues.set_capacity(self._capacity, self._now)
        view = self._store.snapshot().namespace(_PENDING.name)
        for each in view.digests():
            self.queues.put(each, self._now)
        # All of them have been tried as they came.
        while (walk := self.queues.wake_fresh(self._now)).next() is not None:
            walk.refused()
            while walk.next() is not None:
                walk.refused()

    def use_all(self) -> None:
        """Say what each project has in use."""
        for project in self._used:
            self._use(project, 0)

    def run(self, events: int) -> None:
        """Free room, so often."""
        for _ in range(events):
            self._now += 0.1
            for each in self._new_requests(_COME_FOR_EACH):
                self._gates.time(lambda each=each: self.queues.behind(each, self._now))
                self.queues.put(each, self._now)
                self._go_on(
                    self._comes.time(lambda: self._answer(self.queues.wake_fresh(self._now)))
                )
            asked = next(self._stream)
            freed = self._chance.choice(self._healthy)
            self._engine.use(freed, _negative(core_hosts.resources(asked.flavor)))
            self._usages.time(lambda asked=asked: self._use(asked.project, -asked.flavor.vcpus))
            self._keeps.time(lambda: self._go_on(self._wakes.time(self._wake)))

    def figures(self) -> dict[str, Any]:
        """Return what was measured."""
        return {
            "granted": self._granted,
            "tried_in_vain": self._tried,
            "cut_short": self._cut,
            "over_capacity": self._overfull(),
            "left_parked": len(self.queues),
            "wake_up_ms": self._wakes.milliseconds(),
            "newcomer_ms": self._comes.milliseconds(),
            "gate_ms": self._gates.milliseconds(),
            "usage_ms": self._usages.milliseconds(),
            "whole_event_ms": self._keeps.milliseconds(),
        }

    # -- one event

    def _wake(self) -> list[pending.PendingRequest]:
        """Return whom the hosts that grew were granted to."""
        frame = self._engine.frame
        granted = []
        with self._engine.lock:
            grown = self._growth.look(frame)
            named = [[frame.place(row).uuid for row in each.rows.tolist()] for each in grown]
        for each, uuids in zip(grown, named, strict=True):
            growth = grown_hosts.Growth(uuids, RESOURCES, each.after, each.before)
            granted += self._answer(self.queues.wake(growth, self._now))
        return granted

    def _answer(self, walk: wake_ups.WakeUp) -> list[pending.PendingRequest]:
        granted = []
        while (candidate := walk.next()) is not None:
            request = candidate.request
            fit = self._fit(candidate)
            if not isinstance(fit, pending_fit.ServersFit):
                self._tried += 1
                walk.refused()
                continue
            until = self._now + _LEASE_SECONDS
            walk.granted(fit.hosts, until)
            grant = pending.Grant(candidate.attempt, "scheduler", until, host=fit.hosts[0])
            granted.append(attrs.evolve(request, state=pending.PendingState.GRANTED, grant=grant))
        self._cut += walk.is_cut_short
        return granted

    def _fit(self, candidate: wake_ups.Candidate) -> pending_fit.Fit:
        """Plan a candidate, as the worker does."""
        request, among = candidate.request, candidate.hosts

        def place(without: frozenset[str]) -> tuple[str, ...] | None:
            plan = self._engine.plan(self._request(request), among=among, without=without)
            return pending_fit.walk(plan, request.servers, lambda server: None)

        # The room of hosts that grew was told less all charges.
        charged = {} if among is not None else dict(self.queues.charged())
        return pending_fit.fit_beside(self._engine, request, charged, place)

    def _overfull(self) -> int:
        """Return how many hosts have more of something in use than there is, by what came."""
        with self._engine.lock:
            over = _over(self._engine.frame)
        return int((over & ~self._was_over).sum())

    def _go_on(self, granted: list[pending.PendingRequest]) -> None:
        """Have the granted ones placed: their records come, their claims show, they end."""
        for each in granted:
            self._granted += 1
            self.queues.put(each, self._now)
            self._engine.use(each.grant.host, each.needs)
            self._use(each.project_id, each.needs["VCPU"])
            self.queues.show(each.key, self._now)
            self.queues.drop(each.key, self._now)
        with self._engine.lock:
            # What was taken shows: no host grew.
            self._growth.look(self._engine.frame)
        self.queues.advance(self._now)

    def _use(self, project: str, vcpus: int) -> None:
        """Say that a project has more or less in use."""
        self._used[project] = max(0, self._used[project] + vcpus)
        self.queues.set_usage(project, {"VCPU": self._used[project]}, self._now)

    def _request(self, waiting: pending.PendingRequest) -> requests.Request:
        """Return the engine's request of a record: one for all that are alike."""
        known = self._requests.get(waiting.queue)
        if known is None:
            needs = waiting.needs
            flavor = workload.Flavor(
                waiting.flavor, needs["VCPU"], needs["MEMORY_MB"], needs["DISK_GB"]
            )
            known = self._made.make(workload.Request(flavor, None))
            self._requests[waiting.queue] = known
        return known

    def _new_requests(self, count: int) -> Iterator[pending.PendingRequest]:
        for asked in itertools.islice(self._stream, count):
            needs = core_hosts.resources(asked.flavor)
            yield parked_requests.record(asked, next(self._numbers), needs)


def _take_all_room(engine: engine_module.Engine) -> None:
    """Use up what hosts have left."""
    with engine.lock:
        frame = engine.frame
        free = {}
        for name in RESOURCES:
            has = frame.resource(name)
            assert has is not None
            free[name] = (has.capacity - has.used).tolist()
        for uuid in frame.uuids():
            row = frame.row_of(uuid)
            assert row is not None
            engine.use(uuid, {name: max(0, left[row]) for name, left in free.items()})


def _over(frame: host_frame.HostFrame) -> npt.NDArray[np.bool_]:
    """Say which rows have more in use of something than there is."""
    over = np.zeros(frame.rows, np.bool_)
    for name in RESOURCES:
        has = frame.resource(name)
        assert has is not None
        over |= has.used > np.maximum(has.capacity, 0)
    return over


def _negative(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: -amount for name, amount in amounts.items()}


def _pages(
    made: Iterable[pending.PendingRequest],
) -> Iterator[tuple[pending.PendingRequest, ...]]:
    rest = iter(made)
    while page := tuple(itertools.islice(rest, _PAGE)):
        yield page
