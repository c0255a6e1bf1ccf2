# SPDX-License-Identifier: Apache-2.0
"""Whether claims fit beside what is shown and what is claimed."""

import json

import attrs
import testtools

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.reservations import claim_fit
from tests.unit.scheduling import claims, hosts
from tests.unit.scheduling.claims import SMALL, held, instance, migration

NODES, PROVIDERS = known_namespaces.COMPUTE_NODES, known_namespaces.PROVIDERS
INSTANCES, MIGRATIONS = known_namespaces.INSTANCES, known_namespaces.MIGRATIONS
NUMBERS = ("NumInstancesFilter", "IoOpsFilter")


class FitsTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.hosts = hosts.Hosts()
        self.hosts.host()
        self.aggregates = ()

    def report(self, instances=2, busy=1, uuid="n1", host="h1"):
        stats = json.dumps({"num_instances": str(instances), "io_workload": str(busy)})
        self.hosts.put(NODES, uuid, hosts.node(uuid, host, stats=stats))

    def allocate(self, **by_consumer):
        inventories = {"VCPU": hosts.inventory(4), "MEMORY_MB": hosts.inventory(4096)}
        state = hosts.provider(2, allocations=by_consumer, inventories=inventories)
        self.hosts.put(PROVIDERS, "n1", state)

    def fits(self, others=None, *, enabled=(), node=SMALL, consumer="me", fitted=None, **resources):
        settings = decision_settings.SchedulingOptions(
            enabled_filters=enabled, max_instances_per_host=4, max_io_ops_per_host=4
        )
        fits = claim_fit.make_fits(
            self.hosts.store.snapshot(),
            claim_fit.InstanceLimits.of(settings),
            lambda uuid: self.aggregates,
            fitted or claim_fit.fits_anything,
        )
        claim = model.Claim(consumer, "n1", resources or {"VCPU": 1}, node=node)
        return fits(claim, model.ClaimRecord("n1", others or {}))

    def test_the_last_room_is_granted_and_no_more(self):
        self.allocate(other={"VCPU": 2})

        self.assertTrue(self.fits(VCPU=2))
        self.assertFalse(self.fits(VCPU=3))
        self.assertFalse(self.fits({"x": held(VCPU=1)}, VCPU=2))

    def test_a_claim_that_is_shown_counts_once(self):
        self.allocate(x={"VCPU": 1})

        self.assertTrue(self.fits({"x": held(VCPU=1)}, VCPU=3))
        self.assertFalse(self.fits({"x": held(VCPU=2)}, VCPU=3))

    def test_a_server_resized_on_its_host_counts_old_and_new_until_the_migration_is_shown(self):
        stays = model.NodeShare(vcpus=2, memory_mb=512, io_operations=1)
        self.allocate(x={"VCPU": 1})
        self.assertFalse(self.fits({"x": held(stays, VCPU=2)}, VCPU=2))

        self.hosts.put(MIGRATIONS, f"m-x@{hosts.CELL}", migration("x"))
        self.allocate(**{"x": {"VCPU": 2}, "m-x": {"VCPU": 1}})
        confirmed = held(stays, model.ClaimState.CONFIRMED, VCPU=2)
        self.assertTrue(self.fits({"x": confirmed}, VCPU=1))
        self.assertFalse(self.fits({"x": confirmed}, VCPU=2))

    def test_so_does_one_that_shrinks_there_or_keeps_its_size(self):
        for before, after in ((2, 1), (1, 1)):
            stays = model.NodeShare(vcpus=after, memory_mb=512, io_operations=1)
            pending = held(stays, VCPU=after)
            confirmed = held(stays, model.ClaimState.CONFIRMED, VCPU=after)
            left = 4 - before - after
            # Its migration has the old one already, and the mirror is behind.
            self.allocate(x={"VCPU": before})
            self.assertTrue(self.fits({"x": pending}, VCPU=left), (before, after))
            self.assertFalse(self.fits({"x": pending}, VCPU=left + 1), (before, after))
            self.hosts.put(MIGRATIONS, f"m-x@{hosts.CELL}", migration("x"))
            if before == after:
                # Confirmed, and the mirror behind still.
                self.assertTrue(self.fits({"x": confirmed}, VCPU=left), (before, after))
                self.assertFalse(self.fits({"x": confirmed}, VCPU=left + 1), (before, after))
            self.allocate(**{"x": {"VCPU": after}, "m-x": {"VCPU": before}})
            self.assertTrue(self.fits({"x": confirmed}, VCPU=left), (before, after))
            self.assertFalse(self.fits({"x": confirmed}, VCPU=left + 1), (before, after))

            self.allocate(me={"VCPU": before}, other={"VCPU": 4 - before})
            self.assertFalse(self.fits(node=stays, VCPU=after), (before, after))
            self.allocate(me={"VCPU": before}, other={"VCPU": left})
            self.assertTrue(self.fits(node=stays, VCPU=after), (before, after))

    def test_the_claimer_s_own_allocation_counts_once(self):
        self.allocate(me={"VCPU": 2}, other={"VCPU": 2})

        self.assertTrue(self.fits(VCPU=2))

    def test_an_own_allocation_that_may_have_gone_back_takes_nobody_s_place(self):
        # It was written late, taken back, and is still shown; others claimed its place.
        self.allocate(me={"VCPU": 1}, a={"VCPU": 1}, b={"VCPU": 1})

        self.assertTrue(self.fits({"c": held(VCPU=1)}, VCPU=1))
        self.assertFalse(self.fits({"c": held(VCPU=1), "d": held(VCPU=1)}, VCPU=1))

    def test_each_class_must_have_room(self):
        self.allocate()

        self.assertFalse(self.fits(VCPU=1, MEMORY_MB=5000))
        self.assertFalse(self.fits(VCPU=1, CUSTOM_GOLD=1))

    def test_what_placement_alone_can_tell_is_left_to_it(self):
        self.hosts.put(PROVIDERS, "n1", None)

        self.assertTrue(self.fits(VCPU=1000))

    def test_servers_on_their_way_count_against_the_bounds(self):
        for name, value in (("instances", 3), ("busy", 3)):
            self.report(**{name: value})
            self.assertTrue(self.fits(enabled=NUMBERS), name)
            self.assertFalse(self.fits({"x": held()}, enabled=NUMBERS), name)
            self.assertTrue(self.fits({"x": held()}), name)

    def test_aggregates_set_bounds_where_their_filter_is_enabled(self):
        self.aggregates = (
            host_facts.HostAggregate("a", 1, metadata={"max_instances_per_host": "3"}),
        )
        self.assertTrue(self.fits({"x": held()}, enabled=NUMBERS))
        self.assertFalse(self.fits({"x": held()}, enabled=("AggregateNumInstancesFilter",)))
        self.aggregates = (
            host_facts.HostAggregate("a", 1, metadata={"max_instances_per_host": "9"}),
        )
        others = {"x": held(), "y": held()}
        self.assertTrue(self.fits(others, enabled=("AggregateNumInstancesFilter",)))
        both = ("AggregateNumInstancesFilter", *NUMBERS)
        self.assertFalse(self.fits(others, enabled=both))
        self.aggregates = (
            host_facts.HostAggregate("a", 1, metadata={"max_instances_per_host": "many"}),
        )
        self.assertFalse(self.fits(others, enabled=("AggregateNumInstancesFilter",)))

    def stand(self, *names):
        for name in names:
            self.hosts.put(INSTANCES, f"{name}@{hosts.CELL}", instance(name))

    def test_a_server_counts_as_the_node_s_once_the_node_was_reported_after_it(self):
        others = {"x": held()}
        self.stand("a", "b", "x")
        self.report(instances=2)
        self.assertTrue(self.fits(others, enabled=NUMBERS))
        self.stand("y")
        self.assertFalse(self.fits({**others, "y": held()}, enabled=NUMBERS))

        self.report(instances=3)
        self.assertFalse(self.fits({**others, "y": held()}, enabled=NUMBERS))
        self.hosts.put(INSTANCES, f"y@{hosts.CELL}", None)
        self.report(instances=3)
        self.assertTrue(self.fits(others, enabled=NUMBERS))

    def test_a_node_that_counts_as_many_as_there_are_counts_each_of_them(self):
        self.report(instances=3)
        self.stand("a", "b", "x")
        self.assertTrue(self.fits({"x": held()}, enabled=NUMBERS))
        self.stand("c")
        self.assertFalse(self.fits({"x": held()}, enabled=NUMBERS))

    def test_a_node_reported_before_the_claim_counts_whoever_just_went_in_its_place(self):
        self.stand("a", "b", "went")
        self.report(instances=3)
        confirmed_by = self.hosts.version
        self.hosts.put(INSTANCES, f"went@{hosts.CELL}", None)
        self.stand("x")
        share = model.NodeShare(instances=1, fitted={"pci": 1})
        claim = attrs.evolve(held(share, model.ClaimState.CONFIRMED), confirmed_by=confirmed_by)
        seen = []
        fitted = lambda uuid, wanted, others: seen.append(dict(others)) or True  # noqa: E731
        self.assertFalse(self.fits({"x": claim, "y": held()}, enabled=NUMBERS))
        self.fits({"x": claim}, node=share, fitted=fitted)
        # The same where the record of claims alone tells when it was confirmed.
        confirmed = attrs.evolve(claim, confirmed_by=None)
        record = claims.record("n1", {"x": confirmed})
        self.hosts.put(known_namespaces.CLAIM_RECORDS, "n1", record)
        seen.append(claim_fit.unreported_usage_of(self.hosts.store.snapshot(), "n1").fitted)

        # Reported since, it counts as many as there are.
        self.report(instances=3)
        self.stand("x")
        self.fits({"x": claim}, node=share, fitted=fitted)
        seen.append(claim_fit.unreported_usage_of(self.hosts.store.snapshot(), "n1").fitted)
        self.assertEqual([{"x": {"pci": 1}}, {"x": {"pci": 1}}, {}, {}], seen)

    def test_what_is_confirmed_by_a_write_under_way_counts_beside_a_node_of_before(self):
        self.stand("a", "b", "went")
        self.report(instances=3)
        self.hosts.put(INSTANCES, f"went@{hosts.CELL}", None)
        self.stand("x")
        # Others of this process confirm it, or take it anew, in the same compare-and-set.
        claim = held(model.NodeShare(instances=1), model.ClaimState.CONFIRMED)
        self.assertIsNone(claim.confirmed_by)
        self.assertFalse(self.fits({"x": claim}, enabled=NUMBERS))

    def test_what_is_fitted_is_counted_as_the_server_is(self):
        seen = []
        share = model.NodeShare(instances=1, fitted={"numa": 1})
        for reported in (0, 1):
            self.stand("x")
            self.report(instances=reported)
            self.fits(
                {"x": held(share)},
                node=share,
                fitted=lambda uuid, wanted, others: seen.append(dict(others)) or True,
            )
        self.assertEqual([{"x": {"numa": 1}}, {}], seen)

    def test_devices_of_a_server_resized_on_its_host_count_until_its_migration_is_counted(self):
        seen = []
        share = model.NodeShare(instances=1, fitted={"pci": 1})
        stays = model.NodeShare(vcpus=1, memory_mb=512, io_operations=1, fitted={"pci": 2})

        def ask():
            self.fits(
                {"x": held(stays)},
                node=share,
                fitted=lambda uuid, wanted, others: seen.append(dict(others)) or True,
            )

        # It has that size already: other devices are all it is to get.
        self.hosts.put(INSTANCES, f"x@{hosts.CELL}", instance("x", vcpus=1, memory_mb=512))
        self.report(instances=1)
        ask()
        self.hosts.put(MIGRATIONS, f"m-x@{hosts.CELL}", migration("x"))
        self.report(instances=1)
        ask()
        self.assertEqual([{"x": {"pci": 2}}, {}], seen)

    def test_a_node_that_counts_fewer_than_it_should_was_read_too_early(self):
        self.hosts.put(INSTANCES, f"x@{hosts.CELL}", instance("x"))
        for number in (1, 2, 3):
            self.hosts.put(INSTANCES, f"i{number}@{hosts.CELL}", instance(f"i{number}"))
        self.report(instances=3)
        self.assertFalse(self.fits({"x": held()}, enabled=NUMBERS))

    def test_an_instance_on_another_host_node_or_cell_is_not_counted(self):
        self.report(instances=3)
        for where in (
            {"host": "h2"},
            {"node": "another"},
            {"cell": hosts.OTHER_CELL},
        ):
            record = instance("x", **where)
            self.hosts.put(INSTANCES, f"x@{record['cell']}", record)
            self.report(instances=3)
            self.assertFalse(self.fits({"x": held()}, enabled=NUMBERS), where)
            self.hosts.put(INSTANCES, f"x@{record['cell']}", None)

    def test_what_is_fitted_is_asked_beside_others_that_the_node_does_not_count(self):
        seen = []

        def fitted(uuid, wanted, others):
            seen.append((uuid, dict(wanted), dict(others)))
            return False

        share = model.NodeShare(instances=1, fitted={"numa": 1})
        others = {"x": held(model.NodeShare(instances=1, fitted={"numa": 2})), "y": held()}
        self.assertFalse(self.fits(others, node=share, fitted=fitted))
        self.assertTrue(self.fits(others, fitted=fitted))
        self.hosts.put(MIGRATIONS, f"m-x@{hosts.CELL}", migration("x"))
        self.report()
        self.assertFalse(self.fits(others, node=share, fitted=fitted))
        self.assertEqual([("n1", {"numa": 1}, {"x": {"numa": 2}}), ("n1", {"numa": 1}, {})], seen)

    def test_a_move_that_is_coming_is_no_instance_yet(self):
        self.report(instances=3)
        self.hosts.put(MIGRATIONS, f"m-x@{hosts.CELL}", migration("x"))
        self.report(instances=3)

        self.assertFalse(self.fits({"x": held()}, enabled=NUMBERS))

    def test_a_row_of_before_the_move_that_another_published_behind_it_counts_no_move(self):
        seen = []

        def fitted(uuid, wanted, others):
            seen.append(set(others))
            return True

        share = model.NodeShare(instances=1, fitted={"numa": 1})
        others = {"x": held(model.NodeShare(instances=1, fitted={"numa": 2}))}
        moves = migration("x")
        moves["row"]["updated_at"] = "2026-11-28T20:00:10"
        # Of the same second it is the save that follows the migration's, as a rule.
        for at in ("2026-11-28T20:00:09.999999", "2026-11-28T20:00:10"):
            self.hosts.put(MIGRATIONS, f"m-x@{hosts.CELL}", moves)
            self.hosts.put(NODES, "n1", hosts.node("n1", "h1", updated_at=at))
            self.fits(others, node=share, fitted=fitted)
        self.assertEqual([{"x"}, set()], seen)

    def test_a_node_nobody_knows_takes_nothing(self):
        self.hosts.put(NODES, "n1", None)

        self.assertFalse(self.fits(VCPU=1))
