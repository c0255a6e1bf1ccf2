# SPDX-License-Identifier: Apache-2.0
"""Schedulers race for little room: python -m tests.capacity."""

import argparse
import json
import logging
import os
import pathlib
import sys

import attrs
from rich import console as rich_console
from rich import table as rich_table

from tests.capacity import races, report
from tools.stack import __main__ as command_line
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_WIDTH = 110
"""Columns of the table where no terminal says how many it has."""

_SNIPPET = _CHECKOUT / "doc" / "source" / "reference" / "races.rst.inc"
_FAILING_COMPUTE, _FAILING_HOST = "nova-compute-1", "host1"


def main(arguments: list[str] | None = None) -> int:
    """The exit status is 0 when every run went as promised."""
    options = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)
    width = None if sys.stdout.isatty() else _WIDTH
    terminal = rich_console.Console(
        stderr=options.json, highlight=False, soft_wrap=True, width=width
    )
    settings = _settings(options)
    stack = stack_module.Stack(settings, lambda step: terminal.print(f"[dim]{step}[/dim]"))
    stack.down(wipe=True)
    stack = stack_module.Stack(settings, lambda step: terminal.print(f"[dim]{step}[/dim]"))
    size = (options.computes, options.vcpus)
    wanted = races.races(*size)
    if options.failing_builds:
        wanted = races.races_with_failing_builds(*size, _FAILING_HOST)
    chosen = [race for race in wanted if options.race in (None, race.name)]
    runs: list[races.Run] = []
    try:
        stack.up()
        stack.wait_heartbeats("nova-scheduler")
        for race in chosen:
            for number in range(1, options.runs + 1):
                runs.append(races.run(race, number, stack, terminal.print))
                _file(options, runs)
    finally:
        stack.down()
    if options.file:
        _SNIPPET.write_text(report.to_rst(_results()))
    by_name = {race.name: race for race in chosen}
    kept = [by_name[run.race].kept(run) for run in runs]
    if options.json:
        print(json.dumps([attrs.asdict(run) for run in runs], indent=1))
    terminal.print(_table(options, runs, kept))
    for run in runs:
        for fault in (*run.unseen, *run.faults):
            terminal.print(f"{run.race} {run.number}: {fault}", markup=False)
    if options.failing_builds and not any(run.failed_builds for run in runs):
        terminal.print(f"[red]No build was tried on {_FAILING_HOST}: nothing is shown.[/red]")
        kept = [False] * len(runs)
    terminal.print(f"{sum(kept)} passed, {len(kept) - sum(kept)} failed, 0 skipped")
    if kept and all(kept):
        stack.down(wipe=True)
        return 0
    terminal.print(f"The logs are kept in {settings.log}")
    return 1


def _settings(options: argparse.Namespace) -> stack_settings.Settings:
    settings = attrs.evolve(
        command_line.settings_from(options, plugin=not options.stock), vcpus_per_host=options.vcpus
    )
    if not options.failing_builds:
        return settings
    # Alternates are of the same cell, and as many as there are attempts; nor is the host shunned
    # for what failed there before.
    scheduler = {
        "scheduler": {"max_attempts": str(options.computes)},
        "filter_scheduler": {"build_failure_weight_multiplier": "0"},
    }
    overrides = {
        _FAILING_COMPUTE: {"DEFAULT": {"compute_driver": "fake.FakeRescheduleDriver"}},
        **dict.fromkeys(settings.control_plane_names, scheduler),
    }
    return attrs.evolve(settings, cells=1, overrides=overrides)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/capacity.sh", description=__doc__)
    state = stack_settings.default_state_directory()
    parser.add_argument("--state", type=pathlib.Path, default=state, help="default: %(default)s")
    parser.add_argument("--race", choices=("slots", "group"), help="one of the two")
    parser.add_argument("--runs", type=int, default=10, help="of each race (%(default)s)")
    parser.add_argument("--vcpus", type=int, default=4, help="of each host (%(default)s)")
    parser.add_argument("--stock", action="store_true", help="without the plugin")
    parser.add_argument(
        "--failing-builds",
        action="store_true",
        help="builds on one host fail, and the others of its cell have room for all",
    )
    parser.add_argument(
        "--file", action="store_true", help="write the table that the documents include, too"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, progress on stderr")
    command_line.add_size_options(parser)
    return parser


def _results() -> pathlib.Path:
    return pathlib.Path(os.environ.get("NODB_RESULTS_DIR", _CHECKOUT / "results"))


def _file(options: argparse.Namespace, runs: list[races.Run]) -> None:
    """File what is known so far: a long series may be ended early."""
    results = _results()
    results.mkdir(parents=True, exist_ok=True)
    kind = "stock" if options.stock else "plugin"
    kind += "-failing" if options.failing_builds else ""
    path = results / f"capacity-{kind}-{options.schedulers}.json"
    path.write_text(json.dumps([attrs.asdict(run) for run in runs], indent=1) + "\n")


def _table(
    options: argparse.Namespace, runs: list[races.Run], kept: list[bool]
) -> rich_table.Table:
    title = f"{options.schedulers} schedulers, {'stock' if options.stock else 'with the plugin'}"
    columns = ("race", "run", "active", "none", "else", "again", "failed", "late", "crowd", "over")
    table = rich_table.Table(
        *columns,
        "s",
        "",
        title=title,
        caption="none: no valid host; again: builds beyond the first; late: lines of computes that "
        "found a group's policy broken; crowd: servers beyond a host's room; over: allocated "
        "beyond it at any moment",
    )
    for run, good in zip(runs, kept, strict=True):
        figures = (run.number, run.active, run.refused, run.other, run.reschedules)
        figures += (run.failed_builds, run.late_checks_failed, run.crowded, run.over_allocated)
        verdict = "kept" if good else "[red]broken[/red]"
        table.add_row(run.race, *map(str, figures), f"{run.seconds:.0f}", verdict)
    return table


if __name__ == "__main__":
    sys.exit(main())
