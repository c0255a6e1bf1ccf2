# SPDX-License-Identifier: Apache-2.0
"""Claims that nobody judges, and no mirror shows: they say whose an allocation is, no more."""

import testtools

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.unit.scheduling import claims, hosts
from tests.unit.synchronizer.settlement import settlement_world

STAYS = model.NodeShare(vcpus=2, memory_mb=512, disk_gb=1, io_operations=1)
#: Longer than any claim waits to be asked for.
LATER = 100.0


class UnjudgedTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = settlement_world.World()
        self.world.judged = False
        self.world.node()
        self.world.node(uuid="n2", host="h2")
        self.world.settle()

    def stays(self, host="n1"):
        """Let it be asked for several times."""
        before = len(self.world.asked)
        for _ in range(3):
            self.world.settle(10 * LATER)
        self.assertGreater(len(self.world.asked), before)
        self.assertEqual({"x"}, self.world.left(host))

    def test_it_ends_once_its_server_is_on_its_host_and_nobody_is_asked(self):
        self.world.place("x")
        self.world.settle()
        self.assertEqual({"x"}, self.world.left())
        self.world.instance("x")
        self.world.settle()
        self.assertEqual(set(), self.world.left())
        self.assertEqual([], self.world.asked)

    def test_it_stands_while_its_allocation_does_and_nobody_knows_its_server(self):
        self.world.place("x")
        self.stays()
        del self.world.allocations["x", "n1"]
        self.world.settle(10 * LATER)
        self.assertEqual(set(), self.world.left())

    def test_a_server_that_was_on_the_host_before_does_not_end_it(self):
        self.world.instance("x")
        self.world.place("x")
        self.stays()
        self.world.instance("x", vm_state="active")
        self.world.settle()
        self.assertEqual(set(), self.world.left())

    def test_of_a_resize_on_its_host_it_ends_with_the_migration(self):
        self.world.instance("x")
        self.world.migration("x")
        self.world.place("x", share=STAYS)
        self.stays()
        self.world.migration("x", status=None)
        self.world.settle(10 * LATER)
        self.assertEqual(set(), self.world.left())

    def test_of_a_server_on_its_way_it_stands_until_that_is_there(self):
        self.world.instance("x")
        self.world.migration("x", host="h2", node="node-n2", source="h1")
        self.world.place("x", "n2")
        self.stays("n2")
        self.world.instance("x", "h2", "node-n2")
        self.world.settle()
        self.assertEqual(set(), self.world.left("n2"))

    def test_of_a_server_that_was_buried_it_tells_whose_the_allocation_is(self):
        """Its scheduler died behind the confirm, and the conductor gave up."""
        self.world.place("x")
        self.world.buried("x")
        self.stays()

    def test_of_a_server_without_a_host_yet_it_stands(self):
        """It waits for its compute service, which may take minutes."""
        self.world.place("x")
        self.world.put(
            known_namespaces.INSTANCES,
            f"x@{hosts.CELL}",
            claims.instance("x", None, None, vm_state="building"),
        )
        self.stays()

    def test_of_a_move_that_failed_and_left_its_allocation_it_ends(self):
        self.world.instance("x")
        self.world.migration("x", host="h2", node="node-n2", source="h1")
        self.world.place("x", "n2")
        self.world.migration("x", status=None)
        self.world.instance("x", vm_state="active")
        self.world.settle(LATER)
        self.world.settle(LATER)
        self.assertEqual(set(), self.world.left("n2"))

    def test_where_somebody_judges_the_mirror_has_to_show_it(self):
        self.world.judged = True
        self.world.mirror()
        self.world.place("x")
        self.world.instance("x")
        self.world.node(count=1)
        self.world.settle()
        self.assertEqual({"x"}, self.world.left())
        self.world.mirror()
        self.world.settle()
        self.assertEqual(set(), self.world.left())

    def test_a_pending_one_is_its_writers_until_its_lease_ends(self):
        self.world.claim("x")
        self.world.instance("x")
        self.world.settle()
        self.assertEqual({"x"}, self.world.left())
        self.world.settle(settlement_world.LEASE_SECONDS + 1.0)
        self.assertEqual(set(), self.world.left())
        self.assertEqual({"x"}, set(self.world.ledger.read("n1").lapsed))
