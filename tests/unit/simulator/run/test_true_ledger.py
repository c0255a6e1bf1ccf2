# SPDX-License-Identifier: Apache-2.0
"""The ledger knows what hosts have, and counts what was granted beyond it."""

import attrs
import testtools

from nova_nodb_scheduler.simulator.run import true_ledger
from nova_nodb_scheduler.simulator.scenario import made_hosts
from nova_nodb_scheduler.simulator.schedulers import pipe_messages


class LedgerTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cluster = made_hosts.Cluster(made_hosts.ClusterOptions(hosts=2))
        self.host = self.cluster.hosts[0]
        self.room = self.host.capacity[made_hosts.VCPU]

    def ledger(self, *, checked=False):
        return true_ledger.TrueLedger(self.cluster, checked=checked)

    def allocation(self, server, vcpus):
        return pipe_messages.Allocation(server, self.host.uuid, {made_hosts.VCPU: vcpus})

    def grant(self, found, server, vcpus):
        refused = found.write([self.allocation(server, vcpus)])
        if not refused:
            found.grant(server, self.host.uuid, {made_hosts.VCPU: vcpus})
        return refused

    def test_what_fits_to_the_last_unit_is_no_over_commit(self):
        found = self.ledger()
        self.grant(found, "a", self.room - 1)
        self.grant(found, "b", 1)

        self.assertEqual((0, set()), (found.overcommitted_grants, found.overcommitted_hosts))

    def test_one_unit_more_is_one(self):
        found = self.ledger()
        self.grant(found, "a", self.room)
        self.grant(found, "b", 3)

        self.assertEqual(1, found.overcommitted_grants)
        self.assertEqual({self.host.uuid}, found.overcommitted_hosts)
        self.assertEqual({made_hosts.VCPU: 3}, found.worst_excess)

    def test_a_host_that_checks_refuses_it(self):
        found = self.ledger(checked=True)
        self.grant(found, "a", self.room)

        self.assertEqual({"b"}, self.grant(found, "b", 1))
        self.assertEqual((1, 0), (found.refusals, found.overcommitted_grants))

    def test_what_is_taken_back_before_the_grant_is_no_over_commit(self):
        found = self.ledger()
        self.grant(found, "a", self.room)
        found.write([self.allocation("b", 1)])
        self.assertTrue(found.remove("b", self.host.uuid))

        self.assertEqual((1, 0), (found.late_writes, found.overcommitted_grants))
        self.assertFalse(found.remove("b", self.host.uuid))

    def test_servers_from_before_the_run_count(self):
        options = made_hosts.ClusterOptions(hosts=2, fill=0.9)
        self.cluster = made_hosts.Cluster(options)
        self.host = self.cluster.hosts[0]
        found = self.ledger()
        self.grant(found, "a", self.host.capacity[made_hosts.VCPU])

        self.assertEqual(1, found.overcommitted_grants)

    def test_room_comes_back_with_the_end_of_a_server(self):
        found = self.ledger()
        self.grant(found, "a", self.room)
        self.assertEqual({self.host.uuid}, set(found.allocations_of("a")))
        self.assertEqual(self.host.uuid, found.end("a", {made_hosts.VCPU: self.room}))
        self.grant(found, "b", self.room)

        self.assertEqual(0, found.overcommitted_grants)
        self.assertEqual({}, found.allocations_of("a"))
        self.assertIsNone(found.end("a", {}))

    def test_the_scarcest_class_tells_how_full_the_hosts_are(self):
        found = self.ledger()
        self.assertEqual(0.0, found.used_share())
        self.grant(found, "a", self.room)
        room = sum(host.capacity[made_hosts.VCPU] for host in self.cluster.hosts)
        self.assertEqual(self.room / room, found.used_share())
        found.end("a", {made_hosts.VCPU: self.room})
        self.assertEqual(0.0, found.used_share())

    def test_a_grant_without_an_allocation_shows_a_broken_scheduler(self):
        found = self.ledger()
        self.assertRaises(ValueError, found.grant, "a", self.host.uuid, {})
        self.grant(found, "b", 1)
        self.assertRaises(ValueError, found.grant, "b", self.host.uuid, {})

    def test_each_change_of_allocations_is_another_generation(self):
        found = self.ledger()
        before = found.generations[self.host.uuid]
        found.write([self.allocation("a", 1)])
        found.remove("a", self.host.uuid)

        self.assertEqual(before + 2, found.generations[self.host.uuid])


class ClusterTest(testtools.TestCase):
    options = made_hosts.ClusterOptions(hosts=200, fill=0.7)

    def test_the_same_seed_makes_the_same_hosts(self):
        made = made_hosts.Cluster(self.options).hosts
        self.assertEqual(made, made_hosts.Cluster(self.options).hosts)
        other = made_hosts.Cluster(attrs.evolve(self.options, seed=2)).hosts
        self.assertNotEqual(made, other)

    def test_a_rack_is_of_one_kind_and_racks_differ(self):
        made = made_hosts.Cluster(self.options)
        kinds = [{host.kind for host in made.rack(number)} for number in range(made.racks)]

        self.assertEqual([1] * 5, list(map(len, kinds)))
        self.assertGreater(len(set.union(*kinds)), 1)

    def test_it_is_as_full_as_was_asked_and_no_host_is_over_full(self):
        made = made_hosts.Cluster(self.options).hosts
        shares = [host.resident[made_hosts.VCPU] / host.capacity[made_hosts.VCPU] for host in made]

        self.assertAlmostEqual(0.7, sum(shares) / len(shares), delta=0.05)
        self.assertLessEqual(max(shares), 0.95)
