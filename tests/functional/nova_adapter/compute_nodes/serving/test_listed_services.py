# SPDX-License-Identifier: Apache-2.0
"""A list of compute nodes brings its services along, as Nova's own questions answer them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import nova.compute.api
import testtools
from nova import context as nova_context
from nova import exception
from nova.compute import api as nova_compute

from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import listed_services
from tests.functional.nova_adapter import cloud


class ListedServicesTest(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        self.report()
        self.forget_cells()
        self.addCleanup(self.forget_cells)
        self.api = nova_compute.HostAPI()
        self.listed = listed_services.ListedServices()
        self.addCleanup(self.listed.uninstall)
        for cell, host in ((cloud.CELL1, "h1"), (cloud.CELL2, "h2"), (cloud.CELL2, "h3")):
            self.host(cell, host)

    def forget_cells(self) -> None:
        nova.compute.api.CELLS = []

    def asked(self, context: Any, host: str) -> Any:
        """Return what is told of a host's service, or the error that it is."""
        try:
            found = self.api.service_get_by_compute_host(context, host)
        except exception.NovaException as error:
            return type(error), str(error)
        fields = ("id", "uuid", "host", "binary", "disabled", "version", "report_count")
        return {name: found[name] for name in (*fields, "last_seen_up", "updated_at")}

    def every(self, call: str, *arguments: Any) -> tuple[dict[str, Any], int]:
        """List nodes and ask for each one's service, as nova-api does; count the statements."""
        context = nova_context.get_admin_context()
        with self.statements() as statements:
            nodes = getattr(self.api, call)(context, *arguments)
            found = {node.host: self.asked(context, node.host) for node in nodes}
        return found, len(statements.of("services")) + len(statements.of("host_mappings"))

    def compare(self, call: str, *arguments: Any) -> tuple[int, int]:
        """Check that Nova's answers are given; return both counts of statements."""
        own, before = self.every(call, *arguments)
        self.listed.install()
        brought, after = self.every(call, *arguments)
        self.assertEqual(own, brought)
        self.listed.uninstall()
        return before, after

    def test_services_of_a_list_are_three_statements_however_many_hosts(self) -> None:
        self.assertEqual((6, 3), self.compare("compute_node_get_all"))
        for number in range(4, 9):
            self.host(cloud.CELL1, f"h{number}")
        self.assertEqual((16, 3), self.compare("compute_node_get_all"))

    def test_a_search_brings_them_too(self) -> None:
        self.assertEqual((6, 3), self.compare("compute_node_search_by_hypervisor", "node-h"))

    def test_a_host_without_a_mapping_or_a_service_is_nova_s_own_error(self) -> None:
        self.compute_node(cloud.CELL1, "unmapped")
        _node, service = self.host(cloud.CELL1, "deleted")
        service.destroy()
        self.compute_node(cloud.CELL1, "deleted", hypervisor_hostname="left")
        self.compare("compute_node_get_all")

    def test_a_service_without_its_compute_node_is_asked_for_as_ever(self) -> None:
        self.service(cloud.CELL1, "alone")
        self.listed.install()
        context = nova_context.get_admin_context()
        self.api.compute_node_get_all(context)
        self.assertIs(exception.HostMappingNotFound, self.asked(context, "alone")[0])

    def test_another_request_reads_anew(self) -> None:
        self.listed.install()
        self.every("compute_node_get_all")
        context = nova_context.get_admin_context()
        service = self.api.service_get_by_compute_host(context, "h1")
        service.disabled = True
        service.save()
        found, _count = self.every("compute_node_get_all")
        self.assertTrue(found["h1"]["disabled"])
        self.assertFalse(found["h2"]["disabled"])

    def test_what_was_replaced_is_put_back(self) -> None:
        own = dict(vars(nova_compute.HostAPI))
        self.listed.install()
        self.listed.install()
        self.listed.uninstall()
        self.assertEqual(own, dict(vars(nova_compute.HostAPI)))


class StartTest(testtools.TestCase):
    def test_who_installs_nothing_loads_no_api_of_computes(self) -> None:
        # Schedulers and conductors, where Nova's table of compute nodes is mirrored.
        loads = (
            "import sys, nova.scheduler.manager, nova.conductor.rpcapi\n"
            "from nova_nodb_scheduler.nova_adapter import activation, manager\n"
            "print('nova.compute.api' in sys.modules)"
        )
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", loads],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((0, "False\n"), (result.returncode, result.stdout), result.stderr)
