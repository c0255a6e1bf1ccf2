# SPDX-License-Identifier: Apache-2.0
"""What status and the upgrade check say of cells whose conductors are configured for journals."""

import io

import rich.console
import testtools
from oslo_upgradecheck import upgradecheck

from nova_nodb_scheduler.cmd.commands import status_command
from nova_nodb_scheduler.cmd.framework import command
from nova_nodb_scheduler.cmd.overview import (
    cell_names,
    deployment,
    journaling,
    process_reports,
)
from nova_nodb_scheduler.cmd.upgrade_check import judgements
from tests.unit.cmd import samples

Code = upgradecheck.Code


class JournalingTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.cloud = self.useFixture(samples.BackendFixture())
        self.cloud.cell("cell1")
        self.cloud.cell("api")
        self.cloud.scheduler("sched1", 11, reads_journals=True)
        self.conductor("cond1")
        self.conductor("cond2")

    def conductor(self, host, wanted=None, writes=False, **more):
        told = {} if wanted is None else {"heartbeat_journals": wanted, "journals": writes}
        self.cloud.reporter("conductor", host, "cell1", **told, **more)

    def found(self):
        status = samples.status("sched1", 11)
        backend = process_reports.read_backend(self.cloud.client())
        return deployment.gather(backend, lambda host: status, (), 15.0, 300.0)

    def of_cell(self):
        [cell] = [each for each in self.found().cells if each["cell"] == "cell1"]
        return cell["journals"]

    def judged(self):
        return judgements.result(judgements.judge_heartbeats((), self.found()))

    def test_where_nobody_is_configured_nothing_is_said(self):
        found = self.found()
        self.assertEqual([None, None], [each["journals"] for each in found.cells])
        self.assertEqual(((), {}), (found.problems, journaling.lines(found.cells)))
        self.assertNotIn("journal", self.judged().details)

    def test_half_of_the_conductors_make_a_cell_wait_for_the_others(self):
        self.conductor("cond1", wanted=True)
        for other in (None, False):
            self.conductor("cond2", wanted=other)
            self.assertEqual(
                {
                    "conductors": 2,
                    "configured": 1,
                    "writing": 0,
                    "waits_for": ["the conductor on cond2 (process 5)"],
                },
                self.of_cell(),
            )
            [problem] = self.found().problems
            self.assertIn("1 of 2 conductors of cell cell1 are configured", problem)
            self.assertIn("the conductor on cond2 (process 5)", problem)
            result = self.judged()
            self.assertEqual(Code.WARNING, result.code)
            self.assertIn(problem, result.details)

    def test_who_is_dead_or_of_another_cell_is_not_waited_for(self):
        self.conductor("cond1", wanted=True, writes=True)
        self.conductor("cond2", age_seconds=60.0)
        self.cloud.reporter("conductor", "cond3", "cell2")
        self.cloud.reporter("api", "api1", "*", guards=())
        self.assertEqual(
            {"conductors": 1, "configured": 1, "writing": 1, "waits_for": []}, self.of_cell()
        )

    def test_a_scheduler_that_knows_no_journals_is_waited_for(self):
        self.conductor("cond1", wanted=True)
        self.conductor("cond2", wanted=True)
        self.cloud.scheduler("sched1", 11)
        self.assertEqual(["the scheduler on sched1 (process 11)"], self.of_cell()["waits_for"])
        self.assertEqual(Code.WARNING, self.judged().code)

    def test_heartbeats_that_are_stored_are_waited_for(self):
        self.conductor("cond1", wanted=True, service_heartbeats="both")
        self.conductor("cond2", wanted=True, service_heartbeats="both")
        self.cloud.write("heartbeat_modes", "cell1", {"mode": "store", "since": 1.0})
        self.assertEqual(
            ["the mode of its heartbeats, which is store"], self.of_cell()["waits_for"]
        )

    def test_a_beat_that_cannot_be_read_is_waited_for_unless_it_is_old(self):
        self.conductor("cond1", wanted=True, writes=True)
        self.conductor("cond2", wanted=True, writes=True, late_seconds=5)
        name = "reporters/conductor:cond2:cell1"
        waits = [f"who wrote record {name}, which cannot be read"]
        self.assertEqual(waits, self.of_cell()["waits_for"])
        self.assertEqual(Code.WARNING, self.judged().code)
        shown = self.shown()
        self.assertIn("cond2:east (late_seconds is not an object of numbers: 5)", shown)
        self.conductor("cond2", wanted=True, writes=True, late_seconds=5, age_seconds=60.0)
        self.assertEqual([], self.of_cell()["waits_for"])
        # Of these nobody knows how old they are.
        self.conductor("cond2", wanted=True, writes=True, beat_at="now")
        self.assertEqual(waits, self.of_cell()["waits_for"])
        self.conductor("cond2", wanted=True, writes=True)
        self.cloud.write_raw("schedulers", "broken", b"\xff")
        self.assertEqual(
            ["who wrote record schedulers/broken, which cannot be read"],
            self.of_cell()["waits_for"],
        )

    def test_a_cell_that_journals_is_well_and_is_told(self):
        self.conductor("cond1", wanted=True, writes=True)
        self.conductor("cond2", wanted=True, writes=True)
        self.assertEqual((), self.found().problems)
        result = self.judged()
        self.assertEqual(Code.SUCCESS, result.code)
        self.assertIn(
            "Cell cell1: 2 of 2 conductors write heartbeats to journals, 2 are configured for it",
            result.details,
        )

    def shown(self):
        """Return what people see of it, on a wide screen."""
        printer = command.Command(None, None)
        printer.wide = True
        printer.console = rich.console.Console(width=400, record=True, file=io.StringIO())
        names = cell_names.CellNames({"cell1": "east"})
        status_command.show(printer, self.found(), names)
        return printer.console.export_text()

    def test_people_see_of_each_conductor_and_of_the_cell_where_they_stand(self):
        self.conductor("cond1", wanted=True)
        shown = self.shown()
        self.assertIn("1 of 2 conductors of cell east are configured", shown)
        self.assertIn("Cell east: 0 of 2 conductors write heartbeats to journals", shown)
        self.assertRegex(shown, r"cond1 .*waits")
        self.conductor("cond2", wanted=True, writes=True)
        self.assertRegex(self.shown(), r"cond2 .*written")
