# SPDX-License-Identifier: Apache-2.0
"""What waits is told by bounded sets of labels, and read once for each scrape."""

import prometheus_client
import testtools

from nova_nodb_scheduler.observe import queue_metrics


class QueueMetricsTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.registry = prometheus_client.CollectorRegistry()
        self.meter = queue_metrics.QueueMetrics(self.registry)

    def value(self, name, **labels):
        return self.registry.get_sample_value(name, labels)

    def test_projects_and_flavors_beyond_the_greatest_stand_together(self):
        amounts = {f"p{number:03}": number for number in range(100)}
        found = queue_metrics.most_named(amounts, 3)
        self.assertEqual({"p099": 99, "p098": 98, "p097": 97, "(others)": 4656}, found)
        self.assertEqual(sum(amounts.values()), sum(found.values()))

    def test_few_are_all_named(self):
        self.assertEqual({"a": 1.0, "b": 0.0}, queue_metrics.most_named({"a": 1, "b": 0}, 3))

    def test_what_waits_is_told(self):
        figures = queue_metrics.WaitingFigures(
            servers_by_class={"high": 2, "low": 0},
            servers_by_project={f"p{number}": 1 for number in range(50)},
            requests=2,
            oldest_seconds={"high": 7.5},
            amounts={"VCPU": 12},
            unreadable=1,
            held_hosts=3,
        )
        self.meter.watch(lambda: figures, lambda: True)
        for expected, name, labels in (
            (2.0, "nodb_queue_servers", {"class": "high"}),
            (0.0, "nodb_queue_servers", {"class": "low"}),
            (30.0, "nodb_queue_project_servers", {"project": "(others)"}),
            (7.5, "nodb_queue_oldest_seconds", {"class": "high"}),
            (12.0, "nodb_queue_amount", {"resource": "VCPU"}),
            (2.0, "nodb_queue_requests", {}),
            (1.0, "nodb_queue_unreadable_records", {}),
            (3.0, "nodb_queue_held_hosts", {}),
            (1.0, "nodb_queue_running", {}),
        ):
            self.assertEqual(expected, self.value(name, **labels), name)

    def test_what_an_alert_looks_at_begins_at_0(self):
        for answer in queue_metrics.ANSWERS:
            self.assertEqual(0.0, self.value("nodb_queue_newcomers_total", answer=answer))
        for result in queue_metrics.RESULTS:
            self.assertEqual(0.0, self.value("nodb_queue_candidates_total", result=result))
        self.assertEqual(0.0, self.value("nodb_queue_failures_total"))

    def test_waits_are_told_by_class_and_ending(self):
        self.meter.left("high", "dispatched", 3.0)
        labels = {"class": "high", "ending": "dispatched"}
        self.assertEqual(3.0, self.value("nodb_queue_wait_seconds_sum", **labels))
        self.assertEqual(0.0, self.value("nodb_queue_wait_seconds_bucket", le="2.0", **labels))
        self.assertEqual(1.0, self.value("nodb_queue_wait_seconds_bucket", le="5.0", **labels))

    def test_one_reading_serves_a_scrape(self):
        now, read = [0.0], []

        def figures():
            read.append(now[0])
            return queue_metrics.WaitingFigures()

        self.meter.watch(queue_metrics.cached(figures, 2.0, lambda: now[0]), lambda: True)
        prometheus_client.generate_latest(self.registry)
        self.assertEqual([0.0], read)
        now[0] = 2.0
        prometheus_client.generate_latest(self.registry)
        self.assertEqual([0.0, 2.0], read)
