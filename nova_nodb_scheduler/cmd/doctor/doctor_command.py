# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage doctor: looks, without the bus and without loading the plugin."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Collection, Sequence
from typing import Any

from nova_nodb_scheduler.cmd.doctor import configuration_files, findings, process_checks, sql_server
from nova_nodb_scheduler.cmd.framework import (
    command,
    configuration,
    number_arguments,
    terminal,
)
from nova_nodb_scheduler.cmd.overview import cell_names, deployment

#: For all that is looked at, side by side.
BOUND_SECONDS = 7.0

#: The upgrade check that reads the cell mappings.
_CELLS = "Cells"

_SHOWN = {
    findings.Severity.ERROR: "ERROR",
    findings.Severity.WARNING: "warning",
    findings.Severity.UNKNOWN: "unknown",
    findings.Severity.OK: "ok",
}


class Doctor(command.Command):
    """Look for what should be mended: configuration, back end, processes, Placement.

    The message bus is not needed, and the plugin is not loaded, so that it can tell why that
    would fail. It includes what 'nova-nodb-status upgrade check' looks at, but does not ask
    schedulers; nothing is written. Each finding stands with its remedy.

    Exit status: 0 if nothing is to be mended; 1 for warnings, and where something could not be
    found out; 2 for errors.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add where Placement's configuration is."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            configuration_files.OPTION,
            metavar="FILE",
            help="Placement's configuration, to see how often it repeats allocations (default: "
            f"{configuration_files.DEFAULT_PATH}, if that is there)",
        )
        parser.add_argument(
            "--timeout",
            type=number_arguments.within(float, 0, 3600, above=True),
            default=BOUND_SECONDS,
            metavar="SECONDS",
            help="longest wait for all that is looked at; what has not answered by then could not "
            "be found out (default: %(default)s)",
        )
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Look, and print."""
        conf = self.configuration()
        found = findings.in_order(look(conf, args.placement_config, args.timeout))
        status = findings.exit_status(found)
        if args.json:
            self.print_json({"status": status, "findings": [each.as_dict() for each in found]})
        else:
            # Where cells could not be looked at, the database of their names is away.
            asks = not any(
                each.area == _CELLS and each.severity is findings.Severity.UNKNOWN for each in found
            )
            names = cell_names.of_configuration(conf) if asks else cell_names.CellNames()
            show(self, found, names)
        return status

    def configuration(self) -> Any:
        """Return Nova's configuration, parsed; the plugin is not loaded."""
        return configuration.parse(
            "nova-nodb-manage",
            self.app_args.config_file,
            self.app_args.config_dir,
            verbose=self.is_verbose,
        )


def look(
    conf: Any, placement_config: str | None, bound_seconds: float = BOUND_SECONDS
) -> list[findings.DoctorFinding]:
    """Look at everything, side by side.

    :param conf: Nova's configuration, with the plugin's options registered
    """
    from nova_nodb_scheduler.cmd.doctor import upgrade_findings
    from nova_nodb_scheduler.conf import nodb

    options = conf[nodb.GROUP]
    # Before the others: it tells what they would print.
    first = findings.run(
        [(configuration_files.SPELLING, lambda: configuration_files.spelling(conf))], 5.0
    )
    if not conf.config_file and not conf.config_dir:
        first.append(
            findings.error(
                "Configuration of Nova",
                "No nova.conf was found: all options have their defaults.",
                "Name it with --config-file, before the command.",
            )
        )
    checks = upgrade_findings.DoctorUpgradeChecks()

    def found() -> deployment.Deployment:
        read: deployment.Deployment = checks.found
        if read.backend.error is not None:
            raise findings.NotKnown(findings.NO_BACKEND)
        return read

    def own_clock() -> Sequence[findings.DoctorFinding]:
        offset = process_checks.own_offset_seconds(checks.plugin.make_synchronizer())
        return process_checks.clocks(found(), offset)

    def hosts() -> Collection[str]:
        try:
            return process_checks.hosts(found())
        except findings.NotKnown:
            return ()

    def counts() -> dict[str, int]:
        try:
            return process_checks.counts(found())
        except findings.NotKnown:
            return {}

    partial = functools.partial
    return first + findings.run(
        [
            *((name, partial(upgrade_findings.of, checks, check)) for name, check in checks.all()),
            (configuration_files.TLS, lambda: configuration_files.tls(conf, options)),
            (
                configuration_files.SQLITE,
                lambda: configuration_files.sqlite_place(conf, options, hosts),
            ),
            (sql_server.RIGHTS, lambda: sql_server.rights(conf, options)),
            (
                sql_server.CONNECTIONS,
                lambda: sql_server.connections(conf, options, counts()),
            ),
            (process_checks.CLOCKS, own_clock),
            (process_checks.WORKERS, lambda: process_checks.workers(found(), str(conf.host))),
            (
                configuration_files.RETRIES,
                lambda: configuration_files.placement_retries(placement_config),
            ),
        ],
        bound_seconds,
    )


def show(
    printer: command.Command, found: Sequence[findings.DoctorFinding], names: cell_names.CellNames
) -> None:
    """Print the verdict, then what was found, the worst first."""
    counted = {
        severity: sum(each.severity is severity for each in found) for severity in findings.Severity
    }
    bad = [
        terminal.counted(counted[severity], severity.value)
        for severity in (findings.Severity.ERROR, findings.Severity.WARNING)
        if counted[severity]
    ]
    if counted[findings.Severity.UNKNOWN]:
        bad.append(f"{counted[findings.Severity.UNKNOWN]} could not be found out")
    printer.print_line(
        f"{', '.join(bad)}; {counted[findings.Severity.OK]} are well."
        if bad
        else f"Nothing is to be mended: {len(found)} findings are well."
    )
    printer.print_table(
        "Findings",
        (terminal.TableColumn("severity", whole=True), "what", "finding and remedy"),
        (
            (
                _SHOWN[each.severity],
                each.area,
                names.in_text(f"{each.text}\n-> {each.remedy}" if each.remedy else each.text),
            )
            for each in found
        ),
    )
