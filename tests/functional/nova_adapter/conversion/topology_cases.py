# SPDX-License-Identifier: Apache-2.0
"""Strategies for hosts' NUMA topologies and PCI pools, and for requests of such."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from nova import objects
from nova.objects import fields
from oslo_serialization import jsonutils

THREAD_POLICIES = (None, "prefer", "isolate", "require")
PAGE_SIZES = (None, -1, -2, -3, 4, 2048, 1048576)
NUMA_POLICIES = (None, "legacy", "required", "preferred", "socket")
REQUEST_ID = "11111111-0000-0000-0000-00000000000{}"


@st.composite
def cells(draw: st.DrawFn, number: int) -> Any:
    """Draw a host's cell that is nearly full, in one respect or another."""
    count, threads = draw(st.sampled_from([2, 4, 8])), draw(st.sampled_from([1, 2, 4]))
    cpus = list(range(number * 16, number * 16 + count))
    cores = [set(cpus[at : at + threads]) for at in range(0, count, threads)]
    split = draw(st.integers(0, count))
    shared, pinned = draw(
        st.sampled_from([(cpus, cpus), (cpus[:split], cpus[split:]), (cpus, []), ([], cpus)])
    )
    memory = draw(st.sampled_from([256, 1024, 4096]))
    sizes = draw(st.sampled_from([(), (4,), (4, 2048), (2048,), (4, 2048, 1048576), (64, 2048)]))
    return objects.NUMACell(
        id=number,
        socket=draw(st.sampled_from([None, 0, number])),
        cpuset=set(shared),
        pcpuset=set(pinned),
        memory=memory,
        cpu_usage=draw(st.integers(0, 2 * count)),
        memory_usage=draw(st.sampled_from([0, 0, memory // 2, memory, memory + 1])),
        pinned_cpus=set(draw(st.lists(st.sampled_from(pinned), max_size=count)) if pinned else ()),
        siblings=cores,
        mempages=[
            objects.NUMAPagesTopology(
                size_kb=size,
                total=(total := draw(st.sampled_from([0, 1, memory * 1024 // size]))),
                used=draw(st.sampled_from([0, 0, total // 2, total])),
                **draw(st.sampled_from([{}, {"reserved": 0}, {"reserved": 1}])),
            )
            for size in draw(st.permutations(sizes))
        ],
    )


@st.composite
def topologies(draw: st.DrawFn) -> str | None:
    """Draw the text of a host's NUMA topology."""
    count = draw(st.integers(0, 4))
    if not count:
        return draw(st.sampled_from([None, objects.NUMATopology(cells=[])._to_json()]))
    made = objects.NUMATopology(cells=[draw(cells(number)) for number in range(count)])
    return str(made._to_json())


_TAGS = st.fixed_dictionaries(
    {},
    optional={
        "dev_type": st.sampled_from(["type-PCI", "type-PF", "type-VF", "vdpa"]),
        "physical_network": st.sampled_from(["net1", "NET1", "net2", None]),
        "remote_managed": st.sampled_from(["true", "false", "1", "yes"]),
        "live_migratable": st.sampled_from(["true", "false"]),
        "address": st.sampled_from(["0000:81:00.0", "0000:82:00.0"]),
        "own_tag": st.sampled_from(["a", "b"]),
    },
)


@st.composite
def pools(draw: st.DrawFn) -> str | None:
    """Draw the text of a host's PCI pools, as objects or as they were before."""
    found = [
        {
            "vendor_id": draw(st.sampled_from(["8086", "10de"])),
            "product_id": draw(st.sampled_from(["1520", "15ED", "15ed"])),
            "numa_node": draw(st.sampled_from([None, 0, 1, 2])),
            "count": draw(st.integers(0, 3)),
            "tags": draw(_TAGS),
        }
        for _ in range(draw(st.integers(0, 4)))
    ]
    if draw(st.booleans()):
        old = [{**each, **each["tags"]} for each in found]
        for each in old:
            del each["tags"]
        return (
            draw(st.sampled_from([jsonutils.dumps(old), None])) if not old else jsonutils.dumps(old)
        )
    made = [objects.PciDevicePool(**each) for each in found]
    return jsonutils.dumps(objects.PciDevicePoolList(objects=made).obj_to_primitive())


@st.composite
def numa_wanted(draw: st.DrawFn) -> Any:
    """Draw a server's NUMA topology, or None."""
    count = draw(st.sampled_from([0, 1, 1, 1, 2, 3]))
    if not count:
        return None
    policy = draw(st.sampled_from([None, "shared", "dedicated", "dedicated", "mixed"]))
    alike = draw(st.booleans())
    made = objects.InstanceNUMATopology(cells=[])
    kind: dict[str, Any] = {}
    for number in range(count):
        if not (alike and kind):
            cpus = draw(st.integers(1, 4))
            shared = {"dedicated": 0, "mixed": max(cpus // 2, 1)}.get(policy or "", cpus)
            kind = {
                "shared": shared,
                "pinned": cpus - shared,
                "memory": draw(st.sampled_from([1, 2, 64, 256, 1024, 2048])),
                "pagesize": draw(st.sampled_from(PAGE_SIZES)),
                "cpu_thread_policy": draw(st.sampled_from(THREAD_POLICIES)),
            }
        made.cells.append(
            objects.InstanceNUMACell(
                id=number,
                cpuset={number * 8 + at for at in range(kind["shared"])},
                pcpuset={number * 8 + 4 + at for at in range(kind["pinned"])},
                memory=kind["memory"],
                pagesize=kind["pagesize"],
                cpu_policy=policy,
                cpu_thread_policy=kind["cpu_thread_policy"],
            )
        )
    if draw(st.booleans()):
        made.emulator_threads_policy = draw(
            st.sampled_from([fields.CPUEmulatorThreadsPolicy.ISOLATE, "share"])
        )
    return made


_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "vendor_id": st.sampled_from(["8086", "10de"]),
        "product_id": st.sampled_from(["1520", "15ed"]),
        "dev_type": st.sampled_from(["type-PCI", "type-PF", "type-VF", "vdpa"]),
        "physical_network": st.sampled_from(["net1", None]),
        "remote_managed": st.sampled_from(["True", "False"]),
        "live_migratable": st.sampled_from(["true", "false"]),
        "own_tag": st.just("a"),
        "resource_class": st.just("CUSTOM_X"),
    },
)


@st.composite
def devices_wanted(draw: st.DrawFn) -> Any:
    """Draw requests of PCI devices; two of one kind now and then."""
    made = []
    for number in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        if made and draw(st.booleans()):
            specs = made[0].spec
        else:
            specs = draw(st.lists(_SPECS, min_size=1, max_size=2))
        made.append(
            objects.InstancePCIRequest(
                request_id=REQUEST_ID.format(number),
                count=draw(st.integers(1, 3)),
                alias_name="a",
                spec=specs,
                numa_policy=draw(st.sampled_from(NUMA_POLICIES)),
            )
        )
    return objects.InstancePCIRequests(requests=made)


@st.composite
def specs(draw: st.DrawFn) -> Any:
    """Draw a RequestSpec."""
    extra_specs = draw(
        st.sampled_from(
            [{}, {"hw:cpu_policy": "dedicated"}]
            + [{"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "require"}]
        )
    )
    properties = draw(st.sampled_from([{}, {}, {"hw_cpu_thread_policy": "require"}]))
    return objects.RequestSpec(
        flavor=objects.Flavor(
            vcpus=1, memory_mb=64, root_gb=1, ephemeral_gb=0, swap=0, extra_specs=extra_specs
        ),
        image=objects.ImageMeta(properties=objects.ImageMetaProps(**properties)),
        instance_uuid="99999999-0000-0000-0000-000000000001",
        numa_topology=draw(numa_wanted()),
        pci_requests=draw(devices_wanted()),
    )
