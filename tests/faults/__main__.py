# SPDX-License-Identifier: Apache-2.0
"""Runs the scenarios one after the other and files what became of them: python -m tests.faults."""

import argparse
import logging
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Iterator

from rich import console as rich_console

from tests.faults import report, scenarios
from tests.faults import trial as trial_module
from tests.faults import watch as watch_module
from tools.stack import __main__ as command_line
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_TOLD = {None: "", False: " (not with --retired)", True: " (with --retired)"}
_SNIPPET = _CHECKOUT / "doc" / "source" / "reference" / "faults.rst.inc"


def main(arguments: list[str] | None = None) -> int:
    """The exit status is 0 when every promise was kept."""
    options = _parser().parse_args(arguments)
    # oslo.messaging tells of each attempt to connect while RabbitMQ is away.
    logging.disable(logging.CRITICAL)
    terminal = rich_console.Console(stderr=options.json, highlight=False, soft_wrap=True)
    selected = _selected(options)
    wanted = max(scenario.conductors_per_cell for scenario in selected)
    stack, made = _stack(options, wanted)
    results = pathlib.Path(os.environ.get("NODB_RESULTS_DIR", _CHECKOUT / "results"))
    results.mkdir(parents=True, exist_ok=True)
    outcomes: list[trial_module.Outcome] = []
    skipped = 0
    try:
        for scenario in selected:
            if scenario.conductors_per_cell > stack.settings.conductors_per_cell:
                terminal.print(f"{scenario.number} {scenario.fault}: needs two conductors a cell")
                skipped += 1
                continue
            outcomes.append(_run(scenario, stack, terminal))
            _file(outcomes, results, options.file)
    finally:
        if made:
            stack.down(wipe=all(outcome.passed for outcome in outcomes))
    if options.json:
        print(report.to_json(outcomes))
    terminal.print(report.table(outcomes))
    failed = [outcome for outcome in outcomes if not outcome.passed]
    for outcome in failed:
        for promise in outcome.failures:
            terminal.print(f"{outcome.number} {outcome.fault}: not so: {promise}")
    terminal.print(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed or not outcomes else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/faults.sh", description=__doc__)
    state = stack_settings.default_state_directory()
    parser.add_argument("--state", type=pathlib.Path, default=state, help="default: %(default)s")
    parser.add_argument("--venv", type=pathlib.Path, default=pathlib.Path(sys.prefix))
    parser.add_argument("--only", default="", metavar="N,...", help="numbers of scenarios")
    parser.add_argument("--short", action="store_true", help="the short selection")
    parser.add_argument(
        "--retired",
        action="store_true",
        help="without Nova's tables of compute nodes, and with heartbeats stored",
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--json", action="store_true", help="print JSON, progress on stderr")
    parser.add_argument(
        "--file", action="store_true", help="write the table that the documents include, too"
    )
    return parser


def _selected(options: argparse.Namespace) -> list[scenarios.Scenario]:
    if options.list:
        for scenario in scenarios.ALL:
            print(f"{scenario.number:3} {scenario.fault}{_TOLD[scenario.retired]}")
        raise SystemExit(0)
    numbers = {int(number) for number in options.only.split(",") if number}
    unknown = numbers - {scenario.number for scenario in scenarios.ALL}
    if unknown:
        raise SystemExit(f"no such scenario: {', '.join(map(str, sorted(unknown)))}")
    chosen = [
        scenario
        for scenario in scenarios.ALL
        if (scenario.number in numbers if numbers else scenario.short or not options.short)
    ]
    fit = [each for each in chosen if each.retired in (None, options.retired)]
    if numbers and fit != chosen:
        unfit = ", ".join(str(each.number) for each in chosen if each not in fit)
        raise SystemExit(f"{unfit}: only {'without' if options.retired else 'with'} --retired")
    return fit


def _stack(options: argparse.Namespace, conductors: int) -> tuple[stack_module.Stack, bool]:
    """The running stack, or a new one (then True)."""
    progress = command_line.stopwatch_progress()
    try:
        stack = stack_module.Stack.existing(options.state)
    except FileNotFoundError:
        stack = None
    if stack is not None and any(stack.status().values()):
        down = [name for name, pid in stack.status().items() if pid is None]
        if down:
            raise SystemExit(f"the stack runs without {', '.join(down)}; start them, or end it")
        own = stack.settings.overrides.get("nova-manage", {}).get("nodb_scheduler", {})
        if (own.get("compute_nodes") == "retired") is not options.retired:
            raise SystemExit("the stack that runs is of the other kind: with or without --retired")
        return stack, False
    settings = stack_settings.Settings(
        state=options.state,
        venv=options.venv,
        first_port=stack.settings.first_port if stack else stack_settings.free_first_port(),
        conductors_per_cell=conductors,
    )
    stack = stack_module.Stack(settings, progress if not options.json else lambda _step: None)
    stack.up()
    if options.retired:
        stack.retire_compute_nodes()
    return stack, True


def _run(
    scenario: scenarios.Scenario, stack: stack_module.Stack, terminal: rich_console.Console
) -> trial_module.Outcome:
    terminal.print(f"[bold]{scenario.number} {scenario.fault}[/bold]  {time.strftime('%H:%M:%S')}")
    names = {
        str(identity): str(name)
        for identity, name in stack.sql("SELECT uuid, name FROM nova_api.cell_mappings")
    }
    with watch_module.Watch(stack.settings, names) as watch:
        trial = trial_module.Trial(scenario.number, stack, watch, _say(terminal))
        trial.wait_served()
        trial.begin()
        try:
            scenario.run(trial)
        except Exception as error:
            terminal.print(traceback.format_exc(), markup=False)
            trial.expect(False, f"the scenario runs to its end: {type(error).__name__}: {error}")
        outcome = trial.finish(scenario.fault)
    _mend(stack)
    verdict = "as promised" if outcome.passed else "NOT as promised"
    terminal.print(f"  {verdict}; fallbacks {dict(outcome.fallbacks) or 'none'}")
    return outcome


def _say(terminal: rich_console.Console) -> trial_module.Say:
    return lambda text: terminal.print(f"  {text}", markup=False)


def _mend(stack: stack_module.Stack) -> None:
    """Start what a scenario that ended early left behind."""
    for name, pid in stack.status().items():
        if pid is None:
            stack.start(name)
            stack.wait_ready(name)


def _file(outcomes: list[trial_module.Outcome], results: pathlib.Path, with_snippet: bool) -> None:
    """File the outcomes; those of scenarios that did not run now stay."""
    path = results / "faults.json"
    kept = {outcome.number: outcome for outcome in _earlier(path)}
    kept |= {outcome.number: outcome for outcome in outcomes}
    merged = [kept[number] for number in sorted(kept)]
    path.write_text(report.to_json(merged) + "\n")
    if with_snippet:
        order = [scenario.fault for scenario in scenarios.ALL]
        _SNIPPET.write_text(report.to_rst(merged, _SNIPPET.read_text(), order))


def _earlier(path: pathlib.Path) -> Iterator[trial_module.Outcome]:
    if path.exists():
        yield from report.from_json(path.read_text())


if __name__ == "__main__":
    sys.exit(main())
