# SPDX-License-Identifier: Apache-2.0
"""One run: where it files what, what it says, what it counted."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from typing import TextIO

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS_KEPT = 10


def state_directory(environment: Mapping[str, str]) -> pathlib.Path:
    """Return where environments, results and the history of times are kept, outside any clone."""
    cache = environment.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    named = environment.get("NODB_STATE_DIR") or str(pathlib.Path(cache, "nova-nodb-scheduler"))
    return pathlib.Path(named).absolute()


@dataclasses.dataclass(frozen=True)
class Step:
    """What one step of a stage came to: tests, or a check that counts as one."""

    stage: str
    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    cpu_seconds: float = 0.0
    ended: float = dataclasses.field(default_factory=time.monotonic)


class Run:
    """Shared by the stages of a run, which go on at the same time."""

    def __init__(
        self,
        state: pathlib.Path,
        results: pathlib.Path,
        nova_version: str = "34.0.0",
        root: pathlib.Path = ROOT,
        output: TextIO = sys.stdout,
    ) -> None:
        self.root = root
        self._output = output
        self.state = state
        self.results = results
        self.nova_version = nova_version
        #: The environment that is used.
        self.venv = pathlib.Path(sys.prefix)
        self.began = time.monotonic()
        self._steps: list[Step] = []
        self._lock = threading.Lock()

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self._steps)

    def directory(self, stage: str) -> pathlib.Path:
        """Return where a stage files its logs."""
        made = self.results / stage
        made.mkdir(parents=True, exist_ok=True)
        return made

    def say(self, text: str, *below: str) -> None:
        """Print a line with the time, and lines below it that nothing comes between."""
        with self._lock:
            for line in (f"{time.strftime('%H:%M:%S')} {text}", *(f"    | {x}" for x in below)):
                print(line, file=self._output, flush=True)

    def count(self, step: Step) -> None:
        """Count a step, in ``tally.tsv`` too: what was done when a run is ended early."""
        with self._lock:
            self._steps.append(step)
            columns = (step.stage, step.name, step.passed, step.failed, step.skipped)
            times = (round(step.seconds), round(step.cpu_seconds))
            with open(self.results / "tally.tsv", "a", encoding="utf-8") as tally:
                tally.write("\t".join(str(each) for each in columns + times) + "\n")

    def check(
        self, stage: str, name: str, passed: bool, seconds: float, cpu: float, log: pathlib.Path
    ) -> None:
        """Count and tell one command that passed or failed; its output is shown if it failed."""
        if passed:
            self.say(f"{stage:<14} ok      {name} ({seconds:.0f} s)")
        else:
            self.say(f"{stage:<14} FAILED  {name} ({seconds:.0f} s), {log}:", *last_lines(log, 60))
        self.count(Step(stage, name, int(passed), int(not passed), 0, seconds, cpu))


def last_lines(log: pathlib.Path, count: int) -> list[str]:
    """Return the end of a log that may not be there."""
    if not log.exists():
        return []
    return log.read_text(errors="replace").splitlines()[-count:]


def begin(environment: Mapping[str, str], root: pathlib.Path = ROOT) -> Run:
    """Make the directory of a new run; of those below the state directory ten are kept."""
    state = state_directory(environment)
    named = environment.get("NODB_RESULTS_DIR")
    if named:
        results = pathlib.Path(named).absolute()
        results.mkdir(parents=True, exist_ok=True)
    else:
        kept = state / "results"
        results = kept / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        results.mkdir(parents=True)
        link = kept / f"latest.{os.getpid()}"
        link.symlink_to(results)
        link.replace(kept / "latest")
        runs = sorted(
            (each for each in kept.iterdir() if each.is_dir() and not each.is_symlink()),
            reverse=True,
        )
        for old in runs[RESULTS_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
    (results / "tally.tsv").write_text("")
    return Run(state, results, environment.get("NODB_NOVA") or "34.0.0", root)
