# SPDX-License-Identifier: Apache-2.0
"""Strategies for whole clusters: aggregates, instances and providers on drawn hosts."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from hypothesis import strategies as st

from tests.differential import cases
from tests.differential.drawn import dice, node_strategies, words

_NUMBERS = ("1", "0", "-1", "2.5", "1000000", "-0.001", " 3 ", "abc", "", "1e3")

#: (key, values) that some filter, weigher or request filter reads.
METADATA: tuple[tuple[str, Sequence[str]], ...] = (
    ("availability_zone", words.ZONES),
    *((name, _NUMBERS) for name in words.MULTIPLIERS),
    ("max_io_ops_per_host", ("1", "2", "5", "abc", "2.5", "0")),
    ("max_instances_per_host", ("1", "3", "50", "many", "-1")),
    ("instance_type", ("f1", "f2", "f1, f2", "other", " f1 ,x", "")),
    ("filter_tenant_id", ("p1", "p2", "p1, p3", "nobody")),
    ("filter_tenant_id2", ("p3", "p2,p1")),
    ("hw_architecture", ("x86_64", "aarch64, i686")),
    ("os_distro", ("ubuntu", "debian,fedora")),
    ("os_type", ("linux", "windows")),
    ("hw.os_type", ("linux", "windows")),
    ("img_hv_type", ("qemu", "kvm,qemu")),
    ("trait:CUSTOM_A", ("required", "forbidden")),
    ("trait:CUSTOM_B", ("required",)),
    ("ssd", ("true", "false", "true,false", " true")),
    ("level", ("1", "3", "5, 2", "abc")),
    ("unknown", ("x",)),
)


def _aggregate(rolled: dice.Dice, at: int, hosts: Sequence[str]) -> cases.Aggregate:
    """Return an aggregate; its hosts may be gone, its values not what they should be."""
    return cases.Aggregate(
        words.AGGREGATES[at],
        at + 1,
        tuple(rolled.some((*hosts, "gone"), 6)),
        {key: rolled.one(values) for key, values in rolled.some(METADATA, 10)},
    )


_IMAGE_PROPERTIES = (
    {},
    {"os_distro": "ubuntu"},
    {"os_distro": "ubuntu", "os_type": "linux"},
    {"os_type": "windows", "hw_machine_type": "q35"},
    {"hw_architecture": "x86_64", "os_distro": "debian"},
)


def _instances(rolled: dice.Dice, nodes: Sequence[cases.Node]) -> tuple[cases.Instance, ...]:
    """Return instances that stand on hosts."""
    made = []
    for uuid in rolled.some(words.INSTANCES + words.NEW_INSTANCES[:1], 8):
        node = rolled.one(nodes)
        made.append(
            cases.Instance(
                uuid,
                node.cell,
                node.host,
                str(node.row["hypervisor_hostname"]),
                rolled.one(words.PROJECTS),
                rolled.one(_IMAGE_PROPERTIES),
            )
        )
    return tuple(made)


_I = cases.Inventory
_ODD_INVENTORIES: tuple[tuple[str, cases.Inventory | None], ...] = (
    ("VCPU", None),
    ("DISK_GB", None),
    ("VCPU", _I(4, allocation_ratio=16.0)),
    ("VCPU", _I(8, reserved=6, allocation_ratio=1.5)),
    ("VCPU", _I(3, reserved=1, allocation_ratio=0.6)),
    ("VCPU", _I(8, max_unit=1)),
    ("VCPU", _I(8, min_unit=2)),
    ("VCPU", _I(8, step_size=2)),
    ("VCPU", _I(1, reserved=1)),
    ("PCPU", _I(4)),
    ("PCPU", _I(2, max_unit=2)),
    ("MEMORY_MB", _I(1024)),
    ("MEMORY_MB", _I(16384, step_size=512)),
    ("MEMORY_MB", _I(4096, reserved=4000)),
    ("MEMORY_MB", _I(2048, allocation_ratio=1.3)),
    ("DISK_GB", _I(10)),
    ("DISK_GB", _I(100, min_unit=10)),
    ("DISK_GB", _I(0)),
    (words.CUSTOM_CLASS, _I(1)),
    (words.CUSTOM_CLASS, _I(4, min_unit=2, step_size=2)),
)

_ALLOCATIONS = (
    {"VCPU": 1, "MEMORY_MB": 512},
    {"VCPU": 7, "MEMORY_MB": 1024, "DISK_GB": 20},
    {"MEMORY_MB": 15000},
    {"DISK_GB": 90},
    {"VCPU": 40},
    {words.CUSTOM_CLASS: 1},
    {"PCPU": 2},
)


def _provider(
    rolled: dice.Dice, uuid: str, aggregates_of_host: Sequence[str], disabled: bool
) -> cases.Provider:
    """Return the root provider of a node."""
    inventories = {
        "VCPU": _I(8, allocation_ratio=4.0),
        "MEMORY_MB": _I(16384, reserved=512),
        "DISK_GB": _I(100),
    }
    odd_ones = rolled.some(_ODD_INVENTORIES, 3) if rolled.once_in(2) else []
    for name, odd in odd_ones:
        if odd is None:
            inventories.pop(name, None)
        else:
            inventories[name] = odd
    traits = set(rolled.some(words.TRAITS[:2] + words.TRAITS[3:], 6))
    if disabled and not rolled.once_in(4):
        traits.add("COMPUTE_STATUS_DISABLED")
    mirrored = set(aggregates_of_host)
    if rolled.once_in(2):
        mirrored ^= set(rolled.some((*words.AGGREGATES, words.FOREIGN_AGGREGATE), 2))
    used = {}
    for at, wanted in enumerate(rolled.some(_ALLOCATIONS, 2)):
        held = {name: amount for name, amount in wanted.items() if name in inventories}
        if held:
            used[words.made_uuid("consumer", f"{uuid}-{at}")] = held
    return cases.Provider(
        uuid,
        generation=rolled.one(range(6)),
        inventories=inventories,
        traits=frozenset(traits),
        aggregates=frozenset(mirrored),
        allocations=used,
    )


def _child(root: cases.Provider, at: int, classes: Sequence[str]) -> cases.Provider:
    return cases.Provider(
        words.made_uuid("child", f"{root.uuid}-{at}"),
        parent=root.uuid,
        inventories={name: _I(4) for name in classes},
        traits=frozenset({"CUSTOM_B"}),
        aggregates=root.aggregates if at else frozenset(),
    )


_SHARED = cases.Provider(
    words.made_uuid("sharing", 0),
    inventories={"DISK_GB": _I(2000)},
    traits=frozenset({words.SHARING_TRAIT}),
    aggregates=frozenset({words.AGGREGATES[0], words.FOREIGN_AGGREGATE}),
)


@st.composite
def clusters(draw: st.DrawFn, *, scarce: bool = False) -> cases.Cluster:
    """Draw a cluster of up to eight hosts in two cells, or ten that are nearly used up."""
    nodes, services = draw(node_strategies.hosts(10 if scarce else 8, scarce=scarce))
    named = tuple(dict.fromkeys(node.host for node in nodes))
    aggregates = tuple(
        _aggregate(rolled, at, named)
        for at, rolled in enumerate(draw(st.lists(dice.dice(), max_size=4)))
    )
    disabled = {each.row["host"] for each in services if each.row["disabled"]}
    of_cluster = draw(dice.dice())
    providers: list[cases.Provider] = []
    for node in nodes:
        rolled = draw(dice.dice())
        if not rolled.once_in(120):
            own = [each.uuid for each in aggregates if node.host in each.hosts]
            providers.append(_provider(rolled, node.uuid, own, node.host in disabled))
    if providers and of_cluster.once_in(12):
        classes = of_cluster.one((("SRIOV_NET_VF",), ("VGPU", words.CUSTOM_CLASS)))
        root = of_cluster.one(providers)
        providers.append(_child(root, of_cluster.one((0, 1)), classes))
    if of_cluster.once_in(20):
        providers.append(_SHARED)
    return cases.Cluster(
        tuple(nodes),
        tuple(services),
        aggregates,
        _instances(of_cluster, nodes),
        tuple(providers),
        frozenset({words.CELL2}) if of_cluster.once_in(20) else frozenset(),
    )


def edited(cluster: cases.Cluster, rolled: dice.Dice) -> cases.Cluster:
    """Return a cluster after something happened in it, as it does between two requests."""
    nodes = list(cluster.nodes)
    services = list(cluster.services)
    aggregates = list(cluster.aggregates)
    providers = list(cluster.providers)
    instances = list(cluster.instances)
    for kind in rolled.some(("node", "node", "service", "aggregate", "provider", "instance"), 3):
        if kind == "node":
            at = rolled.one(range(len(nodes)))
            nodes[at] = node_strategies.reported(nodes[at], rolled)
        elif kind == "service" and services:
            at = rolled.one(range(len(services)))
            services[at] = node_strategies.heard_of(services[at], rolled)
        elif kind == "aggregate" and aggregates:
            at = rolled.one(range(len(aggregates)))
            hosts = [node.host for node in nodes]
            aggregates[at] = _aggregate(rolled, aggregates[at].id - 1, hosts)
        elif kind == "provider" and providers:
            at = rolled.one(range(len(providers)))
            if providers[at].parent is None and words.SHARING_TRAIT not in providers[at].traits:
                changed = _provider(rolled, providers[at].uuid, [], False)
                generation = providers[at].generation + 1
                providers[at] = attrs.evolve(changed, generation=generation)
        elif kind == "instance" and instances:
            instances.pop(rolled.one(range(len(instances))))
    return attrs.evolve(
        cluster,
        nodes=tuple(nodes),
        services=tuple(services),
        aggregates=tuple(aggregates),
        providers=tuple(providers),
        instances=tuple(instances),
    )
