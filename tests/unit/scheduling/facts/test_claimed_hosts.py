# SPDX-License-Identifier: Apache-2.0
"""What hosts are made of counts claims beside records: never too little, never twice."""

import itertools
import json
import os

import testtools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.reservations import host_reservations
from tests.unit.scheduling import claims, hosts

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "100"))

NODES, PROVIDERS = known_namespaces.COMPUTE_NODES, known_namespaces.PROVIDERS
INSTANCES, CLAIMS = known_namespaces.INSTANCES, known_namespaces.CLAIM_RECORDS
MIGRATIONS = known_namespaces.MIGRATIONS

ORDER = ("pending", "confirmed", "shown", "instance", "node", "settled", "node again")


def possible(order):
    """Say whether records can arrive so: who writes one waits for another."""
    at = {name: place for place, name in enumerate(order)}
    return (
        at["pending"] == 0
        and at["confirmed"] < at["settled"]
        and at["shown"] < at["settled"]
        # Settled is a claim that a node's record later than the instance's counts.
        and at["instance"] < at["settled"]
        and (at["instance"] < at["node"] < at["settled"] or at["node again"] < at["settled"])
        and at["node"] < at["node again"]
        and at["instance"] < at["node again"]
    )


ORDERS = [order for order in itertools.permutations(ORDER) if possible(order)]


class Cloud:
    """One host whose records are written by hand, and what a decision sees of it."""

    def __init__(self):
        self.hosts = hosts.Hosts()
        self.clock = [0.0]
        self.promised = host_reservations.Reservations(lambda: self.clock[0])
        self.keeper, self.feed = self.hosts.keeper(reservations=self.promised)
        self.held, self.allocations, self.counted = {}, {}, set()
        self.hosts.host()
        self.write_node()
        self.write_provider()

    def write_node(self):
        count = len(self.counted)
        stats = json.dumps({"num_instances": str(count), "io_workload": str(count)})
        row = hosts.node(
            "n1",
            stats=stats,
            vcpus_used=count,
            free_ram_mb=10_000 - 512 * count,
            free_disk_gb=100 - count,
            disk_available_least=None,
        )
        self.hosts.put(NODES, "n1", row)

    def write_provider(self):
        allocations = {name: {"VCPU": 1} for name in self.allocations}
        self.hosts.put(PROVIDERS, "n1", hosts.provider(1, allocations=allocations))

    def write_claims(self):
        self.hosts.put(CLAIMS, "n1", claims.record("n1", self.held))

    def arrive(self, what, name="x"):
        if what == "pending":
            self.held[name] = claims.held(VCPU=1)
            self.write_claims()
        elif what == "confirmed":
            self.held[name] = claims.held(state=model.ClaimState.CONFIRMED, VCPU=1)
            self.write_claims()
        elif what == "settled":
            del self.held[name]
            self.write_claims()
        elif what == "shown":
            self.allocations[name] = 1
            self.write_provider()
        elif what == "instance":
            self.hosts.put(INSTANCES, f"{name}@{hosts.CELL}", claims.instance(name))
        else:
            self.counted.add(name)
            self.write_node()

    def seen(self):
        """Return what a decision sees: vcpus used in Placement, then of the HostState."""
        self.keeper.catch_up(100.0)
        frame = self.feed.frame
        row = frame.row_of("n1")
        return (
            frame.resource("VCPU").used.item(row),
            frame.num_instances.item(row),
            frame.num_io_ops.item(row),
            frame.vcpus_used.item(row),
            (10_000 - frame.free_ram_mb.item(row)) // 512,
            100 - frame.free_disk_mb.item(row) // 1024,
        )


class OrdersTest(testtools.TestCase):
    def test_in_every_order_a_server_counts_at_once_always_and_once_in_the_end(self):
        self.assertGreater(len(ORDERS), 20)
        for order in ORDERS:
            cloud = Cloud()
            self.assertEqual((0,) * 6, cloud.seen())
            for what in order:
                cloud.arrive(what)
                used, *reported = cloud.seen()
                self.assertEqual(1, used, (order, what))
                self.assertGreaterEqual(min(reported), 1, (order, what))
            self.assertEqual((1,) * 6, cloud.seen(), order)

    def test_in_the_usual_order_a_server_never_counts_twice(self):
        cloud = Cloud()
        for what in ("pending", "shown", "confirmed", "instance", "node", "settled"):
            cloud.arrive(what)
            self.assertEqual((1,) * 6, cloud.seen(), what)

    def test_a_claim_given_back_leaves_nothing(self):
        cloud = Cloud()
        cloud.arrive("pending")
        self.assertEqual((1,) * 6, cloud.seen())
        cloud.arrive("settled")
        self.assertEqual((0,) * 6, cloud.seen())

    def test_what_this_process_promised_is_not_counted_beside_its_claim(self):
        cloud = Cloud()
        cloud.seen()
        row = cloud.feed.frame.row_of("n1")
        cloud.promised.reserve("x", "n1", {"VCPU": 1}, 1)
        cloud.feed.frame.use(row, {"VCPU": 1})
        self.assertEqual(1, cloud.seen()[0])
        for what in ("pending", "confirmed", "shown"):
            cloud.arrive(what)
            self.assertEqual(1, cloud.seen()[0], what)
        cloud.arrive("settled")
        self.assertEqual(1, cloud.seen()[0])
        self.assertEqual(0, len(cloud.promised))

    def test_a_promise_whose_claim_was_given_back_before_the_next_look_is_not_left(self):
        cloud = Cloud()
        cloud.seen()
        row = cloud.feed.frame.row_of("n1")
        cloud.promised.reserve("x", "n1", {"VCPU": 1}, 1)
        cloud.feed.frame.use(row, {"VCPU": 1})
        cloud.arrive("pending")
        cloud.seen()
        # As Room.give_back: the promise is forgotten already, nothing to subtract.
        self.assertIsNone(cloud.promised.release("x"))
        cloud.arrive("settled")
        self.assertEqual(0, cloud.seen()[0])

    def test_hosts_without_claims_cost_nothing_when_servers_come_and_go(self):
        cloud = Cloud()
        cloud.arrive("pending")
        cloud.hosts.host("n2", "h2")
        cloud.seen()
        cloud.feed.fed.clear()
        decoded = cloud.hosts.decoded
        for number in range(50):
            state = claims.instance(f"i{number}", "h2", "node-n2")
            cloud.hosts.put(INSTANCES, f"i{number}@{hosts.CELL}", state)
        cloud.keeper.catch_up(100.0)

        self.assertEqual([], cloud.feed.fed)
        self.assertEqual(decoded, cloud.hosts.decoded)

    def test_a_move_that_is_shown_late_makes_the_host_anew_from_which_it_went(self):
        """The server that left is counted there still: in its place nobody is."""
        cloud = Cloud()
        for what in ("instance", "node again"):
            cloud.arrive(what, "y")
        # It moves away; whoever heard of its migration has not published it yet.
        cloud.hosts.put(INSTANCES, f"y@{hosts.CELL}", claims.instance("y", "h2", "node-n2"))
        cloud.arrive("confirmed")
        cloud.write_node()
        cloud.arrive("instance")
        self.assertEqual(1, cloud.seen()[1])
        moves = claims.migration("y", "h2", "node-n2")
        moves["row"]["source_compute"] = "h1"
        cloud.hosts.put(MIGRATIONS, f"m-y@{hosts.CELL}", moves)
        self.assertEqual(2, cloud.seen()[1])
        cloud.hosts.put(MIGRATIONS, f"m-y@{hosts.CELL}", None)
        self.assertEqual(1, cloud.seen()[1])

    def test_a_changed_claim_record_makes_one_host_anew(self):
        cloud = Cloud()
        for number in range(2, 50):
            cloud.hosts.host(f"n{number}", f"h{number}")
        cloud.seen()
        cloud.feed.fed.clear()
        cloud.arrive("pending")
        cloud.seen()

        self.assertEqual(["n1"], cloud.feed.fed)

    def test_claims_that_cannot_be_understood_leave_their_host_out(self):
        cloud = Cloud()
        cloud.seen()
        cloud.hosts.put(CLAIMS, "n1", {"claims": {"x": {"state": "odd"}}})
        cloud.keeper.catch_up(100.0)
        self.assertIsNone(cloud.feed.frame.row_of("n1"))
        self.assertIn("claims/n1", cloud.keeper.unreadable["n1"])

        cloud.write_claims()
        self.assertEqual((0,) * 6, cloud.seen())


class ManyServersTest(testtools.TestCase):
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        orders=st.fixed_dictionaries({name: st.sampled_from(ORDERS) for name in "xy"}),
        turns=st.lists(st.sampled_from("xy"), min_size=14, max_size=40),
    )
    def test_servers_side_by_side_are_each_counted_once(self, orders, turns):
        cloud = Cloud()
        left = {name: list(order) for name, order in orders.items()}
        started = set()
        for name in [*turns, *("x" * 7), *("y" * 7)]:
            if left[name]:
                cloud.arrive(left[name].pop(0), name)
                started.add(name)
            used, *reported = cloud.seen()
            self.assertEqual(len(started), used)
            self.assertGreaterEqual(min(reported), len(started))
        self.assertEqual((2,) * 6, cloud.seen())
