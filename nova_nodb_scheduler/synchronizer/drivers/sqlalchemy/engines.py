# SPDX-License-Identifier: Apache-2.0
"""Makes the SQLAlchemy engine: oslo.db's, with time-outs, session settings and checks of our own.

A Galera node is asked how it stands before it is relied upon. An SQLite file is
made for its owner alone: whoever writes it decides where servers land, and whoever
may write its directory can put another file in its place. SQLite itself makes
files as the process's umask says, for all to read; its log and its shared memory
(``-wal``, ``-shm``) get the rights of the file.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import select
import stat
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa
import sqlalchemy.event
import sqlalchemy.exc as sa_exc
from oslo_db.sqlalchemy import engines as oslo_engines
from oslo_db.sqlalchemy import exc_filters
from oslo_log import log as logging

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import failures, schema
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import options as sql_options
from nova_nodb_scheduler.synchronizer.drivers.support import transport_security

LOG = logging.getLogger(__name__)

#: What MariaDB and MySQL put together to one value, of a page of records; less where they send
#: no packet so large. Of larger pages each record is a row.
_MOST_TOGETHER_BYTES = 16 * 2**20

_SYNCED = "Synced"
_LOOK = "look at the node's log, or let [nodb_sqlalchemy] connection name another node"


def set_galera_session(cursor: Any, wanted_sync_wait: int | None) -> bool:
    """Make a new session's reads see what other nodes have committed; False without Galera.

    A read on one node would otherwise not see a write that was accepted
    through another a moment before, as the driver's contract demands.

    :param wanted_sync_wait: the operator's own setting; reads wait anyway
    """
    cursor.execute("SHOW VARIABLES LIKE 'wsrep_on'")
    found = cursor.fetchone()
    if found is None or str(found[1]).upper() not in ("ON", "1"):
        return False
    cursor.execute("SET SESSION wsrep_sync_wait = %s", ((wanted_sync_wait or 0) | 1,))
    return True


def check_galera_node(engine: sa.Engine, ordering: str) -> None:
    """Warn of a node that is no good choice.

    One that is not ready at all refuses every statement, the first of a
    connection included: :mod:`.failures` says what that means.
    """
    if engine.dialect.name != "mysql":
        return
    with engine.connect() as connection:
        status = _galera_status(connection)
    if not status:
        return
    name = failures.backend_name(engine.url)
    state = status.get("wsrep_local_state_comment", "")
    if state != _SYNCED:
        LOG.warning(
            "The Galera node %(backend)s is %(state)s, not Synced: it may fall behind: %(look)s",
            {"backend": name, "state": state, "look": _LOOK},
        )
    if ordering == schema.COUNTER and int(status.get("wsrep_cluster_size") or 0) > 1:
        LOG.warning(
            "%(backend)s is a node of a Galera cluster, and [nodb_sqlalchemy] ordering = counter: "
            "all services must write through one and the same node (a proxy with a single active "
            "server), or every commit conflicts; else set ordering = sequencer",
            {"backend": name},
        )


def _galera_status(connection: sa.Connection) -> Mapping[str, str]:
    """Read what a node says of itself; empty where there is no Galera."""
    on = connection.exec_driver_sql("SHOW VARIABLES LIKE 'wsrep_on'").one_or_none()
    if on is None or str(on[1]).upper() not in ("ON", "1"):
        return {}
    rows = connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'wsrep\\_%%'")
    return {str(row[0]): str(row[1]) for row in rows}


SQLITE_FILE_MODE = 0o600
_BESIDE = ("", "-wal", "-shm")
_OTHERS = stat.S_IRWXO


def prepare_sqlite_file(path: str, option: str) -> None:
    """Make the file for its owner alone, or look at the one that is there; idempotent.

    A file that others may read (a former release made such) is closed to group
    and others. One that only its group may read, too, was made so by the
    operator and stays. What root makes in another's directory is given to that
    user, or Nova's services could not open it.

    :raises ConfigurationError: everybody may put another file in its place
    """
    file = pathlib.Path(path)
    directory = file.absolute().parent
    try:
        found = directory.stat()
    except OSError:
        return  # to open it says why
    _check_directory(directory, found, option)
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, SQLITE_FILE_MODE)
    except FileExistsError:
        _close_to_others(file)
        return
    except OSError:
        return
    with contextlib.closing(os.fdopen(descriptor, "rb")):
        if os.geteuid() == 0 and found.st_uid != 0:
            os.fchown(descriptor, found.st_uid, found.st_gid)


def _check_directory(directory: pathlib.Path, found: os.stat_result, option: str) -> None:
    everybody_writes = bool(found.st_mode & stat.S_IWOTH)
    if everybody_writes and not found.st_mode & stat.S_ISVTX:
        raise errors.ConfigurationError(
            option,
            str(directory),
            "everybody on this host may write that directory, and so replace the file by which "
            f"servers are placed: run 'chmod o-w {directory}', or name another directory",
        )
    if everybody_writes:
        LOG.warning(
            "Everybody on this host may make files in %(directory)s, where the file by which "
            "servers are placed lies; give %(option)s a directory of its own.",
            {"directory": directory, "option": option},
        )
    elif found.st_uid not in (0, os.geteuid()) and os.geteuid() != 0:
        LOG.warning(
            "The directory %(directory)s belongs to user %(owner)d, and this process runs as "
            "%(own)d: that user may replace the file by which servers are placed.",
            {"directory": directory, "owner": found.st_uid, "own": os.geteuid()},
        )


def _close_to_others(file: pathlib.Path) -> None:
    for end in _BESIDE:
        beside = file.with_name(file.name + end)
        try:
            mode = stat.S_IMODE(beside.stat().st_mode)
            if mode & _OTHERS:
                beside.chmod(SQLITE_FILE_MODE)
                LOG.warning(
                    "%(file)s could be read by everybody on this host (%(mode)o); it is its "
                    "owner's alone now.",
                    {"file": beside, "mode": mode},
                )
        except FileNotFoundError:
            continue
        except OSError as error:
            LOG.warning(
                "%(file)s can be read by everybody on this host, and cannot be closed to them "
                "(%(error)s): run 'chmod 600' on it as its owner.",
                {"file": beside, "error": error},
            )


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
#: In a connection's ``info``: which file it was made to, see :func:`_follow_file`.
_FILE = "nodb_file"
#: Where the options say nothing: what oslo.db's options default to.
_ENGINE_DEFAULTS: dict[str, Any] = {"mysql_sql_mode": "TRADITIONAL"}
#: Migrations copy tables; a server that is down is still noticed at connect.
MIGRATION_TIMEOUT_SECONDS = 3600.0


class Trust(threading.local):
    """Whether this thread vouches for the connections that it takes and returns.

    The pool asks every connection that it lends whether it lives, and rolls
    back every one that returns: two exchanges, as many as a small write needs
    without them. Both stay the rule; who vouches deals with a dead connection
    at its first statement, and returns it behind a commit. A context: entered twice for
    each small write, so not one that a generator makes.
    """

    given = False

    def __enter__(self) -> None:
        self.given = True

    def __exit__(self, *_error: object) -> None:
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

    :raises ConfigurationError: everybody may replace it; see :mod:`.engines`
    """
    path = _sqlite_path(parse(options.connection))
    if path is not None:
        prepare_sqlite_file(path, _CONNECTION_OPTION)


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
        transport_security.warn_of_plain_passwords(_CONNECTION_OPTION, [url.host or ""], remedy)


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


def is_silent(connection: sa.Connection) -> bool:
    """Tell whether the server has said nothing on a connection at rest, not even its end.

    No exchange. What a server sends as it shuts down, or ends a session, is there to be read, and
    so is the end of the connection itself. False where the client library shows no socket.
    """
    socket: Any = getattr(connection.connection.dbapi_connection, "_sock", None)
    try:
        readable, _, _ = select.select([socket], [], [], 0)
    except (OSError, TypeError, ValueError):
        # None, or closed, or more than select knows.
        return False
    return not readable


def rows(
    connection: sa.Connection, text: str, parameters: tuple[Any, ...]
) -> Sequence[Sequence[Any]]:
    """Say a statement in no transaction of the client's; return its rows.

    The client library's own cursor: what SQLAlchemy does around it, for a statement that
    begins and ends its transaction itself, is half of what a small write or read takes.
    Errors are SQLAlchemy's and oslo.db's all the same.
    """
    tell = getattr(connection, "_handle_dbapi_exception", None)
    if tell is None:
        # Another SQLAlchemy.
        return connection.exec_driver_sql(text, parameters).all()
    cursor = connection.connection.cursor()
    try:
        cursor.execute(text, parameters)
        found: Sequence[Sequence[Any]] = cursor.fetchall()
        # Reads what is left of the answer.
        cursor.close()
    except BaseException as error:
        # It raises, and drops a connection that broke, or whose answer was left unread.
        tell(error, text, parameters, cursor, None)
        raise
    return found


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

    _follow_file(engine, url)
    exc_filters.register_engine(engine)
    return engine


def _follow_file(engine: sa.Engine, url: sa.URL) -> None:
    """Connect anew where another file stands in the place of the one that is open.

    An open connection goes on in a file that has no name any more: what is written
    there is acknowledged, seen by nobody, and gone with the last who has it open.
    """
    path = _sqlite_path(url)
    if path is None:
        return
    known: set[tuple[int, int]] = set()

    def gone() -> sa_exc.SQLAlchemyError:
        return sa_exc.SQLAlchemyError(f"{path} is gone: put it back, or restart this service")

    @sa.event.listens_for(engine, "do_connect")
    def note_file(_dialect: Any, record: Any, _args: Any, _parameters: Any) -> None:
        # Before it is opened: one that is replaced meanwhile is connected to again.
        standing = _file_identity(path)
        if standing is None and known:
            # SQLite would make one.
            raise gone()
        if standing is not None:
            known.add(standing)
        record.info[_FILE] = standing

    @sa.event.listens_for(engine, "checkout")
    def compare_file(_connection: Any, record: Any, _proxy: Any) -> None:
        standing = _file_identity(path)
        if standing is None:
            raise gone()
        if standing != record.info.get(_FILE):
            raise sa_exc.DisconnectionError(f"another file stands at {path}")


def _file_identity(path: str) -> tuple[int, int] | None:
    """Return what tells a file from others; None where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


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
                "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = %s, "
                "group_concat_max_len = LEAST(%s, @@max_allowed_packet DIV 2)",
                (lock_wait_seconds, _MOST_TOGETHER_BYTES),
            )
            record.info[GALERA] = set_galera_session(cursor, sync_wait)
            # A writer that is paused in its transaction stops all others; the
            # server ends it. MySQL has no such variable and must wait for TCP.
            with contextlib.suppress(_client_error(engine.dialect)):
                cursor.execute(
                    "SET SESSION idle_transaction_timeout = %s", (math.ceil(timeout_seconds),)
                )


def _client_error(dialect: sa.Dialect) -> type[Exception]:
    """Return the root of what the client library raises."""
    error: type[Exception] = dialect.loaded_dbapi.Error
    return error


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
