# SPDX-License-Identifier: Apache-2.0
"""What becomes of writes whose cell, record or answer is lost, and of those that come late.

That they do what Nova's own do is in :mod:`.sequences`.
"""

from __future__ import annotations

import unittest
from typing import Any

from nova import exception
from nova.db.main import api as main_db

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, row_replica
from nova_nodb_scheduler.synchronizer.drivers.memory import driver as memory
from nova_nodb_scheduler.synchronizer.drivers.memory import faults, hub
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import conductors, nova_table


class WritesCase(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        cloud.databases()

    def client(self, shared: hub.MemoryHub) -> memory.MemorySynchronizer:
        made = memory.MemorySynchronizer(shared_hub=shared)
        made.open()
        return made


class FaultsTest(WritesCase):
    def setUp(self) -> None:
        super().setUp()
        nova_table.fill([])
        self.hub = hub.MemoryHub()
        self.one = conductors.conductor(self.client(self.hub))
        self.other = conductors.conductor(self.client(self.hub))
        self.context = nova_table.context()
        conductors.prepare(self.one, above=41)

    def values(self, number: int = 0, **others: Any) -> dict[str, Any]:
        return {
            **nova_table.NEEDED,
            "uuid": nova_table.UUIDS[number],
            "host": "h",
            "hypervisor_hostname": f"n{number}",
            **others,
        }

    def test_ids_go_on_above_what_the_cell_has_used(self) -> None:
        first = self.one.writer.compute_node_create(self.context, self.values(0))
        second = self.other.writer.compute_node_create(self.context, self.values(1))
        conductors.prepare(self.one, above=7)
        third = self.one.writer.compute_node_create(self.context, self.values(2))
        self.assertEqual([42, 43, 44], [first.id, second.id, third.id])

    def test_what_one_conductor_created_the_other_reads_at_once(self) -> None:
        self.other.queries.compute_node_get_all(self.context)
        made = self.one.writer.compute_node_create(self.context, self.values())
        self.assertEqual(
            made.uuid, self.other.queries.compute_node_get(self.context, made.id)["uuid"]
        )

    def test_a_deletion_of_unknown_outcome_is_not_mistaken_for_another_s(self) -> None:
        made = self.one.writer.compute_node_create(self.context, self.values())
        client = self.one.synchronizer
        assert isinstance(client, memory.MemorySynchronizer)
        client.faults.fail_next(faults.Fault.REPLY_LOST)
        self.one.writer.compute_node_delete(self.context, made.id)
        [row] = self.other.queries.compute_node_get_all(nova_table.context("yes"))
        self.assertEqual(made.id, row["deleted"])

    def test_ratios_of_a_node_that_is_deleted_meanwhile_stay_empty(self) -> None:
        made = self.one.writer.compute_node_create(self.context, self.values())
        client: Any = self.one.synchronizer
        read = client.read

        def late(keys: Any) -> Any:
            client.read = read
            self.other.writer.compute_node_delete(self.context, made.id)
            return read(keys)

        client.read = late
        ratios = {"cpu_allocation_ratio": 4.0}
        self.assertEqual([], self.one.writer.fill_empty_ratios(self.context, 9, ratios))
        [row] = self.other.queries.compute_node_get_all(nova_table.context("yes"))
        self.assertEqual((made.id, None), (row["deleted"], row["cpu_allocation_ratio"]))

    def test_rows_of_a_cell_that_was_never_brought_are_not_absent(self) -> None:
        lost = conductors.conductor(self.client(hub.MemoryHub()))
        with self.assertRaises(row_replica.CellNotHeld):
            lost.queries.compute_node_get_all(self.context)
        with self.assertRaises(row_replica.CellNotHeld):
            lost.writer.compute_node_create(self.context, self.values())

    def test_nor_are_those_of_one_that_was_lost_a_moment_ago(self) -> None:
        values = {"host": "h", "binary": "nova-compute", "topic": "x", "report_count": 0}
        service = main_db.service_create(self.context, values)
        calls: tuple[tuple[str, tuple[Any, ...]], ...] = (
            ("compute_node_update", (42, {"vcpus": 1})),
            ("compute_node_delete", (42,)),
            ("compute_node_create", (self.values(),)),
            ("delete_of_service", (service.id, "h")),
        )
        for name, arguments in calls:
            shared = hub.MemoryHub()
            client = self.client(shared)
            ours = conductors.conductor(client)
            conductors.prepare(ours, above=41)
            ours.writer.compute_node_create(self.context, self.values())
            # This one goes by what it read just now.
            self.assertEqual(1, len(ours.queries.compute_node_get_all(self.context)))
            read = client.read

            def lost(
                keys: Any, client: Any = client, read: Any = read, shared: Any = shared
            ) -> Any:
                client.read = read
                shared.begin_epoch()
                return read(keys)

            client.read = lost  # type: ignore[method-assign]
            with self.subTest(name), self.assertRaises(errors.NodbError):
                getattr(ours.writer, name)(self.context, *arguments)

    def test_an_id_of_old_is_not_taken_for_the_node_that_came_back_under_another(self) -> None:
        made = self.one.writer.compute_node_create(self.context, self.values())
        self.one.queries.compute_node_get_all(self.context)
        # Archived, and created again: all of it by another conductor.
        self.other.writer.compute_node_delete(self.context, made.id)
        self.assertEqual(1, self.other.writer.forget_archived(self.context))
        again = self.other.writer.compute_node_create(self.context, self.values())
        self.assertNotEqual(made.id, again.id)
        with self.assertRaises(exception.ComputeHostNotFound):
            self.one.writer.compute_node_update(self.context, made.id, {"vcpus": 77})
        with self.assertRaises(exception.ComputeHostNotFound):
            self.one.writer.compute_node_delete(self.context, made.id)
        [row] = self.one.queries.compute_node_get_all(self.context)
        self.assertEqual((again.id, 4), (row["id"], row["vcpus"]))

    def test_a_writer_that_slept_while_its_cell_went_back_to_the_table_is_not_acknowledged(
        self,
    ) -> None:
        copied: list[records.RecordKey] = []
        slept = conductors.conductor(
            self.client(self.hub), on_written=lambda _context, key: copied.append(key)
        )
        made = slept.writer.compute_node_create(self.context, self.values())
        copied.clear()
        client = slept.synchronizer
        write = client.write

        def late(writes: Any) -> Any:
            client.write = write  # type: ignore[method-assign]
            conductors.prepare(self.other, mode=cell_modes.NodeMode.MIRROR)
            slept.replica._followed_at -= 60
            return write(writes)

        client.write = late  # type: ignore[method-assign]
        with self.assertRaises(cell_modes.ModeDiffers):
            slept.writer.compute_node_update(self.context, made.id, {"vcpus": 77})
        # Nor has it written the table, which counts.
        self.assertEqual([], copied)
