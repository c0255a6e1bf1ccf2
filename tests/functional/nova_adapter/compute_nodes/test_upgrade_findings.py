# SPDX-License-Identifier: Apache-2.0
"""What the upgrade check finds in a cell's database where records answer for compute nodes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from nova.db.main import api as main_db
from nova.db.main import models
from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler.cmd.overview import node_cells
from nova_nodb_scheduler.cmd.upgrade_check import judgements
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import nova_migrations
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import (
    cell_databases,
    transfer_case,
)

Code = upgradecheck.Code
_TABLE = models.ComputeNode.__table__
_VERSIONS = "alembic_version"


class _OneCell:
    """The databases of a cloud of one cell."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def context_for(self, _cell: str) -> Any:
        return self._context


class UpgradeFindingsTest(transfer_case.TransferCase, cell_databases.OnSQLite):
    def judged(self) -> upgradecheck.Result:
        mode = self.state().mode
        [found] = node_cells.gather(self.synchronizer, _OneCell(self.context), [cloud.CELL1], mode)
        self.assertIsNone(found.error)
        return judgements.result(judgements.judge_compute_nodes([found]))

    def test_on_its_way_there_and_back_a_cell_without_faults_is_well(self) -> None:
        self.populate()
        self.assertEqual(Code.SUCCESS, self.judged().code)
        for way in (lambda: self.there(keep_table=True), self.there, self.back):
            way().go()
            self.assertEqual(Code.SUCCESS, self.judged().code, self.judged().details)

    def test_devices_without_their_node_are_named_in_a_cell_that_is_retired(self) -> None:
        self.populate()
        self.there().go()
        self.device(9, 77)
        result = self.judged()
        self.assertEqual(Code.WARNING, result.code)
        self.assertIn("pci_devices.id 9 names compute node 77", result.details)
        self.assertNotIn("pci_devices.id 1 ", result.details)

    def test_migrations_to_come_are_named_where_the_table_is_away(self) -> None:
        self.populate()
        known, heads = nova_migrations._revisions()
        former = min(known - heads)
        engine = main_db.get_engine(context=self.context)
        with engine.begin() as connection:
            connection.execute(sa.text(f"UPDATE {_VERSIONS} SET version_num = '{former}'"))
        self.assertEqual(Code.SUCCESS, self.judged().code)
        self.there().go()
        result = self.judged()
        self.assertEqual(Code.WARNING, result.code)
        self.assertIn(f"have not run on cell {cloud.CELL1}", result.details)
        self.transfer.prepared(self.context, cloud.CELL1).go()
        result = self.judged()
        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn("run 'nova-manage db sync', then take it away", result.details)

    def test_a_row_that_a_service_without_the_plugin_wrote_behind_records_is_told(self) -> None:
        self.populate()
        self.there(keep_table=True).go()
        with main_db.get_engine(context=self.context).begin() as connection:
            connection.execute(sa.insert(_TABLE).values(**cell_databases.row(50)))
        result = self.judged()
        self.assertEqual(Code.FAILURE, result.code)
        self.assertIn(f"cell {cloud.CELL1} has rows that no record holds", result.details)


class NovaMigrationsTest(cloud.CloudCase):
    """Whether a database is behind the installed Nova is told by its own revisions."""

    def are_outstanding_at(self, *revisions: str) -> bool:
        engine = sa.create_engine(self.urls[cloud.CELL2])
        try:
            with engine.begin() as connection:
                connection.execute(sa.text(f"CREATE TABLE {_VERSIONS} (version_num VARCHAR(32))"))
                for each in revisions:
                    connection.execute(sa.text(f"INSERT INTO {_VERSIONS} VALUES ('{each}')"))
            return nova_migrations.are_outstanding(self.context(cloud.CELL2))
        finally:
            with engine.begin() as connection:
                connection.execute(sa.text(f"DROP TABLE {_VERSIONS}"))
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
