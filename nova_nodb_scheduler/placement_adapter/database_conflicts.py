# SPDX-License-Identifier: Apache-2.0
"""What a database's errors mean: another transaction in the way, or a text that cannot be sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exc
from placement import exception

_Made = TypeVar("_Made")

#: oslo.db's, and SQLAlchemy's where oslo.db lets an operational error through as it is.
ERRORS = (db_exc.DBError, sa.exc.DBAPIError)

#: Of PostgreSQL: serialization failure, deadlock, a lock that was not had in lock_timeout.
_STATES = frozenset({"40001", "40P01", "55P03"})
#: The second one only of late releases of oslo.db: MariaDB's innodb_snapshot_isolation.
_CONFLICTS: tuple[type[Exception], ...] = tuple(
    getattr(db_exc, name) for name in ("DBDeadlock", "DBConsistencyError") if hasattr(db_exc, name)
)
#: Of what is made once for many requests, such as a project's record.
_TRIES = 5


def is_conflict(error: BaseException) -> bool:
    """Tell whether a database refused a transaction for the sake of another one."""
    if isinstance(error, _CONFLICTS):
        return True
    cause: Any = getattr(getattr(error, "inner_exception", None) or error, "orig", None)
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return state in _STATES


def is_of_text(error: BaseException) -> bool:
    """Tell whether a text cannot be sent: half a character, or, to PostgreSQL, one with a NUL."""
    cause = getattr(error, "inner_exception", None) or error
    return isinstance(cause, (db_exc.DBInvalidUnicodeParameter, ValueError, sa.exc.DataError))


def tried_again(make: Callable[..., _Made], *args: Any) -> _Made:
    """Call what makes a record in a transaction of its own, until nobody is in the way.

    Two nodes of Galera that make the same one conflict when they commit.

    :raises ConcurrentUpdateDetected: of Placement, where somebody always is
    """
    for _ in range(_TRIES):
        try:
            return make(*args)
        except ERRORS as error:
            if not is_conflict(error):
                raise
    raise exception.ConcurrentUpdateDetected
