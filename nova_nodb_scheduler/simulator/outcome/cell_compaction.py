# SPDX-License-Identifier: Apache-2.0
"""How far a fleet can shrink until the workload no longer fits: cell compaction.

The measure of "Large-scale cluster management at Google with Borg" (Verma et
al., EuroSys 2015, section 5.1): hosts are taken away until something cannot be
placed; fewer hosts left is better packing. The pipeline runs alone, in one
process, on empty hosts; servers come and go in the workload's order.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence

import attrs

from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.simulator.scenario import made_hosts as cluster_module
from nova_nodb_scheduler.simulator.scenario import run_options, workload
from nova_nodb_scheduler.simulator.schedulers import simulated_scheduler

#: Liveness has no part in it.
_SEEN_SECONDS = 0.0


@attrs.frozen
class Packed:
    """How small the fleet may be.

    :param hosts: least number of hosts on which all fits; of several trials,
        each with hosts of its own, the median. None where not even all hosts do
    :param of: hosts of the whole fleet
    """

    hosts: int | None
    of: int


def measure(
    options: cluster_module.ClusterOptions,
    arrivals: Sequence[workload.Arrival],
    strategy: run_options.Strategy,
    *,
    trials: int = 3,
    told: Callable[[str], None] = lambda _text: None,
) -> Packed:
    """Shrink a fleet by bisection; the same for the same arguments."""
    cluster = cluster_module.Cluster(attrs.evolve(options, fill=0.0))
    found = []
    for trial in range(trials):
        hosts = list(cluster.hosts)
        random.Random(f"packing {options.seed} {trial}").shuffle(hosts)

        def fits(count: int, hosts: list[cluster_module.MadeHost] = hosts) -> bool:
            told(f"{strategy.name}: {count} hosts")
            return _Replay(hosts[:count], strategy, options.seed).fits(arrivals)

        least = _least(len(hosts), fits)
        if least is None:
            return Packed(None, len(hosts))
        found.append(least)
    return Packed(sorted(found)[len(found) // 2], len(cluster))


def _least(most: int, fits: Callable[[int], bool]) -> int | None:
    if not fits(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


class _Replay:
    """A workload on some hosts, through the pipeline alone."""

    def __init__(
        self,
        hosts: Sequence[cluster_module.MadeHost],
        strategy: run_options.Strategy,
        seed: int,
    ) -> None:
        settings = simulated_scheduler.pipeline_settings(strategy, service_down_seconds=1e9)
        self._engine = simulated_scheduler.make_engine(settings, random.Random(f"replay {seed}"))
        for host in hosts:
            self._engine.put(_facts(host))
        self._engine.tick(_SEEN_SECONDS)
        self._ends: list[tuple[float, int, str, workload.MadeFlavor]] = []
        self._count = 0

    def fits(self, arrivals: Sequence[workload.Arrival]) -> bool:
        """Say whether everything was placed."""
        for arrival in arrivals:
            while self._ends and self._ends[0][0] <= arrival.at_seconds:
                _, _, uuid, flavor = heapq.heappop(self._ends)
                _change(self._engine, uuid, flavor, -1)
            if not self._place(arrival):
                return False
        return True

    def _place(self, arrival: workload.Arrival) -> bool:
        flavor = arrival.flavor
        plan = self._engine.plan(workload.request(flavor, "server"), servers=arrival.servers)
        chosen = []
        for number in range(arrival.servers):
            best = plan.best(1)
            if not best:
                return False
            chosen.append(best[0].uuid)
            if arrival.servers > 1:
                plan.take(best[0], str(number))
        for uuid in chosen:
            _change(self._engine, uuid, flavor, 1)
            if arrival.lifetime_seconds is not None:
                self._count += 1
                ends_at = arrival.at_seconds + arrival.lifetime_seconds
                heapq.heappush(self._ends, (ends_at, self._count, uuid, flavor))
        return True


def _change(
    engine: engine_module.Engine, uuid: str, flavor: workload.MadeFlavor, servers: int
) -> None:
    """Count some servers more, or less, on a host."""
    row = engine.frame.row_of(uuid)
    assert row is not None
    facts = engine.frame.facts(row)
    provider = facts.provider
    assert provider is not None
    used = dict(provider.used)
    for name, amount in flavor.resources.items():
        used[name] = used.get(name, 0) + servers * amount
    engine.put(
        attrs.evolve(
            facts,
            vcpus_used=facts.vcpus_used + servers * flavor.vcpus,
            free_ram_mb=facts.free_ram_mb - servers * flavor.memory_mb,
            free_disk_mb=facts.free_disk_mb - servers * flavor.disk_gb * 1024,
            disk_mb_used=facts.disk_mb_used + servers * flavor.disk_gb * 1024,
            num_instances=facts.num_instances + servers,
            provider=attrs.evolve(provider, used=used),
        )
    )


def _facts(host: cluster_module.MadeHost) -> host_facts.HostFacts:
    kind = host.kind
    inventory = host_facts.Inventory
    return host_facts.HostFacts(
        uuid=host.uuid,
        cell=cluster_module.CELL,
        host=host.name,
        node=host.name,
        memory_mb=kind.memory_mb,
        free_ram_mb=kind.memory_mb - host.reserved_mb,
        local_gb=kind.disk_gb,
        free_disk_mb=kind.disk_gb * 1024,
        vcpus=kind.vcpus,
        cpu_allocation_ratio=host.cpu_ratio,
        hypervisor_version=8_002_000,
        last_seen_seconds=_SEEN_SECONDS,
        provider=host_facts.ProviderFacts(
            generation=1,
            inventories={
                cluster_module.VCPU: inventory(
                    kind.vcpus, max_unit=kind.vcpus, allocation_ratio=host.cpu_ratio
                ),
                cluster_module.MEMORY_MB: inventory(
                    kind.memory_mb, host.reserved_mb, max_unit=kind.memory_mb
                ),
                cluster_module.DISK_GB: inventory(kind.disk_gb, max_unit=kind.disk_gb),
            },
            tree=frozenset((host.uuid,)),
        ),
    )
