# SPDX-License-Identifier: Apache-2.0
"""Hands the made cluster to the engine, and the workload's requests; there is no Nova here."""

import random
import time
from collections.abc import Sequence

from stevedore import extension

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import engine as engine_module
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
from tools.bench.clouds import cluster as cluster_module
from tools.bench.clouds import workload

CELL = "cell1"
#: Last seen by the made clock; those that are down, a day before.
_DAY_SECONDS = 86400.0


def make_engine(
    frame: host_frame.HostFrame | None = None, more_filters: Sequence[str] = ()
) -> engine_module.Engine:
    """Return an engine with Nova's default filters and all weighers, without hosts.

    :param frame: an empty one, where hosts have attributes without a column
    :param more_filters: names of filters behind the default ones
    """
    settings = decision_settings.SchedulingOptions(service_down_time=_DAY_SECONDS / 2)
    filters = _classes(plugin_contract.FILTERS)
    weighers = _classes(plugin_contract.WEIGHERS)
    return engine_module.Engine(
        settings,
        [filters[name](settings) for name in (*settings.enabled_filters, *more_filters)],
        [weighers[name](settings) for name in sorted(weighers)],
        frame=host_frame.HostFrame() if frame is None else frame,
        rng=random.Random(1),
    )


def fill(engine: engine_module.Engine, cluster: cluster_module.Cluster) -> None:
    """Put aggregates and hosts in."""
    aggregates = cluster.aggregates()
    engine.set_aggregates(
        host_facts.HostAggregate(each.uuid, each.number, each.name, dict(each.metadata))
        for each in aggregates
    )
    memberships: dict[int, list[str]] = {}
    for each in aggregates:
        for number in each.hosts:
            memberships.setdefault(number, []).append(each.uuid)
    now = time.time()
    with engine.lock:
        for host in cluster.hosts():
            engine.put(_facts(host, tuple(memberships.get(host.number, ())), now))
    engine.tick(now)


class Requests:
    """Makes the engine's requests of the workload's."""

    def __init__(self, cluster: cluster_module.Cluster) -> None:
        self._zones = {
            each.metadata["availability_zone"]: frozenset({each.uuid})
            for each in cluster.aggregates()
            if "availability_zone" in each.metadata
        }

    def make(self, asked: workload.Request) -> requests.Request:
        """Return a request as the adapter makes it, after Nova's default request filters."""
        flavor = asked.flavor
        return requests.Request(
            flavor=requests.Flavor(
                name=flavor.name,
                vcpus=flavor.vcpus,
                memory_mb=flavor.memory_mb,
                root_gb=flavor.disk_gb,
                extra_specs=flavor.extra_specs,
            ),
            project_id="b" * 32,
            user_id="b" * 32,
            availability_zone=asked.zone,
            cells=frozenset({CELL}),
            queries=(
                requests.CandidateQuery(
                    resources=resources(flavor),
                    required_traits=frozenset(flavor.traits),
                    forbidden_traits=frozenset({cluster_module.DISABLED_TRAIT}),
                    member_of=() if asked.zone is None else (self._zones[asked.zone],),
                ),
            ),
        )


def resources(flavor: workload.Flavor) -> dict[str, int]:
    """Return what a server takes of Placement's classes."""
    return {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}


def _classes(group: str) -> dict[str, type]:
    found = extension.ExtensionManager(group)
    return {each.name: each.plugin for each in found}


def _facts(
    host: cluster_module.Host, aggregates: tuple[str, ...], now: float
) -> host_facts.HostFacts:
    free_disk_gb = host.disk_gb - host.disk_gb_used
    return host_facts.HostFacts(
        uuid=host.node_uuid,
        cell=CELL,
        host=host.name,
        node=host.name,
        memory_mb=host.memory_mb,
        free_ram_mb=host.memory_mb - host.memory_mb_used - cluster_module.RESERVED_MEMORY_MB,
        local_gb=host.disk_gb,
        free_disk_mb=free_disk_gb * 1024,
        disk_mb_used=host.disk_gb_used * 1024,
        vcpus=host.vcpus,
        vcpus_used=host.vcpus_used,
        cpu_allocation_ratio=cluster_module.CPU_RATIO,
        num_instances=len(host.instances),
        hypervisor_version=7_002_000,
        disabled=host.is_disabled,
        last_seen_seconds=now - (2 * _DAY_SECONDS if host.is_down else 0.0),
        aggregates=aggregates,
        provider=_provider(host, aggregates),
    )


def _provider(host: cluster_module.Host, aggregates: tuple[str, ...]) -> host_facts.ProviderFacts:
    inventory = host_facts.Inventory
    return host_facts.ProviderFacts(
        generation=1,
        inventories={
            "VCPU": inventory(
                host.vcpus, max_unit=host.vcpus, allocation_ratio=cluster_module.CPU_RATIO
            ),
            "MEMORY_MB": inventory(
                host.memory_mb, cluster_module.RESERVED_MEMORY_MB, max_unit=host.memory_mb
            ),
            "DISK_GB": inventory(host.disk_gb, max_unit=host.disk_gb),
        },
        used={
            "VCPU": host.vcpus_used,
            "MEMORY_MB": host.memory_mb_used,
            "DISK_GB": host.disk_gb_used,
        },
        traits=_TRAITS.setdefault(host.traits, frozenset(host.traits)),
        aggregates=frozenset(aggregates),
        tree=frozenset({host.node_uuid}),
    )


_TRAITS: dict[tuple[str, ...], frozenset[str]] = {}
