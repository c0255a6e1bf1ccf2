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

On MariaDB a small write is *one* statement. The server itself locks the sequence,
compares, writes and commits: nobody waits for a lock while its holder, a busy
process on another machine, has to be given a processor before it says the next
statement. Where a compare-and-set would be lost, or the sequence is not what this
process knows, nothing is written: the writer then goes the way above, which tells
what stands there.

That statement commits, so a connection that ends under it leaves the write in
doubt; and it may not be said again on another connection. Nor may it arrive
when its writer has long looked what became of it: behind the lock it compares
the clock with the time until which its writer waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, epochs, schema, statements

_LOCK = f"SELECT id FROM nodb_sequence WHERE id = {schema.SEQUENCE_ID} FOR UPDATE"  # noqa: S608
_ADVANCE = f"UPDATE nodb_sequence SET version = {{mark}} WHERE id = {schema.SEQUENCE_ID}"  # noqa: S608


def lock(connection: sa.Connection, keys: Collection[records.RecordKey]) -> statements.Found:
    """Lock the sequence until the transaction ends, and read what stands behind the lock."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_LOCK)
    return statements.beside_sequence(connection, keys, locked=True)


def put(connection: sa.Connection, version: int, rows: Sequence[records.Record]) -> None:
    """Move the locked sequence on to a version, and write records."""
    dialect = connection.dialect
    advance = _ADVANCE.format(mark=statements.mark(connection))
    text, parameters = statements.upsert_text(connection, rows)
    if dialect.name == "postgresql":
        text = f"WITH moved AS ({advance}) {text}"
    elif getattr(dialect, "is_mariadb", False):
        text = f"BEGIN NOT ATOMIC {advance}; {text}; END"
    else:
        connection.exec_driver_sql(advance, (version,))
        connection.exec_driver_sql(text, parameters)
        return
    connection.exec_driver_sql(text, (version, *parameters))


#: Beyond these the comparisons cost the server more than exchanges cost.
_MOST_KEYS = 32
#: Of a write in the statement beside its payload and, twice, its key.
_WRITE_BYTES = 400

_CLOCK = statements.CLOCKS["mysql"]
#: In statements of their own behind the lock: a subquery of the locking one would see
#: what was committed before the wait. Each condition is a look-up by an index; a scan
#: would cost, and FORCE INDEX keeps MariaDB from one where the table is small.
_WRITE = (
    "BEGIN NOT ATOMIC "  # noqa: S608, constants and placeholders only
    "DECLARE own_version, own_floor BIGINT; "
    "SELECT version, floor INTO own_version, own_floor FROM nodb_sequence "
    f"WHERE id = {schema.SEQUENCE_ID} AND epoch = %s AND version >= %s "
    f"AND COALESCE(ordering, '{schema.COUNTER}') = '{schema.COUNTER}' FOR UPDATE; "
    "IF own_version IS NOT NULL AND (own_version <= own_floor "
    "OR EXISTS (SELECT 1 FROM nodb_record WHERE version = own_version)) "
    "AND UNIX_TIMESTAMP(SYSDATE(6)) <= %s {conditions} THEN "
    f"UPDATE nodb_sequence SET version = own_version + %s WHERE id = {schema.SEQUENCE_ID}; "
    "INSERT INTO nodb_record (namespace,record_key,version,payload,deleted_at) VALUES {rows} "
    "ON DUPLICATE KEY UPDATE version=VALUES(version),payload=VALUES(payload),"
    "deleted_at=VALUES(deleted_at); "
    "COMMIT AND NO CHAIN NO RELEASE; SELECT own_version; "
    "ELSE ROLLBACK AND NO CHAIN NO RELEASE; SELECT NULL; END IF; END"
)
_ABSENT = (
    "AND NOT EXISTS (SELECT 1 FROM nodb_record FORCE INDEX (PRIMARY) WHERE namespace = %s "
    "AND record_key IN ({marks}) AND deleted_at IS NULL)"
)
_STANDING = "AND %s = (SELECT COUNT(*) FROM nodb_record FORCE INDEX (PRIMARY) WHERE {each})"
_ONE = "(namespace = %s AND record_key = %s AND COALESCE(revision, version) = %s)"


def allows_whole_writes(connection: sa.Connection) -> bool:
    """Tell whether the server knows compound statements outside of procedures.

    A node of a Galera cluster does, but the answer behind the COMMIT may wait
    for other nodes there, and fail like a lock that was not to be had.
    """
    is_mariadb = bool(getattr(connection.dialect, "is_mariadb", False))
    return is_mariadb and not connection.info.get(engines.GALERA)


def fits_one_statement(writes: Sequence[records.Write], most_bytes: int) -> bool:
    """Tell whether writes are few and small enough for one statement.

    :param most_bytes: of the statement, before anything in it is escaped
    """
    if len(writes) > _MOST_KEYS:
        return False
    size_bytes = sum(
        len(each.payload) + 8 * len(each.key.namespace) + 8 * len(each.key.key) + _WRITE_BYTES
        for each in writes
    )
    return size_bytes <= most_bytes


def write_whole(
    connection: sa.Connection,
    writes: Sequence[records.Write],
    known: epochs.Known,
    until_seconds: float,
) -> int | None:
    """Carry out all compare-and-sets, and commit, if each is won.

    :param writes: of different records
    :param known: the sequence may not be behind it
    :param until_seconds: by the server's clock; nothing is written later
    :returns: the version before the first write's; None: nothing was written
    """
    absent: dict[bytes, list[bytes]] = {}
    standing: list[Any] = []
    rows: list[str] = []
    values: list[Any] = []
    for number, each in enumerate(writes, 1):
        namespace, name = statements.encoded_names(connection, each.key)
        if each.expected_revision:
            standing += (namespace, name, each.expected_revision)
        else:
            absent.setdefault(namespace, []).append(name)
        rows.append(f"(%s,%s,own_version+{number},%s,{_CLOCK if each.deleted else 'NULL'})")
        values += (namespace, name, b"" if each.deleted else bytes(each.payload))
    conditions: list[str] = []
    parameters: list[Any] = [known.epoch, known.version, until_seconds]
    for namespace, names in absent.items():
        conditions.append(_ABSENT.format(marks=",".join(["%s"] * len(names))))
        parameters += (namespace, *names)
    if standing:
        count = len(standing) // 3
        conditions.append(_STANDING.format(each=" OR ".join([_ONE] * count)))
        parameters += (count, *standing)
    text = _WRITE.format(conditions=" ".join(conditions), rows=",".join(rows))
    [[found]] = engines.rows(connection, text, (*parameters, len(writes), *values))
    return None if found is None else int(found)
