# SPDX-License-Identifier: Apache-2.0
"""Add the table that names the cloud whose records a database holds.

Empty until a service opens it whose ``cloud_name`` is set. Services of the
former release know nothing of it and go on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "expand_0003"
down_revision = "expand_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Carry out the migration."""
    op.create_table(
        "nodb_cloud",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.PrimaryKeyConstraint("id", name="nodb_cloud_pkey"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_row_format="DYNAMIC",
    )


def downgrade() -> None:
    """Take the table away; nothing else depends on it."""
    op.drop_table("nodb_cloud")
