# SPDX-License-Identifier: Apache-2.0
"""The upgrade check's findings, taken without asking schedulers over the bus."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from nova_nodb_scheduler.cmd import backend_records, deployment, upgrade
from nova_nodb_scheduler.cmd.doctor import findings

_SEVERITIES = {
    upgrade.Code.SUCCESS: findings.Severity.OK,
    upgrade.Code.WARNING: findings.Severity.WARNING,
    upgrade.Code.FAILURE: findings.Severity.ERROR,
}


class Checks(upgrade.Checks):
    """The checks; what schedulers say of themselves is read from the back end alone."""

    @functools.cached_property
    def found(self) -> deployment.Deployment:
        """What the back end says, read once.

        :raises ConfigurationError: the synchronizer cannot be made
        """
        return deployment.gather(
            backend_records.read(self.plugin.make_synchronizer()),
            None,
            (),
            float(self.plugin.options.reporter_bound_seconds),
            float(self.plugin.options.mirror_bound_seconds),
        )

    def all(self) -> Sequence[tuple[str, Callable[[Any], Any]]]:
        """Return their names and functions."""
        checks: Sequence[tuple[str, Callable[[Any], Any]]] = self._upgrade_checks
        return checks


def of(checks: Checks, check: Callable[[Any], Any]) -> list[findings.Finding]:
    """Carry one out.

    Its sentences say what to do, so there is no remedy apart.
    """
    name = next(name for name, each in checks.all() if each is check)
    result = check(checks)
    text = " ".join(str(result.details or "All is well.").split())
    if result.code is upgrade.Code.FAILURE and text.startswith(upgrade.NOT_KNOWN):
        return [findings.unknown(name, findings.NO_BACKEND)]
    return [findings.Finding(_SEVERITIES[result.code], name, text)]
