# SPDX-License-Identifier: Apache-2.0
"""What the commands that ask schedulers over RPC share."""

from __future__ import annotations

import argparse
from typing import Any

from nova_nodb_scheduler.cmd import command


class AskingCommand(command.Command):
    """A command with ``--timeout`` that gets a client of the RPC API."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add ``--timeout``."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--timeout",
            type=float,
            default=5.0,
            metavar="SECONDS",
            help="how long to wait for a scheduler's answer (default: %(default)s)",
        )
        return parser

    def client(
        self, plugin: Any, args: argparse.Namespace
    ) -> tuple[Any, tuple[type[Exception], ...]]:
        """Return a client of the schedulers, and what an unanswered call raises."""
        from nova_nodb_scheduler.nova_adapter import rpc_server

        return rpc_server.make_client(plugin, args.timeout), rpc_server.CALL_ERRORS

    def context(self) -> Any:
        """Return the context of a call."""
        from nova import context

        return context.get_admin_context()
