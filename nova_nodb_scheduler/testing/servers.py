# SPDX-License-Identifier: Apache-2.0
"""Fixtures that give tests real MariaDB, PostgreSQL and memcached servers, and what they share.

SQL servers are dear to start, so one of each serves a whole test process: it
starts at first use, ends with the process, and gives every fixture a database
of its own. A test that hurts its server asks for a ``private`` one. A memcached
starts in milliseconds, so each fixture has its own.

Where a server's program is absent the test is skipped, unless the environment
sets ``NODB_REQUIRE_SERVERS``: then that is a failure.
"""

from __future__ import annotations

import abc
import atexit
import functools
import threading
import uuid
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import fixtures

from nova_nodb_scheduler.testing import server_processes


class _Destroyable(Protocol):
    def destroy(self) -> None: ...


_Shared = TypeVar("_Shared", bound=_Destroyable)
_Server = TypeVar("_Server", bound=server_processes.ServerProcess)

_shared: dict[type[Any], Any] = {}
_shared_lock = threading.Lock()


def shared(kind: type[_Shared], start: Callable[[], _Shared]) -> _Shared:
    """Return this process's server of a kind; any thread may ask.

    :param start: makes and starts it, at the first call
    """
    with _shared_lock:
        if kind not in _shared:
            _shared[kind] = start()
        found: _Shared = _shared[kind]
        return found


def started(server: _Server) -> _Server:
    """Start a new server that ends with the process."""
    atexit.register(server.destroy)
    server.initialize()
    server.start()
    return server


class ServerFixture(fixtures.Fixture, abc.ABC):  # type: ignore[misc]  # untyped library
    """Base of the fixtures: the test is skipped where a program is absent."""

    @abc.abstractmethod
    def require_programs(self) -> None:
        """Find what the servers need, see :func:`.server_processes.find_program`."""

    def setUp(self) -> None:
        # Before super(): a skip inside of a fixture's _setUp counts as an error.
        self.require_programs()
        super().setUp()

    def own(self, server: _Server) -> _Server:
        """Start a new server that ends with the test."""
        self.addCleanup(server.destroy)
        server.initialize()
        server.start()
        return server


_SQLServer = server_processes.MariaDBServer | server_processes.PostgreSQLServer

_templates: dict[tuple[_SQLServer, Callable[[str], None]], str] = {}
#: By their templates: copies that were restored, and that nobody uses.
_copies: dict[str, list[str]] = {}


def _new_name() -> str:
    return f"nodb_{uuid.uuid4().hex[:12]}"


def _template(server: _SQLServer, prepare: Callable[[str], None]) -> str:
    """Return the database of a server that was prepared; it is kept as long as the server."""
    with _shared_lock:
        if (server, prepare) not in _templates:
            name = _new_name()
            server.create_database(name)
            prepare(server.url(name))
            _templates[server, prepare] = name
        return _templates[server, prepare]


class _Database(ServerFixture):
    """A fresh, empty database on a server of the process, or on a private one.

    :param tls_directory: of certificates; makes the server a private one
    :param prepare: called with the URL of an empty database, such as to make a schema there; the
        databases of a server are copies of the one that was prepared first, new or as new
    """

    server_class: type[server_processes.MariaDBServer | server_processes.PostgreSQLServer]
    program: tuple[str, ...]
    server: server_processes.MariaDBServer | server_processes.PostgreSQLServer
    #: SQLAlchemy URL of the database.
    url: str

    def __init__(
        self,
        private: bool = False,
        tls_directory: str = "",
        prepare: Callable[[str], None] | None = None,
    ) -> None:
        self._private = private or bool(tls_directory)
        self._tls_directory = tls_directory
        self._prepare = prepare

    def require_programs(self) -> None:
        server_processes.find_program(*self.program)

    def _setUp(self) -> None:  # noqa: N802, as fixtures names it
        kind = self.server_class
        if self._private:
            self.server = self.own(kind(tls_directory=self._tls_directory))
        else:
            self.server = shared(kind, lambda: started(kind()))
        name = _new_name()
        if self._prepare is None:
            self.server.create_database(name)
            leave: Callable[[str], None] = self._drop
        else:
            template = _template(self.server, self._prepare)
            with _shared_lock:
                left = _copies.setdefault(template, [])
                copy = left.pop() if left else ""
            if copy:
                name = copy
            else:
                self.server.copy_database(template, name)
            leave = functools.partial(self._leave, template)
        if not self._private:
            self.addCleanup(leave, name)
        self.url = self.server.url(name)

    def _leave(self, template: str, name: str) -> None:
        if self.server.restore_copy(template, name):
            with _shared_lock:
                _copies[template].append(name)
        else:
            self._drop(name)

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


class Memcached(ServerFixture):
    """A memcached of its own: ``server``, ``address``.

    :param options: added to its command line, such as ``-m``, ``4``, ``-M``
    :param tls_directory: of certificates; it speaks TLS
    """

    def __init__(self, *options: str, tls_directory: str = "") -> None:
        self._options = options
        self._tls_directory = tls_directory

    def require_programs(self) -> None:
        server_processes.find_program("memcached")

    def _setUp(self) -> None:  # noqa: N802, as fixtures names it
        self.server = self.own(server_processes.MemcachedServer(self._options, self._tls_directory))
        self.address = self.server.address
