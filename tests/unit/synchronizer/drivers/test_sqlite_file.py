# SPDX-License-Identifier: Apache-2.0
"""The SQLite file is its owner's alone, whatever the umask says."""

import os
import pathlib
import stat
import tempfile
import unittest

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines

LOG = "nova_nodb_scheduler.synchronizer.drivers.sqlalchemy.engines"


class SQLiteFileTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = self.directory / "nodb.sqlite"
        self.addCleanup(os.umask, os.umask(0o022))

    def modes(self) -> dict[str, int]:
        return {each.name: stat.S_IMODE(each.stat().st_mode) for each in self.directory.iterdir()}

    def open(self) -> driver.SQLAlchemySynchronizer:
        synchronizer = driver.SQLAlchemySynchronizer(driver.SQLOptions(f"sqlite:///{self.path}"))
        self.addCleanup(synchronizer.close)
        synchronizer.open()
        synchronizer.write([records.Write(records.RecordKey("pools", "a"), 0, b"x")])
        return synchronizer

    def test_nobody_else_may_read_the_file_its_log_and_its_shared_memory(self) -> None:
        os.umask(0)
        self.open()

        names = {f"nodb.sqlite{end}" for end in ("", "-wal", "-shm")}
        self.assertEqual(dict.fromkeys(names, 0o600), self.modes())

    def test_a_file_of_a_former_release_is_closed_to_others(self) -> None:
        self.open()
        for name in self.modes():
            (self.directory / name).chmod(0o644)

        with self.assertLogs(LOG, "WARNING") as logged:
            self.open()

        self.assertEqual({0o600}, set(self.modes().values()))
        self.assertIn("everybody", logged.output[0])

    def test_what_an_operator_gave_to_a_group_stays_the_groups(self) -> None:
        self.path.touch(0o660)
        self.path.chmod(0o660)

        self.open()

        self.assertEqual({0o660}, set(self.modes().values()))

    def test_a_directory_that_everybody_writes_is_refused(self) -> None:
        self.directory.chmod(0o777)

        with self.assertRaises(errors.ConfigurationError) as refused:
            self.open()

        self.assertIn(f"chmod o-w {self.directory}", str(refused.exception))
        self.assertEqual({}, self.modes())

    def test_one_in_which_nobody_may_replace_anothers_file_is_warned_of(self) -> None:
        self.directory.chmod(0o1777)

        with self.assertLogs(LOG, "WARNING") as logged:
            self.open()

        self.assertIn(str(self.directory), logged.output[0])

    @unittest.skipIf(os.geteuid(), "it takes root to make a file for another")
    def test_what_root_makes_belongs_to_the_directorys_owner(self) -> None:
        os.chown(self.directory, 4242, 4243)

        engines.prepare_sqlite_file(str(self.path), "[nodb_sqlalchemy] connection")

        found = self.path.stat()
        self.assertEqual((4242, 4243), (found.st_uid, found.st_gid))
