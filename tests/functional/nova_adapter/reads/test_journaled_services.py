# SPDX-License-Identifier: Apache-2.0
"""Nova's services as schedulers build them have the times that journals tell."""

from __future__ import annotations

import datetime

from nova import objects

from nova_nodb_scheduler.nova_adapter.reads import request_views
from nova_nodb_scheduler.scheduling.facts import journal_follower, journal_reader
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.reporting import test_journaled_heartbeats


class ServiceTest(test_journaled_heartbeats.JournalCase):
    def test_a_service_is_told_what_its_journal_says(self) -> None:
        made = self.journaling()
        service = self.service(cloud.CELL1, "h1")
        made.flush()
        for _ in range(3):
            self.heartbeat(service)
        made.flush()
        reader = journal_reader.JournalReader(
            lambda: journal_follower.JournalFollower(3.0, 90.0), lambda: "e1"
        )
        snapshot = self.store().snapshot()
        built = request_views.BuiltObjects()
        by_records, by_both = (
            request_views.MemoryReads(snapshot, 1, built, self.admin, heard).services(
                cloud.CELL1, ["h1"]
            )["h1"]
            for heard in (None, reader.look(snapshot))
        )
        self.assertEqual((0, 3), (by_records.report_count, by_both.report_count))
        row = objects.Service.get_by_uuid(self.context(cloud.CELL1), service.uuid)
        self.assertIsNone(by_records.last_seen_up)
        apart = abs(by_both.last_seen_up - row.last_seen_up)
        self.assertLess(apart, datetime.timedelta(seconds=2))
        self.assertEqual(by_both.last_seen_up, by_both.updated_at)
        # And so is who lists hosts.
        tell = journal_reader.telling(reader.look(snapshot))
        liveness = known_namespaces.SERVICE_LIVENESS.name
        state = snapshot.namespace(liveness).state(service.uuid)
        assert state is not None
        self.assertEqual(3, tell(liveness, service.uuid, state)["report_count"])
        self.assertIs(state, tell("services", service.uuid, state))
        self.assertIs(state, journal_reader.telling(None)(liveness, service.uuid, state))
