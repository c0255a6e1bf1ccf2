# SPDX-License-Identifier: Apache-2.0
"""Measures the pipeline alone: no Nova, no back end, each pick applied before the next.

Between two decisions come the updates that arrive meanwhile at the stated rate. A decision's time
is that of the plan, of its best host, and of taking over all updates since the last one.
"""

import concurrent.futures
import itertools
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from tools.bench import figures
from tools.bench.clouds import cluster as cluster_module
from tools.bench.clouds import core_hosts, workload
from tools.bench.processes import serving

UPDATES_PER_SECOND = 160
DECISIONS_PER_SECOND = 20
_UPDATES_BETWEEN = UPDATES_PER_SECOND // DECISIONS_PER_SECOND
_WARM_DECISIONS = 1000
_COLD_DECISIONS = 100
_EACH_FLAVOR_BEFORE = 4


def measure(hosts: int) -> dict[str, Any]:
    """Measure one size in a process of its own, whose memory is of nothing else."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, hosts).result()


def _measure(hosts: int) -> dict[str, Any]:
    cluster = cluster_module.Cluster(hosts)
    memory_before = serving.resident_mb()
    engine = core_hosts.make_engine()
    started = time.perf_counter()
    core_hosts.fill(engine, cluster)
    load_seconds = time.perf_counter() - started
    memory_mb = serving.resident_mb() - memory_before
    trial = _Trial(engine, cluster)
    found: dict[str, Any] = {
        "hosts": hosts,
        "load_seconds": load_seconds,
        "memory_mb": memory_mb,
        "bytes_a_host": memory_mb * 2**20 / hosts,
        "updates_per_second": UPDATES_PER_SECOND,
        "decisions_per_second": DECISIONS_PER_SECOND,
    }
    found |= trial.run("cold", _rare(), _COLD_DECISIONS, trial.update_some)
    trial.run("", _repeated(), _EACH_FLAVOR_BEFORE * len(workload.REPEATED), trial.update_some)
    found |= trial.run("warm", _repeated(), _WARM_DECISIONS, trial.update_some)
    found |= trial.run("moved_extremes", _repeated(), _WARM_DECISIONS, trial.update_extremes)
    found["memory_mb_with_signatures"] = serving.resident_mb() - memory_before
    found["update_p50"] = figures.percentile(trial.updates, 50)
    found["undecided"] = trial.undecided
    return found


class _Trial:
    """Decisions on one engine, with updates between them."""

    def __init__(self, engine: Any, cluster: cluster_module.Cluster) -> None:
        self._engine = engine
        self._requests = core_hosts.Requests(cluster)
        self._chance = random.Random(3)
        healthy = [host for host in cluster.hosts() if not (host.is_disabled or host.is_down)]
        self._uuids = [host.node_uuid for host in healthy]
        self._star = next(host.node_uuid for host in healthy if host.has_avx512)
        self._rise_mb = 2 * max(host.memory_mb for host in healthy)
        self._is_extreme = False
        self.updates: list[float] = []
        self.undecided = 0

    def run(
        self,
        name: str,
        stream: Iterator[workload.Request],
        decisions: int,
        update: Callable[[], None],
    ) -> dict[str, float]:
        """Decide; returns wall and CPU times of a decision under names that begin with ``name``."""
        walls, cpus = [], []
        for asked in itertools.islice(stream, decisions):
            update()
            request = self._requests.make(asked)
            wall, cpu = time.perf_counter(), time.thread_time()
            choices = self._engine.plan(request).best(1)
            walls.append(time.perf_counter() - wall)
            cpus.append(time.thread_time() - cpu)
            if not choices:
                self.undecided += 1
                continue
            self._engine.use(choices[0].uuid, core_hosts.resources(asked.flavor))
        return {
            f"{name}_p50": figures.percentile(walls, 50),
            f"{name}_p99": figures.percentile(walls, 99),
            f"{name}_cpu_p50": figures.percentile(cpus, 50),
            f"{name}_cpu_p99": figures.percentile(cpus, 99),
        }

    def update_some(self) -> None:
        """Report small changes of hosts that are no weigher's extreme."""
        for _ in range(_UPDATES_BETWEEN):
            self._report(self._chance.choice(self._uuids), self._chance.choice((-64, 64)))

    def update_extremes(self) -> None:
        """Report, among others, a host that becomes the one with most memory, or ceases to be it.

        It passes for every flavor: each decision meets a weigher's extreme that has moved.
        """
        for _ in range(_UPDATES_BETWEEN - 1):
            self._report(self._chance.choice(self._uuids), self._chance.choice((-64, 64)))
        self._is_extreme = not self._is_extreme
        self._report(self._star, self._rise_mb if self._is_extreme else -self._rise_mb)

    def _report(self, uuid: str, free_ram_mb: int) -> None:
        frame = self._engine.frame
        facts = frame.facts(frame.row_of(uuid))
        fresh = attrs.evolve(facts, free_ram_mb=facts.free_ram_mb + free_ram_mb)
        started = time.perf_counter()
        self._engine.put(fresh)
        self.updates.append(time.perf_counter() - started)


def _repeated() -> Iterator[workload.Request]:
    for flavor in itertools.cycle(workload.REPEATED):
        yield workload.Request(flavor, None)


def _rare() -> Iterator[workload.Request]:
    return (each for each in workload.stream(5) if each.flavor.name == "rare")
