# SPDX-License-Identifier: Apache-2.0
"""One worker with threads against several workers: decisions a second, and what they hold.

usage: python -m tools.bench.workers.worker_shapes [--state DIR] [--hosts N] [--shapes 1x1,1x4,4x1]
    [--seconds S] [--json FILE]

A shape is workers x threads; each has its workers started anew, on the benchmark's data
(``tools/bench.sh --populate-only`` makes them), with the computes' writes beside the requests.
Memory is what a worker holds by itself (``Pss`` of /proc: what processes share counts by parts)
after its requests, added up, and the greatest that one of them ever had.
"""

import argparse
import contextlib
import json
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.table

from tools.bench import campaign, contest, measuring, meters, options
from tools.bench.control_plane import databases

_SHAPES = ((1, 1), (1, 4), (1, 8), (2, 4), (4, 1), (4, 2))
_WARM_UP = 20


class ShapeContest(contest.Contest):
    """The plugin's schedulers, so many at once, each with so many requests at a time."""

    def measure_shapes(self, shapes: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """Measure shapes one after the other.

        :raises RuntimeError: it failed, or counts for nothing
        """
        settings, hosts = self._running.settings, self._hosts
        rates = self._rates()
        with self._conductor(options.PLUGIN) as conductor:
            self._delete(conductor, databases.left_behind(settings, hosts))
            scene = measuring.Scene(
                self._given.durations(hosts), 0, self._running, conductor, self._say
            )
            try:
                conductor.ask(
                    "write",
                    heartbeats_per_second=rates.heartbeats,
                    reports_per_second=rates.reports,
                )
                self._wait_swept(scene)
                return [self._measure_shape(scene, *shape) for shape in shapes]
            finally:
                conductor.ask("quiet")
                self._delete(conductor, scene.consumers)

    def _measure_shape(self, scene: measuring.Scene, workers: int, threads: int) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            schedulers = []
            for _ in range(workers):
                scheduler = stack.enter_context(self._scheduler(options.PLUGIN))
                self._begin(scheduler, scene)
                schedulers.append(scheduler)
                measuring.Measuring(scene, [scheduler]).warm_up(_WARM_UP)
            self._clear(scene, schedulers[0])
            found = measuring.Measuring(scene, schedulers).together(threads)
            states = [each.ask("state") for each in schedulers]
            self._clear(scene, schedulers[0])
        found["memory_mb"] = sum(each["own_memory_mb"] for each in states)
        found["memory_mb_peak"] = max(each["memory_mb_peak"] for each in states)
        self._log(f"{workers} x {threads}: {json.dumps(found)}")
        return found


def main() -> int:
    """Measure and print; 1 when nothing could be measured."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.workers.worker_shapes")
    parser.add_argument("--state", type=pathlib.Path, default=options.default_state_directory())
    parser.add_argument("--hosts", default="10000")
    parser.add_argument("--shapes", type=_shapes, default=_SHAPES, metavar="WxT,WxT")
    parser.add_argument("--seconds", default="30")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    asked = parser.parse_args()
    # Half of the time is for what is told, as elsewhere with several schedulers.
    given = options.parse(
        ["--state", str(asked.state), "--hosts", asked.hosts, "--seconds", asked.seconds]
    )
    console = rich.console.Console(stderr=True, log_path=False)
    # An exception, so that everything started is ended.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with campaign.Campaign(given, console).serving(given.hosts[0]) as running:
        made = ShapeContest(given, running, given.hosts[0], 1000, console.log, console.log)
        found = made.measure_shapes(asked.shapes)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    _show(found)
    return 0


def _shapes(text: str) -> list[tuple[int, int]]:
    found = []
    for part in text.split(","):
        workers, _, threads = part.partition("x")
        found.append((int(workers), int(threads)))
    if any(min(shape) < 1 for shape in found):
        raise argparse.ArgumentTypeError("workers and threads are 1 at least")
    return found


def _show(found: Sequence[dict[str, Any]]) -> None:
    columns = ("workers x threads", "decisions/s", "p50 ms", "p99 ms", "scheduler ms", "all ms")
    table = rich.table.Table(*columns, "memory MiB", "peak of one MiB")
    for each in found:
        cpu = each["cpu_seconds"]
        table.add_row(
            f"{each['schedulers']} x {each['threads_each']}",
            f"{each['decisions_per_second']:.1f}",
            f"{each['p50_seconds'] * 1000:.0f}",
            f"{each['p99_seconds'] * 1000:.0f}",
            f"{cpu[meters.SCHEDULER] * 1000:.1f}",
            f"{each['cpu_seconds_total'] * 1000:.1f}",
            f"{each['memory_mb']:.0f}",
            f"{each['memory_mb_peak']:.0f}",
        )
    rich.console.Console(width=100).print(table)


if __name__ == "__main__":
    sys.exit(main())
