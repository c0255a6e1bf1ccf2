# SPDX-License-Identifier: Apache-2.0
"""Draw the Grafana board from a Prometheus, in the board's own layout, without Grafana.

    python -m tools.board --prometheus http://127.0.0.1:9090 [--minutes 15] [--output board.png]

Every query of ``etc/nova-nodb-scheduler/grafana-dashboard.json`` is sent as Grafana sends it.
The status is 1 if one is refused; those without data are named.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

BOARD = pathlib.Path(__file__).resolve().parents[1] / (
    "etc/nova-nodb-scheduler/grafana-dashboard.json"
)
_STEPS = 120
#: As Prometheus looks back for a sample when it is scraped each minute.
_GAP_SECONDS = 60.0
#: Inches of a 24th of the width, and of a unit of height.
_UNIT = (0.75, 0.36)
_UNITS: dict[str, tuple[float, str]] = {
    "bytes": (1 / 1048576, "MiB"),
    "s": (1.0, "s"),
    "reqps": (1.0, "requests/s"),
    "ops": (1.0, "1/s"),
    "percentunit": (100.0, "%"),
}

#: Given expression, start, end and step in seconds; returns Prometheus's matrix.
AskRange = Callable[[str, float, float, float], Iterable[Mapping[str, Any]]]


class Refused(Exception):
    """Prometheus refused a query."""


@attrs.frozen
class Line:
    """One series of a panel.

    :param points: seconds since the epoch and values
    """

    name: str
    points: tuple[tuple[float, float], ...]


@attrs.frozen
class Panel:
    """A panel as the board has it, with what Prometheus answered.

    :param empty: queries that brought nothing
    """

    title: str
    kind: str
    unit: str
    grid: Mapping[str, int]
    lines: tuple[Line, ...]
    empty: tuple[str, ...]


def read(
    ask: AskRange, start: float, end: float, rate_seconds: float, board: pathlib.Path = BOARD
) -> list[Panel]:
    """Send every query of the board.

    :param rate_seconds: what stands for ``$__rate_interval``
    :raises Refused: Prometheus does not understand one
    """
    found = []
    for panel in json.loads(board.read_text())["panels"]:
        lines: list[Line] = []
        empty: list[str] = []
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", f"{rate_seconds:g}s")
            step = max((end - start) / _STEPS, 1.0)
            series = list(ask(expression, start, end, step))
            if not series:
                empty.append(target["expr"])
            lines += [
                Line(
                    _legend(target["legendFormat"], each["metric"]),
                    tuple((float(at), float(value)) for at, value in each["values"]),
                )
                for each in series
            ]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        found.append(
            Panel(
                panel["title"],
                panel["type"],
                unit,
                panel["gridPos"],
                tuple(lines),
                tuple(empty),
            )
        )
    return found


def _with_gaps(points: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield points, and between two that lie far apart one that breaks the line."""
    before: float | None = None
    for at, value in points:
        if before is not None and at - before > _GAP_SECONDS:
            yield before, math.nan
        yield at, value
        before = at


def _legend(text: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), text).strip()


def draw(panels: Iterable[Panel], output: pathlib.Path, title: str) -> None:
    """Draw the panels where the board has them."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import dates, figure

    panels = list(panels)
    rows = max(each.grid["y"] + each.grid["h"] for each in panels) + 1
    drawn = figure.Figure(figsize=(24 * _UNIT[0], rows * _UNIT[1]), facecolor="#f4f5f5")
    drawn.text(0.01, 1 - 0.6 / rows, title, fontsize=13, weight="bold")
    for panel in panels:
        place = panel.grid
        left, width = place["x"] / 24, place["w"] / 24
        bottom, height = 1 - (place["y"] + 1 + place["h"]) / rows, place["h"] / rows
        if panel.kind == "stat":
            axes = drawn.add_axes(
                (left + 0.004, bottom + 0.1 * height, width - 0.008, 0.8 * height)
            )
            axes.set(xticks=[], yticks=[])
            value = panel.lines[0].points[-1][1] if panel.lines else math.nan
            axes.text(0.5, 0.38, f"{value:g}", ha="center", va="center", fontsize=20)
            axes.text(0.03, 0.95, panel.title, va="top", fontsize=9, transform=axes.transAxes)
            continue
        axes = drawn.add_axes((left + 0.035, bottom + 0.17 * height, width - 0.045, 0.68 * height))
        scale, unit = _UNITS.get(panel.unit, (1.0, ""))
        axes.set_title(f"{panel.title}{f' ({unit})' if unit else ''}", loc="left", fontsize=9)
        for line in panel.lines:
            points = list(_with_gaps(line.points))
            # matplotlib counts days since the same epoch.
            times = [at / 86400 for at, _value in points]
            axes.plot(times, [value * scale for _at, value in points], label=line.name)
        axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S"))
        axes.xaxis.set_major_locator(dates.AutoDateLocator(maxticks=5))
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        if axes.get_ylim()[0] > 0:
            axes.set_ylim(bottom=0)
        if panel.lines:
            axes.legend(fontsize=6, loc="center left", framealpha=0.6)
        else:
            axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)
    output.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(output, dpi=75)


def asker(address: str) -> AskRange:
    """Return what asks a Prometheus at a URL."""

    def ask(expression: str, start: float, end: float, step: float) -> Any:
        asked = urllib.parse.urlencode(
            {"query": expression, "start": start, "end": end, "step": step}
        )
        try:
            with urllib.request.urlopen(f"{address}/api/v1/query_range?{asked}") as got:
                return json.load(got)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise Refused(f"{expression}: {error.read().decode()}") from error

    return ask


def main() -> int:
    """Draw the board; see the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--prometheus", required=True, help="its URL")
    parser.add_argument("--minutes", type=float, default=15.0, help="how far back")
    parser.add_argument("--rate-seconds", type=float, default=60.0, help="window of rates")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("board.png"))
    options = parser.parse_args()
    end = time.time()
    try:
        panels = read(
            asker(options.prometheus.rstrip("/")),
            end - 60 * options.minutes,
            end,
            options.rate_seconds,
        )
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    draw(panels, options.output, "nova_nodb_scheduler")
    for panel in panels:
        for expression in panel.empty:
            print(f"no data in '{panel.title}': {expression}")
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
