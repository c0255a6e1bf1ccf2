# SPDX-License-Identifier: Apache-2.0
"""Start the contract branch: there is nothing to remove yet."""

from __future__ import annotations

revision = "contract_0001"
down_revision = None
branch_labels = ("contract",)
# Not ("expand_0001",): alembic would take that revision out of its table, as
# implied, and the two branches could not be told apart. sync() keeps the order.
depends_on = None


def upgrade() -> None:
    """Remove nothing; the next contraction stands on this revision."""
