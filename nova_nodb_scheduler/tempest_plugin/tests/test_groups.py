# SPDX-License-Identifier: Apache-2.0
"""Servers spread, and server groups keep their policies, also where all ask at once."""

from tempest import config
from tempest.lib import decorators

from nova_nodb_scheduler.tempest_plugin.tests import base

CONF = config.CONF


@decorators.serial
class GroupsTest(base.SchedulingCase):
    """Spread, strict and soft groups."""

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c01")
    def test_servers_alike_spread_over_hosts_alike(self) -> None:
        """One after the other, each goes where most memory is free (Nova's default)."""
        flavor = self.flavor(ram=512)
        servers = [self.boot(flavor) for _ in self.hosts]
        self.assertEqual({host.name: 1 for host in self.hosts}, self.hosts_of(servers))
        for server in servers:
            self.assert_stands(server, 1)

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c02")
    def test_members_apart_never_share_a_host(self) -> None:
        """More members than hosts, all at once: those that live are on hosts of their own."""
        group = self.group("anti-affinity")
        servers = self.at_once(len(self.hosts) + 2, self.flavor(), group)
        standing = self.hosts_of(servers)
        self.assertLessEqual(max(standing.values()), 1, standing)
        self.assertGreater(len(standing), 0)

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c03")
    def test_members_apart_get_every_host_there_is(self) -> None:
        """The same, and no host is left unused: nobody was sent where another just went."""
        if not CONF.nodb.exact_capacity:
            raise self.skipException("[nodb] exact_capacity is not set")
        group = self.group("anti-affinity")
        servers = self.at_once(len(self.hosts) + 2, self.flavor(), group)
        self.assertEqual({host.name: 1 for host in self.hosts}, self.hosts_of(servers))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c04")
    def test_members_together_share_one_host(self) -> None:
        """Strict affinity, one after the other."""
        group = self.group("affinity")
        flavor = self.flavor()
        servers = [self.boot(flavor, group) for _ in range(4)]
        self.assertEqual([4], list(self.hosts_of(servers).values()))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c05")
    def test_members_together_share_one_host_when_asked_for_at_once(self) -> None:
        """Whoever is refused by the late check is not ACTIVE elsewhere."""
        group = self.group("affinity")
        standing = self.hosts_of(self.at_once(4, self.flavor(), group))
        self.assertEqual(1, len(standing), standing)

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c06")
    def test_soft_affinity_prefers_the_host_of_the_members(self) -> None:
        """Though others have more room, where the zone says that it weighs more."""
        self.aggregate_of(self.hosts, soft_affinity_weight_multiplier="1000")
        group = self.group("soft-affinity")
        flavor = self.flavor()
        servers = [self.boot(flavor, group) for _ in range(3)]
        self.assertEqual([3], list(self.hosts_of(servers).values()))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c07")
    def test_soft_anti_affinity_spreads_and_then_shares(self) -> None:
        """One more than there are hosts: all of them live, two of them together."""
        group = self.group("soft-anti-affinity")
        flavor = self.flavor()
        servers = [self.boot(flavor, group) for _ in range(len(self.hosts) + 1)]
        standing = self.hosts_of(servers)
        self.assertEqual({host.name for host in self.hosts}, set(standing))
        self.assertEqual(2, max(standing.values()), standing)
