# SPDX-License-Identifier: Apache-2.0
"""A real RabbitMQ of a test's own, with an epmd of its own, on 127.0.0.1."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence

from nova_nodb_scheduler.testing import server_processes, servers

_PLACES = "/usr/lib/rabbitmq/bin/{}"


class EpmdServer(server_processes.ServerProcess):
    """Erlang's port mapper, without which a node leaves one behind."""

    def initialize(self) -> None:
        """Do nothing: it keeps no data."""

    def command(self) -> Sequence[str]:
        program = server_processes.find_program("epmd")
        return (program, "-address", "127.0.0.1", "-port", str(self.port))

    def answers(self) -> bool:
        return _listens(self.port)


class RabbitMQServer(server_processes.ServerProcess):
    """A node without plugins; queues that are not durable are gone with a restart."""

    stop_signal = signal.SIGTERM

    def __init__(self, epmd: EpmdServer) -> None:
        super().__init__()
        self._epmd = epmd
        self._distribution_port = server_processes.free_port()

    @property
    def url(self) -> str:
        """The transport URL."""
        return f"rabbit://guest:guest@{self.address}/"

    def initialize(self) -> None:
        """Write its files."""
        (self.directory / "plugins").write_text("[].\n")
        (self.directory / "rabbitmq.conf").write_text("loopback_users = none\n")

    def command(self) -> Sequence[str]:
        home = self.directory
        environment = {
            "HOME": home,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": self._epmd.port,
            "RABBITMQ_NODENAME": f"nodb{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self._distribution_port,
            "RABBITMQ_MNESIA_BASE": home / "mnesia",
            "RABBITMQ_LOG_BASE": home,
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": home / "rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": home / "plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none"
                " +sbwtdio none"
            ),
        }
        program = server_processes.find_program(
            "rabbitmq-server-of-its-own", _PLACES.format("rabbitmq-server")
        )
        return ("env", *(f"{name}={value}" for name, value in environment.items()), program)

    def answers(self) -> bool:
        return _listens(self.port)


class RabbitMQ(servers.ServerFixture):
    """A RabbitMQ: ``server``, ``url``."""

    def require_programs(self) -> None:
        server_processes.find_program("epmd")
        server_processes.find_program("rabbitmq-server", _PLACES.format("rabbitmq-server"))

    def _setUp(self) -> None:
        self.server = self.own(RabbitMQServer(self.own(EpmdServer())))
        self.url = self.server.url


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5.0):
            return True
    except OSError:
        return False
