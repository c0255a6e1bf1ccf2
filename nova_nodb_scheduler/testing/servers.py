# SPDX-License-Identifier: Apache-2.0
"""Fixtures that give tests real MariaDB, PostgreSQL and memcached servers.

SQL servers are dear to start, so one of each serves a whole test process: it
starts at first use, ends with the process, and gives every fixture a database
of its own. A test that hurts its server asks for a ``private`` one. A memcached
starts in milliseconds, so each fixture has its own.

Where a server's program is absent the test is skipped, unless the environment
sets ``NODB_REQUIRE_SERVERS``: then that is a failure.
"""

from __future__ import annotations

import atexit
import threading
import uuid

import fixtures

from nova_nodb_scheduler.testing import server_processes

_shared: dict[type[server_processes.Server], server_processes.Server] = {}
_shared_lock = threading.Lock()


def _shared_server(kind: type[server_processes.Server]) -> server_processes.Server:
    """Return this process's server of a kind, started at the first call."""
    with _shared_lock:
        server = _shared.get(kind)
        if server is None:
            server = kind()
            atexit.register(server.destroy)
            server.initialize()
            server.start()
            _shared[kind] = server
        return server


class _Database(fixtures.Fixture):  # type: ignore[misc]  # untyped library
    """A fresh, empty database on a server of the process, or on a private one."""

    server_class: type[server_processes.MariaDBServer | server_processes.PostgreSQLServer]
    program: tuple[str, ...]
    server: server_processes.MariaDBServer | server_processes.PostgreSQLServer
    #: SQLAlchemy URL of the database.
    url: str

    def __init__(self, private: bool = False) -> None:
        self._private = private

    def setUp(self) -> None:
        # Before super(): a skip inside of a fixture's _setUp counts as an error.
        server_processes.find_program(*self.program)
        super().setUp()

    def _setUp(self) -> None:  # noqa: N802, as fixtures names it
        if self._private:
            self.server = self.server_class()
            self.addCleanup(self.server.destroy)
            self.server.initialize()
            self.server.start()
        else:
            server = _shared_server(self.server_class)
            assert isinstance(
                server, server_processes.MariaDBServer | server_processes.PostgreSQLServer
            )
            self.server = server
        name = f"nodb_{uuid.uuid4().hex[:12]}"
        self.server.execute(f"CREATE DATABASE {name}")
        if not self._private:
            self.addCleanup(self._drop, name)
        self.url = self.server.url(name)

    def _drop(self, name: str) -> None:
        self.server.execute(f"DROP DATABASE {name}")


class MariaDB(_Database):
    """A fresh MariaDB database: ``url``; its ``server`` can be hurt if private."""

    server_class = server_processes.MariaDBServer
    program = ("mariadbd",)


class PostgreSQL(_Database):
    """A fresh PostgreSQL database: ``url``; its ``server`` can be hurt if private."""

    server_class = server_processes.PostgreSQLServer
    program = ("postgres", "/usr/lib/postgresql/*/bin/postgres")

    def _drop(self, name: str) -> None:
        # FORCE ends connections that a test's pools still hold.
        self.server.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Memcached(fixtures.Fixture):  # type: ignore[misc]  # untyped library
    """A memcached of its own: ``server``, ``address``.

    :param options: added to its command line, such as ``-m``, ``4``, ``-M``
    """

    def __init__(self, *options: str) -> None:
        self._options = options

    def setUp(self) -> None:
        server_processes.find_program("memcached")
        super().setUp()

    def _setUp(self) -> None:  # noqa: N802, as fixtures names it
        self.server = server_processes.MemcachedServer(self._options)
        self.addCleanup(self.server.destroy)
        self.server.initialize()
        self.server.start()
        self.address = self.server.address
