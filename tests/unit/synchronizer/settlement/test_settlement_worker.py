# SPDX-License-Identifier: Apache-2.0
"""Claims end when they have served, and never before."""

import logging
import threading
import time

import attrs
import fixtures
import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims, records, requests
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.scheduling.facts import group_members
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import backoff
from nova_nodb_scheduler.synchronizer.records import leases
from nova_nodb_scheduler.synchronizer.settlement import (
    claim_reaper,
    settlement_rules,
    settlement_worker,
)
from tests.unit.scheduling import claims, hosts
from tests.unit.synchronizer.settlement import settlement_world

APART = group_claims.ServerGroup("g", group_claims.Policy.ANTI_AFFINITY)
LATER = 100.0


class SettlingCase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.world = settlement_world.World()
        self.world.node()
        self.world.mirror()
        self.world.settle()

    @property
    def status(self):
        return self.world.settler.status


class HostsTest(SettlingCase):
    def test_a_claim_is_settled_once_provider_and_node_show_it(self):
        world = self.world
        world.place("x")
        for step in (
            lambda: None,
            world.mirror,
            lambda: world.instance("x"),
            lambda: world.node(count=1),
        ):
            self.assertEqual({"x"}, world.left())
            step()
            world.settle()
        self.assertEqual(set(), world.left())
        self.assertEqual(1, self.status.settled)
        self.assertEqual([], world.asked)

    def test_it_is_settled_in_whatever_order_they_show_it(self):
        world = self.world
        world.place("x")
        world.instance("x")
        world.node(count=1)
        world.settle()
        self.assertEqual({"x"}, world.left())
        world.mirror()
        world.settle()
        self.assertEqual(set(), world.left())

    def test_views_older_than_what_was_settled_are_refused(self):
        world = self.world
        before = world.cursor
        world.place("x")
        world.mirror()
        world.instance("x")
        world.node(count=1)
        world.settle()

        claim = model.Claim("y", "n1", {"VCPU": 1})
        refused = world.ledger.claim(claim, lambda record: True, before)
        self.assertIs(model.RefusalReason.STALE_VIEW, refused.reason)
        self.assertIsInstance(
            world.ledger.claim(claim, lambda record: True, world.cursor), model.Granted
        )

    def test_views_are_refused_that_lack_what_the_feed_brought_behind_the_cursor(self):
        world = self.world
        world.place("x")
        world.instance("x")
        world.node(1)
        older = world.cursor
        world.mirror()
        # The feed is applied already, and its cursor not moved yet.
        world.cursor = older
        while world.settler.turn():
            pass
        self.assertEqual(set(), world.left())
        late = model.Claim("late", "n1", {"VCPU": 1})
        answer = world.ledger.claim(late, lambda record: True, older)
        self.assertEqual(model.RefusalReason.STALE_VIEW, answer.reason)

    def test_an_allocation_smaller_than_the_claim_settles_nothing(self):
        world = self.world
        world.place("x", VCPU=2)
        world.allocations["x", "n1"] = {"VCPU": 1}
        world.mirror()
        world.instance("x")
        world.node(count=1)
        world.settle()
        self.assertEqual({"x"}, world.left())

    def test_an_instance_of_a_former_stay_settles_nothing(self):
        world = self.world
        world.instance("x")
        world.node(count=1)
        world.place("x")
        world.mirror()
        world.node(count=1)
        world.settle()
        self.assertEqual({"x"}, world.left())

    def test_a_pending_claim_is_not_settled_and_ends_with_its_lease(self):
        world = self.world
        world.claim("x")
        world.allocations["x", "n1"] = {"VCPU": 1}
        world.mirror()
        world.instance("x")
        world.node(count=1)
        world.settle()
        self.assertEqual({"x"}, world.left())
        world.settle(settlement_world.LEASE_SECONDS + 6.0)
        self.assertEqual(set(), world.left())
        self.assertEqual(1, self.status.expired)

    def test_time_alone_never_ends_a_confirmed_claim(self):
        world = self.world
        world.place("x")
        for _ in range(200):
            world.settle(LATER)
        self.assertEqual({"x"}, world.left())
        # It was asked for, less and less often.
        self.assertGreater(self.status.asked, 10)
        self.assertLess(self.status.asked, 60)

    def test_a_claim_with_nothing_behind_it_is_reconciled(self):
        world = self.world
        world.place("x")
        del world.allocations["x", "n1"]
        world.settle()
        self.assertEqual({"x"}, world.left())
        for _ in range(2):
            world.settle(20.0)
        self.assertEqual(set(), world.left())
        self.assertEqual(1, self.status.reconciled)

    def test_a_claim_of_a_buried_server_stands_while_its_allocation_does(self):
        """It tells whose that is, to whoever looks for orphans."""
        world = self.world
        world.place("x")
        world.mirror()
        world.buried("x")
        for _ in range(3):
            world.settle(LATER)
        self.assertEqual({"x"}, world.left())
        del world.allocations["x", "n1"]
        world.mirror()
        for _ in range(3):
            world.settle(LATER)
        self.assertEqual(set(), world.left())

    def test_an_authority_that_does_not_answer_ends_nothing(self):
        world = self.world
        world.place("x")
        world.allocations = None
        for _ in range(3):
            world.settle(LATER)
        self.assertEqual({"x"}, world.left())
        self.assertEqual(self.status.asked, self.status.unanswered)
        self.assertGreater(self.status.unanswered, 0)

    def test_what_has_served_does_not_wait_for_questions_of_its_turn(self):
        world = self.world
        world.place("x")
        world.settle()
        world.claim("y")
        left = []

        def ask(consumer):
            left.append(world.left())
            return world.ask(consumer)

        world.settler.queries.ask = ask
        world.settle(20.0)
        self.assertEqual([{"x"}], left)

    def test_an_authority_that_hangs_keeps_nobody_else_waiting(self):
        world = self.world
        hangs, asked = threading.Event(), []

        def hang(consumer):
            asked.append(consumer)
            hangs.wait(60.0)

        questions = world.settler.queries
        questions.ask = hang
        questions.start()
        self.addCleanup(questions.stop)
        self.addCleanup(hangs.set)
        for name in ("x", "y"):
            world.place(name)
        world.settle()
        world.settle(20.0)
        world.claim("z")
        world.settle(20.0)
        self.assertEqual({"x", "y"}, world.left())
        # Nor is anything asked twice meanwhile.
        for _ in range(10):
            world.settle(LATER)
        self.assertEqual(2, self.status.asked)

    def test_an_answer_that_came_in_a_thread_ends_the_claim(self):
        world = self.world
        world.settler.queries.start()
        self.addCleanup(world.settler.queries.stop)
        world.place("x")
        world.place("y")
        del world.allocations["x", "n1"]
        world.settle()
        world.settle(20.0)
        for _ in range(12_000):
            if len(world.left()) == 1:
                break
            time.sleep(0.005)
            world.settle()
        self.assertEqual({"y"}, world.left())

    def test_an_instance_without_an_allocation_keeps_its_claim_until_the_node_counts_it(self):
        world = self.world
        world.place("x")
        del world.allocations["x", "n1"]
        world.instance("x")
        world.node(count=0)
        world.settle(LATER)
        world.settle(LATER)
        self.assertEqual({"x"}, world.left())
        world.node(count=1)
        for _ in range(3):
            world.settle(LATER)
        self.assertEqual(set(), world.left())

    def test_a_provider_that_loses_the_consumer_has_it_asked_for_soon(self):
        world = self.world
        world.place("x")
        for _ in range(6):
            world.settle(LATER)
        asked = len(world.asked)
        del world.allocations["x", "n1"]
        world.mirror()
        world.settle()
        world.settle(6.0)
        self.assertEqual(set(), world.left())
        self.assertEqual(asked + 1, len(world.asked))

    def test_a_build_that_takes_a_while_on_a_busy_host_is_not_asked_for_at_each_change(self):
        world = self.world
        world.place("x")
        world.instance("x", None)
        world.settle()
        for number in range(6):
            # The server is saved, and others come to its host.
            world.instance("x", vm_state="building", task_state=f"step {number}")
            world.allocations[f"y{number}", "n1"] = {"VCPU": 1}
            world.mirror()
            world.settle(2.4)
        self.assertEqual([], world.asked)
        self.assertEqual({"x"}, world.left())

    def test_a_server_in_error_is_asked_for_soon(self):
        world = self.world
        world.place("x")
        world.instance("x", vm_state="building")
        world.settle()
        world.instance("x", vm_state="error")
        world.settle()
        world.settle(6.0)
        self.assertEqual(["x"], world.asked)

    def test_a_claim_on_a_node_that_is_gone_is_dropped_with_its_allocation(self):
        world = self.world
        world.place("x")
        world.mirror()
        world.put(known_namespaces.COMPUTE_NODES, "n1", None)
        world.settle()
        world.settle(20.0)
        # As early in an epoch: it may be published yet, and does not count who is still to be
        # built.
        self.assertEqual({"x"}, world.left())
        world.allocations.clear()
        world.settle(40.0)
        self.assertEqual(set(), world.left())

    def test_a_claim_on_a_node_that_is_gone_is_dropped_once_its_server_is_elsewhere(self):
        world = self.world
        world.place("x")
        world.put(known_namespaces.COMPUTE_NODES, "n1", None)
        world.node(uuid="n2", host="h2")
        world.instance("x", "h2", "node-n2")
        world.settle()
        world.settle(20.0)
        self.assertEqual(set(), world.left())

    def test_nothing_is_judged_absent_by_a_store_that_is_not_proved(self):
        world = self.world
        world.place("x")
        del world.allocations["x", "n1"]
        ask = world.ask

        def rebuilt(consumer):
            world.proved = False
            return ask(consumer)

        world.settler.queries.ask = rebuilt
        world.settle()
        world.settle(20.0)
        self.assertEqual(1, len(world.asked))
        self.assertEqual({"x"}, world.left())
        self.assertFalse(world.settler.ready)

    def test_a_claim_renewed_while_it_is_asked_for_stays(self):
        world = self.world
        world.place("x")
        del world.allocations["x", "n1"]
        ask = world.ask

        def renewed(consumer):
            answer = ask(consumer)
            world.claim("x")
            return answer

        world.settler.queries.ask = renewed
        world.settle()
        world.settle(20.0)
        self.assertEqual(1, len(world.asked))
        self.assertEqual({"x"}, world.left())

    def test_nothing_is_done_across_an_epoch(self):
        world = self.world
        world.place("x")
        world.mirror()
        world.instance("x")
        world.node(count=1)
        world.client.head = lambda: records.Cursor("another", 0)
        world.settler.turn()
        del world.client.head
        self.assertEqual({"x"}, world.left())
        world.settle()
        self.assertEqual(set(), world.left())

    def test_a_back_end_that_goes_away_leaves_the_work_to_be_done(self):
        world = self.world
        world.place("x")
        world.mirror()
        world.instance("x")
        world.node(count=1)

        def away(keys):
            raise errors.BackendUnavailable("memory", "away")

        world.client.read = away
        self.assertRaises(errors.BackendUnavailable, world.settler.turn)
        del world.client.read
        world.settle()
        self.assertEqual(set(), world.left())

    def test_who_takes_over_settles_what_waits(self):
        world = self.world
        world.place("x")
        world.mirror()
        world.instance("x")
        world.node(count=1)
        world.settler = world.make_settler()
        world.settle()
        self.assertEqual(set(), world.left())

    def test_what_ended_while_nobody_settled_is_asked_for_at_once(self):
        """Its room is free in Placement: nobody is refused for it until a minute is over."""
        world = self.world
        for number in range(20):
            world.node(uuid=f"u{number}", host=f"v{number}")
            world.place(f"x{number}", f"u{number}")
            if number:
                del world.allocations[f"x{number}", f"u{number}"]
        world.settler = world.make_settler()
        world.settle()
        left = set().union(*(world.left(f"u{number}") for number in range(20)))
        self.assertEqual({"x0"}, left)
        # Those beyond the questions under way at once, too, and each but once.
        self.assertEqual(sorted(f"x{number}" for number in range(20)), sorted(world.asked))

    def test_many_hosts_share_a_read_and_a_write(self):
        world = self.world
        for number in range(40):
            uuid, host = f"u{number}", f"v{number}"
            world.node(uuid=uuid, host=host)
            world.place(f"x{number}", uuid)
            world.mirror(uuid)
            world.instance(f"x{number}", host, f"node-{uuid}")
            world.node(count=1, uuid=uuid, host=host)
        calls = []
        for name in ("read", "write", "head"):
            self.count(world.client, name, calls)
        self.assertFalse(world.settler.turn())
        self.assertEqual(["read", "head", "write"], calls)
        self.assertEqual(40, self.status.settled)
        del calls[:]
        world.settler.turn()
        self.assertEqual([], calls)

    def test_claims_that_wait_cost_nothing_while_nothing_changes(self):
        world = self.world
        for number in range(20):
            world.node(uuid=f"u{number}", host=f"v{number}")
            world.place(f"x{number}", f"u{number}")
        world.settle()
        judged = []
        for ledger in settlement_rules.LEDGERS.values():
            self.count(ledger, "judge", judged)
            self.addCleanup(vars(ledger).pop, "judge")
        world.settle(6.0)
        self.assertEqual([], judged)
        world.mirror("u1")
        world.settle()
        self.assertEqual(["judge"], judged)

    def count(self, client, name, calls):
        call = getattr(client, name)

        def counted(*args, **kwargs):
            calls.append(name)
            return call(*args, **kwargs)

        setattr(client, name, counted)

    def test_what_is_claimed_is_counted_for_status(self):
        world = self.world
        world.claim("x")
        world.place("y")
        world.clock[0] += 4.0
        self.assertEqual(
            {"pending": 1.0, "confirmed": 1.0, "oldest_pending_seconds": 4.0},
            claim_reaper.claim_counts(
                world.store.snapshot(), world.clock[0], settlement_world.LEASE_SECONDS
            ),
        )


class DutyTest(SettlingCase):
    def duty(self, holder):
        world = self.world
        settler = world.make_settler()
        clock = lambda: world.clock[0]  # noqa: E731 - the made one
        return settlement_worker.SettlementWorker(world.client, settler, holder, clock=clock)

    def served(self):
        world = self.world
        world.place("x")
        world.mirror()
        world.instance("x")
        world.node(count=1)

    def test_one_process_settles_and_the_next_takes_over_what_waits(self):
        one, other = self.duty("one"), self.duty("other")
        one.turn()
        other.turn()
        self.assertEqual((True, False), (one.settles, other.settles))
        self.served()
        other.turn()
        self.assertEqual({"x"}, self.world.left())
        one.leave()
        self.world.clock[0] += settlement_worker.LEASE_SECONDS
        other.turn()
        self.assertTrue(other.settles)
        self.assertEqual(set(), self.world.left())
        one.turn()
        self.assertFalse(one.settles)

    def test_a_back_end_away_is_told_of_once_and_tried_again(self):
        world = self.world
        log = self.useFixture(fixtures.FakeLogger(level=logging.WARNING))
        world.hub.faults.go_down()
        duty = settlement_worker.SettlementWorker(
            world.client, world.make_settler(), "one", turn_seconds=0.001
        )
        duty._backoff = backoff.Backoff(0.001, 0.002, time.monotonic)
        duty.start()
        for _ in range(12_000):
            if duty.failures > 2:
                break
            time.sleep(0.005)
        duty.stop()
        self.assertGreater(duty.failures, 2)
        self.assertEqual(1, log.output.count("Claims are not settled now"))
        self.assertNotIn("Traceback", log.output)

    def test_it_does_not_ask_a_back_end_before_the_feed_did(self):
        world = self.world
        world.hub.faults.go_down()
        settler = world.make_settler()
        world.proved = False
        duty = settlement_worker.SettlementWorker(world.client, settler, "one")
        self.assertFalse(duty.turn())
        self.assertEqual(0, duty.failures)

    def test_a_thread_settles_and_lets_the_lease_go(self):
        world = self.world
        duty = settlement_worker.SettlementWorker(
            world.client, world.make_settler(), "one", turn_seconds=0.005
        )
        self.served()
        duty.start()
        for _ in range(12_000):
            if not world.left():
                break
            time.sleep(0.005)
        duty.stop()
        duty.stop()
        self.assertEqual(set(), world.left())
        self.assertEqual((1, 0), (duty.status.settled, duty.failures))
        self.assertFalse(duty.settles)
        keeper = leases.LeaseKeeper(world.client, settlement_worker.LEASE, "other", 5.0)
        self.assertIsNone(keeper.holder())


class GroupsTest(SettlingCase):
    def join(self, name, host="n1", place="h1", confirm=True, known=None):
        world = self.world
        claim = model.Claim(name, host, {"VCPU": 1}, place=place)
        answer = world.groups.claim(APART, claim, lambda record: True, world.cursor, known or {})
        if confirm and isinstance(answer, group_claims.GroupGranted):
            world.allocations[name, host] = {"VCPU": 1}
            world.groups.confirm(answer)
        world.follow()
        return answer

    def members(self):
        return set(self.world.groups.read("g").members)

    def test_a_place_is_settled_once_an_instance_stands_there(self):
        self.join("x")
        self.world.settle()
        self.assertEqual({("x", "h1")}, self.members())
        self.world.instance("x")
        self.world.settle()
        self.world.settle(LATER)
        self.assertEqual(set(), self.members())

    def test_a_place_to_which_a_migration_goes_stays_until_the_instance_is_there(self):
        self.world.instance("x", "h2", "node-n2")
        self.join("x")
        self.world.migration("x")
        for _ in range(3):
            self.world.settle(LATER)
        self.assertEqual({("x", "h1")}, self.members())
        self.world.instance("x")
        self.world.settle()
        self.world.settle(LATER)
        self.assertEqual(set(), self.members())

    def test_a_place_on_a_host_that_is_not_published_yet_stays_while_anything_is_allocated(self):
        """Early in an epoch nobody can tell whether that is on the host."""
        self.join("x", host="n9", place="h9")
        for _ in range(3):
            self.world.settle(LATER)
        self.assertEqual({("x", "h9")}, self.members())
        self.world.instance("x", "h1", vm_state="active")
        for _ in range(8):
            self.world.settle(LATER)
        self.assertEqual(set(), self.members())
        self.join("y", host="n9", place="h9")
        self.world.allocations.clear()
        for _ in range(3):
            self.world.settle(LATER)
        self.assertEqual(set(), self.members())

    def test_a_request_older_than_a_member_meets_its_place_all_the_same(self):
        asked = requests.Group("g", "anti-affinity", members=frozenset(["y"]))
        self.join("x")
        self.world.instance("x")
        self.world.settle(30.0)
        known = group_members.known(self.world.store.snapshot(), asked)
        refused = self.join("y", known=known)
        self.assertIs(model.RefusalReason.GROUP_POLICY, refused.reason)

    def test_a_member_that_was_shown_and_left_gives_its_place_up_at_once(self):
        self.join("x")
        self.world.instance("x")
        self.world.settle()
        self.world.instance("x", "h2", "node-n2")
        self.world.settle()
        self.assertEqual(set(), self.members())
        self.assertEqual([], self.world.asked)

    def test_a_member_that_takes_its_place_once_more_keeps_it(self):
        self.join("x")
        self.world.instance("x")
        self.world.settle()
        self.join("x", confirm=False)
        self.world.settle()
        self.assertEqual({("x", "h1")}, self.members())

    def test_views_that_lack_the_instance_are_refused_then(self):
        before = self.world.cursor
        self.join("x")
        self.world.instance("x")
        self.world.settle()
        self.world.settle(LATER)
        claim = model.Claim("y", "n1", {"VCPU": 1}, place="h1")
        refused = self.world.groups.claim(APART, claim, lambda record: True, before, {})
        self.assertIs(model.RefusalReason.STALE_VIEW, refused.reason)

    def test_a_pending_place_ends_with_its_lease(self):
        self.join("x", confirm=False)
        self.world.settle(settlement_world.LEASE_SECONDS + 6.0)
        self.assertEqual(set(), self.members())

    def test_a_place_with_nothing_behind_it_is_reconciled(self):
        self.join("x")
        for _ in range(3):
            self.world.settle(LATER)
        self.assertEqual({("x", "h1")}, self.members())
        del self.world.allocations["x", "n1"]
        for _ in range(20):
            self.world.settle(LATER)
        self.assertEqual(set(), self.world.left())
        self.assertEqual(set(), self.members())

    def test_a_place_that_an_evacuation_left_goes_though_its_allocation_stays(self):
        # Nobody looked while the server was shown there; its allocation goes only once the
        # service of the host that died is back.
        self.join("x")
        self.world.mirror()
        self.world.instance("x", "h2", "node-n2")
        for _ in range(20):
            self.world.settle(LATER)
        self.assertEqual(set(), self.world.left())
        self.assertEqual(set(), self.members())

    def test_a_place_whose_server_may_come_still_stays_with_its_allocation(self):
        self.world.instance("x", "h2", "node-n2")
        self.join("x")
        self.world.mirror()
        for _ in range(20):
            self.world.settle(LATER)
        self.assertEqual({("x", "h1")}, self.members())

    def test_a_place_named_by_a_node_s_uuid_is_settled_all_the_same(self):
        self.join("x", place="")
        self.world.instance("x")
        self.world.settle()
        self.world.settle(LATER)
        self.assertEqual(set(), self.members())


class ForeignRecordsTest(SettlingCase):
    def test_a_record_nobody_understands_is_left_and_told_of(self):
        self.world.place("x")
        self.world.put(known_namespaces.CLAIM_RECORDS, "n9", {"claims": {"y": {"state": "odd"}}})
        self.world.mirror()
        self.world.instance("x")
        self.world.node(count=1)
        self.world.settle()
        self.assertEqual(set(), self.world.left())

    def test_a_record_of_a_newer_release_keeps_no_other_from_its_end(self):
        newer = attrs.evolve(
            known_namespaces.CLAIM_RECORDS, schema=namespaces_model.SchemaVersion(9, 0)
        )
        ended = {"state": "pending", "claim_id": "i", "writer": "w", "deadline_seconds": -1.0}
        self.world.put(newer, "n9", {"claims": {"y": {**ended, "resources": {"VCPU": 1}}}})
        self.world.place("x")
        self.world.mirror()
        self.world.instance("x")
        self.world.node(count=1)
        self.world.settle()
        self.assertEqual(set(), self.world.left())

    def test_hosts_without_a_mirror_keep_their_claims_while_allocations_stand(self):
        self.world.put(known_namespaces.PROVIDERS, "n1", None)
        self.world.place("x")
        self.world.instance("x")
        self.world.node(count=1)
        for _ in range(3):
            self.world.settle(LATER)
        self.assertEqual({"x"}, self.world.left())
        self.world.put(
            known_namespaces.PROVIDERS, "n1", hosts.provider(1, allocations={"x": {"VCPU": 1}})
        )
        self.world.settle()
        self.assertEqual(set(), self.world.left())


class TestRemoval(testtools.TestCase):
    """Records of groups that nobody uses go, and with them no protection."""

    KEEP = 3600.0

    def setUp(self):
        super().setUp()
        self.world = settlement_world.World(keep_seconds=self.KEEP)
        self.world.node()

    def records(self):
        found = self.world.client.read(
            [
                records.RecordKey(known_namespaces.CLAIM_RECORDS.name, "n1"),
                records.RecordKey(known_namespaces.GROUP_CLAIMS.name, "g"),
            ]
        )
        return {key.key for key, record in found.items() if not record.deleted}

    def serve(self):
        """Have a member of a group be claimed for, built and settled."""
        claim = model.Claim("x", "n1", {"VCPU": 1}, place="h1", node=claims.SMALL)
        fits = lambda record: True  # noqa: E731 - as claimers give it
        answer = self.world.groups.claim(APART, claim, fits, self.world.cursor, {})
        self.world.allocations["x", "n1"] = {"VCPU": 1}
        self.world.groups.confirm(answer)
        self.world.mirror()
        self.world.instance("x")
        self.world.node(1)
        for _ in range(3):
            self.world.settle(LATER)

    def test_an_empty_group_goes_after_a_while_and_its_host_s_record_stays(self):
        self.serve()
        self.assertEqual({"n1", "g"}, self.records())
        self.world.settle(self.KEEP / 2)
        self.assertEqual({"n1", "g"}, self.records())
        self.world.settle(self.KEEP)
        self.assertEqual({"n1"}, self.records())
        self.assertEqual(1, self.world.settler.status.removed)

    def test_a_group_that_is_used_again_meanwhile_stays(self):
        self.serve()
        self.world.settle(self.KEEP * 0.7)
        self.serve()
        self.world.settle(self.KEEP * 0.7)
        self.assertEqual({"n1", "g"}, self.records())

    def test_a_group_with_a_member_that_is_not_shown_stays(self):
        claim = model.Claim("x", "n1", {"VCPU": 1}, place="h1", node=claims.SMALL)
        answer = self.world.groups.claim(APART, claim, lambda _: True, self.world.cursor, {})
        self.world.allocations["x", "n1"] = {"VCPU": 1}
        self.world.groups.confirm(answer)
        for _ in range(3):
            self.world.settle(self.KEEP)
        self.assertEqual({"n1", "g"}, self.records())

    def test_one_that_nobody_understands_stays(self):
        self.world.put(known_namespaces.GROUP_CLAIMS, "g", {"members": "nonsense", "settled": None})
        for _ in range(3):
            self.world.settle(self.KEEP)
        self.assertEqual({"g"}, self.records())
