# SPDX-License-Identifier: Apache-2.0
"""Nova's services in one process: its API and computes, the queue's conductor and schedulers.

To be run in a process of its own (:mod:`.test_waiting`): Nova's test packages
choose the threading mode as they are imported.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time

import fixtures

import nova.tests.functional  # isort: skip - it chooses the threading mode
import nova.conductor.manager
import nova.conf
from nova import service as nova_service
from nova import test as nova_test
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional import fixtures as functional_fixtures
from nova.tests.functional import integrated_helpers

from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.nova_adapter import assembly, queue_manager
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_assembly
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter, nova_objects
from nova_nodb_scheduler.nova_adapter.waiting import request_payload, waiting_task_manager
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.testing import patience
from tests.nova_suite import cells, reporters
from tests.nova_suite.economy import databases, idling

databases.install(native_threads=True)
idling.install()
idling.be_quiet()
CONF = nova.conf.CONF
MANAGER = "nova_nodb_scheduler.nova_adapter.queue_manager.QueueSchedulerManager"
PATIENCE_SECONDS = 180.0

#: Slots on each host for a server of one processor, and hosts: with ``NODB_QUEUE_HOSTS=4``
#: the 40 requests for 24 slots of the real stack's test, some minutes on a quiet machine.
SLOTS = 6
HOSTS = int(os.environ.get("NODB_QUEUE_HOSTS", "1"))
ROOM = HOSTS * SLOTS
#: Servers that wait once all room is taken.
MORE = ROOM * 2 // 3


class QueuedCloud(nova_test.TestCase, integrated_helpers.InstanceHelperMixin):
    """Some hosts, each with a few slots; everything runs in threads of its own."""

    CAST_AS_CALL = False
    SCHEDULERS = 1

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
        self.managers = []
        # The fake driver has nobody look whether who is asked is still there.
        self.flags(long_rpc_timeout=int(PATIENCE_SECONDS))
        self.flags(group="quota", instances=-1, cores=-1, ram=-1)
        self.make_plugin()
        self.start_service("conductor")
        self.flags(compute_driver="fake.MediumFakeDriver")
        self.flags(cpu_allocation_ratio=1.0, reserved_host_cpus=10 - SLOTS)
        for number in range(HOSTS):
            self.start_service("compute", host=f"host{number}")
        for number in range(self.SCHEDULERS):
            # Nova's own way to start a service takes one scheduler and no more.
            self.useFixture(nova_fixtures.ServiceFixture("scheduler", host=f"scheduler{number}"))
        self.flavor_id = self.make_flavor("one", 1)
        self.watched = {}
        patience.wait_until(self.is_proved, PATIENCE_SECONDS, lambda: "hosts proved", 0.1)

    def make_flavor(self, name, vcpus, **extra_spec):
        return self._create_flavor(
            name=name,
            vcpu=vcpus,
            memory_mb=256,
            disk=1,
            extra_spec={"nodb:wait": "600", **extra_spec},
        )

    def make_plugin(self):
        nodb.register_opts(CONF)
        loader.load_class("sqlalchemy").register_opts(CONF)
        nova_objects.register()
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "nodb.sqlite"
        self.flags(scheduler_driver="nodb_queue")
        self.flags(
            group=nodb.GROUP,
            synchronizer="sqlalchemy",
            flush_interval_seconds=0.02,
            sweep_pause_seconds=0.0,
            start_timeout_seconds=0.0,
            beat_interval_seconds=1.0,
        )
        self.flags(group="nodb_sqlalchemy", connection=f"sqlite:///{path}")
        self.flags(group="nodb_queue", key=[request_payload.new_key()], hold_after_seconds=3600.0)
        self.plugin = assembly.Plugin(CONF)
        self.plugin.scopes = cells.SuiteScopes(CONF)
        self.plugin.check()
        assembly.install(self.plugin)
        self.addCleanup(assembly.install, None)
        self.synchronizer = self.plugin.make_synchronizer()
        self.synchronizer.open()
        self.addCleanup(self.synchronizer.close)
        process = reporters.Reporters(self.plugin, self.synchronizer)
        self.addCleanup(process.stop)
        change_reporter.install(process, self.plugin.scopes)
        self.addCleanup(change_reporter.install, None, None)
        process.start()
        mirror_assembly.report_writes(self.plugin)
        self.addCleanup(mirror_assembly.install, None)
        self.install_conductors()
        self.install_schedulers()

    def install_conductors(self):
        """Have conductors let wait as the plugin's do, without another reporter."""
        construct = nova.conductor.manager.ConductorManager.__init__

        def constructed(manager, *args, **kwargs):
            construct(manager, *args, **kwargs)
            waiting = self.plugin.waiting_conductor()
            waiting_task_manager.install(manager, waiting)
            waiting.start()
            self.addCleanup(waiting.stop)

        self.useFixture(
            fixtures.MonkeyPatch("nova.conductor.manager.ConductorManager.__init__", constructed)
        )

    def install_schedulers(self):
        managers = {**nova_service.SERVICE_MANAGERS, "nova-scheduler": MANAGER}
        self.useFixture(fixtures.MonkeyPatch("nova.service.SERVICE_MANAGERS", managers))
        start = queue_manager.QueueSchedulerManager.init_host

        def init_host(manager, service_ref):
            start(manager, service_ref)
            self.managers.append(manager)
            self.addCleanup(manager.nodb_stop)

        self.useFixture(fixtures.MonkeyPatch(f"{MANAGER}.init_host", init_host))

    def is_proved(self):
        return all(manager.nodb.queue.works() for manager in self.managers)

    # -- what a test does --------------------------------------------------------------

    def ask(self, flavor=None, **more):
        """Ask for a server; return its id."""
        body = self._build_server(flavor_id=flavor or self.flavor_id, networks="none", **more)
        return self.admin_api.post_server({"server": body})["id"]

    def fill(self):
        """Take all room, one server after the other; return their ids.

        Nova's fixture of cells' databases has locks that its threads take in either order:
        with many creations at once they wait for one another for ever.
        """
        asked = []
        for number in range(1, ROOM + 1):
            asked.append(self.ask())
            self.until(lambda number=number: self.count("ACTIVE") == number, "it is active")
        return asked

    def statuses(self):
        found = {each["id"]: each["status"] for each in self.admin_api.get_servers()}
        now = time.monotonic()
        for server, status in found.items():
            if status == "ACTIVE":
                self.watched.setdefault(server, now)
        return found

    def count(self, status):
        return sum(each == status for each in self.statuses().values())

    def until(self, condition, what=""):
        patience.wait_until(condition, PATIENCE_SECONDS, lambda: (what, self.told()), 0.1)

    def told(self):
        return (self.statuses(), [self.waiting(each) for each in self.managers])

    @staticmethod
    def waiting(manager):
        followed = manager.nodb.queue.followed
        with followed.lock:
            queues = followed.queues
            return [
                (each.key[:4], each.state.value, each.reason[:60], each.not_before)
                for each in queues.ordered(manager.nodb.clock.now_seconds())
            ]

    def parked(self):
        return len(self.waiting(self.managers[0]))

    def activated(self):
        """Ids of servers in the order in which they became active."""
        return sorted(self.watched, key=self.watched.__getitem__)

    def usage(self):
        with self.managers[0].nodb.decisions.engine.lock:
            frame = self.managers[0].nodb.decisions.engine.frame
            has = frame.resource("VCPU")
            return has.used[frame.alive].tolist(), has.capacity[frame.alive].tolist()


class QueuedServersTest(QueuedCloud):
    def test_all_of_more_requests_than_there_is_room_for_have_been_active_in_order(self):
        asked = self.fill()
        for number in range(1, MORE + 1):
            asked.append(self.ask())
            self.until(lambda number=number: self.parked() == number, "it waits")
        self.assertEqual((MORE, 0), (self.count("BUILD"), self.count("ERROR")))
        waits = []
        for number in range(MORE):
            self._delete_server({"id": asked[number]})
            freed = time.monotonic()
            following = asked[ROOM + number]
            self.until(lambda following=following: self.statuses().get(following) == "ACTIVE")
            waits.append(round(time.monotonic() - freed, 1))
        sys.stderr.write(f"seconds from room to ACTIVE: {waits}\n")
        self.assertEqual(asked[ROOM:], self.activated()[ROOM:])
        self.assertEqual((ROOM, 0), (self.count("ACTIVE"), self.count("ERROR")))
        used, capacity = self.usage()
        self.assertTrue(all(a <= b for a, b in zip(used, capacity, strict=True)), (used, capacity))

    def test_who_is_deleted_while_it_waits_is_no_more_and_the_next_goes_on(self):
        first = self.fill()
        waiting = []
        for _ in range(2):
            waiting.append(self.ask())
            self.until(lambda: self.parked() == len(waiting))
        self.admin_api.delete_server(waiting[0])
        self._delete_server({"id": first[0]})
        self.until(lambda: self.statuses().get(waiting[1]) == "ACTIVE")
        self.assertNotIn(waiting[0], self.statuses())


class SeveralSchedulersTest(QueuedCloud):
    SCHEDULERS = 2

    def test_each_is_placed_once_whatever_its_class_and_size(self):
        high = self.make_flavor("high", 1, **{"nodb:class": "high"})
        two = self.make_flavor("two", 2)
        first = self.fill()
        waiting = [self.ask(flavor) for flavor in (self.flavor_id, high, two)]
        self.until(lambda: self.parked() == 3)
        for server in first[:4]:
            self._delete_server({"id": server})
        self.until(lambda: all(self.statuses().get(each) == "ACTIVE" for each in waiting))
        self.until(lambda: sum(self.usage()[0]) == ROOM, "as many as there are slots")
        self.assertEqual(0, self.parked())
