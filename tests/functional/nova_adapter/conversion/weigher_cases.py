# SPDX-License-Identifier: Apache-2.0
"""Drawn hosts and requests, as Nova's objects and as ours, from the same values."""

from __future__ import annotations

import datetime
import json
import uuid
from typing import Any

import attrs
from hypothesis import strategies as st
from nova import objects
from nova.pci import stats as pci_stats
from nova.scheduler import host_manager

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame

CELLS = (str(uuid.UUID(int=1)), str(uuid.UUID(int=2)))
MEMBERS = tuple(str(uuid.UUID(int=100 + number)) for number in range(4))
METRICS = ("cpu.percent", "cpu.frequency")

#: Names of weight multipliers, as options and in the metadata of aggregates.
MULTIPLIERS = (
    "ram_weight_multiplier",
    "cpu_weight_multiplier",
    "disk_weight_multiplier",
    "io_ops_weight_multiplier",
    "num_instances_weight_multiplier",
    "hypervisor_version_weight_multiplier",
    "build_failure_weight_multiplier",
    "pci_weight_multiplier",
    "cross_cell_move_weight_multiplier",
    "soft_affinity_weight_multiplier",
    "soft_anti_affinity_weight_multiplier",
    "metrics_weight_multiplier",
    "image_props_weight_multiplier",
)
NOT_NEGATIVE = {
    "pci_weight_multiplier",
    "soft_affinity_weight_multiplier",
    "soft_anti_affinity_weight_multiplier",
}


@attrs.frozen
class Host:
    """What was drawn of one host; None where Nova has None."""

    cell: str
    free_ram_mb: int
    free_disk_mb: int
    vcpus: int
    vcpus_used: int
    cpu_allocation_ratio: float
    num_instances: int
    num_io_ops: int
    failed_builds: int
    hypervisor_version: int | None
    pools: tuple[int, ...] | None
    metrics: dict[str, int] | None
    members: frozenset[str]
    aggregates: frozenset[int]


COUNTS = st.sampled_from([0, 0, 1, 2, 7, 1000])
SPACE = st.one_of(st.sampled_from([-4096, 0, 512]), st.integers(-(2**40), 2**40))
HOST = st.builds(
    Host,
    cell=st.sampled_from(CELLS),
    free_ram_mb=SPACE,
    free_disk_mb=SPACE,
    vcpus=COUNTS,
    vcpus_used=COUNTS,
    cpu_allocation_ratio=st.sampled_from([0.0, 0.1, 1.0, 1.5, 16.0]),
    num_instances=COUNTS,
    num_io_ops=COUNTS,
    failed_builds=COUNTS,
    hypervisor_version=st.sampled_from([None, 0, 2_005_000, 8_002_000]),
    pools=st.one_of(
        st.none(), st.lists(st.sampled_from([0, 1, 30, 99, 100]), max_size=3).map(tuple)
    ),
    metrics=st.one_of(
        st.none(),
        st.just(dict.fromkeys(METRICS, 7)),
        st.dictionaries(st.sampled_from(METRICS), st.integers(-9, 2**40)),
    ),
    members=st.frozensets(st.sampled_from(MEMBERS)),
    aggregates=st.frozensets(st.integers(0, 3), max_size=3),
)
OVERRIDE = st.sampled_from(["0", "-1.5", " 2 ", "3e2", "0.1", "seven", "", "1,0"])
AGGREGATES = st.lists(
    st.dictionaries(st.sampled_from(MULTIPLIERS), OVERRIDE, max_size=4), min_size=4, max_size=4
)
NUMBERS = st.sampled_from([-2.5, 0.0, 0.0, 0.1, 1.0, 1e6])


@attrs.frozen
class Asked:
    """What was drawn of the request."""

    policy: str | None
    members: frozenset[str]
    cell: str | None
    has_destination: bool
    may_cross: bool
    image: dict[str, str] | None
    forced: bool
    devices: int = 0


ASKED = st.builds(
    Asked,
    policy=st.sampled_from([None, "affinity", *["soft-affinity", "soft-anti-affinity"] * 2]),
    members=st.frozensets(st.sampled_from(MEMBERS)),
    cell=st.sampled_from([None, *CELLS * 2]),
    has_destination=st.sampled_from([False, True, True]),
    may_cross=st.sampled_from([False, True, True]),
    image=st.sampled_from([None, {}, {"hw_machine_type": "q35"}]),
    forced=st.booleans(),
    devices=st.sampled_from([0, 1]),
)


def nova_aggregates(metadata: list[dict[str, str]]) -> list[Any]:
    return [
        objects.Aggregate(id=number, uuid=str(uuid.UUID(int=number)), metadata=each)
        for number, each in enumerate(metadata)
    ]


def host_state(number: int, host: Host, aggregates: list[Any]) -> Any:
    """Return Nova's host state."""
    state = host_manager.HostState(f"h{number}", f"n{number}", host.cell)
    state.uuid = str(uuid.UUID(int=1000 + number))
    for name in (
        "free_ram_mb",
        "free_disk_mb",
        "vcpus_used",
        "cpu_allocation_ratio",
        "num_instances",
        "num_io_ops",
        "failed_builds",
        "hypervisor_version",
    ):
        setattr(state, name, getattr(host, name))
    state.vcpus_total = host.vcpus
    if host.pools is not None:
        state.pci_stats = pci_stats.PciDeviceStats(None)
        state.pci_stats.pools = [{"count": count} for count in host.pools]
    if host.metrics is not None:
        time = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC).isoformat()
        state.metrics = objects.MonitorMetricList.from_json(
            json.dumps(
                [
                    {"name": name, "value": value, "source": "s", "timestamp": time}
                    for name, value in host.metrics.items()
                ]
            )
        )
    state.instances = dict.fromkeys(host.members)
    state.aggregates = [aggregates[index] for index in sorted(host.aggregates)]
    return state


def frame(
    hosts: list[Host], states: list[Any], metadata: list[dict[str, str]]
) -> tuple[host_frame.HostFrame, list[int]]:
    """Return our frame and each host's row."""
    names = {state.uuid: (host.cell, state.host) for host, state in zip(hosts, states, strict=True)}
    metrics = {
        state.uuid: {metric.name: metric.value for metric in state.metrics or ()}
        for state in states
    }
    made = host_frame.HostFrame(
        locate=lambda member: [
            names[state.uuid]
            for host, state in zip(hosts, states, strict=True)
            if member in host.members
        ],
        attribute=lambda node, path: metrics[node].get(path[1]),
    )
    made.set_aggregates(
        host_facts.HostAggregate(str(uuid.UUID(int=number)), number, "", each)
        for number, each in enumerate(metadata)
    )
    rows = [
        made.put(
            host_facts.HostFacts(
                uuid=state.uuid,
                cell=host.cell,
                host=state.host,
                node=state.nodename,
                free_ram_mb=host.free_ram_mb,
                free_disk_mb=host.free_disk_mb,
                vcpus=host.vcpus,
                vcpus_used=host.vcpus_used,
                cpu_allocation_ratio=host.cpu_allocation_ratio,
                num_instances=host.num_instances,
                num_io_ops=host.num_io_ops,
                failed_builds=host.failed_builds,
                hypervisor_version=host.hypervisor_version or 0,
                pci_free=sum(host.pools or ()),
                aggregates=tuple(str(uuid.UUID(int=index)) for index in sorted(host.aggregates)),
            )
        )
        for host, state in zip(hosts, states, strict=True)
    ]
    return made, rows


def request_spec(asked: Asked) -> Any:
    """Return Nova's request."""
    devices = [objects.InstancePCIRequest(count=asked.devices)] if asked.devices else []
    spec = objects.RequestSpec(
        instance_group=None,
        requested_destination=None,
        image=None,
        pci_requests=objects.InstancePCIRequests(requests=devices),
    )
    if asked.policy:
        spec.instance_group = objects.InstanceGroup(
            policy=asked.policy, members=sorted(asked.members)
        )
    if asked.has_destination:
        spec.requested_destination = objects.Destination(allow_cross_cell_move=asked.may_cross)
        if asked.cell:
            spec.requested_destination.cell = objects.CellMapping(uuid=asked.cell)
    if asked.image is not None:
        spec.image = objects.ImageMeta(properties=objects.ImageMetaProps(**asked.image))
    return spec


def request(asked: Asked) -> requests.Request:
    """Return our request."""
    return requests.Request(
        flavor=requests.Flavor(),
        group=requests.Group(uuid=None, policy=asked.policy, members=asked.members)
        if asked.policy
        else None,
        destination=requests.Destination(cell=asked.cell, allow_cross_cell_move=asked.may_cross)
        if asked.has_destination
        else None,
        image=None if asked.image is None else requests.Image(properties=asked.image),
        force_hosts=("h0",) if asked.forced else (),
        needs_pci=bool(asked.devices),
    )
