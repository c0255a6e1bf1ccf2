# SPDX-License-Identifier: Apache-2.0
"""The SQL driver in sequencer mode on a real Galera cluster, written through both nodes."""

from __future__ import annotations

import itertools
import unittest
from typing import ClassVar

from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.testing import conformance, galera_server
from tests.functional.synchronizer.drivers import emptied_case


class BothNodes(unittest.TestCase):
    """Gives the clients of a test the nodes in turn."""

    urls: tuple[str, ...]

    def setUp(self) -> None:
        super().setUp()
        self.urls = self.enterContext(galera_server.Galera()).urls
        self._turns = itertools.cycle(self.urls)

    def sql_options(self, url: str) -> driver.SQLOptions:
        return driver.SQLOptions(
            url,
            poll_interval_seconds=0.02,
            timeout_seconds=20.0,
            auto_upgrade=True,
            ordering="sequencer",
        )

    def make_synchronizer(self) -> driver.SQLAlchemySynchronizer:
        return driver.SQLAlchemySynchronizer(self.sql_options(next(self._turns)))


class TestConformanceGalera(BothNodes, conformance.ConformanceSuite):
    def restart_backend(self) -> None:
        self.skipTest("the durability of a node is MariaDB's, which another test restarts")


class TestClaimsGalera(BothNodes, emptied_case.EmptiedCase):
    database: ClassVar[galera_server.Galera]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.database = cls.enterClassContext(galera_server.Galera())

    def setUp(self) -> None:
        self.urls = self.database.urls
        self._turns = itertools.cycle(self.urls)
        emptied_case.EmptiedCase.setUp(self)
