# SPDX-License-Identifier: Apache-2.0
"""Random faults on a real control plane: python -m tests.chaos."""

import argparse
import contextlib
import logging
import os
import pathlib
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence

import attrs
from rich import console as rich_console

from tests.chaos import backends, deployment, own_path, plan, rounds
from tests.chaos.results import filed, regressions, report
from tests.faults import watch as watch_module
from tools.stack import __main__ as command_line
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_SNIPPET = _CHECKOUT / "doc" / "source" / "reference" / "chaos.rst.inc"
_WIDTH = 150
"""Columns of the table where no terminal says how many it has."""
_SHORT_SECONDS = 40.0
_SHORT_RPC_SECONDS = 30
_WAIT_SECONDS = 20
"""Shorter than what an audit takes for stuck: who waits for longer is lost."""


@attrs.frozen
class _Task:
    """A round to be run."""

    seed: int
    kinds: tuple[str, ...]
    seconds: float
    every_seconds: float


def main(arguments: list[str] | None = None) -> int:
    """The exit status is 0 when nothing was found in any round."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        own_path.check(options.own_path, options.backend)
    except ValueError as error:
        parser.error(str(error))
    # What ends a stage by its limit must not leave a control plane behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    logging.disable(logging.CRITICAL)
    width = None if sys.stdout.isatty() else _WIDTH
    terminal = rich_console.Console(highlight=False, soft_wrap=True, width=width)
    tasks = _tasks(options)
    shape = _shape(options, tasks)
    settings = _settings(options, shape)
    targets = deployment.targets(shape, settings)
    plans = {task: _draw(task, targets, shape) for task in tasks}
    if options.plan:
        for task, faults in plans.items():
            _print_plan(terminal, task, faults)
        return 0
    outcomes: list[rounds.Outcome] = []
    begun = time.monotonic()
    with deployment.running(shape, settings, _stopwatch(terminal)) as deployed:
        ready = time.monotonic()
        terminal.print(f"the deployment took {ready - begun:.1f} s", markup=False)
        with _watch(deployed) as watch:
            series = rounds.Rounds(
                deployed, watch, options.clients, options.servers, _progress(terminal)
            )
            for number, (task, faults) in enumerate(plans.items(), 1):
                terminal.print(f"[bold]round {number} of {len(plans)}[/bold]")
                _print_plan(terminal, task, faults)
                is_over = False
                try:
                    outcome = series.run(task.seed, faults, task.seconds)
                except Exception as error:
                    terminal.print(traceback.format_exc(), markup=False)
                    why = f"it broke off: {type(error).__name__}: {error}"
                    outcome = rounds.unfinished(task.seed, shape, faults, why)
                    is_over = True
                outcome = attrs.evolve(outcome, kinds=task.kinds)
                outcomes.append(outcome)
                _tell(terminal, outcome)
                _write(options, outcomes)
                if options.file:
                    # At once: a long series may be ended early.
                    filed.add(attrs.evolve(outcome, revision=filed.revision(_CHECKOUT)))
                    _SNIPPET.write_text(report.to_rst(filed.series()))
                is_kept = not (options.stock or options.short or options.replay or shape.own_path)
                if outcome.findings and is_kept:
                    regressions.keep([regressions.of(outcome, task.seconds, task.every_seconds)])
                if is_over or (outcome.findings and options.stop_at_first):
                    break
        ended = time.monotonic()
    down = time.monotonic()
    terminal.print(
        f"seconds: deployment {ready - begun:.1f}, rounds {ended - ready:.1f}, its end "
        f"{down - ended:.1f}, all {down - begun:.1f}",
        markup=False,
    )
    terminal.print(report.table(outcomes))
    clean = sum(1 for outcome in outcomes if not outcome.findings)
    terminal.print(f"{clean} passed, {len(tasks) - clean} failed, 0 skipped")
    if clean == len(tasks):
        stack_module.Stack(settings).down(wipe=True)
        return 0
    terminal.print(f"The logs are kept in {settings.log}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/chaos.sh", description=__doc__)
    state = stack_settings.default_state_directory()
    parser.add_argument("--state", type=pathlib.Path, default=state, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="with seeds in a row (%(default)s)")
    parser.add_argument("--seconds", type=float, default=45.0, help="of each round (%(default)s)")
    parser.add_argument(
        "--every", type=float, default=10.0, help="seconds between faults (%(default)s)"
    )
    parser.add_argument("--backend", choices=backends.NAMES, default=backends.SQLALCHEMY)
    parser.add_argument(
        "--faults", default="all", metavar="KIND,...", help=f"all, or of: {', '.join(plan.KINDS)}"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--stock", action="store_true", help="the same without the plugin")
    what.add_argument(
        "--waiting", action="store_true", help="requests wait for room for some seconds"
    )
    what.add_argument(
        "--retired", action="store_true", help="without Nova's tables of compute nodes"
    )
    parser.add_argument(
        "--own-path", choices=own_path.NAMES, help="why no request is decided from memory"
    )
    parser.add_argument(
        "--replay", action="store_true", help="first the seeds that found something there before"
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="one round: the last seed that found something, or else one of scheduler kills",
    )
    parser.add_argument("--plan", action="store_true", help="print the plans, and do nothing")
    parser.add_argument("--clients", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--servers", type=int, default=5, help="of each client (%(default)s)")
    parser.add_argument("--vcpus", type=int, default=4, help="of each host (%(default)s)")
    parser.add_argument("--lease-seconds", type=float, default=12.0, help="of claims (%(default)s)")
    parser.add_argument("--rpc-seconds", type=int, help="rpc_response_timeout (Nova's own)")
    parser.add_argument("--stop-at-first", action="store_true", help="round that finds something")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    parser.add_argument(
        "--file",
        action="store_true",
        help="keep the rounds in tests/chaos/filed, and write the table of all that are there",
    )
    command_line.add_size_options(parser)
    return parser


def _tasks(options: argparse.Namespace) -> list[_Task]:
    found_in = _variant(options).control_plane
    kept = [each for each in regressions.load() if each.backend == found_in]
    kinds = plan.kinds(options.faults)
    if options.short:
        seed = options.seed
        if kept:
            seed, kinds = kept[-1].seed, kept[-1].faults
        return [_Task(seed, kinds, _SHORT_SECONDS, options.every)]
    seeds = range(options.seed, options.seed + options.rounds)
    drawn = [_Task(seed, kinds, options.seconds, options.every) for seed in seeds]
    if not options.replay:
        return drawn
    again = [_Task(each.seed, each.faults, each.seconds, each.every_seconds) for each in kept]
    return [*again, *(task for task in drawn if task not in again)]


def _variant(options: argparse.Namespace) -> deployment.Shape:
    """Return what of a series' shape gives it its name."""
    return deployment.Shape(
        backend=options.backend,
        retired=options.retired,
        wait_seconds=_WAIT_SECONDS if options.waiting else 0,
    )


def _shape(options: argparse.Namespace, tasks: Sequence[_Task]) -> deployment.Shape:
    kinds = {kind for task in tasks for kind in task.kinds}
    rpc_seconds = options.rpc_seconds
    if rpc_seconds is None and options.short:
        rpc_seconds = _SHORT_RPC_SECONDS
    return attrs.evolve(
        _variant(options),
        with_plugin=not options.stock,
        kinds=tuple(kind for kind in plan.KINDS if kind in kinds),
        computes=options.computes,
        schedulers=options.schedulers,
        vcpus=options.vcpus,
        lease_seconds=options.lease_seconds,
        rpc_seconds=rpc_seconds,
        own_path=None if options.stock else options.own_path,
    )


def _settings(options: argparse.Namespace, shape: deployment.Shape) -> stack_settings.Settings:
    settings = command_line.settings_from(options, plugin=shape.with_plugin)
    return attrs.evolve(settings, vcpus_per_host=shape.vcpus)


def _draw(
    task: _Task, targets: Mapping[str, Sequence[str]], shape: deployment.Shape
) -> tuple[plan.Fault, ...]:
    kinds = plan.possible(task.kinds, targets)
    drawn = plan.draw(
        task.seed, task.seconds, kinds, targets, task.every_seconds, shape.lease_seconds
    )
    return own_path.faults(shape.own_path, drawn, task.seconds)


@contextlib.contextmanager
def _watch(deployed: deployment.Deployment) -> Iterator[watch_module.Watch | None]:
    if not deployed.shape.with_plugin:
        yield None
        return
    rows = deployed.stack.sql("SELECT uuid, name FROM nova_api.cell_mappings")
    names = {str(identity): str(name) for identity, name in rows}
    with watch_module.Watch(deployed.stack.settings, names) as watch:
        yield watch


def _progress(terminal: rich_console.Console) -> stack_module.Progress:
    return lambda step: terminal.print(f"  {step}", style="dim", markup=False)


def _stopwatch(terminal: rich_console.Console) -> stack_module.Progress:
    """Print each step with the seconds since this was called."""
    begun = time.monotonic()
    say = _progress(terminal)
    return lambda step: say(f"{time.monotonic() - begun:6.1f} s  {step}")


def _print_plan(terminal: rich_console.Console, task: _Task, faults: Sequence[plan.Fault]) -> None:
    terminal.print(f"seed {task.seed}, {task.seconds:.0f} s, {len(faults)} faults:")
    for fault in faults:
        terminal.print(f"  {fault}", markup=False)


def _tell(terminal: rich_console.Console, outcome: rounds.Outcome) -> None:
    terminal.print(
        f"{outcome.asked} servers asked for on {outcome.slots} slots, {dict(outcome.ends)}; "
        f"{outcome.samples} samples, blind for {outcome.blind_seconds} s at the longest; "
        f"left memory: {dict(outcome.fallbacks) or 'none'}; "
        f"stuck as in stock: {len(outcome.lost)}; "
        f"started again: {', '.join(outcome.revived) or 'none'}",
        markup=False,
    )
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in outcome.phases.items())
    terminal.print(f"seconds: {phases}", markup=False)
    for finding in outcome.findings:
        terminal.print(
            f"{finding['first_seconds']:.1f} to {finding['last_seconds']:.1f} s, "
            f"{finding['samples']} samples: {finding['kind']}: {finding['detail']}",
            style="red",
            markup=False,
        )
    for left in outcome.left_by_nova:
        terminal.print(f"left by Nova itself, as in stock: {left}", markup=False)
    for seen in outcome.withdrawn:
        terminal.print(
            f"{seen['first_seconds']:.1f} to {seen['last_seconds']:.1f} s, "
            f"{seen['samples']} samples: {seen['kind']}: {seen['detail']}",
            markup=False,
        )


def _results() -> pathlib.Path:
    return pathlib.Path(os.environ.get("NODB_RESULTS_DIR", _CHECKOUT / "results"))


def _write(options: argparse.Namespace, outcomes: list[rounds.Outcome]) -> None:
    """Write what is known so far: a long series may be ended early."""
    results = _results()
    results.mkdir(parents=True, exist_ok=True)
    # Rounds of two series are no series.
    for name, of_series in report.by_series(outcomes).items():
        short = "short-" if options.short else ""
        (results / f"{short}chaos-{name}.json").write_text(report.to_json(of_series) + "\n")
    if options.json is not None:
        options.json.write_text(report.to_json(outcomes) + "\n")


if __name__ == "__main__":
    sys.exit(main())
