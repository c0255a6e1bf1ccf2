# SPDX-License-Identifier: Apache-2.0
"""Made hosts in racks, and the records that reporters publish of them and of their servers.

Hosts are the same for a size and a seed, in whatever process they are made. A
rack is bought at once, so its hosts are of one kind; kinds differ in size and
in memory for each CPU, as in published clusters ("Heterogeneity and Dynamicity
of Clouds at Scale", Reiss et al., SoCC 2012, counts ten machine shapes in one
Google cell, few of which make up nearly all of it). The shares below are synthetic.
"""

from __future__ import annotations

import datetime as dt
import functools
import random
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import orjson

VCPU, MEMORY_MB, DISK_GB = "VCPU", "MEMORY_MB", "DISK_GB"

CELL = "5a000000-0000-4000-8000-000000000001"
_NAMES = uuid.UUID("5a000000-0000-4000-8000-000000000000")

#: Consumer that stands for all servers from before the run that have no records of their own.
RESIDENT = "resident"


@attrs.frozen
class HostKind:
    """A machine shape. ``memory_mb`` in MiB, ``disk_gb`` in GiB; share of all racks."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    share: float


KINDS = (
    HostKind(64, 262_144, 2_000, 0.45),
    HostKind(96, 393_216, 4_000, 0.25),
    HostKind(32, 262_144, 2_000, 0.12),
    HostKind(128, 524_288, 4_000, 0.10),
    HostKind(48, 98_304, 1_000, 0.05),
    HostKind(128, 1_048_576, 8_000, 0.03),
)


@attrs.frozen
class MadeHost:
    """One made compute node.

    :param resident: what servers from before the run take that have no records of their own,
        by resource class
    """

    number: int
    rack: int
    kind: HostKind
    cpu_ratio: float
    resident: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        return f"compute-{self.number:06d}"

    @functools.cached_property
    def uuid(self) -> str:
        return str(uuid.uuid5(_NAMES, f"node {self.number}"))

    @functools.cached_property
    def service_uuid(self) -> str:
        return str(uuid.uuid5(_NAMES, f"service {self.number}"))

    @property
    def resident_consumer(self) -> str:
        return str(uuid.uuid5(_NAMES, f"{RESIDENT} {self.number}"))

    def standing_uuid(self, number: int) -> str:
        """Return the uuid of one of its servers from before the run, numbered from 0."""
        return str(uuid.uuid5(_NAMES, f"standing {self.number} {number}"))

    @property
    def reserved_mb(self) -> int:
        """Memory that the host keeps for itself, MiB."""
        return 4096

    @property
    def capacity(self) -> dict[str, int]:
        """What may be allocated by resource class, residents included."""
        return {
            VCPU: int(self.kind.vcpus * self.cpu_ratio),
            MEMORY_MB: self.kind.memory_mb - self.reserved_mb,
            DISK_GB: self.kind.disk_gb,
        }


@attrs.frozen(kw_only=True)
class ClusterOptions:
    """What a cluster is made of.

    :param hosts: how many
    :param rack_hosts: hosts of a rack
    :param cpu_ratio: VCPUs for each CPU, Nova's ``cpu_allocation_ratio``
    :param fill: share of the cluster that is taken before the run, 0 to 0.95; 1: all of
        each host
    """

    hosts: int = 100
    rack_hosts: int = 40
    cpu_ratio: float = 4.0
    fill: float = 0.0
    seed: int = 1


class Cluster:
    """All hosts of a run.

    :ivar hosts: in the order of their numbers, which begin with 0
    """

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self.hosts = tuple(_hosts(options))
        self._by_uuid = {host.uuid: host for host in self.hosts}

    def __len__(self) -> int:
        return len(self.hosts)

    def host(self, host_uuid: str) -> MadeHost:
        """Return the host of a node's uuid.

        :raises KeyError: there is none
        """
        return self._by_uuid[host_uuid]

    @property
    def racks(self) -> int:
        """How many racks there are; the last may be partly filled."""
        return -(-len(self.hosts) // self.options.rack_hosts)

    def rack(self, number: int) -> tuple[MadeHost, ...]:
        """Return the hosts of a rack; racks are numbered from 0."""
        size = self.options.rack_hosts
        return self.hosts[number * size : (number + 1) * size]


def server_uuid(seed: int, number: int) -> str:
    """Return the uuid of a run's server."""
    return str(uuid.uuid5(_NAMES, f"server {seed} {number}"))


def _hosts(options: ClusterOptions) -> Iterator[MadeHost]:
    chance = random.Random(f"cluster {options.seed}")
    weights = [kind.share for kind in KINDS]
    kind = KINDS[0]
    for number in range(options.hosts):
        rack, place = divmod(number, options.rack_hosts)
        if not place:
            kind = chance.choices(KINDS, weights)[0]
        host = MadeHost(number, rack, kind, options.cpu_ratio)
        if options.fill == 1.0:
            host = attrs.evolve(host, resident=host.capacity)
        elif options.fill:
            # Triangular about the fill: some hosts nearly full, some nearly empty.
            share = chance.triangular(max(0.0, 2 * options.fill - 0.95), 0.95, options.fill)
            host = attrs.evolve(
                host,
                resident={name: int(share * room) for name, room in host.capacity.items()},
            )
        yield host


State = dict[str, Any]

#: Simulated second 0, as seconds since the epoch: runs must not depend on the day.
BEGINNING_SECONDS = 1_767_225_600.0

_CREATED_AT = "2025-12-31T00:00:00"
_CPU_INFO = orjson.dumps(
    {
        "arch": "x86_64",
        "model": "EPYC",
        "vendor": "AMD",
        "topology": {"cells": 2, "sockets": 1, "cores": 32, "threads": 2},
        "features": ["sse4.2", "avx", "avx2", "aes", "sha-ni", "x2apic", "rdrand"],
    }
).decode()
_SUPPORTED = '[["i686", "kvm", "hvm"], ["x86_64", "kvm", "hvm"]]'
_TRAITS = [
    "COMPUTE_DEVICE_TAGGING",
    "COMPUTE_IMAGE_TYPE_QCOW2",
    "COMPUTE_IMAGE_TYPE_RAW",
    "COMPUTE_NET_ATTACH_INTERFACE",
    "COMPUTE_NODE",
    "COMPUTE_STATUS_ENABLED",
    "HW_CPU_X86_AVX2",
    "HW_CPU_X86_SSE42",
]


def time_text(simulated_seconds: float) -> str:
    """Return a simulated time as Nova's tables hold times: ISO 8601, UTC, no zone."""
    at = dt.datetime.fromtimestamp(BEGINNING_SECONDS + simulated_seconds, dt.UTC)
    return at.replace(tzinfo=None, microsecond=0).isoformat()


def node(host: MadeHost, used: Mapping[str, int], servers: int, simulated_seconds: float) -> State:
    """Return a compute node's record.

    :param used: by resource class, the residents' share included
    :param servers: how many there are, the residents counted as one
    """
    kind = host.kind
    memory_used = used.get(MEMORY_MB, 0) + host.reserved_mb
    disk_used = used.get(DISK_GB, 0)
    return {
        "cell": CELL,
        "object_version": "1.19",
        "row": {
            "id": host.number + 1,
            "uuid": host.uuid,
            "host": host.name,
            "hypervisor_hostname": host.name,
            "hypervisor_type": "QEMU",
            "hypervisor_version": 8_002_000,
            "host_ip": "192.0.2.1",
            "vcpus": kind.vcpus,
            "vcpus_used": used.get(VCPU, 0),
            "memory_mb": kind.memory_mb,
            "memory_mb_used": memory_used,
            "free_ram_mb": kind.memory_mb - memory_used,
            "local_gb": kind.disk_gb,
            "local_gb_used": disk_used,
            "free_disk_gb": kind.disk_gb - disk_used,
            "disk_available_least": kind.disk_gb - disk_used,
            "running_vms": servers,
            "current_workload": 0,
            "cpu_info": _CPU_INFO,
            "numa_topology": None,
            "pci_stats": None,
            "metrics": "[]",
            "supported_instances": _SUPPORTED,
            "stats": orjson.dumps({"num_instances": str(servers), "io_workload": "0"}).decode(),
            "cpu_allocation_ratio": host.cpu_ratio,
            "ram_allocation_ratio": 1.0,
            "disk_allocation_ratio": 1.0,
            "created_at": _CREATED_AT,
            "updated_at": time_text(simulated_seconds),
            "deleted_at": None,
            "deleted": 0,
        },
    }


def service(host: MadeHost) -> State:
    """Return the record of a host's nova-compute service."""
    return {
        "cell": CELL,
        "object_version": "1.22",
        "row": {
            "id": host.number + 1,
            "uuid": host.service_uuid,
            "host": host.name,
            "binary": "nova-compute",
            "topic": "compute",
            "disabled": False,
            "forced_down": False,
            "version": 70,
            "created_at": _CREATED_AT,
            "deleted_at": None,
            "deleted": 0,
            "disabled_reason": None,
        },
    }


def liveness(reports: int, simulated_seconds: float) -> State:
    """Return what a heartbeat changes."""
    return {
        "cell": CELL,
        "report_count": reports,
        "last_seen_up": time_text(simulated_seconds),
        "unreported": 0,
    }


def host_mapping(host: MadeHost) -> State:
    """Return the record that tells a host's cell."""
    return {"cell": CELL, "row": {"host": host.name, "cell": CELL}}


def provider(
    host: MadeHost, generation: int, allocations: Mapping[str, Mapping[str, int]]
) -> State:
    """Return the record of a host's provider.

    :param allocations: by consumer
    """
    kind = host.kind
    return {
        "name": host.name,
        "generation": generation,
        "inventories": {
            VCPU: _inventory(kind.vcpus, allocation_ratio=host.cpu_ratio),
            MEMORY_MB: _inventory(kind.memory_mb, reserved=host.reserved_mb),
            DISK_GB: _inventory(kind.disk_gb),
        },
        "traits": _TRAITS,
        "aggregates": [],
        "allocations": {consumer: dict(taken) for consumer, taken in allocations.items()},
        "children": {},
        "tree_size": 1,
        "read_at": 1.0,
        "whole_at": 1.0,
    }


def _inventory(total: int, *, reserved: int = 0, allocation_ratio: float = 1.0) -> State:
    return {
        "total": total,
        "reserved": reserved,
        "min_unit": 1,
        "max_unit": total,
        "step_size": 1,
        "allocation_ratio": allocation_ratio,
    }


def instance(
    host: MadeHost | None, resources: Mapping[str, int], project_id: str = "simulated"
) -> State:
    """Return a server's record.

    :param host: which builds or holds it; None until nova-compute took it up
    """
    name = None if host is None else host.name
    return {
        "cell": CELL,
        "object_version": "2.8",
        "row": {
            "host": name,
            "node": name,
            "vm_state": "building" if host is None else "active",
            "task_state": "scheduling" if host is None else None,
            "project_id": project_id,
            "user_id": project_id,
            "memory_mb": resources.get(MEMORY_MB, 0),
            "vcpus": resources.get(VCPU, 0),
            "root_gb": resources.get(DISK_GB, 0),
            "ephemeral_gb": 0,
        },
    }


def instance_key(server: str) -> str:
    """Return the key of a server's record."""
    return f"{server}@{CELL}"


def reporter(simulated_seconds: float, pid: int) -> State:
    """Return the beat of the process that reports the hosts."""
    return {
        "cell": CELL,
        "binary": "nova-conductor",
        "pid": pid,
        "beat_at": BEGINNING_SECONDS + simulated_seconds,
    }
