# SPDX-License-Identifier: Apache-2.0
"""What the commands that ask schedulers over RPC share."""

from __future__ import annotations

import argparse
from typing import Any

from nova_nodb_scheduler.cmd import bounded, bus, command


class AskingCommand(command.Command):
    """A command with ``--timeout`` that gets a client of the RPC API."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add ``--timeout``."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--timeout",
            type=_seconds,
            default=bounded.CONNECT_SECONDS,
            metavar="SECONDS",
            help="how long to wait for a scheduler's answer, the connection to the message bus "
            "included (default: %(default)s)",
        )
        return parser

    def deadline(self, args: argparse.Namespace) -> bounded.Deadline:
        """Return the time in which all is to be found out; longer with ``--timeout``."""
        more_seconds = max(0.0, args.timeout - bounded.CONNECT_SECONDS)
        return bounded.Deadline(bounded.LOOK_SECONDS + more_seconds)

    def client(
        self, plugin: Any, args: argparse.Namespace, deadline: bounded.Deadline | None = None
    ) -> tuple[Any, tuple[type[Exception], ...]]:
        """Return a client of the schedulers, and what an unanswered call raises.

        :param deadline: bounds all calls together
        """
        from nova_nodb_scheduler.nova_adapter import rpc_server

        line = bus.Line(rpc_server.bus_address(), args.timeout, deadline)
        return rpc_server.make_client(plugin, args.timeout, line.call), rpc_server.CALL_ERRORS

    def context(self) -> Any:
        """Return the context of a call."""
        from nova import context

        return context.get_admin_context()


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number <= 3600:
        raise argparse.ArgumentTypeError(f"{number:g} is not above 0 and up to 3600")
    return number
