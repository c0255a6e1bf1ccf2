# SPDX-License-Identifier: Apache-2.0
"""Reads see what was written before them, or raise: never less."""

from __future__ import annotations

import threading
import unittest
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    row_records,
    row_replica,
)
from nova_nodb_scheduler.synchronizer.drivers.memory import driver as memory
from nova_nodb_scheduler.synchronizer.drivers.memory import faults, hub
from nova_nodb_scheduler.testing import patience
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import conductors, nova_table


class BarrierTest(unittest.TestCase):
    def test_readers_that_come_during_a_turn_share_the_next(self) -> None:
        began, go_on = threading.Semaphore(0), threading.Semaphore(0)
        turns: list[int] = []

        def turn() -> None:
            turns.append(1)
            began.release()
            go_on.acquire()

        barrier = row_replica.SharedBarrier(turn)
        first = self.start(barrier.wait)
        began.acquire()
        others = [self.start(barrier.wait) for _ in range(8)]
        condition = barrier._changed
        patience.wait_until(lambda: len(condition._waiters) == 8, 10, "eight to wait", 0.01)
        go_on.release()
        first.join(10)
        began.acquire()
        self.assertTrue(any(each.is_alive() for each in others))
        go_on.release()
        for each in others:
            each.join(10)
        self.assertEqual(2, len(turns))

    def test_who_waited_for_a_turn_is_told_what_it_met_and_the_next_one_tries_again(self) -> None:
        ends = [errors.BackendUnavailable("x", "down"), None]

        def turn() -> None:
            end = ends.pop(0)
            if end is not None:
                raise end

        barrier = row_replica.SharedBarrier(turn)
        with self.assertRaises(errors.BackendUnavailable):
            barrier.wait()
        barrier.wait()

    def start(self, work: Any) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread


class ReplicaTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        cloud.databases()
        nova_table.fill([])
        self.context = nova_table.context()
        self.hub = hub.MemoryHub(history_entries=20)
        self.client = self.made_client()
        self.ours = conductors.conductor(self.client)
        conductors.prepare(self.ours, above=0)

    def made_client(self) -> memory.MemorySynchronizer:
        made = memory.MemorySynchronizer(shared_hub=self.hub)
        made.open()
        return made

    def create(self, number: int) -> Any:
        values = {
            **nova_table.NEEDED,
            "uuid": nova_table.UUIDS[number],
            "host": "h",
            "hypervisor_hostname": f"n{number}",
        }
        return self.ours.writer.compute_node_create(self.context, values)

    def nodes(self) -> list[str]:
        found = self.ours.queries.compute_node_get_all(self.context)
        return [str(row["hypervisor_hostname"]) for row in found]

    def test_a_reader_that_the_feed_has_left_behind_reads_everything_anew(self) -> None:
        self.assertEqual([], self.nodes())
        for number in range(6):
            self.create(number)
        self.assertEqual([f"n{number}" for number in range(6)], self.nodes())

    def test_nothing_is_absent_while_the_back_end_is_down(self) -> None:
        made = self.create(0)
        self.nodes()
        self.client.faults.go_down()
        with self.assertRaises(errors.BackendUnavailable):
            self.nodes()
        with self.assertRaises(errors.BackendUnavailable):
            self.ours.writer.compute_node_update(self.context, made.id, {"vcpus": 1})
        self.client.faults.come_up()
        self.assertEqual(["n0"], self.nodes())

    def test_a_feed_that_stands_still_is_no_answer(self) -> None:
        other = conductors.conductor(self.made_client())
        self.nodes()
        conductors.prepare(other, above=9)
        self.client.faults.freeze()
        self.ours.replica._timeout_seconds = 0.1
        with self.assertRaisesRegex(errors.BackendUnavailable, "stands still"):
            self.nodes()

    def test_a_store_that_was_lost_has_no_cell_rather_than_no_nodes(self) -> None:
        self.create(0)
        self.nodes()
        self.hub.begin_epoch()
        with self.assertRaises((row_replica.CellNotHeld, errors.BackendUnavailable)):
            self.nodes()
        with self.assertRaises(row_replica.CellNotHeld):
            self.nodes()

    def test_a_record_that_cannot_be_read_is_not_an_absent_node(self) -> None:
        self.create(0)
        key = row_records.row_key(cloud.CELL1, nova_table.UUIDS[0])
        [standing] = self.client.read([key]).values()
        [result] = self.client.write([records.Write(key, standing.revision, b"\x07")])
        self.assertTrue(result.won)
        with self.assertRaisesRegex(row_replica.UnreadableNodes, nova_table.UUIDS[0]):
            self.nodes()
        self.client.write(
            [records.Write(key, self.client.read([key])[key].revision, standing.payload)]
        )
        self.assertEqual(["n0"], self.nodes())

    def test_nor_is_one_whose_names_are_no_text(self) -> None:
        self.create(0)
        self.nodes()
        self.ours.queries.compute_node_search_by_hypervisor(self.context, "n")
        key = row_records.row_key(cloud.CELL1, nova_table.UUIDS[0])
        [standing] = self.client.read([key]).values()
        state = dict(codec.decode_state(standing.payload))
        state["row"] = {**state["row"], "hypervisor_hostname": 5}
        payload = codec.encode(state, row_records.NODE_ROWS.schema)
        [result] = self.client.write([records.Write(key, standing.revision, payload)])
        self.assertTrue(result.won)
        for _ in range(2):
            with self.assertRaisesRegex(row_replica.UnreadableNodes, nova_table.UUIDS[0]):
                self.ours.queries.compute_node_search_by_hypervisor(self.context, "5")

    def test_an_update_of_unknown_outcome_is_done_once_more_by_its_caller(self) -> None:
        made = self.create(0)
        self.client.faults.fail_next(faults.Fault.REQUEST_LOST)
        self.ours.writer.compute_node_update(self.context, made.id, {"vcpus": 77})
        found = self.ours.queries.compute_node_get(self.context, made.id)
        self.assertEqual(77, found["vcpus"])

    def test_another_cell_s_nodes_are_not_this_one_s(self) -> None:
        self.create(0)
        self.nodes()
        key = row_records.row_key(cloud.CELL2, nova_table.UUIDS[0])
        [standing] = self.client.read(
            [row_records.row_key(cloud.CELL1, nova_table.UUIDS[0])]
        ).values()
        self.client.write([records.Write(key, 0, standing.payload)])
        self.assertEqual(["n0"], self.nodes())
