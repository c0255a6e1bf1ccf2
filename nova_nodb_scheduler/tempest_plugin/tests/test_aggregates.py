# SPDX-License-Identifier: Apache-2.0
"""Zones and aggregates: servers go where they may, and to no other host."""

from tempest.common import compute
from tempest.lib import decorators
from tempest.lib.common.utils import data_utils

from nova_nodb_scheduler.tempest_plugin.tests import base


@decorators.serial
class AggregatesTest(base.SchedulingCase):
    """Availability zones, isolation by extra specs and by project."""

    def _needs(self, name: str) -> None:
        if not compute.is_scheduler_filter_enabled(name):
            raise self.skipException(f"{name} is not enabled")

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c11")
    def test_a_zone_is_kept(self) -> None:
        """Each server of many stands on a host of the zone that was asked for."""
        for server in self.at_once(6, self.flavor()):
            self.assertEqual("ACTIVE", server["status"], server.get("fault"))
            self.assertEqual(self.zone, server["OS-EXT-AZ:availability_zone"])
            self.assert_stands(server, 1)

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c12")
    def test_a_host_named_is_taken(self) -> None:
        """``host`` of an administrator's request."""
        for host in self.hosts[:2]:
            server = self.boot(self.flavor(), host=host.name)
            self.assertEqual(host, self.assert_stands(server, 1))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c13")
    def test_an_aggregate_just_made_is_followed(self) -> None:
        """AggregateInstanceExtraSpecsFilter, by metadata of a moment ago."""
        self._needs("AggregateInstanceExtraSpecsFilter")
        kind = data_utils.rand_name("kind")
        self.aggregate_of(self.hosts[:1], kind=kind)
        flavor = self.flavor(aggregate_instance_extra_specs__kind=kind)
        servers = [self.boot(flavor) for _ in range(3)]
        self.assertEqual({self.hosts[0].name: 3}, self.hosts_of(servers))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c14")
    def test_what_no_aggregate_has_is_refused(self) -> None:
        """No valid host, and nothing is left in Placement."""
        self._needs("AggregateInstanceExtraSpecsFilter")
        kind = data_utils.rand_name("kind")
        refused = self.ask(self.flavor(aggregate_instance_extra_specs__kind=kind))
        self.assertIn("No valid host", self.wait(refused, "ERROR")["fault"]["message"])
        self.assertEqual({}, self.allocations(refused))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c15")
    def test_hosts_of_another_project_are_left_alone(self) -> None:
        """AggregateMultiTenancyIsolation."""
        self._needs("AggregateMultiTenancyIsolation")
        self.aggregate_of(self.hosts[1:], filter_tenant_id=data_utils.rand_uuid_hex())
        servers = self.at_once(4, self.flavor())
        self.assertEqual({self.hosts[0].name: 4}, self.hosts_of(servers))
