# SPDX-License-Identifier: Apache-2.0
"""The kinds of work a stage can be: checks, tests, a script of ours, Nova's tests, Tempest's."""

from __future__ import annotations

import abc
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from tools.test_runner import environment, processes, run, timings

#: Tests that freeze, kill and cut off real servers now and then run out of patience on a busy
#: machine. So few of a stage are tried this often again, alone, and are named; if any test of
#: the stage failed by anything else, none is.
AGAIN_AT_MOST = 3
AGAIN_TIMES = 3

#: Tests trust certificates that they make themselves. Where a machine names a bundle of
#: authorities here, each connection to a database would read it, in 15 ms.
_NO_AUTHORITIES: Mapping[str, str] = {"SSL_CERT_FILE": ""}
_IMPATIENT = "  FAILED (out of patience) "
_CLOSING_LINE = re.compile(r"\b(\d+) passed, (\d+) failed(?:, (\d+) skipped)?")


@dataclasses.dataclass
class Task:
    """One stage of one run, as its work sees it."""

    run: run.Run
    stage: str
    limit_seconds: float
    #: Test processes at a time.
    workers: int
    cpu_seconds: float = 0.0
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def directory(self) -> pathlib.Path:
        return self.run.directory(self.stage)

    def limited(
        self,
        command: Sequence[str],
        log: pathlib.Path,
        append: bool = False,
        directory: pathlib.Path | None = None,
        variables: Mapping[str, str] | Mapping[str, str | pathlib.Path] | None = None,
    ) -> int:
        """Run a command within the stage's limit; returns its exit status."""
        done = processes.limited(
            command,
            self.limit_seconds,
            log,
            append=append,
            directory=directory or self.run.root,
            environment={name: str(value) for name, value in (variables or {}).items()},
        )
        self.cpu_seconds += done.cpu_seconds
        return done.status

    def count(self, name: str, log: pathlib.Path, status: int, *streams: pathlib.Path) -> None:
        """Count and tell what a test run did, from its streams.

        Of a script that files none, what its closing line says. A run that ended
        badly and names no failed test has failed all the same; so has one in which
        nothing passed.
        """
        passed, failed, skipped = _totals(*streams)[0]
        if not passed + failed + skipped:
            passed, failed, skipped = _closing_line(log)
        seconds = time.monotonic() - self.began
        if not failed and (status or not passed):
            failed = 1
            self.run.say(
                f"{self.stage:<14} FAILED  {name}: exit status {status}, {passed} passed; the end "
                f"of {log}:",
                *run.last_lines(log, 40),
            )
        elif failed:
            self.run.say(
                f"{self.stage:<14} FAILED  {name}: {failed} of {passed + failed} tests; the end of "
                f"{log}:",
                *run.last_lines(log, 80),
            )
        else:
            self.run.say(
                f"{self.stage:<14} ok      {name}: {passed} passed, {skipped} skipped "
                f"({seconds:.0f} s)"
            )
        step = run.Step(self.stage, name, passed, failed, skipped, seconds, self.cpu_seconds)
        self.run.count(step)

    def fails(self, name: str, why: str) -> None:
        """Count and tell what could not even begin."""
        self.run.say(f"{self.stage:<14} FAILED  {why}")
        self.run.count(run.Step(self.stage, name, 0, 1, 0, 0.0))


def _totals(*streams: pathlib.Path) -> tuple[tuple[int, int, int], list[str]]:
    """Return passed, failed and skipped of subunit streams, and a line for each that failed."""
    if not streams:
        return (0, 0, 0), []
    command = ["python", str(run.ROOT / "tools/subunit_totals.py"), *map(str, streams)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        return (0, 1, 0), [told.stderr]
    passed, failed, skipped = (int(each) for each in told.stdout.split())
    return (passed, failed, skipped), told.stderr.splitlines()


def _closing_line(log: pathlib.Path) -> tuple[int, int, int]:
    found = _CLOSING_LINE.findall(log.read_text(errors="replace")) if log.exists() else []
    if not found:
        return 0, 0, 0
    passed, failed, skipped = (int(each or 0) for each in found[-1])
    return passed, failed, skipped


class Work(abc.ABC):
    """What a stage does; it counts its steps with the run."""

    @abc.abstractmethod
    def do(self, task: Task) -> None:
        """Do it; called in a thread of the stage's own."""


# --- checks -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Check:
    """A command, or a function that tells by its answer whether it passed and writes the log."""

    name: str
    command: Sequence[str] | Callable[[Task, pathlib.Path], bool]


@dataclasses.dataclass(frozen=True)
class Checks(Work):
    """What passes or fails, one after the other; each counts as one."""

    checks: tuple[Check, ...]

    def do(self, task: Task) -> None:
        for check in self.checks:
            log = task.directory / f"{check.name}.log"
            began, cpu = time.monotonic(), task.cpu_seconds
            if callable(check.command):
                passed = check.command(task, log)
            else:
                passed = task.limited(check.command, log) == 0
            seconds = time.monotonic() - began
            cpu = task.cpu_seconds - cpu
            task.run.check(task.stage, check.name, passed, seconds, cpu, log)


# --- tests ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Beside:
    """The environment of a server that cannot share Nova's."""

    name: str
    #: What it holds.
    requirements: str
    #: Tells the tests where it is; who sets it has one of their own.
    variable: str


@dataclasses.dataclass(frozen=True)
class Tests(Work):
    """The tests below ``tests/DIRECTORY``, or those that a regular expression names or spares."""

    directory: str
    only: str = ""
    but: str = ""
    #: Whether a few that ran out of patience may be tried again.
    again: bool = False
    beside: Beside | None = None
    #: Of the tests' environment.
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

    def do(self, task: Task) -> None:
        tests = f"tests/{self.directory}"
        if not (task.run.root / tests).is_dir():
            task.fails(tests, f"there is no {tests}")
            return
        try:
            variables = {**_NO_AUTHORITIES, **self.variables, **self._beside(task)}
        except environment.Failed as error:
            task.fails(tests, str(error))
            return
        out, log = task.directory, task.directory / "tests.log"
        repository, stream = out / "stestr", out / "tests.subunit"
        timings.seed(task.run.state, task.stage, repository)
        stestr = _stestr(repository, tests)
        selected = [self.only] if self.only else []
        selected += ["--exclude-regex", self.but] if self.but else []
        status = task.limited(
            [*stestr, "run", "--concurrency", str(task.workers), "--slowest", *selected],
            log,
            variables=variables,
        )
        _last(repository, stream, log)
        timings.keep(task.run.state, task.stage, repository)
        impatient: list[str] = []
        if status == 1 and self.again:
            impatient = self._try_again(task, tests, stream, variables)
        if impatient:
            task.count(tests, log, 0, stream, out / "again.subunit")
            why = f"out of patience, passed {AGAIN_TIMES} times alone:"
            task.run.say(f"{task.stage:<14} {why}", *impatient)
        else:
            task.count(tests, log, status, stream)

    def _beside(self, task: Task) -> Mapping[str, str]:
        """Return what tells the tests of an environment, which is made if it is not there."""
        if self.beside is None or os.environ.get(self.beside.variable):
            return {}
        made = environment.beside(task.run, self.beside.name, self.beside.requirements)
        return {self.beside.variable: str(made)}

    def _try_again(
        self, task: Task, tests: str, stream: pathlib.Path, variables: Mapping[str, str]
    ) -> list[str]:
        """Run the few tests that ran out of patience again, alone.

        Returns those that pass each time; they are named in ``impatient.txt``,
        and ``again.subunit`` says so.
        """
        out = task.directory
        failed = _totals(stream)[1]
        # A test that did not end is of a process that died; those it had yet to run are missing.
        if (
            os.environ.get("NODB_STRICT")
            or not 0 < len(failed) <= AGAIN_AT_MOST
            or not all(line.startswith(_IMPATIENT) for line in failed)
        ):
            return []
        names = [line.removeprefix(_IMPATIENT) for line in failed]
        named = out / "failed.txt"
        named.write_text("".join(f"{name}\n" for name in names))
        repository, again = out / "again", out / "again.subunit"
        for attempt in range(1, AGAIN_TIMES + 1):
            log = out / f"again-{attempt}.log"
            alone = ["run", "--concurrency", "1", "--load-list", str(named)]
            repository.mkdir(exist_ok=True)
            task.limited([*_stestr(repository, tests), *alone], log, variables=variables)
            _last(repository, again, log)
            if _totals(again)[0] != (len(names), 0, 0):
                return []
        shutil.copy(named, out / "impatient.txt")
        return names


def _stestr(repository: pathlib.Path, tests: str) -> list[str]:
    return ["stestr", "--repo-url", str(repository), "--test-path", f"./{tests}"]


def _last(repository: pathlib.Path, stream: pathlib.Path, log: pathlib.Path) -> None:
    """File the stream of a repository's last run."""
    with open(stream, "wb") as output, open(log, "ab") as errors:
        last = ["stestr", "--repo-url", str(repository), "last", "--subunit"]
        subprocess.run(last, stdout=output, stderr=errors, check=False)


# --- scripts ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Script(Work):
    """A tool of ours that files its streams below NODB_RESULTS_DIR, or counts in its last line."""

    command: tuple[str, ...]

    def do(self, task: Task) -> None:
        name, out = self.command[0], task.directory
        if not os.access(task.run.root / name, os.X_OK):
            task.fails(name, f"there is no {name}")
            return
        status = task.limited(
            self.command,
            out / "run.log",
            variables={
                "NODB_RESULTS_DIR": out,
                "NODB_PYTHON": shutil.which("python") or "python",
                # The control plane's environment is kept there, and found by the next run.
                "NOVA_NODB_STATE": os.environ.get("NOVA_NODB_STATE") or task.run.state / "stack",
            },
        )
        task.count(name, out / "run.log", status, *sorted(out.rglob("*.subunit")))


@dataclasses.dataclass(frozen=True)
class ScriptForEach(Work):
    """A script for each of several words, each a check of its own."""

    command: tuple[str, ...]
    words: tuple[str, ...]
    after: tuple[str, ...] = ()

    def do(self, task: Task) -> None:
        Checks(tuple(Check(word, self._run(word)) for word in self.words)).do(task)

    def _run(self, word: str) -> Callable[[Task, pathlib.Path], bool]:
        command = (*self.command, word, *self.after)
        return lambda task, log: (
            task.limited(command, log, variables={"NODB_RESULTS_DIR": task.directory}) == 0
        )


@dataclasses.dataclass(frozen=True)
class EngineFaults(Work):
    """Faults on engines, as ``tests/engine_faults`` tries them."""

    arguments: tuple[str, ...]

    def do(self, task: Task) -> None:
        out = task.directory
        module = ["python", "-m", "tests.engine_faults", "--json", str(out / "outcomes.json")]
        status = task.limited(
            [*module, *self.arguments], out / "run.log", variables=_NO_AUTHORITIES
        )
        task.count(task.stage, out / "run.log", status)


@dataclasses.dataclass(frozen=True)
class Nova(Work):
    """A selection of Nova's own tests. What counts is the difference from stock Nova's record.

    A few that ran out of patience are run once more, by the script, if nothing else failed.
    """

    selection: str
    #: The release; None: the one of this run, in this environment.
    release: str | None = None
    #: What answers for compute nodes, as ``[nodb_scheduler] compute_nodes``.
    compute_nodes: str = "mirror"
    #: How heartbeats travel, as ``[nodb_scheduler] service_heartbeats``.
    heartbeats: str = "database"

    def do(self, task: Task) -> None:
        out, log = task.directory, task.directory / "run.log"
        release = self.release or task.run.nova_version.partition(".")[0]
        results = out / "nova"
        results.mkdir(exist_ok=True)
        timings.seed(task.run.state, task.stage, results)
        what = ["--nova", release, "--selection", self.selection, "--results", str(results)]
        own = [] if self.release else ["--venv", str(task.run.venv)]
        status = task.limited(
            ["tools/nova_functional.sh", *what, "--concurrency", str(task.workers), *own],
            log,
            variables={
                "NODB_VENVS": str(task.run.state / "venvs"),
                "NOVA_SUITE_COMPUTE_NODES": self.compute_nodes,
                "NOVA_SUITE_HEARTBEATS": self.heartbeats,
            },
        )
        timings.keep(task.run.state, task.stage, results)
        differs = re.findall(
            r"(?m)^(?:not )?expected to [a-z]+, did(?: not)?: (.*)$",
            log.read_text(errors="replace"),
        )
        passed, skipped = (_lines(results / name) for name in ("pass.txt", "skip.txt"))
        with open(log, "a") as closing:
            counts = f"{passed} passed, {len(set(differs))} failed, {skipped} skipped"
            closing.write(f"{counts}\n")
        task.count(f"nova{release}-{self.selection}", log, status)
        impatient = results / "impatient.txt"
        if _lines(impatient):
            shutil.copy(impatient, out / "impatient.txt")
            why = "out of patience, passed alone:"
            task.run.say(f"{task.stage:<14} {why}", *impatient.read_text().splitlines())


def _lines(path: pathlib.Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@dataclasses.dataclass(frozen=True)
class Tempest(Work):
    """The same tests with the plugin, without it, and without Nova's tables of compute nodes.

    On one stack; the differences count.
    """

    own: tuple[str, ...] = ("--regex", r"^nova_nodb_scheduler\.", "--none-may-fail")

    def do(self, task: Task) -> None:
        out, log = task.directory, task.directory / "run.log"
        state = task.run.state / "tempest-stack"
        own_log, compared = out / "scenarios.log", out / "compare.log"

        def call(*command: str, to: pathlib.Path = log) -> int:
            return task.limited(command, to, append=True, variables={"NOVA_NODB_STATE": state})

        def tempest(*arguments: str, to: pathlib.Path = log) -> int:
            return call("tools/tempest.sh", *arguments, to=to)

        if call("tools/stack.sh", "up", "--cells", "1") == 0:
            tempest("run", "plugin")
        status = tempest("run", "scenarios", *self.own, to=own_log)
        if call("tools/stack.sh", "plugin", "off") == 0:
            tempest("run", "stock")
        status += tempest("run", "scenarios-stock", *self.own, to=own_log)
        if call("tools/stack.sh", "plugin", "on") == call("tools/stack.sh", "retire") == 0:
            tempest("run", "retired")
        status += tempest("run", "scenarios-retired", *self.own, to=own_log)
        for former in ("stock", "plugin"):
            status += tempest("compare", former, "retired", to=compared)
        status += tempest("compare", "stock", "plugin", to=compared)
        call("tools/stack.sh", "down", "--wipe")
        shutil.copytree(state / "tempest" / "results", out / "results", dirs_exist_ok=True)
        texts = [path.read_text(errors="replace") for path in (own_log, compared)]
        passed = re.search(
            r"(?m)^pass (\d+), fail \d+, skip (\d+)$", log.read_text(errors="replace") + texts[0]
        )
        counts = f"{passed[1] if passed else 0} passed, {texts[1].count(' -> ')} failed"
        with open(log, "a") as closing:
            closing.writelines(texts)
            closing.write(f"{counts}, {passed[2] if passed else 0} skipped\n")
        task.count("tempest", log, status)
