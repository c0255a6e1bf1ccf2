# SPDX-License-Identifier: Apache-2.0
"""Hosts as the commands show them, read over RPC from a scheduler's store."""

import argparse
import contextlib
import datetime
import io

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import application
from nova_nodb_scheduler.cmd.commands import host_commands
from nova_nodb_scheduler.cmd.overview import cell_names
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.unit.rpc import cloud

NOW = datetime.datetime(2026, 5, 1, 12, 0, 0)  # noqa: DTZ001 - as Nova's columns: naive, UTC


def node(host, cell, **row):
    return {
        "cell": cell,
        "object_version": "1.19",
        "row": {"host": host, "hypervisor_hostname": f"{host}.example", "vcpus": 8, **row},
    }


def service(host, cell, **row):
    return {
        "cell": cell,
        "object_version": "1.22",
        "row": {"host": host, "binary": "nova-compute", "disabled": False, **row},
    }


class HostsTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(cloud.CloudFixture(page_size=2))
        self.cloud.write(
            "compute_nodes",
            {
                "n1": node("h1", "c1", vcpus_used=3),
                "n2": node("h2", "c1"),
                # The same host name in another cell.
                "n3": node("h1", "c2"),
            },
        )
        self.cloud.write(
            "services",
            {
                "s1": service("h1", "c1"),
                "s2": service("h2", "c1", forced_down=True),
                "s3": service("h1", "c2", disabled=True),
            },
        )
        self.cloud.write(
            "service_liveness",
            {
                "s1": {"cell": "c1", "report_count": 9, "last_seen_up": "2026-05-01T11:59:50"},
                "s2": {"cell": "c1", "report_count": 9, "last_seen_up": "2026-05-01T11:59:50"},
                "s3": {"cell": "c2", "report_count": 1, "last_seen_up": "2026-05-01T11:00:00"},
            },
        )
        self.services = host_commands.ServiceStates(60.0, NOW)

    def query(self, namespace, predicate):
        return self.cloud.client.iterate_host_states({}, namespace, predicate)

    def lookup(self, namespace, keys):
        return self.cloud.client.get_host_states({}, namespace, keys=keys).states

    def list(self, **query):
        return host_commands.list_hosts(self.cloud.client, {}, self.services, **query)

    def test_services_are_up_as_nova_says(self):
        found = self.list()

        self.assertEqual(
            {("c1", "h1"): "up", ("c1", "h2"): "down, forced down", ("c2", "h1"): "down, disabled"},
            {
                (row["cell"], row["host"]): host_commands.service_text(row["service"])
                for row in found.rows
            },
        )
        self.assertEqual(["n1", "n2", "n3"], [row["key"] for row in found.rows])
        self.assertEqual({}, found.unproved)

    def test_a_host_without_a_compute_service_is_listed_without_one(self):
        self.cloud.write("compute_nodes", {"n4": node("h4", "c2")})

        [row] = self.list(search="h4").rows

        self.assertEqual(("n4", None), (row["key"], row["service"]))

    def test_hosts_of_a_cell_that_is_not_proved_are_listed_with_the_reason(self):
        self.cloud.cells = [cloud.scope("c1"), cloud.scope("c2", "no reporter")]

        found = self.list(predicate=[["host", "==", "h1"]])

        self.assertEqual(["n1", "n3"], [row["key"] for row in found.rows])
        self.assertEqual({"c2": "no reporter"}, found.unproved)
        self.assertEqual({}, self.list(cell="c1").unproved)

    def test_no_cell_that_is_known_is_told_as_what_is_not_proved(self):
        self.cloud.cells = []

        self.assertEqual({"api": "no cell is known yet"}, self.list().unproved)

    def test_a_service_that_never_beat_is_down_after_a_while(self):
        created = self.services.state(service("h", "c", created_at="2026-05-01T11:59:30"), None)
        old = self.services.state(service("h", "c", created_at="2026-05-01T11:00:00"), None)
        unknown = self.services.state(service("h", "c"), None)

        self.assertEqual([True, False, False], [each["up"] for each in (created, old, unknown)])

    def test_a_scheduler_of_an_older_release_lists_the_same_hosts(self):
        older = self.useFixture(cloud.OlderCloudFixture(page_size=2))
        for namespace in ("compute_nodes", "services", "service_liveness"):
            view = self.cloud.store.snapshot().namespace(namespace)
            older.write(namespace, dict(view.states()))
        listing = self.listing()
        listing.query = lambda *query: older.client.iterate_host_states({}, *query)
        asked = {"where": [["host", "in", "h1,h2"]], "scheduler": None, "search": None}
        complaint = io.StringIO()

        for cell in (None, "c1"):
            query = argparse.Namespace(cell=cell, **asked)
            expected = listing._hosts(self.cloud.client, query)
            with contextlib.redirect_stderr(complaint):
                self.assertEqual(expected, listing._hosts(older.client, query))
        self.assertIn("does not know list_host_states", complaint.getvalue())
        query.search = "h"
        self.assertRaises(errors.MethodNotServed, listing._hosts, older.client, query)

    def listing(self):
        listing = host_commands.HostList(application.ManageApp(), argparse.Namespace(), "tried")
        listing.context = dict
        listing.services = self.services
        listing.names = cell_names.CellNames({})
        return listing

    def test_a_host_whose_record_cannot_be_read_is_told_of_as_broken(self):
        for key in ("n1", "unheard-of"):
            self.cloud.break_record("compute_nodes", key)
        query = argparse.Namespace(cell=None, where=[], scheduler=None, search=None)
        complaint = io.StringIO()

        with contextlib.redirect_stderr(complaint):
            rows = self.listing()._hosts(self.cloud.client, query)

        self.assertEqual(["n1", "n2", "n3"], [row["key"] for row in rows])
        self.assertEqual(
            [
                "Compute node n1 is broken: its record cannot be read; shown as it was before.",
                "Compute node unheard-of is broken: its record cannot be read; not shown.",
            ],
            complaint.getvalue().splitlines(),
        )

    def test_a_host_is_found_by_uuid_host_and_hypervisor_name(self):
        for name, keys in (
            ("n2", ["n2"]),
            ("h2", ["n2"]),
            ("h2.example", ["n2"]),
            ("h1", ["n1", "n3"]),
            ("nobody", []),
        ):
            with self.subTest(name):
                found = host_commands.find_nodes(name, self.query, self.lookup)
                self.assertEqual(keys, [each.key for each in found])

    def test_a_host_is_described_with_what_belongs_to_its_cell_only(self):
        instance = {"row": {"host": "h1", "node": "h1.example", "vm_state": "active"}}
        self.cloud.write(
            "instances",
            {
                "i1@c1": {"cell": "c1", **instance},
                "i2@c2": {"cell": "c2", **instance},
            },
        )
        self.cloud.write(
            "aggregates",
            {
                "a1": {"row": {"id": 1, "name": "ssd", "hosts": ["h1"], "metadata": {"z": "1"}}},
                "a2": {"row": {"id": 2, "name": "hdd", "hosts": ["h2"], "metadata": {}}},
            },
        )
        self.cloud.write("claims", {"n1": {"consumers": {}}}, owner=known_namespaces.CLAIMS)
        [found] = self.lookup("compute_nodes", ["n1"])

        described = host_commands.describe(found, self.query, self.lookup, self.services)

        self.assertEqual(("n1", "c1", "h1"), tuple(described[n] for n in ("uuid", "cell", "host")))
        self.assertEqual(["i1"], [each["uuid"] for each in described["instances"]])
        self.assertEqual([True], [each["up"] for each in described["services"]])
        self.assertEqual(["ssd"], [each["name"] for each in described["aggregates"]])
        self.assertEqual([{"consumers": {}}], described["claims"])

    def test_a_line_of_the_table_says_used_of_all(self):
        [found] = self.lookup("compute_nodes", ["n1"])
        row = host_commands.columns_of(found.key, found.state, known_namespaces.COMPUTE_NODES)

        line = host_commands.host_row(
            {**row, "service": None}, cell_names.CellNames({"c1": "east"})
        )

        titles = [
            each if isinstance(each, str) else each.title for each in host_commands.HOST_COLUMNS
        ]
        shown = dict(zip(titles, line, strict=True))
        self.assertEqual(
            ("h1", "h1.example", "east", "c1", "n1", "3 of 8", "none"),
            tuple(
                shown[name]
                for name in ("host", "node", "cell", "cell uuid", "uuid", "vcpus", "service")
            ),
        )

    def test_what_is_typed_becomes_a_predicate(self):
        typed = [("vcpus", ">=", "4"), ("host", "in", "h1,h2")]

        self.assertEqual(
            [["cell", "==", "c1"], ["vcpus", ">=", "4"], ["host", "in", ["h1", "h2"]]],
            host_commands.conditions(typed, "c1"),
        )
        found = self.query("compute_nodes", host_commands.conditions(typed, "c1"))
        self.assertEqual(["n1", "n2"], [each.key for each in found])
