# SPDX-License-Identifier: Apache-2.0
"""Create the tables of records and of the sequence."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
import sqlalchemy.dialects.mysql as mysql
from alembic import op

revision = "expand_0001"
down_revision = None
branch_labels = ("expand",)
depends_on = None

_TABLE_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_row_format": "DYNAMIC",
}


def _key_text(characters: int) -> sa.types.TypeEngine[Any]:
    """Return text in byte order; a migration does not share code with the schema."""
    if op.get_context().dialect.name == "mysql":
        return mysql.VARBINARY(4 * characters)
    collation = "C" if op.get_context().dialect.name == "postgresql" else None
    return sa.String(characters, collation=collation)


def upgrade() -> None:
    """Carry out the migration."""
    op.create_table(
        "nodb_record",
        sa.Column("namespace", _key_text(64), nullable=False),
        sa.Column("record_key", _key_text(255), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.Column(
            "payload",
            sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("namespace", "record_key", name="nodb_record_pkey"),
        **_TABLE_OPTIONS,
    )
    if op.get_context().dialect.name == "postgresql":
        # Large payloads are compressed already; PostgreSQL would try again.
        op.execute("ALTER TABLE nodb_record ALTER COLUMN payload SET STORAGE EXTERNAL")
    op.create_index("nodb_record_version_idx", "nodb_record", ["version"])
    op.create_index("nodb_record_deleted_at_idx", "nodb_record", ["deleted_at"])
    op.create_table(
        "nodb_sequence",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("epoch", sa.String(36), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("floor", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="nodb_sequence_pkey"),
        **_TABLE_OPTIONS,
    )
