# SPDX-License-Identifier: Apache-2.0
"""Processor time that idle compute services cost conductors and MariaDB: stock, mirror, retired.

    NOVA_NODB_MODULE=tools.stack.idle tools/stack.sh [--computes N] [--seconds N]

Every nova-compute says ten times as often that it lives, and looks ten times as often at its
resources, as Nova's defaults have it: each stands for ten. Then all are stopped (SIGSTOP) for a
while: what the processes use then is their own cost, which does not grow with computes, and is
taken off. Nothing is logged by MariaDB meanwhile.
"""

import argparse
import json
import pathlib
import signal
import sys
import time
from collections.abc import Mapping

from rich import box
from rich import console as rich_console
from rich import table as rich_table

from tools.stack import __main__ as command_line
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module
from tools.stack.counts import processor_time

_TIMES = 10
_INTERVALS = {"DEFAULT": {"report_interval": "1", "update_resources_interval": "6"}}
#: Which idle compute services cost anything.
_KINDS = ("conductors", "MariaDB", "RabbitMQ", "schedulers")
#: Behind a start: imports, first sweeps.
_SETTLE_SECONDS = 45.0
#: Behind a stop: what is under way ends.
_CALM_SECONDS = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Print a table of processor seconds per 1,000 computes and minute."""
    parser = argparse.ArgumentParser(prog="tools.stack.idle", description=__doc__)
    parser.add_argument(
        "--state", type=pathlib.Path, default=stack_settings.default_state_directory()
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of each mode (%(default)s)")
    parser.add_argument("--json", action="store_true")
    command_line.add_size_options(parser)
    options = parser.parse_args(arguments)
    settings = command_line.settings_from(options, plugin=False)
    stack_module.Stack(settings).down(wipe=True)
    stack = stack_module.Stack(settings, command_line.stopwatch_progress())
    used: dict[str, Mapping[str, float]] = {}
    try:
        stack.configure(dict.fromkeys(settings.compute_names, _INTERVALS))
        stack.up()
        used["stock"] = _watch(stack, options.seconds)
        stack.plugin(True)
        used["mirror"] = _watch(stack, options.seconds)
        stack.retire_compute_nodes()
        used["retired"] = _watch(stack, options.seconds)
    finally:
        stack.down()
    stack.down(wipe=True)
    if options.json:
        print(json.dumps(used, indent=1))
    else:
        _show(used, settings.computes * _TIMES)
    return 0


def _watch(stack: stack_module.Stack, seconds: float) -> Mapping[str, float]:
    """Return processor seconds per 1,000 computes and minute, by kind of process."""
    time.sleep(_SETTLE_SECONDS)
    with_computes = _per_minute(stack, seconds)
    for name in stack.settings.compute_names:
        stack.kill(name, signal.SIGSTOP)
    try:
        time.sleep(_CALM_SECONDS)
        without = _per_minute(stack, seconds / 2)
    finally:
        for name in stack.settings.compute_names:
            stack.kill(name, signal.SIGCONT)
    thousands = stack.settings.computes * _TIMES / 1000
    return {kind: (with_computes[kind] - without[kind]) / thousands for kind in without}


def _per_minute(stack: stack_module.Stack, seconds: float) -> Mapping[str, float]:
    before, began = _processor_seconds(stack), time.monotonic()
    time.sleep(seconds)
    after, minutes = _processor_seconds(stack), (time.monotonic() - began) / 60
    return {kind: (after[kind] - before[kind]) / minutes for kind in after}


def _processor_seconds(stack: stack_module.Stack) -> dict[str, float]:
    found = processor_time.by_kind(stack)
    return {kind: found[kind] for kind in _KINDS}


def _show(used: Mapping[str, Mapping[str, float]], computes: int) -> None:
    table = rich_table.Table(
        title=f"Processor seconds per 1,000 idle computes and minute, as {computes} cost",
        box=box.SIMPLE,
    )
    table.add_column("processes")
    for mode in used:
        table.add_column(mode, justify="right")
    for kind in next(iter(used.values())):
        table.add_row(kind, *(f"{each[kind]:.2f}" for each in used.values()))
    rich_console.Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
