# SPDX-License-Identifier: Apache-2.0
"""What Nova's API database has of servers that wait: build requests, and mappings to cells."""

from __future__ import annotations

import calendar
from collections.abc import Collection, Mapping

import sqlalchemy as sa
from nova import context as nova_context
from nova.db.api import models as api_models

from nova_nodb_scheduler.nova_adapter.reporting import nova_tables

_TABLE = api_models.BuildRequest.__table__
_MAPPINGS = api_models.InstanceMapping.__table__

#: Names in one statement.
_AT_ONCE = 500


def made_at(servers: Collection[str]) -> Mapping[str, float]:
    """Return when the build requests of some servers were made, of those that have one.

    Blocks for a statement for some hundred of them. Seconds by the API's clock; 0.0 where
    the row does not say.

    :raises Exception: whatever a database driver raises
    """
    context = nova_context.get_admin_context()
    found: dict[str, float] = {}
    wanted = sorted(servers)
    for start in range(0, len(wanted), _AT_ONCE):
        statement = sa.select(_TABLE.c.instance_uuid, _TABLE.c.created_at).where(
            _TABLE.c.instance_uuid.in_(wanted[start : start + _AT_ONCE])
        )
        for row in nova_tables.select_api(context, statement):
            at = row["created_at"]
            seconds = 0.0 if at is None else float(calendar.timegm(at.timetuple()))
            found[str(row["instance_uuid"])] = seconds
    return found


def in_cells(servers: Collection[str]) -> frozenset[str]:
    """Return those of some servers that are mapped to a cell, and not being deleted there.

    Blocks for a statement for some hundred of them.

    :raises Exception: whatever a database driver raises
    """
    context = nova_context.get_admin_context()
    found: set[str] = set()
    wanted = sorted(servers)
    for start in range(0, len(wanted), _AT_ONCE):
        statement = sa.select(_MAPPINGS.c.instance_uuid).where(
            _MAPPINGS.c.instance_uuid.in_(wanted[start : start + _AT_ONCE]),
            _MAPPINGS.c.cell_id.isnot(None),
            sa.or_(
                _MAPPINGS.c.queued_for_delete.is_(None),
                _MAPPINGS.c.queued_for_delete == sa.false(),
            ),
        )
        for row in nova_tables.select_api(context, statement):
            found.add(str(row["instance_uuid"]))
    return frozenset(found)
