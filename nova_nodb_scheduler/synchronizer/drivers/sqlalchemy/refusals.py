# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the configured URL where a database refuses to be opened.

Only while it is opened: a service that runs goes on trying, for an operator who
changes a password does it on the server first.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import sqlalchemy as sa

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer import tls
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import failures, options

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
def opening(url: sa.URL) -> Iterator[None]:
    """Translate what is raised while a database is opened.

    :raises ConfigurationError: waiting does not help, the URL must be mended
    :raises BackendUnavailable: the rest
    """
    try:
        with failures.translated(failures.backend_name(url)):
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
    inner = failures.innermost(error)
    # PyMySQL wraps what the socket raised; of files it cannot read it wraps nothing.
    of_socket = getattr(inner, "original_exception", inner)
    if tls.is_refused(of_socket) or isinstance(inner, FileNotFoundError | PermissionError):
        return _TLS
    if url.get_backend_name() == "mysql":
        return _BY_CODE.get(inner.args[0]) if inner.args else None
    if url.get_backend_name() == "postgresql":
        text = str(inner)
        return next((remedy for words, remedy in _BY_WORDS if re.search(words, text)), None)
    return None
