# SPDX-License-Identifier: Apache-2.0
"""Filters on how many instances, and how many busy ones, a host may have."""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.filters import aggregate_metadata


class _Below(contract.Filter):
    """Hosts with less of something than the option of a name says.

    :cvar column: what is counted
    :cvar option: the bound, in the settings and in aggregates' metadata
    """

    column: ClassVar[str]
    option: ClassVar[str]

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        return self.name

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        counts = getattr(frame, self.column)[rows]
        passes: contract.BoolArray = np.less(counts, self.bound(frame, rows))
        return passes

    @abc.abstractmethod
    def bound(self, frame: host_frame.HostFrame, rows: contract.Rows) -> int | contract.FloatArray:
        """Return the bound of the rows."""


class _BelowOption(_Below):
    def bound(self, frame: host_frame.HostFrame, rows: contract.Rows) -> int | contract.FloatArray:
        return int(getattr(self._settings, self.option))


class _BelowAggregates(_Below):
    def bound(self, frame: host_frame.HostFrame, rows: contract.Rows) -> int | contract.FloatArray:
        default = int(getattr(self._settings, self.option))
        return aggregate_metadata.limits(frame, rows, self.option, default)


class IoOpsFilter(_BelowOption):
    """Hosts with fewer instances in I/O than allowed."""

    column = "num_io_ops"
    option = "max_io_ops_per_host"


class AggregateIoOpsFilter(_BelowAggregates):
    """The same with the least bound of the host's aggregates."""

    column = IoOpsFilter.column
    option = IoOpsFilter.option


class NumInstancesFilter(_BelowOption):
    """Hosts with fewer instances than allowed."""

    column = "num_instances"
    option = "max_instances_per_host"


class AggregateNumInstancesFilter(_BelowAggregates):
    """The same with the least bound of the host's aggregates."""

    column = NumInstancesFilter.column
    option = NumInstancesFilter.option
