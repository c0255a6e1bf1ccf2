# SPDX-License-Identifier: Apache-2.0
"""Where a scheduler reads what it decides by, with Nova's tables of compute nodes away.

Compute nodes always come from records: from memory while it is proved, else from the back end
itself. Services and instances are still in tables of a cell, and an unproved cell's are read
there. What cannot be read is never taken for a cloud without hosts.
"""

from __future__ import annotations

import re
from typing import Any

from nova import exception, objects

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import manager
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, row_records
from nova_nodb_scheduler.nova_adapter.reads import unread_cells
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes.serving import served_cloud
from tests.functional.nova_adapter.decisions import test_decisions

_TABLE = re.compile(r"(?:FROM|JOIN|INTO|UPDATE) (\w+)")
#: What of a cell is in no record that could answer instead: who is enabled, and which servers
#: are where.
_OF_A_CELL = {"services", "instances"}
#: Of the API database, which all cells share.
_OF_THE_API = {
    "aggregates",
    "aggregate_hosts",
    "aggregate_metadata",
    "cell_mappings",
    "host_mappings",
}


class RetiredDecisionsTest(test_decisions.DecisionsTest, served_cloud.ServedCloud):
    """The decisions of a cloud with its tables, and not one statement that names the table."""

    # They say that the table is read, that a new epoch is swept from it, and that a cell may be
    # left out. Below is what becomes of each here.
    test_a_cell_whose_database_does_not_answer_is_left_out_as_by_nova = None  # type: ignore[assignment]
    test_a_cell_whose_reporter_fell_silent_is_read_from_its_database = None  # type: ignore[assignment]
    test_a_new_epoch_is_novas_until_it_is_swept_and_then_memorys = None  # type: ignore[assignment]

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.assert_untouched)

    def assert_untouched(self) -> None:
        self.assertEqual({}, dict(self.serving.statements()), "statements named the table")

    def call(self, *args: Any, **kwargs: Any) -> Any:
        with self.unnamed():
            return super().call(*args, **kwargs)

    def unprove(self) -> None:
        """Let nothing in memory be proved."""
        self.runtime.judge._feed_alive = lambda bound: False

    def read_by(self, *candidates: Any) -> tuple[list[str], set[str]]:
        """Return the chosen hosts, and the tables of Nova's databases that were read for it."""
        with self.statements() as statements:
            chosen = self.select(*candidates)
        return chosen, {name for each in statements.seen for name in _TABLE.findall(each)}

    # -- proved ---------------------------------------------------------------------------

    def test_while_memory_is_proved_no_table_is_read_at_all(self) -> None:
        self.assertEqual((["h1"], set()), self.read_by(self.one))

    # -- not proved: nodes from the back end, the rest from the cell -------------------------

    def test_a_scheduler_that_just_began_reads_nodes_of_the_back_end_and_servers_of_the_cell(
        self,
    ) -> None:
        cold = manager.SchedulerManager(host="scheduler-2")
        self.manager, self.runtime = cold, cold.nodb
        chosen, tables = self.read_by(self.one)
        self.assertEqual(["h1"], chosen)
        self.assertEqual(_OF_A_CELL, tables - _OF_THE_API)

    def test_nodes_are_read_as_a_conductor_just_wrote_them(self) -> None:
        self.unprove()
        self.assertEqual(["h1"], self.select(self.one))
        new, _service = self.host(cloud.CELL2, "new")
        self.assertEqual(["new"], self.select(new))
        self.assertEqual(2, self.placement.asked)

    def test_services_of_a_cell_whose_reporter_fell_silent_are_read_from_its_database(
        self,
    ) -> None:
        """From its database but for the nodes, which are not there."""
        self.stale(self.service_two)
        now = self.runtime.judge._backend_now_seconds
        self.runtime.judge._backend_now_seconds = lambda: now() + 60
        patience.wait_until(self.missing, 20, "a reporter that is silent is noticed")
        chosen, tables = self.read_by(self.two)
        self.assertEqual(["h2"], chosen)
        self.assertEqual(_OF_A_CELL, tables - _OF_THE_API)
        self.assertIn(state_proof.UnprovedReason.SILENT_REPORTER.value, self.runtime.fallbacks())

    def test_a_disabled_cell_is_read_for_what_moves_within_it_alone(self) -> None:
        self.unprove()
        hosts = self.manager.host_manager
        hosts.enabled_cells = [hosts.cells[cloud.CELL1]]
        self.assertEqual(["h1"], self.select(self.one, self.two))
        spec = self.spec()
        spec.requested_destination = objects.Destination(cell=hosts.cells[cloud.CELL2])
        self.placement.candidates = [self.two.uuid]
        [[chosen]] = self.call(spec_obj=spec, instance_uuids=[spec.instance_uuid])
        self.assertEqual("h2", chosen.service_host)

    def test_no_valid_host_by_the_back_ends_own_word_is_said(self) -> None:
        self.unprove()
        self.service_one.disabled = True
        self.service_one.save()
        with self.assertRaises(exception.NoValidHost):
            self.select(self.one)
        self.assertEqual({"no_valid_host": 1}, self.runtime.outcomes())

    # -- not to be read -----------------------------------------------------------------------

    def test_a_back_end_that_is_away_is_an_error_and_not_a_cloud_without_hosts(self) -> None:
        self.assertEqual(["h1"], self.select(self.one))
        self.unprove()
        self.serving.open()
        with (
            self.down(),
            self.assertRaisesRegex(unread_cells.HostsNotRead, f"{cloud.CELL1}.*is unavailable"),
        ):
            self.select(self.one)
        self.assertEqual({"selected": 1, "error": 1}, self.runtime.outcomes())
        self.assertEqual(["h1"], self.select(self.one))

    def test_so_it_is_for_who_asks_for_a_host_by_name(self) -> None:
        self.unprove()
        self.serving.open()
        spec = self.spec()
        spec.requested_destination = objects.Destination(host="h1", node="node-h1")
        self.placement.candidates = [self.one.uuid]
        with self.down(), self.assertRaisesRegex(unread_cells.HostsNotRead, cloud.CELL1):
            self.call(spec_obj=spec, instance_uuids=[spec.instance_uuid])
        [[chosen]] = self.call(spec_obj=self.spec_of("h1"), instance_uuids=[spec.instance_uuid])
        self.assertEqual("h1", chosen.service_host)
        with self.assertRaises(exception.NoValidHost):
            self.call(spec_obj=self.spec_of("nobody"), instance_uuids=[spec.instance_uuid])

    def spec_of(self, host: str) -> Any:
        spec = self.spec()
        spec.requested_destination = objects.Destination(host=host, node=f"node-{host}")
        return spec

    def test_a_new_epoch_has_no_hosts_to_tell_of_and_names_the_cells(self) -> None:
        self.synchronizer.reset()
        patience.wait_until(self.missing, 20, "a new epoch is noticed")
        with self.assertRaisesRegex(
            unread_cells.HostsNotRead,
            f"Cells {cloud.CELL1}, .*|Cell {cloud.CELL1}: .*does not hold the compute nodes",
        ):
            self.select(self.one)

    def test_a_record_that_cannot_be_read_hides_no_other_cell_and_is_no_absent_host(
        self,
    ) -> None:
        key = row_records.row_key(cloud.CELL1, self.one.uuid)
        [standing] = self.synchronizer.read([key]).values()
        [written] = self.synchronizer.write([records.Write(key, standing.revision, b"\x07")])
        self.assertTrue(written.won)
        self.unprove()
        self.assertEqual(["h2"], self.select(self.one, self.two))
        with self.assertRaisesRegex(unread_cells.HostsNotRead, self.one.uuid):
            self.select(self.one)
        # All that Placement offered was looked at: another cell can have none of it.
        self.service_two.disabled = True
        self.service_two.save()
        with self.assertRaises(exception.NoValidHost):
            self.select(self.two)

    def test_a_cell_whose_database_does_not_answer_is_named_too(self) -> None:
        self.unprove()
        self.execute(cloud.CELL1, "ALTER TABLE services RENAME TO services_away")
        self.addCleanup(self.execute, cloud.CELL1, "ALTER TABLE services_away RENAME TO services")
        with self.assertRaisesRegex(unread_cells.HostsNotRead, f"{cloud.CELL1}.*services"):
            self.select(self.one)
        self.assertEqual(["h2"], self.select(self.one, self.two))

    def test_a_worker_does_not_start_beside_a_cell_in_another_mode(self) -> None:
        cell_modes.CellModes(self.synchronizer).record(cloud.CELL2, cell_modes.NodeMode.STORE)
        made = manager.SchedulerManager(host="scheduler-2")
        self.addCleanup(made.nodb_stop)
        with self.assertRaisesRegex(cell_modes.ModeDiffers, f"{cloud.CELL2}.*'store'.*'retired'"):
            made.init_host(None)
