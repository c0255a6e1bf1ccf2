# SPDX-License-Identifier: Apache-2.0
"""What is counted can be scraped, from each worker of a service."""

import prometheus_client
import testtools

from nova_nodb_scheduler.observe import claim_metrics, scheduler_metrics
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from tests.unit.synchronizer.replication import replicas


def value(registry, name, **labels):
    return registry.get_sample_value(name, labels)


class TestMetrics(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.registry = prometheus_client.CollectorRegistry()
        self.metrics = scheduler_metrics.SchedulerMetrics(self.registry)

    def test_fallbacks_are_counted_by_reason_and_cell(self):
        self.metrics.fell_back("cold cell", "c1")
        self.metrics.fell_back("cold cell", "c1")
        self.metrics.fell_back("dead feed", "c2")
        name = "nodb_fallbacks_total"
        self.assertEqual(2, value(self.registry, name, reason="cold cell", cell="c1"))
        self.assertEqual(1, value(self.registry, name, reason="dead feed", cell="c2"))

    def test_schedules_are_timed_by_outcome(self):
        self.metrics.scheduled(0.03, "selected")
        self.assertEqual(
            0.03, value(self.registry, "nodb_schedule_seconds_sum", outcome="selected")
        )
        self.assertEqual(
            0,
            value(self.registry, "nodb_schedule_seconds_bucket", outcome="selected", le="0.025"),
        )

    def test_reporters_are_asked_at_each_scrape(self) -> None:
        name = ("api", "a", "*")
        told = {"living": {name: 2.0}, "queued": {name: 12.0}, "silent": {}, "refused": {name: 3.0}}
        self.metrics.watch_reporters(lambda: told)
        labels = {"reporter_role": "api", "reporter_host": "a", "cell": "*"}
        found = {
            each: self.registry.get_sample_value(each, labels)
            for each in (
                "nodb_reporters",
                "nodb_reporter_queue_records",
                "nodb_reporter_silent_seconds",
                "nodb_reporter_refused_records",
            )
        }
        self.assertEqual([2.0, 12.0, None, 3.0], list(found.values()))
        told["queued"][name] = 0.0
        self.assertEqual(0.0, self.registry.get_sample_value("nodb_reporter_queue_records", labels))

    def test_a_cell_that_is_not_proved_says_why(self) -> None:
        proved = {"c1": 1.0, "c2": 0.0}
        why = {("c2", "reporter silent"): 1.0}
        states = {"following": 1.0, "dead": 0.0}
        self.metrics.watch_proof(
            lambda: {"": 1.0}, lambda: states, dict, lambda: proved, lambda: why, dict
        )
        self.assertEqual(1, value(self.registry, "nodb_ready"))
        self.assertEqual(0, value(self.registry, "nodb_cell_proved", cell="c2"))
        self.assertEqual(
            1, value(self.registry, "nodb_cell_unproved", cell="c2", reason="reporter silent")
        )
        self.assertEqual(0, value(self.registry, "nodb_feed_state", state="dead"))
        self.assertIsNone(value(self.registry, "nodb_feed_proof_age_seconds"))

    def test_a_metric_that_cannot_be_read_leaves_the_others_alone(self) -> None:
        def broken():
            raise KeyError("written by another release")

        self.metrics.watch_store(broken)
        self.metrics.watch_start(lambda: {"": 0.5})
        self.assertIsNone(value(self.registry, "nodb_store_records", namespace="compute_nodes"))
        self.assertEqual(0.5, value(self.registry, "nodb_start_ratio"))

    def test_claims_are_counted_when_scraped_by_state_and_by_end(self) -> None:
        figures = {"pending": 1.0, "settled": 4.0, "oldest_pending_seconds": 2.5, "asked": 9.0}
        self.metrics.watch_claims(lambda: figures)
        found = [
            value(self.registry, "nodb_claims", state="pending"),
            value(self.registry, "nodb_claims_ended", how="settled"),
            value(self.registry, "nodb_claims_oldest_seconds", state="pending"),
        ]
        self.assertEqual([1.0, 4.0, 2.5], found)
        self.assertIsNone(value(self.registry, "nodb_claims", state="asked"))

    def test_records_of_the_store_are_read_when_scraped(self):
        counts = {"compute_nodes": 1}
        self.metrics.watch_store(lambda: counts)
        counts["compute_nodes"] = 7
        counts["services"] = 2
        self.assertEqual(7, value(self.registry, "nodb_store_records", namespace="compute_nodes"))
        self.assertEqual(2, value(self.registry, "nodb_store_records", namespace="services"))

    def test_the_first_event_is_a_rise_for_whoever_looks_at_rises(self):
        """Prometheus sees no rise where a series begins with 1."""
        verified = claim_metrics.ClaimMetrics(self.registry)
        looked = (
            ("nodb_anti_entropy_findings_total", {"kind": "missed"}),
            ("nodb_schedule_seconds_count", {"outcome": "error"}),
            ("nodb_allocations_verified_total", {"result": "withdrawn"}),
        )
        self.assertEqual([0, 0, 0], [value(self.registry, n, **of) for n, of in looked])
        self.metrics.anti_entropy_found("missed", 1)
        self.metrics.scheduled(0.1, "error")
        verified.allocation_verified("withdrawn")
        self.assertEqual([1, 1, 1], [value(self.registry, n, **of) for n, of in looked])

    def test_two_registries_of_one_process_do_not_meet(self):
        other = scheduler_metrics.SchedulerMetrics(prometheus_client.CollectorRegistry())
        other.resynced("silence")
        self.assertIsNone(value(self.registry, "nodb_resyncs_total", reason="silence"))
        self.assertEqual(1, value(other.registry, "nodb_resyncs_total", reason="silence"))

    def test_a_replicator_is_measured(self):
        measured: replicator_contract.ReplicationMeter = self.metrics
        world = replicas.World()
        replica = world.replica()
        followed = replicator.Replicator(
            replica.driver,
            replica.store,
            replicas.DECLARED,
            identity="one",
            clock=world.clock,
            meter=measured,
        )
        world.put("a", 1)
        world.put_bytes("bad", b"\x00")
        for _ in range(5):
            followed.step()
        world.hub.begin_epoch()
        followed.step()
        self.assertEqual(2, value(self.registry, "nodb_applied_changes_total"))  # and its beat
        self.assertEqual(1, value(self.registry, "nodb_quarantined_records"))
        self.assertEqual(1, value(self.registry, "nodb_feed_lag_seconds_count"))
        self.assertEqual(1, value(self.registry, "nodb_resyncs_total", reason="epoch changed"))

    def test_a_replicators_thread_is_seen_to_run_and_to_end(self):
        world = replicas.World()
        replica = world.replica()
        followed = replicator.Replicator(
            replica.driver, replica.store, replicas.DECLARED, identity="one", meter=self.metrics
        )
        followed.start()
        self.assertTrue(followed.wait_until(1, 10))
        self.assertEqual(1, value(self.registry, "nodb_replicator_running"))
        self.assertTrue(followed.stop())
        self.assertEqual(0, value(self.registry, "nodb_replicator_running"))
