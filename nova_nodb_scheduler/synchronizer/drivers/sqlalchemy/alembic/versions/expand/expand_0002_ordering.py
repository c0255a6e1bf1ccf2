# SPDX-License-Identifier: Apache-2.0
"""Add what the sequencer needs: a revision per record, the ordering in the sequence's row.

Both columns may be NULL, and are in a database in counter mode: services of
the former release go on writing it as they did.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "expand_0002"
down_revision = "expand_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Carry out the migration."""
    op.add_column("nodb_record", sa.Column("revision", sa.BigInteger(), nullable=True))
    op.add_column("nodb_sequence", sa.Column("ordering", sa.String(16), nullable=True))
