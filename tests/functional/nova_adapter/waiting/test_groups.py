# SPDX-License-Identifier: Apache-2.0
"""A member of a server group waits for a host that its group's policy allows."""

from __future__ import annotations

import uuid

from nova import objects

from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.waiting import queue_cloud


class GroupTest(queue_cloud.QueueCase):
    def setUp(self):
        super().setUp()
        self.member = self.instance(cloud.CELL1, "h1").uuid
        self.reporter.flush()
        self.follow()
        self.uuid = str(uuid.uuid4())
        objects.InstanceGroup(
            self.admin,
            uuid=self.uuid,
            project_id="project",
            user_id="user",
            name="apart",
            policy="anti-affinity",
            members=[self.member],
        ).create()

    def group(self):
        """Return the group as a conductor hands it to the scheduler."""
        found = objects.InstanceGroup.get_by_uuid(self.admin, self.uuid)
        found.hosts = ["h1"]
        found.obj_reset_changes()
        return found

    def test_it_is_not_tried_on_a_host_that_its_group_rules_out(self):
        first = [self.conductor.ask(spec={"force_hosts": ["h2"]}) for _ in range(2)]
        self.assertEqual(2, self.used("h2")["VCPU"])
        key = self.conductor.ask(queue="apart", spec={"instance_group": self.group()})
        self.assertEqual([key], self.waiting())
        # Room on h1 is freed, or was there all along: no reason to wake it.
        taken = self.conductor.ask(spec={"force_hosts": ["h1"]})
        self.delete(taken)
        for _ in range(20):
            self.turn()
            self.pause(0.05)
        self.assertEqual(1, self.request(key).grant.attempt)
        self.delete(first[0])
        self.until(lambda: key in self.placed())
        self.assertEqual("h2", self.host_of(key))
        self.assertEqual(2, self.conductor.placed[-1].attempt)
