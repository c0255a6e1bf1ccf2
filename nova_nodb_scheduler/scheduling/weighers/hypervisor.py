# SPDX-License-Identifier: Apache-2.0
"""Weighers by a host's hypervisor: its version, and the builds it failed."""

from __future__ import annotations

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.weighers import option_weigher


class HypervisorVersionWeigher(option_weigher.OptionWeigher):
    """The newer the better."""

    option = "hypervisor_version_weight_multiplier"

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.FloatArray:
        """Return versions as one number each, 0 where it is not known."""
        return frame.hypervisor_version[rows].astype(np.float64)


class BuildFailureWeigher(option_weigher.OptionWeigher):
    """The fewer builds failed since the last that did not, the better."""

    option = "build_failure_weight_multiplier"

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.FloatArray:
        """Return numbers of failed builds."""
        return frame.failed_builds[rows].astype(np.float64)

    def multiplier(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> float | contract.FloatArray:
        """Return the multiplier negated: the option says how bad a failure is."""
        return -super().multiplier(request, frame, rows)
