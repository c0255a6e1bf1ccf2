# SPDX-License-Identifier: Apache-2.0
"""A row of ``compute_nodes`` outside of its table: what SQL would have made of values.

A row is a mapping of all columns of Nova's model to what a database driver gives
(date-times naive, in UTC). Rows are never changed: what Nova's functions do to one
makes another. Deleted rows are rows, too: ``deleted`` holds their id.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from nova.db import types as nova_types
from nova.db.main import api as main_db
from nova.db.main import models
from oslo_db import exception as db_exception
from oslo_utils import timeutils
from sqlalchemy.dialects import sqlite

Row = Mapping[str, Any]
State = dict[str, Any]

_TABLE = models.ComputeNode.__table__
#: For what a type of Nova's does to a value whatever the database.
_ANY_DIALECT = sqlite.dialect()

_ADDRESSES = (ipaddress.IPv4Address, ipaddress.IPv6Address)

#: Columns whose values a state holds as text in ISO 8601.
DATE_TIMES = frozenset(each.name for each in _TABLE.columns if isinstance(each.type, sa.DateTime))


def _converter(column: sa.Column[Any]) -> Callable[[Any], Any]:
    """Return what a column makes of a value that is not NULL."""
    kind = column.type
    if isinstance(kind, nova_types.IPAddress):
        return lambda value: kind.process_bind_param(str(value), _ANY_DIALECT)
    if isinstance(kind, sa.Float):
        return float
    if isinstance(kind, sa.DateTime):
        return _naive
    if column.name == "deleted" or isinstance(kind, sa.Integer):
        return int
    return str


def _naive(value: datetime.datetime) -> datetime.datetime:
    return value.replace(tzinfo=None)


_CONVERTERS = {column.name: _converter(column) for column in _TABLE.columns}

_DEFAULTS = {each.name: each.default for each in _TABLE.columns if each.default is not None}

_REQUIRED = frozenset(each.name for each in _TABLE.columns if not each.nullable)


def inserted(values: Mapping[str, Any], node_id: int) -> Row:
    """Return the row that an INSERT of Nova's model leaves.

    As SQLAlchemy does it, None is no value: the column's default stands in its place.

    :raises DBError: a column that may not be NULL would be
    """
    made = _converted(values)
    row = dict.fromkeys(_CONVERTERS) | {
        name: value for name, value in made.items() if value is not None
    }
    for name, default in _DEFAULTS.items():
        if row[name] is None:
            # SQLAlchemy keeps functions as those of an execution's context.
            row[name] = default.arg(None) if default.is_callable else default.arg
    row["id"] = node_id
    return _checked(row)


def updated(row: Row, values: Mapping[str, Any], now: datetime.datetime | None = None) -> Row:
    """Return what an UPDATE of some columns leaves; ``updated_at`` is set in any case.

    :raises DBError: a column that may not be NULL would be
    """
    return _checked({**row, **_converted(values), "updated_at": now or timeutils.utcnow()})


def restored(row: Row, values: Mapping[str, Any]) -> Row:
    """Return what a creation makes of a row with its uuid that exists, deleted or not."""
    return updated(row, {**values, "deleted": 0, "deleted_at": None})


def soft_deleted(row: Row, now: datetime.datetime | None = None, **others: Any) -> Row:
    """Return a row as Nova deletes it: ``updated_at`` stays."""
    return {**row, "deleted": row["id"], "deleted_at": now or timeutils.utcnow(), **others}


def is_live(row: Row) -> bool:
    """Tell whether a row is not soft-deleted."""
    return not row["deleted"]


def _converted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as the database would give them back, without names of no column."""
    own = {name: value for name, value in values.items() if name in _CONVERTERS}
    main_db.convert_objects_related_datetimes(own)
    return {
        name: None if value is None else _CONVERTERS[name](value) for name, value in own.items()
    }


def _checked(row: dict[str, Any]) -> Row:
    missing = sorted(name for name in _REQUIRED if row[name] is None)
    if missing:
        # As oslo.db translates a violated NOT NULL.
        raise db_exception.DBError(
            ValueError(f"compute_nodes: {', '.join(missing)} may not be NULL")
        )
    return row


def to_state(row: Row) -> State:
    """Return a row as JSON carries it."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    # psycopg 3 gives such for PostgreSQL's INET, psycopg2 and the others text.
    return str(value) if isinstance(value, _ADDRESSES) else value


def from_state(state: Mapping[str, Any]) -> Row:
    """Read what :func:`to_state` made; columns that a release does not know are kept.

    A column of this release that the writer's did not have is NULL, as a migration that
    adds it leaves it.

    :raises ValueError: a date-time is none
    :raises TypeError: likewise
    """
    row = dict.fromkeys(_CONVERTERS) | dict(state)
    for name in DATE_TIMES:
        if row[name] is not None:
            row[name] = datetime.datetime.fromisoformat(row[name])
    return row
