# SPDX-License-Identifier: Apache-2.0
"""Statements that name compute_nodes are counted, but for the plugin's own."""

from __future__ import annotations

import unittest

from nova.db.main import api as main_db

from nova_nodb_scheduler.nova_adapter.compute_nodes import table_copy
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import served_functions
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables, table_tripwire
from nova_nodb_scheduler.synchronizer.drivers.memory import driver as memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import conductors, nova_table

LOG = table_tripwire.__name__


class TripwireTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        cloud.databases()
        nova_table.fill([])
        self.context = nova_table.context()
        self.tripwire = table_tripwire.TableTripwire()
        self.tripwire.set()
        self.addCleanup(self.tripwire.unset)

    def test_each_is_counted_by_its_verb_and_said_once_with_its_sender(self) -> None:
        with self.assertLogs(LOG, "WARNING") as logged:
            for _ in range(3):
                main_db.compute_node_get_all(self.context)
            main_db.compute_node_create(self.context, dict(nova_table.NEEDED))
        self.assertEqual({"select": 3, "insert": 1}, self.tripwire.counts())
        self.assertEqual(2, len(logged.output))
        self.assertIn("test_each_is_counted", logged.output[0])

    def test_set_twice_it_counts_once_and_unset_it_counts_no_more(self) -> None:
        self.tripwire.set()
        main_db.compute_node_get_all(self.context)
        self.tripwire.unset()
        self.tripwire.unset()
        main_db.compute_node_get_all(self.context)
        self.assertEqual({"select": 1}, self.tripwire.counts())

    def test_other_tables_and_the_plugin_s_own_sweeps_are_let_pass(self) -> None:
        main_db.service_get_all(self.context)
        table = nova_tables.CELL_TABLES[0]
        self.assertEqual("compute_nodes", table.namespace)
        table.page(self.context, cloud.CELL1, 0, 10)
        table.count(self.context)
        nova_tables.read_compute_nodes(self.context, cloud.CELL1, [nova_table.UUIDS[0]])
        self.assertEqual({}, self.tripwire.counts())
        # And what comes behind one is counted again.
        main_db.compute_node_get_all(self.context)
        self.assertEqual({"select": 1}, self.tripwire.counts())

    def test_where_records_answer_there_is_none(self) -> None:
        client = memory.MemorySynchronizer(shared_hub=hub.MemoryHub())
        client.open()
        copy = table_copy.TableCopy(client)
        ours = conductors.conductor(client, on_written=copy.bring)
        conductors.prepare(ours)
        served = served_functions.ServedFunctions(ours.served)
        served.install()
        self.addCleanup(served.uninstall)
        values = {"uuid": nova_table.UUIDS[0], "host": "h", "hypervisor_hostname": "n"}
        service = main_db.service_create(
            self.context, {"host": "h", "binary": "nova-compute", "topic": "compute"}
        )
        made = main_db.compute_node_create(self.context, {**nova_table.NEEDED, **values})
        main_db.compute_node_update(self.context, made.id, {"vcpus": 1})
        main_db.compute_node_statistics(self.context)
        main_db.service_get_all_computes_by_hv_type(self.context, "QEMU")
        main_db.service_destroy(self.context, service.id)
        main_db.compute_node_get_all(self.context)
        self.assertEqual(1, len(nova_table.rows()))
        self.assertEqual({}, self.tripwire.counts())
