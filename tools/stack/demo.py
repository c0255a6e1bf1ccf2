# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a cloud from nothing, the plugin on, 20 servers, the proof.

Run by tools/demo.sh.
"""

import argparse
import concurrent.futures
import json
import pathlib
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import attrs
from rich import console as rich_console
from rich import progress as rich_progress

from tools.stack import __main__ as command_line
from tools.stack import cloud as stack_cloud
from tools.stack import demo_report
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module
from tools.stack.counts import (
    idle_statements,
    placement_requests,
    plugin_status,
    rpc_callers,
    sql_statements,
)

_SERVERS = 20
_GROUP = 6
_AT_A_TIME = 4
_SCHEDULERS = "nova-scheduler"
_SETTLE_SECONDS = 60.0


def main(arguments: list[str] | None = None) -> int:
    """The exit status is 0 when every server is ACTIVE and, with the plugin, nothing was read."""
    options = _parser().parse_args(arguments)
    terminal = rich_console.Console(stderr=options.json, highlight=False)
    # An end from outside takes the stack down as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    try:
        return _down(options.state, terminal) if options.down else _demonstrate(options, terminal)
    except command_line.EXPECTED_ERRORS as error:
        terminal.print(f"[red]{type(error).__name__}[/red]: {error}")
        return 1


def _demonstrate(options: argparse.Namespace, terminal: rich_console.Console) -> int:
    begin = time.monotonic()
    settings = command_line.settings_from(options, plugin=False)
    with rich_progress.Progress(
        rich_progress.SpinnerColumn(),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.TimeElapsedColumn(),
        console=terminal,
        transient=True,
    ) as bar:
        task = bar.add_task("starting", total=None)

        def step(text: str) -> None:
            bar.console.print(f"[dim]{time.monotonic() - begin:6.1f} s[/dim]  {text}")
            bar.update(task, description=text)

        # A run that failed left its data, for its logs: the figures are of a new cloud.
        stack_module.Stack(settings, step).down(wipe=True)
        stack = stack_module.Stack(settings, step)
        try:
            figures = _perform(stack, options, step)
        finally:
            if not options.keep:
                step("taking the stack down")
                stack.down()
    figures = attrs.evolve(figures, total_seconds=time.monotonic() - begin)
    if options.json:
        print(json.dumps(attrs.asdict(figures), indent=1))
    else:
        demo_report.show(figures, terminal)
    if options.keep:
        terminal.print(f"The stack runs on; its state is in {settings.state}")
    elif figures.succeeded:
        stack.down(wipe=True)
    else:
        terminal.print(f"The logs are kept in {settings.log}")
    return 0 if figures.succeeded else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/demo.sh", description=__doc__)
    state = stack_settings.default_state_directory()
    parser.add_argument("--state", type=pathlib.Path, default=state, help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="leave the stack running")
    parser.add_argument("--down", action="store_true", help="end a kept stack, remove its data")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--stock", action="store_true", help="without the plugin")
    what.add_argument(
        "--retired", action="store_true", help="with compute_nodes retired, and heartbeats stored"
    )
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=120.0,
        metavar="N",
        help="with --retired: how long idle computes are watched in each mode (%(default)s)",
    )
    command_line.add_size_options(parser)
    return parser


def _down(state: pathlib.Path, terminal: rich_console.Console) -> int:
    try:
        stack_module.Stack.existing(state).down(wipe=True)
    except FileNotFoundError:
        terminal.print(f"no stack in {state}")
        return 1
    return 0


def _perform(
    stack: stack_module.Stack, options: argparse.Namespace, step: stack_module.Progress
) -> demo_report.Figures:
    begin = time.monotonic()
    with_plugin = not options.stock
    idle: dict[str, idle_statements.IdleStatements] = {}

    def watch_idle(mode: str) -> None:
        if options.retired:
            if mode != "stock":
                step("waiting for the end of what a start costs: sweeps, the step of heartbeats")
                time.sleep(_SETTLE_SECONDS)
            step(f"counting what idle computes cost their cells' databases ({mode})")
            idle[mode] = idle_statements.measure(stack, options.idle_seconds)

    stack.up()
    watch_idle("stock")
    if with_plugin:
        step("switching the plugin on by nova.conf, one process after the other")
        stack.plugin(True)
    watch_idle("mirror")
    if options.retired:
        stack.retire_compute_nodes()
    watch_idle("retired")
    ready_seconds = time.monotonic() - begin
    step("waiting for the schedulers' heartbeats: the first one looks up versions of services")
    stack.wait_heartbeats("nova-scheduler")
    before = plugin_status.read(stack.settings) if with_plugin else plugin_status.PluginStatus()
    step(f"booting {_SERVERS} servers, an anti-affinity group among them")
    boot_begin = time.monotonic()
    placement = placement_requests.PlacementRequests(stack.settings.log / "placement.log")
    with sql_statements.Counter(stack.settings) as counter:
        servers = _boot(stack)
    boot_seconds = time.monotonic() - boot_begin
    asked = placement.counts()
    after = plugin_status.read(stack.settings) if with_plugin else before
    callers = rpc_callers.reply_queues(stack)
    report = counter.report
    cells = ["nova_cell0", *stack.settings.cell_databases]
    cell_of_host = {host: cell for _name, host, cell in stack.settings.compute_cells()}
    return demo_report.Figures(
        plugin=with_plugin,
        servers=tuple(_placed(server, cell_of_host) for server in servers),
        statements_on_tables=report.on_state_tables(_SCHEDULERS),
        statements_on_cell_databases=report.total(_SCHEDULERS, cells),
        statements=_of_schedulers(report),
        heartbeats=report.heartbeats(_SCHEDULERS),
        reply_queues=sum(n for user, n in callers.items() if user.startswith(_SCHEDULERS)),
        fallbacks=_difference(after.fallbacks, before.fallbacks),
        candidate_requests=asked["GET allocation_candidates"],
        allocation_writes=asked["PUT allocations"] + asked["POST allocations"],
        hosts=after.hosts,
        schedule_seconds=after.schedule_seconds,
        feed_lag_seconds=after.feed_lag_seconds,
        ready_seconds=ready_seconds,
        boot_seconds=boot_seconds,
        total_seconds=0.0,
        retired=_retired_table(stack, report, idle) if options.retired else None,
    )


def _retired_table(
    stack: stack_module.Stack,
    report: sql_statements.Report,
    idle: Mapping[str, idle_statements.IdleStatements],
) -> demo_report.RetiredTable:
    databases = stack.settings.cell_databases
    there = stack.sql(
        "SELECT table_schema FROM information_schema.tables WHERE table_name = 'compute_nodes'"
    )
    return demo_report.RetiredTable(
        cells_with_table=tuple(sorted({str(row[0]) for row in there} & set(databases))),
        statements=report.total("", databases, "compute_nodes"),
        idle=idle,
    )


def _boot(stack: stack_module.Stack) -> list[stack_cloud.Json]:
    """Boot everything and wait until it is settled.

    The group is one request for all its members. Apart, requests racing through two schedulers may
    choose one host twice, and what the compute then refuses has few alternates in its cell.
    """
    cloud = stack.cloud
    image = cloud.image_id()
    members = min(_GROUP, stack.settings.computes)
    group = cloud.create_group("demo-apart", "anti-affinity")
    cloud.boot("demo-apart", image, "42", group=group, min_count=members, max_count=members)

    def boot_one(number: int) -> str:
        flavor = "84" if number % 2 else "2"
        return cloud.boot(f"demo-{number:02}", image, flavor)

    with concurrent.futures.ThreadPoolExecutor(_AT_A_TIME) as pool:
        list(pool.map(boot_one, range(1, _SERVERS - members + 1)))
    ids = [server["id"] for server in cloud.servers("demo-")]
    if len(ids) != _SERVERS:
        raise RuntimeError(f"asked for {_SERVERS} servers, the API lists {len(ids)}")
    return cloud.wait_settled(ids)


def _placed(server: stack_cloud.Json, cell_of_host: dict[str, str]) -> demo_report.PlacedServer:
    host = server["OS-EXT-SRV-ATTR:host"] or ""
    return demo_report.PlacedServer(
        name=server["name"],
        flavor=server["flavor"]["original_name"],
        status=server["status"],
        cell=cell_of_host.get(host, ""),
        host=host,
        fault=server.get("fault", {}).get("message", ""),
    )


def _of_schedulers(report: sql_statements.Report) -> tuple[dict[str, Any], ...]:
    return tuple(row for row in report.rows() if row["process"].startswith(_SCHEDULERS))


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None else after - (before or 0)


if __name__ == "__main__":
    sys.exit(main())
