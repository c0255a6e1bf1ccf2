# SPDX-License-Identifier: Apache-2.0
"""Weighers by a host's hypervisor: its version, and the builds it failed."""

from __future__ import annotations

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.weighers import option_weigher


class HypervisorVersionWeigher(option_weigher.ColumnWeigher):
    """The newer the better; 0 where the version is not known."""

    option = "hypervisor_version_weight_multiplier"
    column = "hypervisor_version"


class BuildFailureWeigher(option_weigher.ColumnWeigher):
    """The fewer builds failed since the last that did not, the better."""

    option = "build_failure_weight_multiplier"
    column = "failed_builds"

    def multiplier(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> float | contract.FloatArray:
        """Return the multiplier negated: the option says how bad a failure is."""
        return -super().multiplier(request, frame, rows)
