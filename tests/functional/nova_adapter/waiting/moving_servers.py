# SPDX-License-Identifier: Apache-2.0
"""What becomes of a server whose move no scheduler could look for hosts for; run by
:mod:`.test_waiting`.

Nova's conductor takes errors of a scheduler in many ways; in some it gives up the server.
"""

from tests.functional.nova_adapter.waiting import waiting_cloud  # noqa: I001 - Nova's first

import contextlib
from unittest import mock

import oslo_messaging
from nova.scheduler import rpcapi
from nova.scheduler.client import query
from nova.tests.functional.api import client as api_client

from nova_nodb_scheduler.nova_adapter.reads import unread_cells
from nova_nodb_scheduler.testing import patience

_ASKING = ("select_destinations", query.SchedulerQueryClient.select_destinations)


class MovingServersTest(waiting_cloud.WaitingCloud):
    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, query.SchedulerQueryClient, *_ASKING)
        unread_cells.install_in_conductor()
        self.other = self.start_service("compute", host="host2")
        self.server = self.active(self.ask(wait_seconds=None)[0])
        self.host = self.shown()["OS-EXT-SRV-ATTR:host"]

    def shown(self):
        return self.admin_api.get_server(self.server)

    @contextlib.contextmanager
    def unread(self):
        error = unread_cells.HostsNotRead("Cell c1: the back end is away.")
        with mock.patch.object(
            rpcapi.SchedulerAPI,
            "select_destinations",
            autospec=True,
            side_effect=oslo_messaging.RemoteError(type(error).__name__, str(error), []),
        ) as asked:
            yield
            patience.wait_until(lambda: asked.called, 60, "a scheduler is asked", 0.1)
            patience.wait_until(
                lambda: self.shown()["OS-EXT-STS:task_state"] is None, 60, self.shown, 0.1
            )

    def migrations(self):
        found = self.admin_api.api_get(f"/os-migrations?instance_uuid={self.server}")
        return [each["status"] for each in found.body["migrations"]]

    def do(self, **action):
        with contextlib.suppress(api_client.OpenStackApiException):
            self.admin_api.post_server_action(self.server, action)

    def test_one_that_shall_be_moved_live_runs_on(self):
        with self.unread():
            self.do(**{"os-migrateLive": {"host": None, "block_migration": "auto"}})
        self.assertEqual("ACTIVE", self.shown()["status"])
        self.assertEqual(["error"], self.migrations())

    def test_one_that_shall_be_moved_runs_on(self):
        with self.unread():
            self.do(migrate=None)
        self.assertEqual("ACTIVE", self.shown()["status"])

    def test_one_that_shall_be_evacuated_may_be_evacuated_again(self):
        service = self.admin_api.get_services(binary="nova-compute", host=self.host)[0]
        down = {"forced_down": True}
        self.admin_api.put_service(service["id"], down)
        with self.unread():
            self.do(evacuate={})
        self.assertEqual("ERROR", self.shown()["status"])
        self.assertEqual(["error"], self.migrations())
        self.do(evacuate={})
        self.active(self.server)
        self.assertNotEqual(self.host, self.shown()["OS-EXT-SRV-ATTR:host"])
