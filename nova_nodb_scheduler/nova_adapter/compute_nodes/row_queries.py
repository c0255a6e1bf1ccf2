# SPDX-License-Identifier: Apache-2.0
"""What Nova's database functions for compute nodes answer, from rows in memory.

Each method has the name and the arguments of a function of ``nova.db.main.api``, or
of the few places beside it that read the table themselves, and its semantics to the
last detail: the order of ids where Nova asks for it, ``read_deleted``, markers, NULLs,
wildcards, what is raised. Functions that go through Nova's ``_compute_node_select``
take ``read_deleted = only`` for ``yes``; those that go through ``model_query`` do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import sqlalchemy as sa
from nova import exception
from nova.db.main import api as main_db
from nova.db.main import models

from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows, row_index
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables

_SERVICE = models.Service.__table__

#: Columns that statistics sum up.
SUMMED = (
    "current_workload",
    "disk_available_least",
    "free_disk_gb",
    "free_ram_mb",
    "local_gb",
    "local_gb_used",
    "memory_mb",
    "memory_mb_used",
    "running_vms",
    "vcpus",
    "vcpus_used",
)


class RowSource(Protocol):
    """Where the rows of a context's cell come from."""

    def rows(self, context: Any) -> contextlib.AbstractContextManager[row_index.RowIndex]:
        """Give the rows of the cell that a context is for, to be read within ``with``.

        What was written before the call is in them. Whatever keeps them from being
        read is raised: rows that are not known are never taken for rows that are not there.
        """
        ...


def deleted_of_select(context: Any) -> bool | None:
    """Return which rows ``_compute_node_select`` gives, for :meth:`RowIndex.select`."""
    return False if context.read_deleted == "no" else None


def deleted_of_model_query(context: Any) -> bool | None:
    """Return which rows ``model_query`` gives, for :meth:`RowIndex.select`.

    :raises ValueError: as there
    """
    try:
        return {"no": False, "only": True, "yes": None}[context.read_deleted]
    except KeyError as error:
        raise ValueError(f"Unrecognized read_deleted value '{context.read_deleted}'") from error


def as_model(row: node_rows.Row) -> Any:
    """Return a row as an object of Nova's model that belongs to no session."""
    known = models.ComputeNode.__table__.columns
    return models.ComputeNode(**{name: value for name, value in row.items() if name in known})


class RowQueries:
    """Nova's functions that read compute nodes; any thread may call them."""

    def __init__(self, source: RowSource) -> None:
        self._source = source

    # -- by nova.db.main.api --------------------------------------------------------

    def compute_node_get(self, context: Any, compute_id: Any) -> dict[str, Any]:
        found = self._selected(context, id=compute_id)
        if not found:
            raise exception.ComputeHostNotFound(host=compute_id)
        return found[0]

    def compute_node_get_model(self, context: Any, compute_id: Any) -> Any:
        with self._source.rows(context) as index:
            rows = index.select(deleted_of_model_query(context), equal={"id": compute_id})
            for _key, row in rows:
                return as_model(row)
        raise exception.ComputeHostNotFound(host=compute_id)

    def compute_nodes_get_by_service_id(
        self, context: Any, service_id: Any
    ) -> list[dict[str, Any]]:
        found = self._selected(context, service_id=service_id)
        if not found:
            raise exception.ServiceNotFound(service_id=service_id)
        return found

    def compute_node_get_by_host_and_nodename(
        self, context: Any, host: Any, nodename: Any
    ) -> dict[str, Any]:
        found = self._selected(context, host=host, hypervisor_hostname=nodename)
        if not found:
            raise exception.ComputeHostNotFound(host=host)
        return found[0]

    def compute_node_get_by_nodename(
        self, context: Any, hypervisor_hostname: Any
    ) -> dict[str, Any]:
        found = self._selected(context, hypervisor_hostname=hypervisor_hostname)
        if not found:
            raise exception.ComputeHostNotFound(host=hypervisor_hostname)
        return found[0]

    def compute_node_get_all(self, context: Any) -> list[dict[str, Any]]:
        return self._selected(context)

    def compute_node_get_all_by_host(self, context: Any, host: Any) -> list[dict[str, Any]]:
        found = self._selected(context, host=host)
        if not found:
            raise exception.ComputeHostNotFound(host=host)
        return found

    def compute_node_get_all_mapped_less_than(
        self, context: Any, mapped_less_than: int
    ) -> list[dict[str, Any]]:
        def holds(row: node_rows.Row) -> bool:
            return row["mapped"] is not None and row["mapped"] < mapped_less_than

        with self._source.rows(context) as index:
            return _copied(index.select(deleted_of_select(context), holds))

    def compute_node_get_all_by_pagination(
        self, context: Any, limit: int | None = None, marker: int | None = None
    ) -> list[dict[str, Any]]:
        with self._source.rows(context) as index:
            which = deleted_of_select(context)
            if marker is not None and not any(index.select(which, equal={"id": marker})):
                raise exception.MarkerNotFound(marker=marker)
            above = None if marker is None else int(marker)
            return _copied(index.select(which, above=above), limit)

    def compute_node_search_by_hypervisor(self, context: Any, hypervisor_match: Any) -> list[Any]:
        pattern = f"%{hypervisor_match}%"
        which = deleted_of_model_query(context)
        with self._source.rows(context) as index:
            found = index.search(which, index.comparison.matcher(pattern))
            return [as_model(row) for _key, row in found]

    def compute_node_statistics(self, context: Any) -> dict[str, int]:
        """Sum up the nodes of enabled services: a node counts once for each that matches."""
        wanted = sa.select(_SERVICE.c.id, _SERVICE.c.host).where(
            _SERVICE.c.disabled == sa.false(),
            _SERVICE.c.binary == "nova-compute",
            _SERVICE.c.deleted == 0,
        )
        services = nova_tables.select_main(context, wanted)
        sums = dict.fromkeys(("count", *SUMMED), 0)
        with self._source.rows(context) as index:
            form = index.comparison.equal_form
            by_host: dict[str, set[int]] = {}
            for service in services:
                if service["host"] is not None:
                    by_host.setdefault(form(service["host"]), set()).add(service["id"])
            ids = {service["id"] for service in services}
            for _key, row in index.select(deleted_of_select(context)):
                matching = (
                    by_host.get(form(row["host"]), set()) if row["host"] is not None else set()
                )
                times = len(matching | ({row["service_id"]} & ids))
                sums["count"] += times
                for name in SUMMED:
                    sums[name] += times * (row[name] or 0)
        return sums

    def service_get_all_computes_by_hv_type(
        self, context: Any, hv_type: str, include_disabled: bool = False
    ) -> list[Any]:
        """Return services on whose hosts a node of that type is, or was."""
        with self._source.rows(context) as index:
            form = index.comparison.equal_form
            rows = index.select(None, equal={"hypervisor_type": hv_type})
            hosts = {form(row["host"]) for _key, row in rows if row["host"] is not None}
        services = compute_services(context, include_disabled)
        return [each for each in services if each.host is not None and form(each.host) in hosts]

    # -- beside it -------------------------------------------------------------------

    def get_all_by_uuids(self, context: Any, compute_uuids: Collection[str]) -> list[Any]:
        """Answer ``ComputeNodeList._db_compute_node_get_all_by_uuids``."""
        which = deleted_of_model_query(context)
        found: dict[str, node_rows.Row] = {}
        with self._source.rows(context) as index:
            for uuid in compute_uuids:
                if uuid is not None:
                    found.update(index.select(which, equal={"uuid": uuid}))
        return [as_model(row) for row in sorted(found.values(), key=lambda row: row["id"])]

    def get_by_hv_type(self, context: Any, hv_type: str) -> list[Any]:
        """Answer ``ComputeNodeList._db_compute_node_get_by_hv_type``: deleted rows, too."""
        with self._source.rows(context) as index:
            found = index.select(None, equal={"hypervisor_type": hv_type})
            return [as_model(row) for _key, row in found]

    def count(self, context: Any) -> int:
        """Answer nova-status: live rows."""
        with self._source.rows(context) as index:
            return sum(1 for _each in index.select(False))

    def _selected(self, context: Any, **equal: Any) -> list[dict[str, Any]]:
        with self._source.rows(context) as index:
            return _copied(index.select(deleted_of_select(context), equal=equal))


@main_db.pick_context_manager_reader  # type: ignore[untyped-decorator]
def compute_services(context: Any, include_disabled: bool) -> list[Any]:
    """Return live services of nova-compute, as Nova's models."""
    query = main_db.model_query(context, models.Service, read_deleted="no")
    query = query.filter_by(binary="nova-compute")
    if not include_disabled:
        query = query.filter_by(disabled=False)
    return list(query.all())


def _copied(
    found: Iterable[tuple[str, node_rows.Row]], limit: int | None = None
) -> list[dict[str, Any]]:
    """Return rows as dictionaries of their own: callers change them."""
    rows = [dict(row) for _key, row in found]
    return rows if limit is None or limit < 0 else rows[:limit]


#: Names of nova.db.main.api that are answered here.
READS: tuple[str, ...] = (
    "compute_node_get",
    "compute_node_get_model",
    "compute_nodes_get_by_service_id",
    "compute_node_get_by_host_and_nodename",
    "compute_node_get_by_nodename",
    "compute_node_get_all",
    "compute_node_get_all_by_host",
    "compute_node_get_all_mapped_less_than",
    "compute_node_get_all_by_pagination",
    "compute_node_search_by_hypervisor",
    "compute_node_statistics",
    "service_get_all_computes_by_hv_type",
)

#: One of them, bound to a source.
Read = Callable[..., Any]
