# SPDX-License-Identifier: Apache-2.0
"""What claims come to can be scraped, and stands in the scheduler's beat."""

from __future__ import annotations

import prometheus_client
import testtools

from nova_nodb_scheduler.observe import claim_metrics


class ClaimMetricsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.registry = prometheus_client.CollectorRegistry()
        self.metrics = claim_metrics.ClaimMetrics(self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def test_claims_are_counted_and_timed(self) -> None:
        self.metrics.claimed(3, 0.02)
        self.metrics.claims_confirmed(2, 1, 0.01)
        self.assertEqual(3, self.value("nodb_claims_taken_total"))
        self.assertEqual(1, self.value("nodb_claims_gone_total"))
        self.assertEqual(0.02, self.value("nodb_claim_seconds_sum", step="take"))
        self.assertEqual(0.01, self.value("nodb_claim_seconds_sum", step="confirm"))

    def test_refusals_are_counted_by_reason(self) -> None:
        self.metrics.claim_refused("full")
        self.metrics.claim_refused("full")
        self.metrics.claim_refused("server group policy")
        self.assertEqual(2, self.value("nodb_claims_refused_total", reason="full"))
        self.assertEqual(1, self.value("nodb_claims_refused_total", reason="server group policy"))

    def test_conflicts_are_claims_that_what_others_wrote_left_no_way_for(self) -> None:
        for reason in ("full", "server group policy", "lost"):
            self.metrics.claim_refused(reason)
        for reason in ("unavailable", "not yet published in this epoch", "unreadable"):
            self.metrics.claim_refused(reason)
        self.metrics.lost(2)
        self.assertEqual(3, self.value("nodb_claim_conflicts_total"))

    def test_writes_that_were_lost_and_absorbed_are_counted_apart(self) -> None:
        self.metrics.lost(0)
        self.metrics.lost(2)
        self.metrics.absorbed(0)
        self.metrics.absorbed(1)
        self.assertEqual(2, self.value("nodb_claim_writes_lost_total"))
        self.assertEqual(1, self.value("nodb_claim_writes_absorbed_total"))
        self.assertEqual(0, self.value("nodb_claim_conflicts_total"))
        self.assertEqual({"writes lost": 2, "writes absorbed": 1}, self.metrics.figures())

    def test_the_beat_says_what_happened_and_nothing_else(self) -> None:
        self.assertEqual({}, self.metrics.figures())
        self.metrics.claimed(1, 0.0)
        self.metrics.claim_refused("full")
        self.metrics.lost(0)
        self.assertEqual({"taken": 1, "refused: full": 1, "conflicts": 1}, self.metrics.figures())
