# SPDX-License-Identifier: Apache-2.0
"""More servers are asked for at once than there is room for."""

from tempest import config
from tempest.lib import decorators

from nova_nodb_scheduler.tempest_plugin.tests import base

CONF = config.CONF

#: Servers that one host has room for, at least.
_LEAST_SLOTS = 2


@decorators.serial
class CapacityTest(base.SchedulingCase):
    """Room that is given away once."""

    def _large(self) -> tuple[str, int]:
        """Make a flavor as large as one server may be, of which each host has room for two.

        :returns: the flavor, and how many of it each host has room for
        """
        free = [self.vcpus_free(host) for host in self.hosts]
        # With an allocation ratio there is more room than one server may take of it.
        most = min(self.vcpus_of_one(host) for host in self.hosts)
        vcpus = min(min(free) // _LEAST_SLOTS, most)
        slots = {each // vcpus for each in free} if vcpus else set()
        if len(slots) != 1:
            raise self.skipException(f"hosts differ too much in room: {free} VCPU")
        return self.flavor(vcpus=vcpus), slots.pop()

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c31")
    def test_room_is_given_once_where_servers_are_asked_for_one_by_one(self) -> None:
        """The last one is refused, and a slot that comes free is given again."""
        flavor, slots = self._large()
        servers = [self.boot(flavor) for _ in range(slots * len(self.hosts))]
        refused = self.wait(self.ask(flavor), "ERROR")
        self.assertIn("No valid host", refused["fault"]["message"])
        self.assertEqual({host.name: slots for host in self.hosts}, self.hosts_of(servers))
        self.remove(servers[0]["id"])
        again = self.boot(flavor)
        self.assertEqual(self.host_of(servers[0]), self.host_of(again))

    @decorators.idempotent_id("6f7a3a6e-64f4-4b0b-9c76-3d0f9d1b2c32")
    def test_room_is_given_once_where_all_ask_at_once(self) -> None:
        """Exactly as many live as there is room for, and no provider gave more than it has."""
        if not CONF.nodb.exact_capacity:
            raise self.skipException("[nodb] exact_capacity is not set")
        flavor, slots = self._large()
        room = slots * len(self.hosts)
        servers = self.at_once(2 * room, flavor)
        self.assertEqual({host.name: slots for host in self.hosts}, self.hosts_of(servers))
        for host in self.hosts:
            self.assertGreaterEqual(self.vcpus_free(host), 0)
        for server in servers:
            if server["status"] != "ACTIVE":
                self.assertIn("No valid host", server["fault"]["message"])
                self.assertEqual({}, self.allocations(server["id"]))
