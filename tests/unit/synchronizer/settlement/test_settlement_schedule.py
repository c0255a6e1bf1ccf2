# SPDX-License-Identifier: Apache-2.0
"""A scheduler settles its own hosts at once, another's when it is left, and none twice in a row."""

import testtools

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.synchronizer.claims import claim_rules, ledger_claimer
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.settlement import settlement_worker
from tests.unit.synchronizer.settlement import settlement_world


class TurnsTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = settlement_world.World()
        for uuid in ("n1", "n2"):
            self.world.node(uuid=uuid, host=f"h{uuid[1]}")
            self.world.mirror(uuid)

    def settler(self, *own, cache=None):
        world = self.world
        return settlement_worker.Settler(
            world.client,
            world.store,
            lambda: world.cursor,
            world.ask,
            lambda: world.clock[0],
            settlement_worker.SettlementOptions(),
            lambda: world.clock[0],
            is_own=own.__contains__,
            cache=cache,
        )

    def serve(self, name, uuid="n1", count=1):
        """A server is built: its claim has served."""
        host = f"h{uuid[1]}"
        self.world.place(name, uuid)
        self.world.mirror(uuid)
        self.world.instance(name, host, f"node-{uuid}")
        self.world.node(count=count, uuid=uuid, host=host)

    def turn(self, settler, seconds=0.0, *, for_all=False):
        self.world.clock[0] += seconds
        while settler.turn(for_all=for_all):
            pass
        self.world.follow()

    def test_its_own_are_settled_without_the_lease_and_others_are_left(self):
        settler = self.settler("n1")
        self.turn(settler)
        self.serve("x", "n1")
        self.serve("y", "n2")
        self.turn(settler)
        self.assertEqual((set(), {"y"}), (self.world.left("n1"), self.world.left("n2")))
        self.turn(settler, 1000.0)
        self.assertEqual({"y"}, self.world.left("n2"))

    def test_who_settles_for_all_takes_what_its_owner_leaves(self):
        settler = self.settler("n1")
        self.turn(settler)
        self.serve("y", "n2")
        self.turn(settler, for_all=True)
        self.turn(settler, 9.0, for_all=True)
        self.assertEqual({"y"}, self.world.left("n2"))
        self.turn(settler, 6.0, for_all=True)
        self.assertEqual(set(), self.world.left("n2"))

    def test_an_owner_at_work_is_not_overtaken(self):
        settler, owner = self.settler(), self.settler("n2")
        self.turn(owner)
        self.turn(settler, for_all=True)
        for number in range(8):
            self.serve(f"y{number}", "n2", count=number + 1)
            self.turn(settler, for_all=True)
            self.turn(owner, 4.0)
        self.assertEqual((0, 8), (settler.status.settled, owner.status.settled))

    def test_hints_to_claims_that_another_ends_are_remembered_no_longer_than_these(self):
        settler = self.settler("n1")
        self.turn(settler)
        before = self.world.claim("y0", "n2")
        for number in range(1, 9):
            # One claim or another stands there all the time.
            claimed = self.world.claim(f"y{number}", "n2")
            self.turn(settler)
            self.world.migration(f"y{number - 1}", "h2", "node-n2")
            self.turn(settler)
            self.assertEqual([1], [len(each) for each in settler._schedule._hinted.values()])
            self.world.ledger.release(before)
            self.world.follow()
            self.turn(settler)
            before = claimed

    def test_a_record_rests_after_it_was_settled(self):
        settler = self.settler("n1")
        self.turn(settler)
        self.serve("x")
        self.turn(settler)
        self.serve("y", count=2)
        self.turn(settler, 1.5)
        self.assertEqual({"y"}, self.world.left())
        self.assertFalse(settler.turn(for_all=False))  # what rests is no reason to hurry
        self.turn(settler, 0.6)
        self.assertEqual(set(), self.world.left())

    def test_where_nobody_owns_the_lease_alone_decides(self):
        world = self.world
        settler = world.make_settler()
        duty = settlement_worker.SettlementWorker(
            world.client, settler, "one", clock=lambda: world.clock[0]
        )
        self.turn(settler)
        self.serve("x")
        self.turn(settler)
        self.assertEqual({"x"}, world.left())
        duty.turn()
        self.assertEqual(set(), world.left())

    def lost_after_a_settlement(self, cache):
        """Return how often a claim is lost to a settlement that the feed did not bring yet."""
        world = self.world
        losses = []
        batches = ledger_claimer.ClaimBatches(
            world.client,
            "scheduler",
            lambda: "id",
            60.0,
            lambda host: True,
            now_seconds=lambda: world.clock[0],
            count_lost=losses.append,
            cache=cache,
        )
        settler = self.settler("n1", cache=cache)
        settler.turn(for_all=False)
        self.serve("x")
        key = claim_rules.host_key("n1")
        seen = world.client.read([key])[key]
        view = ledger_claimer.ClaimView(world.cursor, lambda claim, record: True, lambda host: seen)
        settler.turn(for_all=False)
        self.assertEqual(set(), world.left())
        answer = batches.take([model.Claim("y", "n1", {"VCPU": 1})], view)["y"]
        self.assertIsInstance(answer, ledger_claimer.StandingClaim)
        return sum(losses)

    def test_a_claim_after_a_settlement_of_the_same_process_loses_nothing(self):
        self.assertEqual(0, self.lost_after_a_settlement(record_editor.RecordCache()))

    def test_a_claim_after_a_settlement_of_another_process_loses_once(self):
        self.assertEqual(1, self.lost_after_a_settlement(None))
