# SPDX-License-Identifier: Apache-2.0
"""The synchronizer's back ends: what nova.conf says of each, and the server that is hurt."""

import contextlib
from collections.abc import Iterator

from nova_nodb_scheduler.testing import etcd_server, redis_server, server_processes
from tests.chaos import plan
from tools.stack import configuration
from tools.stack import settings as stack_settings

Options = dict[str, dict[str, str]]

SQLALCHEMY = "sqlalchemy"
SQLITE = "sqlite"
NAMES = (SQLALCHEMY, SQLITE, "memcached", "redis", "etcd")


def target(name: str) -> str | None:
    """Return what a fault of a back end hits; None: there is no server to be hurt."""
    if name == SQLALCHEMY:
        return "mariadb"
    return None if name == SQLITE else plan.BACKEND


class BackEnd:
    """One back end.

    :ivar server: None where it is a file, or a database of the stack's own MariaDB
    :ivar port: where it listens; None: nowhere
    """

    def __init__(
        self,
        name: str,
        settings: stack_settings.Settings,
        server: server_processes.ServerProcess | None = None,
    ) -> None:
        self.name = name
        self._settings = settings
        self.server = server
        self.port: int | None = None
        if name == SQLALCHEMY:
            self.port = settings.port("mariadb")
        elif server is not None:
            self.port = server.port

    def options(self, process: str, port: int | None = None) -> Options:
        """Return a process's lines of nova.conf.

        :param port: of a proxy before the server
        """
        driver = SQLALCHEMY if self.name == SQLITE else self.name
        found = {"nodb_scheduler": {"synchronizer": driver}}
        address = f"127.0.0.1:{port or self.port}"
        if self.name == SQLALCHEMY:
            url = configuration.database_url(
                self._settings, process, configuration.STORE_DATABASE
            ).replace(f"127.0.0.1:{self.port}", address)
            return found | {"nodb_sqlalchemy": {"connection": url}}
        if self.name == SQLITE:
            file = self._settings.state / "nova" / "nodb.sqlite"
            return found | {"nodb_sqlalchemy": {"connection": f"sqlite:///{file}"}}
        if self.name == "memcached":
            return found | {"nodb_memcached": {"servers": address}}
        if self.name == "redis":
            return found | {"nodb_redis": {"url": f"redis://{address}/0"}}
        return found | {"nodb_etcd": {"endpoints": f"http://{address}"}}


@contextlib.contextmanager
def running(name: str, settings: stack_settings.Settings) -> Iterator[BackEnd]:
    """Start a back end's server, if it has one of its own, and end it afterwards."""
    if name in (SQLALCHEMY, SQLITE):
        yield BackEnd(name, settings)
        return
    server = _server(name)
    try:
        server.initialize()
        server.start()
        yield BackEnd(name, settings, server)
    finally:
        server.destroy()


def _server(name: str) -> server_processes.ServerProcess:
    if name == "memcached":
        return server_processes.MemcachedServer(("-m", "64", "-M"))
    if name == "redis":
        return redis_server.RedisServer(("--maxmemory-policy", "noeviction"))
    if name == "etcd":
        return etcd_server.EtcdServer(etcd_server.RETENTION)
    raise ValueError(f"no back end '{name}'; there are: {', '.join(NAMES)}")
