# SPDX-License-Identifier: Apache-2.0
"""A full cloud frees room at the pace asked for, and never more than there was."""

import random

import testtools

from nova_nodb_scheduler.simulator.run import departures, fleet, true_ledger
from nova_nodb_scheduler.simulator.scenario import made_hosts, run_clock, workload
from tests import forking

_CONTEXT = forking.context()
FLAVORS = (workload.MadeFlavor("s", 1, 2048, 10), workload.MadeFlavor("l", 8, 16_384, 80))


class DeparturesTest(testtools.TestCase):
    def run_for(self, seconds, per_second, hosts=20):
        """Let servers depart; return the ledger, the departures and the records marked."""
        cluster = made_hosts.Cluster(made_hosts.ClusterOptions(hosts=hosts, fill=1.0))
        ledger = true_ledger.TrueLedger(cluster, checked=True)
        marked = []
        running = fleet.Fleet(cluster, ledger, marked.append)
        clock = run_clock.RunClock(_CONTEXT, run_clock.Pace.VIRTUAL)
        events = run_clock.Events(clock)
        made = departures.Departures(
            cluster, ledger, running, events, per_second, FLAVORS, random.Random(1)
        )
        made.begin()
        while (due := events.next_seconds) is not None and due <= seconds:
            clock.advance(due)
            events.happen_next()
        return cluster, ledger, made, marked

    def test_hosts_are_full_to_the_last_unit_before(self):
        _, ledger, made, marked = self.run_for(10.0, 0.0)
        self.assertEqual((1.0, 0, []), (ledger.used_share(), made.servers, marked))

    def test_servers_leave_at_the_pace_and_what_they_had_is_free(self):
        _, ledger, made, marked = self.run_for(100.0, 2.0)
        self.assertTrue(150 <= made.servers <= 250, made.servers)
        self.assertLess(ledger.used_share(), 1.0)
        namespaces = {key.namespace for key in marked}
        self.assertEqual({fleet.NODES, fleet.PROVIDERS}, namespaces)

    def test_no_host_frees_more_than_it_has(self):
        cluster, ledger, made, _ = self.run_for(3000.0, 2.0, hosts=2)
        for host in cluster.hosts:
            left = ledger.allocations(host.uuid)[host.resident_consumer]
            self.assertTrue(all(amount >= 0 for amount in left.values()), left)
        # Not even all of its time's departures found a server to delete.
        self.assertLess(made.servers, 5000)
