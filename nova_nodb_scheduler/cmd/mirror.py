# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage mirror import: Placement's mirror, filled out of Placement's database."""

from __future__ import annotations

import argparse
import os
from typing import Any

import rich.progress

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import command, reaching

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
            type=_page,
            default=1000,
            metavar="N",
            help="provider trees read in one transaction and published at once, at most "
            f"{_MOST_TREES}; lower it where memory is short or trees are large (default: 1000)",
        )
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Import with a progress bar."""
        from nova_nodb_scheduler.nova_adapter.placement import bulk

        url = args.placement_connection or os.environ.get(CONNECTION)
        if not url:
            raise errors.ConfigurationError(
                "--placement-connection",
                "",
                f"give it, or the environment variable {CONNECTION}: the URL of Placement's "
                "database",
            )
        plugin = self.plugin()
        database = bulk.Database.at(url)
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
        from nova_nodb_scheduler.nova_adapter.placement import bulk_import
        from nova_nodb_scheduler.scheduling import namespaces

        with rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.completed} of {task.total} trees"),
            rich.progress.TimeElapsedColumn(),
            console=self.progress_console,
            disable=args.json,
        ) as bars:
            bar = bars.add_task("placement", total=trees)
            return bulk_import.fill(
                database,
                synchronizer,
                plugin.publisher(synchronizer, namespaces.PLACEMENT),
                args.page,
                lambda done: bars.update(bar, completed=done),
            )

    def _show(self, result: Any, as_json: bool) -> None:
        if as_json:
            self.print_json(result.as_dict())
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


def _page(text: str) -> int:
    number = int(text)
    if not 1 <= number <= _MOST_TREES:
        raise argparse.ArgumentTypeError(f"{number} is not from 1 to {_MOST_TREES}")
    return number
