# SPDX-License-Identifier: Apache-2.0
"""Claims proved for whoever would be refused for them, its own first."""

import os
from unittest import mock

import testtools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.settlement import claim_proof
from tests.unit.synchronizer.settlement import test_claim_reaper

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "50"))

HOSTS = test_claim_reaper.HOSTS
STAYS = test_claim_reaper.STAYS
DEVICES = model.NodeShare(vcpus=1, memory_mb=512, disk_gb=1, io_operations=1, fitted={"pci": 1})


class Cloud(test_claim_reaper.Cloud):
    """A cloud of which claims are proved, and hardly ever settled otherwise."""

    def __init__(self):
        super().__init__()
        self.proof = claim_proof.ClaimProof(
            self.client,
            self.store,
            lambda: self.cursor,
            self.ask,
            lambda: self.clock[0],
            record_editor.RecordCache(),
            lambda: self.clock[0],
        )

    def state(self, namespace, key):
        return self.store.snapshot().namespace(namespace.name).state(key)

    def give_to_migration(self, name="x", uuid="n1"):
        """A conductor begins a move: what the server has there is its migration's."""
        self.migration(name, "", "", source=HOSTS[uuid])
        self.allocations[f"m-{name}", uuid] = self.allocations.pop((name, uuid))

    def boot_unsettled(self, name="x", uuid="n1"):
        """Boot; the server is saved once more after its node was."""
        for _ in test_claim_reaper.boot(self, name, uuid):
            pass
        self.instance(name, HOSTS[uuid], f"node-{uuid}", vm_state="active")

    def resize_there(self, name="x", uuid="n1", share=DEVICES, vcpus=1):
        """Resize a server on its host, as far as until it may be confirmed or reverted."""
        self.give_to_migration(name, uuid)
        self.claim_on(uuid, name, share, vcpus)
        self.mirror(uuid)
        self.migration(name, HOSTS[uuid], f"node-{uuid}", source=HOSTS[uuid])
        self.report(uuid)

    def revert_there(self, name="x", uuid="n1"):
        """Revert that: its former size is its own again, and the migration is over."""
        self.allocations[name, uuid] = self.allocations.pop((f"m-{name}", uuid))
        self.migration(name, status=None)
        self.mirror(uuid)


class ProofTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = Cloud()

    def test_a_server_s_boot_claim_ends_once_its_room_is_its_migration_s(self):
        cloud = self.cloud
        cloud.boot_unsettled()
        cloud.give_to_migration()
        cloud.mirror()
        self.assertGreater(cloud.proof.prove_of(["x"]), 0)
        cloud.follow()
        self.assertEqual(set(), cloud.left())
        cloud.check()

    def test_its_own_request_need_not_wait_for_the_mirror_to_see_the_move(self):
        cloud = self.cloud
        cloud.boot()
        cloud.settle()
        cloud.resize_there()
        cloud.revert_there()
        cloud.give_to_migration()
        self.assertEqual(0, cloud.proof.prove().version)
        self.assertGreater(cloud.proof.prove_of(["x"]), 0)
        self.assertEqual(set(), cloud.left())

    def test_what_a_former_resize_on_its_host_claimed_ends_when_it_moves_again(self):
        cloud = self.cloud
        cloud.boot()
        cloud.settle()
        cloud.resize_there()
        cloud.revert_there()
        cloud.give_to_migration()
        cloud.mirror()
        self.assertGreater(cloud.proof.prove_of(["x"]), 0)
        cloud.follow()
        self.assertEqual(set(), cloud.left())
        self.assertEqual(["x"], cloud.asked[-1:])

    def test_a_server_is_asked_for_again_although_another_s_refusal_asked_just_now(self):
        cloud = self.cloud
        cloud.boot()
        cloud.settle()
        cloud.claim_on("n2")
        cloud.deallocate("n2")
        # On its way there: whoever is refused now asks for it in vain.
        cloud.migration("x", "h2", "node-n2")
        cloud.mirror("n2")
        cloud.allocations["x", "n2"] = {"VCPU": 1}
        cloud.migration("x", status=None)
        self.assertEqual(0, cloud.proof.prove().version)
        self.assertEqual(0, cloud.proof.prove().version)
        self.assertEqual({"x"}, cloud.left("n2"))
        del cloud.allocations["x", "n2"]
        self.assertEqual(0, cloud.proof.prove().version)
        # By who was decided before it was asked, too: the answer is newer.
        self.assertEqual(0, cloud.proof.prove(decided_at=cloud.clock[0] - 0.1).version)
        self.assertGreater(cloud.proof.prove(own=["x"]).version, 0)
        self.assertEqual(set(), cloud.left("n2"))

    def test_what_was_asked_for_before_it_was_decided_is_asked_for_again(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.allocations["x", "n1"] = {"VCPU": 1}
        cloud.mirror()
        del cloud.allocations["x", "n1"]
        cloud.mirror()
        cloud.allocations["x", "n1"] = {"VCPU": 1}
        self.assertEqual(0, cloud.proof.prove().version)
        self.assertEqual(["x"], cloud.asked)
        del cloud.allocations["x", "n1"]
        self.assertGreater(cloud.proof.prove(decided_at=cloud.clock[0]).version, 0)
        self.assertEqual(set(), cloud.left())

    def test_a_group_that_nobody_can_read_proves_nothing_of_it_and_ends_the_others(self):
        for members in (
            {"y": {"h1": {"state": "of a later release", "claim_id": "1", "writer": "s"}}},
            {"y": {"h1": {"state": "confirmed"}}},
            {"y": ["h1"]},
            ["y"],
        ):
            cloud = Cloud()
            state = {"members": members, "settled": None}
            cloud.put(known_namespaces.GROUP_CLAIMS, "g", state)
            with self.assertRaisesRegex(claim_proof.ClaimsUnproved, "server group g"):
                cloud.proof.prove(group="g")
            # Of others than its members it is no obstacle.
            cloud.boot_unsettled()
            cloud.give_to_migration()
            cloud.mirror()
            self.assertTrue(cloud.proof.prove().complete)
            found = cloud.proof.prove(own=["x"], group="g")
            self.assertGreater(found.version, 0)
            self.assertFalse(found.complete)
            self.assertEqual(set(), cloud.left())
            self.assertEqual(2, cloud.proof.status.unreadable)
            self.assertEqual(state, cloud.state(known_namespaces.GROUP_CLAIMS, "g"))

    def test_a_group_that_becomes_unreadable_as_it_is_looked_at_keeps_its_places(self):
        cloud = self.cloud
        member = {"state": "confirmed", "claim_id": "1", "writer": "s"}
        cloud.put(known_namespaces.GROUP_CLAIMS, "g", {"members": {"y": {"h1": member}}})
        own = cloud.client.read

        def read(keys):
            state = {"members": {"y": {"h1": {**member, "state": "of a later release"}}}}
            with mock.patch.object(cloud.client, "read", own):
                cloud.put(known_namespaces.GROUP_CLAIMS, "g", state)
            return own(keys)

        with (
            mock.patch.object(cloud.client, "read", read),
            self.assertRaisesRegex(claim_proof.ClaimsUnproved, "cannot be read"),
        ):
            cloud.proof.prove(group="g")
        self.assertEqual(1, cloud.proof.status.unreadable)
        self.assertEqual(
            "of a later release",
            cloud.state(known_namespaces.GROUP_CLAIMS, "g")["members"]["y"]["h1"]["state"],
        )

    def test_a_claim_that_another_ended_unseen_is_waited_for(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.deallocate("n1")
        held = cloud.ledger.read("n1").claims["x"]
        claim = model.Claim("x", "n1", held.resources, held.node)
        cloud.ledger.release(model.Granted(claim, held.claim_id, held.state))
        # The store has not come so far: the refusal that asks here saw the claim.
        self.assertEqual(cloud.client.head().version, cloud.proof.prove().version)
        self.assertEqual([], cloud.asked)

    def test_claims_on_hosts_that_do_not_matter_are_not_asked_for(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.claim_on("n2", "y")
        cloud.deallocate("n1")
        cloud.deallocate("n2", "y")
        self.assertEqual(0, cloud.proof.prove(own=["x"], hosts=frozenset()).version)
        self.assertEqual([], cloud.asked)
        self.assertGreater(cloud.proof.prove(own=["x"], hosts=frozenset({"n2"})).version, 0)
        self.assertEqual((["y"], {"x"}, set()), (cloud.asked, cloud.left(), cloud.left("n2")))

    def test_claims_that_ended_on_hosts_that_do_not_matter_are_no_reason_to_decide_again(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.follow()
        before = cloud.store.snapshot().namespace("claims")
        cloud.deallocate("n1")
        self.assertGreater(cloud.proof.prove().version, 0)
        cloud.follow()
        self.assertEqual(0, cloud.proof.prove(before, hosts=frozenset({"n2"})).version)
        self.assertGreater(cloud.proof.prove(before, hosts=frozenset({"n1"})).version, 0)

    def two_of_which_one_ended(self):
        """Claim on two hosts and end the first; returns the claims of before."""
        self.cloud.claim_on("n1")
        self.cloud.claim_on("n2", "y")
        self.cloud.follow()
        before = self.cloud.store.snapshot().namespace("claims")
        self.cloud.deallocate("n1")
        self.assertGreater(self.cloud.proof.prove().version, 0)
        self.cloud.follow()
        return before

    def test_claims_that_ended_prove_nothing_of_those_that_are_left(self):
        cloud, before = self.cloud, self.two_of_which_one_ended()
        cloud.deallocate("n2", "y")
        found = cloud.proof.prove(before, decided_at=cloud.clock[0])
        self.assertEqual((cloud.client.head().version, True), (found.version, found.complete))
        self.assertEqual(set(), cloud.left("n2"))

    def test_nor_do_they_where_nobody_answers_for_the_others(self):
        cloud, before = self.cloud, self.two_of_which_one_ended()
        cloud.deallocate("n2", "y")
        cloud.allocations = None
        self.assertFalse(cloud.proof.prove(before, decided_at=cloud.clock[0]).complete)

    def test_a_claim_that_another_ends_at_the_same_moment_is_waited_for(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.deallocate("n1")
        own = cloud.client.write
        raced = []

        def write(writes, **more):
            if not raced:
                raced.append(writes)
                own(writes, **more)
            return own(writes, **more)

        cloud.client.write = write
        self.assertEqual(cloud.client.head().version + 1, cloud.proof.prove().version)
        self.assertEqual(1, len(raced))

    def test_a_claim_whose_end_lost_to_another_write_is_asked_for_again_at_once(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.deallocate("n1")
        own = cloud.client.write

        def write(writes, **more):
            cloud.client.write = own
            cloud.claim("y", "n1")
            return own(writes, **more)

        cloud.client.write = write
        self.assertGreater(cloud.proof.prove().version, 0)
        self.assertEqual({"x", "y"}, cloud.left())
        cloud.follow()
        # Whoever was told that something changed is refused for the same claim again.
        self.assertGreater(cloud.proof.prove().version, 0)
        self.assertEqual({"y"}, cloud.left())

    def test_a_back_end_that_fails_at_the_end_leaves_nothing_proved_to_the_next(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.deallocate("n1")

        def away(writes, **more):
            del cloud.client.write
            raise errors.BackendUnavailable("memory", "it is down")

        cloud.client.write = away
        self.assertRaises(errors.BackendUnavailable, cloud.proof.prove)
        self.assertGreater(cloud.proof.prove().version, 0)
        self.assertEqual(set(), cloud.left())

    def test_an_epoch_that_ends_after_the_question_proves_nothing(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.deallocate("n1")
        own = cloud.client.head
        heads = []

        def head():
            heads.append(own())
            return heads[0] if len(heads) == 1 else records.Cursor("another", 1)

        cloud.client.head = head
        self.assertRaises(claim_proof.ClaimsUnproved, cloud.proof.prove)
        self.assertEqual({"x"}, cloud.left())

    def test_what_stands_stays_whoever_asks_for_it(self):
        cloud = self.cloud
        cloud.boot()
        cloud.settle()
        cloud.resize_there(share=STAYS, vcpus=2)
        self.assertEqual({"x"}, cloud.left())
        # The size it goes to is allocated, and its migration is not over.
        self.assertEqual(0, cloud.proof.prove_of(["x"]))
        self.assertEqual({"x"}, cloud.left())
        # Pending: its scheduler is about to write the allocation.
        cloud.claim("y", "n2")
        self.assertEqual(0, cloud.proof.prove_of(["y"]))
        self.assertEqual({"y"}, cloud.left("n2"))

    def test_what_a_server_is_to_move_to_stays_claimed_before_its_migration_is_shown(self):
        cloud = self.cloud
        cloud.boot()
        cloud.settle()
        # Its scheduler publishes the allocation, a reporter the migration: a moment later.
        cloud.claim_on("n2")
        cloud.mirror("n2")
        self.assertEqual(0, cloud.proof.prove().version)
        self.assertEqual({"x"}, cloud.left("n2"))

    def boot_unseen(self):
        """Boot, and begin to move, before the mirror looked at anything."""
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.arrive("n1", vm_state="active")
        cloud.check()
        cloud.give_to_migration()

    def test_what_a_server_gave_to_its_migration_stays_claimed_until_the_mirror_counts_it(self):
        cloud = self.cloud
        self.boot_unseen()
        cloud.proof.prove_of(["x"])
        cloud.follow()
        cloud.check()
        self.assertEqual({"x"}, cloud.left())
        cloud.mirror()
        self.assertTrue(cloud.proof.prove_of(["x"]))
        cloud.follow()
        self.assertEqual(set(), cloud.left())
        cloud.check()

    def test_so_it_does_on_the_host_that_the_server_has_left(self):
        cloud = self.cloud
        self.boot_unseen()
        cloud.claim_on("n2")
        cloud.mirror("n2")
        cloud.arrive("n2")
        cloud.leave("n1")
        for _ in range(3):
            cloud.settle(30.0)
            cloud.check()
        self.assertEqual({"x"}, cloud.left())
        cloud.migration("x", status=None)
        del cloud.allocations["m-x", "n1"]
        cloud.check_quiet()

    def test_a_server_resized_on_its_host_counts_twice_until_the_mirror_shows_its_new_size(self):
        cloud = self.cloud
        cloud.claim_on("n1", vcpus=4)
        cloud.mirror()
        cloud.arrive("n1", vm_state="active", vcpus=4)
        cloud.settle(60.0)
        cloud.give_to_migration()
        cloud.check()
        cloud.claim_on("n1", share=STAYS, vcpus=2)
        cloud.check()
        cloud.migration("x", source="h1")
        cloud.report()
        cloud.check()
        self.assertEqual({"x"}, cloud.left())
        cloud.mirror()
        cloud.settle(5.0)
        cloud.check()
        self.assertEqual(set(), cloud.left())

    def test_an_authority_that_does_not_answer_ends_nothing_of_a_mover(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.deallocate("n1")
        cloud.allocations = None
        self.assertEqual(0, cloud.proof.prove_of(["x"]))
        self.assertRaises(claim_proof.ClaimsUnproved, cloud.proof.prove)
        self.assertEqual({"x"}, cloud.left())

    def test_servers_that_hold_nothing_cost_no_question_and_no_reading(self):
        cloud = self.cloud
        cloud.boot_unsettled("y")
        cloud.client.read = None
        self.assertEqual(0, cloud.proof.prove_of(["x"]))
        self.assertEqual([], cloud.asked)


def resize_twice(cloud, name):
    """Boot, be resized on the host, go back, and be resized there once more."""
    yield from test_claim_reaper.boot(cloud, name, "n1")
    cloud.instance(name, vm_state="active")
    yield
    for reverted in (True, False):
        cloud.migration(name, "", "", source="h1")
        yield
        cloud.allocations[f"m-{name}", "n1"] = cloud.allocations.pop((name, "n1"))
        yield
        # As a request does that is decided now.
        cloud.proof.prove_of([name])
        cloud.follow()
        yield
        if name in cloud.left("n1"):
            # Its node does not count it yet: it is refused, and asks again.
            cloud.report("n1")
            cloud.mirror("n1")
            assert cloud.proof.prove_of([name])
            cloud.follow()
            yield
        cloud.claim_on("n1", name, STAYS, vcpus=2)
        yield
        cloud.mirror("n1")
        yield
        cloud.migration(name, "h1", "node-n1", source="h1")
        yield
        cloud.report("n1")
        yield
        if reverted:
            cloud.allocations[name, "n1"] = cloud.allocations.pop((f"m-{name}", "n1"))
            yield
            cloud.migration(name, status=None)
            yield
        else:
            # A conductor confirms: first the migration is over, then the server has its
            # new size, then the former one's allocation goes.
            cloud.migration(name, status=None)
            yield
            cloud.instance(name, vm_state="active", vcpus=2)
            yield
            del cloud.allocations[f"m-{name}", "n1"]
            yield
    cloud.mirror("n1")


WAYS = [
    resize_twice,
    test_claim_reaper.stay,
    test_claim_reaper.go,
    test_claim_reaper.fail,
    test_claim_reaper.move,
]


class ProofPropertyTest(testtools.TestCase):
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        ways=st.lists(st.sampled_from(WAYS), min_size=1, max_size=4),
        turns=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=80),
    )
    def test_nothing_that_stands_is_proved_away_at_whatever_moment_it_is_asked_for(
        self, ways, turns
    ):
        cloud = Cloud()
        names = {number: f"x{number}" for number in range(len(ways))}
        left = {number: way(cloud, names[number]) for number, way in enumerate(ways)}
        last = [(n, False, False) for n in range(len(ways)) for _ in range(40)]
        for number, reports, proves in [*turns, *last]:
            if number in left and next(left[number], self) is self:
                del left[number]
            if reports:
                cloud.report("n1")
            if proves:
                cloud.proof.prove_of([names.get(number, "x0")])
                cloud.follow()
            cloud.check(full=False)
        self.assertEqual({}, left)
        cloud.check_quiet()
