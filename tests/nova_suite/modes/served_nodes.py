# SPDX-License-Identifier: Apache-2.0
"""Have records answer what Nova's tests read of compute nodes, each test with its own.

Beside the plugin or without it: ``NOVA_SUITE_COMPUTE_NODES`` is ``store``, where Nova's table is
written behind the records, or ``retired``, where it is renamed away with the first call for its
database. Tests that cannot hold so stand in ``selections/excluded_served.txt``.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import Any

import fixtures
import sqlalchemy as sa
from nova import test as nova_test
from nova.db.main import api as main_db

from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    cell_modes,
    row_archive,
    row_queries,
    row_replica,
    row_writer,
    table_copy,
    text_comparison,
)
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import row_table, served_functions
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import node_transfer
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables, table_tripwire
from nova_nodb_scheduler.synchronizer.drivers.memory import driver as memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub

_AWAY = "shadow_nodb_compute_nodes"


def install(mode: str) -> None:
    """Have every test with databases use records; once per process.

    :param mode: ``store`` or ``retired``
    """
    original = nova_test.TestCase.setUp

    def set_up(test: Any) -> None:
        original(test)
        if test.USES_DB:
            test.useFixture(ServedNodesFixture(cell_modes.NodeMode(mode)))

    nova_test.TestCase.setUp = set_up


class ServedNodesFixture(fixtures.Fixture):
    """Served functions on a memory hub; the cells are Nova's databases by their managers."""

    def __init__(self, mode: cell_modes.NodeMode) -> None:
        super().__init__()
        self._mode = mode

    def _setUp(self) -> None:
        client = memory.MemorySynchronizer(shared_hub=hub.MemoryHub())
        client.open()
        self.addCleanup(client.close)
        self._cells: dict[int, str] = {}
        self._lock = threading.RLock()
        self._modes = cell_modes.CellModes(client)
        is_there = self._mode is cell_modes.NodeMode.STORE
        replica = row_replica.RowReplica(client, self._cell_of, _comparison_of, mode=self._mode)
        writer = row_writer.RowWriter(
            client,
            replica,
            self._cell_of,
            _comparison_of,
            lambda: str(uuid.uuid4()),
            on_written=table_copy.TableCopy(client).bring if is_there else lambda *_written: None,
        )
        self._transfer = node_transfer.NodeTransfer(client)
        parts = served_functions.ServedParts(
            row_queries.RowQueries(replica),
            writer,
            None if is_there else row_archive.RowArchive(client, replica),
        )
        served = served_functions.ServedFunctions(lambda: parts)
        served.install()
        self.addCleanup(served.uninstall)
        table = row_table.RecordedTable(replica.rows)
        nova_tables.install(table)
        self.addCleanup(nova_tables.uninstall, table)

    def _cell_of(self, context: Any) -> str:
        manager = main_db.get_context_manager(context)
        with self._lock:
            cell = self._cells.get(id(manager))
            if cell is None:
                cell = f"cell{len(self._cells)}"
                self._cells[id(manager)] = cell
                # Some tests fill the tables before this fixture is there.
                self._transfer.to_store(context, cell, text_comparison.SQLITE)
                if self._mode is cell_modes.NodeMode.RETIRED:
                    self._retire(context, cell)
            return cell

    def _retire(self, context: Any, cell: str) -> None:
        engine = main_db.get_engine(context=context)
        _rename(engine, "compute_nodes", _AWAY)
        # A database may serve the next test, too.
        self.addCleanup(_rename_back, engine)
        self._modes.record(cell, self._mode)


def _rename(engine: Any, name: str, other: str) -> None:
    with table_tripwire.own_statements(), engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {name} RENAME TO {other}"))


def _rename_back(engine: Any) -> None:
    with contextlib.suppress(Exception):
        # It may be gone with its database.
        _rename(engine, _AWAY, "compute_nodes")


def _comparison_of(_context: Any) -> text_comparison.TextComparison:
    return text_comparison.SQLITE
