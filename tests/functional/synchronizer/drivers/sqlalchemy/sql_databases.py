# SPDX-License-Identifier: Apache-2.0
"""The three databases as the tests of the SQL driver use and hurt them."""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import select
import shutil
import signal
import socket
import tempfile
import threading
import time
import unittest
from typing import Any

import sqlalchemy as sa

from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, migration
from nova_nodb_scheduler.testing import server_processes, servers


def migrate(url: str) -> None:
    """Make the schema of this release in an empty database."""
    engine = engines.create_for_migration(driver.SQLOptions(url))
    migration.sync(engine)
    engine.dispose()


@functools.cache
def _migrated_file() -> pathlib.Path:
    """Return an SQLite file with the schema and nothing else: copies cost less than migrations."""
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    path = pathlib.Path(directory.name) / "migrated.sqlite"
    migrate(f"sqlite:///{path}")
    path.chmod(0o600)
    return path


class SQLiteCase(unittest.TestCase):
    """Gives each test an SQLite file of its own."""

    dialect = "sqlite"
    ordering = "counter"
    #: Whether the schema stands there already.
    migrated = False

    def setUp(self) -> None:
        super().setUp()
        directory = self.enterContext(tempfile.TemporaryDirectory())
        self.path = pathlib.Path(directory) / "nodb.sqlite"
        self.url = f"sqlite:///{self.path}"
        if self.migrated:
            shutil.copy(_migrated_file(), self.path)

    def sql_options(self, **changes: Any) -> driver.SQLOptions:
        settings = {
            "poll_interval_seconds": 0.02,
            "timeout_seconds": 20.0,
            "auto_upgrade": True,
            "ordering": self.ordering,
        }
        return driver.SQLOptions(self.url, **settings | changes)

    def execute(self, *statements: str) -> None:
        """Carry out statements beside the driver, as an operator would."""
        engine = engines.create(self.sql_options())
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))
        engine.dispose()


class MariaDBCase(SQLiteCase):
    """Gives each test a MariaDB database of its own."""

    dialect = "mysql"

    def setUp(self) -> None:
        unittest.TestCase.setUp(self)
        prepare = migrate if self.migrated else None
        self.database = self.enterContext(servers.MariaDB(prepare=prepare))
        self.url = self.database.url

    def kill_connections(self) -> None:
        """End all connections to this test's database, from the server's side."""
        engine = sa.create_engine(self.url)
        query = sa.text("SELECT id FROM information_schema.processlist WHERE db = DATABASE()")
        with engine.connect() as connection:
            own = connection.execute(sa.text("SELECT CONNECTION_ID()")).scalar_one()
            for thread in connection.execute(query).scalars().all():
                if thread != own:
                    connection.execute(sa.text(f"KILL CONNECTION {thread}"))
        engine.dispose()

    def freeze(self, server: server_processes.ServerProcess) -> None:
        """Stop a server in its tracks."""
        server.pause()
        time.sleep(0.3)  # until all of its threads have stopped

    def thaw(self, server: server_processes.ServerProcess) -> None:
        """Let a frozen server go on."""
        server.resume()


class PostgreSQLCase(SQLiteCase):
    """Gives each test a PostgreSQL database of its own."""

    dialect = "postgresql"

    def setUp(self) -> None:
        unittest.TestCase.setUp(self)
        prepare = migrate if self.migrated else None
        self.database = self.enterContext(servers.PostgreSQL(prepare=prepare))
        self.url = self.database.url

    def kill_connections(self) -> None:
        """End all connections to this test's database, from the server's side."""
        self.database.server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{sa.make_url(self.url).database}'"
        )

    def freeze(self, server: server_processes.ServerProcess) -> None:
        """Stop a server in its tracks: each connection has a process of its own."""
        self._signal_all(server, signal.SIGSTOP)
        time.sleep(0.3)

    def thaw(self, server: server_processes.ServerProcess) -> None:
        """Let a frozen server go on."""
        self._signal_all(server, signal.SIGCONT)

    @staticmethod
    def _signal_all(server: server_processes.ServerProcess, number: signal.Signals) -> None:
        parent = (server.directory / "data" / "postmaster.pid").read_text().split()[0]
        children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for process in (parent, *children):
            os.kill(int(process), number)


class Proxy:
    """A TCP proxy that can lose what the server answers."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.swallow_replies = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def close(self) -> None:
        """Stop accepting; connections end with their clients."""
        self._closed.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target_port))
            threading.Thread(target=self._pump, args=(client, server), daemon=True).start()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            while True:
                readable, _, _ = select.select([client, server], [], [])
                for source in readable:
                    received = source.recv(65536)
                    if not received:
                        return
                    if source is client:
                        server.sendall(received)
                    elif not self.swallow_replies.is_set():
                        client.sendall(received)
