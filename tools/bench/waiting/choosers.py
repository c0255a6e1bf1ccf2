# SPDX-License-Identifier: Apache-2.0
"""Measures ways to choose a host: who meets whom, what is left in halves, and what it costs.

Hosts of one kind are filled from empty to a share of their memory by N schedulers that go in
rounds: each plans one request on the hosts as they stood when the round began, and takes its first
choice. Without claims two that chose one host conflict: the second one is counted, and its server
goes there all the same if it fits. In the end as many servers of half a host are counted as there
is room for: what is stranded shows in how few there are.
"""

import random
import time
from typing import Any

import attrs

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.simulator.schedulers import simulated_scheduler
from tools.bench import figures
from tools.bench.clouds import core_hosts, workload

HOSTS = 400
FILL = 0.7
_VCPUS, _MEMORY_MB, _DISK_GB = 64, 262_144, 4000
_HALF_MB = _MEMORY_MB // 2
#: Memory is what is scarce; sizes are those of most servers of published clouds, and some larger.
_FLAVORS = (
    (workload.Flavor("s2", 1, 2048, 5), 0.35),
    (workload.Flavor("s4", 1, 4096, 5), 0.30),
    (workload.Flavor("s8", 2, 8192, 10), 0.20),
    (workload.Flavor("s16", 4, 16_384, 20), 0.10),
    (workload.Flavor("s32", 8, 32_768, 40), 0.05),
)


@attrs.frozen
class Setting:
    """A way to choose.

    :param memory_weight: Nova's ram_weight_multiplier: above 0 spreads, below 0 packs
    :param subset: Nova's host_subset_size
    """

    name: str
    choice: str
    memory_weight: float
    subset: int = 1


SETTINGS = (
    Setting("best, spread", "best", 1.0),
    Setting("best, pack", "best", -1.0),
    Setting("two, spread", "two", 1.0),
    Setting("two, pack", "two", -1.0),
    Setting("random", "random", 1.0),
    Setting("random of the best 16, pack", "best", -1.0, 16),
)


def measure(
    setting: Setting, schedulers: int, hosts: int = HOSTS, seed: int = 1, fill: float = FILL
) -> dict[str, Any]:
    """Fill the hosts; the same for the same arguments, but for the times."""
    engine = _engine(setting, hosts, seed)
    chance = random.Random(f"choosers {seed}")
    flavors = [flavor for flavor, _ in _FLAVORS]
    shares = [share for _, share in _FLAVORS]
    decisions = conflicts = used_mb = 0
    cpu: list[float] = []
    while used_mb < fill * hosts * _MEMORY_MB:
        chosen: list[tuple[str, workload.Flavor]] = []
        for flavor in chance.choices(flavors, shares, k=schedulers):
            began = time.thread_time()
            best = engine.plan(_request(flavor)).best(1)
            cpu.append(time.thread_time() - began)
            if best:
                chosen.append((best[0].uuid, flavor))
        decisions += len(chosen)
        conflicts += len(chosen) - len({uuid for uuid, _ in chosen})
        for uuid, flavor in chosen:
            if _use(engine, uuid, flavor):
                used_mb += flavor.memory_mb
    return {
        "setting": setting.name,
        "schedulers": schedulers,
        "hosts": hosts,
        "seed": seed,
        "decisions": decisions,
        "conflict_share": conflicts / decisions,
        "half_host_slots": _half_slots(engine),
        "most_half_host_slots": int((1 - fill) * hosts * _MEMORY_MB / _HALF_MB),
        "cpu_p50_us": 1e6 * figures.percentile(cpu, 50),
        "cpu_p99_us": 1e6 * figures.percentile(cpu, 99),
    }


def _engine(setting: Setting, hosts: int, seed: int) -> engine_module.Engine:
    settings = decision_settings.SchedulingOptions(
        service_down_time=1e9,
        ram_weight_multiplier=setting.memory_weight,
        # What is left of CPUs and disk says the same as memory, or nothing.
        cpu_weight_multiplier=0.0,
        disk_weight_multiplier=0.0,
        host_subset_size=setting.subset,
        choice=setting.choice,
        # Nova's order among hosts that weigh the same.
        shuffle_best_same_weighed_hosts=False,
    )
    made = simulated_scheduler.make_engine(settings, random.Random(f"draw {seed}"))
    for number in range(hosts):
        made.put(_facts(f"host-{number:06d}"))
    made.tick(0.0)
    return made


def _facts(name: str) -> host_facts.HostFacts:
    inventory = host_facts.Inventory
    return host_facts.HostFacts(
        uuid=name,
        cell=core_hosts.CELL,
        host=name,
        node=name,
        memory_mb=_MEMORY_MB,
        free_ram_mb=_MEMORY_MB,
        local_gb=_DISK_GB,
        free_disk_mb=_DISK_GB * 1024,
        vcpus=_VCPUS,
        cpu_allocation_ratio=4.0,
        hypervisor_version=8_002_000,
        last_seen_seconds=0.0,
        provider=host_facts.ProviderFacts(
            generation=1,
            inventories={
                "VCPU": inventory(_VCPUS, max_unit=_VCPUS, allocation_ratio=4.0),
                "MEMORY_MB": inventory(_MEMORY_MB, max_unit=_MEMORY_MB),
                "DISK_GB": inventory(_DISK_GB, max_unit=_DISK_GB),
            },
            tree=frozenset((name,)),
        ),
    )


def _request(flavor: workload.Flavor) -> requests.Request:
    return requests.Request(
        flavor=requests.Flavor(
            name=flavor.name,
            vcpus=flavor.vcpus,
            memory_mb=flavor.memory_mb,
            root_gb=flavor.disk_gb,
        ),
        project_id="b" * 32,
        user_id="b" * 32,
        cells=frozenset({core_hosts.CELL}),
        queries=(requests.CandidateQuery(resources=core_hosts.resources(flavor)),),
    )


def _use(engine: engine_module.Engine, uuid: str, flavor: workload.Flavor) -> bool:
    """Count a server on a host, in Placement's columns and the node's; False if it is full."""
    frame = engine.frame
    row = _row(frame, uuid)
    facts = frame.facts(row)
    provider = facts.provider
    assert provider is not None
    taken = core_hosts.resources(flavor)
    used = {name: provider.used.get(name, 0) + amount for name, amount in taken.items()}
    if used["MEMORY_MB"] > _MEMORY_MB or used["DISK_GB"] > _DISK_GB or used["VCPU"] > 4 * _VCPUS:
        return False
    engine.put(
        attrs.evolve(
            facts,
            vcpus_used=used["VCPU"],
            free_ram_mb=_MEMORY_MB - used["MEMORY_MB"],
            free_disk_mb=(_DISK_GB - used["DISK_GB"]) * 1024,
            num_instances=facts.num_instances + 1,
            provider=attrs.evolve(provider, used=used),
        )
    )
    return True


def _half_slots(engine: engine_module.Engine) -> int:
    frame = engine.frame
    return sum(frame.facts(_row(frame, uuid)).free_ram_mb // _HALF_MB for uuid in frame.uuids())


def _row(frame: host_frame.HostFrame, uuid: str) -> int:
    row = frame.row_of(uuid)
    assert row is not None
    return row
