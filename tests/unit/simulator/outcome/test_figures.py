# SPDX-License-Identifier: Apache-2.0
"""Figures of a run mean what they say; packing finds the least number of hosts."""

import testtools

from nova_nodb_scheduler.scheduling.namespaces import node_facts, provider_facts
from nova_nodb_scheduler.simulator.outcome import cell_compaction
from nova_nodb_scheduler.simulator.run import measures
from nova_nodb_scheduler.simulator.scenario import made_hosts, run_options, workload
from nova_nodb_scheduler.simulator.schedulers import pipe_messages


def decided(number=0, outcome="placed", conflicts=0, writes_lost=None):
    return pipe_messages.Decided(
        number=number,
        outcome=outcome,
        hosts=(),
        seconds=0.1,
        chosen_at_seconds=0.0,
        version=1,
        reasons={"lost": 2},
        conflicts=conflicts,
        writes_lost=writes_lost or {},
        unproved=False,
    )


class MeasuresTest(testtools.TestCase):
    def test_percentiles_are_by_nearest_rank(self):
        values = list(range(1, 101))
        self.assertEqual(
            (50, 99, 100), tuple(measures.percentile(values, p) for p in (50, 99, 100))
        )
        self.assertEqual(7, measures.percentile([7], 1))
        self.assertIsNone(measures.percentile([], 50))

    def test_a_view_is_as_stale_as_the_oldest_news_it_lacks(self):
        published = [(10.0, 5, 1), (11.0, 8, 1), (12.0, 9, 1)]
        self.assertEqual(3.0, measures.staleness_seconds(published, 5, 14.0))
        self.assertEqual(4.0, measures.staleness_seconds(published, 4, 14.0))
        self.assertEqual(0.0, measures.staleness_seconds(published, 9, 14.0))
        self.assertEqual(0.0, measures.staleness_seconds(published, 5, 10.5))

    def test_a_gap_counts_only_while_somebody_waits(self):
        found = measures.Measures()
        found.demand(0.0, is_there=True)
        found.decided(1.0, 1.0, decided())
        found.demand(1.5, is_there=False)
        found.demand(50.0, is_there=False)
        found.demand(60.0, is_there=True)
        found.decided(63.0, 1.0, decided())

        self.assertEqual(3.0, found.longest_gap_seconds)

    def test_a_gap_that_has_not_ended_counts_too(self):
        found = measures.Measures()
        found.demand(0.0, is_there=True)
        found.demand(9.0, is_there=True)

        self.assertEqual(9.0, found.longest_gap_seconds)

    def test_requests_decided_again_are_counted_beside_those_that_only_wrote_again(self):
        found = measures.Measures()
        for conflicts, lost in ((0, {}), (2, {"taken": 2, "settled": 1}), (0, {"taken": 1})):
            found.decided(1.0, 1.0, decided(conflicts=conflicts, writes_lost=lost))

        self.assertEqual(2, found.conflicts)
        self.assertEqual(1, found.requests_with_conflict)
        self.assertEqual({"taken": 3, "settled": 1}, dict(found.writes_lost))
        self.assertEqual(2, found.requests_with_lost_write)
        self.assertEqual({"lost": 6}, dict(found.reasons))


class HostRecordsTest(testtools.TestCase):
    """What is published is understood by what reads it in the plugin."""

    def test_a_host_is_understood_and_has_the_ledger_s_capacity(self):
        made = made_hosts.Cluster(made_hosts.ClusterOptions(hosts=1, fill=0.5)).hosts[0]
        node = node_facts.digest(made.uuid, made_hosts.node(made, made.resident, 1, 0.0))
        provider = provider_facts.digest(
            made.uuid, made_hosts.provider(made, 3, {made.resident_consumer: made.resident})
        )

        self.assertIsInstance(node, bytes)
        self.assertEqual(
            (made.kind.vcpus, 1),
            tuple(node_facts.number(node, name) for name in ("vcpus", "num_instances")),
        )
        self.assertIsNone(provider.broken)
        self.assertEqual(dict(made.resident), dict(provider.used))
        self.assertEqual(
            made.capacity, {name: each.capacity for name, each in provider.inventories.items()}
        )


class PackingTest(testtools.TestCase):
    options = made_hosts.ClusterOptions(hosts=8, rack_hosts=8, cpu_ratio=1.0)

    def arrivals(self, count, **more):
        kind = made_hosts.Cluster(self.options).hosts[0].kind
        whole = workload.MadeFlavor("whole", kind.vcpus, 1024, 1)
        return workload.numbered([workload.Arrival(0, n, whole, **more) for n in range(count)])

    def packed(self, arrivals, strategy=run_options.CLAIMS):
        return cell_compaction.measure(self.options, arrivals, strategy, trials=1)

    def test_servers_as_large_as_hosts_need_one_each(self):
        self.assertEqual(cell_compaction.Packed(5, 8), self.packed(self.arrivals(5)))

    def test_hosts_serve_again_when_servers_end(self):
        found = self.packed(self.arrivals(5, lifetime_seconds=0.5))
        self.assertEqual(cell_compaction.Packed(1, 8), found)

    def test_servers_of_one_request_count_each(self):
        found = self.packed(self.arrivals(2, servers=3), run_options.RANDOM)
        self.assertEqual(cell_compaction.Packed(6, 8), found)

    def test_what_does_not_fit_at_all_is_said(self):
        self.assertEqual(cell_compaction.Packed(None, 8), self.packed(self.arrivals(9)))
