# SPDX-License-Identifier: Apache-2.0
"""What is put into the queue counts at once, and what others put there soon."""

import unittest

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending, records
from nova_nodb_scheduler.scheduling.waiting import backlog
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.pending import counted_backlog, pending_ledger, pending_rules
from tests.unit.synchronizer.pending import made_requests

LEASE = made_requests.LEASE_SECONDS


class CountedBacklogTest(unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.hub = memory.MemoryHub(clock=lambda: self.now)
        self.client, self.ledger = self.made()
        self.reads = 0
        self.read_seconds = 0.0
        self.meanwhile = lambda: None
        snapshot = self.client.snapshot

        def counted(namespaces=None):
            self.reads += 1
            self.now += self.read_seconds
            found = snapshot(namespaces)
            pages = list(found.pages)
            self.meanwhile()
            return attrs.evolve(found, pages=iter(pages))

        self.client.snapshot = counted
        self.backlog = self.counted(self.client)

    def made(self):
        client = memory.MemorySynchronizer(shared_hub=self.hub)
        client.open()
        self.addCleanup(client.close)
        return client, pending_ledger.PendingLedger(client, LEASE, pause=lambda _: None)

    def counted(self, client, most=5, most_per_project=3):
        return counted_backlog.CountedBacklog(client, most, most_per_project, lambda: self.now)

    def request(self, key, project="project", servers=1):
        names = tuple(f"{key}{number or ''}" for number in range(servers))
        return attrs.evolve(
            made_requests.newcomer(key=key, servers=names, now_seconds=self.now),
            project_id=project,
            state=pending.PendingState.WAITING,
            parked_at=self.now,
        )

    def put(self, key, counted=None, **of):
        """Put a request into the queue as nova-api does; return why it may not be."""
        request, counted = self.request(key, **of), counted or self.backlog
        full = counted.admit(request)
        if full is None:
            self.ledger.create(request, "secret")
            counted.settle(request, is_kept=True)
        return full

    def pass_time(self):
        self.now += counted_backlog.LEAST_SECONDS

    def test_a_project_has_its_bound_and_the_queue_its_own(self):
        for key in "abc":
            self.assertIsNone(self.put(key))
        self.assertEqual(backlog.QueueFull("project", 3, 3), self.put("d"))
        self.assertIsNone(self.put("e", project="other", servers=2))
        self.assertEqual(backlog.QueueFull("", 5, 5), self.put("f", project="third"))
        self.assertEqual(1, self.reads)

    def test_servers_of_one_request_count_each(self):
        self.assertIsNone(self.put("a", servers=2))
        self.assertEqual(backlog.QueueFull("project", 2, 3), self.put("b", servers=2))

    def test_what_another_process_put_there_counts_with_the_next_count(self):
        other = self.counted(self.made()[0])
        self.assertIsNone(self.put("a"))
        self.assertIsNone(self.put("b", other, servers=2))
        self.pass_time()
        self.assertEqual(backlog.QueueFull("project", 3, 3), self.put("c"))

    def test_who_has_left_counts_no_more(self):
        for key in "abc":
            self.put(key)
        self.ledger.drop_server("a", "a")
        self.assertIsNotNone(self.put("d"))
        self.pass_time()
        self.assertIsNone(self.put("d"))

    def test_one_that_is_tried_counts_and_one_that_is_built_does_not(self):
        for key in "abc":
            self.put(key)
        self.ledger.grant("a", 1, "scheduler")
        self.ledger.take("a", 2, "conductor")
        self.pass_time()
        self.assertIsNotNone(self.put("d"))
        holding = pending_rules.Holding("a", 2, "conductor")
        self.ledger.begin(holding)
        self.pass_time()
        self.assertIsNone(self.put("d"))

    def test_what_could_not_be_written_counts_no_more(self):
        for key in "abcd":
            request = self.request(key)
            self.assertIsNone(self.backlog.admit(request))
            self.backlog.settle(request, is_kept=False)
        self.assertEqual(1, self.reads)

    def test_one_that_is_written_while_the_queue_is_counted_counts_once(self):
        early, late = self.request("a", servers=2), self.request("b")
        self.assertIsNone(self.backlog.admit(early))
        self.ledger.create(early, "secret")
        self.assertIsNone(self.backlog.admit(late))
        self.meanwhile = lambda: self.ledger.create(late, "secret")
        self.pass_time()
        self.assertEqual(backlog.QueueFull("project", 3, 3), self.backlog.admit(self.request("c")))
        # What the count met is not taken off by a word that comes behind it.
        self.backlog.settle(early, is_kept=False)
        self.backlog.settle(late, is_kept=True)
        self.assertEqual(backlog.QueueFull("project", 3, 3), self.backlog.admit(self.request("c")))

    def test_a_long_count_is_made_seldom(self):
        self.read_seconds = 1.0
        self.put("a")
        self.now += counted_backlog.SPARED - 0.1
        self.put("b")
        self.assertEqual(1, self.reads)
        self.now += 0.1
        self.put("c")
        self.assertEqual(2, self.reads)

    def test_a_record_that_cannot_be_read_does_not_count(self):
        key = pending_ledger.record_key("x")
        self.client.write([records.Write(key, None, "{}")])
        self.assertIsNone(self.put("a", servers=3))

    def test_a_back_end_that_is_away_is_told_and_admits_nobody(self):
        self.client.faults.fail_next(memory.Fault.UNAVAILABLE, operation="snapshot")
        with self.assertRaises(errors.BackendUnavailable):
            self.put("a")
        self.assertIsNone(self.put("a", servers=3))
