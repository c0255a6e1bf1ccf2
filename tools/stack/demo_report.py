# SPDX-License-Identifier: Apache-2.0
"""The demonstration's figures and their tables."""

import collections
from collections.abc import Mapping
from typing import Any

import attrs
from rich import box
from rich import console as rich_console
from rich import table as rich_table

from tools.stack import configuration
from tools.stack.counts import idle_statements


@attrs.frozen
class PlacedServer:
    """A server and where it landed; ``fault`` is empty unless its status is ERROR."""

    name: str
    flavor: str
    status: str
    cell: str
    host: str
    fault: str


@attrs.frozen
class RetiredTable:
    """What became of ``compute_nodes``, with --retired.

    ``statements`` are everybody's that named it during the boots; ``idle`` is per mode (stock,
    mirror, retired).
    """

    cells_with_table: tuple[str, ...]
    statements: int
    idle: Mapping[str, idle_statements.IdleStatements]


@attrs.frozen
class Figures:
    """What the demonstration measured. None: the plugin does not say, or is off."""

    plugin: bool
    servers: tuple[PlacedServer, ...]
    statements_on_tables: dict[str, int]
    """By the schedulers during the boots, by table; own heartbeats apart."""
    statements_on_cell_databases: int
    statements: tuple[dict[str, Any], ...]
    """Every class of statements that the schedulers sent, the synchronizer's included."""
    heartbeats: int
    reply_queues: int
    """Schedulers that ever made an RPC call: 0 means nothing was read on their behalf."""
    fallbacks: int | None
    candidate_requests: int
    """Requests to Placement for allocation candidates, by anybody, during the boots."""
    allocation_writes: int
    hosts: int | None
    schedule_seconds: float | None
    feed_lag_seconds: float | None
    ready_seconds: float
    boot_seconds: float
    total_seconds: float
    retired: RetiredTable | None = None

    @property
    def succeeded(self) -> bool:
        """All ACTIVE; with the plugin, also nothing read and no known fallback."""
        placed = all(server.status == "ACTIVE" for server in self.servers)
        read = sum(self.statements_on_tables.values()) + self.statements_on_cell_databases
        silent = not (read or self.reply_queues or self.fallbacks or self.candidate_requests)
        if self.retired is not None:
            silent = silent and not (self.retired.cells_with_table or self.retired.statements)
        return placed and (silent or not self.plugin)


def show(figures: Figures, terminal: rich_console.Console) -> None:
    """Print both tables."""
    terminal.print(_placement(figures))
    for server in figures.servers:
        if server.fault:
            terminal.print(f"[red]{server.name}[/red]: {server.fault}")
    terminal.print(_proof(figures))
    if figures.retired is not None:
        terminal.print(_idle(figures.retired))


def _placement(figures: Figures) -> rich_table.Table:
    table = rich_table.Table(title="Where the servers landed", box=box.SIMPLE)
    for title in ("cell", "host", "servers"):
        table.add_column(title)
    table.add_column("not active", justify="right")
    by_host = collections.defaultdict(list)
    for server in sorted(figures.servers, key=lambda s: s.name):
        by_host[server.cell, server.host].append(server)
    for (cell, host), servers in sorted(by_host.items()):
        names = ", ".join(f"{s.name} ({s.flavor})" for s in servers)
        bad = sum(1 for s in servers if s.status != "ACTIVE")
        table.add_row(cell or "-", host or "-", names, f"[red]{bad}[/red]" if bad else "0")
    return table


def _proof(figures: Figures) -> rich_table.Table:
    who = "the plugin" if figures.plugin else "stock Nova"
    table = rich_table.Table(title=f"The proof, with {who}", box=box.SIMPLE)
    table.add_column("figure")
    table.add_column("observed", justify="right")
    table.add_column("goal", justify="right")
    for name, observed, goal in _rows(figures):
        met = goal is None or not figures.plugin or observed == goal
        shown = "n/a" if observed is None else str(observed)
        style = "" if goal is None or not figures.plugin else ("green" if met else "red")
        table.add_row(name, f"[{style}]{shown}[/{style}]" if style else shown, _goal(figures, goal))
    return table


def _goal(figures: Figures, goal: object) -> str:
    return "" if goal is None or not figures.plugin else str(goal)


def _rows(figures: Figures) -> list[tuple[str, object, object]]:
    active = sum(1 for server in figures.servers if server.status == "ACTIVE")
    own_store = sum(
        row["count"]
        for row in figures.statements
        if row["database"] == configuration.STORE_DATABASE and row["tables"]
    )
    tables = [
        (f"statements of nova-scheduler on {name}", count, 0)
        for name, count in figures.statements_on_tables.items()
    ]
    return [
        ("servers ACTIVE", active, len(figures.servers)),
        *_retired_rows(figures.retired),
        *tables,
        (
            "statements of nova-scheduler on the cell databases",
            figures.statements_on_cell_databases,
            0,
        ),
        ("(own service heartbeats of nova-scheduler)", figures.heartbeats, None),
        ("schedulers that made an RPC call", figures.reply_queues, 0),
        ("(statements of nova-scheduler on the synchronizer)", own_store, None),
        ("requests that took Nova's own path", figures.fallbacks, 0),
        ("GET /allocation_candidates", figures.candidate_requests, 0),
        ("(allocations written, PUT and POST)", figures.allocation_writes, None),
        ("hosts in the store", figures.hosts, None),
        ("schedule latency, median, s", _seconds(figures.schedule_seconds), None),
        ("feed lag, s", _seconds(figures.feed_lag_seconds), None),
        ("time to a running cloud, s", f"{figures.ready_seconds:.0f}", None),
        ("time of the boots, s", f"{figures.boot_seconds:.0f}", None),
        ("time of everything, s", f"{figures.total_seconds:.0f}", None),
    ]


def _retired_rows(retired: RetiredTable | None) -> list[tuple[str, object, object]]:
    if retired is None:
        return []
    return [
        ("cells with a table compute_nodes", len(retired.cells_with_table), 0),
        ("statements of anybody on compute_nodes", retired.statements, 0),
    ]


def _idle(retired: RetiredTable) -> rich_table.Table:
    table = rich_table.Table(
        title="Statements on the cell databases per idle compute service and minute",
        box=box.SIMPLE,
    )
    table.add_column("table")
    for mode in retired.idle:
        table.add_column(mode, justify="right")
    names = dict.fromkeys(name for each in retired.idle.values() for name in each.by_table)
    for name in names:
        counts = [each.by_table.get(name, 0.0) for each in retired.idle.values()]
        table.add_row(name, *(f"{count:.1f}" for count in counts))
    table.add_section()
    table.add_row("all", *(f"{each.total:.1f}" for each in retired.idle.values()))
    return table


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
