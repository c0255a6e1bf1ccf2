# SPDX-License-Identifier: Apache-2.0
"""A scheduler decides as ever where Nova's tables of compute nodes are away."""

from __future__ import annotations

from nova import exception

from nova_nodb_scheduler.nova_adapter import manager
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes.serving import served_cloud
from tests.functional.nova_adapter.decisions import test_decisions


class RetiredDecisionsTest(test_decisions.DecisionsTest, served_cloud.ServedCloud):
    """The decisions of a cloud with its tables, from memory and by Nova's own reads."""

    def test_no_statement_names_the_table_whoever_is_asked(self) -> None:
        with self.unnamed():
            self.assertEqual(["h1"], self.select(self.one))
            self.runtime.judge._feed_alive = lambda bound: False
            self.assertEqual(["h2"], self.select(self.two))
        self.assertIn("feed not proved", self.runtime.fallbacks())

    def test_a_cell_whose_reporter_fell_silent_is_read_from_its_database(self) -> None:
        """From its database but for the nodes, which are not there."""
        self.stale(self.service_two)
        self.runtime.judge._feed_alive = lambda bound: False
        with self.unnamed(), self.statements() as statements:
            self.assertEqual(["h2"], self.select(self.two))
        self.assertTrue(statements.of("services"))

    def test_a_new_epoch_is_novas_until_it_is_swept_and_then_memorys(self) -> None:
        """Nothing can be swept: to Nova it is a cell whose database does not answer."""
        self.synchronizer.reset()
        patience.wait_until(self.missing, 20, "a new epoch is noticed")
        with (
            self.assertLogs("nova.context", "ERROR") as logged,
            self.assertRaises(exception.NoValidHost),
        ):
            self.select(self.one)
        self.assertIn("does not hold the compute nodes", "".join(logged.output))

    def test_a_worker_does_not_start_beside_a_cell_in_another_mode(self) -> None:
        cell_modes.CellModes(self.synchronizer).record(cloud.CELL2, cell_modes.NodeMode.STORE)
        made = manager.SchedulerManager(host="scheduler-2")
        self.addCleanup(made.nodb_stop)
        with self.assertRaisesRegex(cell_modes.ModeDiffers, f"{cloud.CELL2}.*'store'.*'retired'"):
            made.init_host(None)
