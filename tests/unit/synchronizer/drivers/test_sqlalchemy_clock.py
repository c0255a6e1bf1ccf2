# SPDX-License-Identifier: Apache-2.0
"""The database's time, by which leases end, as a client of the SQL driver tells it."""

import pathlib
import tempfile
import time
import unittest
from unittest import mock

from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import statements
from nova_nodb_scheduler.synchronizer.drivers.support import clocks


class DatabaseClockTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.client = driver.SQLAlchemySynchronizer(
            driver.SQLOptions(f"sqlite:///{directory / 'nodb.sqlite'}")
        )
        self.addCleanup(self.client.close)
        self.client.open()

    def set_back(self, seconds: float) -> None:
        expression = f"{statements.CLOCKS['sqlite']} - {seconds}"
        self.enterContext(mock.patch.dict(statements.CLOCKS, sqlite=expression))

    def test_a_clock_that_was_set_back_a_little_is_followed(self) -> None:
        self.client.now_seconds()
        self.set_back(0.4)
        time.sleep(clocks.CACHE_SECONDS + 0.1)
        self.assertAlmostEqual(time.time() - 0.4, self.client.now_seconds(), delta=0.1)

    def test_what_was_told_does_not_run_back_by_a_little(self) -> None:
        before = self.client.now_seconds()
        self.set_back(0.4)
        with mock.patch.object(clocks, "CACHE_SECONDS", 0.0):
            self.assertGreaterEqual(self.client.now_seconds(), before)
