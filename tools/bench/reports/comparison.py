# SPDX-License-Identifier: Apache-2.0
"""Turns results into rows of stock, plugin and how many times less: what tables and charts show."""

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from tools.bench import options
from tools.bench.reports import results


@attrs.frozen
class Row:
    """One measure of both sides; None where it was not measured.

    :param unit: of both values: ``s``, ``MiB``, ``kiB``, ``/s`` or nothing for a count
    :param is_cost: False for what is neither good nor bad
    """

    measure: str
    stock: float | None
    plugin: float | None
    unit: str = ""
    is_cost: bool = True

    @property
    def ratio(self) -> float | None:
        """How many times the plugin is better; None where that cannot be said."""
        if not self.is_cost or self.stock is None or self.plugin is None:
            return None
        if min(self.stock, self.plugin) <= 0:
            return None
        more_is_better = self.unit == "/s"
        return self.plugin / self.stock if more_is_better else self.stock / self.plugin


@attrs.frozen
class Case:
    """A size and a limit with the results of its sides."""

    hosts: int
    limit: int
    sides: dict[str, results.Result]

    def row(
        self,
        measure: str,
        value: Callable[[results.Result], float | None],
        unit: str = "",
        *,
        is_cost: bool = True,
    ) -> Row:
        """Return a row of a value that may be missing on a side."""
        found = [_value(self.sides.get(side), value) for side in options.SIDES]
        return Row(measure, *found, unit=unit, is_cost=is_cost)


def _value(
    result: results.Result | None, value: Callable[[results.Result], float | None]
) -> float | None:
    if result is None:
        return None
    try:
        return value(result)
    except (KeyError, StopIteration, TypeError):
        return None


def cases(kept: results.Results) -> list[Case]:
    """Return what was measured, by size and limit."""
    found: dict[tuple[int, int], Case] = {}
    for result in kept.all():
        facts = result["facts"]
        key = facts["hosts"], facts["limit"]
        found.setdefault(key, Case(*key, {})).sides[facts["side"]] = result
    return list(found.values())


def rows_of_request(case: Case) -> Iterator[Row]:
    """Yield the cost of one request."""
    row = case.row
    yield row("wall, p50", lambda r: r["one_by_one"]["p50_seconds"], "s")
    yield row("wall, p99", lambda r: r["one_by_one"]["p99_seconds"], "s")
    yield row("CPU, all processes", lambda r: r["one_by_one"]["cpu_seconds_total"], "s")
    for name in ("scheduler", "placement", "mariadb"):
        yield row(f"CPU, {name}", _cpu(name), "s")
    yield row("HTTP calls to Placement", lambda r: r["one_by_one"]["http_calls_total"])
    yield row(
        "calls for candidates",
        lambda r: r["one_by_one"]["candidates_asked"],
    )
    yield row("SQL on Nova's databases", lambda r: r["one_by_one"]["gross_sql_scheduler_nova"])
    yield row("SQL on the plugin's store", lambda r: r["one_by_one"]["sql_scheduler_store"])
    yield row("SQL of Placement", lambda r: r["one_by_one"]["sql_placement"])
    yield row("requests", lambda r: r["one_by_one"]["requests"], is_cost=False)
    yield row("requests without a host", lambda r: sum(r["one_by_one"]["errors"].values()))


def rows_of_life(case: Case) -> Iterator[Row]:
    """Yield what a scheduler costs beside requests, and with requests at a stated rate."""
    row = case.row
    yield row("ready after", lambda r: r["start"]["ready_seconds"], "s")
    yield row("memory when ready", lambda r: r["start"]["memory_mb_ready"], "MiB")
    yield row("memory of the hosts", _memory_of_hosts, "MiB")
    yield row(
        "memory of each host", lambda r: _memory_of_hosts(r) * 1024 / r["facts"]["hosts"], "kiB"
    )
    yield row("memory at its peak", lambda r: r["memory"]["memory_mb_peak"], "MiB")
    for name in ("scheduler", "placement", "mariadb", "conductor"):
        yield row(f"idle CPU a minute, {name}", _idle_cpu(name), "s")
    for rate in (1.0, 20.0):
        yield row(
            f"CPU a decision at {rate:g}/s, background included",
            _paced(rate, "gross_cpu_seconds_total"),
            "s",
        )
        yield row(f"wall at {rate:g}/s, p50", _paced(rate, "p50_seconds"), "s")
        yield row(f"wall at {rate:g}/s, p99", _paced(rate, "p99_seconds"), "s")


def rows_of_crowds(case: Case) -> Iterator[Row]:
    """Yield many servers in one request, and several schedulers at once."""
    row = case.row
    count = next((r["crowd"]["servers"] for r in case.sides.values() if "crowd" in r), None)
    if count is None:
        return
    yield row(f"{count} servers in one request, wall", lambda r: r["crowd"]["p50_seconds"], "s")
    yield row(
        f"{count} servers in one request, CPU", lambda r: r["crowd"]["cpu_seconds_total"], "s"
    )
    yield row(
        f"  of it, Placement's POST of {count} alone, wall",
        lambda r: r["crowd"]["placement_alone"]["p50_seconds"],
        "s",
    )
    yield row(
        f"  of it, Placement's POST of {count} alone, CPU",
        lambda r: sum(r["crowd"]["placement_alone"]["gross_cpu_seconds"].values()),
        "s",
    )
    yield row(
        "Placement's POST of 1 alone, wall",
        lambda r: r["crowd"]["placement_alone_for_one"]["p50_seconds"],
        "s",
    )
    yield row(
        "2 schedulers x 4 threads, decisions",
        lambda r: r["together"]["decisions_per_second"],
        "/s",
    )
    yield row(
        "2 schedulers x 4 threads, CPU a decision",
        lambda r: r["together"]["gross_cpu_seconds_total"],
        "s",
    )


def text(value: float | None, unit: str = "") -> str:
    """Format a value: three significant digits, seconds below 1 in milliseconds."""
    if value is None:
        return "-"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{_digits(value * 1000)} ms"
    return f"{_digits(value)} {unit}".strip().replace(" /s", "/s")


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _cpu(name: str) -> Callable[[results.Result], float]:
    return lambda result: float(result["one_by_one"]["cpu_seconds"][name])


def _idle_cpu(name: str) -> Callable[[results.Result], float]:
    return lambda result: float(result["idle"]["cpu_seconds_a_minute"][name])


def _memory_of_hosts(result: results.Result) -> float:
    start: dict[str, Any] = result["start"]
    return float(start["memory_mb_ready"] - start["memory_mb_before"])


def _paced(rate: float, name: str) -> Callable[[results.Result], float | None]:
    def value(result: results.Result) -> float | None:
        return next(each[name] for each in result["paced"] if each["rate"] == rate)

    return value
