# SPDX-License-Identifier: Apache-2.0
"""A zone of hosts for one scenario, and what the APIs say of the servers in it."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

import attrs
from tempest import config, test
from tempest.common import waiters
from tempest.lib import exceptions
from tempest.lib.common import api_microversion_fixture
from tempest.lib.common.utils import data_utils

CONF = config.CONF

#: Hosts named by a request, groups with ``policy``, forced down by uuid: Nova of 2019 and later.
COMPUTE_VERSION = "2.74"
PLACEMENT_VERSION = "1.28"
LEAST_HOSTS = 3
_POLL_SECONDS = 1.0

Server = Mapping[str, Any]


@attrs.frozen
class Host:
    """A compute host.

    :param provider: uuid of its compute node, and of its resource provider
    """

    name: str
    service: str
    provider: str


class SchedulingCase(test.BaseTestCase):  # type: ignore[misc]
    """A scenario over hosts of its own; needs an administrator."""

    credentials = ("admin",)

    @classmethod
    def skip_checks(cls) -> None:
        """Skip where there is no Nova."""
        super().skip_checks()
        if not CONF.service_available.nova:
            raise cls.skipException("Nova is not available")

    @classmethod
    def setup_clients(cls) -> None:
        """Name the clients."""
        super().setup_clients()
        cls.servers = cls.os_admin.servers_client
        cls.flavors = cls.os_admin.flavors_client
        cls.aggregates = cls.os_admin.aggregates_client
        cls.groups = cls.os_admin.server_groups_client
        cls.services = cls.os_admin.services_client
        cls.hypervisors = cls.os_admin.hypervisor_client
        cls.placement = cls.os_admin.placement_client
        cls.providers = cls.os_admin.resource_providers_client

    def setUp(self) -> None:
        """Put the hosts into a zone of this test's own."""
        super().setUp()
        self.useFixture(
            api_microversion_fixture.APIMicroversionFixture(
                compute_microversion=COMPUTE_VERSION, placement_microversion=PLACEMENT_VERSION
            )
        )
        self.hosts = self._free_hosts()
        self.zone = data_utils.rand_name("nodb-zone")
        self.aggregate_of(self.hosts, zone=self.zone)

    # what there is

    def _free_hosts(self) -> list[Host]:
        nodes = self.hypervisors.list_hypervisors(detail=True)["hypervisors"]
        providers = {node["service"]["host"]: node["id"] for node in nodes}
        services = self.services.list_services(binary="nova-compute")["services"]
        wanted = set(CONF.nodb.hosts)
        found = [
            Host(each["host"], each["id"], providers[each["host"]])
            for each in services
            if each["host"] in providers
            and (each["status"], each["state"]) == ("enabled", "up")
            and each["zone"] == CONF.nodb.default_zone
            and (not wanted or each["host"] in wanted)
            and not self._has_servers(each["host"])
        ]
        if len(found) < LEAST_HOSTS:
            raise self.skipException(
                f"{LEAST_HOSTS} empty hosts in no zone are needed, not {len(found)}"
            )
        return sorted(found, key=lambda host: host.name)

    def _has_servers(self, host: str) -> bool:
        # Nova puts no host into a zone while there are servers on it.
        return bool(self.servers.list_servers(all_tenants=True, host=host, limit=1)["servers"])

    def aggregate_of(
        self, hosts: Iterable[Host], zone: str | None = None, **metadata: str
    ) -> dict[str, Any]:
        """Make an aggregate of hosts, until the test ends."""
        more = {"availability_zone": zone} if zone else {}
        name = data_utils.rand_name("nodb-aggregate")
        made: dict[str, Any] = self.aggregates.create_aggregate(name=name, **more)["aggregate"]
        self.addCleanup(self.aggregates.delete_aggregate, made["id"])
        for host in hosts:
            self.aggregates.add_host(made["id"], host=host.name)
            self.addCleanup(self.aggregates.remove_host, made["id"], host=host.name)
        if metadata:
            self.aggregates.set_metadata(made["id"], metadata=metadata)
        return made

    def flavor(self, vcpus: int = 1, ram: int = 64, disk: int = 1, **extra_specs: str) -> str:
        """Make a flavor; return its id."""
        name = data_utils.rand_name("nodb-flavor")
        made = self.flavors.create_flavor(name=name, vcpus=vcpus, ram=ram, disk=disk)["flavor"]
        self.addCleanup(self.flavors.delete_flavor, made["id"])
        if extra_specs:
            specs = {name.replace("__", ":"): value for name, value in extra_specs.items()}
            self.flavors.set_flavor_extra_spec(made["id"], **specs)
        return str(made["id"])

    def group(self, policy: str) -> str:
        """Make a server group; return its id."""
        name = data_utils.rand_name("nodb-group")
        made = self.groups.create_server_group(name=name, policy=policy)["server_group"]
        self.addCleanup(self.groups.delete_server_group, made["id"])
        return str(made["id"])

    # servers

    def ask(self, flavor: str, group: str | None = None, **more: Any) -> str:
        """Ask for a server in the zone; return its id."""
        arguments = {"availability_zone": self.zone, "networks": "none", **more}
        if group is not None:
            arguments["scheduler_hints"] = {"group": group}
        made = self.servers.create_server(
            name=data_utils.rand_name("nodb-server"),
            imageRef=CONF.compute.image_ref,
            flavorRef=flavor,
            **arguments,
        )["server"]
        self.addCleanup(self.remove, made["id"])
        return str(made["id"])

    def boot(self, flavor: str, group: str | None = None, **more: Any) -> Server:
        """Ask for a server and wait until it is ACTIVE."""
        return self.wait(self.ask(flavor, group, **more), "ACTIVE")

    def at_once(self, count: int, flavor: str, group: str | None = None) -> list[Server]:
        """Ask for servers at once; return them when each is ACTIVE or in ERROR."""
        with futures.ThreadPoolExecutor(count) as pool:
            asked = list(pool.map(lambda _: self.ask(flavor, group), range(count)))
        return [self.wait(server, "ACTIVE", "ERROR") for server in asked]

    def server(self, server_id: str) -> Server:
        """Return the server as an administrator sees it."""
        shown: Server = self.servers.show_server(server_id)["server"]
        return shown

    def wait(self, server_id: str, *statuses: str) -> Server:
        """Wait until it has one of the statuses, and nothing is under way."""

        def settled() -> Server | None:
            server = self.server(server_id)
            if server["status"] in statuses and server["OS-EXT-STS:task_state"] is None:
                return server
            if server["status"] == "ERROR":
                self.fail(f"server {server_id}: {server.get('fault')}")
            return None

        server: Server = self.until(settled, f"server {server_id} is not {' or '.join(statuses)}")
        return server

    def until(self, look: Callable[[], Any], otherwise: str) -> Any:
        """Look until there is something; fail with a word after ``[compute] build_timeout``."""
        deadline = time.monotonic() + CONF.compute.build_timeout
        while time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(_POLL_SECONDS)
        return self.fail(f"{otherwise} after {CONF.compute.build_timeout} s")

    def remove(self, server_id: str) -> None:
        """Delete it, and wait until it is gone."""
        # A test may have deleted it by itself; the wait ends well where it is not found.
        with contextlib.suppress(exceptions.NotFound):
            self.servers.delete_server(server_id)
        waiters.wait_for_server_termination(self.servers, server_id, ignore_error=True)

    # what is right

    def host_of(self, server: Server) -> str:
        """Return the name of its host; empty where it has none."""
        return server["OS-EXT-SRV-ATTR:host"] or ""

    def hosts_of(self, servers: Iterable[Server]) -> collections.Counter[str]:
        """Return how many of those that are ACTIVE stand on each host."""
        return collections.Counter(
            self.host_of(server) for server in servers if server["status"] == "ACTIVE"
        )

    def allocations(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return by provider what Placement has given to a consumer."""
        found = self.placement.list_allocations(consumer)["allocations"]
        return {provider: given["resources"] for provider, given in found.items()}

    def vcpus_free(self, host: Host) -> int:
        """Return how many VCPU Placement has left; negative if it gave too many."""
        inventory = self.providers.list_resource_provider_inventories(host.provider)
        vcpu = inventory["inventories"]["VCPU"]
        used = self.providers.list_resource_provider_usages(host.provider)["usages"]["VCPU"]
        free: int = int((vcpu["total"] - vcpu["reserved"]) * vcpu["allocation_ratio"]) - used
        return free

    def vcpus_of_one(self, host: Host) -> int:
        """Return how many VCPU of a host one server may have."""
        inventory = self.providers.list_resource_provider_inventories(host.provider)
        return int(inventory["inventories"]["VCPU"]["max_unit"])

    def assert_stands(self, server: Server, vcpus: int) -> Host:
        """See that it stands on one host of the zone, and has its allocation there alone."""
        hosts = {host.name: host for host in self.hosts}
        self.assertIn(self.host_of(server), hosts)
        host = hosts[self.host_of(server)]
        given = {name: part["VCPU"] for name, part in self.allocations(server["id"]).items()}
        self.assertEqual({host.provider: vcpus}, given)
        return host

    def others(self, host: Host) -> Sequence[Host]:
        """Return the other hosts of the zone."""
        return [each for each in self.hosts if each != host]
