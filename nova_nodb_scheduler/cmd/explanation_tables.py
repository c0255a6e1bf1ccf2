# SPDX-License-Identifier: Apache-2.0
"""Explanations as tables for people."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.cmd import command, tables

#: Weighers with a column of their own, without --wide: those that tell hosts apart most.
_SHOWN_WEIGHERS = 4


def show(
    printer: command.Command, server: str | None, past: Mapping[str, Any] | None, now: Any | None
) -> None:
    """Print the verdict, what was decided about a server, and what would be decided now."""
    printer.print_line(_verdict(server, now))
    if past is not None:
        _show_past(printer, str(server), past)
    if now is not None:
        _show_now(printer, now)


def _verdict(server: str | None, now: Any | None) -> str:
    """Say what would happen to the request now."""
    if now is None:
        return (
            f"Nova's API database has no request of server {server} (it was deleted, or never "
            "was): what would be decided now cannot be told."
        )
    if now.reason:
        return (
            f"Placement would be asked, as in stock Nova: {now.reason}."
            if now.candidates == "placement"
            else f"No valid host. {now.reason}"
        )
    if len(now.placed) < now.servers:
        return f"No valid host: {len(now.placed)} of {now.servers} servers find one."
    hosts = list(dict.fromkeys(each.host for each in now.placed))
    shown = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more hosts" if len(hosts) > 3 else "")
    what = "It would go" if now.servers == 1 else f"All {now.servers} servers would go"
    return f"{what} to {shown}, of {now.passed} hosts that pass."


def _show_past(printer: command.Command, server: str, past: Mapping[str, Any]) -> None:
    if past["decisions"]:
        printer.print_table(
            f"Decisions about server {server}",
            (
                tables.Column("when (UTC)", whole=True),
                *("outcome", "host", "s", "refused", "candidates"),
                *tables.wide("scheduler", "score"),
            ),
            (_past_row(each) for each in past["decisions"]),
        )
        last = past["decisions"][-1]
        if last["counts"]:
            _show_steps(printer, "Steps of the last one", last["counts"])
    else:
        printer.print_line(f"\nNo scheduler remembers a decision about server {server}.")
    for each in past["workers"]:
        since = f" since {_when(each['since'])}" if each["since"] is not None else ""
        printer.print_line(
            f"{each['host']} (process {each['pid']}) remembers "
            f"{each['remembered']} requests{since}."
        )
    for host, why in past["silent"].items():
        printer.print_line(f"No answer from {host}: {why}")


def _past_row(decision: Mapping[str, Any]) -> tuple[Any, ...]:
    placed = decision["placed"][0] if decision["placed"] else None
    return (
        _when(decision["at"]),
        decision["outcome"].replace("_", " "),
        placed["host"] if placed else None,
        f"{decision['seconds']:.3f}",
        "; ".join(f"{each['host']}: {each['reason']}" for each in decision["refused"]),
        decision["candidates"],
        f"{decision['host']} ({decision['pid']})",
        _number(placed["score"]) if placed else None,
    )


def _show_now(printer: command.Command, now: Any) -> None:
    printer.print_line(
        f"\nWhat scheduler {now.scheduler} (process {now.pid}) would decide now; nothing was "
        f"allocated ({now.seconds:.3f} s)."
    )
    if now.reason:
        if not now.counts:
            return
        printer.print_line(
            "Which hosts Placement would offer is not known here. This is what filters and "
            "weighers say of all hosts, as if it offered every one:"
        )
    counts = [{"name": e.name, "before": e.before, "after": e.after} for e in now.counts]
    _show_steps(printer, "Steps without Placement" if now.reason else "Steps", counts)
    if now.hosts:
        _show_hosts(printer, now)
    if not now.reason and now.servers > 1 and now.placed:
        printer.print_table(
            f"{now.servers} servers, one after the other",
            ("#", "host", "score"),
            (
                (number, each.host, _number(each.score))
                for number, each in enumerate(now.placed, start=1)
            ),
        )


def _show_steps(printer: command.Command, title: str, counts: Sequence[Mapping[str, Any]]) -> None:
    printer.print_table(
        title,
        ("step", "hosts before", "refused", "hosts after"),
        (
            (each["name"], each["before"], each["before"] - each["after"], each["after"])
            for each in counts
        ),
    )


def _show_hosts(printer: command.Command, now: Any) -> None:
    names = [share.weigher for share in now.hosts[0].shares]
    of_host = [{share.weigher: share for share in host.shares} for host in now.hosts]
    # What is the same everywhere decides nothing.
    telling = [name for name in names if len({shares[name].share for shares in of_host}) > 1] or [
        name for name in names if any(shares[name].share for shares in of_host)
    ]
    telling.sort(key=lambda name: -_spread([shares[name].share for shares in of_host]))
    shown = [name.removesuffix("Weigher") for name in telling]
    printer.print_table(
        f"Best {len(now.hosts)} of {now.passed} hosts, and each weigher's share",
        (
            *("host", "score", *shown[:_SHOWN_WEIGHERS]),
            *tables.wide(*shown[_SHOWN_WEIGHERS:], "node"),
        ),
        (
            (
                host.host,
                _number(host.score),
                *(_number(shares[name].share) for name in telling),
                host.node,
            )
            for host, shares in zip(now.hosts, of_host, strict=True)
        ),
    )
    left_out = [name for name in names if name not in telling]
    if left_out and now.passed > 1:
        printer.print_line(f"The same for all of them: {', '.join(left_out)}.")
    if now.hosts[0].shares:
        printer.print_table(
            f"How {now.hosts[0].host} was weighed",
            ("weigher", "raw", "normalised", "multiplier", "share"),
            (
                (
                    share.weigher,
                    *map(_number, (share.raw, share.normalised, share.multiplier, share.share)),
                )
                for share in now.hosts[0].shares
            ),
        )


def _spread(values: Sequence[float | None]) -> float:
    """Return how far a weigher's shares of the shown hosts are apart."""
    known = [value for value in values if value is not None]
    return max(known) - min(known) if known else 0.0


def _when(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    # Nobody wants to read of a minus zero.
    return "-" if value is None else f"{value + 0.0:.6g}"
