# SPDX-License-Identifier: Apache-2.0
"""All workers of a service on a machine are scraped at one port, each by a number that stays."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from unittest import mock

import prometheus_client
import testtools
from prometheus_client import parser

from nova_nodb_scheduler.observe import exporter, metric_labels, scheduler_metrics, worker_slots
from nova_nodb_scheduler.testing import patience

WAIT_SECONDS = 20.0


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as got:
        return got.read().decode()


def series(text):
    """Return the series of an exposition with their values."""
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


class ExporterCase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        directory = tempfile.TemporaryDirectory(prefix="nodb-metrics-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.port = free_port()
        patcher = mock.patch.object(exporter, "_LOOK_SECONDS", 0.1)
        patcher.start()
        self.addCleanup(patcher.stop)

    def worker(self, count=1, host="h", role="conductor", cell=None, port=None, directory=None):
        """Return a worker's exporter, which has counted so many fallbacks."""
        registry = prometheus_client.CollectorRegistry()
        counted = scheduler_metrics.SchedulerMetrics(registry)
        for _ in range(count):
            counted.fell_back("cold cell", "c1")
        made = exporter.Exporter(
            registry,
            metric_labels.MetricIdentity(role, host, cell),
            exporter.ScrapeAddress("127.0.0.1", port or self.port, directory or self.directory),
        )
        self.addCleanup(made.stop)
        return made

    def fallbacks(self):
        """Return counted fallbacks by the number of the worker."""
        found = re.findall(r'nodb_fallbacks_total\{.*worker="(\d+)"\} (\d+)', scrape(self.port))
        return {int(worker): int(count) for worker, count in found}


class TestExporter(ExporterCase):
    def test_it_serves_what_was_counted_by_role_host_and_worker(self):
        served = self.worker()
        self.assertIsNone(served.address)
        served.start()
        served.start()
        self.assertIn(
            'nodb_fallbacks_total{cell="c1",host="h",reason="cold cell",role="conductor",'
            'worker="0"} 1.0',
            scrape(self.port),
        )
        served.stop()
        served.stop()
        self.assertRaises(OSError, scrape, self.port)

    def test_a_conductor_says_its_cell_and_a_metric_its_own(self):
        self.worker(cell="c9").start()
        text = scrape(self.port)
        self.assertIn('nodb_applied_changes_total{cell="c9"', text)
        self.assertIn('nodb_fallbacks_total{cell="c1"', text)

    def test_all_workers_are_served_at_one_port(self):
        for count in (1, 2, 3):
            self.worker(count).start()
        self.assertEqual({0: 1, 1: 2, 2: 3}, self.fallbacks())
        # One family each, as the format demands.
        heads = re.findall(r"^# TYPE nodb_fallbacks_total", scrape(self.port), re.MULTILINE)
        self.assertEqual(1, len(heads))

    def test_series_are_the_same_after_a_restart(self):
        before = [self.worker(1), self.worker(2)]
        for each in before:
            each.start()
        first = series(scrape(self.port)).keys()
        for each in reversed(before):
            each.stop()
        for each in (self.worker(2), self.worker(1)):
            each.start()
        self.assertEqual(first, series(scrape(self.port)).keys())

    def test_the_next_worker_gets_the_number_of_one_that_was_killed(self):
        first = self.worker(1)
        first.start()
        pid, ready = self.forked(lambda: self.worker(2))
        self.assertEqual(b"1", os.read(ready, 1))
        self.assertEqual({0: 1, 1: 2}, self.fallbacks())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.assertEqual({0: 1}, self.fallbacks())
        third = self.worker(3)
        third.start()
        self.assertEqual({0: 1, 1: 3}, self.fallbacks())

    def test_another_takes_the_port_of_one_that_was_killed(self):
        pid, ready = self.forked(lambda: self.worker(1))
        self.assertEqual(b"1", os.read(ready, 1))
        second = self.worker(2)
        second.start()
        self.assertIsNone(second.address)
        self.assertEqual({0: 1, 1: 2}, self.fallbacks())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        patience.wait_until(lambda: second.address, WAIT_SECONDS, "nobody took the port")
        self.assertEqual({1: 2}, self.fallbacks())

    def test_a_frozen_worker_is_named_and_the_others_are_served(self):
        self.worker(1).start()
        pid, ready = self.forked(lambda: self.worker(2))
        self.assertEqual(b"1", os.read(ready, 1))
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        text = scrape(self.port)
        self.assertLess(time.monotonic() - began, 10)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        answers = dict(re.findall(r'nodb_worker_answers\{.*worker="(\d)"\} (\d)', text))
        self.assertEqual({"0": "1", "1": "0"}, answers)
        self.assertIn('nodb_fallbacks_total{cell="c1",host="h"', text)

    def forked(self, make):
        """Start an exporter in a process of its own; its pid, and what says that it serves."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                make().start()
                os.write(writing, b"1")
                time.sleep(60)
            finally:
                os._exit(0)
        os.close(writing)
        self.addCleanup(os.close, reading)
        return pid, reading

    def test_a_child_keeps_neither_the_number_nor_the_port_of_its_parent(self):
        served = self.worker(1)
        served.start()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        os.close(reading)
        self.assertEqual({0: 1}, self.fallbacks())
        served.stop()
        again = self.worker(2)
        again.start()
        self.assertEqual(self.port, (again.address or ("", 0))[1])
        self.assertEqual({0: 2}, self.fallbacks())
        os.close(writing)
        os.waitpid(pid, 0)

    def test_services_of_two_cells_that_share_a_port_have_numbers_of_their_own(self):
        for cell in ("c1", "c2"):
            self.worker(cell=cell).start()
        found = re.findall(
            r'nodb_worker_answers\{cell="(..)",.*worker="(\d)"\} 1', scrape(self.port)
        )
        self.assertEqual([("c1", "0"), ("c2", "0")], sorted(found))

    def test_a_port_that_is_taken_stops_nothing_and_is_served_once_it_is_free(self):
        with socket.create_server(("127.0.0.1", self.port)):
            served = self.worker()
            served.start()
            self.assertIsNone(served.address)
        patience.wait_until(lambda: served.address, WAIT_SECONDS, "the port was not taken")
        self.assertEqual({0: 1}, self.fallbacks())

    def test_an_address_that_is_not_there_stops_nothing(self):
        made = self.worker()
        made._place = exporter.ScrapeAddress("192.0.2.7", self.port, self.directory)
        with self.assertLogs(exporter.LOG.name, "WARNING") as logged:
            made.start()
            time.sleep(0.35)
        self.assertIsNone(made.address)
        self.assertEqual(1, len(logged.output))

    def assertLogs(self, *args):
        import unittest

        return unittest.TestCase().assertLogs(*args)

    def test_a_worker_without_a_directory_is_served_alone(self):
        blocked = self.directory / "file"
        blocked.write_text("")
        for count in (1, 2):
            self.worker(count, directory=blocked).start()
        self.assertEqual({0: 1}, self.fallbacks())

    def test_a_directory_of_another_user_is_not_trusted(self):
        slots = worker_slots.WorkerSlots(self.directory, metric_labels.MetricIdentity("api", "h"))
        own = os.geteuid()
        with mock.patch("os.geteuid", lambda: own + 1):
            self.assertRaises(PermissionError, slots.take)

    def test_a_directory_below_one_of_another_user_is_not_trusted(self):
        foreign = self.directory / "metrics"
        foreign.mkdir()
        own = os.geteuid() or 4242
        os.chown(foreign, own + 1, -1)
        slots = worker_slots.WorkerSlots(foreign / "9100", metric_labels.MetricIdentity("api", "h"))
        self.assertRaises(PermissionError, slots.take)

    def test_directories_that_are_made_are_the_services_own(self):
        slots = worker_slots.WorkerSlots(
            self.directory / "m" / "9100", metric_labels.MetricIdentity("api", "h")
        )
        slots.take()
        self.addCleanup(slots.leave)
        for each in (self.directory / "m", self.directory / "m" / "9100"):
            self.assertEqual(0o700, each.stat().st_mode & 0o777)

    def test_who_connects_and_says_nothing_takes_no_thread_for_ever(self):
        patcher = mock.patch.object(exporter._Quiet, "timeout", 1.0)
        patcher.start()
        self.addCleanup(patcher.stop)
        self.worker().start()
        before = threading.active_count()
        silent = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(60)]
        for each in silent:
            self.addCleanup(each.close)
        # The last is hung up on: the others were looked at before it.
        silent[-1].settimeout(WAIT_SECONDS)
        self.assertEqual(b"", silent[-1].recv(1))
        self.assertLessEqual(threading.active_count() - before, exporter._MOST_CONNECTIONS)
        silent[0].settimeout(WAIT_SECONDS)
        self.assertEqual(b"", silent[0].recv(1))
        patience.wait_until(
            lambda: threading.active_count() <= before, WAIT_SECONDS, "threads are left"
        )
        self.assertEqual({0: 1}, self.fallbacks())

    def test_green_threads_of_a_process_that_was_patched_late_go_on(self):
        script = f'''
import pathlib, selectors, socketserver
import eventlet
eventlet.monkey_patch()
import prometheus_client
from nova_nodb_scheduler.observe import exporter, metric_labels
made = [exporter.Exporter(prometheus_client.CollectorRegistry(),
    metric_labels.MetricIdentity("api", "h"),
    exporter.ScrapeAddress("127.0.0.1", {self.port}, pathlib.Path("{self.directory}")))
    for _ in range(2)]
for each in made:
    each.start()
turns = [0]
def turn():
    while True:
        eventlet.sleep(0.01)
        turns[0] += 1
eventlet.spawn(turn)
from eventlet.green.urllib import request
text = request.urlopen("http://127.0.0.1:{self.port}/metrics", timeout=20).read().decode()
eventlet.sleep(1)
for each in made:
    each.stop()
print(turns[0] > 20, text.count("nodb_worker_answers{{"))
'''
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual("True 2", done.stdout.strip(), done.stderr)

    def test_what_a_worker_leaves_unfinished_is_no_answer(self):
        self.worker(1).start()
        other = self.worker(2)
        other.start()
        other._slots._serving.server.tell = lambda: b'[["nodb_x", "text", "ga'
        self.assertEqual({0: 1}, self.fallbacks())
        self.assertIn('worker="1"} 0.0', scrape(self.port))
