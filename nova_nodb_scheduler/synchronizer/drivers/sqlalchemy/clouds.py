# SPDX-License-Identifier: Apache-2.0
"""Keeps two clouds apart that were given one database by mistake.

The first service that opens a database with a ``cloud_name`` leaves the name
there, and every one that opens it later must have the same: hosts of two clouds
in one store would be offered to both. The name stands in a table of its own,
which outlives records that are emptied and epochs that begin anew.
"""

from __future__ import annotations

import sqlalchemy as sa
from oslo_db import exception as db_exc

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import database, schema

_CLOUD = schema.cloud


def agree(opened: database.Database, name: str, *, may_write: bool) -> None:
    """Make sure that a database is this cloud's; one that is nobody's is made so.

    :param name: the option ``cloud_name``; empty: this process names none, and
        must not open a database that is somebody's
    :param may_write: else it is only looked
    :raises ConfigurationError: it is another cloud's, naming both
    """
    owner = _owner(opened)
    if owner is None and name and may_write:
        opened.repeat(lambda: _adopt(opened, name))
        # Of two who adopt at once, one finds the other's name.
        owner = _owner(opened)
    if owner is not None and owner != name:
        raise errors.ConfigurationError(
            "[nodb_sqlalchemy] cloud_name",
            name,
            f"{opened.name} holds the records of the cloud {owner!r}: give this cloud a "
            "database of its own in [nodb_sqlalchemy] connection, or correct cloud_name in "
            "all its services. To rename a cloud, stop them all and empty the table "
            "nodb_cloud",
        )


def _owner(opened: database.Database) -> str | None:
    found = opened.ask(
        lambda connection: connection.execute(
            sa.select(_CLOUD.c.name).where(_CLOUD.c.id == schema.CLOUD_ID)
        ).scalar_one_or_none()
    )
    return None if found is None else str(found)


def _adopt(opened: database.Database, name: str) -> None:
    try:
        with opened.writer() as connection:
            connection.execute(_CLOUD.insert().values(id=schema.CLOUD_ID, name=name))
    except db_exc.DBDuplicateEntry:
        # Another was first; whose name it is decides.
        return
