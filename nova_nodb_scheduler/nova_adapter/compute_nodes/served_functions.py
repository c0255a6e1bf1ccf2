# SPDX-License-Identifier: Apache-2.0
"""Puts functions that the back end serves in the place of Nova's own, and takes them out.

Every caller in Nova reaches them as attributes of ``nova.db.main.api``, but for two
queries of ``ComputeNodeList`` and one of an online migration. Nova's table is written
behind each record, so that what is not replaced (nova-status, scripts) reads the same.

A back end that does not answer is to Nova's callers a database that does not: an error
that nova-compute's periodic tasks meet by trying again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import nova.conf
from nova.db.main import api as main_db
from nova.objects import compute_node as nova_compute_node
from oslo_db import exception as db_exception

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import (
    replaced_code,
    row_queries,
    row_writer,
)
from nova_nodb_scheduler.nova_adapter.reporting import table_tripwire

#: From the place that holds it and its name there to what is to stand there.
_Replacements = Mapping[tuple[Any, str], Any]


class ServedFunctions:
    """Functions of Nova for compute nodes, served from records.

    Any thread may call what it puts in place; putting it there and taking it away is for
    one thread, before others run.
    """

    def __init__(
        self,
        queries: row_queries.RowQueries,
        writer: row_writer.RowWriter,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._queries = queries
        self._writer = writer
        self._ready = ready
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
        queries, node_list = self._queries, nova_compute_node.ComputeNodeList
        made: dict[tuple[Any, str], Any] = {}
        for name in row_queries.READS:
            made[main_db, name] = self._served(getattr(main_db, name), getattr(queries, name))
        for name in row_writer.WRITES:
            made[main_db, name] = self._served(getattr(main_db, name), getattr(self._writer, name))
        made[main_db, "service_destroy"] = self._served(
            main_db.service_destroy,
            functools.partial(self._service_destroy, main_db.service_destroy),
        )
        made[main_db, "archive_deleted_rows"] = self._archiving(main_db.archive_deleted_rows)
        for name, query in {
            "_db_compute_node_get_all_by_uuids": queries.get_all_by_uuids,
            "_db_compute_node_get_by_hv_type": queries.get_by_hv_type,
        }.items():
            made[node_list, name] = staticmethod(self._served(getattr(node_list, name), query))
        # nova-manage has taken the migration itself, which asks for rows by this name.
        own_ratios = nova_compute_node._get_node_empty_ratio
        made[nova_compute_node, "_get_node_empty_ratio"] = self._served(
            own_ratios, self._fill_ratios
        )
        return made

    def _served(self, own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for Nova's callers, with the name and signature of Nova's own."""

        @functools.wraps(own)
        def served(context: Any, *args: Any, **kwargs: Any) -> Any:
            main_db._check_db_access()
            try:
                self._ready()
                return function(context, *args, **kwargs)
            except errors.BackendUnavailable as error:
                raise db_exception.DBConnectionError(error) from error
            except errors.NodbError as error:
                raise db_exception.DBError(error) from error

        return served

    def _fill_ratios(self, context: Any, max_count: int) -> list[Any]:
        conf = nova.conf.CONF
        ratios = {
            name: getattr(conf, name) or getattr(conf, f"initial_{name}")
            for name in (f"{kind}_allocation_ratio" for kind in ("cpu", "disk", "ram"))
        }
        return self._writer.fill_empty_ratios(context, max_count, ratios)

    def _archiving(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def archive_deleted_rows(context: Any = None, *args: Any, **kwargs: Any) -> Any:
            with table_tripwire.own_statements():
                archived = own(context, *args, **kwargs)
            if context is not None:
                forget(context)
            return archived

        # Nova's own, which nova-manage calls for each cell, has committed by then: what
        # fails here is done by the next call, whatever it archives.
        forget = self._served(own, self._writer.forget_archived)
        return archive_deleted_rows

    def _service_destroy(self, own: Callable[..., None], context: Any, service_id: int) -> None:
        """Delete a service behind its nodes: were it gone first, they could stay for ever."""
        service = main_db.service_get(context, service_id)
        if service.binary == "nova-compute":
            self._writer.delete_of_service(context, service_id, service.host)
        with table_tripwire.own_statements():
            own(context, service_id)
