# SPDX-License-Identifier: Apache-2.0
"""What Nova's API database has of servers that wait: build requests, and mappings to cells."""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Collection, Iterator, Mapping
from typing import Any

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
    query = sa.select(_TABLE.c.instance_uuid, _TABLE.c.created_at)
    found: dict[str, float] = {}
    for row in _rows(query, _TABLE.c.instance_uuid, servers):
        at = row["created_at"]
        seconds = 0.0 if at is None else float(calendar.timegm(at.timetuple()))
        found[str(row["instance_uuid"])] = seconds
    return found


def made_before(moment: datetime.datetime) -> list[str]:
    """Return servers whose build requests were made before a moment, the oldest first.

    :param moment: UTC, by the API's clock
    :raises Exception: whatever a database driver raises
    """
    query = (
        sa.select(_TABLE.c.instance_uuid)
        .where(_TABLE.c.created_at < moment.replace(tzinfo=None))
        .order_by(_TABLE.c.created_at, _TABLE.c.id)
    )
    rows = nova_tables.select_api(nova_context.get_admin_context(), query)
    return [str(row["instance_uuid"]) for row in rows]


def in_cells(servers: Collection[str]) -> frozenset[str]:
    """Return those of some servers that are mapped to a cell, and not being deleted there.

    Blocks for a statement for some hundred of them.

    :raises Exception: whatever a database driver raises
    """
    query = sa.select(_MAPPINGS.c.instance_uuid).where(
        _MAPPINGS.c.cell_id.isnot(None),
        sa.or_(
            _MAPPINGS.c.queued_for_delete.is_(None),
            _MAPPINGS.c.queued_for_delete == sa.false(),
        ),
    )
    found = _rows(query, _MAPPINGS.c.instance_uuid, servers)
    return frozenset(str(row["instance_uuid"]) for row in found)


def _rows(
    query: sa.Select[Any], name: sa.ColumnElement[str], servers: Collection[str]
) -> Iterator[Mapping[str, Any]]:
    """Give the rows of some servers, some hundred in one statement."""
    context = nova_context.get_admin_context()
    wanted = sorted(servers)
    for start in range(0, len(wanted), _AT_ONCE):
        statement = query.where(name.in_(wanted[start : start + _AT_ONCE]))
        yield from nova_tables.select_api(context, statement)
