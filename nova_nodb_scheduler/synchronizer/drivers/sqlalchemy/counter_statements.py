# SPDX-License-Identifier: Apache-2.0
"""The statements of a write in counter mode: as few exchanges as each database allows.

========== =========================================== ======================
database   lock and read                               sequence and upsert
========== =========================================== ======================
MariaDB    one SELECT ... FOR UPDATE                   one compound statement
MySQL      one SELECT ... FOR UPDATE                   two
PostgreSQL two: a snapshot is older than the wait for  one, a WITH
           a lock that is in the same statement
SQLite     one, behind BEGIN IMMEDIATE                 two (nothing travels)
========== =========================================== ======================

Their text is made by hand, of constants and placeholders only: to build and
look up SQLAlchemy's expressions took more time than all the rest of a write.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import row_writes, schema, statements

_LOCK = f"SELECT id FROM nodb_sequence WHERE id = {schema.SEQUENCE_ID} FOR UPDATE"  # noqa: S608
#: The left joins keep the order: nobody waits for a record's lock without the
#: sequence's. MySQL reads what it locks as it is after the wait.
_READ = (
    "SELECT {columns} "  # noqa: S608
    "FROM nodb_sequence AS s "
    "LEFT JOIN nodb_record AS newest ON newest.version = s.version "
    "LEFT JOIN nodb_record AS r {hint} ON ({keys}) "
    f"WHERE s.id = {schema.SEQUENCE_ID}"
)
_COLUMNS = (
    "s.epoch, s.version, s.floor, s.ordering, newest.version, "
    "r.namespace, r.record_key, COALESCE(r.revision, r.version), r.version, r.deleted_at"
)
#: MySQL's client is Python, and reads the description of a column in 30 calls: ten
#: columns took half of all that a write takes. NULL where there is no record.
_TWO_COLUMNS = (
    "CONCAT(s.epoch, ' ', s.version, ' ', s.floor, ' ', COALESCE(newest.version, 0), ' ', "
    "COALESCE(s.ordering, '')), " + statements.TEXT_COLUMN.format("r.")
)
_ADVANCE = f"UPDATE nodb_sequence SET version = {{mark}} WHERE id = {schema.SEQUENCE_ID}"  # noqa: S608


@attrs.frozen
class Found:
    """What a writer finds behind the lock.

    :param sequence: None where there is none; its ``newest`` is 0 if the
        record that got the last version is not there
    :param standing: those of the asked-for records that are there, without
        their payloads
    """

    sequence: statements.SequenceRow | None
    standing: dict[records.RecordKey, records.Record]


def lock(connection: sa.Connection, keys: Collection[records.RecordKey]) -> Found:
    """Lock the sequence until the transaction ends, and read what stands behind the lock."""
    dialect = connection.dialect.name
    mark = row_writes.mark(connection)
    by_namespace: dict[Any, list[Any]] = {}
    for key in keys:
        namespace, name = row_writes.names(connection, key)
        by_namespace.setdefault(namespace, []).append(name)
    parameters: list[Any] = []
    conditions = []
    for namespace, names in by_namespace.items():
        # Look-ups by primary key, see statements.by_keys.
        marks = ",".join([mark] * len(names))
        conditions.append(f"r.namespace = {mark} AND r.record_key IN ({marks})")
        parameters += (namespace, *names)
    # A scan of a table that MariaDB believes to be small would lock all it passes.
    hint = "FORCE INDEX (PRIMARY)" if dialect == "mysql" else ""
    if dialect == "mysql":
        text = _READ.format(columns=_TWO_COLUMNS, hint=hint, keys=") OR (".join(conditions))
        rows = connection.exec_driver_sql(text + " FOR UPDATE", tuple(parameters)).all()
        return _of_two_columns(rows)
    if dialect == "postgresql":
        connection.exec_driver_sql(_LOCK)
    text = _READ.format(columns=_COLUMNS, hint=hint, keys=") OR (".join(conditions))
    rows = connection.exec_driver_sql(text, tuple(parameters)).all()
    if not rows:
        return Found(None, {})
    epoch, version, floor, ordering, newest = rows[0][:5]
    sequence = statements.SequenceRow(
        epoch, version, floor, ordering or schema.COUNTER, newest or 0
    )
    there = [(*row[5:], b"") for row in rows if row[5] is not None]
    return Found(sequence, {record.key: record for record in statements.to_records(there)})


def _of_two_columns(rows: Sequence[Sequence[Any]]) -> Found:
    if not rows:
        return Found(None, {})
    epoch, version, floor, newest, ordering = _text(rows[0][0]).split(" ", 4)
    sequence = statements.SequenceRow(
        epoch, int(version), int(floor), ordering or schema.COUNTER, int(newest)
    )
    standing = {}
    for _, text in rows:
        if text is not None:
            record = statements.of_text(text, b"")
            standing[record.key] = record
    return Found(sequence, standing)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def put(connection: sa.Connection, version: int, rows: Sequence[records.Record]) -> None:
    """Move the locked sequence on to a version, and write records."""
    dialect = connection.dialect
    advance = _ADVANCE.format(mark=row_writes.mark(connection))
    text, parameters = row_writes.upsert_text(connection, rows)
    if dialect.name == "postgresql":
        text = f"WITH moved AS ({advance}) {text}"
    elif getattr(dialect, "is_mariadb", False):
        text = f"BEGIN NOT ATOMIC {advance}; {text}; END"
    else:
        connection.exec_driver_sql(advance, (version,))
        connection.exec_driver_sql(text, parameters)
        return
    connection.exec_driver_sql(text, (version, *parameters))
