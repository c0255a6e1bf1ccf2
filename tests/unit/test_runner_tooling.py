# SPDX-License-Identifier: Apache-2.0
"""What tools/test.sh excuses: running out of patience, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

from nova_nodb_scheduler.testing import patience
from tools import subunit_totals

MADE = """
import unittest
from nova_nodb_scheduler.testing import patience

class Made(unittest.TestCase):
    def test_passes(self):
        pass

    def test_runs_out_of_patience(self):
        patience.wait_until(lambda: False, 0.01, "what comes", 0.001)

    def test_finds_a_wrong_state(self):
        self.assertEqual(1, 2)

    def test_runs_out_of_patience_and_finds_a_wrong_state(self):
        self.addCleanup(self.assertEqual, 1, 2)
        patience.wait_until(lambda: False, 0.01, "what comes", 0.001)

    def test_runs_out_of_patience_because_of_an_error(self):
        try:
            {}["lost"]
        except KeyError as error:
            raise patience.OutOfPatience("nothing came") from error

    def test_says_the_name_of_the_type(self):
        self.fail("nova_nodb_scheduler.testing.patience.OutOfPatience: not so")
"""


class ExcusesTest(unittest.TestCase):
    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        directory = pathlib.Path(made.name)
        (directory / "made.py").write_text(textwrap.dedent(MADE))
        self.stream = directory / "made.subunit"
        with open(self.stream, "wb") as stream:
            subprocess.run(
                [sys.executable, "-m", "subunit.run", "made"],
                cwd=directory,
                stdout=stream,
                stderr=subprocess.DEVNULL,
                check=False,
            )

    def test_only_what_failed_by_that_type_and_nothing_else_is_excused(self) -> None:
        done = subprocess.run(
            [sys.executable, subunit_totals.__file__, str(self.stream)],
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual("1 5 0", done.stdout.strip())
        excused = [line for line in done.stderr.splitlines() if "(out of patience)" in line]
        self.assertEqual(
            ["  FAILED (out of patience) made.Made.test_runs_out_of_patience"], excused
        )

    def test_the_runner_knows_the_type_by_its_name(self) -> None:
        named = f"{patience.OutOfPatience.__module__}.{patience.OutOfPatience.__qualname__}"
        self.assertEqual(named, subunit_totals.OUT_OF_PATIENCE)


class PatienceTest(unittest.TestCase):
    def test_a_condition_that_holds_at_the_very_end_has_come_in_time(self) -> None:
        answers = iter((False, True))
        patience.wait_until(lambda: next(answers), 0.05, "the second answer", 0.1)

    def test_what_stands_there_instead_is_told(self) -> None:
        with self.assertRaisesRegex(patience.OutOfPatience, "not within 0 s: it is 7"):
            patience.wait_until(lambda: False, 0.0, lambda: "it is 7", 0.001)
