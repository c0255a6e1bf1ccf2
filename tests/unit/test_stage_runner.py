# SPDX-License-Identifier: Apache-2.0
"""The runner of tools/test.sh: what goes beside what, limits, signals, counts, kept times."""

import dbm.dumb
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

from nova_nodb_scheduler.testing import patience
from tools.test_runner import environment, processes, run, schedule, stages, timings, trees, work

ROOT = pathlib.Path(__file__).resolve().parents[2]


def stage(name: str, share: float = 1.0) -> stages.Stage:
    return stages.Stage(name, stages.When.CI, 60, "made", work.Checks(()), share)


class DirectoryCase(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.log = self.directory / "log"

    def task(self, limit_seconds: float = 60.0) -> work.Task:
        results = self.directory / "results"
        this = run.Run(self.directory / "state", results, output=io.StringIO())
        results.mkdir()
        return work.Task(this, "made", limit_seconds, 2)


class ScheduleTest(unittest.TestCase):
    def beside(self, *chosen: stages.Stage) -> list[set[str]]:
        """Do the stages; returns who was under way when each began, itself included."""
        seen: list[set[str]] = []
        under_way: set[str] = set()
        lock = threading.Lock()

        def do(one: stages.Stage) -> None:
            with lock:
                under_way.add(one.name)
                seen.append(set(under_way))
            time.sleep(0.05)
            with lock:
                under_way.remove(one.name)

        schedule.go(chosen, do)
        return seen

    def test_stages_that_ask_for_all_go_one_after_the_other(self) -> None:
        self.assertEqual([{"a"}, {"b"}], self.beside(stage("a"), stage("b")))

    def test_stages_go_together_as_far_as_their_shares_fit(self) -> None:
        seen = self.beside(stage("a", 0.5), stage("b", 0.25), stage("c", 0.5), stage("d", 0.25))
        self.assertEqual({"a", "b", "d"}, set().union(*seen[:3]))
        self.assertEqual(4, len(seen))
        self.assertNotIn({"a", "b", "c"}, seen)

    def test_a_stage_that_asks_for_more_than_there_is_goes_alone(self) -> None:
        self.assertEqual([{"a"}, {"b"}], self.beside(stage("a", 3.0), stage("b", 0.1)))


class LimitedTest(DirectoryCase):
    def test_a_command_that_ends_gives_its_status_its_output_and_its_processor_time(self) -> None:
        busy = (
            "import time\nwhile time.process_time() < 0.2: pass\nprint('done')\nraise SystemExit(3)"
        )
        done = processes.limited([sys.executable, "-c", busy], 60.0, self.log)
        self.assertEqual((3, "done\n"), (done.status, self.log.read_text()))
        self.assertGreaterEqual(done.cpu_seconds, 0.2)

    def test_a_command_whose_time_is_over_ends_with_all_that_it_started(self) -> None:
        script = f"sleep 600 & echo $! >{self.directory}/child; wait"
        done = processes.limited(["sh", "-c", script], 1.0, self.log)
        self.assertEqual(processes.TIMED_OUT, done.status)
        self.assertIn("its limit", self.log.read_text())
        child = (self.directory / "child").read_text().strip()
        patience.wait_until(lambda: not alive(child), 20.0, "the end of the child")


def alive(pid: str) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class CountsTest(DirectoryCase):
    def counted(self, task: work.Task) -> list[tuple[int, int, int]]:
        return [(step.passed, step.failed, step.skipped) for step in task.run.steps]

    def test_what_a_closing_line_says_is_counted(self) -> None:
        task = self.task()
        self.log.write_text("1 passed, 9 failed\nat last: 12 passed, 0 failed, 3 skipped\n")
        task.count("made", self.log, 0)
        self.assertEqual([(12, 0, 3)], self.counted(task))

    def test_a_run_that_ends_badly_and_names_no_failure_has_failed(self) -> None:
        task = self.task()
        self.log.write_text("12 passed, 0 failed\n")
        task.count("made", self.log, 1)
        self.assertEqual([(12, 1, 0)], self.counted(task))

    def test_a_run_in_which_nothing_passed_has_failed(self) -> None:
        task = self.task()
        self.log.write_text("0 passed, 0 failed, 5 skipped\n")
        task.count("made", self.log, 0)
        self.assertEqual([(0, 1, 5)], self.counted(task))

    def test_each_check_counts_as_one(self) -> None:
        task = self.task()
        work.Checks(
            (
                work.Check("good", ("true",)),
                work.Check("bad", ("false",)),
                work.Check("own", lambda task, log: True),
            )
        ).do(task)
        self.assertEqual([(1, 0, 0), (0, 1, 0), (1, 0, 0)], self.counted(task))


SOMETIMES = """
import pathlib, unittest
from nova_nodb_scheduler.testing import patience

class Made(unittest.TestCase):
    def test_passes(self):
        pass

    def test_runs_out_of_patience_once(self):
        been = pathlib.Path(__file__).with_name("been")
        if not been.exists():
            been.touch()
            patience.wait_until(lambda: False, 0.01, "what comes", 0.001)
"""
SLOW = """
import time, unittest

class Made(unittest.TestCase):
    def test_takes_its_time(self):
        time.sleep(0.6)

    def test_takes_none(self):
        pass
"""
WRONG = """
    def test_finds_a_wrong_state(self):
        self.assertEqual(1, 2)
"""


class RunTest(DirectoryCase):
    """Whole runs, of a made stage over a made tree."""

    def setUp(self) -> None:
        super().setUp()
        self.tree = self.directory / "tree"
        made = self.tree / "tests" / "made"
        made.mkdir(parents=True)
        for package in (self.tree / "tests", made):
            (package / "__init__.py").touch()
        (self.tree / ".stestr.conf").write_text((ROOT / ".stestr.conf").read_text())
        # What it is asked for is metadata, which nothing here reads.
        (self.tree / "setup.py").touch()

    def begin(self, work_of_it: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Begin a run whose only stage does what an expression says."""
        script = f"""
            import pathlib, sys
            from tools.test_runner import __main__, stages, work
            made = stages.Stage("made", stages.When.FAST, 60, "what is made", {work_of_it})
            arguments = ["--here", *{arguments!r}]
            sys.exit(__main__.main(arguments, [made], pathlib.Path({str(self.tree)!r})))
        """
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "NODB_RESULTS_DIR": str(self.results)}
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            cwd=ROOT,
            env={**os.environ, **own, "NODB_STATE_DIR": str(self.state), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    @property
    def state(self) -> pathlib.Path:
        return self.directory / "state"

    @property
    def results(self) -> pathlib.Path:
        return self.directory / "results"

    def run_tests(self, source: str, **variables: str) -> tuple[int, list[str]]:
        """Run made tests; returns the exit status, and what was said."""
        (self.tree / "tests" / "made" / "test_made.py").write_text(textwrap.dedent(source))
        process = self.begin("work.Tests('made', again=True)", **variables)
        told, _ = process.communicate()
        return process.returncode, told.splitlines()

    def test_tests_are_told_of_an_environment_beside_nova(self) -> None:
        source = """
            import os, unittest

            class Made(unittest.TestCase):
                def test_it_is_named(self):
                    self.assertEqual("/of/my/own", os.environ["NODB_MADE_VENV"])
        """
        (self.tree / "tests" / "made" / "test_made.py").write_text(textwrap.dedent(source))
        beside = "work.Beside('made', 'requirements.txt', 'NODB_MADE_VENV')"
        process = self.begin(f"work.Tests('made', beside={beside})", NODB_MADE_VENV="/of/my/own")
        told, _ = process.communicate()
        self.assertEqual(0, process.returncode, told)

    def test_an_environment_beside_novas_is_made_once_for_what_it_holds(self) -> None:
        this = run.Run(self.state, self.results, root=self.tree)
        (self.tree / "made.txt").write_text("made==1\n")
        first = self.state / f"venv-made-{environment._key(this, ['made.txt'])}"
        first.mkdir(parents=True)
        (first / ".complete").touch()
        self.assertEqual(first, environment.beside(this, "made", "made.txt"))
        (self.tree / "made.txt").write_text("made==2\n")
        self.assertNotEqual(first.name, f"venv-made-{environment._key(this, ['made.txt'])}")

    def test_what_ran_out_of_patience_once_passes_is_named_and_counted(self) -> None:
        status, told = self.run_tests(SOMETIMES)
        self.assertEqual((0, "2 passed, 0 failed, 0 skipped"), (status, told[-1]), told)
        self.assertIn("1 tests ran out of patience and were tried again", told)
        name = "tests.made.test_made.Made.test_runs_out_of_patience_once"
        self.assertIn(f"out of patience, then passed alone: {name}", told)

    def test_what_ran_out_of_patience_of_novas_own_is_named_and_counted(self) -> None:
        status, told = self.run_novas("printf '%s\\n' nova.tests.a.A.test_b > $6/impatient.txt")
        self.assertEqual((0, "1 passed, 0 failed, 0 skipped"), (status, told[-1]), told)
        self.assertIn("1 tests ran out of patience and were tried again", told)
        self.assertIn("out of patience, then passed alone: nova.tests.a.A.test_b", told)

    def test_where_none_of_novas_own_did_none_is_counted(self) -> None:
        status, told = self.run_novas(": > $6/impatient.txt")
        self.assertEqual((0, "1 passed, 0 failed, 0 skipped"), (status, told[-1]), told)
        self.assertIn("0 tests ran out of patience and were tried again", told)

    def run_novas(self, then: str) -> tuple[int, list[str]]:
        """Run a selection of Nova's tests by a made script; returns status and what was said."""
        script = self.tree / "tools" / "nova_functional.sh"
        script.parent.mkdir()
        # Called as --nova N --selection S --results DIRECTORY ...
        script.write_text(f"#!/bin/sh\necho a > $6/pass.txt\n{then}\n")
        script.chmod(0o755)
        process = self.begin("work.Nova('ci')")
        told, _ = process.communicate()
        return process.returncode, told.splitlines()

    def test_nothing_is_tried_again_where_that_is_not_wanted(self) -> None:
        status, told = self.run_tests(SOMETIMES, NODB_STRICT="1")
        self.assertEqual((1, "1 passed, 1 failed, 0 skipped"), (status, told[-1]), told)

    def test_nothing_is_tried_again_beside_a_wrong_state(self) -> None:
        status, told = self.run_tests(SOMETIMES + WRONG)
        self.assertEqual((1, "1 passed, 2 failed, 0 skipped"), (status, told[-1]), told)
        self.assertIn("0 tests ran out of patience and were tried again", told)

    def test_how_long_tests_took_is_kept_for_the_next_run(self) -> None:
        self.run_tests(SLOW)
        name = "tests.made.test_made.Made.test_takes_its_time"
        kept = json.loads((self.state / "timings" / "made.json").read_text())
        self.assertEqual([name], list(kept))
        repository = self.directory / "next"
        timings.seed(self.state, "made", repository)
        with dbm.dumb.open(str(repository / ".stestr" / "times.dbm")) as times:
            self.assertEqual(str(kept[name]).encode(), times[name])

    def test_the_time_of_each_stage_is_told(self) -> None:
        process = self.begin("work.Checks((work.Check('nap', ('sleep', '1')),))")
        told = process.communicate()[0].splitlines()
        [_, row] = [line.split() for line in told if line.startswith("made ")]
        self.assertGreaterEqual(int(row[2]), 1)

    def test_properties_have_more_cases_where_all_is_run(self) -> None:
        command = ("sh", "-c", 'test "$NODB_PROPERTY_EXAMPLES" = 600')
        check = f"work.Checks((work.Check('c', {command!r}),))"
        for arguments, status in (((), 1), (("--all",), 0)):
            with self.subTest(arguments):
                process = self.begin(check, *arguments, NODB_PROPERTY_EXAMPLES="")
                told, _ = process.communicate()
                self.assertEqual(status, process.returncode, told)

    def test_a_signal_ends_what_runs_and_then_the_run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number.name):
                child = self.directory / f"child-{number.name}"
                script = f"sleep 600 & echo $! >{child}.new; mv {child}.new {child}; wait"
                process = self.begin(f"work.Checks((work.Check('s', ('sh', '-c', {script!r})),))")
                patience.wait_until(child.exists, 60.0, "the check's child")
                process.send_signal(number)
                told, _ = process.communicate()
                self.assertEqual(-number, process.returncode, told)
                self.assertIn(f"ended by {number.name}", told)
                self.assertFalse(alive(child.read_text().strip()))

    def test_a_stage_that_breaks_has_failed(self) -> None:
        process = self.begin("None")
        told = process.communicate()[0].splitlines()
        self.assertEqual((1, "0 passed, 1 failed, 0 skipped"), (process.returncode, told[-1]))


class CommandTest(unittest.TestCase):
    """What ``tools/test.sh`` itself answers."""

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / "tools/test.sh"), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )

    def test_the_stages_are_listed(self) -> None:
        listed = self.ask("--list").stdout.splitlines()
        self.assertEqual([stage.name for stage in stages.STAGES], [x.split()[0] for x in listed])

    def test_an_unknown_stage_is_refused_with_those_that_there_are(self) -> None:
        refused = self.ask("--only", "unit,made")
        self.assertEqual(2, refused.returncode)
        self.assertIn("unknown stage: made", refused.stderr)
        self.assertIn("conformance", refused.stderr)

    def test_every_folder_of_functional_tests_is_run_by_a_stage(self) -> None:
        here = pathlib.Path(__file__).parents[1] / "functional"
        folders = {f"functional/{path.parent.name}" for path in here.glob("*/__init__.py")}
        run_by_ci = {
            stage.work.directory
            for stage in stages.selected(stages.When.CI)
            if isinstance(stage.work, work.Tests)
        }
        self.assertLessEqual({"functional/cmd", "functional/nova_adapter"}, folders)
        self.assertEqual(set(), folders - run_by_ci)
        self.assertEqual([], list(here.glob("test_*.py")))

    def test_each_way_of_calling_includes_the_one_before(self) -> None:
        fast, ci, everything = (
            [stage.name for stage in stages.selected(when)] for when in stages.When
        )
        self.assertEqual({"lint", "unit"}, set(fast))
        self.assertLess(set(fast), set(ci))
        self.assertEqual([stage.name for stage in stages.STAGES], everything)


class ShellTest(DirectoryCase):
    def test_bash_is_found_by_its_first_line_and_in_devstack(self) -> None:
        files = {
            "tools/by_line": "#!/usr/bin/env bash\n",
            "tools/other": "#!/bin/sh\n",
            "tools/module.py": "# bash\n",
            "devstack/settings": "A=1\n",
            "tests/unit/devstack/stubs.sh": "A=1\n",
            "tests/unit/devstack/test_it.py": "\n",
        }
        for name, text in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.assertEqual(
            ["devstack/settings", "tests/unit/devstack/stubs.sh", "tools/by_line"],
            trees.shell_files(self.directory),
        )
