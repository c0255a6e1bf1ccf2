# SPDX-License-Identifier: Apache-2.0
"""A cell's table is taken away and brought back, in databases that Nova's migrations made."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

import sqlalchemy as sa
from alembic import operations
from alembic.runtime import migration
from nova.db.main import api as main_db
from oslo_db import exception as db_exception

from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import table_retirement
from tests.functional.nova_adapter.compute_nodes import cell_databases, nova_table
from tests.functional.nova_adapter.compute_nodes.cell_databases import deleted, row

THERE, AWAY = table_retirement.TablePlace.THERE, table_retirement.TablePlace.AWAY
NOVAS_KEY = table_retirement.NOVAS_KEY


class Retirement(cell_databases.CellDatabaseCase):
    """What holds for each kind of database.

    :cvar by_rows: the next id goes by the rows that are there, and no key is enforced
    """

    by_rows = False

    def retire(self) -> list[node_rows.Row]:
        """Take the table away as it is done, and return the rows it had."""
        self.table.drop_key()
        self.table.take_away()
        held = [each for page in self.table.pages() for each in page]
        self.table.empty()
        return held

    def restore(
        self,
        rows: list[node_rows.Row],
        next_id: int,
        key: table_retirement.ForeignKey = NOVAS_KEY,
    ) -> None:
        self.table.fill(rows)
        self.table.bring_back()
        self.table.continue_ids(next_id)
        self.table.add_key(key)

    def shape(self) -> Any:
        """Return what the database says of the two tables."""
        inspector = sa.inspect(nova_table.engine())
        found = {}
        for name in ("compute_nodes", "pci_devices"):
            found[name] = {
                "columns": [
                    {each: str(value) for each, value in column.items()}
                    for column in inspector.get_columns(name)
                ],
                "indexes": sorted(map(str, inspector.get_indexes(name))),
                "unique": sorted(map(str, inspector.get_unique_constraints(name))),
                "keys": inspector.get_foreign_keys(name),
                "primary": inspector.get_pk_constraint(name),
            }
        return found

    def test_there_and_back_schema_rows_and_ids_are_as_they_were(self) -> None:
        rows = [row(1), deleted(2), row(7, host="hé", host_ip="2001:db8::1"), deleted(9)]
        nova_table.fill(rows)
        self.device(1, 7)
        self.device(2, 9, deleted=2)
        before, shape = self.rows(), self.shape()
        held = self.retire()
        self.assertEqual((AWAY, None), (self.table.place(), self.table.foreign_key()))
        self.assertEqual([], self.rows())
        # In another order than that of ids.
        self.restore(held[::-1], 10)
        self.assertEqual((THERE, NOVAS_KEY), (self.table.place(), self.table.foreign_key()))
        self.assertEqual((before, shape), (self.rows(), self.shape()))
        self.assertEqual((2, 2), self.table.counts())
        self.assertEqual({7: [1], 9: [2]}, self.table.devices())

    def test_each_step_again_changes_nothing(self) -> None:
        nova_table.fill([row(1)])
        self.table.drop_key()
        self.table.take_away()
        away = self.dump()
        self.table.drop_key()
        self.table.take_away()
        self.assertEqual(away, self.dump())
        held = [each for page in self.table.pages() for each in page]
        self.assertEqual(0, self.table.fill(held))
        self.table.bring_back()
        self.table.add_key(NOVAS_KEY)
        back = self.dump()
        self.table.bring_back()
        self.table.add_key(NOVAS_KEY)
        self.assertEqual(0, self.table.fill(held))
        self.assertEqual(back, self.dump())

    def test_a_key_of_another_name_and_rule_comes_back_as_it_was(self) -> None:
        other = table_retirement.ForeignKey("ours", {"ondelete": "CASCADE"})
        self.table.drop_key()
        self.table.add_key(other)
        self.assertEqual(other, self.table.foreign_key())
        nova_table.fill([row(3)])
        held = self.retire()
        self.restore(held, 4, other)
        self.assertEqual(other, self.table.foreign_key())
        self.table.drop_key()

    def test_a_new_row_has_an_id_above_all_that_were_given_meanwhile(self) -> None:
        nova_table.fill([row(3)])
        held = self.retire()
        self.restore(held, 3 if self.by_rows else 41)
        values = row(4)
        del values["id"]
        made = main_db.compute_node_create(self.context, values)
        self.assertEqual(4 if self.by_rows else 41, made.id)

    def test_what_was_filled_in_part_is_filled_up_and_what_is_too_much_goes(self) -> None:
        nova_table.fill([])
        self.retire()
        rows = [row(number) for number in range(1, 8)]
        self.table.fill(rows[:3])
        # Meanwhile names went round, and a row was archived.
        wanted = [
            {**rows[0], "host": "h2", "hypervisor_hostname": "n2"},
            {**rows[1], "host": "h1", "hypervisor_hostname": "n1"},
            *rows[3:],
        ]
        self.assertEqual(len(wanted), self.table.fill(wanted))
        self.assertEqual(
            [(each["id"], each["host"]) for each in wanted],
            [(each["id"], each["host"]) for each in self.rows()],
        )

    def test_more_rows_than_a_page_holds_come_back(self) -> None:
        rows = [row(number) for number in range(1, 430)]
        nova_table.fill([])
        self.retire()
        self.restore(rows, 430)
        self.assertEqual([each["id"] for each in rows], [each["id"] for each in self.rows()])

    def test_novas_archiving_and_purging_bear_that_it_is_away(self) -> None:
        nova_table.fill([row(1), deleted(2)])
        self.device(1, 2, deleted=1, deleted_at=nova_table.MOMENT)
        self.retire()
        moved, _uuids, total = main_db.archive_deleted_rows(self.context, max_rows=100)
        self.assertEqual(({"pci_devices": 1}, 1), (dict(moved), total))
        self.assertEqual(1, main_db.purge_shadow_tables(self.context, None))
        self.assertEqual(AWAY, self.table.place())

    def test_db_sync_at_head_does_nothing_while_it_is_away(self) -> None:
        self.retire()
        before = self.dump()
        cell_databases.migrate(self.url)
        self.assertEqual(before, self.dump())

    def test_a_device_without_its_node_keeps_the_key_from_being_added(self) -> None:
        self.retire()
        self.device(5, 77)
        self.assertEqual({77: [5]}, self.table.devices())
        self.table.bring_back()
        if self.by_rows:
            return
        with self.assertRaises((db_exception.DBError, sa.exc.IntegrityError)):
            self.table.add_key(NOVAS_KEY)
        self.assertIsNone(self.table.foreign_key())

    def test_the_table_that_is_there_is_never_emptied(self) -> None:
        nova_table.fill([row(1)])
        with self.assertRaisesRegex(table_retirement.TableMissing, "neither|both|there"):
            self.table.empty()
        self.assertEqual(1, len(self.rows()))

    def test_two_tables_or_none_are_named_and_left_alone(self) -> None:
        nova_table.fill([row(1)])
        self.retire()
        self.rename("shadow_nodb_compute_nodes", "elsewhere")
        for step in (self.table.take_away, self.table.bring_back, self.table.counts):
            with self.assertRaisesRegex(table_retirement.TableMissing, "neither"):
                step()
        self.rename("elsewhere", "shadow_nodb_compute_nodes")
        with nova_table.engine().begin() as connection:
            connection.execute(sa.text("CREATE TABLE compute_nodes (id INTEGER)"))
        for step in (self.table.take_away, self.table.bring_back, self.table.counts):
            with self.assertRaisesRegex(table_retirement.TableMissing, "both"):
                step()
        with nova_table.engine().begin() as connection:
            connection.execute(sa.text("DROP TABLE compute_nodes"))

    def rename(self, name: str, other: str) -> None:
        with nova_table.engine().begin() as connection:
            context = migration.MigrationContext.configure(connection)
            operations.Operations(context).rename_table(name, other)


class OnSQLiteTest(Retirement, cell_databases.OnSQLite):
    by_rows = True

    def test_pci_devices_is_made_anew_whole_or_not_at_all(self) -> None:
        nova_table.fill([row(1)])
        self.device(1, 1)
        before = self.dump()
        with self.assertRaises(InterruptedError), self.table._changing() as connection:
            with table_retirement._devices_altered(connection) as batch:
                batch.drop_constraint(NOVAS_KEY.name, type_="foreignkey")
            self.assertIsNone(table_retirement._foreign_key(connection))
            raise InterruptedError
        self.assertEqual(before, self.dump())

    def test_a_key_that_another_process_added_is_seen(self) -> None:
        path = str(sa.make_url(self.url).database)
        keyed = "CONSTRAINT another FOREIGN KEY(compute_node_id) REFERENCES compute_nodes (id)"
        with contextlib.closing(sqlite3.connect(path)) as other:
            for key, wanted in (("", None), (f", {keyed}", "another"), ("", None)):
                other.executescript(
                    "DROP TABLE pci_devices; CREATE TABLE pci_devices "
                    f"(id INTEGER, compute_node_id INTEGER{key})"
                )
                found = self.table.foreign_key()
                self.assertEqual(wanted, found and found.name)

    def test_a_key_without_a_name_gets_novas(self) -> None:
        with nova_table.engine().begin() as connection:
            connection.execute(sa.text("DROP TABLE pci_devices"))
        cell_databases.DEVICES.create(nova_table.engine())
        nova_table.fill([row(1)])
        self.device(1, 1)
        self.assertEqual(NOVAS_KEY, self.table.foreign_key())
        held = self.retire()
        self.assertIsNone(self.table.foreign_key())
        self.restore(held, 2)
        self.assertEqual(NOVAS_KEY, self.table.foreign_key())


class OnMariaDBTest(Retirement, cell_databases.OnMariaDB):
    def test_a_key_that_a_rename_carried_along_is_found_and_dropped(self) -> None:
        self.rename("compute_nodes", "shadow_nodb_compute_nodes")
        self.assertEqual(NOVAS_KEY, self.table.foreign_key())
        self.table.drop_key()
        self.assertIsNone(self.table.foreign_key())


class OnPostgreSQLTest(Retirement, cell_databases.OnPostgreSQL):
    """Nothing of its own."""


# Of no database by itself.
del Retirement
