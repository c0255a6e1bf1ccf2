# SPDX-License-Identifier: Apache-2.0
"""A cell goes there and back, is killed between any two steps, and is refused with rows named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from nova.db.main import api as main_db
from nova.db.main import models
from oslo_utils import timeutils

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, node_rows, row_records
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import (
    node_transfer,
    row_file,
    table_retirement,
    transfer_refusals,
)
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import (
    cell_databases,
    conductors,
    nova_table,
    transfer_case,
)
from tests.functional.nova_adapter.compute_nodes.cell_databases import deleted, row
from tests.functional.nova_adapter.compute_nodes.transfer_case import (
    AWAY,
    MIRROR,
    RETIRED,
    STORE,
    THERE,
    Killed,
)


def killed_behind(number: int) -> Callable[..., None]:
    """Return what ends the way behind some steps."""
    left = [number]

    def told(*_step: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed

    return told


class Journey(transfer_case.TransferCase):
    """What holds for each kind of database."""

    def begin(self) -> None:
        super().begin()
        self.modes = cell_modes.CellModes(self.synchronizer)

    @property
    def ours(self) -> conductors.Conductor:
        """A conductor that starts now, configured for what is recorded."""
        return conductors.conductor(self.synchronizer, mode=self.modes.read(cloud.CELL1))

    def churn(self) -> None:
        """Have hosts change, come, go, come again, and change names."""
        writer, context = self.ours.writer, nova_table.context()
        writer.compute_node_update(context, 1, {"vcpus": 99})
        writer.compute_node_delete(context, 2)
        new = {name: value for name, value in row(20).items() if name != "id"}
        writer.compute_node_create(context, new)
        again = {name: value for name, value in row(3).items() if name != "id"}
        writer.compute_node_create(context, {**again, "vcpus": 33})
        writer.compute_node_update(context, 4, {"host": "passing"})
        writer.compute_node_update(context, 6, {"host": "h4", "hypervisor_hostname": "n4"})
        writer.compute_node_update(context, 4, {"host": "h6", "hypervisor_hostname": "n6"})
        other = {name: value for name, value in row(30).items() if name != "id"}
        made = writer.compute_node_create(context, other)
        writer.compute_node_delete(context, made.id)

    def test_there_churn_and_back_each_uuid_has_its_id_and_the_key_stands(self) -> None:
        self.populate()
        before = self.rows()
        self.there().go()
        state = self.state()
        self.assertEqual((RETIRED, AWAY, 0, None), (state.mode, state.place, 0, state.key))
        self.assertEqual((0, 4, 2), (state.table_rows, state.live, state.deleted))
        [file] = self.directory.iterdir()
        self.assertEqual(before, [node_rows.to_state(each) for each in row_file.read(file)])
        self.assertEqual(0o600, file.stat().st_mode & 0o777)
        self.churn()
        recorded = self.recorded()
        self.back().go()
        self.assertEqual(recorded, self.rows())
        state = self.state()
        self.assertEqual((MIRROR, THERE), (state.mode, state.place))
        self.assertEqual(table_retirement.NOVAS_KEY, state.key)
        self.assertTrue(state.is_settled)
        values = {name: value for name, value in row(40).items() if name != "id"}
        made = main_db.compute_node_create(self.context, values)
        self.assertEqual(max(each["id"] for each in recorded) + 1, made.id)

    def test_a_second_time_goes_as_the_first(self) -> None:
        self.populate()
        for _time in range(2):
            self.there().go()
            self.back().go()
        self.there().go()
        self.churn()
        recorded = self.recorded()
        self.back().go()
        self.assertEqual(recorded, self.rows())

    def test_killed_behind_any_step_the_same_call_ends_where_an_undisturbed_one_does(self) -> None:
        self.populate()
        steps = len(self.there().left())
        self.assertEqual(6, steps)
        for number in range(1, steps + 1):
            with self.subTest(there=number):
                self.begin()
                self.populate()
                before = self.rows()
                with self.assertRaises(Killed):
                    self.there().go(killed_behind(number))
                self.there().go()
                state = self.state()
                self.assertEqual((RETIRED, AWAY, 0), (state.mode, state.place, state.table_rows))
                self.assertEqual(before, self.recorded())
                self.assertEqual([], self.there().left())
                file = max(self.directory.iterdir())
                self.assertEqual(before, [node_rows.to_state(each) for each in row_file.read(file)])
        self.churn()
        ways = len(self.back().left())
        self.assertEqual(5, ways)
        for number in range(1, ways + 1):
            with self.subTest(back=number):
                self.begin()
                self.populate()
                self.there().go()
                self.churn()
                recorded = self.recorded()
                with self.assertRaises(Killed):
                    self.back().go(killed_behind(number))
                # Services came up again meanwhile, in the mode that is recorded.
                if self.state().mode is RETIRED:
                    self.ours.writer.compute_node_update(self.context, 1, {"vcpus": 7})
                    recorded = self.recorded()
                self.back().go()
                self.assertEqual(recorded, self.rows())
                self.assertEqual(table_retirement.NOVAS_KEY, self.state().key)
                self.assertIs(MIRROR, self.state().mode)

    def test_killed_on_the_way_there_it_goes_back_as_well(self) -> None:
        for number in range(1, 7):
            with self.subTest(number):
                self.begin()
                self.populate()
                before = self.rows()
                with self.assertRaises(Killed):
                    self.there().go(killed_behind(number))
                self.back().go()
                self.assertEqual(before, self.rows())
                self.assertEqual(table_retirement.NOVAS_KEY, self.state().key)
                self.assertIs(MIRROR, self.state().mode)

    def test_what_is_left_is_told_and_nothing_changes(self) -> None:
        self.populate()
        before, mode = self.dump(), self.modes.state(cloud.CELL1)
        self.assertEqual(6, len(self.there().left()))
        self.assertEqual([], self.back().left())
        self.assertEqual(1, len(self.there(keep_table=True).left()))
        self.assertEqual((before, mode), (self.dump(), self.modes.state(cloud.CELL1)))
        self.there().go()
        before, mode = self.dump(), self.modes.state(cloud.CELL1)
        self.assertEqual([], self.there().left())
        self.assertEqual(5, len(self.back().left()))
        self.assertEqual(1, len(self.transfer.prepared(self.context, cloud.CELL1).left()))
        self.assertEqual((before, mode), (self.dump(), self.modes.state(cloud.CELL1)))

    def test_the_table_can_be_kept_and_go_later_and_come_back_to_be_kept(self) -> None:
        self.populate()
        self.there(keep_table=True).go()
        self.assertEqual((STORE, THERE), (self.state().mode, self.state().place))
        self.assertEqual(table_retirement.NOVAS_KEY, self.state().key)
        self.there().go()
        self.assertEqual((RETIRED, AWAY), (self.state().mode, self.state().place))
        self.churn()
        self.there(keep_table=True).go()
        self.assertEqual((STORE, THERE), (self.state().mode, self.state().place))
        self.assertEqual(self.recorded(), self.rows())
        self.assertEqual(table_retirement.NOVAS_KEY, self.state().key)
        self.ours.writer.compute_node_update(self.context, 1, {"vcpus": 5})
        self.back().go()
        self.assertEqual(self.recorded(), self.rows())

    def test_an_upgrade_of_nova_finds_the_table_empty_and_it_goes_away_again(self) -> None:
        self.populate()
        self.there().go()
        recorded = self.recorded()
        self.transfer.prepared(self.context, cloud.CELL1).go()
        state = self.state()
        self.assertEqual((RETIRED, THERE, 0, None, False), self.summary(state))
        cell_databases.migrate(self.url)
        with nova_table.engine().begin() as connection:
            connection.execute(sa.text("ALTER TABLE compute_nodes ADD COLUMN newer INTEGER"))
        self.there().go()
        self.assertEqual((RETIRED, AWAY, 0, None, True), self.summary(self.state()))
        self.back().go()
        self.assertEqual(recorded, self.rows())
        with nova_table.engine().begin() as connection:
            connection.execute(sa.text("ALTER TABLE compute_nodes DROP COLUMN newer"))

    def summary(self, state: node_transfer.CellState) -> Any:
        return state.mode, state.place, state.table_rows, state.key, state.is_settled

    def test_rows_that_no_record_can_stand_for_are_named_and_nothing_changes(self) -> None:
        topology = '{"cells": []}'
        nova_table.fill(
            [
                row(1, uuid=None),
                row(2, host=None),
                row(3, cpu_allocation_ratio=0.0),
                row(4, disk_allocation_ratio=None),
                row(5, numa_topology=topology),
                row(6, numa_topology='{"nova_object.name": "NUMATopology"}'),
                deleted(7, uuid=None, host=None, ram_allocation_ratio=None, numa_topology=topology),
            ]
        )
        before = self.dump()
        way = self.there()
        self.assertEqual(
            [
                ("no uuid", ("id 1: n1 on h1",)),
                ("no host", ("id 2: n2 on None",)),
                ("ratio of 0", ("id 3: n3 on h3", "id 4: n4 on h4")),
                ("NUMA", ("id 5: n5 on h5",)),
            ],
            [
                (word, each.rows)
                for word, each in zip(
                    ("no uuid", "no host", "ratio of 0", "NUMA"), way.refusals, strict=True
                )
                if word in each.reason
            ],
        )
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "id 1: n1 on h1"):
            way.go()
        self.assertEqual((before, MIRROR), (self.dump(), self.state().mode))

    def test_devices_without_their_node_are_named_and_nothing_changes(self) -> None:
        self.populate()
        self.there().go()
        self.device(9, 77)
        before = self.dump()
        with self.assertRaisesRegex(
            transfer_refusals.TransferRefused, "pci_devices.id 9 names compute node 77"
        ):
            self.back().go()
        self.assertEqual((before, RETIRED), (self.dump(), self.state().mode))

    def test_records_of_another_release_are_named_and_nothing_changes(self) -> None:
        self.populate()
        self.there().go()
        before = self.dump()
        key = records.RecordKey(row_records.NODE_ROWS.name, f"odd@{cloud.CELL1}")
        self.synchronizer.write([records.Write(key, 0, b"\x09")])
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "odd@.*release"):
            self.back().go()
        self.assertEqual((before, RETIRED), (self.dump(), self.state().mode))

    def test_rows_that_a_stock_service_wrote_meanwhile_are_named_and_kept(self) -> None:
        self.populate()
        self.there().go()
        self.transfer.prepared(self.context, cloud.CELL1).go()
        nova_table.fill([row(50)])
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "id 50: n50 on h50"):
            self.there().go()
        self.assertEqual([50], [each["id"] for each in self.rows()])

    def test_a_back_end_that_lost_its_records_is_not_believed_and_the_file_brings_them(
        self,
    ) -> None:
        self.populate()
        before = self.rows()
        self.there().go()
        [file] = self.directory.iterdir()
        kept = self.directory.parent / f"{file.name}.kept"
        shutil.copy(file, kept)
        self.addCleanup(kept.unlink)
        self.synchronizer.reset()
        for way in (self.there(), self.back()):
            with self.assertRaisesRegex(transfer_refusals.TransferRefused, "--from FILE"):
                way.go()
        self.assertEqual((AWAY, True), (self.state().place, self.state().is_lost))
        # So it is if an upgrade of Nova has it in its place just then.
        self.table.bring_back()
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "--from FILE"):
            self.there().go()
        self.assertTrue(self.state().is_lost)
        self.back(lost=row_file.read(kept)).go()
        self.assertEqual(before, self.rows())
        self.assertEqual((MIRROR, THERE), (self.state().mode, self.state().place))
        self.assertEqual(table_retirement.NOVAS_KEY, self.state().key)
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "Leave the file out"):
            self.back(lost=row_file.read(kept)).go()

    def test_foreign_keys_of_others_are_named_and_nothing_changes(self) -> None:
        self.populate()
        self.execute(
            "CREATE TABLE reports (id INTEGER PRIMARY KEY, node INTEGER, "
            "CONSTRAINT reports_node FOREIGN KEY (node) REFERENCES compute_nodes (id))"
        )
        self.addCleanup(self.execute, "DROP TABLE IF EXISTS reports")
        self.execute("INSERT INTO reports VALUES (1, 5)")
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "reports_node of reports"):
            self.there().go()
        self.assertEqual((MIRROR, THERE), (self.state().mode, self.state().place))
        # A table that stays is in nobody's way.
        self.there(keep_table=True).go()
        self.assertIs(STORE, self.state().mode)
        with self.assertRaisesRegex(transfer_refusals.TransferRefused, "reports_node of reports"):
            self.there().go()
        self.execute("DROP TABLE reports")
        self.there().go()
        self.assertEqual((RETIRED, AWAY), (self.state().mode, self.state().place))

    def execute(self, statement: str) -> None:
        with nova_table.engine().begin() as connection:
            connection.execute(sa.text(statement))

    def test_services_that_live_by_the_table_are_named(self) -> None:
        services = models.Service.__table__
        fresh, old = timeutils.utcnow(), nova_table.MOMENT
        with nova_table.engine().begin() as connection:
            for host, binary, seen in (
                ("c1", "nova-conductor", fresh),
                ("c2", "nova-conductor", old),
                ("s1", "nova-scheduler", fresh),
                ("h1", "nova-compute", fresh),
            ):
                values = {"host": host, "binary": binary, "last_seen_up": seen, "report_count": 1}
                connection.execute(sa.insert(services).values(**values, deleted=0))
        [refusal] = transfer_refusals.of_services(self.context, 30.0)
        self.assertEqual(
            ["nova-conductor on c1", "nova-scheduler on s1"],
            [each.partition(",")[0] for each in refusal.rows],
        )
        self.assertIn("30 s later", str(refusal))


class OnSQLiteTest(Journey, cell_databases.OnSQLite):
    """Nothing of its own."""


class OnMariaDBTest(Journey, cell_databases.OnMariaDB):
    """Nothing of its own."""


class OnPostgreSQLTest(Journey, cell_databases.OnPostgreSQL):
    """Nothing of its own."""


# Of no database by itself.
del Journey
