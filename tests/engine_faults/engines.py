# SPDX-License-Identifier: Apache-2.0
"""The engines: real servers from the project's fixtures, and how schedulers reach them."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

import attrs
import fixtures

from nova_nodb_scheduler.simulator.scenario import backend_choice
from nova_nodb_scheduler.synchronizer import contract, loader
from nova_nodb_scheduler.testing import (
    etcd_server,
    galera_server,
    proxy,
    redis_server,
    servers,
)

#: Longest wait of a driver for one answer.
TIMEOUT_SECONDS = 1.5
#: How long memcached's log lives here: shorter than any freeze of a scheduler.
LOG_SECONDS = 4


_SMALL_DISK_BYTES = 64 << 20


class ShortLog(backend_choice.BackendChoice):
    """A memcached whose log lives for seconds, which no operator may choose."""

    def make(self) -> contract.Synchronizer:
        made: Any = super().make()
        return type(made)(attrs.evolve(made._settings, log_ttl_seconds=LOG_SECONDS))


@attrs.frozen
class Site:
    """A back end of its own, empty.

    :param direct: how the parent reaches it
    :param through: how each scheduler does, in turn
    """

    direct: backend_choice.BackendChoice
    through: tuple[backend_choice.BackendChoice, ...]

    def backend_of(self, place: int) -> backend_choice.BackendChoice:
        return self.through[place % len(self.through)]


class Engine:
    """One engine, started by ``with``.

    :param options: added to its server's command line
    """

    #: As the tables name it.
    name: str
    driver: str
    #: Of a SQL driver.
    ordering = "counter"
    #: Whether what it holds is gone when it ends.
    forgets = False
    #: Longest time that it keeps anything for those who are late, beyond what
    #: schedulers collect.
    keeps_seconds = 0.0
    #: What of the driver's class enumerates its steps.
    steps_name = "STEPS"

    def __init__(self, *options: str) -> None:
        self._options = options
        self._stack = contextlib.ExitStack()
        self._sites = itertools.count()
        self.server: Any = None
        self.proxy: proxy.Proxy | None = None

    def __enter__(self) -> Engine:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _use(self, fixture: fixtures.Fixture) -> Any:
        fixture.setUp()
        self._stack.callback(fixture.cleanUp)
        return fixture

    def _start(self) -> None:
        raise NotImplementedError

    def _choice(self, number: int, port: int) -> backend_choice.BackendChoice:
        """Return how a back end of that number is reached at a port."""
        raise NotImplementedError

    def site(self, *, proxied: bool = False) -> Site:
        """Return a back end of its own; with a proxy before it if wanted."""
        number = next(self._sites)
        direct = self._choice(number, self.port)
        if not proxied:
            return Site(direct, (direct,))
        if self.proxy is None:
            self.proxy = self._use(proxy.Proxy(self.port))
        port = int(self.proxy.address.rpartition(":")[2])
        return Site(direct, (self._choice(number, port),))

    @property
    def port(self) -> int:
        return int(self.server.port)

    @classmethod
    def steps(cls) -> tuple[str, ...]:
        """Return the steps of the driver, as it enumerates them for its mode."""
        return tuple(getattr(loader.load_class(cls.driver), cls.steps_name))

    def freeze(self) -> None:
        """Stop the server in its tracks."""
        self.server.pause()

    def thaw(self) -> None:
        """Let it go on."""
        self.server.resume()


def mount_small_disk(directory: pathlib.Path, size_bytes: int) -> str:
    """Have a small file system on an empty directory; return why not, empty if it is there."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        return f"no small file system can be had, run it as root: {mounted.stderr}"
    return ""


def unmount(directory: pathlib.Path) -> None:
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


class SQLite(Engine):
    """A file; on a small disk of its own with the option of that name."""

    name = "SQLite"
    driver = "sqlalchemy"
    SMALL_DISK = "small disk"
    #: Why it is on no small disk though it was to be.
    lacks_disk = ""
    directory: pathlib.Path

    def _start(self) -> None:
        self.directory = pathlib.Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        if self.SMALL_DISK in self._options:
            self.lacks_disk = mount_small_disk(self.directory, _SMALL_DISK_BYTES)
            if not self.lacks_disk:
                self._stack.callback(unmount, self.directory)

    @property
    def port(self) -> int:
        return 0

    def path(self, number: int) -> pathlib.Path:
        return self.directory / f"site-{number}.sqlite"

    def _choice(self, number: int, port: int) -> backend_choice.BackendChoice:
        return _sql(f"sqlite:///{self.path(number)}")


class Memcached(Engine):
    name = "memcached"
    driver = "memcached"
    forgets = True
    # What is expired there may be seen for a second more, and what is voided is so late.
    keeps_seconds = LOG_SECONDS + 1.5

    def _start(self) -> None:
        self.server = self._use(servers.Memcached(*self._options)).server

    def _choice(self, number: int, port: int) -> backend_choice.BackendChoice:
        return ShortLog(
            driver=self.driver,
            options={
                "servers": f"127.0.0.1:{port}",
                "key_prefix": f"site-{number}",
                "timeout_seconds": str(TIMEOUT_SECONDS),
                "poll_interval_seconds": "0.05",
                "fence_after_seconds": "0.4",
            },
        )


class Redis(Engine):
    name = "Redis"
    driver = "redis"
    forgets = True

    def _start(self) -> None:
        self.server = self._use(redis_server.Redis(*self._options)).server

    def _choice(self, number: int, port: int) -> backend_choice.BackendChoice:
        return backend_choice.BackendChoice(
            driver=self.driver,
            options={
                "url": f"redis://127.0.0.1:{port}/0",
                "key_prefix": f"site-{number}",
                "timeout_seconds": str(TIMEOUT_SECONDS),
            },
        )


class Etcd(Engine):
    name = "etcd"
    driver = "etcd"

    def _start(self) -> None:
        self.server = self._use(etcd_server.Etcd(*self._options, private=True)).server

    def _choice(self, number: int, port: int) -> backend_choice.BackendChoice:
        return backend_choice.BackendChoice(
            driver=self.driver,
            options={
                "endpoints": f"http://127.0.0.1:{port}",
                "key_prefix": f"site-{number}",
                "timeout_seconds": str(TIMEOUT_SECONDS),
            },
        )


class _Server(Engine):
    """A SQL server."""

    driver = "sqlalchemy"

    def _choice(self, number: int, port: int) -> backend_choice.BackendChoice:
        name = f"site_{number}"
        if port == self.port:
            self.server.execute(f"CREATE DATABASE {name}")
        url = self.server.url(name).replace(f":{self.port}/", f":{port}/")
        return _sql(url, ordering=self.ordering)


class MariaDB(_Server):
    name = "MariaDB"
    steps_name = "WHOLE_STEPS"

    def _start(self) -> None:
        self.server = self._use(servers.MariaDB(private=True)).server


class PostgreSQL(_Server):
    name = "PostgreSQL"

    def _start(self) -> None:
        self.server = self._use(servers.PostgreSQL(private=True)).server

    def freeze(self) -> None:
        for each in self._processes():
            os.kill(each, signal.SIGSTOP)

    def thaw(self) -> None:
        for each in self._processes():
            os.kill(each, signal.SIGCONT)

    def _processes(self) -> list[int]:
        parent = (self.server.directory / "data" / "postmaster.pid").read_text().split()[0]
        children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(each) for each in (parent, *children)]


class PostgreSQLSequencer(PostgreSQL):
    name = "PostgreSQL (sequencer)"
    ordering = "sequencer"
    steps_name = "SEQUENCER_STEPS"


class Galera(Engine):
    """Two nodes; schedulers use them in turn."""

    name = "Galera"
    driver = "sqlalchemy"
    ordering = "sequencer"
    steps_name = "SEQUENCER_STEPS"

    def _start(self) -> None:
        self.cluster = self._use(galera_server.Galera(private=True)).cluster
        self.server = self.cluster.first

    def site(self, *, proxied: bool = False) -> Site:
        number = next(self._sites)
        self.server.execute(f"CREATE DATABASE site_{number}")
        choices = tuple(
            _sql(node.url(f"site_{number}"), ordering="sequencer", timeout_seconds="4.0")
            for node in self.cluster.nodes
        )
        return Site(choices[0], choices)


def _sql(url: str, **options: str) -> backend_choice.BackendChoice:
    settings: Mapping[str, str] = {
        "connection": url,
        "poll_interval_seconds": "0.05",
        "timeout_seconds": str(TIMEOUT_SECONDS),
        "auto_upgrade": "true",
        **options,
    }
    return backend_choice.BackendChoice(driver="sqlalchemy", options=settings)


ENGINES: tuple[type[Engine], ...] = (
    SQLite,
    Memcached,
    Redis,
    Etcd,
    MariaDB,
    Galera,
    PostgreSQL,
    PostgreSQLSequencer,
)
