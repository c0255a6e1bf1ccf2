# SPDX-License-Identifier: Apache-2.0
"""The claims protocol against a real back end: every driver runs these cases.

As with :class:`.conformance.ConformanceSuite`, a driver's author gives
``make_synchronizer()``. The cases ask whether the driver's compare-and-set,
unknown outcomes and clock carry the promises of the claims protocol, which
needs no more than one key at a time.
"""

from __future__ import annotations

from nova_nodb_scheduler.testing.conformance_claims import faults, groups, hosts


class ClaimsConformance(
    hosts.HostClaims,
    hosts.BatchClaims,
    groups.GroupClaims,
    groups.RemovedGroups,
    faults.UnknownOutcomes,
    faults.Crashes,
):
    """Everything the claims protocol promises, a sentence per test."""


__all__ = ["ClaimsConformance"]
