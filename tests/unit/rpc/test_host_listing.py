# SPDX-License-Identifier: Apache-2.0
"""list_host_states from client to store and back, new and old releases beside one another."""

import itertools

import oslo_messaging
import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.rpc import api, client, endpoint, host_endpoint
from nova_nodb_scheduler.wire import objects
from tests.unit.rpc import cloud


def node(cell, number, host, **row):
    row = {"id": number, "host": host, "hypervisor_hostname": f"{host}.example", **row}
    return {"cell": cell, "object_version": "1.19", "row": row}


class ListingCase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(cloud.CloudFixture(page_size=2))
        self.client = self.cloud.client
        self.cloud.write(
            "compute_nodes",
            {
                "n1": node("c2", 1, "east-1", vcpus=4),
                "n2": node("c1", 7, "west-1", vcpus=8),
                "n3": node("c1", 2, "west-2", vcpus=16),
                "n4": node("c1", 3, "west-10", vcpus=4),
            },
        )
        self.cloud.write(
            "services",
            {"s1": {"cell": "c1", "row": {"host": "west-1", "binary": "nova-compute"}}},
        )

    def page(self, **query):
        return self.client.list_host_states({}, **query)

    def walk(self, **query):
        return [each.uuid for each in self.client.iterate_hosts({}, **query)]


class ToldTest(ListingCase):
    def test_of_a_record_is_told_what_others_say_of_it(self):
        self.cloud.write("service_liveness", {"s1": {"cell": "c1", "report_count": 1}})

        def tell(namespace, key, state):
            return {**state, "told": f"{namespace}/{key}"} if namespace != "services" else state

        self.cloud.tell = tell
        [listed] = self.page(keys=["n2"], namespaces=["services", "service_liveness"]).hosts
        states = {each.namespace: each.state for each in listed.related}
        self.assertEqual("service_liveness/s1", states["service_liveness"]["told"])
        self.assertNotIn("told", states["services"])
        [record] = self.client.get_host_states({}, "service_liveness").states
        self.assertEqual("service_liveness/s1", record.state["told"])


class ListTest(ListingCase):
    def test_all_pages_together_hold_every_host_in_novas_order(self):
        self.assertEqual(["n3", "n4", "n2", "n1"], self.walk())
        self.assertEqual(["n2", "n1"], self.walk(marker="n4"))

    def test_hosts_are_found_by_all_that_names_them(self):
        for query, expected in (
            ({"keys": ["n2", "gone"]}, ["n2"]),
            ({"ids": [1, 2]}, ["n3", "n1"]),
            ({"ids": [1], "cell": "c2"}, ["n1"]),
            ({"cell": "c1"}, ["n3", "n4", "n2"]),
            ({"host": "west-1"}, ["n2"]),
            ({"host": "west-1", "node": "west-1.example"}, ["n2"]),
            ({"host": "west-1", "node": "west-2.example"}, []),
            ({"node": "east-1.example"}, ["n1"]),
            ({"service": "s1"}, ["n2"]),
            ({"service": "s2"}, []),
            ({"search": "WEST-1"}, ["n4", "n2"]),
            ({"search": "st-_._x"}, ["n3", "n2", "n1"]),
            ({"search": "st", "predicate": [["vcpus", "==", 4]]}, ["n4", "n1"]),
        ):
            with self.subTest(query):
                self.assertEqual(expected, self.walk(**query))

    def test_a_host_comes_with_state_names_and_what_was_asked_for(self):
        [found] = self.page(host="west-1", namespaces=["services", "instances"]).hosts

        self.assertEqual(
            ("n2", 7, "c1", "west-1", "west-1.example"),
            (found.uuid, found.id, found.cell, found.host, found.node),
        )
        self.assertEqual(node("c1", 7, "west-1", vcpus=8), found.state)
        stored = self.cloud.store.snapshot().namespace("compute_nodes").get("n2")
        self.assertEqual((stored.revision, stored.version), (found.revision, found.version))
        [service] = found.related
        self.assertEqual(("services", "s1"), (service.namespace, service.key))
        self.assertEqual({"instances": 0}, found.counts)

    def test_a_page_says_how_current_it_is_and_whose(self):
        page = self.page(cell="c2")

        status = self.cloud.replicator.status()
        self.assertEqual((status.epoch, "sched1", "following"), self.says(page))
        self.assertEqual(self.cloud.synchronizer.head().version, page.version)
        self.assertIsInstance(page.proof_age_seconds, float)
        self.assertEqual([("c2", True)], [(each.scope, each.proved) for each in page.scopes])

    @staticmethod
    def says(page):
        return page.epoch, page.scheduler, page.scheduler_state

    def test_a_marker_that_was_deleted_is_an_error_that_says_what_to_do(self):
        page = self.page()
        self.cloud.write("compute_nodes", {"n5": node("c1", 9, "west-11")})
        self.delete("n4")

        error = self.assertRaises(errors.MarkerNotFound, self.page, marker="n4")
        self.assertEqual("n4", error.marker)
        self.assertIn("from the start", str(error))
        # A page's own marker is a place, and nothing is lost.
        self.assertEqual(["n2", "n5", "n1"], self.walk(marker=page.next_marker))

    def delete(self, key):
        self.cloud.publisher("nova").publish(
            {records.RecordKey("compute_nodes", key): lambda current: cloud.publisher.DELETE}
        )
        self.cloud.catch_up()

    def test_a_page_ends_where_its_bytes_do_and_the_walk_goes_on(self):
        small = self.useFixture(cloud.CloudFixture(page_size=100, page_bytes=2000))
        small.write(
            "compute_nodes",
            {f"n{number}": node("c1", number, "h", cpu_info="x" * 700) for number in range(9)},
        )

        page = small.client.list_host_states({})
        self.assertEqual(2, len(page.hosts))
        walked = [each.uuid for each in small.client.iterate_hosts({})]
        self.assertEqual([f"n{number}" for number in range(9)], walked)
        of_namespace = small.client.get_host_states({}, "compute_nodes")
        self.assertEqual((2, "n1"), (len(of_namespace.states), of_namespace.next_marker))
        walked = [each.key for each in small.client.iterate_host_states({}, "compute_nodes")]
        self.assertEqual([f"n{number}" for number in range(9)], walked)

    def test_the_longest_names_end_no_walk(self):
        longest = "\u4e3b" * 255
        self.cloud.write(
            "compute_nodes", {longest: node("c1", 99, longest), "n0": node("c1", 100, longest)}
        )

        self.assertEqual([longest, "n0", "n1"], self.walk(limit=1, marker="n2"))


class ProofTest(ListingCase):
    def test_a_worker_that_is_not_proved_lists_nothing_and_says_why(self):
        self.cloud.cells = [cloud.scope("c1"), cloud.scope("c2", "never swept in this epoch")]

        error = self.assertRaises(errors.StatesNotProved, self.page)

        self.assertEqual("c2: never swept in this epoch", error.reasons)
        self.assertIn("sched1 (following)", str(error))
        for remedy in ("another scheduler", "unproved=True", "cell"):
            self.assertIn(remedy, str(error))

    def test_only_the_cells_that_are_asked_for_must_be_proved(self):
        self.cloud.cells = [cloud.scope("c1"), cloud.scope("c2", "no reporter")]

        self.assertEqual(["n3", "n4", "n2"], self.walk(cell="c1"))
        self.assertRaises(errors.StatesNotProved, self.page, cell="c2")

    def test_who_wants_what_there_is_gets_it_with_what_is_not_proved(self):
        self.cloud.cells = [cloud.scope("c1"), cloud.scope("c2", "no reporter")]

        page = self.page(unproved=True)

        self.assertEqual(["n3", "n4"], [each.uuid for each in page.hosts])
        self.assertEqual(
            [("c1", True, ""), ("c2", False, "no reporter")],
            [(each.scope, each.proved, each.reason) for each in page.scopes],
        )

    def test_a_worker_that_knows_no_cell_yet_does_not_say_there_are_no_hosts(self):
        self.cloud.cells = []

        for query in ({}, {"cell": "c1"}):
            error = self.assertRaises(errors.StatesNotProved, self.page, **query)
            self.assertEqual("api: no cell is known yet", error.reasons)
            [scope] = self.page(unproved=True, **query).scopes
            self.assertEqual(("api", False), (scope.scope, scope.proved))

    def test_nodes_that_cannot_be_read_are_told_of_no_more_than_a_page_and_by_what_is_asked(self):
        for key in ("n1", "n4", "x", "y"):
            self.cloud.break_record("compute_nodes", key)

        for query, expected in (
            ({}, ["n1", "n4"]),
            ({"cell": "c1"}, ["n4", "x"]),
            ({"keys": ["y", "n2"]}, ["y"]),
            ({"keys": ["n1", "n2"], "cell": "c1"}, []),
        ):
            with self.subTest(query):
                self.assertEqual(expected, self.page(**query).unreadable)

    def test_the_mirror_must_be_proved_where_providers_are_asked_for(self):
        self.cloud.others = [cloud.scope("placement", "mirror too old")]

        self.assertEqual([], [each for each in self.page().scopes if each.scope == "placement"])
        error = self.assertRaises(errors.StatesNotProved, self.page, namespaces=["providers"])
        self.assertEqual("placement: mirror too old", error.reasons)

    def test_a_page_of_records_is_no_older_than_its_freshness_says(self):
        seen = []

        def freshness():
            # The feed moves on between the two looks at it.
            if not seen:
                seen.append("once")
                self.cloud.write("compute_nodes", {"n0": node("c1", 1, "west-0")})
            return endpoint.Freshness("epoch", 0.0, 1)

        page = self.read(freshness)

        self.assertIn("n0", [each.key for each in page.states])
        self.assertEqual(0.0, page.proof_age_seconds)

    def test_a_page_of_records_of_a_store_that_is_rebuilt_meanwhile_proves_nothing(self):
        generations = iter((2, 3))

        def freshness():
            generation = next(generations)
            if generation == 2:
                # Another epoch begins behind the first look.
                self.cloud.store.begin_epoch()
            return endpoint.Freshness("epoch", 0.0, generation)

        page = self.read(freshness)

        self.assertEqual([], page.states)
        self.assertIsNone(page.proof_age_seconds)

    def read(self, freshness):
        reading = endpoint.StateEndpoint(
            self.cloud.store, cloud.DECLARED, None, self.cloud.limits, None, None, freshness
        )
        return reading.get_host_states({}, "compute_nodes")


class RefusalTest(ListingCase):
    def refuse(self, argument, *texts, **query):
        error = self.assertRaises(errors.InvalidArgument, self.page, **query)
        self.assertEqual(("list_host_states", argument), (error.method, error.argument))
        for text in texts:
            self.assertIn(text, str(error))

    def test_what_does_not_belong_to_hosts_is_named_with_the_choices(self):
        self.refuse(
            "namespaces",
            "'aggregates'",
            "services, service_liveness, providers, claims, instances",
            namespaces=["aggregates"],
        )

    def test_an_unknown_cell_is_named_with_the_known_ones(self):
        self.refuse("cell", "known: c1, c2", cell="c3")

    def test_arguments_of_another_kind_are_named(self):
        for name, value in (
            ("limit", 0),
            ("limit", "many"),
            ("ids", ["one"]),
            ("ids", [2**63]),
            ("keys", [1]),
            # Not its letters, of which there is no host.
            ("keys", "n1"),
            ("ids", "1"),
            ("namespaces", "services"),
            ("host", 1),
            ("search", ""),
            ("marker", ["n1"]),
            ("unproved", "yes"),
        ):
            with self.subTest(name, value=value):
                self.refuse(name, **{name: value})

    def test_more_keys_or_ids_than_a_page_holds_are_refused_by_the_options_name(self):
        for query in ({"keys": ["a", "b", "c"]}, {"ids": [1, 2, 3]}):
            error = self.assertRaises(errors.LimitExceeded, self.page, **query)
            self.assertIn("rpc_page_size", str(error))

    def test_a_condition_on_no_column_is_refused_with_the_choices(self):
        error = self.assertRaises(
            errors.InvalidPredicate, self.page, predicate=[["color", "==", 1]]
        )
        self.assertIn("vcpus_used", str(error))

    def test_all_that_belongs_to_hosts_may_be_asked_for_however_small_pages_are(self):
        belongs = ["services", "service_liveness", "providers", "claims", "instances"]

        self.assertEqual(2, len(self.page(namespaces=belongs).hosts))
        self.refuse("namespaces", "once", namespaces=[*belongs, "claims"])

    def test_a_page_is_never_larger_than_the_servers_bound(self):
        self.assertEqual(2, len(self.page(limit=1000).hosts))


class ReleasesTest(testtools.TestCase):
    def test_a_client_of_today_learns_of_an_old_server_what_to_do_and_calls_the_rest(self):
        old = self.useFixture(cloud.OlderCloudFixture())
        old.write("compute_nodes", {"n1": node("c1", 1, "h")})

        for version, method, arguments in (
            ("1.2", "list_host_states", ()),
            ("1.1", "explain", ({},)),
            ("1.1", "get_decisions", ("server",)),
        ):
            call = getattr(old.client, method)
            error = self.assertRaises(errors.MethodNotServed, call, {}, *arguments)
            self.assertEqual((method, version), (error.method, error.version))
            self.assertIn("restart it", str(error))
        self.assertEqual(
            ["n1"], [each.key for each in old.client.iterate_host_states({}, "compute_nodes")]
        )

    def test_what_a_remote_error_names_is_told_apart_by_name(self):
        # So it comes over RabbitMQ: of a module that a transport need not allow.
        for kind, expected in (
            ("UnsupportedVersion", errors.MethodNotServed),
            ("KeyError", oslo_messaging.RemoteError),
            (None, oslo_messaging.RemoteError),
        ):
            asking = client.Client(
                self.useFixture(cloud.CloudFixture()).transport,
                "topic",
                objects.Serializer(),
                1.0,
                bound=self.raising(oslo_messaging.RemoteError(kind, "text", [])),
            )
            self.assertRaises(expected, asking.list_host_states, {})

    @staticmethod
    def raising(error):
        def bound(call):
            raise error

        return bound

    def test_a_client_of_before_is_served_as_before(self):
        today = self.useFixture(cloud.CloudFixture())
        today.write("compute_nodes", {f"n{n}": node("c1", n, "h") for n in range(5)})

        for version in ("1.0", "1.1"):
            before = oslo_messaging.get_rpc_client(
                today.transport,
                oslo_messaging.Target(topic=today.topic, namespace=api.NAMESPACE, version=version),
                serializer=objects.Serializer(),
                timeout=5.0,
            )
            found, marker = [], None
            for _ in itertools.count():
                page = before.call(
                    {},
                    "get_host_states",
                    namespace="compute_nodes",
                    keys=None,
                    predicate=None,
                    limit=None,
                    marker=marker,
                )
                found += [each.key for each in page.states]
                marker = page.next_marker
                if marker is None:
                    break
            self.assertEqual([f"n{n}" for n in range(5)], found)

    def test_every_endpoint_is_of_todays_version(self):
        for each in (
            endpoint.StateEndpoint,
            endpoint.ExplainingEndpoint,
            host_endpoint.HostEndpoint,
        ):
            self.assertEqual("1.3", each.target.version)
