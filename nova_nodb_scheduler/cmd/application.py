# SPDX-License-Identifier: Apache-2.0
"""The application behind nova-nodb-manage: global options and the list of commands."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence

from cliff import app, commandmanager

from nova_nodb_scheduler.cmd.commands import (
    allocations_audit,
    compute_node_commands,
    database_schema,
    explain_command,
    host_commands,
    import_commands,
    queue_commands,
    status_command,
    synchronizer_commands,
)
from nova_nodb_scheduler.cmd.doctor import doctor_command as doctor
from nova_nodb_scheduler.cmd.framework import guard

PROGRAM = "nova-nodb-manage"

_COMMANDS = {
    "db sync": database_schema.Sync,
    "db version": database_schema.Version,
    "db check": database_schema.Check,
    "import": import_commands.Import,
    "compare": import_commands.Compare,
    "mirror import": import_commands.MirrorImport,
    "allocations audit": allocations_audit.AllocationsAudit,
    "status": status_command.Status,
    "doctor": doctor.Doctor,
    "host list": host_commands.HostList,
    "host show": host_commands.HostShow,
    "namespace list": host_commands.NamespaceList,
    "explain": explain_command.Explain,
    "queue list": queue_commands.QueueList,
    "queue show": queue_commands.QueueShow,
    "queue cancel": queue_commands.QueueCancel,
    "queue promote": queue_commands.QueuePromote,
    "queue drain": queue_commands.QueueDrain,
    "queue new-key": queue_commands.QueueNewKey,
    "compute-nodes status": compute_node_commands.NodesStatus,
    "compute-nodes retire": compute_node_commands.Retire,
    "compute-nodes restore": compute_node_commands.Restore,
    "compute-nodes export": compute_node_commands.Export,
    "compute-nodes prepare-upgrade": compute_node_commands.PrepareUpgrade,
    "synchronizer move": synchronizer_commands.SynchronizerMove,
    "synchronizer new-epoch": synchronizer_commands.NewEpoch,
}


class ManageApp(app.App):  # type: ignore[misc]
    """Global options and the list of commands."""

    #: Warnings only: -v shows what libraries say.
    DEFAULT_VERBOSE_LEVEL = 0

    def __init__(self) -> None:
        manager = commandmanager.CommandManager(PROGRAM)
        for name, command in _COMMANDS.items():
            manager.add_command(name, command)
        super().__init__(
            description="Manage the nodb scheduler: its schema, its states, its health.",
            version=_version(),
            command_manager=manager,
            deferred_help=True,
        )

    def build_option_parser(self, description: str, version: str) -> object:
        """Add the options that every OpenStack command has."""
        parser = super().build_option_parser(description, version)
        parser.add_argument(
            "--config-file",
            action="append",
            default=[],
            help="a configuration file of Nova; may be given several times "
            "(default: /etc/nova/nova.conf)",
        )
        parser.add_argument(
            "--config-dir",
            action="append",
            default=[],
            help="a directory of configuration files; may be given several times",
        )
        return parser

    def run_subcommand(self, argv: list[str]) -> int:
        """Run it; one that is interrupted before it begins says so, too."""
        try:
            return int(super().run_subcommand(argv))
        except KeyboardInterrupt:
            guard.say(f"{PROGRAM}: interrupted")
            return guard.INTERRUPTED


def _version() -> str:
    return importlib.metadata.version("nova-nodb-scheduler")


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    return int(ManageApp().run(list(sys.argv[1:] if argv is None else argv)))
