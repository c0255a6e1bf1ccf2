# SPDX-License-Identifier: Apache-2.0
"""Draws latency and CPU of a request against the number of hosts, both axes logarithmic."""

import pathlib
from collections.abc import Callable, Sequence

import matplotlib.figure
import matplotlib.ticker

from tools.bench import options
from tools.bench.reports import comparison, results

_SIZE_INCHES = (7.0, 4.4)
_DOTS_PER_INCH = 120
_STYLES = {options.STOCK: ("#b3452c", "s"), options.PLUGIN: ("#2c6eb3", "o")}


def draw(directory: pathlib.Path, cases: Sequence[comparison.Case]) -> dict[str, str]:
    """Write the PNG files; returns captions by file name."""
    limit = min(case.limit for case in cases)
    points = [case for case in cases if case.limit == limit]
    _draw(
        directory / "bench-latency.png",
        points,
        "seconds",
        {
            "p50": lambda result: float(result["one_by_one"]["p50_seconds"]),
            "p99": lambda result: float(result["one_by_one"]["p99_seconds"]),
        },
    )
    _draw(
        directory / "bench-cpu.png",
        points,
        "CPU seconds a request",
        {
            "all processes": lambda result: float(result["one_by_one"]["cpu_seconds_total"]),
            "scheduler": lambda result: float(result["one_by_one"]["cpu_seconds"]["scheduler"]),
        },
    )
    return {
        "bench-latency.png": f"Latency of one request, max_placement_results {limit:,}",
        "bench-cpu.png": f"CPU of one request, max_placement_results {limit:,}",
    }


def _draw(
    path: pathlib.Path,
    cases: Sequence[comparison.Case],
    label: str,
    values: dict[str, Callable[[results.Result], float]],
) -> None:
    figure = matplotlib.figure.Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    for side, (color, marker) in _STYLES.items():
        for (name, value), line in zip(values.items(), ("-", ":"), strict=True):
            found = [(case.hosts, value(case.sides[side])) for case in cases if side in case.sides]
            # Nothing is left where more went on before: there is no place for it on a logarithm.
            found = [(hosts, seconds) for hosts, seconds in found if seconds > 0]
            if found:
                axes.plot(
                    *zip(*found, strict=True),
                    linestyle=line,
                    marker=marker,
                    color=color,
                    label=f"{side}, {name}",
                )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("hosts")
    axes.set_ylabel(label)
    axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:g}"))
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend()
    figure.savefig(path, dpi=_DOTS_PER_INCH)
