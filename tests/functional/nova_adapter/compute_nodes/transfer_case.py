# SPDX-License-Identifier: Apache-2.0
"""A cell's compute nodes on their way there and back, for each kind of database."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, node_rows
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import node_transfer, table_retirement
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import cell_databases, nova_table
from tests.functional.nova_adapter.compute_nodes.cell_databases import deleted, row

MIRROR, STORE, RETIRED = cell_modes.NodeMode
THERE, AWAY = table_retirement.TablePlace.THERE, table_retirement.TablePlace.AWAY


class Killed(Exception):
    """A process that ended where it was."""


class TransferCase(cell_databases.CellDatabaseCase):
    """One cell, and a back end that is not told of it yet."""

    def begin(self) -> None:
        super().begin()
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.synchronizer = memory.MemorySynchronizer(shared_hub=hub.MemoryHub())
        self.synchronizer.open()
        self.addCleanup(self.synchronizer.close)
        self.transfer = node_transfer.NodeTransfer(self.synchronizer)

    def there(self, **options: Any) -> node_transfer.Way:
        return self.transfer.there(
            self.context, cloud.CELL1, nova_table.comparison(), self.directory, **options
        )

    def back(self, **options: Any) -> node_transfer.Way:
        return self.transfer.back(self.context, cloud.CELL1, **options)

    def state(self) -> node_transfer.CellState:
        return self.transfer.state(self.context, cloud.CELL1)

    def populate(self) -> None:
        nova_table.fill([row(1), row(2), deleted(3), row(4), deleted(5), row(6)])
        self.device(1, 1)
        self.device(2, 5, deleted=2)

    def recorded(self) -> list[dict[str, Any]]:
        return [node_rows.to_state(each) for each in self.transfer.held(cloud.CELL1).rows]
