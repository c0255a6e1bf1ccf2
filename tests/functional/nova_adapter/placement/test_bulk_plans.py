# SPDX-License-Identifier: Apache-2.0
"""How many rows MariaDB reads for a page of trees, whatever it thinks of the tables."""

import uuid

import sqlalchemy as sa
import testtools
from placement.db.sqlalchemy import models

from nova_nodb_scheduler.nova_adapter.placement.mirror import bulk_import
from nova_nodb_scheduler.testing import servers

PROVIDERS, TRAITS, PAGE = 1000, 40, 50


class RowsReadTest(testtools.TestCase):
    def test_a_page_reads_its_own_rows_where_the_server_knows_little_of_its_tables(self) -> None:
        """As it took a trait for one that few providers have, at 100,000 with 70 traits each."""
        engine = sa.create_engine(self.useFixture(servers.MariaDB()).url)
        self.addCleanup(engine.dispose)
        models.BASE.metadata.create_all(engine)
        self.populate(engine)
        self.mislead(engine)
        with engine.connect() as connection:
            pages = after = 0
            before = self.rows_read(connection)
            connection.rollback()
            while True:
                bulk_import.begin(connection)
                page = bulk_import.read_page(connection, after, PAGE)
                connection.rollback()
                if page is None:
                    break
                pages, after = pages + 1, page.last
                for state in page.states.values():
                    self.assertEqual(TRAITS, len(state["traits"]))
            read = self.rows_read(connection) - before
        self.assertEqual(PROVIDERS // PAGE, pages)
        # Each trait of a provider, its name, and a few rows more; all of them for each page would
        # be 80,000.
        self.assertLess(read / pages, 4 * PAGE * TRAITS)

    def populate(self, engine: sa.Engine) -> None:
        ids = range(1, PROVIDERS + 1)
        with engine.begin() as connection:
            connection.execute(
                sa.insert(bulk_import.PROVIDERS),
                [
                    {
                        "id": each,
                        "uuid": str(uuid.uuid4()),
                        "name": f"host{each}",
                        "generation": 0,
                        "root_provider_id": each,
                    }
                    for each in ids
                ],
            )
            connection.execute(
                sa.insert(models.Trait),
                [{"id": trait, "name": f"CUSTOM_{trait}"} for trait in range(1, TRAITS + 1)],
            )
            connection.execute(
                sa.insert(models.ResourceProviderTrait),
                [
                    {"resource_provider_id": each, "trait_id": trait}
                    for each in ids
                    for trait in range(1, TRAITS + 1)
                ],
            )

    def mislead(self, engine: sa.Engine) -> None:
        """Have the server take a trait for one that few providers have, as its samples may."""
        with engine.begin() as connection:
            connection.exec_driver_sql("ANALYZE TABLE resource_provider_traits PERSISTENT FOR ALL")
            connection.exec_driver_sql(
                "UPDATE mysql.index_stats SET avg_frequency = 1 WHERE db_name = DATABASE() AND"
                " table_name = 'resource_provider_traits' AND index_name = 'PRIMARY'"
            )
        with engine.begin() as connection:
            connection.exec_driver_sql("FLUSH TABLES")

    def rows_read(self, connection: sa.Connection) -> int:
        found = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'")
        return sum(int(value) for _, value in found)
