# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage status: how the deployment is."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.commands import status_screen
from nova_nodb_scheduler.cmd.framework import bus_calls, command, number_arguments, terminal
from nova_nodb_scheduler.cmd.overview import cell_names, deployment, journaling, process_reports

#: Answers that come within it leave nothing to be told meanwhile.
_PATIENCE_SECONDS = 1.0


class Status(bus_calls.AskingCommand):
    """Show back end, schedulers, reporters and cells; status 1 if anything is not healthy.

    Healthy: the back end can be read, at least one scheduler runs, every
    scheduler answers and follows its feed, all of them claim hosts or none, the
    mirror of Placement that claims are judged by is not too old, claims are
    settled, no record is unreadable, no reporter is silent, and every scheduler
    has proof of every cell. The workers are read from the back end, so that one
    which does not answer is listed all the same.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add ``--watch``."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--watch",
            nargs="?",
            type=number_arguments.within(float, status_screen.LEAST_SECONDS, 3600),
            const=status_screen.DEFAULT_SECONDS,
            metavar="SECONDS",
            help="draw decisions, latency, fallbacks, lag and pending claims again and again, "
            "until ctrl-C; from the back end alone, without asking schedulers (default: every "
            "%(const)s seconds)",
        )
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Gather and print."""
        if args.watch is not None and args.json:
            raise errors.ConfigurationError("--watch", args.watch, "it draws tables: leave --json")
        plugin = self.plugin()
        if args.watch is not None:
            self._watch(plugin, args.watch)
            return 0
        deadline = self.deadline(args)
        rpc, expected = self.client(plugin, args, deadline)
        backend = process_reports.read_backend_within(plugin.make_synchronizer, deadline)
        bound_seconds = float(plugin.options.reporter_bound_seconds)
        with self._told_first(_summary(backend, bound_seconds)):
            found = deployment.gather(
                backend,
                lambda host: rpc.get_status(self.context(), server=host),
                expected,
                bound_seconds,
                float(plugin.options.mirror_bound_seconds),
                float(plugin.options.claim_lease_seconds),
            )
            names = cell_names.read(plugin)
        if args.json:
            self.print_json(as_dict(found, names))
        else:
            show(self, found, names)
        return 1 if found.problems else 0

    @contextlib.contextmanager
    def _told_first(self, known: str) -> Iterator[None]:
        """Say what is known, on standard error, while answers let themselves be waited for."""
        text = f"{known} Waiting for what schedulers answer."
        timer = threading.Timer(_PATIENCE_SECONDS, print, [text], {"file": sys.stderr})
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _watch(self, plugin: Any, every_seconds: float) -> None:
        options = plugin.options

        def read() -> deployment.Deployment:
            return deployment.gather(
                process_reports.read_backend(plugin.make_synchronizer()),
                None,
                (),
                float(options.reporter_bound_seconds),
                float(options.mirror_bound_seconds),
                float(options.claim_lease_seconds),
            )

        names = cell_names.read(plugin)
        status_screen.watch(self.console, read, names, every_seconds, everything=self.wide)


def _summary(backend: process_reports.Backend, bound_seconds: float) -> str:
    if backend.error is not None:
        return f"Back end {backend.driver} cannot be read: {backend.error}"
    alive = [
        sum(backend.age_seconds(beat) <= bound_seconds for beat in beats.values())
        for beats in (backend.schedulers, backend.reporters)
    ]
    return (
        f"Back end {backend.driver}: {backend.statistics.get('records')} records, "
        f"{alive[0]} schedulers and {alive[1]} reporters live by their beats."
    )


def as_dict(found: deployment.Deployment, names: cell_names.CellNames) -> dict[str, Any]:
    """Return plain values for JSON, with the names of cells."""
    document = found.as_dict()
    for part in ("reporters", "cells"):
        document[part] = [
            {**each, "cell_name": names.name(each["cell"])} for each in document[part]
        ]
    return document


def show(
    printer: command.Command, found: deployment.Deployment, names: cell_names.CellNames
) -> None:
    """Print the verdict, then tables for people."""
    _show_verdict(printer, found, names)
    backend = found.backend.as_dict()
    printer.print_facts(
        "Back end",
        {
            name: value
            for name, value in backend.items()
            if "." not in name and value != [] and (printer.wide or name in _BACKEND_FACTS)
        },
    )
    _show_schedulers(printer, found)
    _show_checkpoints(printer, found)
    _show_mirror(printer, found)
    _show_claims(printer, found)
    _show_reporters(printer, found, names)
    _show_cells(printer, found, names)
    for cell, told in journaling.lines(found.cells).items():
        printer.print_line(f"\nCell {names.shown(cell)}: {told}.")
    if found.compute_nodes is not None:
        printer.print_line(f"\n{found.compute_nodes}")


#: What is shown of the back end without --wide.
_BACKEND_FACTS = ("driver", "backend", "epoch", "head", "records", "tombstones", "bytes")


def _show_verdict(
    printer: command.Command, found: deployment.Deployment, names: cell_names.CellNames
) -> None:
    alive = (sum(each["alive"] for each in part) for part in (found.schedulers, found.reporters))
    schedulers, reporters = alive
    counted = ", ".join(
        terminal.counted(number, noun)
        for number, noun in (
            (schedulers, "scheduler"),
            (reporters, "reporter"),
            (len(found.cells), "cell"),
        )
    )
    if not found.problems:
        printer.print_line(f"Everything is healthy: {counted}.")
        return
    printer.print_line(
        f"Not healthy ({terminal.counted(len(found.problems), 'problem')}): {counted}."
    )
    for problem in found.problems:
        printer.print_line(f"* {names.in_text(problem)}")


def _show_schedulers(printer: command.Command, found: deployment.Deployment) -> None:
    printer.print_table(
        "Schedulers",
        (
            *("host", "pid", "feed", "lag s", "hosts", "decided", "p50 s", "p99 s", "fell back"),
            *terminal.wide("outcomes", "candidates", "claims", "fallbacks", "plugin", "answers"),
        ),
        (
            (
                each["host"],
                each["pid"],
                each["state"] if each["alive"] else f"silent {each['age_seconds']:.0f} s",
                terminal.seconds(each["feed_lag_seconds"]),
                each["hosts"],
                _sum(each["outcomes"]),
                terminal.seconds(each["schedule_seconds_p50"]),
                terminal.seconds(each["schedule_seconds_p99"]),
                _sum(each["fallbacks"]),
                _or_none(each["outcomes"]),
                _or_none(each["candidates"]),
                _or_none(each["claims"]),
                _or_none(each["fallbacks"]),
                each["plugin_version"],
                "yes" if each["answered"] else "no",
            )
            for each in found.schedulers
        ),
    )
    reasons: dict[str, int] = {}
    for each in found.schedulers:
        for reason, count in (each["fallbacks"] or {}).items():
            reasons[reason] = reasons.get(reason, 0) + count
    if reasons:
        printer.print_line(f"Requests fell back to Nova's own path for: {_or_none(reasons)}.")


def _show_checkpoints(printer: command.Command, found: deployment.Deployment) -> None:
    kept = [each for each in found.schedulers if each["checkpoint"]]
    if not kept:
        return
    printer.print_table(
        "Checkpoints",
        ("host", "pid", "age s", "MiB", "last attempt", "began with"),
        (
            (
                each["host"],
                each["pid"],
                terminal.seconds(each["checkpoint"].get("age_seconds")),
                _mebibytes(each["checkpoint"].get("bytes")),
                _said(each["checkpoint"].get("outcome"), each["checkpoint"].get("detail")),
                _said(each["checkpoint"].get("start")),
            )
            for each in kept
        ),
    )


def _mebibytes(size_bytes: float | None) -> str | None:
    return None if size_bytes is None else f"{size_bytes / 2**20:.1f}"


def _said(*texts: str | None) -> str:
    return ": ".join(text for text in texts if text) or "none yet"


def _show_mirror(printer: command.Command, found: deployment.Deployment) -> None:
    mirror = found.mirror
    if not mirror:
        printer.print_line(
            "\nNo mirror of Placement is kept: candidates are asked of Placement itself."
        )
        return
    printer.print_facts(
        "Mirror of Placement",
        {
            "compared s ago": terminal.seconds(mirror["age_seconds"]),
            "providers": mirror["providers"],
            "broken": _or_none(mirror["broken"]),
            "differed": mirror["differing"],
            "requests": mirror["requests"],
            "took s": mirror["seconds"],
            "keeper": mirror["keeper"],
        },
    )


def _show_claims(printer: command.Command, found: deployment.Deployment) -> None:
    claims = found.claims
    if not claims:
        return
    counted = ("pending", "confirmed", "settled", "expired", "reconciled")
    printer.print_facts(
        "Claims",
        {
            **{name: int(claims.get(name, 0)) for name in counted},
            "oldest pending s": terminal.seconds(claims.get("oldest_pending_seconds")),
            "settled by": claims["settles"] or "nobody",
            "orphan allocations": int(claims.get("orphans", 0)),
            "orphans deleted": int(claims.get("orphans_deleted", 0)),
        },
    )


def _show_reporters(
    printer: command.Command, found: deployment.Deployment, names: cell_names.CellNames
) -> None:
    printer.print_table(
        "Reporters",
        (
            *("role", "host", "cell", "beat s", "queued", "published", "failed", "refused"),
            *terminal.wide("cell uuid", "pid", "lives s", "plugin", "journal"),
        ),
        (
            (
                each["role"],
                each["host"],
                names.shown(each["cell"]),
                terminal.seconds(each["age_seconds"]),
                each["queued"],
                each["published"],
                each["failed_flushes"],
                each["refused"],
                each["cell"],
                each["pid"],
                terminal.seconds(each["since_seconds"]),
                each["plugin_version"],
                _journal(each),
            )
            for each in found.reporters
        ),
    )


def _journal(reporter: Mapping[str, Any]) -> str | None:
    if reporter["heartbeat_journals"] is not True:
        return None
    return "written" if reporter["journals"] else "waits"


def _show_cells(
    printer: command.Command, found: deployment.Deployment, names: cell_names.CellNames
) -> None:
    printer.print_table(
        "Cells",
        (
            *("cell", "hosts", "imported", "swept s ago", "rows", "reporters", "proved"),
            *("fallbacks",),
            *terminal.wide("heartbeats", "compute nodes", "uuid"),
        ),
        (
            (
                names.shown(each["cell"]),
                each["hosts"],
                "yes" if each["imported"] else "no",
                terminal.seconds(each["swept_age_seconds"]),
                each["rows"],
                each["reporters"],
                _proved(each),
                terminal.counts(each["fallbacks"]),
                each["heartbeats"],
                each["compute_nodes"],
                each["cell"],
            )
            for each in found.cells
        ),
    )


def _or_none(value: Mapping[str, int] | None) -> str | None:
    return None if value is None else terminal.counts(value) or "none"


def _sum(value: Mapping[str, int] | None) -> int | None:
    return None if value is None else sum(value.values())


def _proved(cell: Mapping[str, Any]) -> str:
    if cell["proved"] is None:
        return "nobody says"
    return "yes" if cell["proved"] else ", ".join(sorted(set(cell["reasons"].values())))
