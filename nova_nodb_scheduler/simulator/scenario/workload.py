# SPDX-License-Identifier: Apache-2.0
"""What is asked of the schedulers in a run, as frozen values."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.simulator.scenario import made_hosts

#: Whose requests are that no project was drawn for.
PROJECT = "simulated"


class InvalidFile(errors.NodbError):
    """A workload or a timeline cannot be read.

    :param place: ``file:line:column``, both counted from 1; an option's name
        where it was no file
    :param reason: what is wrong there, and what would be right
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place, self.reason = place, reason

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@attrs.frozen
class MadeFlavor:
    """A VM type. ``memory_mb`` in MiB, ``disk_gb`` in GiB."""

    name: str
    vcpus: int
    memory_mb: int
    disk_gb: int

    @functools.cached_property
    def resources(self) -> Mapping[str, int]:
        """What a server takes by resource class; classes of which it takes nothing left out."""
        taken = {
            made_hosts.VCPU: self.vcpus,
            made_hosts.MEMORY_MB: self.memory_mb,
            made_hosts.DISK_GB: self.disk_gb,
        }
        return {name: amount for name, amount in taken.items() if amount}


@attrs.frozen
class Arrival:
    """One request.

    :param number: counted from 0 in the order of arrival
    :param first_server: number of its first server within the run
    :param lifetime_seconds: None where its servers outlive the run
    :param priority_class: empty where nobody waits
    """

    number: int
    at_seconds: float
    flavor: MadeFlavor
    servers: int = 1
    first_server: int = 0
    lifetime_seconds: float | None = None
    project_id: str = PROJECT
    priority_class: str = ""

    def uuids(self, seed: int) -> tuple[str, ...]:
        """Return the uuids of its servers in a run of that seed."""
        last = self.first_server + self.servers
        return tuple(made_hosts.server_uuid(seed, n) for n in range(self.first_server, last))


def request(flavor: MadeFlavor, instance_uuid: str, project_id: str = PROJECT) -> requests.Request:
    """Return a request as the plugin makes it of Nova's, after the request filters.

    The disabled trait is what Nova's own request filter forbids.
    """
    return requests.Request(
        flavor=requests.Flavor(
            name=flavor.name,
            vcpus=flavor.vcpus,
            memory_mb=flavor.memory_mb,
            root_gb=flavor.disk_gb,
        ),
        project_id=project_id,
        user_id="simulated",
        instance_uuid=instance_uuid,
        cells=frozenset((made_hosts.CELL,)),
        queries=(
            requests.CandidateQuery(
                resources=flavor.resources,
                root_forbidden=frozenset(("COMPUTE_STATUS_DISABLED",)),
            ),
        ),
    )


def numbered(arrivals: list[Arrival]) -> tuple[Arrival, ...]:
    """Return arrivals in the order of their times, with their numbers set."""
    ordered = sorted(arrivals, key=lambda each: each.at_seconds)
    made, first_server = [], 0
    for number, each in enumerate(ordered):
        made.append(attrs.evolve(each, number=number, first_server=first_server))
        first_server += each.servers
    return tuple(made)
