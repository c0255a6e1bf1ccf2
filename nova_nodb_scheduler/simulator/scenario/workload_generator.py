# SPDX-License-Identifier: Apache-2.0
"""Makes a synthetic workload with the marginals of published clouds.

Nothing here is a trace. What the marginals follow, rounded:

- VM types, request sizes and lifetimes: "Resource Central", Cortez et al.,
  SOSP 2017, section 3: some 80% of VMs have one or two cores and 70% less than
  4 GiB; 40% of deployments are one VM and 80% at most five; over 90% of
  lifetimes are shorter than a day, with a heavy tail. The long-lived VMs hold
  most of the core hours.
- Arrivals come in bursts: inter-arrival times of a Weibull distribution with a
  shape below 1, as the same paper finds.
- Most requests repeat one of a few VM types, which is what the placement
  caches of "Protean", Hadary et al., OSDI 2020, live on. Four in five, here.
"""

from __future__ import annotations

import math
import random

import attrs

from nova_nodb_scheduler.simulator.scenario import workload

#: A VM type and its share of the requests that repeat one.
_REPEATED = (
    (workload.MadeFlavor("r1.tiny", 1, 1024, 10), 0.30),
    (workload.MadeFlavor("r1.small", 1, 2048, 20), 0.24),
    (workload.MadeFlavor("r2.small", 2, 3584, 20), 0.20),
    (workload.MadeFlavor("r2.medium", 2, 8192, 40), 0.10),
    (workload.MadeFlavor("r4.medium", 4, 8192, 40), 0.08),
    (workload.MadeFlavor("r4.large", 4, 16384, 80), 0.04),
    (workload.MadeFlavor("r8.large", 8, 32768, 80), 0.03),
    (workload.MadeFlavor("r16.large", 16, 65536, 160), 0.01),
)
_CORES = ((1, 0.5), (2, 0.3), (4, 0.13), (8, 0.05), (16, 0.02))

#: Share of requests with at most so many servers.
_SIZES = ((1, 0.40), (2, 0.60), (3, 0.70), (5, 0.80), (10, 0.90), (20, 0.97), (50, 1.0))

_DAY_SECONDS = 86_400.0
_SHORT_LIVED = 0.92


@attrs.frozen(kw_only=True)
class GeneratorOptions:
    """What to make.

    :param requests: how many
    :param requests_per_second: mean rate of arrival, simulated
    :param burstiness: shape of the Weibull distribution of the times between
        two arrivals: 1 has no memory, less comes in bursts; 0.2 to 1
    :param repeat_share: share of the requests that repeat one of a few VM types
    :param most_servers: larger requests are cut to it
    :param lifetime_scale: all lifetimes are multiplied by it, so that a short
        run sees servers come and go
    :param immortal: servers outlive the run
    """

    requests: int = 1000
    requests_per_second: float = 10.0
    burstiness: float = 0.6
    repeat_share: float = 0.8
    most_servers: int = 10
    lifetime_scale: float = 0.01
    immortal: bool = False
    seed: int = 1


def generate(options: GeneratorOptions) -> tuple[workload.Arrival, ...]:
    """Make a workload; the same for the same options."""
    chance = random.Random(f"workload {options.seed}")
    # The mean of a Weibull distribution is scale * gamma(1 + 1 / shape).
    scale = 1 / options.requests_per_second / math.gamma(1 + 1 / options.burstiness)
    now = 0.0
    arrivals = []
    for _ in range(options.requests):
        now += chance.weibullvariate(scale, options.burstiness)
        arrivals.append(
            workload.Arrival(
                number=0,
                at_seconds=now,
                flavor=_flavor(chance, options.repeat_share),
                servers=min(_size(chance), options.most_servers),
                lifetime_seconds=None
                if options.immortal
                else _lifetime_seconds(chance) * options.lifetime_scale,
            )
        )
    return workload.numbered(arrivals)


def _flavor(chance: random.Random, repeat_share: float) -> workload.MadeFlavor:
    if chance.random() < repeat_share:
        shares = [share for _, share in _REPEATED]
        return chance.choices(_REPEATED, shares)[0][0]
    vcpus = chance.choices(_CORES, [share for _, share in _CORES])[0][0]
    # Seldom seen twice: memory in steps of 64 MiB, between 0.5 and 8 GiB a core.
    memory_mb = 64 * max(8, round(vcpus * chance.lognormvariate(math.log(32), 0.6)))
    memory_mb = min(memory_mb, vcpus * 8192)
    disk_gb = chance.randrange(5, 100)
    return workload.MadeFlavor(f"own-{vcpus}-{memory_mb}-{disk_gb}", vcpus, memory_mb, disk_gb)


def _size(chance: random.Random) -> int:
    drawn, before = chance.random(), 0
    for size, share in _SIZES:
        if drawn < share:
            return chance.randint(before + 1, size)
        before = size
    return _SIZES[-1][0]


def _lifetime_seconds(chance: random.Random) -> float:
    if chance.random() < _SHORT_LIVED:
        # Median a quarter of an hour.
        return min(chance.lognormvariate(math.log(900), 1.6), _DAY_SECONDS)
    return _DAY_SECONDS * chance.paretovariate(1.1)
