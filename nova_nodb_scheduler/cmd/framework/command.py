# SPDX-License-Identifier: Apache-2.0
"""What the plugin's commands share: configuration, tables for people, JSON for machines."""

from __future__ import annotations

import argparse
import inspect
import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import rich.console
import rich.progress
from cliff import command

from nova_nodb_scheduler.cmd.framework import configuration, guard, terminal


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
    """A command that prints a verdict and tables, or with ``--json`` one JSON document.

    A subclass implements :meth:`execute`, which returns the exit status.
    """

    #: Whether all columns are shown, as wide as they are.
    wide = False

    def get_epilog(self) -> str:
        """Return what stands below the help.

        cliff's own would say whose plugin a command is. For that it reads the metadata
        of everything installed at each call, whether help is asked for or not: with an
        OpenStack's libraries that was 0.1 s of a processor, a third of a short command.
        """
        told = [each.obj.get_epilog() for each in self._hooks if each.obj is not None]
        return "\n\n".join([self._epilog or "", *(text for text in told if text is not None)])

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add ``--json`` and ``--wide``."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        former: Any = parser.formatter_class
        formatter: Any = type("Formatter", (_Paragraphs, former), {})
        parser.formatter_class = formatter
        look = parser.add_mutually_exclusive_group()
        look.add_argument(
            "--json", action="store_true", help="print one JSON document instead of tables"
        )
        look.add_argument(
            "--wide",
            action="store_true",
            help="print all columns, as wide as they are (default: what fits 80 columns, or the "
            "terminal)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; an error is one line and a status of its own, see :mod:`.guard`."""
        #: Tables go to standard output, progress to standard error.
        self.wide = parsed_args.wide
        self.console = terminal.console(everything=self.wide)
        self.progress_console = rich.console.Console(stderr=True)
        return guard.caught(
            str(self.cmd_name), lambda: self.execute(parsed_args), debug=self.is_debugged
        )

    @property
    def is_debugged(self) -> bool:
        """Whether ``--debug`` was given to the program."""
        return bool(getattr(self.app_args, "debug", False))

    @property
    def is_verbose(self) -> bool:
        """Whether libraries' loggers may write to standard error, too."""
        return self.is_debugged or self.app_args.verbose_level > 0

    def execute(self, args: argparse.Namespace) -> int:
        """Do what the command does."""
        raise NotImplementedError

    def plugin(self) -> Any:
        """Return the plugin, assembled from Nova's configuration."""
        return configuration.load(
            "nova-nodb-manage",
            self.app_args.config_file,
            self.app_args.config_dir,
            verbose=self.is_verbose,
        )

    def progress(self, unit: str, *, quiet: bool) -> rich.progress.Progress:
        """Return bars on standard error, which count in a unit.

        :param quiet: none is shown
        """
        return rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.completed} of {task.total} " + unit),
            rich.progress.TimeElapsedColumn(),
            console=self.progress_console,
            disable=quiet,
        )

    def print_json(self, document: object) -> None:
        """Print a document for machines."""
        print(json.dumps(document, indent=2, sort_keys=True, default=str))

    def print_line(self, text: str) -> None:
        """Print a sentence; a command's first is its verdict."""
        self.console.print(terminal.shown(text))

    def print_table(
        self,
        title: str,
        columns: Iterable[str | terminal.TableColumn],
        rows: Iterable[Iterable[object]],
    ) -> None:
        """Print a table for people; nothing where it has no row."""
        table, left_out = terminal.table(
            columns, rows, width=self.console.width, everything=self.wide
        )
        if table is None:
            return
        self.console.print(f"\n{title}" + (" (--wide shows more)" if left_out else ""))
        self.console.print(table)

    def print_facts(self, title: str, facts: Mapping[str, object]) -> None:
        """Print names and values."""
        self.console.print(f"\n{title}")
        self.console.print(terminal.facts(facts))
