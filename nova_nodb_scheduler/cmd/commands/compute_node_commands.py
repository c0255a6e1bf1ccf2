# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage compute-nodes: have records answer for a cell's nodes, with the table away."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import rich.progress

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bounded, command, guard, reaching, terminal
from nova_nodb_scheduler.cmd.overview import cell_names, node_cells, process_reports

if TYPE_CHECKING:
    from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import (
        node_transfer,
        transfer_refusals,
    )

#: Beats that a service may miss before it is taken for stopped.
_MISSED_BEATS = 3


class _CellCommand(command.Command):
    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the choice of cells."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--cell",
            action="append",
            default=[],
            metavar="UUID",
            help="uuid of a cell; may be given several times (default: all but cell0)",
        )
        return parser

    def cells(self, plugin: Any, args: argparse.Namespace) -> list[str]:
        """Return the cells to work on.

        :raises ConfigurationError: there is no such cell
        """
        from nova import objects

        known = reaching.cells(plugin)
        for cell in args.cell:
            if cell not in known:
                raise errors.ConfigurationError("--cell", cell, f"choose one of {', '.join(known)}")
        return args.cell or [each for each in known if each != objects.CellMapping.CELL0_UUID]


class NodesStatus(_CellCommand):
    """Show who answers for each cell's compute nodes: Nova's table, or records.

    Status 1 where something is not as it should be: the configuration names
    another mode, the table is half-way, records cannot be read.
    """

    def execute(self, args: argparse.Namespace) -> int:
        """Read back end and databases, and show them."""
        plugin = self.plugin()
        cells = self.cells(plugin, args)
        with reaching.opened(plugin.make_synchronizer) as synchronizer:
            found = node_cells.gather(
                synchronizer, plugin.scopes, cells, node_cells.configured_mode(plugin)
            )
        told = [each.text for each in node_cells.problems(found)]
        names = cell_names.read(plugin)
        if args.json:
            self.print_json(
                {
                    "cells": [
                        {**each.as_dict(), "cell_name": names.name(each.cell)} for each in found
                    ],
                    "healthy": not told,
                }
            )
        else:
            self._show(found, told, names)
        return 1 if told else 0

    def _show(
        self, found: Sequence[node_cells.NodeCell], told: Sequence[str], names: cell_names.CellNames
    ) -> None:
        if told:
            self.print_line("Something is to be done:")
            for text in told:
                self.print_line(f"* {names.in_text(text)}")
        else:
            modes = sorted({each.state.mode.value for each in found if each.state})
            self.print_line(
                f"All is as it should be in {terminal.counted(len(found), 'cell')}: "
                f"{', '.join(modes)}."
            )
        self.print_table(
            "Compute nodes",
            (
                *("cell", "mode", "configured", "live", "deleted", "table", "its rows"),
                *("next id", "key"),
                *terminal.wide("uuid"),
            ),
            (self._row(each, names) for each in found),
        )

    def _row(self, each: node_cells.NodeCell, names: cell_names.CellNames) -> Iterator[object]:
        state = each.state
        yield names.shown(each.cell)
        yield state.mode.value if state else "not known"
        yield each.configured.value
        yield state.live if state else None
        yield state.deleted if state else None
        yield state.place.value if state else None
        yield state.table_rows if state else None
        yield state.next_id if state else None
        yield ("stands" if state.key else "none") if state else None
        yield each.cell


@attrs.frozen
class CellOutcome:
    """What became of one cell.

    :param steps: what was done, or with ``--dry-run`` is left to do, and what came of it
    :param refusals: what keeps it from being begun
    """

    cell: str
    steps: tuple[tuple[str, node_transfer.TransferOutcome | None], ...]
    refusals: tuple[transfer_refusals.Refusal, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "cell": self.cell,
            "steps": [
                {
                    "step": step,
                    "outcome": outcome.text if outcome else None,
                    "file": str(outcome.file) if outcome and outcome.file else None,
                }
                for step, outcome in self.steps
            ],
            "refusals": [attrs.asdict(each) for each in self.refusals],
        }


class _WayCommand(_CellCommand):
    """A command that changes cells whose services are stopped: all of them, or none is begun."""

    #: Whether a store that is not there is made.
    makes = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add --dry-run."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="print what would be done and what is in the way, and change nothing",
        )
        return parser

    def way(
        self, transfer: node_transfer.NodeTransfer, context: Any, cell: str, args: Any
    ) -> node_transfer.Way:
        """Return the way of one cell."""
        raise NotImplementedError

    def what_next(self, args: argparse.Namespace) -> str:
        """Return what an operator does when all is done."""
        raise NotImplementedError

    def check(self, plugin: Any, args: argparse.Namespace) -> None:
        """Refuse what no cell can do, before any is looked at; may complete the arguments."""

    def execute(self, args: argparse.Namespace) -> int:
        """Find out what is in the way of any cell, then go."""
        from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import node_transfer

        plugin = self.plugin()
        cells = self.cells(plugin, args)
        for cell, reason in reaching.silent_databases(plugin, cells).items():
            raise errors.NotReached(
                f"The database of cell {cell}", reason, "Mend it, or name other cells with --cell"
            )
        names = cell_names.read(plugin)
        self.check(plugin, args)
        makes = self.makes and not args.dry_run
        with reaching.opened(plugin.make_synchronizer, makes=makes) as synchronizer:
            transfer = node_transfer.NodeTransfer(synchronizer)
            ways = [
                self.way(transfer, plugin.scopes.context_for(cell), cell, args) for cell in cells
            ]
            alive = living_services(plugin, cells) if any(way.left() for way in ways) else []
            is_refused = bool(alive) or any(way.refusals for way in ways)
            if args.dry_run or is_refused:
                outcomes = [
                    CellOutcome(way.cell, tuple((step, None) for step in way.left()), way.refusals)
                    for way in ways
                ]
            else:
                outcomes = self._go(ways, names, args)
        self._show(outcomes, alive, names, args)
        return 1 if is_refused else 0

    def _go(
        self,
        ways: Iterable[node_transfer.Way],
        names: cell_names.CellNames,
        args: argparse.Namespace,
    ) -> list[CellOutcome]:
        outcomes = []
        with self.progress("steps", quiet=args.json) as bars:
            for way in ways:
                left = way.left()
                steps: list[tuple[str, node_transfer.TransferOutcome | None]] = []
                if left:
                    bar = bars.add_task(str(names.shown(way.cell)), total=len(left))
                    with _named(way.cell):
                        way.go(functools.partial(_note, bars, bar, steps))
                outcomes.append(CellOutcome(way.cell, tuple(steps), ()))
        return outcomes

    def _show(
        self,
        outcomes: Sequence[CellOutcome],
        alive: Sequence[transfer_refusals.Refusal],
        names: cell_names.CellNames,
        args: argparse.Namespace,
    ) -> None:
        refusals = [(None, each) for each in alive] + [
            (outcome.cell, each) for outcome in outcomes for each in outcome.refusals
        ]
        if args.json:
            self.print_json(
                {
                    "changed": not (args.dry_run or refusals) and any(o.steps for o in outcomes),
                    "refusals": [attrs.asdict(each) for each in alive],
                    "cells": [
                        {**each.as_dict(), "cell_name": names.name(each.cell)} for each in outcomes
                    ],
                }
            )
            return
        if refusals:
            self.print_line("Nothing was changed. First:")
            for cell, each in refusals:
                where = f"{names.shown(cell)}: " if cell else ""
                self.print_line(f"* {where}{each}")
        elif not any(each.steps for each in outcomes):
            self.print_line("There is nothing to do.")
        elif args.dry_run:
            self.print_line("Nothing was changed, and nothing is in the way.")
        else:
            changed = terminal.counted(sum(bool(each.steps) for each in outcomes), "cell")
            self.print_line(f"Done for {changed}. {self.what_next(args)}")
        self.print_table(
            "Steps to do" if args.dry_run or refusals else "Steps",
            ("cell", "step", "outcome"),
            (
                (names.shown(each.cell), step, outcome.text if outcome else None)
                for each in outcomes
                for step, outcome in each.steps
            ),
        )
        files = [
            (names.shown(each.cell), outcome.file)
            for each in outcomes
            for _step, outcome in each.steps
            if outcome and outcome.file
        ]
        if files:
            self.print_table(
                f"Files in {files[0][1].parent}",
                ("cell", "file"),
                ((cell, file.name) for cell, file in files),
            )


class WayInterrupted(errors.NodbError):
    """A cell was left between two modes.

    :param cell: uuid of the cell
    :param reason: what was in the way
    """

    def __init__(self, cell: str, reason: str) -> None:
        super().__init__(cell, reason)
        self.cell, self.reason = cell, reason

    def __str__(self) -> str:
        return (
            f"Cell {self.cell} was left half-way: {self.reason}. Mend that and call the same "
            "command again, which goes on, or the one that goes back; until one of them has ended "
            "no service may run"
        )


@contextlib.contextmanager
def _named(cell: str) -> Iterator[None]:
    """Have an error say whose way it ended, and that it goes on."""
    from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes
    from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import transfer_refusals

    try:
        yield
    except cell_modes.TurnTaken:
        # Nothing is to be mended: the other goes on.
        raise
    except transfer_refusals.TransferRefused as error:
        # Found out on the way, not before it.
        raise WayInterrupted(cell, " ".join(error.refusals).rstrip(".")) from error
    except Exception as error:
        told = str(error) if isinstance(error, errors.NodbError) else guard.said(error)
        raise WayInterrupted(cell, told.rstrip(".")) from error


def _note(
    bars: rich.progress.Progress,
    bar: rich.progress.TaskID,
    steps: list[tuple[str, node_transfer.TransferOutcome | None]],
    step: node_transfer.TransferStep,
    outcome: node_transfer.TransferOutcome | None,
) -> None:
    """Note a step that was done, and show it."""
    steps.append((step.title, outcome))
    bars.update(bar, advance=1)


class Retire(_WayCommand):
    """Have records answer for compute nodes, and take Nova's table away.

    For each cell: make records of all rows, drop the foreign key of pci_devices,
    rename the table to shadow_nodb_compute_nodes, export its rows to a file, empty
    it. nova-api, nova-scheduler and nova-conductor must be stopped everywhere;
    nova-compute waits for them, and servers run on. What is in the way is said before
    anything changes. Interrupted, the same command goes on; 'restore' goes back.
    """

    makes = True

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add what becomes of the table."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--keep-table",
            action="store_true",
            help="leave the table in its place, to be written behind the records: mode store",
        )
        _add_directory(parser, "--export-to", "where the rows of the table are exported")
        return parser

    def what_next(self, args: argparse.Namespace) -> str:
        """Have the new mode configured."""
        mode = "store" if args.keep_table else "retired"
        return (
            f"Now set [nodb_scheduler] compute_nodes = {mode} on every service of the control "
            "plane, and start them."
        )

    def check(self, plugin: Any, args: argparse.Namespace) -> None:
        """Refuse a back end that may not answer for compute nodes, and a directory that is none."""
        from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes
        from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import node_serving

        mode = cell_modes.NodeMode.STORE if args.keep_table else cell_modes.NodeMode.RETIRED
        urls = [plugin.scopes.mapping(cell).database_connection for cell in reaching.cells(plugin)]
        node_serving.refuse_unfit(mode, plugin.make_synchronizer(), urls)
        args.export_to = _directory(plugin, args.export_to, "--export-to")

    def way(
        self, transfer: node_transfer.NodeTransfer, context: Any, cell: str, args: Any
    ) -> node_transfer.Way:
        """Return the way there."""
        from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import node_serving

        comparison = node_serving.comparison_of(context)
        return transfer.there(context, cell, comparison, args.export_to, keep_table=args.keep_table)


class Restore(_WayCommand):
    """Have Nova's table hold all compute nodes again, with their ids, and have it count.

    nova-api, nova-scheduler and nova-conductor must be stopped everywhere. What is in
    the way is said before anything changes. Interrupted, the same command goes on.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add a file for a back end that lost its records."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--from",
            dest="file",
            metavar="FILE",
            help="a file that 'retire' or 'export' wrote, for the one cell named with --cell: "
            "for a back end that lost its records while the table was away",
        )
        return parser

    def what_next(self, args: argparse.Namespace) -> str:
        """Have the new mode configured."""
        return (
            "Now set [nodb_scheduler] compute_nodes = mirror on every service of the control "
            "plane, or remove the plugin, and start them."
        )

    def check(self, plugin: Any, args: argparse.Namespace) -> None:
        """Refuse a file that is for nobody."""
        from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import row_file

        if args.file is None:
            return
        if len(args.cell) != 1:
            raise errors.ConfigurationError(
                "--from", args.file, "name the one cell it is for with --cell"
            )
        if not os.path.isfile(args.file):
            raise errors.ConfigurationError("--from", args.file, "there is no such file")
        if row_file.is_of_other(pathlib.Path(args.file), args.cell[0]):
            raise errors.ConfigurationError(
                "--from", args.file, f"by its name it is of another cell than {args.cell[0]}"
            )

    def way(
        self, transfer: node_transfer.NodeTransfer, context: Any, cell: str, args: Any
    ) -> node_transfer.Way:
        """Return the way back."""
        from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import row_file

        lost = None if args.file is None else list(row_file.read(pathlib.Path(args.file)))
        return transfer.back(context, cell, lost=lost)


class PrepareUpgrade(_WayCommand):
    """Have the empty table there for 'nova-manage db sync' of a new release of Nova.

    Migrations of Nova's may change the table, and would fail without it. All services
    stay stopped until 'compute-nodes retire' has taken it away again: an empty table
    says that there are no compute nodes.
    """

    def what_next(self, args: argparse.Namespace) -> str:
        """Have the table changed and taken away again."""
        return (
            "Now run 'nova-manage db sync', then 'nova-nodb-manage compute-nodes retire', and "
            "only then start services."
        )

    def way(
        self, transfer: node_transfer.NodeTransfer, context: Any, cell: str, args: Any
    ) -> node_transfer.Way:
        """Return the way to an empty table in its place."""
        return transfer.prepared(context, cell)


class Export(_CellCommand):
    """Write the compute nodes that count to files, one a cell: live rows and deleted ones.

    Safe at any time, beside services. Keep such files beside backups of Nova's
    databases: in mode retired those hold no compute nodes.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add where to."""
        parser = super().get_parser(prog_name)
        _add_directory(parser, "--to", "where the files are written")
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Write a file for each cell."""
        from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import node_transfer

        plugin = self.plugin()
        cells = self.cells(plugin, args)
        directory = _directory(plugin, args.to, "--to")
        written = []
        with reaching.opened(plugin.make_synchronizer) as synchronizer:
            transfer = node_transfer.NodeTransfer(synchronizer)
            for cell in cells:
                context = plugin.scopes.context_for(cell)
                written.append((cell, *transfer.export(context, cell, directory)))
        if args.json:
            self.print_json(
                [{"cell": cell, "file": str(path), "rows": rows} for cell, path, rows in written]
            )
            return 0
        names = cell_names.read(plugin)
        every = terminal.counted(sum(rows for _cell, _path, rows in written), "row")
        self.print_line(f"{every} written to {terminal.counted(len(written), 'file')}.")
        self.print_table(
            f"Files in {directory}",
            ("cell", "file", *terminal.wide("rows")),
            ((names.shown(cell), path.name, rows) for cell, path, rows in written),
        )
        return 0


def living_services(plugin: Any, cells: Iterable[str]) -> list[transfer_refusals.Refusal]:
    """Say who was heard of lately and would go on reading or writing the table.

    Processes with the plugin report to the back end; those without it to Nova's databases.

    :raises NotReached: that is not known
    """
    from nova import objects

    from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import transfer_refusals

    deadline = bounded.Deadline()
    backend = process_reports.read_backend_within(plugin.make_synchronizer, deadline)
    if backend.error is not None:
        raise errors.NotReached(
            "The synchronizer's back end", backend.error, "Check that it runs, and come again"
        )
    bound_seconds = float(plugin.options.reporter_bound_seconds)
    beats: list[Mapping[str, Any]] = [*backend.reporters.values(), *backend.schedulers.values()]
    named = [
        f"{_program(beat)} on {beat.get('host')} (process {beat.get('pid')}), {age:.0f} s ago"
        for beat in beats
        if (age := backend.age_seconds(beat)) <= bound_seconds
    ]
    # Who lives says the whole anew, so that one that is odd by a hand's work is not for long.
    named += [
        f"who wrote record {name}, which is odd"
        for name in backend.unread_within(bound_seconds)
        if backend.unread_beats[name]
    ]
    if named:
        return transfer_refusals.living(named, bound_seconds)
    silent_seconds = float(_MISSED_BEATS * plugin.conf.report_interval)
    found: list[transfer_refusals.Refusal] = []
    # The super conductor stands in cell0.
    for cell in sorted({*cells, objects.CellMapping.CELL0_UUID} & set(reaching.cells(plugin))):
        context = plugin.scopes.context_for(cell)
        found += transfer_refusals.of_services(context, silent_seconds)
    return found


def _program(beat: Mapping[str, Any]) -> str:
    return f"nova-{beat.get('binary') or 'scheduler'}"


def _add_directory(parser: argparse.ArgumentParser, option: str, what: str) -> None:
    parser.add_argument(
        option,
        metavar="DIRECTORY",
        help=f"{what} (default: [DEFAULT] state_path of nova.conf)",
    )


def _directory(plugin: Any, name: str | None, option: str) -> pathlib.Path:
    """Return a directory that this user may write.

    :raises ConfigurationError: it is none
    """
    path = pathlib.Path(name or str(plugin.conf.state_path))
    if not path.is_dir() or not os.access(path, os.W_OK):
        raise errors.ConfigurationError(
            option, str(path), "name a directory that this user may write"
        )
    return path
