# SPDX-License-Identifier: Apache-2.0
"""Weighers by what servers use of a host, and by what they leave."""

from __future__ import annotations

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.weighers import option_weigher


class RAMWeigher(option_weigher.ColumnWeigher):
    """MiB of memory that are left, negative where a host is overcommitted."""

    option = "ram_weight_multiplier"
    column = "free_ram_mb"
    minval = 0


class CPUWeigher(option_weigher.OptionWeigher):
    """Virtual CPUs that are left, by the allocation ratio of the host."""

    option = "cpu_weight_multiplier"
    minval = 0

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.FloatArray:
        """Return virtual CPUs, negative where a host is overcommitted."""
        total = frame.vcpus[rows] * frame.cpu_allocation_ratio[rows]
        return np.asarray(total - frame.vcpus_used[rows], np.float64)


class DiskWeigher(option_weigher.ColumnWeigher):
    """MiB of disk that are left, negative where a host is overcommitted."""

    option = "disk_weight_multiplier"
    column = "free_disk_mb"
    minval = 0


class IoOpsWeigher(option_weigher.ColumnWeigher):
    """Servers that are being built, moved or snapshot."""

    option = "io_ops_weight_multiplier"
    column = "num_io_ops"
    minval = 0


class NumInstancesWeigher(option_weigher.ColumnWeigher):
    """Servers on the host."""

    option = "num_instances_weight_multiplier"
    column = "num_instances"
