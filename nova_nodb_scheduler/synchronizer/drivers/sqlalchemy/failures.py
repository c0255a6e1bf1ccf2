# SPDX-License-Identifier: Apache-2.0
"""The driver's edge: what SQLAlchemy, oslo.db and the clients raise, translated once.

What is wrong with the configured URL is told only while a database is opened: a
service that runs goes on trying, for an operator who changes a password does it on
the server first.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
from oslo_db import exception as db_exc

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import options
from nova_nodb_scheduler.synchronizer.drivers.support import transport_security


class Overtaken(Exception):
    """A transaction to be repeated: another one changed what it was decided on."""


#: What may come out of an engine made by oslo.db, and out of a transaction.
DATABASE_ERRORS: tuple[type[Exception], ...] = (
    db_exc.DBError,
    sa_exc.SQLAlchemyError,
    Overtaken,
)

#: The same, and what PyMySQL does not wrap: that a certificate's file is not there.
_CLIENT_ERRORS: tuple[type[Exception], ...] = (*DATABASE_ERRORS, OSError)

#: Written into an error by the engines when a row or the file stays locked:
#: SQLite's SQLITE_BUSY and PostgreSQL's lock_timeout. oslo.db has no class for
#: them; MariaDB's 1205 and 1213 (of Galera at the commit, too, where it says
#: that the transaction was rolled back) come as DBDeadlock.
_CONTENTION_TEXTS = ("database is locked", "due to lock timeout", "could not serialize access")
#: MariaDB's: shutdown, error at the commit, query killed, connection killed, out of time.
_STOPPED_CODES = frozenset({1053, 1180, 1317, 1927, 1969})
#: The client library's own: the server said nothing, or nothing that could be read.
_CLIENT_CODES = range(2000, 3000)
#: MariaDB's and MySQL's, of a server that takes no writes: a Galera node that is not
#: synced, a transaction that may only read, ``innodb_read_only``.
_UNFIT_CODES = frozenset({1047, 1792, 1836})
#: The same, of ``read_only``, and of other options that forbid a statement.
_FORBIDDEN_CODE = 1290
#: PostgreSQL's, of a standby and of ``default_transaction_read_only``.
_READ_ONLY_STATE = "25006"
#: MariaDB's 1047, of every statement on a Galera node that is not synced.
_NOT_SYNCED_TEXT = "WSREP has not yet prepared node"
_TABLE_MISSING_TEXTS = ("no such table", "1146", "does not exist")


def backend_name(url: sa.URL) -> str:
    """Name the database in messages, without credentials."""
    if url.host is None:
        return f"sqlalchemy at {url.drivername}:{url.database}"
    return f"sqlalchemy at {url.drivername}:{url.host}:{url.port or ''}/{url.database}"


def is_contention(error: BaseException) -> bool:
    """Tell whether a transaction was rolled back for another's sake: repeat it."""
    if isinstance(error, db_exc.DBDeadlock | db_exc.DBDuplicateEntry | Overtaken):
        return True
    if not isinstance(error, DATABASE_ERRORS):
        return False
    # What the client said alone: a statement's parameters may hold any text.
    text = str(innermost(error))
    return any(phrase in text for phrase in _CONTENTION_TEXTS)


def innermost(error: BaseException) -> BaseException:
    """Return what the client raised."""
    inner = error
    for attribute in ("inner_exception", "orig"):
        inner = getattr(inner, attribute, None) or inner
    return inner


def leaves_in_doubt(error: BaseException) -> bool:
    """Tell whether a statement that commits may have been carried out for all that it failed.

    For its connection broke, or its answer could not be read, or it was stopped, which may be
    behind the commit. Any other error of MariaDB's comes before it.
    """
    code = next(iter(innermost(error).args), None)
    is_told = isinstance(code, int) and code not in _CLIENT_CODES and code not in _STOPPED_CODES
    return isinstance(error, db_exc.DBConnectionError) or not is_told


def is_of_unfit_server(error: BaseException) -> bool:
    """Tell whether a server refused a statement for it takes no writes, and says so to all.

    As one that a failover left behind does, on connections that live on.
    """
    inner = innermost(error)
    if getattr(inner, "sqlstate", None) == _READ_ONLY_STATE:
        return True
    code = next(iter(inner.args), None)
    return code in _UNFIT_CODES or (code == _FORBIDDEN_CODE and "read-only" in str(inner))


def is_not_understood(error: BaseException) -> bool:
    """Tell whether the server refused a statement as it was read, so that nothing of it was done.

    As one of a table that is not there, or of a server that knows it not.
    """
    return isinstance(getattr(error, "inner_exception", error), sa_exc.ProgrammingError)


def reason(error: BaseException) -> str:
    """Return what the client said, in one line, without the statement's parameters."""
    inner = innermost(error)
    text = " ".join(str(inner).split())[:300]
    if "nodb_" in text and any(phrase in text for phrase in _TABLE_MISSING_TEXTS):
        text += "; run 'nova-nodb-manage db sync'"
    if _NOT_SYNCED_TEXT in text:
        text += (
            " (this Galera node is not synced: look at its wsrep_cluster_status and "
            "wsrep_local_state_comment, or let [nodb_sqlalchemy] connection name another node)"
        )
    return f"{type(inner).__name__}: {text}"


@contextlib.contextmanager
def translated(
    backend: str,
    leave: Callable[[BaseException], bool] = lambda _error: False,
    leave_server: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Turn database errors into :class:`BackendUnavailable`.

    :param leave: tells which are left as they are
    :param leave_server: called where the server takes no writes
    """
    try:
        yield
    except _CLIENT_ERRORS as error:
        if is_of_unfit_server(error):
            leave_server()
        if leave(error):
            raise
        raise errors.BackendUnavailable(backend, reason(error)) from error


_CREDENTIALS = (
    "the server refuses its user: correct user and password, and let the server's rules admit "
    "this host (some ask for TLS)"
)
_RIGHTS = "its user may not do what the driver does: grant it all rights on the database"
_DATABASE = "there is no such database: create it, or correct the name"
_TLS = (
    "TLS failed: check the certificate files that the URL names (MariaDB: ssl_ca, ssl_cert, "
    "ssl_key; PostgreSQL: sslmode, sslrootcert, sslcert, sslkey), that the server's certificate "
    "names the host of the URL, and that the server speaks TLS"
)

#: MariaDB's and MySQL's codes, and PyMySQL's own 2026.
_BY_CODE = {
    1044: _RIGHTS,
    1045: _CREDENTIALS,
    1049: _DATABASE,
    1130: _CREDENTIALS,  # not from this host
    1142: _RIGHTS,
    1698: _CREDENTIALS,  # as 1045, of users without a password
    2026: _TLS,
    3159: _TLS,  # the server takes nothing else
    4151: _CREDENTIALS,  # locked
}
#: PostgreSQL's words: libpq gives no SQLSTATE of a connection that was refused
#: (28P01, 28000, 3D000, 42501). Patterns, searched in this order.
_BY_WORDS = (
    ("authentication failed for user", _CREDENTIALS),
    ("no password supplied", _CREDENTIALS),
    (r"no pg_hba\.conf entry", _CREDENTIALS),
    (r"pg_hba\.conf rejects", _CREDENTIALS),
    ("is not permitted to log in", _CREDENTIALS),
    ('role ".*" does not exist', _CREDENTIALS),
    ('FATAL:  database ".*" does not exist', _DATABASE),
    ("permission denied for", _RIGHTS),
    ("SSL error:", _TLS),
    ("does not support SSL", _TLS),
    ("certificate", _TLS),
    ("private key file", _TLS),
)


@contextlib.contextmanager
def translated_at_opening(url: sa.URL) -> Iterator[None]:
    """Translate what is raised while a database is opened.

    :raises ConfigurationError: waiting does not help, the URL must be mended
    :raises BackendUnavailable: the rest
    """
    try:
        with translated(backend_name(url)):
            yield
    except errors.BackendUnavailable as error:
        remedy = _remedy(url, error.__cause__) if error.__cause__ is not None else None
        if remedy is None:
            raise
        raise errors.ConfigurationError(
            f"[{options.GROUP}] connection",
            url.render_as_string(hide_password=True),
            f"{remedy} ({error.reason}).",
        ) from error


def _remedy(url: sa.URL, error: BaseException) -> str | None:
    inner = innermost(error)
    # PyMySQL wraps what the socket raised; of files it cannot read it wraps nothing.
    of_socket = getattr(inner, "original_exception", inner)
    if transport_security.is_tls_refused(of_socket) or isinstance(
        inner, FileNotFoundError | PermissionError
    ):
        return _TLS
    if url.get_backend_name() == "mysql":
        return _BY_CODE.get(inner.args[0]) if inner.args else None
    if url.get_backend_name() == "postgresql":
        text = str(inner)
        return next((remedy for words, remedy in _BY_WORDS if re.search(words, text)), None)
    return None
