# SPDX-License-Identifier: Apache-2.0
"""Servers that move have one host and one allocation before, and one after."""

from oslo_log import log as logging
from tempest import config
from tempest.lib import decorators, exceptions

from nova_nodb_scheduler.tempest_plugin.tests import base

CONF = config.CONF
LOG = logging.getLogger(__name__)


@decorators.serial
class MovesTest(base.SchedulingCase):
    """Resize, migration, evacuation, shelving."""

    def _settles(self, server_id: str, vcpus: int) -> base.Host:
        """Wait until what the move held elsewhere is given back; return its host."""

        def alone() -> base.Server | None:
            server = self.server(server_id)
            return server if len(self.allocations(server_id)) == 1 else None

        server = self.until(alone, f"server {server_id} has several allocations")
        return self.assert_stands(server, vcpus)

    def _take_back(self, lost: base.Host) -> None:
        try:
            self.services.update_service(lost.service, forced_down=False)
        except exceptions.BadRequest as error:
            # Nova wants nova-compute to start first, to remove what was built elsewhere.
            LOG.warning("%s stays forced down until its nova-compute starts: %s", lost.name, error)

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c21")
    def test_a_resize_is_confirmed(self) -> None:
        """It stands elsewhere, with what the new flavor takes."""
        free = {host: self.vcpus_free(host) for host in self.hosts}
        server = self.boot(self.flavor(vcpus=1))
        before = self.assert_stands(server, 1)
        self.servers.resize_server(server["id"], self.flavor(vcpus=2))
        self.wait(server["id"], "VERIFY_RESIZE")
        self.servers.confirm_resize_server(server["id"])
        self.wait(server["id"], "ACTIVE")
        after = self._settles(server["id"], 2)
        self.assertEqual(free[after] - 2, self.vcpus_free(after))
        if before != after:
            self.assertEqual(free[before], self.vcpus_free(before))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c22")
    def test_a_resize_is_reverted(self) -> None:
        """All is as it was."""
        free = {host: self.vcpus_free(host) for host in self.hosts}
        server = self.boot(self.flavor(vcpus=1))
        before = self.assert_stands(server, 1)
        self.servers.resize_server(server["id"], self.flavor(vcpus=2))
        self.wait(server["id"], "VERIFY_RESIZE")
        self.servers.revert_resize_server(server["id"])
        self.wait(server["id"], "ACTIVE")
        self.assertEqual(before, self._settles(server["id"], 1))
        free[before] -= 1
        self.assertEqual(free, {host: self.vcpus_free(host) for host in self.hosts})

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c23")
    def test_a_cold_migration_leaves_its_host(self) -> None:
        """Confirmed at once."""
        server = self.boot(self.flavor())
        before = self.assert_stands(server, 1)
        self.servers.migrate_server(server["id"])
        self.wait(server["id"], "VERIFY_RESIZE")
        self.servers.confirm_resize_server(server["id"])
        self.wait(server["id"], "ACTIVE")
        self.assertNotEqual(before, self._settles(server["id"], 1))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c24")
    def test_a_live_migration_leaves_its_host(self) -> None:
        """To a host that the scheduler finds."""
        if not CONF.compute_feature_enabled.live_migration:
            raise self.skipException("live migration is not available")
        server = self.boot(self.flavor())
        before = self.assert_stands(server, 1)
        self.servers.live_migrate_server(server["id"], host=None, block_migration="auto")

        def moved() -> bool:
            return self.host_of(self.wait(server["id"], "ACTIVE")) != before.name

        self.until(moved, f"server {server['id']} is on its old host")
        self.assertNotEqual(before, self._settles(server["id"], 1))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c25")
    def test_a_member_that_moves_stays_apart(self) -> None:
        """A group whose members are apart has one host left to go to."""
        group = self.group("anti-affinity")
        flavor = self.flavor()
        servers = [self.boot(flavor, group) for _ in self.hosts[1:]]
        taken = set(self.hosts_of(servers))
        (left,) = [host for host in self.hosts if host.name not in taken]
        self.servers.migrate_server(servers[0]["id"])
        self.wait(servers[0]["id"], "VERIFY_RESIZE")
        self.servers.confirm_resize_server(servers[0]["id"])
        self.wait(servers[0]["id"], "ACTIVE")
        self.assertEqual(left, self._settles(servers[0]["id"], 1))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c26")
    def test_a_server_of_a_lost_host_is_built_elsewhere(self) -> None:
        """Nobody is sent to a host that is forced down."""
        if not CONF.nodb.evacuate:
            raise self.skipException("[nodb] evacuate is not set")
        server = self.boot(self.flavor())
        lost = self.assert_stands(server, 1)
        self.services.update_service(lost.service, forced_down=True)
        self.addCleanup(self._take_back, lost)
        self.assertNotIn(lost.name, self.hosts_of(self.at_once(4, self.flavor())))
        self.servers.evacuate_server(server["id"])

        def moved() -> bool:
            return self.host_of(self.wait(server["id"], "ACTIVE")) != lost.name

        self.until(moved, f"server {server['id']} is on the lost host")
        # What it had on the lost host is given back when that starts again.
        self.assertIn(
            self.host_of(self.server(server["id"])), {each.name for each in self.others(lost)}
        )

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c27")
    def test_a_shelved_server_takes_nothing_and_comes_back(self) -> None:
        """Offloaded it has no host and no allocation."""
        if not CONF.compute_feature_enabled.shelve:
            raise self.skipException("shelving is not available")
        server = self.boot(self.flavor())
        host = self.assert_stands(server, 1)
        free = self.vcpus_free(host)
        self.servers.shelve_server(server["id"])
        offload = CONF.compute.shelved_offload_time
        if offload != 0:
            self.wait(server["id"], "SHELVED", "SHELVED_OFFLOADED")
            self.servers.shelve_offload_server(server["id"])
        shelved = self.wait(server["id"], "SHELVED_OFFLOADED")
        self.assertEqual("", self.host_of(shelved))
        self.until(lambda: not self.allocations(server["id"]), "the allocation is left")
        self.assertEqual(free + 1, self.vcpus_free(host))
        self.servers.unshelve_server(server["id"])
        self.assert_stands(self.wait(server["id"], "ACTIVE"), 1)
