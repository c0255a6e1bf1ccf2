# SPDX-License-Identifier: Apache-2.0
"""The tables as this release knows them; migrations lead to exactly this.

``nodb_record`` holds one row per record, tombstones included. In counter mode
its revision is its version: versions are handed out once, and go on growing
with a new epoch (:mod:`.epochs`), so a revision grows per key, across deletion
and collection too. In sequencer mode
the revision stands in a column of its own, and a version of 0 says that the
row was written and has yet to be numbered. ``nodb_sequence`` holds one row:
the epoch, the last version handed out, the floor below which tombstones may
have been collected, and the mode. Who hands out versions locks that row:
every writer in counter mode, the one who numbers in sequencer mode.
``nodb_cloud`` holds the name of the cloud whose records these are, if it has one.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
import sqlalchemy.dialects.mysql as mysql
import sqlalchemy.types as sqltypes

from nova_nodb_scheduler.model import records

VERSION_TABLE = "nodb_alembic_version"
#: The one row of ``nodb_sequence``, and that of ``nodb_cloud``.
SEQUENCE_ID = 1
CLOUD_ID = 1
COUNTER = "counter"
SEQUENCER = "sequencer"
#: How versions are handed out.
ORDERINGS = (COUNTER, SEQUENCER)
#: Version of a record that the sequencer has yet to number.
UNNUMBERED = 0
#: In sequencer mode a row of this name, which no record can have, holds the
#: sequence's version: whoever empties the records takes it along.
HEAD_KEY = ("", "")


class KeyText(sqltypes.TypeDecorator[str]):
    """Text that differs wherever its bytes differ, in byte order.

    MySQL's collations fold case or trailing blanks, or exist in only one of
    MySQL and MariaDB; there it is VARBINARY with UTF-8.
    """

    impl = sqltypes.String
    cache_ok = True

    def __init__(self, characters: int) -> None:
        super().__init__(characters)
        self.characters = characters

    def load_dialect_impl(self, dialect: sa.Dialect) -> sqltypes.TypeEngine[Any]:
        if dialect.name == "mysql":
            return dialect.type_descriptor(mysql.VARBINARY(4 * self.characters))
        collation = "C" if dialect.name == "postgresql" else None
        return dialect.type_descriptor(sa.String(self.characters, collation=collation))

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> Any:
        return value.encode() if value is not None and dialect.name == "mysql" else value

    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> str | None:
        return value.decode() if isinstance(value, bytes) else value


PAYLOAD_TYPE = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql")
#: Not TIMESTAMP: the three databases would each give it another precision and
#: another idea of time zones.
SECONDS_TYPE: sa.Double[float] = sa.Double()
_TABLE_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_row_format": "DYNAMIC",
}

metadata = sa.MetaData()

record = sa.Table(
    "nodb_record",
    metadata,
    sa.Column("namespace", KeyText(records.NAMESPACE_CHARACTERS), nullable=False),
    sa.Column("record_key", KeyText(records.KEY_CHARACTERS), nullable=False),
    sa.Column("version", sa.BigInteger(), nullable=False),
    # The database's clock at the deletion, NULL while the record lives.
    sa.Column("deleted_at", SECONDS_TYPE, nullable=True),
    sa.Column("payload", PAYLOAD_TYPE, nullable=False),
    # NULL in counter mode: the version is the revision.
    sa.Column("revision", sa.BigInteger(), nullable=True),
    sa.PrimaryKeyConstraint("namespace", "record_key", name="nodb_record_pkey"),
    # Not unique, though versions are: a unique index would make InnoDB lock
    # gaps at every upsert.
    sa.Index("nodb_record_version_idx", "version"),
    sa.Index("nodb_record_deleted_at_idx", "deleted_at"),
    **_TABLE_OPTIONS,
)

sequence = sa.Table(
    "nodb_sequence",
    metadata,
    sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
    sa.Column("epoch", sa.String(36), nullable=False),
    sa.Column("version", sa.BigInteger(), nullable=False),
    sa.Column("floor", sa.BigInteger(), nullable=False),
    # One of ORDERINGS; NULL is the first of them.
    sa.Column("ordering", sa.String(16), nullable=True),
    sa.PrimaryKeyConstraint("id", name="nodb_sequence_pkey"),
    **_TABLE_OPTIONS,
)

cloud = sa.Table(
    "nodb_cloud",
    metadata,
    sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.PrimaryKeyConstraint("id", name="nodb_cloud_pkey"),
    **_TABLE_OPTIONS,
)
