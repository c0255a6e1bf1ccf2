# SPDX-License-Identifier: Apache-2.0
"""Made hosts with NUMA cells and PCI devices, nearly full or not, and requests of such."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import attrs
from nova import objects
from nova.virt import hardware
from oslo_serialization import jsonutils

from nova_nodb_scheduler.scheduling.frame import frame_columns, host_facts
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, node_facts, service_facts
from nova_nodb_scheduler.wire import codec
from tools.bench.clouds import core_hosts, nova_requests, nova_values

_CELLS = 2
_THREADS = 2
_CPUS = 32
_CELL_MEMORY_MB = 131_072
_HUGE_KB = 2048
#: Half of a cell's memory, in huge pages.
_HUGE_PAGES = _CELL_MEMORY_MB // 2 * 1024 // _HUGE_KB
_DEVICES = 8
_DISK_GB = 20
_SPREAD = 0.12
_DAY_SECONDS = 86400.0


@attrs.frozen
class Kind:
    """A kind of request; ``devices`` of PCI, with Nova's word for how near they must be."""

    name: str
    vcpus: int
    memory_mb: int
    extra_specs: dict[str, str]
    devices: int = 0
    numa_policy: str = "legacy"


KINDS = (
    Kind("pinned CPUs", 4, 4096, {"hw:cpu_policy": "dedicated"}),
    Kind(
        "pinned in two cells, huge pages",
        8,
        8192,
        {"hw:cpu_policy": "dedicated", "hw:numa_nodes": "2", "hw:mem_page_size": "large"},
    ),
    Kind("PCI devices", 2, 2048, {}, devices=2),
    Kind(
        "pinned CPUs near a PCI device",
        4,
        4096,
        {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "require"},
        devices=1,
        numa_policy="required",
    ),
)


class Hosts:
    """Records of compute nodes as the store keeps them.

    :param full: share of CPUs, memory, pages and devices that is used, on average
    """

    def __init__(self, count: int, full: float) -> None:
        self._chance = random.Random(f"{count} {full}")
        self._full = full
        self._payloads: dict[str, bytes] = {}
        self.names = {str(_uuid(self._chance)): f"compute-{n:06d}" for n in range(count)}
        for name in self.names:
            self.change(name)

    def change(self, node: str) -> host_facts.HostFacts:
        """Have a host report other usage; return its facts."""
        row = self._row(node)
        state = {"cell": core_hosts.CELL, "object_version": objects.ComputeNode.VERSION, "row": row}
        self._payloads[node] = codec.encode(state, known_namespaces.COMPUTE_NODES.schema)
        return self.facts(node)

    def state(self, node: str) -> dict[str, Any]:
        """Return a host's record, decoded anew as the store does it."""
        return dict(codec.decode_state(self._payloads[node]))

    def attribute(self, node: str, path: tuple[str, ...]) -> Any:
        """Return what has no column."""
        return node_facts.attribute(node, self.state(node), path)

    def facts(self, node: str) -> host_facts.HostFacts:
        """Return what the engine takes of a host."""
        state = self.state(node)
        digest = node_facts.digest(node, state)
        if not isinstance(digest, bytes):
            raise digest
        service = service_facts.ServiceFacts(has_service=True, last_seen_seconds=_DAY_SECONDS)
        packed = node_facts.host_row(digest, node_facts.DefaultRatios(), service)
        numbers = frame_columns.numbers_of(packed)
        row = state["row"]
        inventory = host_facts.Inventory
        shared_cpus = _CELLS * _CPUS // 4
        pinned_cpus = _CELLS * _CPUS - shared_cpus
        provider = host_facts.ProviderFacts(
            generation=1,
            inventories={
                "VCPU": inventory(shared_cpus, allocation_ratio=4.0),
                "PCPU": inventory(pinned_cpus),
                "MEMORY_MB": inventory(row["memory_mb"]),
                "DISK_GB": inventory(row["local_gb"]),
            },
            used={
                "VCPU": row["vcpus_used"],
                "PCPU": row["stats_pinned"],
                "MEMORY_MB": row["memory_mb_used"],
                "DISK_GB": row["local_gb_used"],
            },
            tree=frozenset({node}),
        )
        return host_facts.HostFacts(
            uuid=node,
            cell=state["cell"],
            host=row["host"],
            node=row["hypervisor_hostname"],
            provider=provider,
            **numbers,
        )

    def _row(self, node: str) -> dict[str, Any]:
        cells = [self._cell(number) for number in range(_CELLS)]
        pinned = sum(len(cell.pinned_cpus) for cell in cells)
        memory_used = sum(cell.memory_usage for cell in cells)
        memory = _CELLS * _CELL_MEMORY_MB
        disk_used = self._used(4000)
        name = self.names[node]
        instances = self._chance.randint(0, 12)
        return {
            "id": 1,
            "uuid": node,
            "service_id": None,
            "host": name,
            "hypervisor_hostname": name,
            "hypervisor_type": "QEMU",
            "hypervisor_version": 7_002_000,
            "host_ip": "192.0.2.1",
            "vcpus": _CELLS * _CPUS // 4,
            "vcpus_used": sum(cell.cpu_usage for cell in cells),
            "memory_mb": memory,
            "memory_mb_used": memory_used,
            "free_ram_mb": memory - memory_used,
            "local_gb": 4000,
            "local_gb_used": disk_used,
            "free_disk_gb": 4000 - disk_used,
            "disk_available_least": 4000 - disk_used,
            "running_vms": instances,
            "current_workload": 0,
            "cpu_info": nova_values.CPU_INFO,
            "extra_resources": None,
            "numa_topology": objects.NUMATopology(cells=cells)._to_json(),
            "pci_stats": self._pools(),
            "metrics": "[]",
            "supported_instances": nova_values.SUPPORTED_INSTANCES,
            "stats": json.dumps(
                {
                    "num_instances": str(instances),
                    "io_workload": str(self._chance.choice((0, 0, 0, 1, 2))),
                    "failed_builds": str(self._chance.choice((0, 0, 0, 0, 1))),
                }
            ),
            "cpu_allocation_ratio": 4.0,
            "ram_allocation_ratio": 1.0,
            "disk_allocation_ratio": 1.0,
            "mapped": 1,
            "created_at": "2026-01-01T00:00:00",
            "updated_at": "2026-01-02T03:04:05",
            "deleted_at": None,
            "deleted": 0,
            # No column of Nova's: what Placement has of the host.
            "stats_pinned": pinned,
        }

    def _used(self, of: int) -> int:
        return int(min(max(self._chance.gauss(self._full, _SPREAD), 0.0), 1.0) * of)

    def _cell(self, number: int) -> Any:
        cpus = list(range(number * _CPUS, (number + 1) * _CPUS))
        shared, pinned = cpus[: _CPUS // 4], cpus[_CPUS // 4 :]
        huge_used = self._used(_HUGE_PAGES)
        small_mb = _CELL_MEMORY_MB // 2
        small_used_mb = self._used(small_mb)
        return objects.NUMACell(
            id=number,
            socket=number,
            cpuset=set(shared),
            pcpuset=set(pinned),
            memory=_CELL_MEMORY_MB,
            cpu_usage=self._used(4 * len(shared)),
            memory_usage=small_used_mb + huge_used * _HUGE_KB // 1024,
            pinned_cpus=set(self._chance.sample(pinned, self._used(len(pinned)))),
            siblings=[set(cpus[at : at + _THREADS]) for at in range(0, _CPUS, _THREADS)],
            mempages=[
                objects.NUMAPagesTopology(
                    size_kb=4, total=small_mb * 256, used=small_used_mb * 256, reserved=0
                ),
                objects.NUMAPagesTopology(
                    size_kb=_HUGE_KB, total=_HUGE_PAGES, used=huge_used, reserved=0
                ),
            ],
            network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
        )

    def _pools(self) -> str:
        pools = [
            objects.PciDevicePool(
                vendor_id="8086",
                product_id=product,
                numa_node=cell,
                count=_DEVICES - self._used(_DEVICES),
                tags={"dev_type": "type-VF", "address": f"0000:8{cell}:00.0"},
            )
            for cell in range(_CELLS)
            for product in ("1520", "10ed")
        ]
        found = objects.PciDevicePoolList(objects=[each for each in pools if each.count])
        return str(jsonutils.dumps(found.obj_to_primitive()))


def spec(kind: Kind) -> Any:
    """Return Nova's RequestSpec of a kind, with the topology that Nova makes of its flavor."""
    flavor = nova_requests.flavor(kind.name, kind.vcpus, kind.memory_mb, _DISK_GB, kind.extra_specs)
    image = objects.ImageMeta(properties=objects.ImageMetaProps())
    wanted = [
        objects.InstancePCIRequest(
            request_id=str(uuid.uuid4()),
            count=kind.devices,
            alias_name="device",
            spec=[{"vendor_id": "8086", "product_id": "1520"}],
            numa_policy=kind.numa_policy,
        )
    ]
    return objects.RequestSpec(
        flavor=flavor,
        image=image,
        project_id="b" * 32,
        user_id="b" * 32,
        instance_uuid=str(uuid.uuid4()),
        instance_group=None,
        num_instances=1,
        availability_zone=None,
        numa_topology=hardware.numa_get_constraints(flavor, image),
        pci_requests=objects.InstancePCIRequests(requests=wanted if kind.devices else []),
        scheduler_hints={},
    )


def _uuid(chance: random.Random) -> uuid.UUID:
    return uuid.UUID(int=chance.getrandbits(128), version=4)
