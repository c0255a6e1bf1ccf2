# SPDX-License-Identifier: Apache-2.0
"""A cell's rows go into records and back, whole, with their ids; its mode goes with them."""

from __future__ import annotations

import functools
from typing import Any

import hypothesis
import sqlalchemy as sa
from nova.db.main import api as main_db
from nova.db.main import models

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, row_replica
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import node_transfer
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from nova_nodb_scheduler.synchronizer.migration import migrator
from nova_nodb_scheduler.testing import servers
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import conductors, nova_table, test_row_writes

STORE, MIRROR = cell_modes.NodeMode.STORE, cell_modes.NodeMode.MIRROR


class ModesCase(test_row_writes.WritesCase):
    def setUp(self) -> None:
        super().setUp()
        # Those of other tests name nodes that are not here.
        cloud.clear(cloud.databases()[cloud.CELL1], "pci_devices")
        self.begin()

    def begin(self) -> None:
        """Have an empty back end."""
        self.context = nova_table.context()
        self.hub = hub.MemoryHub()
        self.ours = conductors.conductor(self.client(self.hub))
        self.modes = cell_modes.CellModes(self.ours.synchronizer)
        self.transfer = node_transfer.NodeTransfer(self.ours.synchronizer)
        self.bring = functools.partial(
            self.transfer.to_store, self.context, cloud.CELL1, nova_table.comparison()
        )

    def held(self) -> Any:
        return self.ours.queries.compute_node_get_all(nova_table.context("yes"))


class TransferTest(ModesCase):
    def test_all_rows_go_there_and_back_as_they_were(self) -> None:
        self.there_and_back(nova_table.EXAMPLES)

    def test_so_they_do_on_mariadb(self) -> None:
        with nova_table.at(self.enterContext(servers.MariaDB()).url):
            self.there_and_back(nova_table.EXAMPLES // 8)
            self.ids_go_on()

    def test_so_they_do_on_postgresql(self) -> None:
        with nova_table.at(self.enterContext(servers.PostgreSQL()).url):
            self.there_and_back(nova_table.EXAMPLES // 8)
            self.ids_go_on()

    def ids_go_on(self) -> None:
        """Have Nova give an id above those of records, of one that is gone from both, too."""
        nova_table.fill([self.row(3)])
        self.begin()
        self.bring()
        values = {**self.row(4)}
        del values["id"]
        made = self.ours.writer.compute_node_create(self.context, values)
        self.ours.writer.compute_node_delete(self.context, made.id)
        self.ours.writer.forget_archived(self.context)
        self.transfer.to_mirror(self.context, cloud.CELL1)
        again = main_db.compute_node_create(self.context, values)
        self.assertEqual(made.id + 1, again.id)

    def there_and_back(self, examples: int) -> None:
        """Bring tables of rows into records and back."""

        @hypothesis.given(rows=nova_table.table_rows(nova_table.comparison()))
        @hypothesis.settings(
            max_examples=examples, deadline=None, suppress_health_check=nova_table.LOADED
        )
        def agree(rows: list[dict[str, Any]]) -> None:
            nova_table.fill(rows)
            self.begin()
            before = nova_table.by_id(nova_table.rows())
            brought = self.bring()
            self.assertEqual((len(rows), len(rows)), (brought.rows, brought.written))
            self.assertEqual(before, self.held())
            # Whatever became of the table.
            nova_table.fill([])
            back = self.transfer.to_mirror(self.context, cloud.CELL1)
            self.assertEqual((len(rows), len(rows)), (back.rows, back.written))
            self.assertEqual(before, nova_table.by_id(nova_table.rows()))

        agree()

    def test_a_name_that_was_brought_is_taken(self) -> None:
        nova_table.fill([self.row(3)])
        self.bring()
        values = {**self.row(4), "hypervisor_hostname": "n3"}
        del values["id"]
        self.assertEqual(
            "DBDuplicateEntry",
            nova_table.answer_of(self.ours.writer.compute_node_create, self.context, values)[0],
        )

    def test_new_ids_are_above_those_of_nodes_that_are_gone(self) -> None:
        nova_table.fill([self.row(3)])
        cloud.clear(cloud.databases()[cloud.CELL1], "migrations")
        with nova_table.engine().begin() as connection:
            connection.execute(
                sa.insert(models.Migration.__table__).values(
                    uuid="m", status="done", dest_compute_id=77
                )
            )
        self.bring()
        values = {**self.row(4)}
        del values["id"]
        self.assertEqual(78, self.ours.writer.compute_node_create(self.context, values).id)

    def test_interrupted_nobody_believes_it_and_the_next_call_ends_it(self) -> None:
        nova_table.fill([self.row(1), self.row(2)])
        record, self.transfer._modes.record = self.transfer._modes.record, _ended
        with self.assertRaises(errors.BackendUnavailable):
            self.bring()
        self.assertIs(MIRROR, self.modes.read(cloud.CELL1))
        with self.assertRaises(row_replica.CellNotHeld):
            self.held()
        # Meanwhile the table went on.
        nova_table.fill([self.row(2, vcpus=9)])
        self.transfer._modes.record = record
        brought = self.bring()
        self.assertEqual((1, 1, 1), (brought.rows, brought.written, brought.dropped))
        self.assertEqual(nova_table.rows(), self.held())

    def test_records_that_count_are_not_overwritten(self) -> None:
        nova_table.fill([self.row(1)])
        self.bring()
        self.ours.writer.compute_node_update(self.context, 1, {"vcpus": 99})
        self.assertEqual(0, self.bring().rows)
        self.assertEqual(99, self.held()[0]["vcpus"])

    def row(self, number: int, **others: Any) -> dict[str, Any]:
        return {
            **nova_table.NEEDED,
            "id": number,
            "uuid": nova_table.UUIDS[number],
            "host": "h",
            "hypervisor_hostname": f"n{number}",
            "deleted": 0,
            **others,
        }


def _ended(cell: str, mode: cell_modes.NodeMode, **_others: Any) -> None:
    raise errors.BackendUnavailable("x", "it ended here")


class ModesTest(ModesCase):
    def test_a_cell_of_which_nothing_is_recorded_is_in_mirror(self) -> None:
        self.modes.require([cloud.CELL1, cloud.CELL2], MIRROR)

    def test_who_is_configured_otherwise_is_refused_with_both_modes(self) -> None:
        self.modes.record(cloud.CELL2, STORE)
        told = f"{cloud.CELL2} are in mode 'store'.*configured for 'mirror'"
        with self.assertRaisesRegex(cell_modes.ModeDiffers, told):
            self.modes.require([cloud.CELL1, cloud.CELL2], MIRROR)
        with self.assertRaisesRegex(cell_modes.ModeDiffers, f"{cloud.CELL1}.*'mirror'.*'store'"):
            self.modes.require([cloud.CELL2, cloud.CELL1], STORE)

    def test_records_stop_counting_at_once_for_who_reads_them(self) -> None:
        nova_table.fill([])
        conductors.prepare(self.ours)
        self.assertEqual([], self.held())
        self.modes.record(cloud.CELL1, MIRROR)
        with self.assertRaises(cell_modes.ModeDiffers):
            self.held()

    def test_a_move_to_another_back_end_carries_the_mode_the_rows_and_the_next_id(self) -> None:
        nova_table.fill([])
        conductors.prepare(self.ours, above=6)
        values = {**nova_table.NEEDED, "uuid": "u", "host": "h", "hypervisor_hostname": "n"}
        self.ours.writer.compute_node_create(self.context, values)
        before = self.held()
        target = self.client(hub.MemoryHub())
        migrator.Migrator(self.ours.synchronizer, target, (), sleep=lambda _seconds: None).move()
        there = conductors.conductor(target)
        self.assertEqual(before, there.queries.compute_node_get_all(self.context))
        other = {**values, "uuid": "v", "hypervisor_hostname": "m"}
        self.assertEqual(8, there.writer.compute_node_create(self.context, other).id)
        self.assertIs(STORE, cell_modes.CellModes(target).read(cloud.CELL1))
