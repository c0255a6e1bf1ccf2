# SPDX-License-Identifier: Apache-2.0
"""Nova's services in one process with a real Placement, and conductors that let wait.

To be run in a process of its own (:mod:`.test_waiting`): Nova's test packages choose the
threading mode as they are imported. The scheduler is Nova's: who is granted when is said
by the test.
"""

from __future__ import annotations

import pathlib
import time

import fixtures

import nova.tests.functional  # isort: skip - it chooses the threading mode
import nova.conductor.manager
import nova.conf
from nova import context as nova_context
from nova import objects
from nova import test as nova_test
from nova.scheduler.client import report
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional import fixtures as functional_fixtures
from nova.tests.functional import integrated_helpers

from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.waiting import (
    conductor_rpc,
    request_payload,
    waiting_api,
    waiting_task_manager,
)
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.pending import pending_ledger
from nova_nodb_scheduler.testing import patience
from tests.nova_suite.economy import databases, idling

databases.install(native_threads=True)
idling.install()
idling.be_quiet()
CONF = nova.conf.CONF
LEASE_SECONDS = 30.0
#: Servers of the flavor that a host has room for.
ROOM = 2
PATIENCE_SECONDS = 60
#: A look through the API costs some hundredths of a second of the processor that others need.
API_PAUSE_SECONDS = 0.1


class WaitingCloud(nova_test.TestCase, integrated_helpers.InstanceHelperMixin):
    """One host with room for two servers; time goes on as the test says."""

    CAST_AS_CALL = False
    OPTIONS: dict[str, object] = {}

    def setUp(self):
        super().setUp()
        self.useFixture(nova_fixtures.RealPolicyFixture())
        self.useFixture(nova_fixtures.GlanceFixture(self))
        self.neutron = self.useFixture(nova_fixtures.NeutronFixture(self))
        self.useFixture(nova_fixtures.CinderFixture(self))
        self.useFixture(functional_fixtures.PlacementFixture())
        self.api_fixture = self.useFixture(nova_fixtures.OSAPIFixture(api_version="v2.1"))
        self.api = self.admin_api = self.api_fixture.admin_api
        self.admin_api.microversion = "latest"
        self.passed_seconds = 0.0
        self.context = nova_context.get_admin_context()
        self.plugin = self.make_plugin()
        self.conductors = []
        self.install_conductors()
        self.install_api()
        self.start_service("conductor")
        self.start_service("scheduler")
        # Nobody looks whether who is asked is still there, as a broker does: a test that fails
        # would wait half an hour for a scheduler that has been stopped.
        self.flags(long_rpc_timeout=PATIENCE_SECONDS)
        self.flags(cpu_allocation_ratio=1.0)
        self.flags(compute_driver="fake.SmallFakeDriver")
        self.start_service("compute", host="host1")
        self.flavor_id = self._create_flavor(
            name="small", vcpu=1, memory_mb=256, disk=1, extra_spec=None
        )

    # -- the plugin ------------------------------------------------------------------

    def make_plugin(self):
        nodb.register_opts(CONF)
        loader.load_class("sqlalchemy").register_opts(CONF)
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "nodb.sqlite"
        self.flags(scheduler_driver="nodb_queue")
        self.flags(group=nodb.GROUP, synchronizer="sqlalchemy")
        self.flags(group="nodb_sqlalchemy", connection=f"sqlite:///{path}")
        self.flags(
            group="nodb_queue",
            key=[request_payload.new_key()],
            lease_seconds=LEASE_SECONDS,
            **self.OPTIONS,
        )
        plugin = assembly.Plugin(CONF)
        assembly.install(plugin)
        self.addCleanup(assembly.install, None)
        self.synchronizer = plugin.make_synchronizer()
        self.synchronizer.open()
        self.addCleanup(self.synchronizer.close)
        self.ledger = pending_ledger.PendingLedger(self.synchronizer, LEASE_SECONDS, self.now)
        return plugin

    def now(self):
        return time.time() + self.passed_seconds

    def install_conductors(self):
        """Have conductors let wait as the plugin's do, without a reporter."""
        construct = nova.conductor.manager.ConductorManager.__init__

        def constructed(manager, *args, **kwargs):
            construct(manager, *args, **kwargs)
            waiting = self.plugin.waiting_conductor()
            waiting._ledger.now_seconds = self.now
            waiting_task_manager.install(manager, waiting)
            waiting.start()
            self.addCleanup(waiting.stop)
            self.conductors.append(waiting)

        self.useFixture(
            fixtures.MonkeyPatch("nova.conductor.manager.ConductorManager.__init__", constructed)
        )

    def install_api(self):
        self.waiting_api = self.plugin.waiting_api()
        self.waiting_api._ledger.now_seconds = self.now
        self.addCleanup(self.waiting_api.stop)
        self.addCleanup(waiting_api.install(self.waiting_api))

    @property
    def waiting(self):
        return self.conductors[0]

    # -- what a test does --------------------------------------------------------------

    def ask(self, wait_seconds=600, servers=1, **more):
        """Ask for servers that may wait; return their ids."""
        hints = {} if wait_seconds is None else {"nodb_wait": str(wait_seconds)}
        hints.update(more.pop("hints", {}))
        volume = more.pop("volume", None)
        body = self._build_server(flavor_id=self.flavor_id, networks="none", **more)
        if volume is not None:
            del body["imageRef"]
            body["block_device_mapping_v2"] = [
                {
                    "boot_index": 0,
                    "uuid": volume,
                    "source_type": "volume",
                    "destination_type": "volume",
                }
            ]
        reservation = {"min_count": servers, "max_count": servers} if servers > 1 else {}
        body.update(reservation)
        before = set(self.ids())
        self.admin_api.api_post("/servers", {"server": body, "os:scheduler_hints": hints})
        return sorted(set(self.ids()) - before)

    def ids(self):
        return [server["id"] for server in self.admin_api.get_servers(detail=False)]

    def fill(self):
        """Take all room of the host; return the servers."""
        return [self.active(self.ask(wait_seconds=None)[0]) for _ in range(ROOM)]

    def active(self, server):
        return self.comes_to(server, "ACTIVE")

    def comes_to(self, server, status):
        patience.wait_until(
            lambda: self.admin_api.get_server(server)["status"] == status,
            PATIENCE_SECONDS,
            lambda: f"{server} is {status}: {self.admin_api.get_server(server)}",
            API_PAUSE_SECONDS,
        )
        return server

    def record(self, server):
        """Return the request of a server; None where there is none."""
        for page in self.synchronizer.snapshot(["pending"]).pages:
            for record in page:
                request = self.ledger.read(record.key.key)
                if request is not None and server in request.servers:
                    return request
        return None

    def in_state(self, server, state):
        """Wait until a request is in a state, and return it."""
        patience.wait_until(
            lambda: (self.record(server) or self.Nothing).state is state,
            PATIENCE_SECONDS,
            lambda: f"{server} is in {state}: {self.record(server)}",
        )
        return self.record(server)

    def waits(self, server):
        return self.in_state(server, pending.PendingState.WAITING)

    def ended(self, server):
        """Wait until no record of a server is left, and no payload, which goes behind its word.

        Where it was placed, it is seen on its host as by a scheduler.
        """
        patience.wait_until(
            lambda: (request := self.record(server)) is None or pending.is_let_go(request),
            PATIENCE_SECONDS,
            lambda: f"{server} is in somebody's hand: {self.record(server)}",
        )
        request = self.record(server)
        if request is not None:
            for each in request.servers:
                self.comes_to_host(each)
            self.ledger.arrive([request.key])
        patience.wait_until(
            lambda: self.record(server) is None,
            PATIENCE_SECONDS,
            lambda: f"{server} has a record: {self.record(server)}",
        )
        patience.wait_until(
            lambda: self.ledger.read_payload(server) is None,
            PATIENCE_SECONDS,
            lambda: f"the payload of {server} stays",
        )

    def comes_to_host(self, server):
        patience.wait_until(
            lambda: any(each.host for _, each in self.instances(server)),
            PATIENCE_SECONDS,
            lambda: f"{server} has no host: {self.instances(server)}",
        )

    class Nothing:
        state = None

    def grant(self, server, purpose=pending.Purpose.PLACE):
        """Grant a request as a scheduler does; returns once a conductor is through with it."""
        request = self.record(server)
        granted = self.ledger.grant(request.key, request.grant.attempt, "scheduler", purpose)
        self.assertIsInstance(granted, pending.PendingRequest, granted)
        self.dispatch(granted)

    def dispatch(self, granted):
        conductor_rpc.ConductorApi().dispatch(granted.key, granted.grant.attempt)

    def make_room(self, server):
        self._delete_server({"id": server})

    def pass_time(self, seconds):
        self.passed_seconds += seconds

    # -- what is where -------------------------------------------------------------------

    def allocations(self, server):
        client = report.report_client_singleton()
        return client.get_allocations_for_consumer(self.context, server)

    def instances(self, server):
        """Return a server's instances in all cells, deleted ones not."""
        found = []
        for cell in objects.CellMappingList.get_all(self.context):
            with nova_context.target_cell(self.context, cell) as targeted:
                for each in objects.InstanceList.get_by_filters(targeted, {"uuid": server}):
                    if not each.deleted:
                        found.append((cell.name, each))
        return found

    def fault(self, server):
        return self.admin_api.get_server(server)["fault"]["message"]
