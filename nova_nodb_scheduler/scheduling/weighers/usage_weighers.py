# SPDX-License-Identifier: Apache-2.0
"""Weighers by what a host reports: usage, hypervisor, PCI devices, metrics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.frame import frame_columns, host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
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
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.FloatArray:
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


class HypervisorVersionWeigher(option_weigher.ColumnWeigher):
    """The newer the better; 0 where the version is not known."""

    option = "hypervisor_version_weight_multiplier"
    column = "hypervisor_version"


class BuildFailureWeigher(option_weigher.ColumnWeigher):
    """The fewer builds failed since the last that did not, the better."""

    option = "build_failure_weight_multiplier"
    column = "failed_builds"

    def multiplier(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> float | plugin_contract.FloatArray:
        """Return the multiplier negated: the option says how bad a failure is."""
        return -super().multiplier(request, frame, rows)


#: Hosts with as many devices, or more, weigh alike.
_MOST_DEVICES = 99


class PCIWeigher(option_weigher.OptionWeigher):
    """The fewer devices are free, the better."""

    option = "pci_weight_multiplier"

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.FloatArray:
        """Return 100 less the devices that are free, 1 at least."""
        free = np.minimum(frame.pci_free[rows], _MOST_DEVICES)
        return (_MOST_DEVICES + 1 - free).astype(np.float64)


#: Nova's filter that lets pass only hosts which have all metrics of the setting.
_FILTER = "MetricsFilter"


class MetricsWeigher(option_weigher.OptionWeigher):
    """The sum of the set metrics, each by its ratio."""

    option = "metrics_weight_multiplier"

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        """Return a constant where the metrics are at hand.

        Where a host may lack a required one, Nova's own code decides: it fails
        the request if such a host passed the filters.
        """
        if not self._settings.metrics_weight_setting:
            return self._no_share(frame, instead=self.option)
        if self._settings.metrics_required and self._may_lack(request, frame):
            return plugin_contract.OnHostObjects.NEEDED
        return super().key(request, frame)

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.FloatArray:
        """Return the sums; ``weight_of_unavailable`` where a metric that counts is missing."""
        setting = self._settings.metrics_weight_setting
        sums = np.zeros(len(frame.alive[rows]))
        lacks = np.zeros(len(sums), np.bool_)
        multiplier = self.multiplier(request, frame, rows)
        for (_name, ratio), column in zip(setting, self._columns(frame), strict=True):
            sums += column.map(rows, lambda value: value or 0) * ratio
            lacks |= _is_missing(column, rows) & (np.asarray(ratio * multiplier) != 0)
        sums[lacks] = self._settings.metrics_weight_of_unavailable
        return sums

    def _columns(self, frame: host_frame.HostFrame) -> Iterator[frame_columns.CodedColumn]:
        for name, _ratio in self._settings.metrics_weight_setting:
            yield frame.attribute("metrics", name)

    def _may_lack(self, request: requests.Request, frame: host_frame.HostFrame) -> bool:
        if _FILTER in self._settings.enabled_filters and not _passes_filters_by(request):
            return False
        missing = (_is_missing(column, slice(None)) for column in self._columns(frame))
        return any(bool((each & frame.alive).any()) for each in missing)


def _passes_filters_by(request: requests.Request) -> bool:
    forced = bool(request.force_hosts or request.force_nodes)
    return request.is_rebuild or (forced and not request.check_type)


def _is_missing(
    column: frame_columns.CodedColumn, rows: plugin_contract.Rows
) -> plugin_contract.BoolArray:
    return np.asarray(column.codes[rows] == column.code(None))
