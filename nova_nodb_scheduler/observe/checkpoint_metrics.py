# SPDX-License-Identifier: Apache-2.0
"""What becomes of a scheduler's local checkpoint, for Prometheus and for its own heartbeat."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import prometheus_client

from nova_nodb_scheduler.observe import scraped_metrics
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract

_AGE, _BYTES = {"age_seconds": ""}, {"bytes": ""}


class CheckpointMetrics(checkpoint_contract.CheckpointMeter):
    """Counts of one process; any method from any thread, none blocks."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._registry = registry
        self._starts = prometheus_client.Counter(
            "nodb_checkpoint_starts",
            "Starts that began with the machine's checkpoint (restored), or why they did not",
            ["outcome"],
            registry=registry,
        )
        self._writes = prometheus_client.Counter(
            "nodb_checkpoint_writes",
            "Attempts to write a checkpoint, by how they ended",
            ["outcome"],
            registry=registry,
        )
        for outcome in checkpoint_contract.WriteOutcome:
            self._writes.labels(outcome.value)

    def checkpoint_start(self, outcome: str) -> None:
        self._starts.labels(outcome).inc()

    def checkpoint_write(self, outcome: str) -> None:
        self._writes.labels(outcome).inc()

    def watch(self, figures: scraped_metrics.Figures) -> None:
        """Have each scrape ask how old and how large the checkpoint is.

        :param figures: ``age_seconds`` and ``bytes``, where there is one
        """
        for name, text, kinds in (
            ("nodb_checkpoint_age_seconds", "Age of the machine's checkpoint", _AGE),
            ("nodb_checkpoint_bytes", "Size of the machine's checkpoint", _BYTES),
        ):
            ask = functools.partial(scraped_metrics.some, figures, kinds)
            self._registry.register(scraped_metrics.AtScrape(name, text, None, ask))


def figures_of(
    status: checkpoint_contract.CheckpointStatus, now_seconds: Callable[[], float] = time.time
) -> Mapping[str, float]:
    """Return age and size of a checkpoint; nothing where there is none."""
    if status.made_at_seconds is None:
        return {}
    # A clock that was set back makes none of the future.
    age_seconds = max(0.0, now_seconds() - status.made_at_seconds)
    return {"age_seconds": age_seconds, "bytes": float(status.size_bytes)}


def told(
    status: checkpoint_contract.CheckpointStatus, now_seconds: Callable[[], float] = time.time
) -> Mapping[str, Any]:
    """Return what a heartbeat tells of a checkpoint."""
    return {
        **figures_of(status, now_seconds),
        "outcome": status.outcome,
        "detail": status.detail,
        "start": status.start,
    }
