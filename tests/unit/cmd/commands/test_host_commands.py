# SPDX-License-Identifier: Apache-2.0
"""Hosts as the commands show them, read over RPC from a scheduler's store."""

import datetime

import testtools

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

    def test_services_are_up_as_nova_says(self):
        found = host_commands.compute_services(self.query, self.services)

        self.assertEqual(
            {("c1", "h1"): "up", ("c1", "h2"): "down, forced down", ("c2", "h1"): "down, disabled"},
            {where: host_commands.service_text(described) for where, described in found.items()},
        )

    def test_a_service_that_never_beat_is_down_after_a_while(self):
        created = self.services.state(service("h", "c", created_at="2026-05-01T11:59:30"), None)
        old = self.services.state(service("h", "c", created_at="2026-05-01T11:00:00"), None)
        unknown = self.services.state(service("h", "c"), None)

        self.assertEqual([True, False, False], [each["up"] for each in (created, old, unknown)])

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
        row = host_commands.columns_of(found, known_namespaces.COMPUTE_NODES)

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
