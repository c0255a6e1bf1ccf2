# SPDX-License-Identifier: Apache-2.0
"""Processes of real MariaDB, PostgreSQL and memcached servers, for the fixtures.

Nothing listens beyond 127.0.0.1; data stands in a temporary directory and is
not fsynced. Tests use them through :mod:`nova_nodb_scheduler.testing.servers`.
"""

from __future__ import annotations

import abc
import glob
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
from collections.abc import Sequence
from typing import Any

REQUIRE_SERVERS = "NODB_REQUIRE_SERVERS"

#: MariaDB's first start on a busy two-core machine took 8 s.
START_TIMEOUT_SECONDS = 90.0
STOP_TIMEOUT_SECONDS = 20.0


class ServerFailed(Exception):
    """A server did not start; the text holds the end of its log."""


def find_program(name: str, *patterns: str) -> str:
    """Return the path of a server's program.

    :param patterns: globs of places that are not on PATH
    :raises unittest.SkipTest: it is absent and servers are not required
    :raises ServerFailed: it is absent although servers are required
    """
    places = [f"/usr/sbin/{name}", f"/usr/local/sbin/{name}"]
    places += sorted((path for pattern in patterns for path in glob.glob(pattern)), reverse=True)
    for path in [shutil.which(name), *places]:
        if path and os.access(path, os.X_OK):
            return path
    if os.environ.get(REQUIRE_SERVERS):
        raise ServerFailed(f"{name} is not installed, and {REQUIRE_SERVERS} is set")
    raise unittest.SkipTest(f"{name} is not installed")


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess(abc.ABC):
    """One server process on a port of its own, which outlives restarts.

    :param options: added to its command line, where it takes any
    :param tls_directory: holds ``ca.pem``, ``server.pem`` and ``server.key``: it speaks TLS
    """

    #: Whom to run as when the tests run as root; None: as root.
    unprivileged_user: str | None = None
    #: How to end it when nobody needs its data any more.
    stop_signal = signal.SIGKILL

    def __init__(self, options: Sequence[str] = (), tls_directory: str = "") -> None:
        self._options = tuple(options)
        self._tls_directory = tls_directory
        self.port = free_port()
        # Not below TMPDIR: its path may exceed the 107 bytes of a unix socket's.
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="nodb-", dir="/tmp"))
        self._owner_pid = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the server; it must have been started."""
        if self._process is None:
            raise ServerFailed(f"{self.command()[0]} does not run; start it first")
        return self._process.pid

    @property
    def log_path(self) -> pathlib.Path:
        return self.directory / "server.log"

    def initialize(self) -> None:  # noqa: B027 - some begin empty
        """Lay down what the server needs before its first start; nothing, where it begins empty."""

    @abc.abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command line of the server."""

    @abc.abstractmethod
    def answers(self) -> bool:
        """Return whether the server serves requests."""

    def start(self) -> None:
        """Start the server and wait until it serves."""
        with self.log_path.open("ab") as log:
            # The group of its own keeps a terminal's Ctrl-C for the tests.
            self._process = subprocess.Popen(
                [*self._privileges(die_with_us=True), *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"{self.command()[0]}: {self.log_tail()}")
            time.sleep(0.05)

    def log_tail(self) -> str:
        """Return the end of the server's log."""
        return self.log_path.read_bytes()[-2000:].decode(errors="replace")

    def kill(self) -> None:
        """End the server as a crash does; its data stay."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Crash it and start it again on the same port with the same data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop it in its tracks: connections stay open, nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # On a busy machine its other threads run on until one takes the signal.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def destroy(self) -> None:
        """End the server and remove its data; in a forked child, do nothing."""
        if os.getpid() != self._owner_pid:
            return
        self._end(self.stop_signal)
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, *command: str) -> None:
        """Run a preparing command as the server's user.

        :raises ServerFailed: it failed
        """
        done = subprocess.run(
            [*self._privileges(die_with_us=False), *command],
            capture_output=True,
            cwd=self.directory,
            check=False,
        )
        if done.returncode:
            output = (done.stdout + done.stderr)[-2000:].decode(errors="replace")
            raise ServerFailed(f"{command[0]}: {output}")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_SECONDS)

    def _privileges(self, *, die_with_us: bool) -> list[str]:
        """Return the setpriv prefix: the server's user, and death with the tests.

        The kernel sends the death signal when the *thread* that forked ends,
        so only the main thread may ask for it.
        """
        prefix: list[str] = []
        if die_with_us and threading.current_thread() is threading.main_thread():
            prefix += ["--pdeathsig", self.stop_signal.name.removeprefix("SIG")]
        if self.unprivileged_user and os.geteuid() == 0:
            user = self.unprivileged_user
            prefix += ["--reuid", user, "--regid", user, "--init-groups"]
            shutil.chown(self.directory, user, user)
        return ["setpriv", *prefix, "--"] if prefix else []


class MariaDBServer(ServerProcess):
    """A MariaDB whose root user has no password; with certificates it speaks TLS, too."""

    def initialize(self) -> None:
        self.run(
            find_program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={self.directory / 'data'}",
            self._tmpdir(),
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *self._user(),
        )

    def command(self) -> Sequence[str]:
        return (
            find_program("mariadbd"),
            "--no-defaults",
            *self._user(),
            f"--datadir={self.directory / 'data'}",
            self._tmpdir(),
            f"--socket={self.directory / 'socket'}",
            f"--pid-file={self.directory / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--character-set-server=utf8mb4",
            "--max-connections=500",
            "--performance-schema=OFF",
            "--innodb-buffer-pool-size=128M",
            "--innodb-log-file-size=64M",
            # A commit is written before it is answered, so a crash that the machine
            # survives keeps it; nothing waits for the disk.
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-flush-method=nosync",
            "--sync-frm=0",
            "--innodb-doublewrite=0",
            *self._tls(),
        )

    def _tmpdir(self) -> str:
        """Return the option by which no other server that starts removes its temporary tables."""
        return f"--tmpdir={self.directory}"

    def answers(self) -> bool:
        import pymysql

        try:
            pymysql.connect(host="127.0.0.1", port=self.port, user="root").close()
        except pymysql.MySQLError:
            return False
        return True

    def execute(self, statement: str) -> None:
        """Carry out one statement as root, outside any database."""
        import pymysql

        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", autocommit=True, ssl_disabled=True
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def create_database(self, name: str) -> None:
        """Make an empty database."""
        self.execute(f"CREATE DATABASE {name}")

    def copy_database(self, template: str, name: str) -> None:
        """Make a database with the tables and rows of another one."""
        import pymysql

        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", autocommit=True, ssl_disabled=True
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
            cursor.execute(f"SHOW TABLES FROM {template}")
            for (table,) in cursor.fetchall():
                cursor.execute(f"CREATE TABLE {name}.{table} LIKE {template}.{table}")
                copied = f"SELECT * FROM {template}.{table}"  # noqa: S608, our own names
                cursor.execute(f"INSERT INTO {name}.{table} {copied}")

    def restore_copy(self, _template: str, _name: str) -> bool:
        """Tell that it is not worth it: a new copy costs no more here."""
        return False

    def url(self, database: str) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{database}?charset=utf8mb4"

    def _tls(self) -> tuple[str, ...]:
        tls = self._tls_directory
        return (f"--ssl-cert={tls}/server.pem", f"--ssl-key={tls}/server.key") if tls else ()

    @staticmethod
    def _user() -> tuple[str, ...]:
        return ("--user=root",) if os.geteuid() == 0 else ()


_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
#: Of tables and indexes.
_COLUMNS = """
    SELECT relname, attname, atttypid, atttypmod, attnotnull FROM pg_attribute
    JOIN pg_class ON pg_class.oid = attrelid
    WHERE relnamespace = 'public'::regnamespace AND attnum > 0 ORDER BY relname, attnum
"""
_END_OTHERS = f"""
    SELECT pg_terminate_backend(pid, {int(STOP_TIMEOUT_SECONDS * 1000)}) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""  # noqa: S608, a number of our own


class PostgreSQLServer(ServerProcess):
    """A PostgreSQL whose superuser ``postgres`` is trusted on loopback; it may speak TLS, too."""

    unprivileged_user = "postgres"
    # Killed, the postmaster leaves its children to notice; SIGQUIT ends all at once.
    stop_signal = signal.SIGQUIT

    def __init__(self, options: Sequence[str] = (), tls_directory: str = "") -> None:
        super().__init__(options, tls_directory)
        #: Of databases that were copied: columns, and rows by table.
        self._contents: dict[str, tuple[list[Any], dict[str, list[Any]]]] = {}

    def initialize(self) -> None:
        self.run(
            self._program("initdb"),
            f"--pgdata={self.directory / 'data'}",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        )
        if self._tls_directory:
            self._own_certificate()

    def command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            # As above: written before the answer, no wait for the disk.
            "fsync": "off",
            "synchronous_commit": "on",
            "full_page_writes": "off",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "ssl": "on" if self._tls_directory else "off",
        }
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        return (self._program("postgres"), "-D", str(self.directory / "data"), *arguments)

    def answers(self) -> bool:
        import psycopg

        try:
            self._connect().close()
        except psycopg.Error:
            return False
        return True

    def kill(self) -> None:
        """See :meth:`ServerProcess.kill`; returns when its children have noticed."""
        super().kill()
        data = str(self.directory / "data")
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        # They hold its shared memory, beside which no other postmaster starts.
        while self._works_in(data):
            if time.monotonic() > deadline:
                raise ServerFailed(f"processes of a killed postgres work on in {data}")
            time.sleep(0.01)

    @staticmethod
    def _works_in(directory: str) -> bool:
        for each in pathlib.Path("/proc").glob("[0-9]*/cwd"):
            try:
                if os.readlink(each) == directory:
                    return True
            except OSError:
                continue  # It has ended meanwhile, or is another user's.
        return False

    def execute(self, statement: str) -> None:
        """Carry out one statement as the superuser, outside any transaction."""
        with self._connect() as connection:
            connection.execute(statement)

    def create_database(self, name: str, template: str = "template1") -> None:
        """Make a database, a copy of another one to which nobody is connected."""
        with self._connect() as connection:
            # From 15 on it copies by its log, which costs twice the time of a processor.
            by_files = connection.info.server_version >= 15_00_00
            strategy = "STRATEGY FILE_COPY" if by_files else ""
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} {strategy}")

    def copy_database(self, template: str, name: str) -> None:
        """Make a database with the tables and rows of another one, to which nobody is connected."""
        self.create_database(name, template)

    def restore_copy(self, template: str, name: str) -> bool:
        """Give a copy the rows of its template again; False where its tables are others by now.

        Whoever is still connected to it no longer is.
        """
        if template not in self._contents:
            with self._connect(template) as connection:
                rows = {
                    table: connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608, our own names
                    for (table,) in connection.execute(_TABLES).fetchall()
                }
                self._contents[template] = connection.execute(_COLUMNS).fetchall(), rows
        columns, rows = self._contents[template]
        with self._connect(name) as connection:
            connection.execute(_END_OTHERS)
            if connection.execute(_COLUMNS).fetchall() != columns:
                return False
            connection.execute(f"TRUNCATE {', '.join(rows)} RESTART IDENTITY")
            for table, held in rows.items():
                for row in held:
                    values = ", ".join(["%s"] * len(row))
                    connection.execute(f"INSERT INTO {table} VALUES ({values})", row)  # noqa: S608, our own names
        return True

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def _own_certificate(self) -> None:
        """Lay the certificate down where it is looked for, as the server's user's."""
        for name in ("server.pem", "server.key"):
            to = self.directory / "data" / name.replace(".pem", ".crt")
            shutil.copy(pathlib.Path(self._tls_directory) / name, to)
            to.chmod(0o600)
            if self.unprivileged_user and os.geteuid() == 0:
                shutil.chown(to, self.unprivileged_user, self.unprivileged_user)

    def _connect(self, database: str = "postgres") -> Any:
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database, autocommit=True
        )

    @staticmethod
    def _program(name: str) -> str:
        return find_program(name, f"/usr/lib/postgresql/*/bin/{name}")


class MemcachedServer(ServerProcess):
    """A memcached; a restart empties it."""

    def command(self) -> Sequence[str]:
        user = ("-u", "root") if os.geteuid() == 0 else ()
        where = ("-l", "127.0.0.1", "-p", str(self.port), "-U", "0")
        return (find_program("memcached"), *user, *where, *self._tls(), *self._options)

    def answers(self) -> bool:
        return self._ask(b"version\r\n").startswith(b"VERSION")

    def flush_all(self) -> None:
        """Drop every item, as an operator does by mistake."""
        if not self._ask(b"flush_all\r\n").startswith(b"OK"):
            raise ServerFailed("flush_all was refused")

    def _ask(self, request: bytes) -> bytes:
        try:
            with self._connected() as connection:
                connection.sendall(request)
                return connection.recv(4096)
        except OSError:
            return b""

    def _tls(self) -> tuple[str, ...]:
        tls = self._tls_directory
        files = f"ssl_chain_cert={tls}/server.pem,ssl_key={tls}/server.key"
        return ("-Z", "-o", files) if tls else ()

    def _connected(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.port), 5.0)
        if not self._tls_directory:
            return plain
        context = ssl.create_default_context(cafile=f"{self._tls_directory}/ca.pem")
        return context.wrap_socket(plain, server_hostname="127.0.0.1")
