# SPDX-License-Identifier: Apache-2.0
"""Makes the SQLAlchemy engine: oslo.db's, with time-outs and session settings of our own."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import attrs
import sqlalchemy as sa
import sqlalchemy.event
import sqlalchemy.exc as sa_exc
from oslo_db.sqlalchemy import engines as oslo_engines
from oslo_db.sqlalchemy import exc_filters

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer import plain_passwords
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import failures, galera, sqlite_file
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import options as sql_options

_CONNECTION_OPTION = f"[{sql_options.GROUP}] connection"
_DRIVERS = {
    "sqlite": "",
    "sqlite+pysqlite": "",
    "mysql+pymysql": "pip install 'nova-nodb-scheduler[mysql]'",
    "postgresql+psycopg": "pip install 'nova-nodb-scheduler[postgresql]'",
}
_CHOICES = (
    "set sqlite:////path/of/a/file, mysql+pymysql://user:password@host/database or "
    "postgresql+psycopg://user:password@host/database"
)
_WRITER = "nodb_writer"
#: In a connection's ``info``: whether it leads to a node of a Galera cluster.
GALERA = "nodb_galera"
#: Where the options say nothing: what oslo.db's options default to.
_ENGINE_DEFAULTS: dict[str, Any] = {"mysql_sql_mode": "TRADITIONAL"}
#: Migrations copy tables; a server that is down is still noticed at connect.
MIGRATION_TIMEOUT_SECONDS = 3600.0


class Trust(threading.local):
    """Whether this thread vouches for the connections that it takes and returns.

    The pool asks every connection that it lends whether it lives, and rolls
    back every one that returns: two exchanges, as many as a small write needs
    without them. Both stay the rule; who vouches deals with a dead connection
    at its first statement, and returns it behind a commit.
    """

    given = False

    @contextlib.contextmanager
    def granted(self) -> Iterator[None]:
        self.given = True
        try:
            yield
        finally:
            self.given = False


trust = Trust()


def parse(connection: str) -> sa.URL:
    """Read the configured URL and check that this driver can serve it. No I/O.

    :raises ConfigurationError: it cannot
    """
    try:
        url = sa.make_url(connection)
    except (sa_exc.ArgumentError, ValueError, AttributeError, TypeError) as error:
        # Not the value itself: it may hold a password.
        raise errors.ConfigurationError(
            _CONNECTION_OPTION, "(not a database URL)", _CHOICES
        ) from error
    shown = url.render_as_string(hide_password=True)
    if url.drivername not in _DRIVERS:
        raise errors.ConfigurationError(_CONNECTION_OPTION, shown, _CHOICES)
    if url.drivername.startswith("sqlite"):
        in_memory = not url.database or ":memory:" in url.database
        if in_memory or url.query.get("mode") == "memory":
            raise errors.ConfigurationError(
                _CONNECTION_OPTION,
                shown,
                "an SQLite database in memory is seen by one process only; name a file "
                "(sqlite:////path/of/a/file), or set [nodb_scheduler] synchronizer = memory "
                "for a test",
            )
    elif not url.database:
        raise errors.ConfigurationError(
            _CONNECTION_OPTION, shown, f"the name of the database is missing; {_CHOICES}"
        )
    try:
        url.get_dialect().import_dbapi()
    except ImportError as error:
        raise errors.ConfigurationError(
            _CONNECTION_OPTION, shown, f"{error}; {_DRIVERS[url.drivername]}"
        ) from error
    return url


def require_store(options: sql_options.SQLOptions) -> None:
    """Make sure that there is a database, for who must not make one by connecting.

    :raises ConfigurationError: the connection cannot be served
    :raises StoreMissing: there is no such SQLite file; a server tells by itself
    """
    url = parse(options.connection)
    path = _sqlite_path(url)
    if path is not None and not os.path.isfile(path):
        raise errors.StoreMissing(failures.backend_name(url))


def prepare_store(options: sql_options.SQLOptions) -> None:
    """Make an SQLite file for its owner alone, before connecting makes it for all to read.

    :raises ConfigurationError: everybody may replace it; see :mod:`.sqlite_file`
    """
    path = _sqlite_path(parse(options.connection))
    if path is not None:
        sqlite_file.prepare(path, _CONNECTION_OPTION)


def warn_of_plain_password(options: sql_options.SQLOptions) -> None:
    """Say so where the password would go over a network as it is.

    A server that both sides could speak TLS with is not enough: PostgreSQL's
    client takes none where the server, or somebody between, says so.
    """
    url = parse(options.connection)
    if url.password is None:
        return
    if url.drivername.startswith("mysql"):
        encrypted = any(name.startswith("ssl") for name in url.query)
        if "unix_socket" in url.query:
            return
        remedy = "add ?ssl_ca=FILE to the URL, for TLS"
    else:
        encrypted = url.query.get("sslmode") in ("require", "verify-ca", "verify-full")
        remedy = "add ?sslmode=verify-full&sslrootcert=FILE to the URL, for TLS"
    if not encrypted:
        plain_passwords.warn(_CONNECTION_OPTION, [url.host or ""], remedy)


def _sqlite_path(url: sa.URL) -> str | None:
    """Return where an SQLite file lies; None for a server."""
    if not url.drivername.startswith("sqlite") or not url.database:
        return None
    if url.query.get("uri"):
        return urllib.parse.unquote(url.database.removeprefix("file:"))
    return url.database


def create(options: sql_options.SQLOptions) -> sa.Engine:
    """Make an engine; connects at first use only.

    :raises ConfigurationError: the connection cannot be served
    """
    return _create(options, autocommit=False)


def create_for_readers(options: sql_options.SQLOptions) -> sa.Engine:
    """Make an engine whose connections are in no transaction between two statements.

    So that nothing has to be rolled back when one returns to the pool. In
    SQLite they are like any other: there nothing travels.

    :raises ConfigurationError: the connection cannot be served
    """
    return _create(options, autocommit=True)


def _create(options: sql_options.SQLOptions, *, autocommit: bool) -> sa.Engine:
    url = parse(options.connection)
    if url.drivername.startswith("sqlite"):
        return _create_sqlite(url, options)
    engine: sa.Engine = oslo_engines.create_engine(
        url, max_retries=0, **_ENGINE_DEFAULTS | dict(options.engine)
    )
    _heed_trust(engine.dialect)
    # Half for each exchange: a call that finds its pooled connection dead and
    # makes a new one still ends within timeout_seconds.
    io_timeout_seconds = options.timeout_seconds / 2
    if engine.dialect.name == "mysql":
        sync_wait = options.engine.get("mysql_wsrep_sync_wait")
        _prepare_mysql(engine, io_timeout_seconds, options.timeout_seconds, sync_wait)
    else:
        _prepare_postgresql(engine, io_timeout_seconds, options.timeout_seconds)
    if autocommit:
        _commit_each_statement(engine)
    return engine


def _commit_each_statement(engine: sa.Engine) -> None:
    # Not SQLAlchemy's isolation level: that is set and reset by an exchange each
    # time a connection is borrowed.
    @sa.event.listens_for(engine, "connect")
    def set_autocommit(connection: Any, _record: Any) -> None:
        if engine.dialect.name == "mysql":
            connection.autocommit(True)
        else:
            connection.autocommit = True


def _heed_trust(dialect: sa.Dialect) -> None:
    ping, rollback = dialect.do_ping, dialect.do_rollback

    def do_ping(connection: Any) -> bool:
        return trust.given or ping(connection)

    def do_rollback(connection: Any) -> None:
        if not trust.given:
            rollback(connection)

    # Both are the dialect's published hooks; the pool has no others per call.
    setattr(dialect, "do_ping", do_ping)  # noqa: B010, mypy knows methods only
    setattr(dialect, "do_rollback", do_rollback)  # noqa: B010


def create_for_migration(options: sql_options.SQLOptions) -> sa.Engine:
    """Make an engine whose statements may take as long as a migration does."""
    return create(attrs.evolve(options, timeout_seconds=MIGRATION_TIMEOUT_SECONDS))


def as_writer(connection: sa.Connection) -> sa.Connection:
    """Make the next transaction of a connection a writer's: BEGIN IMMEDIATE in SQLite.

    A deferred transaction that turns writer fails at once if another wrote
    since its first read: no time-out helps (27,840 lock errors in one run).
    """
    connection.info[_WRITER] = True
    return connection


def _create_sqlite(url: sa.URL, options: sql_options.SQLOptions) -> sa.Engine:
    """Make an SQLite engine; oslo.db's has no pool.

    Without one every call closes the file's last connection, and SQLite then
    writes its whole log back: 65 ms per write.
    """
    engine = sa.create_engine(
        url,
        pool_size=options.engine.get("max_pool_size") or 5,
        max_overflow=options.engine.get("max_overflow") or 50,
        connect_args={"timeout": options.timeout_seconds},
    )
    # Readers never wait for the writer in WAL. NORMAL syncs at checkpoints: a
    # power cut may take the last commits back, which readers notice as a head
    # behind their cursor; a crash takes nothing.
    synchronous = "NORMAL" if options.engine.get("sqlite_synchronous", True) else "OFF"

    @sa.event.listens_for(engine, "connect")
    def set_session(connection: Any, _record: Any) -> None:
        # From here on sqlite3 emits no BEGIN of its own.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writes = connection.info.pop(_WRITER, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    exc_filters.register_engine(engine)
    return engine


def _prepare_mysql(
    engine: sa.Engine,
    io_timeout_seconds: float,
    timeout_seconds: float,
    sync_wait: int | None,
) -> None:
    @sa.event.listens_for(engine, "do_connect")
    def set_timeouts(_dialect: Any, _record: Any, _args: Any, parameters: Any) -> None:
        for name in ("connect_timeout", "read_timeout", "write_timeout"):
            parameters.setdefault(name, io_timeout_seconds)

    @sa.event.listens_for(engine, "connect")
    def set_session(connection: Any, record: Any) -> None:
        lock_wait_seconds = max(1, math.floor(io_timeout_seconds) - 1)
        with connection.cursor() as cursor:
            # REPEATABLE READ would lock gaps, and show writers a past they
            # must not decide on.
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            # In local time the clock would repeat an hour every autumn.
            cursor.execute(
                "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = %s",
                (lock_wait_seconds,),
            )
            record.info[GALERA] = galera.set_session(cursor, sync_wait)
            # A writer that is paused in its transaction stops all others; the
            # server ends it. MySQL has no such variable and must wait for TCP.
            with contextlib.suppress(engine.dialect.loaded_dbapi.Error):
                cursor.execute(
                    "SET SESSION idle_transaction_timeout = %s", (math.ceil(timeout_seconds),)
                )


def _prepare_postgresql(
    engine: sa.Engine, io_timeout_seconds: float, timeout_seconds: float
) -> None:
    from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import deadline

    @sa.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, args: Any, parameters: Any) -> Any:
        # libpq takes whole seconds and makes 2 out of 1.
        parameters.setdefault("connect_timeout", max(2, math.floor(io_timeout_seconds)))
        return deadline.connect(io_timeout_seconds, *args, **parameters)

    @sa.event.listens_for(engine, "connect")
    def set_session(connection: Any, _record: Any) -> None:
        # Somewhat below the client's own, so that the server says why.
        server_ms = round(io_timeout_seconds * 800)
        settings = {
            "default_transaction_isolation": "read committed",
            "lock_timeout": f"{server_ms}ms",
            "statement_timeout": f"{server_ms}ms",
            "idle_in_transaction_session_timeout": f"{round(timeout_seconds * 1000)}ms",
        }
        with connection.cursor() as cursor:
            for name, value in settings.items():
                cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.commit()
