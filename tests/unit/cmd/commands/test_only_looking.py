# SPDX-License-Identifier: Apache-2.0
"""Commands that only look: they do not make the store that they look at."""

import contextlib
import pathlib
import sqlite3
import types

import fixtures
import testtools
from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.commands import database_schema
from nova_nodb_scheduler.cmd.overview import process_reports
from nova_nodb_scheduler.cmd.upgrade_check import check_command
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.migration import migration_fence


class LookingTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.file = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "nodb.sqlite"
        self.url = f"sqlite:///{self.file}"

    def synchronizer(self, url=None, **more):
        return migration_fence.FencedSynchronizer(
            driver.SQLAlchemySynchronizer(driver.SQLOptions(url or self.url, **more))
        )

    def plugin(self):
        conf = cfg.ConfigOpts()
        driver.SQLAlchemySynchronizer.register_opts(conf)
        conf.set_override("connection", self.url, group="nodb_sqlalchemy")
        return types.SimpleNamespace(
            conf=conf, options=types.SimpleNamespace(synchronizer="sqlalchemy")
        )

    def checks(self):
        checks = check_command.UpgradeChecks()
        checks.plugin = self.plugin()
        return checks

    def assert_nothing_made(self):
        self.assertEqual([], list(self.file.parent.iterdir()))

    def test_status_and_checks_make_no_file_and_say_what_does(self):
        found = process_reports.read_backend(self.synchronizer())

        self.assertIn("does not exist yet", found.error)
        self.assertIn("first service that starts", found.error)
        self.assertIn("db sync", found.error)
        self.assert_nothing_made()

    def test_a_file_that_is_named_by_uri_is_not_made_either(self):
        url = f"sqlite:///file:{self.file}?uri=true"

        self.assertIn(
            "does not exist yet", process_reports.read_backend(self.synchronizer(url)).error
        )
        self.assert_nothing_made()

    def test_a_schema_is_not_migrated_by_looking(self):
        self.file.touch()

        for auto_upgrade in (False, True):
            found = process_reports.read_backend(self.synchronizer(auto_upgrade=auto_upgrade))
            self.assertIn("revision none", found.error)
        with contextlib.closing(sqlite3.connect(self.file)) as connection:
            self.assertEqual([], connection.execute("SELECT name FROM sqlite_master").fetchall())

    def test_a_store_that_a_service_made_is_read(self):
        service = self.synchronizer()
        service.open()
        self.addCleanup(service.close)

        self.assertIsNone(process_reports.read_backend(self.synchronizer()).error)
        url = f"sqlite:///file:{self.file}?uri=true"
        self.assertIsNone(process_reports.read_backend(self.synchronizer(url)).error)

    def test_the_upgrade_check_of_the_schema_makes_no_file(self):
        result = self.checks().check_schema()

        self.assertEqual(upgradecheck.Code.FAILURE, result.code)
        self.assertIn("does not exist yet", result.details)
        self.assert_nothing_made()

    def test_the_upgrade_check_of_the_schema_reads_what_a_service_made(self):
        with_service = self.synchronizer()
        with_service.open()
        self.addCleanup(with_service.close)

        self.assertEqual(upgradecheck.Code.SUCCESS, self.checks().check_schema().code)

    def test_of_the_database_commands_only_the_migration_makes_the_file(self):
        for kind in (database_schema.Version, database_schema.Check):
            command = kind(None, None)
            command.plugin = self.plugin
            with testtools.ExpectedException(errors.StoreMissing), command.engine():
                self.fail("an engine on nothing")
        self.assert_nothing_made()

        command = database_schema.Sync(None, None)
        command.plugin = self.plugin
        with command.engine(makes=True) as engine, engine.connect():
            pass
        self.assertTrue(self.file.exists())
