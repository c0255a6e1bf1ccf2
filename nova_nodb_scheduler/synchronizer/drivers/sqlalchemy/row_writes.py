# SPDX-License-Identifier: Apache-2.0
"""The statements that write many records at once, in the three dialects.

Their text is made by hand, of constants and placeholders only: compiling a
multi-row insert in SQLAlchemy took longer than the database needs for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import schema, statements


def upsert(
    connection: sa.Connection, rows: Collection[records.Record], *, revisions: bool = False
) -> None:
    """Write records, inserting or replacing, by one statement.

    :param revisions: write the revisions, too (sequencer mode)
    """
    text, parameters = upsert_text(connection, rows, revisions=revisions)
    connection.exec_driver_sql(text, parameters)


def insert(connection: sa.Connection, rows: Collection[records.Record]) -> None:
    """Write records that are not there yet, with their revisions; a duplicate is an error."""
    text, parameters = _insert_text(connection, rows, revisions=True, replace=False)
    connection.exec_driver_sql(text, parameters)


def upsert_text(
    connection: sa.Connection, rows: Collection[records.Record], *, revisions: bool = False
) -> tuple[str, tuple[Any, ...]]:
    """Return the statement of :func:`upsert`, and its parameters."""
    return _insert_text(connection, rows, revisions=revisions, replace=True)


def _insert_text(
    connection: sa.Connection,
    rows: Collection[records.Record],
    *,
    revisions: bool,
    replace: bool,
) -> tuple[str, tuple[Any, ...]]:
    dialect = connection.dialect.name
    columns = ["namespace", "record_key", "version", "payload", "deleted_at"]
    if revisions:
        columns.insert(2, "revision")
    marks = ",".join([mark(connection)] * (len(columns) - 1))
    live = f"({marks},NULL)"
    tombstone = f"({marks},{statements.CLOCKS[dialect]})"
    parameters: list[Any] = []
    for row in rows:
        parameters += names(connection, row.key)
        if revisions:
            parameters.append(row.revision)
        parameters += (row.version, row.payload)
    text = (
        f"INSERT INTO nodb_record ({','.join(columns)}) VALUES "  # noqa: S608, no value in it
        + ",".join(tombstone if row.deleted else live for row in rows)
    )
    if replace and dialect == "mysql":
        text += " ON DUPLICATE KEY UPDATE "
        text += ",".join(f"{column}=VALUES({column})" for column in columns[2:])
    elif replace:
        text += " ON CONFLICT (namespace, record_key) DO UPDATE SET "
        text += ",".join(f"{column}=excluded.{column}" for column in columns[2:])
    return text, tuple(parameters)


def number(connection: sa.Connection, versions: Mapping[records.RecordKey, int]) -> None:
    """Give records that the transaction has locked their versions, by one statement."""
    value = mark(connection)
    parameters: list[Any] = []
    for key, version in versions.items():
        parameters += (*names(connection, key), version)
    if connection.dialect.name == "mysql":
        first = f"SELECT {value} AS space, {value} AS name, {value} AS number"
        others = f" UNION ALL SELECT {value},{value},{value}" * (len(versions) - 1)
        text = (
            f"UPDATE nodb_record JOIN ({first}{others}) AS given "  # noqa: S608, no value in it
            "ON namespace = given.space AND record_key = given.name SET version = given.number"
        )
    else:
        values = ",".join([f"({value},{value},{value})"] * len(versions))
        text = (
            "UPDATE nodb_record SET version = given.column3 "  # noqa: S608, no value in it
            f"FROM (VALUES {values}) AS given "
            "WHERE namespace = given.column1 AND record_key = given.column2"
        )
    connection.exec_driver_sql(text, tuple(parameters))


def mark_head(connection: sa.Connection, version: int) -> None:
    """Write the sequence's version among the records (see ``HEAD_KEY`` in the schema)."""
    key = records.RecordKey(*schema.HEAD_KEY)
    upsert(connection, [records.Record(key, version, version, b"")])


def mark(connection: sa.Connection) -> str:
    """Return the placeholder of the connection's client."""
    return "?" if connection.dialect.name == "sqlite" else "%s"


def names(connection: sa.Connection, key: records.RecordKey) -> tuple[Any, Any]:
    """Return a key's namespace and name as the columns hold them."""
    if connection.dialect.name == "mysql":
        return key.namespace.encode(), key.key.encode()
    return key.namespace, key.key
