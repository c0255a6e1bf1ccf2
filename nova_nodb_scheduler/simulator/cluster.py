# SPDX-License-Identifier: Apache-2.0
"""Made hosts in racks: the same for a size and a seed, in whatever process they are made.

A rack is bought at once, so its hosts are of one kind; kinds differ in size and
in memory for each CPU, as in published clusters ("Heterogeneity and Dynamicity
of Clouds at Scale", Reiss et al., SoCC 2012, counts ten machine shapes in one
Google cell, few of which make up nearly all of it). The shares below are synthetic.
"""

from __future__ import annotations

import functools
import random
import uuid
from collections.abc import Iterator, Mapping

import attrs

VCPU, MEMORY_MB, DISK_GB = "VCPU", "MEMORY_MB", "DISK_GB"

CELL = "5a000000-0000-4000-8000-000000000001"
_NAMES = uuid.UUID("5a000000-0000-4000-8000-000000000000")

#: Consumer that stands for all servers that were there before the run.
RESIDENT = "resident"


@attrs.frozen
class Kind:
    """A machine shape. ``memory_mb`` in MiB, ``disk_gb`` in GiB; share of all racks."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    share: float


KINDS = (
    Kind(64, 262_144, 2_000, 0.45),
    Kind(96, 393_216, 4_000, 0.25),
    Kind(32, 262_144, 2_000, 0.12),
    Kind(128, 524_288, 4_000, 0.10),
    Kind(48, 98_304, 1_000, 0.05),
    Kind(128, 1_048_576, 8_000, 0.03),
)


@attrs.frozen
class Host:
    """One made compute node.

    :param resident: what servers from before the run take, by resource class
    """

    number: int
    rack: int
    kind: Kind
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
    :param fill: share of the cluster that is taken before the run, 0 to 0.95
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

    def host(self, host_uuid: str) -> Host:
        """Return the host of a node's uuid.

        :raises KeyError: there is none
        """
        return self._by_uuid[host_uuid]

    @property
    def racks(self) -> int:
        """How many racks there are; the last may be partly filled."""
        return -(-len(self.hosts) // self.options.rack_hosts)

    def rack(self, number: int) -> tuple[Host, ...]:
        """Return the hosts of a rack; racks are numbered from 0."""
        size = self.options.rack_hosts
        return self.hosts[number * size : (number + 1) * size]


def server_uuid(seed: int, number: int) -> str:
    """Return the uuid of a run's server."""
    return str(uuid.uuid5(_NAMES, f"server {seed} {number}"))


def _hosts(options: ClusterOptions) -> Iterator[Host]:
    chance = random.Random(f"cluster {options.seed}")
    weights = [kind.share for kind in KINDS]
    kind = KINDS[0]
    for number in range(options.hosts):
        rack, place = divmod(number, options.rack_hosts)
        if not place:
            kind = chance.choices(KINDS, weights)[0]
        host = Host(number, rack, kind, options.cpu_ratio)
        if options.fill:
            # Triangular about the fill: some hosts nearly full, some nearly empty.
            share = chance.triangular(max(0.0, 2 * options.fill - 0.95), 0.95, options.fill)
            host = attrs.evolve(
                host,
                resident={name: int(share * room) for name, room in host.capacity.items()},
            )
        yield host
