# SPDX-License-Identifier: Apache-2.0
"""Alembic's environment: runs migrations on the connection it is given."""

from __future__ import annotations

from alembic import context

from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import schema


def run() -> None:
    """Run the migrations asked for."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=schema.metadata,
        version_table=schema.VERSION_TABLE,
        # SQLite alters a table by copying it.
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run()
