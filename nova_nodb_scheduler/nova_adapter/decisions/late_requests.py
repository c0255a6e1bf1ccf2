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
last word, of the host, too: memory holds no server that is on no host, and may be behind with the
others. Nova sets a server's task before it sends the request, and no server ever leaves cell0.

An administrator who resets a server's state, or a nova-compute that begins again, takes the task
away while somebody waits. What moves a server then fails for that on its way, in Nova's own code,
so that nothing is refused that would have come to an end.

A database that is slow, or away, keeps nobody for long: who gets no answer decides as ever.
"""

from __future__ import annotations

import datetime
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
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

#: How long a request waits for what a database says of it.
ANSWER_SECONDS = 5.0

_INSTANCE = main_models.Instance.__table__
_CELL0 = cell_mapping.CellMapping.CELL0_UUID


@attrs.define(eq=False)
class LateRequests:
    """Says of requests whether anybody waits for them. Any thread.

    :param patience_seconds: how long a conductor waits without a sign of life
    """

    patience_seconds: float
    #: Asks a database that owes its answer.
    _unanswered: threading.Thread | None = attrs.field(init=False, default=None)

    def is_given_up(
        self,
        context: Any,
        servers: Sequence[str],
        view: request_views.RequestView,
        cells: Mapping[str, Any],
    ) -> bool:
        """Say whether a request was given up for certain; False where nobody can tell.

        Blocks for a statement or two where the request is old enough, for ANSWER_SECONDS at most.

        :param context: of the request; with the time at which the API took it
        :param servers: uuids of its servers; a conductor gives up all of them at once
        :param cells: CellMappings by uuid, of all but cell0
        """
        try:
            if view.stock or not servers or not self._is_late(context):
                return False
            rows = view.reads.instance_rows(servers[0], cells)
            if not rows:
                return self._ask(functools.partial(_are_buried, servers))
            if len(rows) > 1 or any(row.get("task_state") for row in rows.values()):
                return False  # in the midst of a move between cells, or of any
            return self._ask(functools.partial(_rests, servers[0], cells[next(iter(rows))]))
        except Exception:
            LOG.exception("Whether anybody waits for a request is not known.")
            return False

    def _is_late(self, context: Any) -> bool:
        asked_at = getattr(context, "timestamp", None)
        if not isinstance(asked_at, datetime.datetime):
            return False
        return bool(timeutils.is_older_than(asked_at, self.patience_seconds))

    def _ask(self, question: Callable[[], bool]) -> bool:
        """Ask a database; False where it does not answer in time, or owes an answer already."""
        unanswered = self._unanswered
        if unanswered is not None and unanswered.is_alive():
            return False
        answers: list[bool] = []

        def ask() -> None:
            try:
                answers.append(question())
            except Exception as error:  # noqa: BLE001 - whatever a database driver raises
                why = f"{type(error).__name__}: {error}".partition("\n")[0]
                LOG.warning("Whether anybody waits for a request is not known: %s", why)

        # Not of a pool: the interpreter waits for those at its end.
        asking = threading.Thread(target=ask, name="nodb-late-request", daemon=True)
        asking.start()
        asking.join(ANSWER_SECONDS)
        if asking.is_alive():
            self._unanswered = asking
            LOG.warning("Whether anybody waits for a request is not known: no answer in time.")
        return any(answers)


def _rests(server: str, cell: Any) -> bool:
    """Say whether a server that is on a host of a cell has no task."""
    columns = _INSTANCE.c
    statement = sa.select(columns.task_state).where(
        columns.uuid == server,
        columns.deleted == 0,
        # What waits to be sent to a host once more has no task either.
        columns.host.is_not(None),
        # What a move between cells left behind tells nothing of the server.
        sa.or_(columns.hidden.is_(None), columns.hidden == sa.false()),
    )
    return [each["task_state"] for each in _select(cell, statement)] == [None]


def _are_buried(servers: Sequence[str]) -> bool:
    """Say whether a conductor buried any of some servers; deleted ones tell it, too."""
    cell0 = objects.CellMapping.get_by_uuid(nova_context.get_admin_context(), _CELL0)
    return bool(_select(cell0, sa.select(_INSTANCE.c.uuid).where(_INSTANCE.c.uuid.in_(servers))))


def _select(mapping: Any, statement: sa.Select[Any]) -> list[nova_tables.Row]:
    context = nova_context.get_admin_context()
    nova_context.set_target_cell(context, mapping)
    found: list[nova_tables.Row] = nova_tables.select_main(context, statement)
    return found
