# SPDX-License-Identifier: Apache-2.0
"""More servers than there is room for, which wait: python -m tests.waiting."""

import argparse
import logging
import os
import pathlib
import signal
import sys

import attrs
from rich import console as rich_console

from tests.chaos import backends, deployment, plan
from tests.waiting import report, trial
from tools.stack import __main__ as command_line
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_SNIPPET = _CHECKOUT / "doc" / "source" / "reference" / "waiting.rst.inc"
_WIDTH = 150
"""Columns of the table where no terminal says how many it has."""
_WAIT_SECONDS = 3600


def main(arguments: list[str] | None = None) -> int:
    """The exit status is 0 when every round went as promised."""
    options = _parser().parse_args(arguments)
    # What ends a stage by its limit must not leave a control plane behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    logging.disable(logging.CRITICAL)
    width = None if sys.stdout.isatty() else _WIDTH
    terminal = rich_console.Console(highlight=False, soft_wrap=True, width=width)
    kinds = plan.kinds(options.kills) if options.kills else ()
    shape = deployment.Shape(
        backend=options.backend,
        kinds=kinds,
        computes=options.computes,
        schedulers=options.schedulers,
        vcpus=options.vcpus,
        rpc_seconds=options.rpc_seconds,
        wait_seconds=_WAIT_SECONDS,
        from_api=options.from_api,
    )
    settings = command_line.settings_from(options, plugin=True)
    settings = attrs.evolve(settings, vcpus_per_host=shape.vcpus)

    def say(step: str) -> None:
        terminal.print(f"  {step}", style="dim", markup=False)

    rounds: list[trial.Round] = []
    with deployment.running(shape, settings, say) as deployed:
        trials = trial.Trial(deployed, options.servers, say)
        for number in range(1, options.rounds + 1):
            seed = options.seed + number - 1
            faults = _faults(options, shape, settings, seed)
            terminal.print(f"[bold]round {number} of {options.rounds}[/bold]")
            for fault in faults:
                terminal.print(f"  {fault}", markup=False)
            found = trials.run(number, faults, seed if faults else None)
            rounds.append(found)
            _tell(terminal, found)
            _file(options, rounds)
    if options.file:
        _SNIPPET.write_text(report.to_rst(_results()))
    terminal.print(report.table({_name(options): rounds}))
    kept = sum(each.is_kept for each in rounds)
    terminal.print(f"{kept} passed, {len(rounds) - kept} failed, 0 skipped")
    if kept == len(rounds):
        stack_module.Stack(settings).down(wipe=True)
        return 0
    terminal.print(f"The logs are kept in {settings.log}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/waiting.sh", description=__doc__)
    state = stack_settings.default_state_directory()
    parser.add_argument("--state", type=pathlib.Path, default=state, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--servers", type=int, default=40, help="to ask for (%(default)s)")
    parser.add_argument("--vcpus", type=int, default=4, help="of each host (%(default)s)")
    parser.add_argument("--backend", choices=backends.NAMES, default=backends.SQLALCHEMY)
    parser.add_argument(
        "--kills", metavar="KIND,...", help=f"faults meanwhile: all, or of: {', '.join(plan.KINDS)}"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first round (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults (%(default)s)")
    parser.add_argument("--every", type=float, default=12.0, help="s between them (%(default)s)")
    parser.add_argument("--rpc-seconds", type=int, help="rpc_response_timeout (Nova's own)")
    parser.add_argument("--from-api", action="store_true", help="the API puts them into the queue")
    parser.add_argument(
        "--file", action="store_true", help="write the table that the documents include, too"
    )
    command_line.add_size_options(parser)
    return parser


def _faults(
    options: argparse.Namespace,
    shape: deployment.Shape,
    settings: stack_settings.Settings,
    seed: int,
) -> tuple[plan.Fault, ...]:
    if not options.kills:
        return ()
    targets = deployment.targets(shape, settings)
    kinds = plan.possible(shape.kinds, targets)
    return plan.draw(seed, options.seconds, kinds, targets, options.every, shape.lease_seconds)


def _tell(terminal: rich_console.Console, found: trial.Round) -> None:
    terminal.print(
        f"{found.asked} asked for on {found.slots} slots: {found.active_first} stood, "
        f"{found.waiting} waited; over capacity: {found.over}; "
        f"room used after {found.placed_seconds} s, stood after {found.active_seconds} s; "
        f"{found.samples} samples, blind for {found.blind_seconds} s at the longest; "
        f"{found.seconds:.0f} s",
        markup=False,
    )
    if found.sent_again:
        terminal.print(f"given up and sent again: {len(found.sent_again)}", markup=False)
    for kind in ("failed", "failed_builds", "lost", "twice", "out_of_order", "failures"):
        for subject in getattr(found, kind):
            what = kind.replace("_", " ")
            terminal.print(f"{what}: {subject}", style="red", markup=False)


def _name(options: argparse.Namespace) -> str:
    ways = [options.backend, options.kills or "nothing killed"]
    return ", ".join([*ways, *(["from the API"] if options.from_api else [])])


def _results() -> pathlib.Path:
    return pathlib.Path(os.environ.get("NODB_RESULTS_DIR", _CHECKOUT / "results"))


def _file(options: argparse.Namespace, rounds: list[trial.Round]) -> None:
    """File what is known so far: a long series may be ended early."""
    results = _results()
    results.mkdir(parents=True, exist_ok=True)
    name = _name(options).replace(", ", "-").replace(",", "-").replace(" ", "-")
    (results / f"waiting-{name}.json").write_text(report.to_json(rounds))


if __name__ == "__main__":
    sys.exit(main())
