# SPDX-License-Identifier: Apache-2.0
"""The frame follows the store: what changed, and only that."""

from unittest import mock

import attrs
import testtools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.reservations import host_reservations
from tests.unit.scheduling import claims, hosts

NODES, SERVICES = known_namespaces.COMPUTE_NODES, known_namespaces.SERVICES
LIVENESS, AGGREGATES = known_namespaces.SERVICE_LIVENESS, known_namespaces.AGGREGATES
PROVIDERS, INSTANCES = known_namespaces.PROVIDERS, known_namespaces.INSTANCES
CLAIMS, MIGRATIONS = known_namespaces.CLAIM_RECORDS, known_namespaces.MIGRATIONS


class FrameKeeperTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.hosts = hosts.Hosts()
        self.keeper, self.feed = self.hosts.keeper()

    def catch_up(self, now=100.0):
        """Catch up; return what was fed."""
        self.feed.fed.clear()
        self.keeper.catch_up(now)
        return self.feed.fed

    def facts(self, uuid="n1"):
        frame = self.feed.frame
        return frame.facts(frame.row_of(uuid))

    def test_a_second_call_without_changes_feeds_nothing(self):
        self.hosts.host()
        self.catch_up()

        self.assertEqual([], self.catch_up())

    def test_a_host_is_made_of_its_node_service_liveness_and_provider(self):
        self.hosts.host()
        self.catch_up()

        facts = self.facts()
        self.assertEqual((hosts.CELL, "h1", "node-n1"), (facts.cell, facts.host, facts.node))
        self.assertEqual(900 * 1024, facts.free_disk_mb)
        self.assertEqual((2, 1), (facts.num_instances, facts.num_io_ops))
        self.assertEqual(1.0, facts.disk_allocation_ratio)
        self.assertTrue(facts.has_service)
        self.assertEqual(60.0, facts.last_seen_seconds)
        self.assertEqual({"VCPU": 2, "MEMORY_MB": 2048}, facts.provider.used)
        self.assertTrue(self.feed.frame.up[self.feed.frame.row_of("n1")])

    def test_a_heartbeat_makes_no_host_anew_and_moves_its_time_alone(self):
        self.hosts.host("n1", "h1")
        self.hosts.host("n2", "h2")
        self.catch_up()
        self.hosts.put(LIVENESS, "s-n1", hosts.liveness(90))

        frame = self.feed.frame
        self.assertEqual([], self.catch_up(130.0))
        self.assertEqual(90.0, frame.last_seen_seconds[frame.row_of("n1")])
        self.assertEqual([True, False], [bool(frame.up[frame.row_of(n)]) for n in ("n1", "n2")])

    def test_a_heartbeat_survives_a_change_of_another_record_of_its_host(self):
        self.hosts.host()
        self.catch_up()
        self.hosts.put(LIVENESS, "s-n1", hosts.liveness(90))
        self.catch_up()
        self.hosts.put(PROVIDERS, "n1", hosts.provider(2))
        self.catch_up()

        self.assertEqual(90.0, self.facts().last_seen_seconds)

    def test_a_heartbeat_decodes_nothing(self):
        self.hosts.host()
        self.catch_up()
        self.feed.frame.attribute("cpu_info")
        self.hosts.put(LIVENESS, "s-n1", hosts.liveness(90))
        before = self.hosts.decoded
        self.catch_up()

        self.assertEqual(before, self.hosts.decoded)

    def test_a_service_that_never_beat_lives_since_its_creation(self):
        self.hosts.host()
        self.hosts.put(LIVENESS, "s-n1", None)
        self.catch_up()

        self.assertEqual(10.0, self.facts().last_seen_seconds)

    def test_a_service_that_moves_leaves_its_former_host_without(self):
        self.hosts.host("n1", "h1")
        self.hosts.put(NODES, "n2", hosts.node("n2", "h2"))
        self.catch_up()
        self.hosts.put(SERVICES, "s-n1", hosts.service("s-n1", "h2"))
        self.catch_up()

        self.assertFalse(self.facts("n1").has_service)
        self.assertTrue(self.facts("n2").has_service)

    def test_services_of_another_binary_do_not_count(self):
        self.hosts.put(NODES, "n1", hosts.node("n1"))
        self.hosts.put(SERVICES, "s", hosts.service("s", binary="nova-conductor"))
        self.catch_up()

        self.assertFalse(self.facts().has_service)

    def test_hosts_of_one_name_in_two_cells_have_services_of_their_own(self):
        self.hosts.host("n1", "h1", hosts.CELL)
        self.hosts.put(NODES, "n2", hosts.node("n2", "h1", hosts.OTHER_CELL))
        self.catch_up()

        self.assertTrue(self.facts("n1").has_service)
        self.assertFalse(self.facts("n2").has_service)

    def test_an_aggregate_touches_hosts_that_join_and_leave_it_and_not_those_that_stay(self):
        for number in (1, 2, 3):
            self.hosts.host(f"n{number}", f"h{number}")
        self.hosts.put(AGGREGATES, "b", hosts.aggregate("b", 2, ["h1", "h2"]))
        self.catch_up()
        self.hosts.put(AGGREGATES, "b", hosts.aggregate("b", 2, ["h2", "h3"], zone="z"))

        self.assertEqual(["aggregates", "n1", "n3"], sorted(self.catch_up()))
        self.assertEqual([(), ("b",), ("b",)], [self.facts(f"n{n}").aggregates for n in (1, 2, 3)])
        self.assertEqual({"zone": "z"}, self.feed.frame.aggregates["b"].metadata)

    def test_aggregates_of_a_host_stand_in_the_order_of_their_ids(self):
        self.hosts.host()
        self.hosts.put(AGGREGATES, "a", hosts.aggregate("a", 9, ["h1"]))
        self.catch_up()
        self.hosts.put(AGGREGATES, "b", hosts.aggregate("b", 2, ["h1"]))
        self.catch_up()

        self.assertEqual(("b", "a"), self.facts().aggregates)

    def test_a_node_that_goes_is_removed_and_the_service_stays_for_the_next(self):
        self.hosts.host()
        self.catch_up()
        self.hosts.put(NODES, "n1", None)
        self.catch_up()
        self.assertIsNone(self.feed.frame.row_of("n1"))
        self.hosts.put(NODES, "n9", hosts.node("n9"))
        self.catch_up()

        self.assertTrue(self.facts("n9").has_service)

    def test_an_instance_feeds_nothing_and_is_located_in_each_cell(self):
        self.hosts.host()
        self.catch_up()
        for cell, host in ((hosts.CELL, "h1"), (hosts.OTHER_CELL, "h7")):
            self.hosts.put(INSTANCES, f"i@{cell}", {"cell": cell, "row": {"host": host}})

        self.assertEqual([], self.catch_up())
        self.assertEqual({self.feed.frame.row_of("n1"): 1}, self.feed.frame.instance_counts(["i"]))

    def test_an_attribute_follows_its_node(self):
        self.hosts.host()
        self.catch_up()
        column = self.feed.frame.attribute("stats", "io_workload")
        row = self.feed.frame.row_of("n1")
        self.assertEqual("1", column.values[column.codes[row]])
        self.hosts.put(NODES, "n1", hosts.node("n1", stats='{"io_workload": 5}'))
        self.catch_up()

        self.assertEqual("5", column.values[column.codes[row]])

    def test_a_host_that_cannot_be_understood_is_left_out_with_the_reason(self):
        self.hosts.host("n1", "h1")
        self.hosts.host("n2", "h2")
        self.catch_up()
        state = hosts.node("n1")
        del state["row"]["vcpus"]
        self.hosts.put(NODES, "n1", state)
        self.catch_up()

        self.assertIsNone(self.feed.frame.row_of("n1"))
        self.assertIsNotNone(self.feed.frame.row_of("n2"))
        self.assertIn("compute_nodes/n1, field row.vcpus", self.keeper.unreadable["n1"])

        self.hosts.put(NODES, "n1", hosts.node("n1"))
        self.catch_up()
        self.assertEqual({}, self.keeper.unreadable)
        self.assertTrue(self.facts("n1").has_service)

    def test_a_host_whose_allocation_ratio_is_no_number_is_left_out_with_the_reason(self):
        self.hosts.host("n2", "h2")
        for name in ("cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio"):
            for ratio in ("nan", "inf", "-inf", 1e308):
                self.hosts.host("n1", "h1")
                self.hosts.put(NODES, "n1", hosts.node("n1", **{name: ratio}))
                self.catch_up()

                self.assertIsNone(self.feed.frame.row_of("n1"), (name, ratio))
                self.assertIsNotNone(self.feed.frame.row_of("n2"))
                why = self.keeper.unreadable["n1"]
                self.assertIn(f"compute_nodes/n1, field row.{name}", why)
        # One that says nothing has the configured one's.
        for ratio in (None, 0.0, 16.0):
            self.hosts.put(NODES, "n1", hosts.node("n1", cpu_allocation_ratio=ratio))
            self.catch_up()
            self.assertEqual({}, self.keeper.unreadable)

    def test_another_major_version_of_novas_object_is_not_understood(self):
        self.hosts.put(NODES, "n1", hosts.node("n1", object_version="2.0"))
        self.hosts.host("n2", "h2")
        self.hosts.put(SERVICES, "s-n2", hosts.service("s-n2", "h2", object_version="2.0"))
        self.hosts.host("n3", "h3")
        self.hosts.put(AGGREGATES, "a", hosts.aggregate("a", 1, ["h3"], object_version="2.0"))
        self.catch_up()

        self.assertEqual(0, len(self.feed.frame))
        self.assertEqual({"n1", "n2", "n3", "a"}, set(self.keeper.unreadable))
        for reason in self.keeper.unreadable.values():
            self.assertIn("object_version", reason)

        self.hosts.put(SERVICES, "s-n2", hosts.service("s-n2", "h2"))
        self.hosts.put(AGGREGATES, "a", hosts.aggregate("a", 1, ["h3"]))
        self.catch_up()
        self.assertEqual({"n1"}, set(self.keeper.unreadable))
        self.assertEqual(("a",), self.facts("n3").aggregates)

    def test_instances_that_are_no_texts_leave_their_host_out_and_no_other(self):
        self.hosts.host("n1", "h1")
        self.feed.frame.attribute("supported_instances")
        for text in ('[[["x86_64"], "kvm", "hvm"]]', '[["x86_64", {"kvm": 1}, "hvm"]]'):
            self.hosts.put(NODES, "n2", hosts.node("n2", "h2", supported_instances=text))
            self.catch_up()
            self.assertEqual({"n2"}, set(self.keeper.unreadable))
            self.assertEqual(1, len(self.feed.frame))

    def test_what_should_be_a_text_and_is_none_stops_no_other_host(self):
        self.hosts.host("n1", "h1")
        for path in ("cpu_info", "host_ip", "updated"):
            self.feed.frame.attribute(path)
        for wrong in ([], ["x"], {}, {"x": 1}):
            node = hosts.node("n2", "h2", cpu_info=wrong, host_ip=wrong, updated_at=wrong)
            self.hosts.put(NODES, "n2", node)
            self.hosts.put(NODES, "n1", hosts.node("n1", free_ram_mb=1 + len(repr(wrong))))
            self.catch_up()
            frame = self.feed.frame
            self.assertEqual(1 + len(repr(wrong)), self.facts("n1").free_ram_mb)
            for path in ("cpu_info", "host_ip", "updated"):
                self.assertIsNone(frame.attribute(path).value(frame.row_of("n2")))

    def test_topologies_that_are_no_texts_are_for_novas_own_code_and_stop_no_request(self):
        self.hosts.host("n1", "h1")
        for numa, pools in (({}, []), ({"x": 1}, ["x"])):
            self.hosts.put(NODES, "n1", hosts.node("n1", numa_topology=numa, pci_stats=pools))
            self.catch_up()
            self.feed.frame.read_topologies()
            row = self.feed.frame.row_of("n1")
            # What is empty is none to Nova, too.
            known = self.feed.frame.topologies.cells.known[row]
            self.assertEqual(not numa, bool(known))

    def test_an_aggregate_whose_hosts_are_none_is_told_of_and_leaves_all_hosts_in(self):
        self.hosts.host()
        state = hosts.aggregate("a", 1, ["h1"])
        state["row"]["hosts"] = None
        self.hosts.put(AGGREGATES, "a", state)
        self.catch_up()
        self.assertEqual((1, ["a"]), (len(self.feed.frame), list(self.keeper.unreadable)))

    def test_a_provider_that_breaks_the_model_leaves_its_host_in(self):
        self.hosts.host()
        for broken in (
            {"inventories": {"VCPU": hosts.inventory(-1)}},
            {"inventories": {"vcpu?": hosts.inventory(1)}},
            {"children": {"x": {"parent": "y", "inventories": {}}}},
            {"children": {"x": {"parent": ["y"], "inventories": {}}}},
            # Found by a history: 2^63 as the product of floats.
            {"inventories": {"VCPU": hosts.inventory(2**63 - 512)}},
            {"inventories": {"VCPU": hosts.inventory(1, allocation_ratio=1e30)}},
            {"inventories": {"VCPU": hosts.inventory(16, allocation_ratio=1e308)}},
            {"inventories": {"VCPU": hosts.inventory(1, allocation_ratio="inf")}},
            {"inventories": {"VCPU": hosts.inventory(1, allocation_ratio="nan")}},
            {"allocations": None},
            {"allocations": {"a": {"VCPU": 2**62}, "b": {"VCPU": 2**62}}},
            {"broken": "why"},
        ):
            self.hosts.put(PROVIDERS, "n1", hosts.provider(**broken))
            self.catch_up()
            self.assertIsNotNone(self.facts().provider.broken)
        self.hosts.put(PROVIDERS, "n1", None)
        self.catch_up()
        self.assertIsNone(self.facts().provider)

    def test_children_tell_nested_classes_and_the_tree(self):
        self.hosts.host()
        child = {"parent": "n1", "inventories": {"VGPU": hosts.inventory(2)}, "generation": 1}
        self.hosts.put(PROVIDERS, "n1", hosts.provider(children={"gpu": child}))
        self.catch_up()

        self.assertEqual({"VGPU"}, self.facts().provider.nested)
        self.assertEqual({"n1", "gpu"}, self.facts().provider.tree)

    def test_roots_that_share_and_are_no_hosts_are_known(self):
        sharing = hosts.provider(
            traits=["MISC_SHARES_VIA_AGGREGATE"], inventories={"DISK_GB": hosts.inventory(9)}
        )
        self.hosts.put(PROVIDERS, "pool", sharing)
        self.catch_up()
        self.assertEqual({"pool": frozenset({"DISK_GB"})}, self.feed.frame.sharing)

        self.hosts.put(NODES, "pool", hosts.node("pool"))
        self.catch_up()
        self.assertEqual({}, self.feed.frame.sharing)
        self.hosts.put(NODES, "pool", None)
        self.catch_up()
        self.assertEqual({"pool": frozenset({"DISK_GB"})}, self.feed.frame.sharing)
        self.hosts.put(PROVIDERS, "pool", hosts.provider())
        self.catch_up()
        self.assertEqual({}, self.feed.frame.sharing)

    def test_what_is_promised_counts_as_used_until_the_record_shows_it(self):
        clock = [0.0]
        promised = host_reservations.Reservations(lambda: clock[0])
        self.keeper, self.feed = self.hosts.keeper(reservations=promised)
        self.hosts.host()
        promised.reserve("new", "n1", {"VCPU": 4}, 1)
        self.catch_up()
        self.assertEqual({"VCPU": 6, "MEMORY_MB": 2048}, self.facts().provider.used)

        self.hosts.put(PROVIDERS, "n1", hosts.provider(2, allocations={"new": {"VCPU": 4}}))
        self.catch_up()
        self.assertEqual({"VCPU": 4}, self.facts().provider.used)

        promised.reserve("lost", "n1", {"VCPU": 1}, 2)
        self.hosts.put(PROVIDERS, "n1", hosts.provider(3, allocations={}))
        self.catch_up()
        self.assertEqual({"VCPU": 1}, self.facts().provider.used)
        clock[0] = 1e9
        self.catch_up()
        self.assertEqual({}, self.facts().provider.used)

    def test_a_claim_changes_the_numbers_of_its_host_and_makes_it_not_anew(self):
        self.hosts.host()
        self.catch_up()
        before, pages = self.facts(), self.feed.pages
        self.hosts.put(CLAIMS, "n1", claims.record("n1", {"x": claims.held(VCPU=1)}))

        self.assertEqual(["n1"], self.catch_up())
        self.assertEqual(pages, self.feed.pages)
        after = self.facts()
        self.assertEqual((1, 512), (after.vcpus_used - before.vcpus_used, self.taken(before)))
        self.assertEqual(3, after.provider.used["VCPU"])
        self.hosts.put(CLAIMS, "n1", claims.record("n1", {}))
        self.catch_up()
        self.assertEqual(before, self.facts())

    def taken(self, before):
        return before.free_ram_mb - self.facts().free_ram_mb

    def test_a_claim_with_a_report_of_its_node_counts_by_both(self):
        self.hosts.host()
        self.catch_up()
        self.hosts.put(CLAIMS, "n1", claims.record("n1", {"x": claims.held(VCPU=1)}))
        self.hosts.put(NODES, "n1", hosts.node("n1", vcpus_used=7))
        self.catch_up()

        self.assertEqual(8, self.facts().vcpus_used)

    def test_a_claim_on_a_node_that_never_reported_counts_for_its_provider_alone(self):
        self.hosts.host()
        self.hosts.put(NODES, "n1", hosts.node("n1", free_disk_gb=None))
        self.catch_up()
        before = self.facts()
        self.hosts.put(CLAIMS, "n1", claims.record("n1", {"x": claims.held(VCPU=1)}))
        self.catch_up()

        after = self.facts()
        self.assertEqual((0, 0), (after.vcpus_used, self.taken(before)))
        self.assertEqual(3, after.provider.used["VCPU"])

    def test_a_promise_that_lapses_gives_back_what_was_counted_in_the_columns(self):
        clock = [0.0]
        promised = host_reservations.Reservations(lambda: clock[0])
        self.keeper, self.feed = self.hosts.keeper(reservations=promised)
        self.hosts.host()
        self.catch_up()
        frame = self.feed.frame
        row = frame.row_of("n1")
        promised.reserve("never written", "n1", {"VCPU": 4}, 1)
        frame.use(row, {"VCPU": 4})
        self.assertEqual(6, frame.resource("VCPU").used.item(row))

        clock[0] = 1e9
        self.catch_up()
        self.assertEqual(2, frame.resource("VCPU").used.item(row))

    def test_a_promise_lapses_where_everything_is_read_anew_too(self):
        clock = [0.0]
        promised = host_reservations.Reservations(lambda: clock[0])
        self.keeper, self.feed = self.hosts.keeper(reservations=promised, most_keys=1)
        self.hosts.host()
        self.catch_up()
        frame = self.feed.frame
        row = frame.row_of("n1")
        promised.reserve("never written", "n1", {"VCPU": 4}, 1)
        frame.use(row, {"VCPU": 4})

        clock[0] = 1e9
        # More than are looked at one by one.
        for name in "abc":
            self.hosts.put(AGGREGATES, name, hosts.aggregate(name, 1, []))
        self.catch_up()
        self.assertEqual(2, frame.resource("VCPU").used.item(row))

    def test_a_catch_up_that_failed_half_way_begins_anew(self):
        self.hosts.host()

        class NoMore(Exception):
            pass

        def fail(now_seconds):
            raise NoMore

        tick, self.feed.tick = self.feed.tick, fail
        self.assertRaises(NoMore, self.keeper.catch_up, 100.0)
        self.feed.tick = tick

        self.assertIn("n1", self.catch_up())

    def test_what_changed_before_a_catch_up_that_got_no_snapshot_is_taken_by_the_next(self):
        self.hosts.host()
        self.catch_up()
        self.hosts.put(NODES, "n1", None)
        with mock.patch.object(
            self.hosts.store, "snapshot", autospec=True, side_effect=MemoryError
        ):
            self.assertRaises(MemoryError, self.keeper.catch_up, 100.0)
        self.catch_up()

        self.assertIsNone(self.feed.frame.row_of("n1"))

    def check_odd_claims_keep_out_one_host(self, count, **odd):
        for number in range(count):
            self.hosts.host(f"n{number}", f"h{number}")
        share = attrs.evolve(claims.SMALL, **odd)
        self.hosts.put(CLAIMS, "n0", claims.record("n0", {"x": claims.held(share)}))
        self.catch_up()
        self.assertEqual(count - 1, len(self.feed.frame))
        self.assertEqual(["n0"], list(self.keeper.unreadable))

        self.hosts.put(CLAIMS, "n0", None)
        self.catch_up()
        self.assertEqual(count, len(self.feed.frame))

    def test_claims_of_absurd_amounts_keep_out_one_of_few_hosts(self):
        self.check_odd_claims_keep_out_one_host(3, vcpus=2**63 - 1)

    def test_claims_of_absurd_amounts_keep_out_one_of_many_hosts(self):
        self.check_odd_claims_keep_out_one_host(19, vcpus=2**63 - 1)

    def test_claims_of_no_numbers_keep_out_one_host(self):
        self.check_odd_claims_keep_out_one_host(3, memory_mb="much")

    def test_claims_of_parts_of_numbers_keep_out_one_host(self):
        for name in ("vcpus", "memory_mb", "disk_gb", "instances", "io_operations"):
            self.check_odd_claims_keep_out_one_host(3, **{name: 1.5})

    def test_claims_beside_allocations_of_no_consumer_keep_out_one_host(self):
        self.hosts.put(PROVIDERS, "n0", hosts.provider(allocations={"x": "VCPU"}))
        for number in range(3):
            self.hosts.put(NODES, f"n{number}", hosts.node(f"n{number}", f"h{number}"))
        self.hosts.put(CLAIMS, "n0", claims.record("n0", {"x": claims.held(VCPU=1)}))
        self.catch_up()
        self.assertEqual(2, len(self.feed.frame))
        self.assertEqual(["n0"], list(self.keeper.unreadable))

    def check_claims_count_up_to_the_bounds_of_columns(self, count):
        for number in range(count):
            uuid, host = f"n{number}", f"h{number}"
            full = hosts.node(uuid, host, free_ram_mb=-(2**63), vcpus_used=2**63 - 1)
            self.hosts.put(NODES, uuid, full)
        self.hosts.put(CLAIMS, "n0", claims.record("n0", {"x": claims.held()}))
        self.catch_up()
        self.assertEqual(2**63 - 1, self.facts("n0").vcpus_used)
        self.assertEqual(-(2**63), self.facts("n0").free_ram_mb)

    def test_claims_count_up_to_the_bounds_of_columns_on_few_hosts(self):
        self.check_claims_count_up_to_the_bounds_of_columns(3)

    def test_claims_count_up_to_the_bounds_of_columns_on_many_hosts(self):
        self.check_claims_count_up_to_the_bounds_of_columns(19)


KEYS = st.sampled_from(["n1", "n2", "n3"])
HOST_NAMES = st.sampled_from(["h1", "h2"])
CELLS = st.sampled_from([hosts.CELL, hosts.OTHER_CELL])
CONSUMERS = st.sampled_from(["c", "x", "y"])
GONE = st.just(None)


def _write(namespace, keys, states):
    return st.tuples(st.just("put"), st.just(namespace), keys, GONE | states)


STEPS = st.one_of(
    st.tuples(st.just("catch up"), st.integers(50, 250)),
    st.tuples(st.just("begin epoch")),
    st.tuples(st.just("retain"), st.sampled_from([NODES, SERVICES, AGGREGATES, PROVIDERS]), KEYS),
    _write(
        NODES,
        KEYS,
        st.builds(
            lambda host, cell, version, vcpus, free_gb: (
                lambda key: hosts.node(
                    key, host, cell, object_version=version, vcpus=vcpus, free_disk_gb=free_gb
                )
            ),
            HOST_NAMES | st.just(None),
            CELLS,
            st.sampled_from(["1.19", "1.19", "2.0"]),
            st.sampled_from([0, 8, None]),
            # It never reported.
            st.sampled_from([990, 990, None]),
        ),
    ),
    _write(
        SERVICES,
        st.sampled_from(["s1", "s2", "s3"]),
        st.builds(
            lambda host, cell, disabled, version, binary: (
                lambda key: hosts.service(
                    key, host, cell, object_version=version, disabled=disabled, binary=binary
                )
            ),
            HOST_NAMES,
            CELLS,
            st.booleans(),
            st.sampled_from(["1.22", "1.22", "2.0"]),
            st.sampled_from(["nova-compute", "nova-compute", "nova-api"]),
        ),
    ),
    _write(
        LIVENESS,
        st.sampled_from(["s1", "s2", "s3"]),
        st.builds(lambda at: lambda key: hosts.liveness(at), st.integers(0, 250) | st.none()),
    ),
    _write(
        AGGREGATES,
        st.sampled_from(["a1", "a2"]),
        st.builds(
            lambda number, names, version, zone: (
                lambda key: hosts.aggregate(key, number, names, object_version=version, zone=zone)
            ),
            st.integers(1, 2),
            st.sets(HOST_NAMES),
            st.sampled_from(["1.3", "1.3", "2.0"]),
            st.sampled_from(["z1", "z2"]),
        ),
    ),
    _write(
        PROVIDERS,
        KEYS,
        st.builds(
            lambda generation, used, traits: (
                lambda key: hosts.provider(
                    generation, allocations={"c": {"VCPU": used}}, traits=traits
                )
            ),
            st.integers(1, 3),
            st.integers(0, 3),
            st.sampled_from([[], ["MISC_SHARES_VIA_AGGREGATE"]]),
        ),
    ),
    _write(
        CLAIMS,
        KEYS,
        st.builds(
            lambda amounts, state: (
                lambda key: claims.record(
                    key, {name: claims.held(VCPU=amount) for name, amount in amounts.items()}, state
                )
            ),
            st.dictionaries(CONSUMERS, st.integers(1, 3), max_size=2),
            st.sampled_from([{}, {}, {}, {"claims": "broken"}]),
        ),
    ),
    _write(
        INSTANCES,
        st.builds("{}@{}".format, CONSUMERS, CELLS),
        st.builds(
            lambda host, node: (
                lambda key: claims.instance(
                    key.split("@")[0], host, f"node-{node}", key.split("@")[1]
                )
            ),
            HOST_NAMES,
            KEYS,
        ),
    ),
    _write(
        MIGRATIONS,
        st.builds("m-{}@{}".format, CONSUMERS, CELLS),
        st.builds(
            lambda host, node, status: (
                lambda key: {
                    **claims.migration(key[2:].split("@")[0], host, f"node-{node}", status),
                    "cell": key.split("@")[1],
                }
            ),
            HOST_NAMES,
            KEYS,
            st.sampled_from(["accepted", "pre-migrating"]),
        ),
    ),
)


class HistoriesTest(testtools.TestCase):
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=st.lists(STEPS, max_size=40), most_keys=st.sampled_from([4, 65_536]))
    def test_any_history_ends_with_the_frame_built_from_scratch(self, steps, most_keys):
        cloud = hosts.Hosts()
        keeper, feed = cloud.keeper(most_keys=most_keys)
        for step in steps:
            if step[0] == "put":
                _, namespace, key, state = step
                cloud.put(namespace, key, state and state(key))
            elif step[0] == "catch up":
                keeper.catch_up(float(step[1]))
            elif step[0] == "retain":
                cloud.store.retain(step[1].name, [step[2]], cloud.version)
            else:
                cloud.store.begin_epoch()
        keeper.catch_up(150.0)
        fresh, fresh_feed = cloud.keeper()
        fresh.catch_up(150.0)

        self.assertEqual(hosts.described(fresh_feed.frame), hosts.described(feed.frame))
        self.assertEqual(fresh.unreadable, keeper.unreadable)
