# SPDX-License-Identifier: Apache-2.0
"""The claims protocol against a real back end: every driver runs these cases.

Called by the tests of drivers as a base class, as :mod:`.conformance` is.
Imports the claims protocol and the contract; nothing of Nova, and no driver.
"""

from __future__ import annotations

from nova_nodb_scheduler.testing.conformance_claims import host_and_group_claims, interrupted_claims


class ClaimsConformance(
    host_and_group_claims.HostClaims,
    host_and_group_claims.BatchClaims,
    host_and_group_claims.GroupClaims,
    host_and_group_claims.RemovedGroups,
    interrupted_claims.UnknownOutcomes,
    interrupted_claims.Crashes,
    interrupted_claims.NewEpochs,
):
    """Everything the claims protocol promises, a sentence per test.

    As with :class:`.conformance.ConformanceSuite`, a driver's author gives
    ``make_synchronizer()``. The cases ask whether the driver's compare-and-set,
    unknown outcomes and clock carry the promises of the claims protocol, which
    needs no more than one key at a time.
    """


__all__ = ["ClaimsConformance"]
