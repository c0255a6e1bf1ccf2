# SPDX-License-Identifier: Apache-2.0
"""A cloud whose scheduler answers over Nova's bus, for commands that ask it."""

from __future__ import annotations

import argparse
from typing import Any

import nova.rpc

from nova_nodb_scheduler.cmd import application
from nova_nodb_scheduler.nova_adapter import rpc_server
from tests.functional.nova_adapter.decisions import test_memory_decisions


class AskingCase(test_memory_decisions.MemoryDecisionsCase):
    """With a scheduler's RPC server; commands run in this process."""

    def setUp(self) -> None:
        super().setUp()
        transport, nova.rpc.TRANSPORT = nova.rpc.TRANSPORT, None
        self.addCleanup(setattr, nova.rpc, "TRANSPORT", transport)
        nova.rpc.TRANSPORT = nova.rpc.create_transport(nova.rpc.get_transport_url())
        self.addCleanup(nova.rpc.TRANSPORT.cleanup)
        server = rpc_server.RpcServer(self.plugin, self.runtime)
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)

    def command(self, name: str, kind: Any, arguments: tuple[str, ...]) -> tuple[Any, Any]:
        """Make a command, with its arguments parsed."""
        made = kind(
            application.ManageApp(), argparse.Namespace(config_file=[], config_dir=[]), name
        )
        # What reads nova.conf; this process has it.
        made.plugin = lambda: self.plugin
        return made, made.get_parser(name).parse_args(arguments)
