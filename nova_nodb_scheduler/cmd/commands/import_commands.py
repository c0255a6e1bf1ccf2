# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage import, compare and mirror import: an existing deployment's states."""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import command, number_arguments, reaching, terminal
from nova_nodb_scheduler.cmd.overview import cell_names


class _ScopeCommand(command.Command):
    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the choice of cells."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--cell",
            action="append",
            default=[],
            help="uuid of a cell, or 'api' for the API database; may be given several "
            "times (default: all)",
        )
        return parser

    def scopes(self, plugin: Any, args: argparse.Namespace) -> list[str]:
        """Return the scopes to work on, the API's first.

        :raises ConfigurationError: a cell does not exist
        """
        known = ["api", *reaching.cells(plugin)]
        for cell in args.cell:
            if cell not in known:
                raise errors.ConfigurationError("--cell", cell, f"choose one of {', '.join(known)}")
        return args.cell or known


class Import(_ScopeCommand):
    """Publish what Nova's databases hold to the synchronizer, while services go on writing.

    Safe to repeat at any time: it compares before it writes, as the reporters
    do, and writes only what differs. After an interruption, --resume leaves
    out the cells that are done; it is for that only: what services without the
    plugin wrote there since would be missed. A cell whose database is down is
    left out and not served from memory: schedulers read its database.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add --resume."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--resume",
            action="store_true",
            help="leave out the cells that an import or a sweep has compared wholly since the back "
            "end's present epoch began",
        )
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Import scope by scope with a progress bar."""
        from nova_nodb_scheduler.nova_adapter.reporting import scope_transfer

        plugin = self.plugin()
        scopes = self.scopes(plugin, args)
        silent = reaching.silent_databases(plugin, scopes)
        with reaching.opened(plugin.make_synchronizer, makes=True) as synchronizer:
            done = scope_transfer.imported(synchronizer) if args.resume else set()
            results = []
            with self.progress("rows", quiet=args.json) as bars:
                for scope in scopes:
                    if scope in done:
                        results.append(
                            scope_transfer.TransferResult(scope, "done before", 0, {}, 0.0)
                        )
                        continue
                    if scope in silent:
                        results.append(scope_transfer.left_out(scope, silent[scope]))
                        continue
                    results.append(self._one(plugin, synchronizer, scope, bars))
        self._show(results, cell_names.read(plugin), args.json)
        return 1 if any(result.failed for result in results) else 0

    def _one(self, plugin: Any, synchronizer: Any, scope: str, bars: Any) -> Any:
        from nova_nodb_scheduler.nova_adapter.reporting import scope_transfer

        bar = bars.add_task(scope, total=None)

        def total(rows: int) -> None:
            bars.update(bar, total=rows)

        walked: dict[str, int] = {}

        def progress(page: Any) -> None:
            walked[page.table] = page.rows
            bars.update(bar, completed=sum(walked.values()))

        result = scope_transfer.import_scope(
            plugin.sweeper(synchronizer), plugin.scopes, scope, threading.Event(), total, progress
        )
        bars.update(bar, total=result.rows, completed=result.rows)
        return result

    def _show(self, results: list[Any], names: cell_names.CellNames, as_json: bool) -> None:
        if as_json:
            self.print_json(
                [{**attrs.asdict(each), "cell_name": names.name(each.scope)} for each in results]
            )
            return
        failed = sum(bool(each.failed) for each in results)
        written = sum(sum(each.written.values()) for each in results)
        self.print_line(
            (f"{failed} of {len(results)} cells could not be imported; " if failed else "")
            + f"{sum(each.rows for each in results)} rows were read, {written} records written."
        )
        self.print_table(
            "Import",
            ("cell", "outcome", "rows", "written", "seconds", *terminal.wide("uuid")),
            (
                (
                    names.shown(each.scope),
                    each.outcome,
                    each.rows,
                    sum(each.written.values()),
                    f"{each.seconds:.1f}",
                    each.scope,
                )
                for each in results
            ),
        )


class Compare(_ScopeCommand):
    """Compare the synchronizer's records with Nova's databases; status 1 if they differ."""

    def execute(self, args: argparse.Namespace) -> int:
        """Compare scope by scope."""
        from nova_nodb_scheduler.nova_adapter.reporting import scope_transfer

        plugin = self.plugin()
        scopes = self.scopes(plugin, args)
        for scope, reason in reaching.silent_databases(plugin, scopes).items():
            raise errors.NotReached(
                f"The database of {scope}",
                reason,
                "Mend it, or name the cells to compare with --cell",
            )
        with reaching.opened(plugin.make_synchronizer) as synchronizer:
            found = {
                scope: scope_transfer.compare_scope(
                    synchronizer,
                    plugin.scopes,
                    scope,
                    bound_seconds=float(plugin.options.reporter_bound_seconds),
                )
                for scope in scopes
            }
        differing = any(
            not comparison.clean for by_table in found.values() for comparison in by_table.values()
        )
        if args.json:
            self.print_json(
                {
                    scope: {name: comparison.as_dict() for name, comparison in by_table.items()}
                    for scope, by_table in found.items()
                }
            )
            return 1 if differing else 0
        self._show(found, cell_names.read(plugin))
        return 1 if differing else 0

    def _show(self, found: Mapping[str, Mapping[str, Any]], names: cell_names.CellNames) -> None:
        every = [
            (scope, name, comparison)
            for scope, by_table in found.items()
            for name, comparison in by_table.items()
        ]
        counts = {
            "missed": sum(each.missed_count for *_, each in every),
            "stale": sum(each.stale_count for *_, each in every),
            "extra": sum(each.extra_count for *_, each in every),
        }
        compared = f"{sum(each.compared for *_, each in every)} rows of {len(found)} cells"
        settled = sum(each.settled_count for *_, each in every)
        if any(counts.values()):
            told = ", ".join(f"{count} {name}" for name, count in counts.items())
            self.print_line(f"They differ: {told}, in {compared}.")
        else:
            self.print_line(
                f"They agree, in {compared}"
                + (f"; {settled} were being written, and settled." if settled else ".")
            )
        self.print_table(
            "Records against Nova's tables",
            (
                *("cell", "namespace", "compared", "missed", "stale", "extra", "refused"),
                *("settled", "stale fields"),
                *terminal.wide("uuid"),
            ),
            (
                (
                    names.shown(scope),
                    name,
                    comparison.compared,
                    comparison.missed_count,
                    comparison.stale_count,
                    comparison.extra_count,
                    comparison.refused_count,
                    comparison.settled_count,
                    ", ".join(f"{f} {n}" for f, n in comparison.stale_by_field.items()),
                    scope,
                )
                for scope, name, comparison in every
            ),
        )
        self.print_table(
            "By name, the first 100 of each kind",
            ("cell", "namespace", "what", "record", "fields"),
            (
                (names.shown(scope), name, *row)
                for scope, name, comparison in every
                for row in comparison.rows()
            ),
        )


CONNECTION = "NODB_PLACEMENT_CONNECTION"
_MOST_TREES = 10_000


class MirrorImport(command.Command):
    """Fill the mirror of Placement out of Placement's own database.

    Without it the schedulers fill the mirror by four requests to Placement a
    host. Safe to repeat at any time, and beside schedulers: a record that is
    newer stays. A scheduler compares all with one listing of Placement
    afterwards, and reads what differs, before any trusts the mirror.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add where Placement's database is."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--placement-connection",
            metavar="URL",
            help="SQLAlchemy URL of Placement's database, as [placement_database] connection "
            "in placement.conf; an account that may only read is enough. Anybody on this host "
            f"sees it in the list of processes: with a password, give it in the variable "
            f"{CONNECTION} instead",
        )
        parser.add_argument(
            "--page",
            type=number_arguments.within(int, 1, _MOST_TREES),
            default=1000,
            metavar="N",
            help="provider trees read in one transaction and published at once, at most "
            f"{_MOST_TREES}; lower it where memory is short or trees are large (default: 1000)",
        )
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Import with a progress bar."""
        from nova_nodb_scheduler.nova_adapter.placement.mirror import bulk_import

        url = args.placement_connection or os.environ.get(CONNECTION)
        if not url:
            raise errors.ConfigurationError(
                "--placement-connection",
                "",
                f"give it, or the environment variable {CONNECTION}: the URL of Placement's "
                "database",
            )
        plugin = self.plugin()
        database = bulk_import.PlacementDatabase.at(url)
        reaching.placement_database(database)
        reaching.backend(plugin.make_synchronizer)
        try:
            trees = database.count()
            synchronizer = plugin.make_synchronizer()
            synchronizer.open()
            try:
                result = self._fill(plugin, synchronizer, database, trees, args)
            finally:
                synchronizer.close()
        finally:
            database.close()
        self._show(result, args.json)
        return 1 if result.refused else 0

    def _fill(
        self, plugin: Any, synchronizer: Any, database: Any, trees: int, args: argparse.Namespace
    ) -> Any:
        from nova_nodb_scheduler.nova_adapter.placement.mirror import bulk_import
        from nova_nodb_scheduler.scheduling.namespaces import known_namespaces

        with self.progress("trees", quiet=args.json) as bars:
            bar = bars.add_task("placement", total=trees)
            return bulk_import.fill(
                database,
                synchronizer,
                plugin.publisher(synchronizer, known_namespaces.PLACEMENT),
                args.page,
                lambda done: bars.update(bar, completed=done),
            )

    def _show(self, result: Any, as_json: bool) -> None:
        if as_json:
            self.print_json(attrs.asdict(result))
            return
        self.print_line(
            f"{result.refused} records could not be written."
            if result.refused
            else f"The mirror holds {result.providers} providers of {result.trees} trees; "
            f"{result.written} records were written."
        )
        facts = {
            "provider trees": result.trees,
            "providers": result.providers,
            "written": result.written,
            "unchanged": result.unchanged,
            "newer in the mirror": result.newer,
            "not usable": result.broken,
            "refused": result.refused,
            "seconds": f"{result.seconds:.1f}",
        }
        self.print_facts("Mirror of Placement", facts)
