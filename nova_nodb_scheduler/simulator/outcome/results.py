# SPDX-License-Identifier: Apache-2.0
"""What the runs of some strategies came to: one document, and figures side by side for people."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import rich.table

from nova_nodb_scheduler.simulator.outcome import waiting_results
from nova_nodb_scheduler.simulator.run import measures, world

#: Of the document; grows when a name changes its meaning.
FORMAT = 3


@attrs.frozen(kw_only=True)
class RunResult:
    """One strategy's run.

    :param figures: by name; fit for JSON
    :param decisions: (real seconds from the beginning, simulated, real seconds
        it took, outcome) of each
    :param sequence: (server, host uuid) in the order of the grants
    :param fill: (simulated seconds, granted share of the scarcest class)
    :param lags: seconds of each batch into the slowest scheduler's store
    :param waits: simulated seconds that requests waited until they were placed, by class
    """

    strategy: str
    figures: Mapping[str, Any]
    decisions: Sequence[tuple[float, float, float, str]]
    sequence: Sequence[tuple[str, str]]
    fill: Sequence[tuple[float, float]]
    lags: Sequence[float] = ()
    waits: Mapping[str, Sequence[float]] = attrs.field(factory=dict)


def of(run: world.World) -> RunResult:
    """Return what a finished run came to."""
    found = run.measures
    seconds = found.decisions[-1][0] if found.decisions else 0.0
    # What is published while claims come to rest meets schedulers that are idle.
    last = run.began_at + seconds
    published = [each for each in run.reporter.published if each[0] <= last]
    lags = run.feed_lags.of(published)
    rate = sum(count for _, _, count in published) / seconds if seconds else None
    return RunResult(
        strategy=run.strategy.name,
        figures={
            **_decided(found, seconds),
            **_harm(run),
            **_feed(run, lags, rate),
            **waiting_results.of(run),
            "standing_servers": run.standing_servers,
            "simulated_seconds": run.simulated_seconds,
            "took_seconds": run.took_seconds,
            "fill_share": run.ledger.used_share(),
            "choices_digest": digest(found.sequence),
        },
        decisions=found.decisions,
        sequence=found.sequence,
        fill=found.fill,
        lags=lags,
        waits=waiting_results.wait_shares(run),
    )


def _decided(found: measures.Measures, seconds: float) -> dict[str, Any]:
    decided = len(found.decisions)
    return {
        "decisions": decided,
        "real_seconds": seconds,
        "decisions_per_second": decided / seconds if seconds else None,
        "latency_seconds": measures.spread([each[2] for each in found.decisions]),
        "outcomes": dict(found.outcomes),
        "servers_placed": found.servers_placed,
        "claim_seconds": measures.spread([take + confirm for take, confirm in found.claims]),
        "take_seconds": measures.spread([take for take, _ in found.claims]),
        "confirm_seconds": measures.spread([confirm for _, confirm in found.claims]),
        "conflicts": found.conflicts,
        "requests_with_conflict_share": found.requests_with_conflict / decided if decided else 0.0,
        "writes_lost": found.writes_lost.total(),
        "writes_lost_by_cause": dict(found.writes_lost),
        "requests_with_lost_write_share": (
            found.requests_with_lost_write / decided if decided else 0.0
        ),
        "settling_writes_lost": found.settling_writes_lost,
        "retries": sum(found.reasons.values()),
        "retries_by_reason": dict(found.reasons),
        "longest_gap_seconds": found.longest_gap_seconds,
    }


def _harm(run: world.World) -> dict[str, Any]:
    found, ledger = run.measures, run.ledger
    return {
        "overcommitted_servers": ledger.overcommitted_grants,
        "overcommitted_hosts": len(ledger.overcommitted_hosts),
        "worst_excess": dict(ledger.worst_excess),
        "writes_beyond_capacity": ledger.late_writes,
        "refusals_at_hosts": ledger.refusals,
        "choices_of_lost_hosts": found.choices_of_lost,
        "late_choices_of_lost_hosts": found.late_choices,
        "lost_requests": found.lost_requests,
        "unclaimable_tries": found.unclaimable_tries,
        "leaked_claims": run.leaked_claims,
    }


def _feed(run: world.World, lags: Sequence[float], rate: float | None) -> dict[str, Any]:
    reporter = run.reporter.figures
    first = [each.ready_seconds[0] for each in run.schedulers if each.ready_seconds]
    again = [seconds for each in run.schedulers for seconds in each.ready_seconds[1:]]
    return {
        "stale_seconds": measures.spread(run.measures.stale_seconds),
        "feed_lag_seconds": measures.spread(lags),
        "batches_followed": len(lags),
        "updates_per_second": rate,
        "unproved_decisions": run.measures.unproved,
        "ready_seconds": measures.spread(first),
        "ready_again_seconds": measures.spread(again),
        "restarts": len(again),
        "updates": reporter.updates,
        "journaled_heartbeats": reporter.journaled,
        "dropped_heartbeats": run.reporter.dropped_heartbeats,
        "most_updates_in_a_second": reporter.peak_per_second,
        "most_updates_waiting": reporter.most_waiting,
        "failed_flushes": reporter.failures,
        "scheduler_memory_mb": max((each.peak_memory_mb for each in run.schedulers), default=0.0),
    }


def digest(sequence: Sequence[tuple[str, str]]) -> str:
    """Return what two runs that chose alike have in common."""
    text = "\n".join(f"{server} {host}" for server, host in sequence)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def document(
    settings: Mapping[str, Any],
    results: Sequence[RunResult],
    packing: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return everything as one JSON document.

    :param settings: how the runs were set up
    :param packing: by strategy
    """
    return {
        "format": FORMAT,
        "settings": dict(settings),
        "strategies": {
            each.strategy: {**each.figures, "packing": packing.get(each.strategy)}
            for each in results
        },
    }


Figures = Mapping[str, Any]


def _overtaken(figures: Figures) -> str:
    return format(figures["overtaken"], ",d") if "overtaken" in figures else ""


def _number(name: str, form: str = ",d") -> Callable[[Figures], str]:
    def shown(figures: Figures) -> str:
        value = figures.get(name)
        return "" if value is None else format(value, form)

    return shown


def _spread(name: str, unit: float, form: str) -> Callable[[Figures], str]:
    def shown(figures: Figures) -> str:
        values = (figures.get(name, {}).get(part) for part in ("p50", "p90", "p99", "max"))
        return " / ".join("-" if value is None else format(value * unit, form) for value in values)

    return shown


def _outcome(name: str) -> Callable[[Figures], str]:
    return lambda figures: format(figures["outcomes"].get(name, 0), ",d")


def _excess(figures: Figures) -> str:
    return ", ".join(f"{amount:,} {name}" for name, amount in figures["worst_excess"].items())


def _causes(figures: Figures) -> str:
    found = sorted(figures["writes_lost_by_cause"].items(), key=lambda each: -each[1])
    return "\n".join(f"{count:,} {cause}" for cause, count in found)


def _waits(figures: Figures) -> str:
    lines = []
    for name, found in figures.get("waits", {}).items():
        some = (found["wait_seconds"][part] for part in ("p50", "p99"))
        text = " / ".join("-" if value is None else f"{value:,.1f}" for value in some)
        lines.append(f"{name}: {text}")
    return "\n".join(lines)


def _endings(figures: Figures) -> str:
    lines = []
    for name, found in figures.get("waits", {}).items():
        shown = ("placed_at_once", "placed_after_a_wait", "expired", "refused", "still_waiting")
        lines.append(f"{name}: " + " / ".join(f"{found[each]:,}" for each in shown))
    return "\n".join(lines)


def _pace(figures: Figures) -> str:
    simulated, took = figures["simulated_seconds"], figures["took_seconds"]
    if not took:
        return ""
    pace = simulated / took
    slower = " (slower than real time)" if pace < 0.99 else ""
    return f"{simulated:,.1f} s in {took:,.1f} s{slower}"


def _project_shares(figures: Figures) -> str:
    return "\n".join(
        f"{name}: {found['placed_share']:.1%} ({found['weight_share']:.1%})"
        for name, found in figures.get("projects", {}).items()
        if found["placed_share"] is not None
    )


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
    ("wait until placed p50 / p99, s", _waits),
    ("at once / after a wait / expired / refused / waiting", _endings),
    ("placed, by project (by weight)", _project_shares),
    ("requests others went before", _overtaken),
    ("most requests waiting", _number("most_waiting")),
    ("grants to requests that waited", _number("grants")),
    ("grants that found no room", _number("failed_grants")),
    ("requests granted anew, holder silent", _number("grants_anew")),
    ("free of the scarcest while some waited", _number("stranded_share", ".1%")),
    ("wake-up p50 / p90 / p99 / max, ms", _spread("wake_round_seconds", 1000, ",.1f")),
    ("plan of a candidate p50 / p90 / p99 / max, ms", _spread("fit_seconds", 1000, ",.2f")),
    ("requests that could not be kept", _number("unkept_requests")),
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
    ("heartbeats published as pages", _number("journaled_heartbeats")),
    ("heartbeats dropped for want of room", _number("dropped_heartbeats")),
    ("most of them in a second", _number("most_updates_in_a_second")),
    ("most memory of a scheduler, MB", _number("scheduler_memory_mb", ",.0f")),
    ("servers from before, with records", _number("standing_servers")),
    ("time simulated", _pace),
    ("scarcest resource granted", _number("fill_share", ".1%")),
    ("choices (digest)", _number("choices_digest", "")),
)


#: Rows that are shown where nothing is in them, too: that is what they are for.
_ALWAYS = frozenset(
    ("servers over-committed", "hosts over-committed", "requests others went before")
)


def comparison_table(
    found: Sequence[RunResult], packing: Mapping[str, Mapping[str, Any]]
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
        if any(cell.strip("0.-% /") for cell in cells) or label in _ALWAYS:
            made.add_row(label, *cells)
    if packing:
        made.add_row("least hosts that hold it all", *(_packed(packing, each) for each in found))
    return made


def _packed(packing: Mapping[str, Mapping[str, Any]], result: RunResult) -> str:
    found = packing.get(result.strategy)
    if found is None:
        return ""
    if found["hosts"] is None:
        return f"not even {found['of']:,}"
    return f"{found['hosts']:,} of {found['of']:,} ({found['hosts'] / found['of']:.0%})"
