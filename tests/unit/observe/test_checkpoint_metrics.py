# SPDX-License-Identifier: Apache-2.0
"""What Prometheus and a heartbeat are told of the machine's checkpoint."""

import unittest

import prometheus_client

from nova_nodb_scheduler.observe import checkpoint_metrics
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract


class CheckpointMetricsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.metrics = checkpoint_metrics.CheckpointMetrics(self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def test_a_first_failure_is_a_rise(self) -> None:
        name = "nodb_checkpoint_writes_total"
        self.assertEqual(0, self.value(name, outcome="failed"))
        self.metrics.checkpoint_write("failed")
        self.assertEqual(1, self.value(name, outcome="failed"))

    def test_starts_are_counted_by_how_they_began(self) -> None:
        self.metrics.checkpoint_start("other epoch")
        self.assertEqual(1, self.value("nodb_checkpoint_starts_total", outcome="other epoch"))

    def test_age_and_size_are_asked_for_when_scraped_and_absent_without_a_checkpoint(self) -> None:
        status = checkpoint_contract.CheckpointStatus(None, 0, "", "", "absent")
        self.metrics.watch(lambda: checkpoint_metrics.figures_of(status, lambda: 100.0))
        self.assertIsNone(self.value("nodb_checkpoint_age_seconds"))
        status = checkpoint_contract.CheckpointStatus(70.0, 2048, "written", "", "absent")
        self.assertEqual(30.0, self.value("nodb_checkpoint_age_seconds"))
        self.assertEqual(2048.0, self.value("nodb_checkpoint_bytes"))

    def test_a_clock_that_was_set_back_makes_no_age_below_zero(self) -> None:
        status = checkpoint_contract.CheckpointStatus(70.0, 2048, "written", "", "restored")
        told = checkpoint_metrics.told(status, lambda: 10.0)
        self.assertEqual(0.0, told["age_seconds"])
        self.assertEqual(("written", "restored"), (told["outcome"], told["start"]))
