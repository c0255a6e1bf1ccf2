# SPDX-License-Identifier: Apache-2.0
"""Command line of the stack: python -m tools.stack COMMAND."""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import time

import attrs

from tools.stack import database, monitoring
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module
from tools.stack.counts import sql_statements

EXPECTED_ERRORS = (LookupError, OSError, RuntimeError, ValueError, database.CommandFailedError)
"""What a wrong argument or a broken machine raises: shown as one line, without a traceback."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the return value is the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except EXPECTED_ERRORS as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/stack.sh", description=__doc__)
    parser.add_argument(
        "--state",
        type=pathlib.Path,
        default=stack_settings.default_state_directory(),
        help="directory of the stack (default: %(default)s)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="bring the stack up")
    add_size_options(up)
    up.add_argument("--no-plugin", action="store_true", help="stock Nova")
    up.add_argument("--guarded-placement", action="store_true", help="Placement, guarded")
    up.set_defaults(run=_up)
    down = commands.add_parser("down", help="end the stack")
    down.add_argument("--wipe", action="store_true", help="remove data, configuration and logs")
    down.set_defaults(run=lambda o: _stack(o).down(o.wipe))
    status = commands.add_parser("status", help="list the processes")
    status.add_argument("--json", action="store_true")
    status.set_defaults(run=_status)
    plugin = commands.add_parser("plugin", help="switch the plugin by nova.conf")
    plugin.add_argument("state_wanted", choices=("on", "off"))
    plugin.add_argument("--except", dest="stock", nargs="*", default=[], metavar="PROCESS")
    plugin.set_defaults(run=lambda o: _stack(o).plugin(o.state_wanted == "on", o.stock))
    for name in ("start", "stop", "restart"):
        command = commands.add_parser(name, help=f"{name} one process")
        command.add_argument("process")
        command.set_defaults(run=lambda o, name=name: getattr(_stack(o), name)(o.process))
    kill = commands.add_parser("kill", help="signal one process and its workers")
    kill.add_argument("process")
    kill.add_argument("--signal", default="KILL", help="name without SIG (default: KILL)")
    kill.set_defaults(
        run=lambda o: _stack(o).kill(o.process, signal.Signals["SIG" + o.signal.upper()])
    )
    capacity = commands.add_parser("capacity", help="VCPU that each host offers")
    capacity.add_argument("vcpus", help="a number, or 'off' for the fake driver's own")
    capacity.set_defaults(
        run=lambda o: _stack(o).capacity(None if o.vcpus == "off" else int(o.vcpus))
    )
    retire = commands.add_parser(
        "retire", help="take Nova's table compute_nodes out of all cells, and store heartbeats"
    )
    retire.set_defaults(run=lambda o: _stack(o).retire_compute_nodes())
    queue = commands.add_parser(
        "queue", help="switch the driver that lets requests wait for room (nodb_queue)"
    )
    queue.add_argument("state_wanted", choices=("on", "off"))
    queue.add_argument(
        "--wait", type=int, default=0, metavar="SECONDS", help="of every server (%(default)s)"
    )
    queue.set_defaults(run=lambda o: _stack(o).queue(o.state_wanted == "on", o.wait))
    prometheus = commands.add_parser("prometheus", help="scrape the stack, with the alert rules")
    prometheus.set_defaults(run=lambda o: monitoring.run(_stack(o).settings))
    count = commands.add_parser("sql-count", help="count SQL statements while a command runs")
    count.add_argument("--json", action="store_true")
    count.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    count.set_defaults(run=_sql_count)
    return parser


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """Options from which a new stack's settings are made."""
    parser.add_argument("--venv", type=pathlib.Path, default=pathlib.Path(sys.prefix))
    parser.add_argument("--cells", type=int, default=2)
    parser.add_argument("--computes", type=int, default=6)
    parser.add_argument("--schedulers", type=int, default=2)
    parser.add_argument("--conductors-per-cell", type=int, default=1)


def settings_from(options: argparse.Namespace, plugin: bool) -> stack_settings.Settings:
    """New settings; ports stay those of an earlier stack in the same directory."""
    try:
        first_port = stack_settings.load(options.state).first_port
    except FileNotFoundError:
        first_port = stack_settings.free_first_port()
    return stack_settings.Settings(
        state=options.state,
        venv=options.venv,
        first_port=first_port,
        cells=options.cells,
        computes=options.computes,
        schedulers=options.schedulers,
        conductors_per_cell=options.conductors_per_cell,
        plugin=plugin,
    )


def stopwatch_progress() -> stack_module.Progress:
    """Print each step with the seconds since the first call of this function."""
    begin = time.monotonic()
    return lambda step: print(f"{time.monotonic() - begin:6.1f} s  {step}", flush=True)


def _stack(options: argparse.Namespace) -> stack_module.Stack:
    return stack_module.Stack.existing(options.state, stopwatch_progress())


def _up(options: argparse.Namespace) -> None:
    settings = settings_from(options, plugin=not options.no_plugin)
    settings = attrs.evolve(settings, guarded_placement=options.guarded_placement)
    stack_module.Stack(settings, stopwatch_progress()).up()


def _status(options: argparse.Namespace) -> None:
    stack = _stack(options)
    processes = stack.status()
    if options.json:
        settings = attrs.asdict(stack.settings)
        print(json.dumps({"settings": settings, "processes": processes}, default=str, indent=1))
        return
    print(f"plugin {'on' if stack.settings.plugin else 'off'}")
    for name, pid in processes.items():
        print(f"{name:28} {pid or 'down'}")


def _sql_count(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    stack = _stack(options)
    with sql_statements.Counter(stack.settings) as counter:
        status = subprocess.run(command, check=False).returncode
    print(counter.report.to_json() if options.json else counter.report.to_text())
    return status


if __name__ == "__main__":
    sys.exit(main())
