# SPDX-License-Identifier: Apache-2.0
"""Requests that a scheduler takes up behind their callers' patience, with a real Placement."""

from __future__ import annotations

import datetime
import threading
from typing import Any
from unittest import mock

import fixtures
import sqlalchemy as sa
from nova import context as nova_context
from nova import exception
from nova.db.main import models as main_models
from oslo_utils import timeutils

from nova_nodb_scheduler.nova_adapter import manager
from nova_nodb_scheduler.nova_adapter.decisions import late_requests
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions

#: Of a request that waited for longer than Nova's conductors wait.
LATE = datetime.timedelta(seconds=100)


class LateRequestsTest(test_memory_decisions.MemoryDecisionsCase):
    def ask_late(
        self,
        server: Any,
        waited: datetime.timedelta = LATE,
        at: datetime.datetime | None = None,
    ) -> Any:
        """Have a host chosen for a server as it stands, by a request of a while ago."""
        self.reporter.flush()
        self.follow()
        self.calls.clear()
        context = nova_context.get_admin_context()
        context.timestamp = at or timeutils.utcnow() - waited
        try:
            return self.manager.select_destinations(
                context,
                spec_obj=self.spec([server.uuid]),
                instance_uuids=[server.uuid],
                return_objects=True,
                return_alternates=True,
            )
        except manager.messaging.ExpectedException as wrapped:
            raise wrapped.exc_info[1] from None

    def assert_given_up(self, server: Any) -> None:
        with self.assertRaises(exception.NoValidHost):
            self.ask_late(server)
        self.assertEqual({}, dict(self.calls))
        self.assertEqual(1, self.runtime.outcomes()["given_up"])

    def test_a_server_that_was_buried_meanwhile_is_given_nothing(self):
        self.assert_given_up(self.instance(cloud.CELL0, None, vm_state="error"))

    def test_so_is_one_that_its_user_deleted_from_there(self):
        server = self.instance(cloud.CELL0, None, vm_state="error")
        server.destroy()
        self.assert_given_up(server)

    def test_a_server_that_goes_on_where_it_is_is_given_no_second_host(self):
        self.assert_given_up(self.instance(cloud.CELL1, "h1", vm_state="active"))

    def test_one_that_is_waited_for_is_placed_however_late(self):
        builds = self.instance(cloud.CELL1, None, vm_state="building", task_state="scheduling")
        self.assertEqual(1, len(self.ask_late(builds)))
        moves = self.instance(cloud.CELL1, "h1", vm_state="active", task_state="resize_prep")
        self.assertEqual(1, len(self.ask_late(moves)))

    def test_a_database_has_the_last_word_of_what_was_to_move(self):
        """Memory may be behind: Nova sets the task, and sends the request at once."""
        server = self.instance(cloud.CELL1, "h1", vm_state="active")
        self.write_behind_memory(server, task_state="resize_prep")
        self.assertEqual(1, len(self.ask_late(server)))

    def test_so_it_has_of_what_lost_its_host(self):
        """A conductor sends a server again whose build ended before it began: no task either."""
        server = self.instance(cloud.CELL1, "h1", vm_state="building")
        self.write_behind_memory(server, host=None, node=None)
        self.assertEqual(1, len(self.ask_late(server)))

    def test_so_it_has_of_what_moved_to_another_cell(self):
        """What is left of it where it was has no task, and tells nothing."""
        server = self.instance(cloud.CELL1, "h1", vm_state="active")
        self.write_behind_memory(server, hidden=True)
        self.assertEqual(1, len(self.ask_late(server)))

    def test_a_time_that_tells_its_zone_is_no_fault(self):
        server = self.instance(cloud.CELL1, "h1", vm_state="active", task_state="resize_prep")
        at = timeutils.utcnow(with_timezone=True) - LATE
        self.assertEqual(1, len(self.ask_late(server, at=at)))

    def test_a_database_that_does_not_answer_keeps_nobody(self):
        server = self.instance(cloud.CELL1, "h1", vm_state="active", task_state=None)
        answer = threading.Event()
        self.addCleanup(answer.set)
        selects = mock.Mock(
            side_effect=lambda *args: answer.wait(test_memory_decisions.WAIT_SECONDS) and []
        )
        self.use(fixtures.MonkeyPatch(f"{late_requests.__name__}._select", selects))
        self.use(fixtures.MonkeyPatch(f"{late_requests.__name__}.ANSWER_SECONDS", 0.1))
        self.assertEqual(1, len(self.ask_late(server)))
        self.assertFalse(answer.is_set())
        # Nor is one asked that owes an answer.
        self.assertEqual(1, len(self.ask_late(server)))
        self.assertEqual(1, selects.call_count)

    def write_behind_memory(self, server: Any, **values: Any) -> None:
        """Change a server's row once memory has it, and have nobody told."""
        self.reporter.flush()
        self.follow()
        instances = main_models.Instance.__table__
        engine = sa.create_engine(self.urls[cloud.CELL1])
        self.addCleanup(engine.dispose)
        with engine.begin() as connection:
            named = sa.update(instances).where(instances.c.uuid == server.uuid)
            connection.execute(named.values(**values))

    def test_nobody_looks_at_a_request_that_came_in_time(self):
        server = self.instance(cloud.CELL1, "h1", vm_state="active")
        self.assertEqual(1, len(self.ask_late(server, datetime.timedelta(seconds=50))))
