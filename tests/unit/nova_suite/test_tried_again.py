# SPDX-License-Identifier: Apache-2.0
"""What tools/nova_functional.sh runs once more: two runs of made outcomes, of tests of Nova's."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from subunit import v2

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_BELOW = "nova.tests.functional.test_servers.ServersTest"
_TESTS = tuple(f"{_BELOW}.test_{each}" for each in ("create_and_rebuild_server", "deferred_delete"))
_FAILS_ANYHOW = "nova.tests.functional.test_metadata.MetadataTest.test_network_data_matches_schema"

_IMPATIENT = "AssertionError: Server failed to delete.\n"
_LEFT = "tests.nova_suite.endings.ClaimsLeft: Claims left: {'host': 'planted'}\n"
_OTHER = "testtools.matchers._impl.MismatchError: 1 != 2\n"

#: Gives the stream of each run in its turn.
_STESTR = """\
#!/bin/sh
cd "$(dirname "$0")"
case " $* " in
    *" run "*) echo >> runs; echo "$*" >> arguments ;;
    *" last "*) cat "$(wc -l < runs).subunit" ;;
esac
"""


class TriedAgainTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.results = directory / "results"
        self.list = directory / "list.txt"
        self.programs = directory / "venv" / "bin"
        self.programs.mkdir(parents=True)
        # The environment's own, but for stestr.
        python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
        for name, text in (("python", python), ("stestr", _STESTR)):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    def run_with(self, *runs: dict[str, str], **variables: str) -> tuple[int, str]:
        """Run the script; returns its status and what it printed.

        :param runs: what each test of a run failed by; "" if it passed
        """
        self.list.write_text("".join(f"{name}\n" for name in runs[0]))
        for number, outcomes in enumerate(runs, 1):
            with open(self.programs / f"{number}.subunit", "wb") as output:
                stream = v2.StreamResultToBytes(output)
                for name, told in outcomes.items():
                    stream.status(name, "inprogress")
                    if told:
                        text = f"Traceback (most recent call last):\n{told}".encode()
                        kind = {"file_name": "traceback", "mime_type": "text/plain;charset=utf8"}
                        stream.status(name, file_bytes=text, eof=True, **kind)
                    stream.status(name, "fail" if told else "success")
        own = {"NODB_STRICT": "", "PYTHONPATH": str(_ROOT), **variables}
        command = [str(_ROOT / "tools/nova_functional.sh"), "--nova", "34", "--stock"]
        command += ["--file", str(self.list), "--venv", str(self.programs.parent)]
        done = subprocess.run(
            [*command, "--results", str(self.results)],
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def assert_run_once(self, told: str) -> None:
        self.assertEqual("\n", (self.programs / "runs").read_text(), told)
        self.assertFalse((self.results / "impatient.txt").exists())

    def test_one_that_ran_out_of_patience_is_run_once_more_and_named(self) -> None:
        first, second = _TESTS
        status, told = self.run_with({first: _IMPATIENT, second: ""}, {first: ""})
        self.assertEqual(0, status, told)
        self.assertIn("1 ran out of patience and are run once more, alone:", told)
        self.assertEqual(f"{first}\n", (self.results / "impatient.txt").read_text())
        self.assertEqual("", (self.results / "fail.txt").read_text())
        again = (self.programs / "arguments").read_text().splitlines()[1]
        self.assertIn(f"--load-list {self.results}/again.txt", again)

    def test_claims_that_are_left_once_fail_the_run(self) -> None:
        status, told = self.run_with({_TESTS[0]: _LEFT}, {_TESTS[0]: ""})
        self.assertEqual(1, status, told)
        self.assertIn(f"expected to pass, did not: {_TESTS[0]}", told)
        self.assertIn("1 failed, and none is run again:", told)
        self.assert_run_once(told)

    def test_an_assertion_that_fails_once_fails_the_run(self) -> None:
        status, told = self.run_with({_TESTS[0]: _OTHER}, {_TESTS[0]: ""})
        self.assertEqual(1, status, told)
        self.assert_run_once(told)

    def test_nothing_is_run_again_beside_a_wrong_state(self) -> None:
        first, second = _TESTS
        status, told = self.run_with({first: _IMPATIENT, second: _OTHER}, {first: "", second: ""})
        self.assertEqual(1, status, told)
        self.assertIn(f"  {first} (out of patience)\n  {second}\n", told)
        self.assert_run_once(told)

    def test_what_stock_fails_too_is_not_run_again_and_hinders_nothing(self) -> None:
        runs = {_TESTS[0]: _IMPATIENT, _FAILS_ANYHOW: _OTHER}, {_TESTS[0]: ""}
        status, told = self.run_with(*runs)
        self.assertEqual(0, status, told)
        self.assertEqual(f"{_TESTS[0]}\n", (self.results / "impatient.txt").read_text())

    def test_one_that_fails_again_has_failed(self) -> None:
        status, told = self.run_with({_TESTS[0]: _IMPATIENT}, {_TESTS[0]: _IMPATIENT})
        self.assertEqual(1, status, told)
        self.assertEqual("", (self.results / "impatient.txt").read_text())
        self.assertEqual(f"{_TESTS[0]}\n", (self.results / "fail.txt").read_text())

    def test_nothing_is_run_again_where_that_is_not_wanted(self) -> None:
        runs = {_TESTS[0]: _IMPATIENT}, {_TESTS[0]: ""}
        status, told = self.run_with(*runs, NODB_STRICT="1")
        self.assertEqual(1, status, told)
        self.assert_run_once(told)

    def test_many_that_ran_out_of_patience_are_not_run_again(self) -> None:
        many = {f"{_BELOW}.test_{number}": _IMPATIENT for number in range(6)}
        status, told = self.run_with(many, dict.fromkeys(many, ""))
        self.assertEqual(1, status, told)
        self.assertIn("6 failed, and none is run again:", told)
        self.assert_run_once(told)
