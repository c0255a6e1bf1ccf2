# SPDX-License-Identifier: Apache-2.0
"""What looks for trouble names servers whose request the back end lost, and no others."""

from __future__ import annotations

import datetime
import uuid
from unittest import mock

import sqlalchemy as sa
from nova.db.api import models as api_models
from oslo_utils import timeutils

from nova_nodb_scheduler.cmd.doctor import findings, upgrade_findings
from nova_nodb_scheduler.cmd.overview import unkept_servers
from nova_nodb_scheduler.cmd.upgrade_check import check_command
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.unit.synchronizer.pending import made_requests

OLD_SECONDS = 2 * unkept_servers.OLD_SECONDS
Code = check_command.Code


class UnkeptServersTest(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        self.override("scheduler_driver", "nodb_queue", None)

    def ask(self, seconds: float = OLD_SECONDS) -> str:
        """Have the API's database hold a build request that is so old."""
        server = str(uuid.uuid4())
        at = timeutils.utcnow() - datetime.timedelta(seconds=seconds)
        row = {"instance_uuid": server, "project_id": "p", "created_at": at, "instance": "{}"}
        engine = sa.create_engine(self.urls["api"])
        self.addCleanup(engine.dispose)
        with engine.begin() as connection:
            connection.execute(sa.insert(api_models.BuildRequest.__table__).values(**row))
        return server

    def write(self, key: str, payload: bytes) -> None:
        name = records.RecordKey(known_namespaces.PENDING.name, key)
        self.assertTrue(self.synchronizer.write([records.Write(name, 0, payload)])[0].won)

    def keep(self, *servers: str) -> None:
        request = made_requests.newcomer(servers[0], servers, now_seconds=0.0, wait_seconds=60.0)
        self.write(request.key, codec.encode(request.to_state(), known_namespaces.PENDING.schema))

    def checked(self) -> tuple[Code, str]:
        checks = upgrade_findings.DoctorUpgradeChecks()
        checks.plugin = self.plugin
        result = dict(checks.all())["Servers that wait"](checks)
        return result.code, str(result.details)

    def test_those_that_an_emptied_back_end_forgot_are_named_with_what_to_do(self) -> None:
        first, second = self.ask(), self.ask()
        self.keep(first, second)
        self.assertEqual(Code.SUCCESS, self.checked()[0])
        # Emptied: all that it has is of a new epoch.
        self.hub.begin_epoch()
        code, text = self.checked()
        self.assertEqual(Code.WARNING, code)
        for wanted in (first, second, "2 servers", "openstack server delete"):
            self.assertIn(wanted, text)

    def test_who_asked_just_now_and_whose_record_cannot_be_read_are_not_named(self) -> None:
        self.ask(unkept_servers.OLD_SECONDS / 2)
        self.write(self.ask(), b"no record")
        self.assertEqual(Code.SUCCESS, self.checked()[0])

    def test_of_very_many_some_are_named_the_oldest_first(self) -> None:
        servers = [self.ask(OLD_SECONDS + number) for number in range(25)]
        _code, text = self.checked()
        self.assertIn("25 servers", text)
        self.assertIn("and 5 more", text)
        self.assertIn(servers[-1], text)
        self.assertNotIn(servers[0], text)

    def test_where_nobody_waits_none_is_looked_for(self) -> None:
        self.override("scheduler_driver", "nodb_scheduler", None)
        self.ask()
        self.assertEqual(Code.SUCCESS, self.checked()[0])

    def test_while_the_back_end_is_away_nobody_is_told_to_be_lost(self) -> None:
        self.ask()
        checks = upgrade_findings.DoctorUpgradeChecks()
        checks.plugin = self.plugin
        self.hub.faults.go_down()
        [found] = upgrade_findings.of(checks, check_command.UpgradeChecks.check_waiting)
        self.assertEqual(findings.Severity.UNKNOWN, found.severity)

    def test_the_epoch_that_changes_while_it_is_read_tells_nothing(self) -> None:
        client = memory.MemorySynchronizer(None, self.hub)
        interrupted = unkept_servers.contract.SnapshotInterrupted
        with mock.patch.object(client, "snapshot", autospec=True, side_effect=interrupted):
            self.assertRaises(
                unkept_servers.errors.BackendUnavailable, unkept_servers.find, client, self.fail
            )
