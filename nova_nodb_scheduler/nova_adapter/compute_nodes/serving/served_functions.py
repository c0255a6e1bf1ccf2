# SPDX-License-Identifier: Apache-2.0
"""Puts functions that the back end serves in the place of Nova's own, and takes them out.

Every caller in Nova reaches them as attributes of ``nova.db.main.api``, but for two
queries of ``ComputeNodeList`` and one of an online migration. As long as Nova's table is
there, it is written behind each record, so that what is not replaced (nova-status, scripts)
reads the same; where it is away, nothing here names it.

A back end that does not answer is to Nova's callers a database that does not: an error
that nova-compute's periodic tasks meet by trying again.
"""

from __future__ import annotations

import functools
import inspect
import logging
import operator
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import nova.conf
from nova import context as nova_context
from nova.db.main import api as main_db
from nova.db.main import models
from nova.objects import compute_node as nova_compute_node
from oslo_db import exception as db_exception

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import row_archive, row_queries, row_writer
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import replaced_code
from nova_nodb_scheduler.nova_adapter.reporting import table_tripwire

LOG = logging.getLogger(__name__)

#: From the place that holds it and its name there to what is to stand there.
_Replacements = Mapping[tuple[Any, str], Any]


@attrs.frozen
class ServedParts:
    """What serves in one process, its back end open.

    :param archive: takes deleted rows where Nova's table is away; None where Nova archives them
    """

    queries: row_queries.RowQueries
    writer: row_writer.RowWriter
    archive: row_archive.RowArchive | None = None


class ServedFunctions:
    """Functions of Nova for compute nodes, served from records.

    Any thread may call what it puts in place; putting it there and taking it away is for
    one thread, before others run.

    :param parts: gives what serves in this process; asked by each call, raises what keeps
        it from serving
    """

    def __init__(self, parts: Callable[[], ServedParts]) -> None:
        self._parts = parts
        self._replaced: dict[tuple[Any, str], Any] = {}

    def install(self) -> None:
        """Replace Nova's functions; idempotent.

        :raises UnknownCode: one of them is not what it was written against; none is replaced
        """
        if self._replaced:
            return
        replaced_code.check()
        for (holder, name), made in self.replacements().items():
            self._replaced[holder, name] = vars(holder)[name]
            setattr(holder, name, made)

    def uninstall(self) -> None:
        """Put Nova's own back; idempotent."""
        for (holder, name), own in self._replaced.items():
            setattr(holder, name, own)
        self._replaced.clear()

    def replacements(self) -> _Replacements:
        """Return what :meth:`install` puts in place, made from what stands there now."""
        node_list = nova_compute_node.ComputeNodeList
        made: dict[tuple[Any, str], Any] = {}
        for name in row_queries.READS:
            made[main_db, name] = self._served(getattr(main_db, name), f"queries.{name}")
        for name in row_writer.WRITES:
            made[main_db, name] = self._served(getattr(main_db, name), f"writer.{name}")
        made[main_db, "service_destroy"] = self._serving(main_db.service_destroy, _service_destroy)
        made[main_db, "archive_deleted_rows"] = self._archiving(main_db.archive_deleted_rows)
        for name, query in {
            "_db_compute_node_get_all_by_uuids": "queries.get_all_by_uuids",
            "_db_compute_node_get_by_hv_type": "queries.get_by_hv_type",
        }.items():
            made[node_list, name] = staticmethod(self._served(getattr(node_list, name), query))
        # nova-manage has taken the migration itself, which asks for rows by this name.
        own_ratios = nova_compute_node._get_node_empty_ratio
        made[nova_compute_node, "_get_node_empty_ratio"] = self._serving(own_ratios, _fill_ratios)
        return made

    def _served(self, own: Callable[..., Any], method: str) -> Callable[..., Any]:
        """Return a function for Nova's callers that a method of the parts carries out."""
        find = operator.attrgetter(method)
        return self._serving(own, lambda parts, *args, **kwargs: find(parts)(*args, **kwargs))

    def _serving(self, own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for Nova's callers, with the name and signature of Nova's own.

        :param function: given the parts, and what the caller gives
        """

        @functools.wraps(own)
        def served(context: Any, *args: Any, **kwargs: Any) -> Any:
            main_db._check_db_access()
            try:
                return function(self._parts(), context, *args, **kwargs)
            except errors.BackendUnavailable as error:
                raise db_exception.DBConnectionError(error) from error
            except errors.NodbError as error:
                raise db_exception.DBError(error) from error

        return served

    def _archiving(self, own: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(own)

        @functools.wraps(own)
        def archive_deleted_rows(*args: Any, **kwargs: Any) -> Any:
            with table_tripwire.own_statements():
                archived = own(*args, **kwargs)
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            try:
                return self._archived_too(archived, **given.arguments)
            except (errors.NodbError, db_exception.DBError) as error:
                # Nova's own has committed, and its caller deletes what belonged to the
                # servers that are told it now, and never else: the next call goes on here.
                LOG.error(
                    "Records of deleted compute nodes were not archived, run 'nova-manage db "
                    "archive_deleted_rows' again: %(error)s",
                    {"error": error},
                )
                return archived

        return archive_deleted_rows

    def _archived_too(
        self,
        archived: tuple[Any, ...],
        context: Any,
        max_rows: int | None,
        before: Any,
        **_others: Any,
    ) -> tuple[Any, ...]:
        """Add what becomes of deleted rows' records to what Nova's own has archived."""
        parts = self._parts()
        context = context or nova_context.get_admin_context()
        if parts.archive is None:
            parts.writer.forget_archived(context)
            return archived
        by_table, *others, total = archived
        left = None if max_rows is None else max(0, max_rows - total)
        count = parts.archive.archive(context, left, before)
        if count:
            by_table["compute_nodes"] = by_table.get("compute_nodes", 0) + count
        return (by_table, *others, total + count)


def _fill_ratios(parts: ServedParts, context: Any, max_count: int) -> list[Any]:
    conf = nova.conf.CONF
    ratios = {
        name: getattr(conf, name) or getattr(conf, f"initial_{name}")
        for name in (f"{kind}_allocation_ratio" for kind in ("cpu", "disk", "ram"))
    }
    return parts.writer.fill_empty_ratios(context, max_count, ratios)


def _service_destroy(parts: ServedParts, context: Any, service_id: int) -> None:
    """Delete a service behind its nodes: were it gone first, they could stay for ever.

    Nova's own deletes the nodes' rows, too, and names a table that may be away.
    """
    service = main_db.service_get(context, service_id)
    if service.binary == "nova-compute":
        parts.writer.delete_of_service(context, service_id, service.host)
    _delete_service(context, service_id)


@main_db.pick_context_manager_writer  # type: ignore[untyped-decorator]
def _delete_service(context: Any, service_id: int) -> None:
    """Delete a service as Nova's service_destroy does.

    :raises ServiceNotFound: another was faster
    """
    main_db.service_get(context, service_id)
    query = main_db.model_query(context, models.Service).filter_by(id=service_id)
    query.soft_delete(synchronize_session=False)
