# SPDX-License-Identifier: Apache-2.0
"""Writes the generated part of doc/source/reference/performance.rst: tables and charts."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tools.bench import options
from tools.bench.reports import charts, comparison

TABLE = "bench-table.rst.inc"
IMAGES = "images"
_DASH = "\\-"

#: What the core's benchmark tells, and its unit.
CORE_MEASURES: Mapping[str, str] = {
    "warm_p50": "s",
    "warm_p99": "s",
    "cold_p50": "s",
    "cold_p99": "s",
    "moved_extremes_p50": "s",
    "moved_extremes_p99": "s",
    "warm_cpu_p50": "s",
    "cold_cpu_p50": "s",
    "moved_extremes_cpu_p99": "s",
    "update_p50": "s",
    "load_seconds": "s",
    "memory_mb": "MiB",
    "bytes_a_host": "",
}


def write(
    directory: pathlib.Path,
    cases: Sequence[comparison.Case],
    core: Sequence[Mapping[str, Any]],
    fit: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the include file and the charts below ``directory`` (doc/source/reference)."""
    images = directory / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    lines = [".. Written by tools/bench.sh --documents; do not edit.", ""]
    if cases:
        drawn = charts.draw(images, cases)
        lines += _of_requests(cases)
        for name, caption in drawn.items():
            lines += [
                f".. figure:: {IMAGES}/{name}",
                f"   :alt: {caption}",
                "",
                f"   {caption}",
                "",
            ]
        lines += _of_sizes("The same, by process and call", cases, comparison.rows_of_request)
        lines += _of_sizes("Beside requests", cases, comparison.rows_of_life)
        lines += _of_sizes("Many at once", cases, comparison.rows_of_crowds)
        lines += _conditions(cases)
    if core:
        lines += _of_core(core)
    if fit:
        lines += _list_table("NUMA cells and PCI devices", *fit_rows(fit))
    (directory / TABLE).write_text("\n".join(lines).rstrip() + "\n")


def _of_requests(cases: Iterable[comparison.Case]) -> list[str]:
    names = ("wall, p50", "CPU, all processes", "CPU, scheduler", "HTTP calls to Placement")
    header = ["hosts", "limit", *(f"{name}: {side}" for name in names for side in options.SIDES)]
    body = []
    for case in cases:
        rows = {row.measure: row for row in comparison.rows_of_request(case)}
        values = [
            comparison.text(value, rows[name].unit)
            for name in names
            for value in (rows[name].stock, rows[name].plugin)
        ]
        body.append([f"{case.hosts:,}", f"{case.limit:,}", *values])
    return _list_table("One request for one server", header, body)


def _of_sizes(title: str, cases: Iterable[comparison.Case], section: Any) -> list[str]:
    header = ["hosts", "", "stock", "plugin", "times better"]
    body = []
    for case in cases:
        for row in section(case):
            if row.stock is None and row.plugin is None:
                continue
            values = [comparison.text(value, row.unit) for value in (row.stock, row.plugin)]
            ratio = "" if row.ratio is None else comparison.text(row.ratio)
            body.append([f"{case.hosts:,}", row.measure.strip(), *values, ratio])
    return _list_table(title, header, body) if body else []


def _of_core(core: Sequence[Mapping[str, Any]]) -> list[str]:
    header = ["", *(f"{each['hosts']:,} hosts" for each in core)]
    body = [
        [name.replace("_", " "), *(comparison.text(each.get(name), unit) for each in core)]
        for name, unit in CORE_MEASURES.items()
    ]
    return _list_table("The pipeline alone", header, body)


def fit_rows(fit: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of what requests for NUMA cells and PCI devices cost."""
    header = ["hosts", "full", "request", "offered / pass / asked"]
    header += ["wall p50 / p99", "CPU: stock", "plugin", "times less", "as Nova"]
    body = []
    for size in fit:
        for each in size["kinds"]:
            numbers = (each["offered"], each["passed"], each["asked"])
            body.append(
                [
                    f"{each['hosts']:,}",
                    f"{each['full']:.0%}",
                    each["kind"],
                    " / ".join(f"{number:,.0f}" for number in numbers),
                    " / ".join(comparison.text(each[f"wall_p{n}"], "s") for n in (50, 99)),
                    comparison.text(each["stock_cpu"], "s"),
                    comparison.text(each["cpu_p50"], "s"),
                    comparison.text(each["stock_cpu"] / each["cpu_p50"]),
                    "yes" if each["is_novas"] else "no",
                ]
            )
    return header, body


def _conditions(cases: Iterable[comparison.Case]) -> list[str]:
    lines = ["Written beside it, heartbeats and saves of compute nodes a second:", ""]
    for case in cases:
        for side, result in case.sides.items():
            facts, written = result["facts"], result["written"]
            lines.append(
                f"* {case.hosts:,} hosts, limit {case.limit:,}, {side}:"
                f" {written['heartbeats_per_second']:.3g} and"
                f" {written['reports_per_second']:.3g} ({facts['cpus']} CPUs, {facts['when'][:10]})"
            )
    return [*lines, ""]


def _list_table(title: str, header: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
    for row in (header, *body):
        for number, cell in enumerate(row):
            begin = "  -" if number else "* -"
            # A dash alone would begin a list.
            lines.append(f"   {begin} {cell if cell != '-' else _DASH}".rstrip())
    return [*lines, ""]
