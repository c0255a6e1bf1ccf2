# SPDX-License-Identifier: Apache-2.0
"""What a scheduler does not serve from memory stands in its beat, for who asks nobody."""

from __future__ import annotations

from typing import Any

from nova_nodb_scheduler.cmd.overview import deployment, process_reports
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions


class UnprovedInBeatsTest(test_memory_decisions.MemoryDecisionsCase):
    def looked_at(self) -> dict[str, Any]:
        """Return the cells, as the doctor reads them."""
        found = deployment.gather(
            process_reports.read_backend(self.plugin.make_synchronizer()), None, (), 15.0, 300.0
        )
        return {str(each["cell"]): each for each in found.cells}

    def proved(self, cell: str) -> bool | None:
        known = self.looked_at().get(cell)
        return None if known is None else known["proved"]

    def wait(self, cell: str, proved: bool) -> None:
        patience.wait_until(lambda: self.proved(cell) is proved, 20.0, self.looked_at, 0.1)

    def test_a_cell_that_was_never_swept_is_told_of_without_asking_anybody(self) -> None:
        self.wait(cloud.CELL1, True)
        key = records.RecordKey(known_namespaces.CELLS.name, cloud.CELL1)
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.CELLS.owner)
        publisher.publish({key: lambda current: publisher_module.DELETE})

        self.wait(cloud.CELL1, False)

        told = self.looked_at()
        self.assertIn("never", " ".join(told[cloud.CELL1]["reasons"].values()))
        self.assertIs(True, told[cloud.CELL2]["proved"])
