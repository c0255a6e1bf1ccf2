# SPDX-License-Identifier: Apache-2.0
"""Shows the results: tables on the terminal, JSON, and the table and charts of the documents."""

import json
from typing import Any

import rich.console
import rich.table

from tools.bench import options
from tools.bench.reports import comparison, documents, results

_SECTIONS = (
    comparison.rows_of_request,
    comparison.rows_of_life,
    comparison.rows_of_crowds,
)


def show(kept: results.Results, given: options.Options) -> None:
    """Print what was asked for, and write the files that were."""
    console = rich.console.Console()
    cases = comparison.cases(kept)
    for case in cases:
        if case.hosts in given.hosts and not (given.core or given.fit or given.start):
            console.print(_table(case))
            for line in conditions(case):
                console.print(line, style="dim")
    core = kept.core()
    if given.core:
        console.print(_core_table([each for each in core if each["hosts"] in given.hosts]))
    fit = kept.fit()
    if given.fit:
        console.print(_fit_table([each for each in fit if each["hosts"] in given.hosts]))
    start = kept.start()
    if given.start:
        for each in start:
            if each["hosts"] in given.hosts:
                console.print(_start_table(each))
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        everything = {"schedulers": kept.all(), "core": core, "fit": fit, "start": start}
        given.json.write_text(json.dumps(everything, indent=1) + "\n")
    if given.documents is not None:
        documents.write(given.documents, cases, core, fit)


def conditions(case: comparison.Case) -> list[str]:
    """Say under which writes a case was measured, and whether anything fell back."""
    found = []
    for side, result in case.sides.items():
        facts, written = result["facts"], result["written"]
        text = (
            f"{side}: {written['heartbeats_per_second']:.3g} heartbeats and"
            f" {written['reports_per_second']:.3g} saves a second beside it, of"
            f" {facts['heartbeats_per_second']:g} and {facts['reports_per_second']:.3g} asked for"
        )
        if side == options.PLUGIN:
            text += f", {result['one_by_one']['fallbacks']} fallbacks"
        found.append(text + f"; {facts['commit']}, load {facts['load']:.1f} at the begin")
    return found


def _table(case: comparison.Case) -> rich.table.Table:
    table = rich.table.Table(title=f"{case.hosts:,} hosts, max_placement_results {case.limit:,}")
    table.add_column("")
    for name in ("stock", "plugin", "times better"):
        table.add_column(name, justify="right")
    for section in _SECTIONS:
        for row in section(case):
            ratio = "" if row.ratio is None else comparison.text(row.ratio)
            table.add_row(
                row.measure,
                comparison.text(row.stock, row.unit),
                comparison.text(row.plugin, row.unit),
                ratio,
            )
        table.add_section()
    return table


def _core_table(core: list[dict[str, Any]]) -> rich.table.Table:
    table = rich.table.Table(title="The pipeline alone")
    table.add_column("")
    for each in core:
        table.add_column(f"{each['hosts']:,} hosts", justify="right")
    for measure, unit in documents.CORE_MEASURES.items():
        values = [comparison.text(each.get(measure), unit) for each in core]
        table.add_row(measure.replace("_", " "), *values)
    return table


#: What is told of each start, in its order.
_OF_A_START = (
    *("states_seconds", "states_cpu_seconds", "columns_seconds", "columns_cpu_seconds"),
    *("checkpoint_seconds", "checkpoint_cpu_seconds", "checkpoint_mb", "memory_mb"),
    *("memory_mb_peak", "records"),
)


def _start_table(start: dict[str, Any]) -> rich.table.Table:
    title = f"Start, {start['hosts']:,} hosts, load {start['load']:.1f} at the begin"
    table = rich.table.Table(title=title)
    table.add_column("")
    for name in ("without", "with", "times"):
        table.add_column(name, justify="right")
    for measure in _OF_A_START:
        without, beside = start["without"][measure], start["with"][measure]
        ratio = start.get(f"{measure}_ratio")
        table.add_row(
            measure.replace("_", " "),
            f"{without:,.2f}",
            f"{beside:,.2f}",
            "" if ratio is None else f"{ratio:.1f}",
        )
    return table


def _fit_table(fit: list[dict[str, Any]]) -> rich.table.Table:
    header, body = documents.fit_rows(fit)
    table = rich.table.Table(title="NUMA cells and PCI devices")
    for name in header:
        table.add_column(name)
    for row in body:
        table.add_row(*row)
    return table
