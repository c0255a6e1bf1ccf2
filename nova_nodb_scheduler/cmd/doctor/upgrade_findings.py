# SPDX-License-Identifier: Apache-2.0
"""The upgrade check's findings, taken without asking schedulers over the bus."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from nova_nodb_scheduler.cmd.doctor import findings
from nova_nodb_scheduler.cmd.overview import deployment, process_reports
from nova_nodb_scheduler.cmd.upgrade_check import check_command

_SEVERITIES = {
    check_command.Code.SUCCESS: findings.Severity.OK,
    check_command.Code.WARNING: findings.Severity.WARNING,
    check_command.Code.FAILURE: findings.Severity.ERROR,
}


class DoctorUpgradeChecks(check_command.UpgradeChecks):
    """The checks; what schedulers say of themselves is read from the back end alone."""

    @functools.cached_property
    def found(self) -> deployment.Deployment:
        """What the back end says, read once.

        :raises ConfigurationError: the synchronizer cannot be made
        """
        return deployment.gather(
            process_reports.read_backend(self.plugin.make_synchronizer()),
            None,
            (),
            float(self.options.reporter_bound_seconds),
            float(self.options.mirror_bound_seconds),
            float(self.options.claim_lease_seconds),
        )

    def all(self) -> Sequence[tuple[str, Callable[[Any], Any]]]:
        """Return their names and functions."""
        checks: Sequence[tuple[str, Callable[[Any], Any]]] = self._upgrade_checks
        return checks


def of(checks: DoctorUpgradeChecks, check: Callable[[Any], Any]) -> list[findings.DoctorFinding]:
    """Carry one out.

    Its sentences say what to do, so there is no remedy apart.
    """
    name = next(name for name, each in checks.all() if each is check)
    result = check(checks)
    text = " ".join(str(result.details or "All is well.").split())
    if result.code is check_command.Code.FAILURE and text.startswith(check_command.NOT_KNOWN):
        return [findings.unknown(name, findings.NO_BACKEND)]
    return [findings.DoctorFinding(_SEVERITIES[result.code], name, text)]
