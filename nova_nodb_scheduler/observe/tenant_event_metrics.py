# SPDX-License-Identifier: Apache-2.0
"""What became of events that a process told projects of, for Prometheus."""

from __future__ import annotations

import functools
from collections.abc import Collection

import prometheus_client
from prometheus_client import core

from nova_nodb_scheduler.observe import scraped_metrics


def register(
    registry: prometheus_client.CollectorRegistry,
    figures: scraped_metrics.Figures,
    losses: Collection[str],
) -> None:
    """Register them.

    :param figures: asked at each scrape: ``posted``, ``waiting``, and each of the losses
    :param losses: why events are lost
    """
    registry.register(
        scraped_metrics.AtScrape(
            "nodb_tenant_events_posted",
            "Events of requests that wait which Zaqar took, for their projects",
            None,
            functools.partial(scraped_metrics.some, figures, {"posted": ""}),
            core.CounterMetricFamily,
        )
    )
    registry.register(
        scraped_metrics.AtScrape(
            "nodb_tenant_events_lost",
            "Events of requests that wait of which their projects were not told, by why",
            "why",
            functools.partial(scraped_metrics.some, figures, {why: why for why in losses}),
            core.CounterMetricFamily,
        )
    )
    registry.register(
        scraped_metrics.AtScrape(
            "nodb_tenant_events_waiting",
            "Events of requests that wait for Zaqar",
            None,
            functools.partial(scraped_metrics.some, figures, {"waiting": ""}),
        )
    )
