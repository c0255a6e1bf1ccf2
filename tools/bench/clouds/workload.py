# SPDX-License-Identifier: Apache-2.0
"""The stream of requests: flavors of which four in five requests repeat one of a few.

The stream depends on the seed alone, so that both sides are asked for the same, in one order.
"""

import random
from collections.abc import Iterator

import attrs

from tools.bench.clouds import cluster

REPEATED_SHARE = 0.8


@attrs.frozen
class Flavor:
    """What a server asks for; ``memory_mb`` in MiB, ``disk_gb`` in GiB."""

    name: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    traits: tuple[str, ...] = ()

    @property
    def extra_specs(self) -> dict[str, str]:
        return {f"trait:{name}": "required" for name in self.traits}


@attrs.frozen
class Request:
    """One call of select_destinations, for one server or several alike."""

    flavor: Flavor
    zone: str | None


REPEATED = (
    Flavor("m1.tiny", 1, 512, 1),
    Flavor("m1.small", 1, 2048, 20),
    Flavor("m1.medium", 2, 4096, 40),
    Flavor("m1.large", 4, 8192, 80),
    Flavor("c1.avx512", 4, 8192, 80, (cluster.AVX512,)),
)


def stream(seed: int) -> Iterator[Request]:
    """Yield requests without end. One in five is for a size that hardly ever comes again."""
    chance = random.Random(seed)
    while True:
        if chance.random() < REPEATED_SHARE:
            yield Request(chance.choice(REPEATED), None)
            continue
        flavor = Flavor(
            "rare",
            chance.randint(1, 8),
            256 * chance.randint(2, 64),
            chance.randint(1, 100),
        )
        zone = cluster.zone(chance.randint(1, cluster.ZONES))
        yield Request(flavor, zone if chance.random() < 0.5 else None)
