# SPDX-License-Identifier: Apache-2.0
"""Have records answer what Nova's tests read of compute nodes, each test with its own.

Beside the plugin or without it: ``NOVA_SUITE_COMPUTE_NODES=store``. One test cannot hold so:
nova.tests.unit.db.main.test_api.ComputeNodeTestCase.test_compute_node_get_model puts a mock
in the place of the query that a function sends, which is served without one.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any

import fixtures
from nova import test as nova_test
from nova.db.main import api as main_db

from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    row_queries,
    row_replica,
    row_writer,
    served_functions,
    table_copy,
    text_comparison,
)
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import node_transfer
from nova_nodb_scheduler.synchronizer.drivers.memory import driver as memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub


def install() -> None:
    """Have every test with databases use records; once per process."""
    original = nova_test.TestCase.setUp

    def set_up(test: Any) -> None:
        original(test)
        if test.USES_DB:
            test.useFixture(ServedNodesFixture())

    nova_test.TestCase.setUp = set_up


class ServedNodesFixture(fixtures.Fixture):
    """Served functions on a memory hub; the cells are Nova's databases by their managers."""

    def _setUp(self) -> None:
        client = memory.MemorySynchronizer(shared_hub=hub.MemoryHub())
        client.open()
        self.addCleanup(client.close)
        self._cells: dict[int, str] = {}
        self._lock = threading.Lock()
        replica = row_replica.RowReplica(client, self._cell_of, _comparison_of)
        copy = table_copy.TableCopy(client)
        writer = row_writer.RowWriter(
            client,
            replica,
            self._cell_of,
            _comparison_of,
            lambda: str(uuid.uuid4()),
            on_written=copy.bring,
        )
        self._transfer = node_transfer.NodeTransfer(client)
        served = served_functions.ServedFunctions(row_queries.RowQueries(replica), writer)
        served.install()
        self.addCleanup(served.uninstall)

    def _cell_of(self, context: Any) -> str:
        manager = main_db.get_context_manager(context)
        with self._lock:
            cell = self._cells.get(id(manager))
            if cell is None:
                cell = f"cell{len(self._cells)}"
                self._cells[id(manager)] = cell
                # Some tests fill the tables before this fixture is there.
                self._transfer.to_store(context, cell, text_comparison.SQLITE)
            return cell


def _comparison_of(_context: Any) -> text_comparison.TextComparison:
    return text_comparison.SQLITE
