# SPDX-License-Identifier: Apache-2.0
"""What sequencer mode says of a batch whose database goes away behind the commit."""

import contextlib
import pathlib
import sqlite3
import tempfile
import unittest

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver

NEW, STANDING = records.RecordKey("pools", "new"), records.RecordKey("pools", "standing")


class SequencedWritesTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = directory / "nodb.sqlite"
        self.client = driver.SQLAlchemySynchronizer(
            driver.SQLOptions(f"sqlite:///{self.path}", ordering="sequencer", timeout_seconds=1.0)
        )
        self.addCleanup(self.client.close)
        self.client.open()
        self.client.write([records.Write(STANDING, 0, b"x")])

    def rename(self, former: str, new: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(f"ALTER TABLE {former} RENAME TO {new}")

    def lose_records_at(self, step: str) -> None:
        def on_step(name: str) -> None:
            if name == step:
                self.client.on_step = lambda _name: None
                self.rename("nodb_record", "gone")

        self.client.on_step = on_step  # type: ignore[method-assign]

    def test_writes_that_were_committed_are_not_said_to_be_unwritten(self) -> None:
        self.lose_records_at("reply")
        won, lost = self.client.write(
            [records.Write(NEW, 0, b"x"), records.Write(STANDING, 0, b"y")]
        )
        self.assertIs(records.Verdict.WON, won.verdict)
        self.assertIs(records.Verdict.UNKNOWN, lost.verdict)

    def test_of_writes_that_all_lost_it_is_said_that_nothing_was_written(self) -> None:
        self.lose_records_at("reply")
        with self.assertRaises(errors.BackendUnavailable):
            self.client.write([records.Write(STANDING, 0, b"y")])
