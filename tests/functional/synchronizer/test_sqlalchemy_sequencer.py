# SPDX-License-Identifier: Apache-2.0
"""Sequencer mode of the SQL driver: claims, and what only this mode has to keep."""

from __future__ import annotations

from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from tests.functional.synchronizer import test_claims


class _Sequencer:
    """Claims over the sequencer."""

    url: str

    def make_synchronizer(self) -> driver.SQLAlchemySynchronizer:
        return driver.SQLAlchemySynchronizer(
            driver.SQLOptions(
                self.url,
                poll_interval_seconds=0.02,
                timeout_seconds=20.0,
                auto_upgrade=True,
                ordering="sequencer",
            )
        )


class TestClaimsSQLite(_Sequencer, test_claims.TestSQLite):
    pass


class TestClaimsMariaDB(_Sequencer, test_claims.TestMariaDB):
    pass


class TestClaimsPostgreSQL(_Sequencer, test_claims.TestPostgreSQL):
    pass
