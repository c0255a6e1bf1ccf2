# SPDX-License-Identifier: Apache-2.0
"""What became of requests that may wait in one conductor, for Prometheus."""

from __future__ import annotations

import functools

import prometheus_client
from prometheus_client import core

from nova_nodb_scheduler.observe import scraped_metrics

#: Outcomes that are counted.
OUTCOMES = (
    "parked",
    "queue_full",
    "not_kept",
    "overtaken",
    "left",
    "sent_on",
    "given_up",
    "vain_casts",
    "expired",
    "cancelled",
    "undecodable",
    "group_deleted",
)


def register(
    registry: prometheus_client.CollectorRegistry, figures: scraped_metrics.Figures
) -> None:
    """Register them.

    :param figures: asked at each scrape, by outcome
    """
    registry.register(
        scraped_metrics.AtScrape(
            "nodb_conducted_requests",
            "Steps of requests that may wait for room, by how they came out",
            "outcome",
            functools.partial(
                scraped_metrics.some, figures, {outcome: outcome for outcome in OUTCOMES}
            ),
            core.CounterMetricFamily,
        )
    )
