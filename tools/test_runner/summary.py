# SPDX-License-Identifier: Apache-2.0
"""The last lines of a run: every step, the time of every stage, what was tried again, counts."""

from __future__ import annotations

import time

from tools.test_runner import run


def write(this: run.Run) -> int:
    """Print the summary and file it; returns the exit status."""
    table = [
        f"{'stage':<17} {'step':<28} {'passed':>8} {'failed':>8} {'skipped':>8} {'seconds':>8}"
    ]
    table += [
        f"{step.stage:<17} {step.name:<28} {step.passed:>8} {step.failed:>8} {step.skipped:>8} "
        f"{step.seconds:>8.0f}{'  <--' if step.failed else ''}"
        for step in this.steps
    ]
    text = "\n".join([*table, "", *_times(this)])
    (this.results / "summary.txt").write_text(f"{text}\n")
    print(f"\n{text}\n")
    impatient = [
        line
        for path in sorted(this.results.glob("*/impatient.txt"))
        for line in path.read_text().splitlines()
    ]
    (this.results / "impatient.txt").write_text("".join(f"{line}\n" for line in impatient))
    for line in impatient:
        print(f"out of patience, then passed alone: {line}")
    print(f"{len(impatient)} tests ran out of patience and were tried again")
    minutes, seconds = divmod(round(time.monotonic() - this.began), 60)
    this.say(f"{minutes} min {seconds} s; logs in {this.results}")
    passed = sum(step.passed for step in this.steps)
    failed = sum(step.failed for step in this.steps)
    print(f"{passed} passed, {failed} failed, {sum(step.skipped for step in this.steps)} skipped")
    return 0 if passed and not failed else 1


def _times(this: run.Run) -> list[str]:
    """Return a line per stage: when it began, how long it took, and of the processors."""
    lines = [f"{'stage':<17} {'began':>8} {'seconds':>8} {'of cpu':>8}"]
    for stage in dict.fromkeys(step.stage for step in this.steps):
        steps = [step for step in this.steps if step.stage == stage]
        began = min(step.ended - step.seconds for step in steps) - this.began
        seconds = max(step.ended for step in steps) - this.began - began
        cpu = sum(step.cpu_seconds for step in steps)
        lines.append(f"{stage:<17} {began:>8.0f} {seconds:>8.0f} {cpu:>8.0f}")
    return lines
