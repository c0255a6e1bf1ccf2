# SPDX-License-Identifier: Apache-2.0
"""Whether a cell's database is behind the installed Nova is told by its own revisions."""

from __future__ import annotations

import sqlalchemy as sa

from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import nova_migrations
from tests.functional.nova_adapter import cloud

_TABLE = "alembic_version"


class NovaMigrationsTest(cloud.CloudCase):
    def are_outstanding_at(self, *revisions: str) -> bool:
        engine = sa.create_engine(self.urls[cloud.CELL2])
        try:
            with engine.begin() as connection:
                connection.execute(sa.text(f"CREATE TABLE {_TABLE} (version_num VARCHAR(32))"))
                for each in revisions:
                    connection.execute(sa.text(f"INSERT INTO {_TABLE} VALUES ('{each}')"))
            return nova_migrations.are_outstanding(self.context(cloud.CELL2))
        finally:
            with engine.begin() as connection:
                connection.execute(sa.text(f"DROP TABLE {_TABLE}"))
            engine.dispose()

    def test_a_database_at_the_last_revision_awaits_nothing(self) -> None:
        _known, heads = nova_migrations._revisions()
        self.assertFalse(self.are_outstanding_at(*heads))

    def test_one_at_an_earlier_revision_awaits_the_others(self) -> None:
        known, heads = nova_migrations._revisions()
        self.assertGreater(len(known), 1)
        for each in sorted(known - heads):
            self.assertTrue(self.are_outstanding_at(each))

    def test_one_of_a_later_nova_or_of_no_migration_is_not_judged(self) -> None:
        self.assertFalse(self.are_outstanding_at("f" * 12))
        self.assertFalse(self.are_outstanding_at())
        self.assertFalse(nova_migrations.are_outstanding(self.context(cloud.CELL1)))
