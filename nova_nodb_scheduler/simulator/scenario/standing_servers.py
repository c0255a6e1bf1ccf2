# SPDX-License-Identifier: Apache-2.0
"""Servers that stand on made hosts since before a run, each with records of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import attrs

from nova_nodb_scheduler.simulator.scenario import made_hosts, workload

#: Share of each of a host's resources that they take at the most.
_MOST_SHARE = 0.95
#: Flavors that are drawn for a place before the host counts as full.
_TRIES = 8


@attrs.frozen
class StandingServer:
    """One of them.

    :param host_uuid: of the host it stands on
    """

    uuid: str
    flavor: workload.MadeFlavor
    host_uuid: str


def draw(
    cluster: made_hosts.Cluster, per_host: int, flavors: Sequence[workload.MadeFlavor]
) -> Iterator[StandingServer]:
    """Make so many servers for each host, or as many as fit; the same for the same arguments.

    :param flavors: they are drawn of, each as often as it is there
    """
    chance = random.Random(f"standing {cluster.options.seed}")
    for host in cluster.hosts:
        room = {name: int(amount * _MOST_SHARE) for name, amount in host.capacity.items()}
        for name, amount in host.resident.items():
            room[name] -= amount
        for number in range(per_host):
            flavor = _fitting(room, flavors, chance)
            if flavor is None:
                break
            for name, amount in flavor.resources.items():
                room[name] -= amount
            yield StandingServer(host.standing_uuid(number), flavor, host.uuid)


def _fitting(
    room: dict[str, int], flavors: Sequence[workload.MadeFlavor], chance: random.Random
) -> workload.MadeFlavor | None:
    for _ in range(_TRIES):
        flavor = chance.choice(flavors)
        if all(amount <= room.get(name, 0) for name, amount in flavor.resources.items()):
            return flavor
    return None
