# SPDX-License-Identifier: Apache-2.0
"""Strategies for requests: a flavor, an image and whatever else Nova's RequestSpec takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from hypothesis import strategies as st
from oslo_serialization import jsonutils

from tests.differential.drawn import dice, words


@attrs.frozen
class Asked:
    """One request as drawn; :mod:`.specs` makes Nova's RequestSpec of it.

    :param group: policy, members, hosts and rules of a server group
    :param destination: host, node, cell, allow_cross_cell_move, aggregates
    :param pci: (count, product, numa policy) of devices
    :param servers: how many servers, one to four
    """

    flavor: Mapping[str, Any]
    extra_specs: Mapping[str, str]
    image: Mapping[str, Any] = attrs.field(factory=dict)
    image_id: str | None = None
    disk_format: str = "qcow2"
    project: str = "p1"
    hints: Mapping[str, list[str]] | None = None
    group: Mapping[str, Any] | None = None
    zone: str | None = None
    destination: Mapping[str, Any] | None = None
    ignore_hosts: list[str] | None = None
    force_hosts: list[str] | None = None
    force_nodes: list[str] | None = None
    pci: tuple[tuple[int, str, str | None], ...] = ()
    volume: bool = False
    servers: int = 1


POLICIES = ("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")

_A = "aggregate_instance_extra_specs:"

EXTRA_SPECS: tuple[Mapping[str, str], ...] = (
    {"ssd": "true"},
    {_A + "ssd": "true"},
    {_A + "ssd": "<in> tru"},
    {_A + "ssd": "<or> false <or> maybe"},
    {_A + "level": ">= 2"},
    {_A + "level": "s!= 3"},
    {_A + "level": "= 1"},
    {_A + "missing": "x"},
    {"capabilities:hypervisor_type": "QEMU"},
    {"capabilities:hypervisor_type": "s!= QEMU"},
    {"capabilities:hypervisor_version": ">= 6002000"},
    {"capabilities:hypervisor_version": "<= 2012000"},
    {"capabilities:cpu_info:vendor": "<in> Inte"},
    {"capabilities:cpu_info:features": "<all-in> aes vmx"},
    {"capabilities:cpu_info:topology:cores": "== 4"},
    {"capabilities:cpu_info": "<in> Intel"},
    {"capabilities:free_ram_mb": ">= 1000"},
    {"capabilities:free_disk_mb": ">= 90000"},
    {"capabilities:num_instances": "<= 2"},
    {"capabilities:vcpus_used": "== 1"},
    {"capabilities:ssd": "<or> true <or> yes"},
    {"capabilities:stats:ssd": "s== true"},
    {"capabilities:deep:a": "1"},
    {"capabilities:host_ip": "s>= 192.0.3.0"},
    {"capabilities:host": "h2"},
    {"capabilities:nonsense:x": "1"},
    {"capabilities:level": "= 2"},
    {"vcpus_total": "8"},
    {"failed_builds": "0"},
    {"level": ">= 2"},
    {"hw:maxphysaddr_mode": "emulate", "hw:maxphysaddr_bits": "42"},
    {"hw:mem_page_size": "large"},
    {"unknown:thing": "5"},
    {"resources:CUSTOM_GOLD": "1"},
    {"resources:CUSTOM_GOLD": "2"},
    {"resources:VCPU": "0"},
    {"resources:DISK_GB": "0", "resources:MEMORY_MB": "0"},
    {"resources:VGPU": "1"},
    {"resources:SRIOV_NET_VF": "2"},
    {"resources:CUSTOM_UNHEARD_OF": "1"},
    {"resources:VCPU": "2"},
    {"resources1:VCPU": "1"},
    {"trait:CUSTOM_A": "required"},
    {"trait:CUSTOM_B": "forbidden"},
    {"trait:CUSTOM_A": "forbidden", "trait:CUSTOM_B": "required"},
    {"trait:CUSTOM_UNHEARD_OF": "required"},
    {"trait:HW_CPU_X86_AVX": "forbidden"},
    {"trait:CUSTOM_UNHEARD_OF": "forbidden"},
    {"hw:cpu_policy": "dedicated"},
    {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "require"},
    {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate"},
    {"hw:numa_nodes": "1"},
    {"hw:numa_nodes": "2"},
)

IMAGE_PROPERTIES: tuple[Mapping[str, Any], ...] = (
    {"hw_architecture": "x86_64"},
    {"hw_architecture": "aarch64"},
    {"img_hv_type": "qemu"},
    {"img_hv_type": "kvm", "hw_vm_mode": "hvm"},
    {"hw_vm_mode": "xen"},
    {"img_hv_type": "kvm", "img_hv_requested_version": ">=6.0,<6.2.1"},
    {"hw_architecture": "x86_64", "img_hv_requested_version": ">7"},
    {"os_distro": "ubuntu", "os_type": "linux"},
    {"os_distro": "debian"},
    {"os_type": "windows", "hw_machine_type": "q35"},
    {"traits_required": ["CUSTOM_A"]},
    {"hw_disk_bus": "virtio", "hw_vif_model": "virtio"},
    {"hw_maxphysaddr_bits": 40},
    {"hw_cpu_policy": "dedicated"},
)

_QUERIES: tuple[Any, ...] = (
    [">=", "$free_ram_mb", 1024],
    ["<", "$vcpus_used", 2],
    ["and", [">", "$free_disk_mb", 10240], ["=", "$hypervisor_type", "QEMU"]],
    ["or", ["=", "$host", "h2"], ["=", "$nodename", "node-H1"]],
    ["not", ["in", "$host", "h0", "h3"]],
    ["=", "$stats.ssd", "true"],
    ["<=", "$num_instances", 2, 3],
    ["=", "$service.disabled", False],
    ["not", ["=", "$nothing", 1]],
    ["in", "$hypervisor_hostname", "node-h0", "node-h2"],
    ["=", "$uuid"],
    [">", "$metrics.x", 1],
    [],
)


def _instances(rolled: dice.Dice) -> list[str]:
    found = rolled.some((*words.INSTANCES, "not-an-instance"), 4)
    return found or [words.INSTANCES[0]]


def _near(rolled: dice.Dice) -> Mapping[str, list[str]]:
    cidr = rolled.one((None, "/24", "/30", "/32"))
    made = {"build_near_host_ip": [rolled.one(("192.0.2.1", "192.0.3.70"))]}
    return {**made, "cidr": [cidr]} if cidr else made


HINTS: Mapping[str, Callable[[dice.Dice], Mapping[str, list[str]]]] = {
    "SameHostFilter": lambda rolled: {"same_host": _instances(rolled)},
    "DifferentHostFilter": lambda rolled: {"different_host": _instances(rolled)},
    "SimpleCIDRAffinityFilter": _near,
    "JsonFilter": lambda rolled: {"query": [jsonutils.dumps(rolled.one(_QUERIES))]},
    "AllHostsFilter": lambda rolled: {"something": ["else"]},
}


def group(rolled: dice.Dice, policies: Sequence[str] = POLICIES) -> Mapping[str, Any]:
    """Return a server group as the conductor hands it over."""
    policy = rolled.one(policies)
    rules: dict[str, str] = {}
    if policy == "anti-affinity" and rolled.once_in(2):
        rules["max_server_per_host"] = rolled.one(("1", "2", "3"))
    return {
        "policy": policy,
        "members": [*rolled.some(words.INSTANCES, 6), *words.NEW_INSTANCES],
        "hosts": rolled.one(("of members", "of members", [])),
        "rules": rules,
    }


def destination(rolled: dice.Dice) -> Mapping[str, Any]:
    """Return a requested destination."""
    host = rolled.one(words.HOSTS[:6])
    cell = rolled.one(words.CELLS)
    others = (*words.AGGREGATES[:3], words.FOREIGN_AGGREGATE)
    sets = [",".join(rolled.some(others, 2) or others[:1]) for _ in range(rolled.one((1, 2)))]
    return rolled.one(
        (
            {"host": host, "node": None},
            {"host": host, "node": f"node-{host}"},
            {"cell": cell},
            {"cell": cell, "allow_cross_cell_move": True},
            {"cell": cell, "allow_cross_cell_move": True},
            {"aggregates": sets},
        )
    )


_NAMES = (*words.HOSTS[:6], "h1", "H2", "nowhere")


@st.composite
def requests(draw: st.DrawFn, enabled: Sequence[str] = (), *, fitted: bool = False) -> Asked:
    """Draw a request: mostly plain, with a few wishes of any kind.

    :param enabled: filters, each of which gets something to look at half the time
    :param fitted: it is for NUMA cells, for PCI devices, or for both
    """
    extra: dict[str, str] = {}
    for each in draw(st.lists(st.sampled_from(EXTRA_SPECS), max_size=2)):
        extra.update(each)
    image: dict[str, Any] = {}
    for properties in draw(st.lists(st.sampled_from(IMAGE_PROPERTIES), max_size=2)):
        image.update(properties)
    more: dict[str, Any] = {}
    for rolled in draw(st.lists(dice.dice(), max_size=2)):
        more.update(rolled.one(WISHES)(rolled))
    rolled = draw(dice.dice())
    hints = dict(more.pop("hints", {}))
    for name in enabled:
        if not rolled.once_in(2):
            continue
        if name in HINTS:
            hints.update(HINTS[name](rolled))
        elif name in _POLICY_OF:
            more["group"] = group(rolled, _POLICY_OF[name])
        elif name == "PciPassthroughFilter":
            more.update(_pci(rolled))
        elif name == "NUMATopologyFilter":
            extra.update(rolled.one(_NUMA))
    if fitted:
        for kind in rolled.one(("cells", "cells", "devices", "cells and devices")).split(" and "):
            extra.update(rolled.one((*_NUMA, *_NUMA_MORE)) if kind == "cells" else {})
            more.update(_pci(rolled) if kind == "devices" else {})
    return Asked(
        flavor={
            "name": rolled.one(words.FLAVORS),
            "vcpus": rolled.one((1, 2, 2, 4) if fitted else (1, 1, 2, 4, 16)),
            "memory_mb": rolled.one((512, 512, 1024) if fitted else (512, 512, 2048, 8192, 1000)),
            "root_gb": rolled.one((1, 0, 10, 60)),
            "ephemeral_gb": rolled.one((0, 0, 5)),
            "swap": rolled.one((0, 0, 512, 1500)),
        },
        extra_specs=extra,
        image=image,
        image_id=rolled.one((None, *words.IMAGES)),
        project=rolled.one(words.PROJECTS),
        servers=draw(st.sampled_from((1, 1, 2, 3, 4))),
        hints=hints,
        **more,
    )


_POLICY_OF = {
    "ServerGroupAffinityFilter": ("affinity",),
    "ServerGroupAntiAffinityFilter": ("anti-affinity",),
}

_NUMA: tuple[Mapping[str, str], ...] = (
    {"hw:numa_nodes": "1"},
    {"hw:numa_nodes": "2"},
    {"hw:cpu_policy": "dedicated"},
    {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "require"},
    {"hw:mem_page_size": "large"},
)

#: Beside those above, where NUMA cells are what matters.
_NUMA_MORE: tuple[Mapping[str, str], ...] = (
    {"hw:numa_nodes": "2", "hw:cpu_policy": "dedicated"},
    {"hw:numa_nodes": "2", "hw:mem_page_size": "large"},
    {"hw:cpu_policy": "dedicated", "hw:mem_page_size": "2048"},
    {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate"},
    {"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "isolate"},
    {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "^0"},
    {"hw:numa_nodes": "1", "hw:mem_page_size": "any"},
)


def _rebuild(rolled: dice.Dice) -> Mapping[str, Any]:
    host = rolled.one(words.HOSTS[:4])
    return {
        "hints": {"_nova_check_type": ["rebuild"]},
        "destination": {"host": host, "node": f"node-{host}"},
    }


def _forced(rolled: dice.Dice) -> Mapping[str, Any]:
    made: dict[str, Any] = {}
    if rolled.once_in(2):
        made["force_hosts"] = [rolled.one(_NAMES)]
    else:
        made["force_nodes"] = [f"node-{rolled.one(_NAMES)}"]
    if rolled.once_in(4):
        made["hints"] = {"_nova_check_type": [rolled.one(("evacuate", "live_migrate"))]}
    return made


def _pci(rolled: dice.Dice) -> Mapping[str, Any]:
    one = (1, 1, 2, 4), ("1520", "1520", "1520", "9999"), (None, "legacy", "required", "preferred")
    wanted = [tuple(rolled.one(choices) for choices in one) for _ in range(rolled.one((1, 1, 2)))]
    return {"pci": tuple(wanted)}


WISHES: Sequence[Callable[[dice.Dice], Mapping[str, Any]]] = (
    lambda rolled: {"group": group(rolled)},
    lambda rolled: {"group": group(rolled, ("soft-affinity", "soft-anti-affinity"))},
    lambda rolled: {"group": group(rolled, ("soft-affinity", "soft-anti-affinity"))},
    lambda rolled: {"destination": destination(rolled)},
    lambda rolled: {"destination": destination(rolled)},
    lambda rolled: {"zone": rolled.one((*words.ZONES, "nova"))},
    lambda rolled: {"ignore_hosts": rolled.some(_NAMES, 3)},
    _forced,
    _pci,
    _rebuild,
    lambda rolled: {"volume": True},
    lambda rolled: {"disk_format": rolled.one(("iso", "raw", "odd"))},
    lambda rolled: {"hints": rolled.one(tuple(HINTS.values()))(rolled)},
    lambda rolled: {},
)
