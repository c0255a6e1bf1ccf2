# SPDX-License-Identifier: Apache-2.0
"""What Nova's own conductor tells of servers that wait; run by :mod:`.test_waking_events`."""

from tests.functional.nova_adapter.waiting import waiting_cloud  # noqa: I001 - Nova's first

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.testing import patience
from tests.functional.zaqar import zaqar_server

_QUEUE = "of-conductors"


class ToldServersTest(waiting_cloud.WaitingCloud):
    OPTIONS = {"zaqar_queue": _QUEUE}

    def make_plugin(self):
        self.zaqar = self.useFixture(zaqar_server.Zaqar())
        plugin = super().make_plugin()
        self.flags(
            group="nodb_queue_zaqar",
            signing_key=zaqar_server.SECRET,
            endpoint_override=self.zaqar.url,
        )
        return plugin

    def told(self, project_id, count):
        """Return the events of a project, once there are so many."""
        tenant = self.zaqar.tenant(project_id, _QUEUE)
        patience.wait_until(
            lambda: len(tenant.messages()) >= count,
            waiting_cloud.PATIENCE_SECONDS,
            lambda: f"{count} events: {tenant.messages()}",
        )
        return tenant.messages()

    def test_a_project_reads_how_its_servers_wait_and_what_becomes_of_them(self):
        first, _ = self.fill()
        placed = self.ask()[0]
        project = self.waits(placed).project_id
        self.make_room(first)
        self.grant(placed)
        self.active(placed)
        late = self.ask(wait_seconds=120)[0]
        self.waits(late)
        self.pass_time(130)
        self.grant(late, pending.Purpose.EXPIRE)
        self.comes_to(late, "ERROR")
        unwanted = self.ask()[0]
        self.waits(unwanted)
        self.grant(unwanted, pending.Purpose.CANCEL)
        self.comes_to(unwanted, "ERROR")
        told = self.told(project, 6)
        self.assertEqual(
            [
                ("parked", placed),
                ("placed", placed),
                ("parked", late),
                ("expired", late),
                ("parked", unwanted),
                ("cancelled", unwanted),
            ],
            [(event["event"], *event["servers"]) for event in told],
        )
        self.assertIn("No valid host", told[0]["reason"])
        for event in told:
            self.assertNotIn("host1", str(event))
