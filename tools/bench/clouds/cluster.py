# SPDX-License-Identifier: Apache-2.0
"""The made hosts: the same for a number of hosts and a seed, wherever they are made.

Knows neither Nova nor a database: the populator writes them into one, the core's benchmark hands
them to the engine.
"""

import random
import uuid
from collections.abc import Iterator

import attrs

_KINDS = (
    # VCPU, MiB a VCPU, GiB
    (32, 4096, 2000),
    (64, 4096, 2000),
    (64, 8192, 4000),
    (96, 4096, 4000),
    (128, 4096, 4000),
    (128, 8192, 8000),
    (192, 4096, 8000),
    (256, 4096, 8000),
)
_DISABLED = 0.04
_DOWN = 0.01
_MOST_USED = 0.8
_MOST_INSTANCES = 8
_WITH_AVX512 = 0.3

CPU_RATIO = 4.0
RESERVED_MEMORY_MB = 512
ZONES = 3

# What a libvirt/KVM host reports, give or take.
_CPU_TRAITS = """
SSE SSE2 SSE41 SSE42 AVX AVX2 FMA3 AESNI SHA SVM AMD_SVM BMI BMI2 F16C CLMUL
"""
_COMPUTE_TRAITS = """
NODE DEVICE_TAGGING TRUSTED_CERTS RESCUE_BFV ACCELERATORS MEM_BACKING_FILE
SOCKET_PCI_NUMA_AFFINITY REMOTE_MANAGED_PORTS MANAGED_PCI_DEVICE ADDRESS_SPACE_PASSTHROUGH
ADDRESS_SPACE_EMULATED ARCH_X86_64 FIRMWARE_BIOS FIRMWARE_UEFI GRAPHICS_MODEL_BOCHS
GRAPHICS_MODEL_CIRRUS GRAPHICS_MODEL_NONE GRAPHICS_MODEL_VGA GRAPHICS_MODEL_VIRTIO
GRAPHICS_MODEL_QXL IMAGE_TYPE_AKI IMAGE_TYPE_AMI IMAGE_TYPE_ARI IMAGE_TYPE_ISO IMAGE_TYPE_QCOW2
IMAGE_TYPE_RAW NET_ATTACH_INTERFACE NET_ATTACH_INTERFACE_WITH_TAG NET_VIRTIO_PACKED
NET_VIF_MODEL_E1000 NET_VIF_MODEL_E1000E NET_VIF_MODEL_NE2K_PCI NET_VIF_MODEL_PCNET
NET_VIF_MODEL_RTL8139 NET_VIF_MODEL_VIRTIO NET_VIF_MODEL_VMXNET3 SECURITY_UEFI_SECURE_BOOT
SECURITY_STATELESS_FIRMWARE STORAGE_BUS_FDC STORAGE_BUS_IDE STORAGE_BUS_SATA STORAGE_BUS_SCSI
STORAGE_BUS_USB STORAGE_BUS_VIRTIO STORAGE_VIRTIO_FS VIOMMU_MODEL_AUTO VIOMMU_MODEL_VIRTIO
VOLUME_ATTACH VOLUME_ATTACH_WITH_TAG VOLUME_EXTEND VOLUME_MULTI_ATTACH
"""
TRAITS = (
    "OWNER_NOVA",
    "HW_CPU_HYPERTHREADING",
    *(f"HW_CPU_X86_{name}" for name in _CPU_TRAITS.split()),
    *(f"COMPUTE_{name}" for name in _COMPUTE_TRAITS.split()),
)
AVX512 = "HW_CPU_X86_AVX512F"
DISABLED_TRAIT = "COMPUTE_STATUS_DISABLED"


@attrs.frozen
class Instance:
    """A server that is there from the beginning; all of a host's are of one size."""

    number: int
    uuid: str
    project: int
    vcpus: int
    memory_mb: int
    disk_gb: int


@attrs.frozen
class Host:
    """A compute node and its service. ``memory_mb`` in MiB, ``disk_gb`` in GiB."""

    number: int
    name: str
    node_uuid: str
    service_uuid: str
    report_count: int
    vcpus: int
    memory_mb: int
    disk_gb: int
    is_disabled: bool
    is_down: bool
    has_avx512: bool
    instances: tuple[Instance, ...]

    @property
    def vcpus_used(self) -> int:
        return sum(each.vcpus for each in self.instances)

    @property
    def memory_mb_used(self) -> int:
        return sum(each.memory_mb for each in self.instances)

    @property
    def disk_gb_used(self) -> int:
        return sum(each.disk_gb for each in self.instances)

    @property
    def traits(self) -> tuple[str, ...]:
        return (
            *TRAITS,
            *((AVX512,) if self.has_avx512 else ()),
            *((DISABLED_TRAIT,) if self.is_disabled else ()),
        )


@attrs.frozen
class Aggregate:
    """A host aggregate with its members' numbers."""

    number: int
    uuid: str
    name: str
    metadata: dict[str, str]
    hosts: tuple[int, ...]


@attrs.frozen
class Cluster:
    """``size`` hosts, heterogeneous, 0 to 80% used, 4% disabled, 1% down."""

    size: int
    seed: int = 1

    def hosts(self) -> Iterator[Host]:
        """Make the hosts in order of their numbers, which begin with 1."""
        chance = random.Random(self.seed)
        made = 0
        for number in range(1, self.size + 1):
            host = _host(chance, number, made)
            made += len(host.instances)
            yield host

    def aggregates(self) -> list[Aggregate]:
        """Three zones over all hosts, one aggregate of a fifth, eight of a twentieth each."""
        chance = random.Random(self.seed + 1)
        found = []
        for number in range(1, 13):
            if number <= ZONES:
                members = range(number, self.size + 1, ZONES)
                metadata = {"availability_zone": zone(number)}
            else:
                share = 0.2 if number == ZONES + 1 else 0.05
                members = [n for n in range(1, self.size + 1) if chance.random() < share]
                metadata = {"ssd" if number == ZONES + 1 else f"group{number}": "true"}
            found.append(
                Aggregate(number, _uuid(chance), f"aggregate{number}", metadata, tuple(members))
            )
        return found


def host_name(number: int) -> str:
    return f"compute-{number:06d}"


def zone(number: int) -> str:
    """Return the availability zone of a host or of a zone's aggregate."""
    return f"zone{(number - 1) % ZONES + 1}"


def _uuid(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))


def _host(chance: random.Random, number: int, made: int) -> Host:
    vcpus, memory_per_vcpu_mb, disk_gb = chance.choice(_KINDS)
    state = chance.random()
    used = chance.uniform(0.0, _MOST_USED)
    count = chance.randint(1, _MOST_INSTANCES) if used > 0.05 else 0
    vcpus_each = max(1, int(used * vcpus / count)) if count else 0
    disk_each_gb = max(1, int(used * disk_gb / count)) if count else 0
    return Host(
        number=number,
        name=host_name(number),
        node_uuid=_uuid(chance),
        service_uuid=_uuid(chance),
        report_count=chance.randint(1, 1_000_000),
        vcpus=vcpus,
        memory_mb=vcpus * memory_per_vcpu_mb,
        disk_gb=disk_gb,
        is_disabled=state < _DISABLED,
        is_down=_DISABLED <= state < _DISABLED + _DOWN,
        has_avx512=chance.random() < _WITH_AVX512,
        instances=tuple(
            Instance(
                number=made + i + 1,
                uuid=_uuid(chance),
                project=chance.randint(1, 20),
                vcpus=vcpus_each,
                memory_mb=vcpus_each * memory_per_vcpu_mb,
                disk_gb=disk_each_gb,
            )
            for i in range(count)
        ),
    )
