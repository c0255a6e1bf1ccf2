# SPDX-License-Identifier: Apache-2.0
"""The statements of the protocol in the three dialects, and the steps between them.

Those that write many records at once are made by hand, of constants and
placeholders only: compiling a multi-row insert in SQLAlchemy took longer than the
database needs for it. Tests pause and kill a process at the steps.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler.model import record_columns, records
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, schema

#: A small write in counter mode by one statement, on MariaDB.
WHOLE = "send whole"
#: Of the transaction that begins an epoch, drops old tombstones, or records on an
#: operator's word: its commit.
BEGIN_EPOCH, COLLECT, RESET = "begin epoch", "collect", "reset"

_KEEPING = (BEGIN_EPOCH, COLLECT, RESET)

#: In counter mode, see :mod:`.writing`.
COUNTER_STEPS: tuple[str, ...] = ("lock", "upsert", "commit", "reply", *_KEEPING)
#: The same where a small write may be one statement: it passes WHOLE in place of
#: upsert and commit, and comes by these where it wrote nothing by that.
COUNTER_OR_WHOLE_STEPS: tuple[str, ...] = ("lock", WHOLE, "upsert", "commit", "reply", *_KEEPING)
#: In sequencer mode, see :mod:`.writing` and :mod:`.sequencing`.
SEQUENCER_STEPS: tuple[str, ...] = (
    *("epoch", "lock", "upsert", "commit"),
    *("number", "assign", "publish", "reply"),
    *_KEEPING,
)

#: Told each step before it is taken, in the caller's thread.
Observer = Callable[[str], None]


_RECORD = schema.record
_SEQUENCE = schema.sequence

#: The database's clock as seconds since 1970. MySQL sessions run in UTC.
CLOCKS = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "mysql": "UNIX_TIMESTAMP(NOW(6))",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
}


_SEQUENCE_COLUMNS = (
    _SEQUENCE.c.epoch,
    _SEQUENCE.c.version,
    _SEQUENCE.c.floor,
    _SEQUENCE.c.ordering,
)


@attrs.frozen
class SequenceRow:
    """The row of ``nodb_sequence``.

    :param ordering: how versions are handed out, see :mod:`.schema`
    :param newest: highest version any record has, 0 where there is none;
        read by :func:`peek` only
    :param unnumbered: whether a record waits for its version; read by
        :func:`peek` only
    """

    epoch: str
    version: int
    floor: int
    ordering: str = schema.COUNTER
    newest: int | None = None
    unnumbered: bool = False

    @property
    def cursor(self) -> records.Cursor:
        return records.Cursor(self.epoch, self.version)

    @property
    def is_torn(self) -> bool:
        """True if somebody emptied or put back the records, or the sequence, alone.

        The record that got the last version is there, or it was a tombstone
        and collected: then the floor is not below it. None has a later one: its
        version would be given a second time.
        """
        if self.newest is None:
            return False
        return self.newest > self.version or self.version > max(self.newest, self.floor)


def clock_of(connection: sa.Connection) -> sa.ColumnElement[float]:
    """Return the database's clock as an expression."""
    return sa.literal_column(CLOCKS[connection.dialect.name], sa.Double())


def clock(connection: sa.Connection) -> float:
    """Read the database's clock."""
    text = f"SELECT {CLOCKS[connection.dialect.name]}"
    return float(connection.exec_driver_sql(text).scalar_one())


_NEWEST = "COALESCE((SELECT MAX(version) FROM nodb_record), 0)"
_UNNUMBERED = (
    "CASE WHEN EXISTS (SELECT 1 FROM nodb_record "  # noqa: S608
    f"WHERE version = {schema.UNNUMBERED}) THEN 1 ELSE 0 END"
)
_OF_SEQUENCE = f"FROM nodb_sequence WHERE id = {schema.SEQUENCE_ID}"
#: By hand, as SQLAlchemy's expressions cost three times what the database does,
#: and each scheduler says this up to eighty times a second.
_PEEK = f"SELECT epoch, version, floor, ordering, {_NEWEST}, {_UNNUMBERED} {_OF_SEQUENCE}"
#: MySQL's client is Python, and reads the description of a column in 30 calls.
_PEEK_AT_ONE_COLUMN = (
    f"SELECT CONCAT(epoch, ' ', version, ' ', floor, ' ', {_NEWEST}, ' ', {_UNNUMBERED}, ' ', "
    f"COALESCE(ordering, '')) {_OF_SEQUENCE}"
)


def peek(connection: sa.Connection) -> SequenceRow | None:
    """Read the sequence, without a lock."""
    if connection.dialect.name == "mysql":
        text = connection.exec_driver_sql(_PEEK_AT_ONE_COLUMN).scalar_one_or_none()
        if text is None:
            return None
        epoch, version, floor, newest, unnumbered, ordering = text.split(" ", 5)
        return SequenceRow(
            epoch,
            int(version),
            int(floor),
            ordering or schema.COUNTER,
            int(newest),
            unnumbered != "0",
        )
    row = connection.exec_driver_sql(_PEEK).one_or_none()
    if row is None:
        return None
    return SequenceRow(row[0], row[1], row[2], row[3] or schema.COUNTER, row[4], bool(row[5]))


def lock(connection: sa.Connection) -> SequenceRow | None:
    """Lock the sequence, and with it all others who number, until the transaction ends.

    ``newest`` is not read here: after a wait for the lock PostgreSQL would
    take the row as it is now, but a subquery as of before the wait.
    """
    statement = (
        sa.select(*_SEQUENCE_COLUMNS).where(_SEQUENCE.c.id == schema.SEQUENCE_ID).with_for_update()
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else SequenceRow(row[0], row[1], row[2], row[3] or schema.COUNTER)


def floor(connection: sa.Connection) -> int:
    """Read the floor alone, without a lock; -1 where there is no sequence."""
    statement = sa.select(_SEQUENCE.c.floor).where(_SEQUENCE.c.id == schema.SEQUENCE_ID)
    found = connection.execute(statement).scalar_one_or_none()
    return -1 if found is None else int(found)


def advance(connection: sa.Connection, version: int) -> bool:
    """Move the locked sequence on; False if the records it names are gone."""
    last_is_there = sa.exists().where(_RECORD.c.version == _SEQUENCE.c.version)
    statement = (
        _SEQUENCE.update()
        .where(_SEQUENCE.c.id == schema.SEQUENCE_ID)
        .where(sa.or_(_SEQUENCE.c.version <= _SEQUENCE.c.floor, last_is_there))
        .values(version=version)
    )
    return connection.execute(statement).rowcount == 1


def by_keys(keys: Collection[records.RecordKey]) -> sa.ColumnElement[bool]:
    """Return a condition every optimizer turns into look-ups by primary key.

    MariaDB scans the table for ``(namespace, record_key) IN (...)``.
    """
    by_namespace: dict[str, list[str]] = {}
    for key in keys:
        by_namespace.setdefault(key.namespace, []).append(key.key)
    return sa.or_(
        sa.false(),
        *(
            sa.and_(_RECORD.c.namespace == namespace, _RECORD.c.record_key.in_(names))
            for namespace, names in by_namespace.items()
        ),
    )


def keys_text(
    connection: sa.Connection, keys: Collection[records.RecordKey], prefix: str = ""
) -> tuple[str, tuple[Any, ...]]:
    """Return the condition of :func:`by_keys` as text, and its parameters.

    To build and look up SQLAlchemy's expressions takes longer than all the rest of a read
    of a few records.

    :param prefix: of the columns' names
    """
    by_namespace: dict[Any, list[Any]] = {}
    for key in keys:
        namespace, name = encoded_names(connection, key)
        by_namespace.setdefault(namespace, []).append(name)
    place = mark(connection)
    parameters: list[Any] = []
    conditions = []
    for namespace, names in by_namespace.items():
        marks = ",".join([place] * len(names))
        conditions.append(f"{prefix}namespace = {place} AND {prefix}record_key IN ({marks})")
        parameters += (namespace, *names)
    return f"({') OR ('.join(conditions)})" if conditions else "1 = 0", tuple(parameters)


#: In counter mode a record's version is its revision.
REVISION = sa.func.coalesce(_RECORD.c.revision, _RECORD.c.version)


def standing(
    connection: sa.Connection, keys: Collection[records.RecordKey], *, locked: bool = False
) -> dict[records.RecordKey, records.Record]:
    """Read records without their payloads: enough to decide on.

    :param locked: keep others from writing those that are there
    """
    statement = sa.select(
        _RECORD.c.namespace,
        _RECORD.c.record_key,
        REVISION,
        _RECORD.c.version,
        _RECORD.c.deleted_at,
    ).where(by_keys(keys))
    if locked:
        # In one order, so that two batches seldom wait for one another.
        statement = statement.order_by(_RECORD.c.namespace, _RECORD.c.record_key)
        statement = statement.with_for_update()
    rows = connection.execute(statement)
    return {record.key: record for record in to_records((*row, b"") for row in rows)}


def select_records() -> sa.Select[Any]:
    """Return a query for whole records: feed its rows to :func:`to_records`."""
    # As the driver gives them: a call for each value of a snapshot costs more
    # than the database does.
    return sa.select(
        _as_it_comes(_RECORD.c.namespace),
        _as_it_comes(_RECORD.c.record_key),
        REVISION,
        _RECORD.c.version,
        _RECORD.c.deleted_at,
        _as_it_comes(_RECORD.c.payload),
    )


def _as_it_comes(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    return sa.type_coerce(column, sa.types.NullType())


#: All of a record of MySQL's but its payload, see :func:`of_text`.
TEXT_COLUMN = (
    "CONCAT(COALESCE({0}revision, {0}version), ' ', {0}version, ' ', "
    "{0}deleted_at IS NOT NULL, ' ', LENGTH({0}namespace), ' ', {0}namespace, {0}record_key)"
)


def of_text(text: bytes, payload: bytes) -> records.Record:
    """Return the record that a TEXT_COLUMN tells of."""
    revision, version, deleted, length, rest = bytes(text).split(b" ", 4)
    key = records.RecordKey(rest[: int(length)].decode(), rest[int(length) :].decode())
    return records.Record(key, int(revision), int(version), bytes(payload), deleted != b"0")


#: The left joins keep the order: nobody waits for a record's lock without the
#: sequence's. MySQL reads what it locks as it is after the wait.
_BESIDE_SEQUENCE = (
    "SELECT {columns} "  # noqa: S608
    "FROM nodb_sequence AS s "
    "LEFT JOIN nodb_record AS newest ON newest.version = s.version "
    "LEFT JOIN nodb_record AS r {hint} ON ({keys}) "
    f"WHERE s.id = {schema.SEQUENCE_ID}"
)
_BESIDE_COLUMNS = (
    "s.epoch, s.version, s.floor, s.ordering, newest.version, "
    "r.namespace, r.record_key, COALESCE(r.revision, r.version), r.version, r.deleted_at"
)
#: MySQL's client is Python, and reads the description of a column in 30 calls: ten
#: columns took half of all that a write takes. Nothing at its end where there is no record.
_BESIDE_TEXT = (
    "CONCAT(s.epoch, ' ', s.version, ' ', s.floor, ' ', COALESCE(newest.version, 0), ' ', "
    f"COALESCE(s.ordering, ''), ' ', COALESCE({TEXT_COLUMN.format('r.')}, ''))"
)


@attrs.frozen
class Found:
    """Records, and the sequence of the same moment.

    :param sequence: None where there is none; its ``newest`` is 0 if the
        record that got the last version is not there
    :param standing: those of the asked-for records that are there
    """

    sequence: SequenceRow | None
    standing: dict[records.RecordKey, records.Record]


def beside_sequence(
    connection: sa.Connection, keys: Collection[records.RecordKey], *, locked: bool = False
) -> Found:
    """Read records, tombstones included, and the sequence, by one statement.

    It sees one state of one database: what it tells of the sequence is true of the records.

    :param locked: for a writer, without payloads; MySQL keeps others from writing any of it
    """
    is_mysql = connection.dialect.name == "mysql"
    condition, parameters = keys_text(connection, keys, "r.")
    columns = _BESIDE_TEXT if is_mysql else _BESIDE_COLUMNS
    if not locked:
        columns += ", r.payload"
    # A scan of a table that MariaDB believes to be small would lock all it passes.
    hint = "FORCE INDEX (PRIMARY)" if is_mysql else ""
    text = _BESIDE_SEQUENCE.format(columns=columns, hint=hint, keys=condition)
    if is_mysql and not locked:
        return _found_of_texts(engines.rows(connection, text, parameters))
    if is_mysql:
        text += " FOR UPDATE"
    rows = connection.exec_driver_sql(text, parameters).all()
    return _found_of_texts(rows) if is_mysql else _found(rows)


def _found(rows: Sequence[Sequence[Any]]) -> Found:
    if not rows:
        return Found(None, {})
    epoch, version, floor, ordering, newest = rows[0][:5]
    sequence = SequenceRow(epoch, version, floor, ordering or schema.COUNTER, newest or 0)
    there = [(*row[5:], b"")[:6] for row in rows if row[5] is not None]
    return Found(sequence, {record.key: record for record in to_records(there)})


def _found_of_texts(rows: Sequence[Sequence[Any]]) -> Found:
    if not rows:
        return Found(None, {})
    standing = {}
    for text, *payload in rows:
        *words, own = bytes(text).split(b" ", 5)
        if own:
            record = of_text(own, *payload or (b"",))
            standing[record.key] = record
    epoch, version, floor, newest, ordering = (word.decode() for word in words)
    sequence = SequenceRow(epoch, int(version), int(floor), ordering or schema.COUNTER, int(newest))
    return Found(sequence, standing)


#: Live records of one namespace behind a key, in the order of their keys.
_PAGE = (
    "SELECT {columns} FROM nodb_record WHERE namespace = {mark} AND record_key > {mark} "
    "AND deleted_at IS NULL ORDER BY record_key LIMIT {mark}"
)
_PAGE_COLUMNS = "record_key, COALESCE(revision, version), version, payload"
#: As :data:`TEXT_COLUMN`, and for the same reason.
_PAGE_TEXT = "CONCAT(COALESCE(revision, version), ' ', version, ' ', record_key), payload"
#: A page of MySQL's as one value: PyMySQL makes six calls for each row and value that it reads.
#: Before the bytes of each key and payload stands a :data:`_HEAD_OF_ONE`.
_PAGE_AT_ONCE = (
    "SELECT COUNT(*), GROUP_CONCAT(UNHEX(CONCAT("
    "LPAD(HEX(COALESCE(revision, version)), 16, '0'), LPAD(HEX(version), 16, '0'), "
    "LPAD(HEX(LENGTH(record_key)), 8, '0'), LPAD(HEX(LENGTH(payload)), 8, '0'))), "
    "record_key, payload SEPARATOR '') "
    "FROM (SELECT record_key, revision, version, payload FROM nodb_record "
    "WHERE namespace = {mark} AND record_key > {mark} AND deleted_at IS NULL "
    "ORDER BY record_key LIMIT {mark}) AS page"
)
#: Revision, version, and how many bytes of key and payload follow.
_HEAD_OF_ONE = struct.Struct(">QQII")

_Columns = tuple[list[str], list[int], list[int], list[bytes]]


def page(
    connection: sa.Connection, namespace: str, after: str, limit: int
) -> record_columns.RecordColumns:
    """Read live records of a namespace that stand behind a key, in the order of their keys.

    As the client gives them: a snapshot reads millions.
    """
    parameters = (*encoded_names(connection, records.RecordKey(namespace, after)), limit)
    found = None
    is_mysql = connection.dialect.name == "mysql"
    if is_mysql:
        text = _PAGE_AT_ONCE.format(mark=mark(connection))
        [(count, told)] = engines.rows(connection, text, parameters)
        found = _columns_of(count, told)
    if found is None:
        columns = _PAGE_TEXT if is_mysql else _PAGE_COLUMNS
        text = _PAGE.format(columns=columns, mark=mark(connection))
        found = _columns_by_rows(connection, text, parameters)
    return record_columns.RecordColumns(namespace, *found)


def _columns_by_rows(connection: sa.Connection, text: str, parameters: tuple[Any, ...]) -> _Columns:
    found: Sequence[Sequence[Any]]
    if connection.dialect.name == "mysql":
        told = engines.rows(connection, text, parameters)
        found = [(*_parts_of(own), payload) for own, payload in told]
    else:
        # Not by the cursor: in SQLite what is asked next is to see what this saw.
        found = connection.exec_driver_sql(text, parameters).all()
    if not found:
        return [], [], [], []
    keys, revisions, versions, payloads = map(list, zip(*found, strict=True))
    if set(map(type, payloads)) != {bytes}:
        payloads = list(map(bytes, payloads))
    return keys, revisions, versions, payloads


def _parts_of(text: bytes) -> tuple[str, int, int]:
    """Return the key, revision and version that a :data:`_PAGE_TEXT` tells of."""
    revision, version, key = bytes(text).split(b" ", 2)
    return key.decode(), int(revision), int(version)


def _columns_of(count: int, told: bytes | None) -> _Columns | None:
    """Return what a :data:`_PAGE_AT_ONCE` tells, in the order of the keys.

    :returns: None where the server cut it short (``group_concat_max_len``,
        ``max_allowed_packet``)
    """
    keys: list[str] = []
    revisions: list[int] = []
    versions: list[int] = []
    payloads: list[bytes] = []
    if not count:
        return keys, revisions, versions, payloads
    if told is None:
        return None
    read_head, begin, end = _HEAD_OF_ONE.unpack_from, _HEAD_OF_ONE.size, len(told)
    at = 0
    for _ in range(count):
        if at + begin > end:
            return None
        revision, version, key_bytes, payload_bytes = read_head(told, at)
        at += begin
        middle = at + key_bytes
        key, at = told[at:middle], middle + payload_bytes
        if at > end:
            return None
        keys.append(key.decode())
        payloads.append(told[middle:at])
        revisions.append(revision)
        versions.append(version)
    if at != end:
        return None
    if sorted(keys) != keys:
        # As they lie in the server's table of the page: where their sizes differ, small ones
        # lie in gaps between large ones.
        places = sorted(range(count), key=keys.__getitem__)
        keys = [keys[place] for place in places]
        revisions = [revisions[place] for place in places]
        versions = [versions[place] for place in places]
        payloads = [payloads[place] for place in places]
    return keys, revisions, versions, payloads


def to_records(rows: Iterable[Sequence[Any]]) -> list[records.Record]:
    """Turn rows of :func:`select_records` into records."""
    if isinstance(rows, sa.CursorResult):
        rows = rows.all()
    return [
        records.Record(
            records.RecordKey(
                namespace if type(namespace) is str else namespace.decode(),
                name if type(name) is str else name.decode(),
            ),
            revision,
            version,
            payload if type(payload) is bytes else bytes(payload),
            deleted_at is not None,
        )
        for namespace, name, revision, version, deleted_at, payload in rows
    ]


def counts(connection: sa.Connection) -> list[Mapping[str, Any]]:
    """Count records, tombstones and bytes per namespace; reads every row."""
    is_live = sa.case((_RECORD.c.deleted_at.is_(None), 1), else_=0)
    statement = (
        sa.select(
            _RECORD.c.namespace,
            sa.func.sum(is_live).label("records"),
            sa.func.sum(1 - is_live).label("tombstones"),
            sa.func.sum(sa.func.length(_RECORD.c.payload)).label("bytes"),
        )
        .where(_RECORD.c.namespace != schema.HEAD_KEY[0])
        .group_by(_RECORD.c.namespace)
    )
    return [dict(row._mapping) for row in connection.execute(statement)]


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
    tombstone = f"({marks},{CLOCKS[dialect]})"
    parameters: list[Any] = []
    for row in rows:
        parameters += encoded_names(connection, row.key)
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


def number_rows(connection: sa.Connection, versions: Mapping[records.RecordKey, int]) -> None:
    """Give records that the transaction has locked their versions, by one statement."""
    value = mark(connection)
    parameters: list[Any] = []
    for key, version in versions.items():
        parameters += (*encoded_names(connection, key), version)
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


def encoded_names(connection: sa.Connection, key: records.RecordKey) -> tuple[Any, Any]:
    """Return a key's namespace and name as the columns hold them."""
    if connection.dialect.name == "mysql":
        return key.namespace.encode(), key.key.encode()
    return key.namespace, key.key
