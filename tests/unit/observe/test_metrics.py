# SPDX-License-Identifier: Apache-2.0
"""What is counted can be scraped, from each worker of a service."""

import os
import socket
import threading
import time
import urllib.request

import prometheus_client
import testtools

from nova_nodb_scheduler.observe import exporter, metrics
from nova_nodb_scheduler.synchronizer import meter, replicator
from tests.unit.synchronizer import replicas


def value(registry, name, **labels):
    return registry.get_sample_value(name, labels)


class TestMetrics(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.registry = prometheus_client.CollectorRegistry()
        self.metrics = metrics.Metrics(self.registry)

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
        queued = {"api:a": 12.0}
        self.metrics.watch_reporters(lambda: queued, lambda: {"api:a": 3.5}, lambda: {"api:a": 2})
        found = {
            name: self.registry.get_sample_value(name, {"reporter": "api:a"})
            for name in (
                "nodb_reporter_queue_records",
                "nodb_reporter_silent_seconds",
                "nodb_reporter_refused_records",
            )
        }
        self.assertEqual([12.0, 3.5, 2.0], list(found.values()))
        queued["api:a"] = 0.0
        self.assertEqual(
            0.0,
            self.registry.get_sample_value("nodb_reporter_queue_records", {"reporter": "api:a"}),
        )

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

    def test_two_registries_of_one_process_do_not_meet(self):
        other = metrics.Metrics(prometheus_client.CollectorRegistry())
        other.resynced("silence")
        self.assertIsNone(value(self.registry, "nodb_resyncs_total", reason="silence"))
        self.assertEqual(1, value(other.registry, "nodb_resyncs_total", reason="silence"))

    def test_a_replicator_is_measured(self):
        measured: meter.Meter = self.metrics
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


class TestExporter(testtools.TestCase):
    def _exporter(self, port=0, ports=1, **more):
        registry = prometheus_client.CollectorRegistry()
        self.metrics = metrics.Metrics(registry)
        made = exporter.Exporter(registry, "127.0.0.1", port, ports, **more)
        self.addCleanup(made.stop)
        return made

    def _scrape(self, address):
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=10) as got:
            return got.read().decode()

    def test_it_serves_what_was_counted(self):
        served = self._exporter()
        self.assertIsNone(served.address)
        served.start()
        served.start()
        self.metrics.fell_back("cold cell", "c1")
        self.assertIn(
            'nodb_fallbacks_total{cell="c1",reason="cold cell"} 1.0', self._scrape(served.address)
        )
        address = served.address
        served.stop()
        served.stop()
        self.assertRaises(OSError, self._scrape, address)

    def test_the_second_worker_takes_the_next_free_port(self):
        first = self._exporter()
        first.start()
        port = first.address[1]
        second = self._exporter(port, ports=20)
        second.start()
        self.assertGreater(second.address[1], port)
        self.assertIn("nodb_applied_changes", self._scrape(second.address))

    def test_a_port_in_use_stops_nobody_and_is_taken_when_it_is_free(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            late = self._exporter(port, again_seconds=0.05)
            with self.assertLogs(exporter.__name__, "ERROR") as logged:
                late.start()
            late.start()
            self.assertIsNone(late.address)
        [line] = logged.output
        self.assertIn("metrics_port", line)

        deadline = time.monotonic() + 30
        while late.address is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(("127.0.0.1", port), late.address)
        self.assertIn("nodb_applied_changes", self._scrape(late.address))

    def test_an_address_that_is_not_this_hosts_stops_nobody(self):
        registry = prometheus_client.CollectorRegistry()
        elsewhere = exporter.Exporter(registry, "192.0.2.7", 9100, 3, again_seconds=0.05)
        self.addCleanup(elsewhere.stop)

        with self.assertLogs(exporter.__name__, "ERROR") as logged:
            elsewhere.start()

        self.assertIn("192.0.2.7, ports 9100 to 9102", logged.output[0])
        elsewhere.stop()
        names = {thread.name for thread in threading.enumerate()}
        self.assertNotIn("nodb-metrics-address", names)

    def test_it_works_in_a_forked_worker(self):
        served = self._exporter()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                served.start()
                self.metrics.fell_back("cold cell", "c1")
                os.write(writing, b"1" if "c1" in self._scrape(served.address) else b"0")
            finally:
                os._exit(0)
        os.close(writing)
        self.addCleanup(os.close, reading)
        self.assertEqual(b"1", os.read(reading, 1))
        os.waitpid(pid, 0)
