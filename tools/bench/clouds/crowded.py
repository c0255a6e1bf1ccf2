# SPDX-License-Identifier: Apache-2.0
"""The made hosts with as many small servers each as are asked for, in place of their few."""

import itertools
import random
import uuid
from collections.abc import Iterator

import attrs

from tools.bench.clouds import cluster

_PROJECTS = 2000


@attrs.frozen
class CrowdedCluster(cluster.Cluster):
    """``size`` hosts with ``servers_per_host`` servers each, the same ones each time."""

    servers_per_host: int = 20

    def hosts(self) -> Iterator[cluster.Host]:
        """Make the hosts in order of their numbers, which begin with 1."""
        chance = random.Random(self.seed)
        numbers = itertools.count(1)
        for host in super().hosts():
            servers = tuple(
                cluster.Instance(
                    number=next(numbers),
                    uuid=str(uuid.UUID(int=chance.getrandbits(128), version=4)),
                    project=chance.randrange(_PROJECTS),
                    vcpus=2,
                    memory_mb=4096,
                    disk_gb=20,
                )
                for _ in range(self.servers_per_host)
            )
            yield attrs.evolve(host, instances=servers)
