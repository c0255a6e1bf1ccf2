# SPDX-License-Identifier: Apache-2.0
"""A full cloud frees room at the pace asked for, and never more than there was."""

import random

import testtools

from nova_nodb_scheduler.simulator.run import departures, fleet, true_ledger
from nova_nodb_scheduler.simulator.scenario import (
    made_hosts,
    run_clock,
    standing_servers,
    workload,
)
from tests import forking

_CONTEXT = forking.context()
FLAVORS = (workload.MadeFlavor("s", 1, 2048, 10), workload.MadeFlavor("l", 8, 16_384, 80))


class DeparturesTest(testtools.TestCase):
    def run_for(self, seconds, per_second, hosts=20, fill=1.0, servers=0):
        """Let servers depart; return the ledger, the departures and the records marked."""
        cluster = made_hosts.Cluster(made_hosts.ClusterOptions(hosts=hosts, fill=fill))
        ledger = true_ledger.TrueLedger(cluster, checked=True)
        marked = []
        running = fleet.Fleet(cluster, ledger, marked.append, lambda *_: None)
        clock = run_clock.RunClock(_CONTEXT, run_clock.Pace.VIRTUAL)
        events = run_clock.Events(clock)
        standing = list(standing_servers.draw(cluster, servers, FLAVORS))
        for each in standing:
            ledger.stand(each.uuid, each.host_uuid, each.flavor.resources)
            running.stand(each.uuid, each.flavor, each.host_uuid)
        made = departures.Departures(
            cluster, ledger, running, events, per_second, FLAVORS, random.Random(1), standing
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

    def test_those_with_records_of_their_own_leave_one_by_one_until_none_is_left(self):
        _, ledger, made, marked = self.run_for(20.0, 2.0, fill=0.0, servers=10)
        self.assertEqual(200 - made.servers, len(ledger.standing))
        gone = [key for key in marked if key.namespace == fleet.INSTANCES]
        self.assertEqual(made.servers, len(set(gone)))
        self.assertGreater(made.servers, 20)

        cluster, ledger, made, _ = self.run_for(500.0, 2.0, fill=0.0, servers=10)
        self.assertEqual((200, {}, 0.0), (made.servers, dict(ledger.standing), ledger.used_share()))
        self.assertEqual({}, dict(ledger.allocations(cluster.hosts[0].uuid)))
