# SPDX-License-Identifier: Apache-2.0
"""The figures of some strategies side by side, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rich.table

from nova_nodb_scheduler.simulator import results

Figures = Mapping[str, Any]


def _number(name: str, form: str = ",d") -> Callable[[Figures], str]:
    def shown(figures: Figures) -> str:
        value = figures[name]
        return "" if value is None else format(value, form)

    return shown


def _spread(name: str, unit: float, form: str) -> Callable[[Figures], str]:
    def shown(figures: Figures) -> str:
        values = (figures[name][part] for part in ("p50", "p90", "p99", "max"))
        return " / ".join("-" if value is None else format(value * unit, form) for value in values)

    return shown


def _outcome(name: str) -> Callable[[Figures], str]:
    return lambda figures: format(figures["outcomes"].get(name, 0), ",d")


def _excess(figures: Figures) -> str:
    return ", ".join(f"{amount:,} {name}" for name, amount in figures["worst_excess"].items())


def _causes(figures: Figures) -> str:
    found = sorted(figures["writes_lost_by_cause"].items(), key=lambda each: -each[1])
    return "\n".join(f"{count:,} {cause}" for cause, count in found)


#: What a row is called, and what it shows.
ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("decisions", _number("decisions")),
    ("decisions a second", _number("decisions_per_second", ",.1f")),
    ("latency p50 / p90 / p99 / max, ms", _spread("latency_seconds", 1000, ",.1f")),
    ("requests placed", _outcome("placed")),
    ("requests without a valid host", _outcome("no valid host")),
    ("requests given up", _outcome("given up")),
    ("servers placed", _number("servers_placed")),
    ("servers over-committed", _number("overcommitted_servers")),
    ("hosts over-committed", _number("overcommitted_hosts")),
    ("worst excess on one host", _excess),
    ("refusals at hosts", _number("refusals_at_hosts")),
    ("claim p50 / p90 / p99 / max, ms", _spread("claim_seconds", 1000, ",.1f")),
    ("conflicts of claims", _number("conflicts")),
    ("requests decided again for one", _number("requests_with_conflict_share", ".2%")),
    ("compare-and-sets lost on claims", _number("writes_lost")),
    ("to what", _causes),
    ("requests that lost one", _number("requests_with_lost_write_share", ".2%")),
    ("lost by the settling of claims", _number("settling_writes_lost")),
    ("hosts passed over after the choice", _number("retries")),
    ("feed p50 / p90 / p99 / max, ms", _spread("feed_lag_seconds", 1000, ",.0f")),
    ("view behind p50 / p90 / p99 / max, ms", _spread("stale_seconds", 1000, ",.0f")),
    ("longest gap of throughput, s", _number("longest_gap_seconds", ".2f")),
    ("ready p50 / p90 / p99 / max, s", _spread("ready_seconds", 1, ".1f")),
    ("ready again p50 / p90 / p99 / max, s", _spread("ready_again_seconds", 1, ".1f")),
    ("schedulers started again", _number("restarts")),
    ("requests lost with a scheduler", _number("lost_requests")),
    ("tries without an answer for claims", _number("unclaimable_tries")),
    ("choices of lost hosts, not yet silent", _number("choices_of_lost_hosts")),
    ("choices of lost hosts, too late", _number("late_choices_of_lost_hosts")),
    ("decisions without a live reporter", _number("unproved_decisions")),
    ("claims left over", _number("leaked_claims")),
    ("records published", _number("updates")),
    ("most of them in a second", _number("most_updates_in_a_second")),
    ("most memory of a scheduler, MB", _number("scheduler_memory_mb", ",.0f")),
    ("scarcest resource granted", _number("fill_share", ".1%")),
    ("choices (digest)", _number("choices_digest", "")),
)


def table(
    found: Sequence[results.Result], packing: Mapping[str, Mapping[str, Any]]
) -> rich.table.Table:
    """Return the report; rows in which no strategy has anything are left out.

    :param packing: by strategy
    """
    made = rich.table.Table(title="Simulation (synthetic hosts)", title_justify="left")
    made.add_column("")
    for each in found:
        made.add_column(each.strategy, justify="right")
    for label, shown in ROWS:
        cells = [shown(each.figures) for each in found]
        if any(cell.strip("0.-% /") for cell in cells) or "over-committed" in label:
            made.add_row(label, *cells)
    if packing:
        made.add_row("least hosts that hold it all", *(_packed(packing, each) for each in found))
    return made


def _packed(packing: Mapping[str, Mapping[str, Any]], result: results.Result) -> str:
    found = packing.get(result.strategy)
    if found is None:
        return ""
    if found["hosts"] is None:
        return f"not even {found['of']:,}"
    return f"{found['hosts']:,} of {found['of']:,} ({found['hosts'] / found['of']:.0%})"
