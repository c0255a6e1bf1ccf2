# SPDX-License-Identifier: Apache-2.0
"""Columns whose text only Nova's own objects can write, of the size that libvirt's have."""

import functools
import json
from typing import Any

from nova import objects
from nova.objects import service
from oslo_serialization import jsonutils

_FEATURES = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse"
    " sse2 ht syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm pni pclmulqdq monitor ssse3 fma cx16"
    " sse4.1 sse4.2 x2apic movbe popcnt aes xsave avx f16c rdrand lahf_lm cmp_legacy svm extapic"
    " cr8legacy abm sse4a misalignsse 3dnowprefetch osvw ibs skinit wdt tce topoext perfctr_core"
    " invtsc fsgsbase bmi1 avx2 smep bmi2 cqm rdt_a rdseed adx smap clflushopt clwb sha-ni"
    " xsaveopt xsavec xgetbv1 xsaves umip rdpid clzero wbnoinvd ibpb amd-stibp amd-ssbd"
)
CPU_INFO = json.dumps(
    {
        "arch": "x86_64",
        "model": "EPYC-Rome",
        "vendor": "AMD",
        "topology": {"cells": 2, "sockets": 1, "cores": 32, "threads": 2},
        "features": _FEATURES.split(),
    }
)
SUPPORTED_INSTANCES = json.dumps(
    [[arch, kind, "hvm"] for arch in ("x86_64", "i686") for kind in ("kvm", "qemu")]
    + [[arch, "qemu", "hvm"] for arch in ("aarch64", "armv7l", "ppc64le", "s390x")]
)
_NUMA_CELLS = 2
_PAGE_SIZES_KB = (4, 2048, 1048576)


class NovaValues:
    """What the installed Nova writes into a compute's rows."""

    def __init__(self) -> None:
        objects.register_all()
        self.service_version = service.SERVICE_VERSION
        self.no_pci_pools = jsonutils.dumps(
            objects.PciDevicePoolList(objects=[]).obj_to_primitive()
        )
        self.numa_topology = functools.cache(_numa_topology)


def _numa_topology(vcpus: int, memory_mb: int) -> str:
    """Return the JSON of two NUMA cells with half of everything each, nothing used."""
    cells = [_numa_cell(i, vcpus // _NUMA_CELLS, memory_mb // _NUMA_CELLS) for i in range(2)]
    return str(objects.NUMATopology(cells=cells)._to_json())


def _numa_cell(number: int, vcpus: int, memory_mb: int) -> Any:
    first = number * vcpus
    pages = [
        objects.NUMAPagesTopology(
            size_kb=size_kb, total=memory_mb * 256 if size_kb == 4 else 0, used=0
        )
        for size_kb in _PAGE_SIZES_KB
    ]
    return objects.NUMACell(
        id=number,
        cpuset=set(range(first, first + vcpus)),
        pcpuset=set(),
        memory=memory_mb,
        cpu_usage=0,
        memory_usage=0,
        pinned_cpus=set(),
        mempages=pages,
        siblings=[{first + i, first + i + vcpus // 2} for i in range(vcpus // 2)],
        socket=number,
        network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
    )
