# SPDX-License-Identifier: Apache-2.0
"""Requests that were given up before a scheduler took them.

While no scheduler takes a request it waits in the broker's queue, for as long as Nova's
``long_rpc_timeout`` allows: half an hour. Its conductor hears nothing and gives it up after
``rpc_response_timeout``, a minute: it buries a new server in cell0, in ERROR, and leaves one
that was to move where it is, without a task. From the moment a scheduler takes a request its
conductor hears that it lives, and waits. So who looks as it takes it is not wrong a moment later.

What such a server were given would be nobody's: an allocation without a server, or a server's
on a second host, and room that others are refused for.

Only requests that are older than that time are looked at, and for them the databases have the
last word: memory holds no server that is on no host, and may be behind with the others. Nova sets
a server's task before it sends the request, and no server ever leaves cell0.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import sqlalchemy as sa
from nova import context as nova_context
from nova import objects
from nova.db.main import models as main_models
from nova.objects import cell_mapping
from oslo_utils import timeutils

from nova_nodb_scheduler.nova_adapter.reads import request_views
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables

LOG = logging.getLogger(__name__)

_INSTANCE = main_models.Instance.__table__
_CELL0 = cell_mapping.CellMapping.CELL0_UUID


@attrs.frozen
class LateRequests:
    """Says of requests whether anybody waits for them.

    :param patience_seconds: how long a conductor waits without a sign of life
    """

    patience_seconds: float

    def is_given_up(
        self,
        context: Any,
        servers: Sequence[str],
        view: request_views.RequestView,
        cells: Mapping[str, Any],
    ) -> bool:
        """Say whether a request was given up for certain; False where nobody can tell.

        Blocks for a statement or two where the request is old enough.

        :param context: of the request; with the time at which the API took it
        :param servers: uuids of its servers; a conductor gives up all of them at once
        :param cells: CellMappings by uuid, of all but cell0
        """
        asked_at = getattr(context, "timestamp", None)
        if view.stock or not servers or not isinstance(asked_at, datetime.datetime):
            return False
        if timeutils.delta_seconds(asked_at, timeutils.utcnow()) <= self.patience_seconds:
            return False
        try:
            rows = view.reads.instance_rows(servers[0], cells)
            return _rests(servers[0], rows, cells) if rows else _are_buried(servers)
        except Exception:
            LOG.exception("Whether anybody waits for a request is not known.")
            return False


def _rests(server: str, rows: Mapping[str, Mapping[str, Any]], cells: Mapping[str, Any]) -> bool:
    """Say whether a server that is on a host has no task.

    :param rows: what memory has of it, by cell: two in the midst of a move between cells
    """
    if len(rows) > 1:
        return False
    [(cell, row)] = rows.items()
    if row.get("task_state"):
        return False
    columns = _INSTANCE.c
    statement = sa.select(columns.task_state).where(columns.uuid == server, columns.deleted == 0)
    return [each["task_state"] for each in _select(cells[cell], statement)] == [None]


def _are_buried(servers: Sequence[str]) -> bool:
    """Say whether a conductor buried any of some servers; deleted ones tell it, too."""
    cell0 = objects.CellMapping.get_by_uuid(nova_context.get_admin_context(), _CELL0)
    return bool(_select(cell0, sa.select(_INSTANCE.c.uuid).where(_INSTANCE.c.uuid.in_(servers))))


def _select(mapping: Any, statement: sa.Select[Any]) -> list[nova_tables.Row]:
    context = nova_context.get_admin_context()
    nova_context.set_target_cell(context, mapping)
    found: list[nova_tables.Row] = nova_tables.select_main(context, statement)
    return found
