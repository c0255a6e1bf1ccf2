# SPDX-License-Identifier: Apache-2.0
"""What servers go through, as the records that Nova's writes become, one way after the other.

After each write a decision sees at least what is true of every host: what
Placement has allocated, and how many servers are there or on their way. Once
all is quiet no claim is left, and it sees exactly that.
"""

import json

import testtools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.scheduling.facts import fact_source, frame_keeper
from nova_nodb_scheduler.scheduling.namespaces import node_facts
from nova_nodb_scheduler.synchronizer.settlement import settlement_worker
from tests.unit.scheduling import claims, hosts
from tests.unit.synchronizer.settlement import settlement_world

#: Placement's uuid of a host's node, and its service's name.
HOSTS = {"n1": "h1", "n2": "h2"}
STAYS = model.NodeShare(vcpus=2, memory_mb=512, disk_gb=1, io_operations=1)
AS_LARGE = model.NodeShare(vcpus=1, memory_mb=512, disk_gb=1, io_operations=1)


class Cloud(settlement_world.World):
    """A world whose hosts are decided on, and what is true of them."""

    def __init__(self, **options):
        super().__init__(**options)
        present = fact_source.Present()
        self.frame = hosts.FedFrame(present.locate, present.attribute)
        self.keeper = frame_keeper.FrameKeeper(
            self.store, hosts.Feed(self.frame), present, ratios=node_facts.DefaultRatios()
        )
        #: Names of servers by node: what its nova-compute counts.
        self.counted = {uuid: set() for uuid in HOSTS}
        #: Servers that were promised a node, or are there.
        self.true_servers = {uuid: set() for uuid in HOSTS}
        for uuid in HOSTS:
            self.report(uuid)
            self.mirror(uuid)
        self.settle()

    # -- what Nova writes ---------------------------------------------------------

    def report(self, uuid="n1"):
        """A compute service saves its node."""
        count = str(len(self.counted[uuid]))
        stats = json.dumps({"num_instances": count, "io_workload": "0"})
        state = hosts.node(uuid, HOSTS[uuid], stats=stats)
        self.put(settlement_world.known_namespaces.COMPUTE_NODES, uuid, state)

    def claim_on(self, uuid, name="x", share=claims.SMALL, vcpus=1):
        """A scheduler promises a server a node, and has it allocated."""
        self.true_servers[uuid].add(name)
        self.place(name, uuid, share, VCPU=vcpus)

    def arrive(self, uuid, name="x", **row):
        """The compute service takes a server up: the instance names it, then the node counts it."""
        self.instance(name, HOSTS[uuid], f"node-{uuid}", **row)
        self.check()
        self.counted[uuid].add(name)
        self.report(uuid)

    def leave(self, uuid, name="x"):
        """The compute service lets a server go; its node is saved without it."""
        self.counted[uuid].discard(name)
        self.true_servers[uuid].discard(name)
        self.report(uuid)

    def deallocate(self, uuid, name="x"):
        """An allocation is removed, and the mirror sees it."""
        del self.allocations[name, uuid]
        self.mirror(uuid)

    def boot(self, uuid="n1", name="x"):
        self.claim_on(uuid, name)
        self.check()
        self.mirror(uuid)
        self.check()
        self.arrive(uuid, name)
        self.check()

    # -- what is seen ---------------------------------------------------------------

    def seen(self, uuid):
        row = self.frame.row_of(uuid)
        return (
            self.frame.resource("VCPU").used.item(row),
            self.frame.num_instances.item(row),
        )

    def truth(self, uuid):
        used = sum(
            amounts["VCPU"]
            for (_, provider), amounts in self.allocations.items()
            if provider == uuid
        )
        return used, len(self.true_servers[uuid])

    def check(self, full=True):
        """Nothing is counted below the truth; with the settler taking turns at any time.

        :param full: look before it took turns, too
        """
        for settle in (False, True) if full else (True,):
            if settle:
                self.settle(0.3)
            self.keeper.catch_up(100.0)
            for uuid in HOSTS:
                seen, truth = self.seen(uuid), self.truth(uuid)
                assert all(s >= t for s, t in zip(seen, truth, strict=True)), (uuid, seen, truth)

    def check_quiet(self):
        """All has reported again, and time has passed: what is seen is the truth, by no claim."""
        for uuid in HOSTS:
            self.mirror(uuid)
            self.report(uuid)
        for _ in range(3):
            self.settle(30.0)
        self.keeper.catch_up(100.0)
        for uuid in HOSTS:
            assert self.left(uuid) == set(), (uuid, self.left(uuid))
            assert self.seen(uuid) == self.truth(uuid), (uuid, self.seen(uuid), self.truth(uuid))


class EndingsTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = Cloud()
        self.addCleanup(self.cloud.check_quiet)

    def test_boot(self):
        self.cloud.boot()
        self.cloud.settle()
        self.assertEqual(set(), self.cloud.left())
        self.assertEqual([], self.cloud.asked)

    def test_boot_that_is_saved_again_at_once_on_a_host_that_then_changes_no_more(self):
        """nova-compute saves its node only when something differs from what it saved last."""
        cloud = self.cloud
        for _ in boot(cloud, "x", "n1"):
            pass
        # Before anybody settled: a resize of it begins, and is refused.
        cloud.instance("x", vm_state="active", task_state="resize_prep")
        cloud.instance("x", vm_state="active")
        for _ in range(3):
            cloud.settle(60.0)
        self.assertEqual(set(), cloud.left())
        cloud.check()

    def test_boot_that_nova_compute_took_up_stays_claimed_while_it_builds(self):
        cloud = self.cloud
        for _ in boot(cloud, "x", "n1"):
            pass
        cloud.instance("x", vm_state="building", task_state="spawning")
        for _ in range(3):
            cloud.settle(60.0)
        self.assertEqual({"x"}, cloud.left())

    def test_a_server_that_is_there_stays_claimed_while_its_node_counts_fewer(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.mirror("n1")
        cloud.instance("x", vm_state="active")
        for _ in range(3):
            cloud.settle(60.0)
        self.assertEqual({"x"}, cloud.left())
        cloud.counted["n1"].add("x")

    def test_boot_whose_node_is_published_before_the_instance(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.counted["n1"].add("x")
        cloud.report()
        cloud.check()
        cloud.instance("x")
        cloud.check()
        cloud.mirror()

    def test_boot_that_is_deleted_while_it_waits(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.mirror()
        cloud.check()
        cloud.true_servers["n1"].clear()
        cloud.deallocate("n1")
        cloud.check()

    def test_boot_that_fails_and_goes_to_another_host(self):
        cloud = self.cloud
        cloud.boot("n1")
        # The build fails: the compute forgets it, its allocation goes.
        cloud.claim_on("n2")
        cloud.instance("x", None)
        cloud.leave("n1")
        cloud.deallocate("n1")
        cloud.check()
        cloud.mirror("n2")
        cloud.arrive("n2")
        cloud.check()

    def test_boot_that_fails_before_its_host_was_saved_and_goes_to_another(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.mirror("n1")
        cloud.claim_on("n2")
        cloud.true_servers["n1"].clear()
        cloud.deallocate("n1")
        cloud.check()
        cloud.mirror("n2")
        cloud.arrive("n2")
        cloud.check()

    def begin_move(self, kind="resize", status="pre-migrating", vcpus=1):
        """The source's allocation goes to the migration; the destination is claimed."""
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.allocations["m-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.claim_on("n2", vcpus=vcpus)
        cloud.check()
        cloud.mirror("n1")
        cloud.mirror("n2")
        cloud.check()
        if kind != "live-migration":
            # The destination takes it up: the migration names it, then the node counts it.
            cloud.migration("x", "h2", "node-n2", status, kind)
            cloud.check()
            cloud.report("n2")
            cloud.check()

    def finish_move(self):
        cloud = self.cloud
        cloud.arrive("n2")
        cloud.check()

    def test_resize_or_cold_migration_that_is_confirmed(self):
        cloud = self.cloud
        self.begin_move()
        self.assertEqual({"x"}, cloud.left("n2"))
        self.finish_move()
        cloud.settle()
        self.assertEqual(set(), cloud.left("n2"))
        cloud.migration("x", status=None)
        cloud.leave("n1")
        cloud.deallocate("n1", "m-x")

    def test_resize_that_is_reverted(self):
        cloud = self.cloud
        self.begin_move()
        self.finish_move()
        # Back to the source: its allocation is the instance's again.
        cloud.leave("n2")
        cloud.deallocate("n2")
        cloud.allocations["x", "n1"] = cloud.allocations.pop(("m-x", "n1"))
        cloud.instance("x", "h1", "node-n1")
        cloud.migration("x", status=None)
        cloud.mirror("n1")
        cloud.report("n1")
        cloud.check()

    def test_resize_that_fails_at_its_destination(self):
        cloud = self.cloud
        self.begin_move()
        cloud.true_servers["n2"].clear()
        cloud.migration("x", status=None)
        cloud.deallocate("n2")
        cloud.allocations["x", "n1"] = cloud.allocations.pop(("m-x", "n1"))
        cloud.mirror("n1")
        cloud.report("n2")
        cloud.check()

    def test_resize_on_its_own_host_that_is_confirmed(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.allocations["m-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.claim_on("n1", share=STAYS, vcpus=2)
        cloud.check()
        cloud.mirror()
        cloud.check()
        cloud.migration("x")
        cloud.report()
        cloud.check()
        cloud.instance("x", vcpus=2)
        cloud.report()
        cloud.check()
        # Its record was settled just now, and rests.
        cloud.settle(settlement_worker.SettlementOptions().cool_down_seconds)
        self.assertEqual(set(), cloud.left())
        cloud.migration("x", status=None)
        cloud.deallocate("n1", "m-x")

    def test_resize_on_its_own_host_whose_end_alone_was_seen(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.allocations["m-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.claim_on("n1", share=model.NodeShare(vcpus=1, io_operations=1, fitted={"pci": 1}))
        # Nobody settles while it lasts.
        cloud.deallocate("n1", "m-x")
        cloud.report()
        cloud.check()

    def test_resize_on_its_own_host_that_fails(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.allocations["m-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.claim_on("n1", share=STAYS, vcpus=2)
        cloud.mirror()
        cloud.check()
        cloud.allocations["x", "n1"] = cloud.allocations.pop(("m-x", "n1"))
        cloud.mirror()
        cloud.check()

    def begin_on_own_host(self, share=STAYS, vcpus=2):
        """A resize is claimed and allocated; its host takes nothing up yet."""
        cloud = self.cloud
        cloud.migration("x", "", "", "pre-migrating", source="h1")
        cloud.allocations["m-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.claim_on("n1", share=share, vcpus=vcpus)

    def refuse_on_own_host(self):
        """nova-compute has not got the devices: no node, and no migration, names the host."""
        cloud = self.cloud
        cloud.allocations["x", "n1"] = cloud.allocations.pop(("m-x", "n1"))
        cloud.migration("x", status=None)
        cloud.instance("x", vm_state="active", task_state=None)

    def test_resize_on_its_own_host_that_fails_leaves_its_room_at_once(self):
        """Its provider shows it there all the time, and no save tells that its server left."""
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        self.begin_on_own_host()
        # Asked for as the migration began: next in half a minute, twice as long each time.
        for seconds in (0.0, 2.0, 6.0):
            cloud.settle(seconds)
        self.assertEqual((["x"], {"x"}), (cloud.asked, cloud.left()))
        # The mirror saw nothing of it all.
        self.refuse_on_own_host()
        for seconds in (0.0, 6.0):
            cloud.settle(seconds)
        self.assertEqual((["x", "x"], set()), (cloud.asked, cloud.left()))
        cloud.check()

    def test_resize_on_its_own_host_that_fails_while_its_record_rests(self):
        cloud = self.cloud
        cloud.boot("n1")
        self.begin_on_own_host()
        # Another is settled there, so that this one is not looked at.
        cloud.settle()
        self.refuse_on_own_host()
        cloud.settle()
        self.assertEqual({"x"}, cloud.left())
        cloud.settle(2.0)
        cloud.settle(6.0)
        self.assertEqual(set(), cloud.left())
        cloud.check()

    def test_resize_on_its_own_host_stays_claimed_until_the_mirror_shows_it(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        self.begin_on_own_host()
        cloud.migration("x", source="h1")
        cloud.report()
        # Confirmed, and over; the mirror has not come so far.
        cloud.instance("x", vm_state="active", vcpus=2)
        cloud.migration("x", status=None)
        del cloud.allocations["m-x", "n1"]
        for _ in range(3):
            cloud.settle(60.0)
            cloud.check()
        self.assertEqual({"x"}, cloud.left())

    def test_resize_on_its_own_host_to_as_much_counts_twice_until_the_mirror_shows_both(self):
        """Other devices, or what providers below the root give: the root gives as much as before.

        The mirror shows just what is claimed, and it is the migration's by now.
        """
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        self.begin_on_own_host(AS_LARGE, 1)
        for _ in range(3):
            cloud.check()
            cloud.settle(60.0)
        self.assertEqual({"x"}, cloud.left())
        cloud.mirror()
        cloud.check()
        cloud.migration("x", source="h1")
        cloud.report()
        cloud.check()
        self.assertEqual((2, 1), cloud.seen("n1"))
        # Confirmed, as another request counts it before and after the mirror follows.
        cloud.instance("x", vm_state="active", task_state=None)
        cloud.migration("x", status=None)
        del cloud.allocations["m-x", "n1"]
        cloud.check()

    def test_so_does_one_whose_migration_is_shown_late(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.allocations["m-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.claim_on("n1", share=AS_LARGE)
        for _ in range(3):
            cloud.check()
            cloud.settle(60.0)
        cloud.instance("x", vm_state="active", task_state="resize_prep")
        for _ in range(3):
            cloud.check()
            cloud.settle(60.0)
        self.assertEqual({"x"}, cloud.left())
        cloud.mirror()
        cloud.check()
        cloud.migration("x", source="h1")
        cloud.check()
        self.assertEqual(2, cloud.seen("n1")[0])
        cloud.migration("x", status=None)
        cloud.deallocate("n1", "m-x")

    def test_resize_on_its_own_host_to_as_much_that_fails_leaves_its_room(self):
        for is_shown in (False, True):
            cloud = self.cloud = Cloud()
            cloud.boot("n1")
            cloud.settle()
            self.begin_on_own_host(AS_LARGE, 1)
            if is_shown:
                cloud.mirror()
            self.refuse_on_own_host()
            if is_shown:
                cloud.mirror()
            for _ in range(3):
                cloud.settle(60.0)
            self.assertEqual(set(), cloud.left(), is_shown)
            cloud.check_quiet()

    def test_one_of_which_no_record_tells_leaves_its_room_once_the_mirror_follows(self):
        """Its task came and went before it was published."""
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.claim_on("n1", share=AS_LARGE)
        for _ in range(3):
            cloud.settle(60.0)
        self.assertEqual({"x"}, cloud.left())
        cloud.mirror()
        for _ in range(3):
            cloud.settle(60.0)
        self.assertEqual(set(), cloud.left())

    def test_a_former_live_migration_s_allocation_does_not_tell_that_the_mirror_followed(self):
        cloud = self.cloud
        self.leave_a_migration()
        cloud.settle(60.0)
        cloud.allocations["x", "n1"] = {"VCPU": 1}
        cloud.mirror()
        cloud.put(
            settlement_world.known_namespaces.MIGRATIONS,
            f"m2-x@{hosts.CELL}",
            claims.migration("x", "", ""),
        )
        cloud.allocations["m2-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.claim_on("n1", share=AS_LARGE)
        cloud.check()
        cloud.mirror()
        cloud.check()
        cloud.put(settlement_world.known_namespaces.MIGRATIONS, f"m2-x@{hosts.CELL}", None)
        cloud.instance("x", vm_state="active", task_state=None)
        cloud.deallocate("n1", "m2-x")

    def leave_a_migration(self):
        """A nova-compute starts that was preparing a live migration: nobody ends that one."""
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.instance("x", vm_state="active", task_state="migrating")
        cloud.migration("x", "", "", "accepted", "live-migration", source="h1")
        cloud.allocations["m-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.claim_on("n2")
        cloud.mirror("n1")
        cloud.mirror("n2")
        cloud.migration("x", "h2", "node-n2", "preparing", "live-migration", source="h1")
        cloud.check()
        cloud.instance("x", vm_state="active", task_state=None)
        cloud.true_servers["n2"].discard("x")

    def test_live_migration_that_a_start_of_nova_compute_leaves_in_progress(self):
        """What is allocated there stays so, in Nova too: of the claim nothing does."""
        self.leave_a_migration()

    def test_resize_on_its_own_host_of_a_server_with_a_migration_left_in_progress(self):
        cloud = self.cloud
        self.leave_a_migration()
        cloud.settle(60.0)
        cloud.instance("x", vm_state="active", task_state="resize_prep")
        share = model.NodeShare(vcpus=1, io_operations=1, fitted={"pci": 1})
        cloud.claim_on("n1", share=share)
        cloud.mirror()
        cloud.check()
        # Its own migration came and went while nobody settled.
        cloud.instance("x", vm_state="active", task_state=None)
        cloud.check()

    def fail_on_own_host(self, **row):
        """A resize gives its allocation back before the mirror sees it; its migration stays."""
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.instance("x", vm_state="active", task_state="resize_prep")
        cloud.allocations["m-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.migration("x", status="accepted")
        cloud.claim_on("n1", share=STAYS, vcpus=2)
        cloud.migration("x")
        cloud.report()
        cloud.check()
        # Its record was settled just now, and rests.
        cloud.settle(settlement_worker.SettlementOptions().cool_down_seconds)
        cloud.allocations["x", "n1"] = cloud.allocations.pop(("m-x", "n1"))
        cloud.mirror()
        cloud.instance("x", **row)
        cloud.report()
        cloud.check()

    def stays_when_asked(self):
        """Say whether the claim stays although Placement was asked for it."""
        cloud = self.cloud
        cloud.asked.clear()
        cloud.settle(settlement_worker.SettlementOptions().cool_down_seconds)
        cloud.settle(1000.0)
        return {*cloud.asked} == cloud.left() == {"x"}

    def test_resize_on_its_own_host_whose_migration_never_ends(self):
        self.fail_on_own_host(vm_state="active", task_state=None)
        # The mirror shows less than is claimed: nobody waits for the question's turn.
        self.cloud.settle(6.0)
        self.assertEqual(set(), self.cloud.left())

    def test_move_to_another_host_whose_migration_never_ends(self):
        cloud = self.cloud
        self.begin_move()
        cloud.true_servers["n2"].clear()
        cloud.deallocate("n2")
        cloud.allocations["x", "n1"] = cloud.allocations.pop(("m-x", "n1"))
        cloud.mirror("n1")
        cloud.instance("x", vm_state="error", task_state=None)
        cloud.check()

    def test_a_claim_stays_as_long_as_its_server_may_move(self):
        cloud = self.cloud
        self.fail_on_own_host(vm_state="active", task_state="resize_prep")
        for row in (
            {"vm_state": "active", "task_state": "resize_migrating"},
            {"vm_state": "resized", "task_state": None},
            # Of nothing it is known that it ended.
            {"vm_state": None, "task_state": None},
        ):
            cloud.instance("x", **row)
            self.assertTrue(self.stays_when_asked(), row)
        cloud.migration("x", status=None)
        cloud.settle(1000.0)

    def test_a_record_of_before_a_move_does_not_tell_that_it_is_over(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.instance("x", vm_state="active", task_state=None)
        cloud.allocations["m-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.claim_on("n1", share=STAYS, vcpus=2)
        cloud.migration("x")
        cloud.allocations["x", "n1"] = cloud.allocations.pop(("m-x", "n1"))
        cloud.mirror()
        self.assertTrue(self.stays_when_asked())
        cloud.instance("x", vm_state="active", task_state=None)

    def test_a_record_of_before_a_move_that_is_told_late_does_not_tell_either(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.allocations["m-x", "n1"] = cloud.allocations.pop(("x", "n1"))
        cloud.claim_on("n2")
        cloud.mirror("n1")
        cloud.mirror("n2")
        # Read before the server got its task, and published behind the claim.
        cloud.instance("x", vm_state="active", task_state=None)
        cloud.migration("x", "h2", "node-n2", source="h1")
        cloud.settle(1000.0)
        cloud.settle(1000.0)
        self.assertEqual({"x"}, cloud.left("n2"))
        cloud.report("n2")
        cloud.arrive("n2")
        cloud.migration("x", status=None)
        cloud.leave("n1")
        cloud.deallocate("n1", "m-x")

    def test_live_migration(self):
        cloud = self.cloud
        self.begin_move("live-migration")
        cloud.migration("x", "h2", "node-n2", "running", "live-migration")
        cloud.check()
        self.finish_move()
        cloud.migration("x", status=None)
        cloud.leave("n1")
        cloud.deallocate("n1", "m-x")

    def test_live_migration_that_is_rolled_back(self):
        cloud = self.cloud
        self.begin_move("live-migration")
        cloud.migration("x", "h2", "node-n2", "running", "live-migration")
        cloud.check()
        cloud.true_servers["n2"].clear()
        cloud.deallocate("n2")
        cloud.allocations["x", "n1"] = cloud.allocations.pop(("m-x", "n1"))
        cloud.mirror("n1")
        cloud.migration("x", status=None)
        cloud.check()

    def test_evacuation_that_doubles_under_the_instance_s_uuid(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        cloud.claim_on("n2")
        cloud.check()
        cloud.mirror("n2")
        cloud.migration("x", "h2", "node-n2", "accepted", "evacuation")
        cloud.check()
        cloud.migration("x", "h2", "node-n2", "pre-migrating", "evacuation")
        cloud.report("n2")
        cloud.check()
        self.finish_move()
        # The dead host comes back and lets it go.
        cloud.leave("n1")
        cloud.deallocate("n1")
        cloud.migration("x", status=None)

    def test_evacuation_from_a_host_that_reports_no_more(self):
        cloud = self.cloud
        cloud.claim_on("n1")
        cloud.mirror("n1")
        cloud.instance("x")
        # The host dies before it reports the server; its allocation stays for it to remove.
        cloud.migration("x", "h2", "node-n2", "accepted", "evacuation")
        cloud.claim_on("n2")
        cloud.mirror("n2")
        cloud.settle(30.0)
        self.assertEqual({"x"}, cloud.left("n1"))
        cloud.migration("x", "h2", "node-n2", "pre-migrating", "evacuation")
        cloud.report("n2")
        cloud.arrive("n2")
        cloud.migration("x", status=None)
        cloud.true_servers["n1"].discard("x")
        cloud.check()

    def test_unshelving_elsewhere(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        # Offloaded: nothing of it is anywhere.
        cloud.instance("x", None)
        cloud.leave("n1")
        cloud.deallocate("n1")
        cloud.check()
        cloud.claim_on("n2")
        cloud.check()
        cloud.mirror("n2")
        cloud.arrive("n2")
        cloud.check()

    def test_resize_into_another_cell(self):
        cloud = self.cloud
        self.begin_move("resize")
        # Two records of one server for a while, each in its cell's database.
        other = claims.instance("x", "h9", "node-n9", hosts.OTHER_CELL)
        cloud.put(settlement_world.known_namespaces.INSTANCES, f"x@{hosts.OTHER_CELL}", other)
        cloud.check()
        self.finish_move()
        cloud.put(settlement_world.known_namespaces.INSTANCES, f"x@{hosts.OTHER_CELL}", None)
        cloud.migration("x", status=None)
        cloud.leave("n1")
        cloud.deallocate("n1", "m-x")

    def test_a_server_that_is_deleted_softly_and_reclaimed(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.instance("x", vm_state="soft-delete")
        cloud.report()
        cloud.check()
        cloud.instance("x", None)
        cloud.leave("n1")
        cloud.deallocate("n1")
        cloud.check()

    def test_a_server_that_leaves_and_comes_back(self):
        cloud = self.cloud
        cloud.boot("n1")
        cloud.settle()
        self.assertEqual(set(), cloud.left())
        cloud.claim_on("n2")
        cloud.mirror("n2")
        cloud.arrive("n2")
        cloud.leave("n1")
        cloud.deallocate("n1")
        cloud.check()
        cloud.claim_on("n1")
        cloud.check()
        # Of its former stay nothing shows.
        cloud.settle()
        self.assertEqual({"x"}, cloud.left())
        cloud.mirror("n1")
        cloud.arrive("n1")
        cloud.leave("n2")
        cloud.deallocate("n2")
        cloud.check()

    def test_a_scheduler_that_dies_before_it_allocates(self):
        cloud = self.cloud
        cloud.claim("x", "n1")
        cloud.check()

    def test_a_scheduler_that_dies_between_the_allocation_and_the_confirm(self):
        cloud = self.cloud
        cloud.claim("x", "n1")
        cloud.allocations["x", "n1"] = {"VCPU": 1}
        cloud.check()
        cloud.mirror()
        cloud.check()
        # What is allocated counts as allocated, whatever becomes of the claim.
        cloud.settle(60.0)
        self.assertEqual(set(), cloud.left())
        cloud.check()


def boot(cloud, name, uuid):
    """Boot a server, one write of Nova's or of a scheduler's after the other.

    nova-compute saves instance and node holding one lock; each is published by itself.
    """
    cloud.claim_on(uuid, name)
    yield
    cloud.mirror(uuid)
    yield
    cloud.counted[uuid].add(name)
    yield
    cloud.instance(name, HOSTS[uuid], f"node-{uuid}")
    yield
    cloud.report(uuid)
    yield


def stay(cloud, name):
    """Boot, and be there; what is done to it then changes nothing of its node."""
    yield from boot(cloud, name, "n1")
    cloud.instance(name, vm_state="active")
    yield
    cloud.settle(60.0)


def go(cloud, name):
    """Boot and be deleted; the allocation goes last."""
    yield from boot(cloud, name, "n1")
    # Destroyed: it takes nothing any more, whatever is still counted.
    cloud.true_servers["n1"].discard(name)
    cloud.instance(name, None)
    yield
    cloud.leave("n1", name)
    yield
    del cloud.allocations[name, "n1"]
    yield
    cloud.mirror("n1")


def fail(cloud, name):
    """Be promised a host whose compute never takes it up, then another."""
    cloud.claim_on("n1", name)
    yield
    cloud.mirror("n1")
    yield
    cloud.true_servers["n1"].discard(name)
    del cloud.allocations[name, "n1"]
    yield
    yield from boot(cloud, name, "n2")
    cloud.mirror("n1")


def move(cloud, name):
    """Boot, migrate and be confirmed."""
    yield from boot(cloud, name, "n1")
    cloud.migration(name, "", "", "pre-migrating", source="h1")
    cloud.allocations[f"m-{name}", "n1"] = cloud.allocations.pop((name, "n1"))
    yield
    cloud.claim_on("n2", name)
    yield
    cloud.mirror("n1")
    cloud.mirror("n2")
    yield
    cloud.migration(name, "h2", "node-n2", source="h1")
    yield
    cloud.counted["n2"].add(name)
    cloud.instance(name, "h2", "node-n2")
    yield
    cloud.report("n2")
    yield
    cloud.leave("n1", name)
    yield
    cloud.migration(name, status=None)
    yield
    del cloud.allocations[f"m-{name}", "n1"]
    cloud.mirror("n1")


class SideBySideTest(testtools.TestCase):
    def test_a_server_that_moves_away_is_not_taken_for_one_that_just_came(self):
        cloud = Cloud()
        stays, moves = stay(cloud, "x0"), move(cloud, "x1")
        next(stays)
        cloud.check(full=False)
        # Claimed; the other is counted there, and its instance is elsewhere already.
        for _ in range(10):
            next(moves)
            cloud.check(full=False)
        for _ in stays:
            cloud.check(full=False)
        for _ in moves:
            cloud.check(full=False)
        cloud.check_quiet()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        ways=st.lists(st.sampled_from([stay, go, fail, move]), min_size=1, max_size=4),
        turns=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60),
    )
    def test_servers_on_their_ways_are_each_counted_and_leave_nothing(self, ways, turns):
        cloud = Cloud()
        left = {number: way(cloud, f"x{number}") for number, way in enumerate(ways)}
        for number, reports in [*turns, *((n, False) for n in range(len(ways)) for _ in range(20))]:
            if number in left and next(left[number], self) is self:
                del left[number]
            if reports:
                # Of whatever a compute counts by now.
                cloud.report("n1")
            cloud.check(full=False)
        self.assertEqual({}, left)
        cloud.check_quiet()
