# SPDX-License-Identifier: Apache-2.0
"""What the plugin's commands share: configuration, tables for people, JSON for machines."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import rich.console
import rich.table
from cliff import command

from nova_nodb_scheduler.cmd import configuration, guard


class _Paragraphs(argparse.HelpFormatter):
    """Fills each paragraph of a description by itself; indented lines stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            textwrap.indent(part, indent)
            if part.startswith(" ")
            else super(_Paragraphs, self)._fill_text(part, width, indent)
            for part in inspect.cleandoc(text).split("\n\n")
        )


class Command(command.Command):  # type: ignore[misc]
    """A command that prints a table, or with ``--json`` one JSON document.

    A subclass implements :meth:`execute`, which returns the exit status.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add ``--json``."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        former: Any = parser.formatter_class
        formatter: Any = type("Formatter", (_Paragraphs, former), {})
        parser.formatter_class = formatter
        parser.add_argument(
            "--json", action="store_true", help="print one JSON document instead of tables"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; an error is one line and a status of its own, see :mod:`.guard`."""
        #: Tables go to standard output, progress to standard error.
        self.console = rich.console.Console(
            # A pipe has no width; eighty columns would fold every uuid.
            width=None if sys.stdout.isatty() else 160
        )
        self.progress_console = rich.console.Console(stderr=True)
        return guard.caught(
            str(self.cmd_name), lambda: self.execute(parsed_args), debug=self.is_debugged
        )

    @property
    def is_debugged(self) -> bool:
        """Whether ``--debug`` was given to the program."""
        return bool(getattr(self.app_args, "debug", False))

    def execute(self, args: argparse.Namespace) -> int:
        """Do what the command does."""
        raise NotImplementedError

    def plugin(self) -> Any:
        """Return the plugin, assembled from Nova's configuration."""
        return configuration.load(
            "nova-nodb-manage",
            self.app_args.config_file,
            self.app_args.config_dir,
            debug=self.is_debugged or self.app_args.verbose_level > 1,
        )

    def print_json(self, document: object) -> None:
        """Print a document for machines."""
        print(json.dumps(document, indent=2, sort_keys=True, default=str))

    def print_table(
        self, title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]
    ) -> None:
        """Print a table for people."""
        table = rich.table.Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*("" if cell is None else str(cell) for cell in row))
        self.console.print(table)

    def print_facts(self, title: str, facts: Mapping[str, object]) -> None:
        """Print names and values."""
        self.print_table(title, ("", ""), facts.items())
