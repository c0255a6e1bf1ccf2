# SPDX-License-Identifier: Apache-2.0
"""Strategies for requests: a flavor, an image and whatever else Nova's RequestSpec takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from hypothesis import strategies as st
from oslo_serialization import jsonutils

from tests.differential import words


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


def hints(draw: st.DrawFn) -> Mapping[str, list[str]]:
    """Draw scheduler hints."""
    made: dict[str, list[str]] = {}
    known = st.sampled_from((*words.INSTANCES, "not-an-instance"))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        made["same_host"] = draw(st.lists(known, min_size=1, max_size=4, unique=True))
    elif kind == 1:
        made["different_host"] = draw(st.lists(known, min_size=1, max_size=4, unique=True))
    elif kind == 2:
        made["build_near_host_ip"] = [draw(st.sampled_from(("192.0.2.1", "192.0.3.70")))]
        cidr = draw(st.sampled_from((None, "/24", "/30", "/32")))
        if cidr:
            made["cidr"] = [cidr]
    elif kind == 3:
        made["query"] = [jsonutils.dumps(draw(st.sampled_from(_QUERIES)))]
    else:
        made["something"] = ["else"]
    return made


def group(draw: st.DrawFn) -> Mapping[str, Any]:
    """Draw a server group as the conductor hands it over."""
    policy = draw(
        st.sampled_from(("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"))
    )
    members = draw(st.lists(st.sampled_from(words.INSTANCES), max_size=5, unique=True))
    rules: dict[str, str] = {}
    if policy == "anti-affinity" and draw(st.booleans()):
        rules["max_server_per_host"] = str(draw(st.integers(1, 3)))
    return {
        "policy": policy,
        "members": [*members, *words.NEW_INSTANCES],
        "hosts": draw(st.one_of(st.just("of members"), st.just([]))),
        "rules": rules,
    }


def destination(draw: st.DrawFn) -> Mapping[str, Any]:
    """Draw a requested destination."""
    kind = draw(st.integers(0, 5))
    host = draw(st.sampled_from(words.HOSTS[:6]))
    if kind == 0:
        return {"host": host, "node": None}
    if kind == 1:
        return {"host": host, "node": f"node-{host}"}
    if kind == 2:
        return {"cell": draw(st.sampled_from(words.CELLS))}
    if kind in (3, 4):
        return {"cell": draw(st.sampled_from(words.CELLS)), "allow_cross_cell_move": True}
    sets = st.lists(
        st.sampled_from((*words.AGGREGATES, words.FOREIGN_AGGREGATE)), min_size=1, max_size=2
    ).map(",".join)
    return {"aggregates": draw(st.lists(sets, min_size=1, max_size=2))}


_NAMES = (*words.HOSTS[:6], "h1", "H2", "nowhere")


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    """Draw a request: mostly plain, with a few wishes of any kind."""
    extra: dict[str, str] = {}
    for each in draw(st.lists(st.sampled_from(EXTRA_SPECS), max_size=2)):
        extra.update(each)
    image: dict[str, Any] = {}
    for properties in draw(st.lists(st.sampled_from(IMAGE_PROPERTIES), max_size=2)):
        image.update(properties)
    more: dict[str, Any] = {}
    # What a request may carry besides; each draws its own.
    for wish in draw(st.lists(st.sampled_from(tuple(_WISHES)), max_size=3, unique=True)):
        more.update(_WISHES[wish](draw))
    return Asked(
        flavor={
            "name": draw(st.sampled_from(words.FLAVORS)),
            "vcpus": draw(st.sampled_from((1, 1, 2, 4, 16))),
            "memory_mb": draw(st.sampled_from((512, 512, 2048, 8192, 1000))),
            "root_gb": draw(st.sampled_from((1, 0, 10, 60))),
            "ephemeral_gb": draw(st.sampled_from((0, 0, 5))),
            "swap": draw(st.sampled_from((0, 0, 512, 1500))),
        },
        extra_specs=extra,
        image=image,
        image_id=draw(st.sampled_from((None, *words.IMAGES))),
        project=draw(st.sampled_from(words.PROJECTS)),
        servers=draw(st.sampled_from((1, 1, 2, 3, 4))),
        **more,
    )


def _rebuild(draw: st.DrawFn) -> Mapping[str, Any]:
    host = draw(st.sampled_from(words.HOSTS[:4]))
    return {
        "hints": {"_nova_check_type": ["rebuild"]},
        "destination": {"host": host, "node": f"node-{host}"},
    }


def _forced(draw: st.DrawFn) -> Mapping[str, Any]:
    made: dict[str, Any] = {}
    if draw(st.booleans()):
        made["force_hosts"] = [draw(st.sampled_from(_NAMES))]
    else:
        made["force_nodes"] = [f"node-{draw(st.sampled_from(_NAMES))}"]
    if draw(st.integers(0, 3)) == 3:
        made["hints"] = {"_nova_check_type": [draw(st.sampled_from(("evacuate", "live_migrate")))]}
    return made


def _pci(draw: st.DrawFn) -> Mapping[str, Any]:
    one = st.tuples(
        st.sampled_from((1, 2, 4)),
        st.sampled_from(("1520", "1520", "9999")),
        st.sampled_from((None, "legacy", "required", "preferred")),
    )
    return {"pci": tuple(draw(st.lists(one, min_size=1, max_size=2)))}


_WISHES = {
    "hints": lambda draw: {"hints": hints(draw)},
    "more hints": lambda draw: {"hints": hints(draw)},
    "group": lambda draw: {"group": group(draw)},
    "another group": lambda draw: {"group": group(draw)},
    "third group": lambda draw: {"group": group(draw)},
    "third hints": lambda draw: {"hints": hints(draw)},
    "destination": lambda draw: {"destination": destination(draw)},
    "zone": lambda draw: {"zone": draw(st.sampled_from((*words.ZONES, "nova")))},
    "ignored": lambda draw: {
        "ignore_hosts": draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3))
    },
    "forced": _forced,
    "pci": _pci,
    "rebuild": _rebuild,
    "volume": lambda draw: {"volume": True},
    "iso": lambda draw: {"disk_format": draw(st.sampled_from(("iso", "raw", "odd")))},
}
