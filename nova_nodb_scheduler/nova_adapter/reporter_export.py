# SPDX-License-Identifier: Apache-2.0
"""The metrics of a reporter's process, served as long as the reporter runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import prometheus_client

from nova_nodb_scheduler.nova_adapter import reporter as reporter_module
from nova_nodb_scheduler.observe import exporter, identity, reporter_metrics


def identity_of(role: str, host: str, cell: Callable[[], str]) -> identity.Identity:
    """Return who a reporter is among those that are scraped."""
    served = cell()
    return identity.Identity(role, host, None if served == reporter_module.EVERY_CELL else served)


class ReporterExport:
    """Fulfils :class:`.reporter.Company`.

    :param register: registers what every process exports
    """

    def __init__(
        self,
        reporter: reporter_module.Reporter,
        who: identity.Identity,
        place: exporter.Place,
        register: Callable[[prometheus_client.CollectorRegistry], None],
    ) -> None:
        registry = prometheus_client.CollectorRegistry()
        self._reporter = reporter
        self.metrics = reporter_metrics.ReporterMetrics(registry, self._figures)
        register(registry)
        self.exporter = exporter.Exporter(registry, who, place)

    def start(self) -> None:
        """Serve; see :class:`.exporter.Exporter`."""
        self.exporter.start()

    def stop(self) -> None:
        """Stop serving; idempotent."""
        self.exporter.stop()

    def _figures(self) -> Mapping[str, float]:
        status = self._reporter.status()
        return reporter_metrics.figures_of(
            running=status.running,
            publishing=status.last_error is None,
            dirty=status.queued,
            oldest_seconds=status.oldest_seconds,
            published=status.published,
            failed_flushes=status.failed_flushes,
        )
