# SPDX-License-Identifier: Apache-2.0
"""Strategies for rows of compute_nodes and services: a sound row, and oddities put on it."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from nova import objects
from oslo_serialization import jsonutils

from tests.differential import cases
from tests.differential.drawn import dice, words

Row = dict[str, Any]

_LONG_AGO = words.NOW - datetime.timedelta(days=3)


@functools.cache
def numa_topology(
    cells: int,
    cpus: int,
    pinned: int | tuple[int, ...],
    threads: int,
    memory_mb: int,
    shared: int | None = None,
    huge_used: int = 0,
) -> str:
    """Return a host's NUMA topology as its row has it; CPU numbers are pinned first.

    :param pinned: how many CPUs, in every cell or in one after the other
    :param shared: so many of a cell's last CPUs are shared, and the others pinned; None:
        all are either, as with vcpu_pin_set
    """
    objects.register_all()
    made = []
    for cell in range(cells):
        numbers = list(range(cell * cpus, (cell + 1) * cpus))
        siblings = [set(numbers[at : at + threads]) for at in range(0, cpus, threads)]
        own = pinned if isinstance(pinned, int) else pinned[cell % len(pinned)]
        dedicated = numbers if shared is None else numbers[: cpus - shared]
        own = min(own, len(dedicated))
        huge = 64 * cell if shared is None else 256
        made.append(
            objects.NUMACell(
                id=cell,
                socket=cell,
                cpuset=set(numbers if shared is None else numbers[cpus - shared :]),
                pcpuset=set(dedicated),
                memory=memory_mb,
                cpu_usage=own,
                memory_usage=memory_mb // 8 * own,
                pinned_cpus=set(dedicated[:own]),
                siblings=siblings,
                mempages=[
                    objects.NUMAPagesTopology(size_kb=4, total=memory_mb * 256, used=0, reserved=0),
                    objects.NUMAPagesTopology(
                        size_kb=2048, total=huge, used=min(huge_used, huge), reserved=0
                    ),
                ],
                network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
            )
        )
    return str(objects.NUMATopology(cells=made)._to_json())


def _pools(*pools: Mapping[str, Any]) -> str:
    return jsonutils.dumps(list(pools))


def _pool(count: int, numa_node: int | None = None, product: str = "1520") -> Row:
    return {
        "vendor_id": "8086",
        "product_id": product,
        "numa_node": numa_node,
        "count": count,
        "dev_type": "type-PCI",
        "address": "0000:81:00.0",
    }


def metrics(*values: tuple[str, Any]) -> str:
    """Return the JSON of some metrics."""
    return jsonutils.dumps(
        [
            {"name": name, "value": value, "timestamp": "2026-01-01T11:59:00Z", "source": "x"}
            for name, value in values
        ]
    )


_X86 = ["x86_64", "kvm", "hvm"]
_I686 = ["i686", "qemu", "hvm"]
_ARM = ["aarch64", "qemu", "xen"]
_CPU = {"vendor": "Intel", "features": ["aes", "vmx"], "topology": {"cores": 4}}

#: What may be odd about a node; each replaces columns of a sound row.
ODD_NODES: tuple[Row, ...] = (
    {"free_ram_mb": -512},
    {"free_ram_mb": 0},
    {"free_ram_mb": 1000},
    {"free_ram_mb": 100_000, "memory_mb": 120_000},
    {"free_disk_gb": 0},
    {"free_disk_gb": -3, "disk_available_least": None},
    {"disk_available_least": None},
    {"disk_available_least": 400},
    {"disk_available_least": -7},
    {"disk_available_least": 0},
    {"vcpus": 0},
    {"vcpus": 64},
    {"vcpus_used": 9},
    {"vcpus": 4, "vcpus_used": 100},
    {"memory_mb": 0, "free_ram_mb": 0},
    {"local_gb": 0, "free_disk_gb": 0, "disk_available_least": None},
    {"cpu_allocation_ratio": None},
    {"cpu_allocation_ratio": 0.0},
    {"cpu_allocation_ratio": 16.0, "ram_allocation_ratio": 1.5},
    {"cpu_allocation_ratio": 0.3},
    {"ram_allocation_ratio": None, "disk_allocation_ratio": None},
    {"stats": "{}"},
    {"stats": jsonutils.dumps({"num_instances": "60", "io_workload": "9"})},
    {"stats": jsonutils.dumps({"num_instances": 4, "io_workload": 3, "failed_builds": "2"})},
    {"stats": jsonutils.dumps({"num_instances": "2", "io_workload": "2", "failed_builds": 7})},
    {"stats": jsonutils.dumps({"io_workload": "7", "ssd": "true", "level": "3"})},
    {"stats": jsonutils.dumps({"num_instances": "1", "ssd": "false", "deep": '{"a": 1}'})},
    {"hypervisor_version": 0},
    {"hypervisor_version": 2012000},
    {"hypervisor_version": 10_000_000},
    {"hypervisor_type": "ironic"},
    {"hypervisor_type": "kvm"},
    {"cpu_info": ""},
    {"cpu_info": "not json"},
    {"cpu_info": jsonutils.dumps({**_CPU, "maxphysaddr": {"mode": "emulate", "bits": 42}})},
    {"cpu_info": jsonutils.dumps({"vendor": "AMD", "features": [], "maxphysaddr": {}})},
    {"supported_instances": "[]"},
    {"supported_instances": jsonutils.dumps([_ARM])},
    {"supported_instances": jsonutils.dumps([_I686])},
    {"supported_instances": jsonutils.dumps([_I686, _X86])},
    {"metrics": None},
    {"metrics": metrics(("cpu.frequency", 1000))},
    {"metrics": metrics(("cpu.frequency", 3000), ("cpu.user.percent", 0.5))},
    {"metrics": metrics(("cpu.user.percent", 0.25), ("numa.membw.max", -5))},
    {"metrics": metrics(*((name, 7) for name in words.METRICS))},
    {"numa_topology": None},
    {"numa_topology": ("numa", 1, 8, 0, 1, 16384)},
    {"numa_topology": ("numa", 2, 4, 0, 2, 8192)},
    {"numa_topology": ("numa", 2, 4, 2, 2, 8192)},
    {"numa_topology": ("numa", 2, 2, 1, 1, 2048)},
    {"pci_stats": None},
    {"pci_stats": "[]"},
    {"pci_stats": _pools(_pool(1))},
    {"pci_stats": _pools(_pool(3), _pool(2, 1))},
    {"pci_stats": _pools(_pool(120, 0))},
    {"pci_stats": _pools(_pool(4, None, "9999"))},
    {"host_ip": "192.0.3.77"},
    {"host_ip": "192.0.2.200"},
    {"updated_at": None},
)

#: A node whose usage was never reported: Nova leaves its state empty.
NEVER_UPDATED: Row = {"free_disk_gb": None, "free_ram_mb": None, "disk_available_least": None}

#: Columns without which Nova's own code fails for every request.
_UNREADABLE: tuple[Row, ...] = ({"stats": None}, {"supported_instances": None})

_SERVICES: tuple[Row, ...] = (
    {},
    {},
    {},
    {},
    {"disabled": True, "disabled_reason": "upgrade"},
    {"forced_down": True},
    {"seen": 59},
    {"seen": 60},
    {"seen": 61},
    {"seen": -61},
    {"seen": None},
    {"seen": None, "created_at": words.NOW},
)


def node_row(number: int, host: str, name: str, odd: Mapping[str, Any]) -> Row:
    """Return a row of compute_nodes."""
    row: Row = {
        "id": number + 1,
        "uuid": words.made_uuid("node", number),
        "service_id": None,
        "host": host,
        "hypervisor_hostname": name,
        "vcpus": 8,
        "memory_mb": 16384,
        "local_gb": 100,
        "vcpus_used": 1,
        "memory_mb_used": 512,
        "local_gb_used": 5,
        "hypervisor_type": "QEMU",
        "hypervisor_version": 6002000,
        "free_ram_mb": 15872,
        "free_disk_gb": 95,
        "current_workload": 0,
        "running_vms": 1,
        "cpu_info": jsonutils.dumps(_CPU),
        "disk_available_least": 90,
        "host_ip": f"192.0.2.{number + 1}",
        "supported_instances": jsonutils.dumps([_X86]),
        "metrics": "[]",
        "pci_stats": "[]",
        "extra_resources": None,
        "stats": jsonutils.dumps({"num_instances": "2", "io_workload": "1", "failed_builds": "0"}),
        "numa_topology": None,
        "ram_allocation_ratio": 1.0,
        "cpu_allocation_ratio": 4.0,
        "disk_allocation_ratio": 1.0,
        "mapped": 1,
        "created_at": _LONG_AGO,
        "updated_at": words.NOW - datetime.timedelta(seconds=30),
        "deleted_at": None,
        "deleted": 0,
    }
    row.update(odd)
    if isinstance(row["numa_topology"], tuple):
        row["numa_topology"] = numa_topology(*row["numa_topology"][1:])
    return row


def service_row(number: int, host: str, odd: Mapping[str, Any]) -> Row:
    """Return a row of services; ``seen``: seconds since it was heard of, None for never."""
    odd = dict(odd)
    seen = odd.pop("seen", 10)
    last = None if seen is None else words.NOW - datetime.timedelta(seconds=seen)
    return {
        "id": number + 1,
        "uuid": words.made_uuid("service", number),
        "host": host,
        "binary": "nova-compute",
        "topic": "compute",
        "report_count": 0 if last is None else 7,
        "disabled": False,
        "disabled_reason": None,
        "last_seen_up": last,
        "forced_down": False,
        "version": 70,
        "created_at": _LONG_AGO,
        "updated_at": last,
        "deleted_at": None,
        "deleted": 0,
        **odd,
    }


def _nearly_used_up(rolled: dice.Dice) -> Row:
    """Return a NUMA topology and PCI pools with little left, here or there."""
    pinned = tuple(rolled.one((8, 7, 6, 4, 4, 0)) for _ in range(4))
    shared, cells = rolled.one((None, 0, 4, 2)), rolled.one((2, 1, 2, 4))
    sizes = rolled.one((1, 2, 2)), rolled.one((8192, 2048, 4096))
    pools = [
        _pool(rolled.one((1, 0, 2, 3)), rolled.one((None, 0, 0, 1)), rolled.one(("1520", "9999")))
        for _ in range(rolled.one((2, 1, 3)))
    ]
    return {
        "numa_topology": ("numa", cells, 8, pinned, *sizes, shared, rolled.one((0, 250, 256))),
        "pci_stats": _pools(*pools),
    }


def _odd_columns(rolled: dice.Dice, scarce: bool = False) -> Row:
    """Return what is odd about a node: up to four oddities, in one of 120 no usage yet.

    :param scarce: its NUMA cells and PCI pools are nearly used up
    """
    columns: Row = {}
    for each in rolled.some(ODD_NODES, 2 if scarce else 4):
        columns.update(each)
    if scarce:
        columns.update(_nearly_used_up(rolled))
    if rolled.once_in(200):
        columns.update(rolled.one(_UNREADABLE))
    return {**columns, **NEVER_UPDATED} if rolled.once_in(120) else columns


@st.composite
def hosts(
    draw: st.DrawFn, at_most: int = 8, *, scarce: bool = False
) -> tuple[list[cases.Node], list[cases.Service]]:
    """Draw hosts of both cells: some with two nodes, some without a service.

    :param scarce: their NUMA cells and PCI pools are nearly used up
    """
    nodes: list[cases.Node] = []
    services: list[cases.Service] = []
    least = at_most // 2 if scarce else 1
    for at, rolled in enumerate(draw(st.lists(dice.dice(), min_size=least, max_size=at_most))):
        host = words.HOSTS[at]
        cell = rolled.one((words.CELL1, words.CELL1, words.CELL2))
        for nth in range(2 if rolled.once_in(8) else 1):
            name = f"node-{host}" if nth == 0 else f"node-{host}-{nth}"
            row = node_row(len(nodes), host, name, _odd_columns(rolled, scarce))
            nodes.append(cases.Node(cell, row))
        if not rolled.once_in(40):
            services.append(cases.Service(cell, service_row(at, host, rolled.one(_SERVICES))))
    return nodes, services


def reported(node: cases.Node, rolled: dice.Dice) -> cases.Node:
    """Return a node after its service reported something else."""
    number = int(node.row["id"]) - 1
    name = str(node.row["hypervisor_hostname"])
    return cases.Node(node.cell, node_row(number, node.host, name, _odd_columns(rolled)))


def heard_of(service: cases.Service, rolled: dice.Dice) -> cases.Service:
    """Return a service after its heartbeat, its silence, or an operator's word."""
    number = int(service.row["id"]) - 1
    odd = rolled.one(_SERVICES)
    return cases.Service(service.cell, service_row(number, str(service.row["host"]), odd))
