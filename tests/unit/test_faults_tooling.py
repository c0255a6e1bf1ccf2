# SPDX-License-Identifier: Apache-2.0
"""The table of faults: what runs anew takes its row, the others stay."""

import pathlib
import tempfile
import unittest

from tests.faults import moves, report, trial
from tools.stack import configuration, settings


def _outcome(fault: str, **values: object) -> trial.Outcome:
    given = {
        "number": 1,
        "fault": fault,
        "active": 2,
        "asked": 3,
        "fallbacks": {},
        "reasons": {},
        "noticed_seconds": None,
        "recovery_seconds": 4.0,
        "compare_clean": True,
        "seconds": 5.0,
        "notes": (),
        "failures": (),
        "run_on": "2026-11-21",
    }
    return trial.Outcome(**(given | values))


class TableTest(unittest.TestCase):
    order = ("first", "second", "third")

    def test_rows_of_faults_that_did_not_run_now_stay(self) -> None:
        table = report.to_rst([_outcome("first"), _outcome("third")], "", self.order)
        table = report.to_rst([_outcome("second", asked=8)], table, self.order)
        together = [_outcome("first"), _outcome("second", asked=8), _outcome("third")]
        self.assertEqual(report.to_rst(together, "", self.order), table)

    def test_a_fault_that_runs_anew_takes_its_row(self) -> None:
        table = report.to_rst([_outcome("first"), _outcome("second")], "", self.order)
        table = report.to_rst([_outcome("first", active=1)], table, self.order)
        self.assertIn("1 of 3", table)
        self.assertEqual(1, table.count("2 of 3"))

    def test_a_row_that_does_not_say_when_is_of_an_earlier_run(self) -> None:
        table = report.to_rst([_outcome("first")], "", self.order)
        former = "\n".join(line for line in table.splitlines() if "2026" not in line)
        self.assertIn("- earlier", report.to_rst([], former, self.order))

    def test_a_fault_that_is_no_more_leaves(self) -> None:
        table = report.to_rst([_outcome("first"), _outcome("gone")], "", ("first", "gone"))
        self.assertNotIn("gone", report.to_rst([], table, self.order))


class BackEndTest(unittest.TestCase):
    def test_options_of_another_back_end_reach_services_and_commands(self) -> None:
        options = {"nodb_scheduler": {"synchronizer": "redis"}, "nodb_redis": {"url": "redis://h"}}
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        made = settings.Settings(
            state=directory,
            venv=directory,
            first_port=23000,
            nova=34,
            overrides={"nova-manage": options, "nova-api": options},
        )
        for process in ("nova-manage", "nova-api"):
            sections = configuration.control_plane(made, process)
            self.assertEqual("redis", sections["nodb_scheduler"]["synchronizer"])
            self.assertEqual("redis://h", sections["nodb_redis"]["url"])

    def test_the_file_for_the_command_holds_the_drivers_own_group(self) -> None:
        rendered = moves.rendered({"nodb_redis": {"url": "redis://h"}})
        self.assertEqual("[nodb_redis]\nurl = redis://h\n", rendered)
