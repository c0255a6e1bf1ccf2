# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage status: how the deployment is."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from nova_nodb_scheduler.cmd import asking, backend_records, command, deployment


class Status(asking.AskingCommand):
    """Show back end, schedulers, reporters and cells; status 1 if anything is not healthy.

    Healthy: the back end can be read, at least one scheduler runs, every
    scheduler answers and follows its feed, all of them claim hosts or none, the
    mirror of Placement that claims are judged by is not too old, no record is
    unreadable, no reporter is silent, and every scheduler has proof of every
    cell. The workers are read from the back end, so that one which does not
    answer is listed all the same.
    """

    def execute(self, args: argparse.Namespace) -> int:
        """Gather and print."""
        plugin = self.plugin()
        deadline = self.deadline(args)
        rpc, expected = self.client(plugin, args, deadline)
        backend = backend_records.read_within(plugin.make_synchronizer, deadline)
        bound_seconds = float(plugin.options.reporter_bound_seconds)
        with self._told_first(_summary(backend, bound_seconds)):
            found = deployment.gather(
                backend,
                lambda host: rpc.get_status(self.context(), server=host),
                expected,
                bound_seconds,
                float(plugin.options.mirror_bound_seconds),
            )
        if args.json:
            self.print_json(found.as_dict())
        else:
            show(self, found)
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


def _summary(backend: backend_records.Backend, bound_seconds: float) -> str:
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


#: Answers that come within it leave nothing to be told meanwhile.
_PATIENCE_SECONDS = 1.0


def show(printer: command.Command, found: deployment.Deployment) -> None:
    """Print tables for people."""
    backend = found.backend.as_dict()
    printer.print_facts(
        "Back end",
        {name: value for name, value in backend.items() if "." not in name and value != []},
    )
    _show_schedulers(printer, found)
    _show_mirror(printer, found)
    _show_claims(printer, found)
    _show_reporters(printer, found)
    _show_cells(printer, found)
    if found.problems:
        printer.print_table("Problems", ("",), ([problem] for problem in found.problems))
    else:
        printer.console.print("Everything is healthy.")


def _show_schedulers(printer: command.Command, found: deployment.Deployment) -> None:
    columns = ("host", "process", "feed", "lag s", "hosts", "decisions", "candidates", "claims")
    printer.print_table(
        "Schedulers",
        (*columns, "p50 s", "p99 s", "fallbacks", "plugin", "answers"),
        (
            (
                each["host"],
                each["pid"],
                each["state"] if each["alive"] else f"silent for {each['age_seconds']:.0f} s",
                _seconds(each["feed_lag_seconds"]),
                each["hosts"],
                _counts(each["outcomes"]),
                _counts(each["candidates"]),
                _counts(each["claims"]),
                _seconds(each["schedule_seconds_p50"]),
                _seconds(each["schedule_seconds_p99"]),
                _counts(each["fallbacks"]),
                each["plugin_version"],
                "yes" if each["answered"] else "no",
            )
            for each in found.schedulers
        ),
    )


def _show_mirror(printer: command.Command, found: deployment.Deployment) -> None:
    mirror = found.mirror
    if not mirror:
        printer.console.print(
            "No mirror of Placement is kept: candidates are asked of Placement itself."
        )
        return
    printer.print_facts(
        "Mirror of Placement",
        {
            "compared s ago": _seconds(mirror["age_seconds"]),
            "providers": mirror["providers"],
            "broken": _counts(mirror["broken"]),
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
            "oldest pending s": _seconds(claims.get("oldest_pending_seconds")),
            "settled by": claims["settles"] or "nobody",
            "orphan allocations": int(claims.get("orphans", 0)),
            "orphans deleted": int(claims.get("orphans_deleted", 0)),
        },
    )


def _show_reporters(printer: command.Command, found: deployment.Deployment) -> None:
    columns = ("role", "host", "process", "cell", "last beat s", "queued", "published", "failed")
    printer.print_table(
        "Reporters",
        (*columns, "plugin"),
        (
            (
                each["role"],
                each["host"],
                each["pid"],
                "every cell" if each["cell"] == "*" else each["cell"],
                _seconds(each["age_seconds"]),
                each["queued"],
                each["published"],
                each["failed_flushes"],
                each["plugin_version"],
            )
            for each in found.reporters
        ),
    )


def _show_cells(printer: command.Command, found: deployment.Deployment) -> None:
    printer.print_table(
        "Cells",
        ("cell", "hosts", "imported", "swept s ago", "rows", "reporters", "proved", "fallbacks"),
        (
            (
                each["cell"],
                each["hosts"],
                "yes" if each["imported"] else "no",
                _seconds(each["swept_age_seconds"]),
                each["rows"],
                each["reporters"],
                _proved(each),
                _counts(each["fallbacks"]),
            )
            for each in found.cells
        ),
    )


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _counts(value: Mapping[str, int] | None) -> str | None:
    if value is None:
        return None
    return ", ".join(f"{name} {count}" for name, count in sorted(value.items())) or "none"


def _proved(cell: Mapping[str, Any]) -> str:
    if cell["proved"] is None:
        return "nobody says"
    return "yes" if cell["proved"] else ", ".join(sorted(set(cell["reasons"].values())))
