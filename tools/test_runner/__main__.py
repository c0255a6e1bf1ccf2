# SPDX-License-Identifier: Apache-2.0
"""Run stages, and say at the end what each came to. ``tools/test.sh`` is the way to start it."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import NoReturn

from tools.test_runner import environment, processes, run, schedule, stages, summary, timings, work

_ABOUT = "Run the project's checks and tests, on a machine that has nothing yet."
_ENVIRONMENT = """\
environment:
  NODB_STATE_DIR      virtual environments, results and how long tests take
                      (default ${XDG_CACHE_HOME:-~/.cache}/nova-nodb-scheduler)
  NODB_RESULTS_DIR    where this run's logs go (default: below the state directory)
  NODB_TEST_WORKERS   test processes at a time (default: one per core; more where they wait)
  NODB_BASE_PYTHON    the interpreter to build the environment with (default: python3
                      if it is 3.11 or newer, else the first of 3.13, 3.12, 3.11)
  NODB_NOVA           the Nova to test with (default 34.0.0)
  NODB_REQUIRE_SERVERS  empty: skip the tests of a server that is not installed,
                      which otherwise fail
  NODB_STRICT         set: no test is tried again, whatever it failed by
  NODB_PROPERTY_EXAMPLES  about how many cases each property test draws (default: as many as
                      CI has time for; 600 with --all)

A test that asserts a state is never tried again. One that ran out of patience (and says so
by its type, nova_nodb_scheduler.testing.patience) is, alone, in the stages with servers; if
it passes three times it counts as passed, and is named and counted before the last line. So
is one of Nova's own whose poll gave up (tests/nova_suite/given_up.py) and that passes once.
The last line is `N passed, N failed, N skipped`: tests, and checks (each linter and
each document is one). The exit status is 0 only if something ran and nothing failed.
"""

#: At least as many cases of each property as ever were part of a whole run.
_EXAMPLES_OF_ALL = "600"


def main(
    arguments: Sequence[str],
    table: Sequence[stages.Stage] = stages.STAGES,
    root: pathlib.Path = run.ROOT,
) -> int:
    """Run the stages that the arguments name of a table, on the tree below a directory."""
    asked = _parse(arguments, table)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if asked.all:
        own = os.environ.get("NODB_PROPERTY_EXAMPLES")
        os.environ["NODB_PROPERTY_EXAMPLES"] = own or _EXAMPLES_OF_ALL
    os.environ["NODB_REQUIRE_SERVERS"] = os.environ.get("NODB_REQUIRE_SERVERS", "1")
    this = run.begin(os.environ, root)
    try:
        with contextlib.chdir(root):
            if _prepare(this, asked):
                least = 1.0 if len(asked.stages) == 1 else 0.0
                schedule.go(asked.stages, lambda stage: _do(this, stage, least))
                if asked.file_times:
                    timings.file_seed(this.state, [stage.name for stage in asked.stages])
            return summary.write(this)
    except schedule.Ended as ended:
        _end_by(this, ended.number)


def _parse(arguments: Sequence[str], table: Sequence[stages.Stage]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/test.sh",
        description=_ABOUT,
        epilog=_ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--fast", action="store_true", help="lint and unit tests")
    way.add_argument(
        "--all",
        action="store_true",
        help="also all of Nova's selection, Nova 31-33, faults, races, chaos, Tempest",
    )
    parser.add_argument(
        "--faults",
        action="append_const",
        dest="only",
        const=["engine_faults_all"],
        help="every fault on every engine, into the documents' table",
    )
    parser.add_argument(
        "--only",
        action="append",
        type=_names,
        metavar="STAGE",
        help="one stage; may be repeated, or STAGE,STAGE",
    )
    parser.add_argument("--list", action="store_true", help="the stages")
    parser.add_argument(
        "--file-times",
        action="store_true",
        help="also file how long tests took in tools/test_runner/timings.json",
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="use the Python environment that is active, make none",
    )
    asked = parser.parse_args(arguments)
    if asked.list:
        print(_listed(table))
        sys.exit(0)
    named = [name for names in asked.only or () for name in names]
    by_name = {stage.name: stage for stage in table}
    unknown = [name for name in named if name not in by_name]
    if unknown:
        print(f"unknown stage: {unknown[0]}; there are:\n{_listed(table)}", file=sys.stderr)
        sys.exit(2)
    when = stages.When.CI
    if asked.fast or asked.all:
        when = stages.When.FAST if asked.fast else stages.When.ALL
    chosen = dict.fromkeys(by_name[name] for name in named)
    asked.stages = tuple(chosen) or stages.selected(when, table)
    return asked


def _names(text: str) -> list[str]:
    return [name for name in text.replace(",", " ").split() if name]


def _listed(table: Sequence[stages.Stage]) -> str:
    return "\n".join(f"{stage.name:<17} {stage.when.value:<5} {stage.what}" for stage in table)


def _prepare(this: run.Run, asked: argparse.Namespace) -> bool:
    """Make the environment; where that fails it is counted as a failed step."""
    began = time.monotonic()
    step = "environment"
    try:
        this.venv = environment.active() if asked.here else environment.enter(this)
        step = "metadata"
        environment.make_metadata(this)
    except environment.Failed as error:
        print(error, file=sys.stderr)
        this.count(run.Step("setup", step, 0, 1, 0, time.monotonic() - began))
        return False
    if time.monotonic() - began >= 2:
        this.say(f"environment ready after {time.monotonic() - began:.0f} s")
    return True


def _do(this: run.Run, stage: stages.Stage, least: float) -> None:
    """Do a stage; one that breaks has failed."""
    asked = os.environ.get("NODB_TEST_WORKERS")
    processors = len(os.sched_getaffinity(0))
    workers = int(asked) if asked else max(1, round(max(stage.workers, least) * processors))
    task = work.Task(this, stage.name, stage.limit_seconds, workers)
    this.say(f"{stage.name:<14} begins  {stage.what}")
    try:
        stage.work.do(task)
    except Exception:  # noqa: BLE001, told and counted
        told = traceback.format_exc().splitlines()
        this.say(f"{stage.name:<14} FAILED  the stage itself:", *told)
        this.count(run.Step(stage.name, "stage", 0, 1, 0, time.monotonic() - task.began))


def _end(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise schedule.Ended(number)


def _end_by(this: run.Run, number: int) -> NoReturn:
    """End what runs, and then this process by the signal that came."""
    this.say(f"ended by {signal.Signals(number).name}")
    processes.end_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise AssertionError("a signal that ends a process did not")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
