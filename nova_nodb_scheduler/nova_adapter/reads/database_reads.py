# SPDX-License-Identifier: Apache-2.0
"""Answers the database reads of Nova's request filters and weighers from memory.

They are functions of Nova without a seam, so they are replaced, in
nova-scheduler only, by functions that ask the current request's view and
otherwise call Nova's own. The lowest function that still sees the request's
thread is taken, so that everything above stays Nova's.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from nova import objects
from nova.objects import aggregate as nova_aggregate
from nova.objects import cell_mapping as nova_cell_mapping
from nova.objects import service as nova_service

from nova_nodb_scheduler.nova_adapter.conversion import nova_rows
from nova_nodb_scheduler.nova_adapter.reads import request_views
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.nova_adapter.reporting import state_proof as proof_module

LOG = logging.getLogger(__name__)

Row = Mapping[str, Any]

_by_metadata = nova_aggregate._get_by_metadata_from_db
_non_matching = nova_aggregate._get_non_matching_by_metadata_keys_from_db
_by_host = nova_aggregate._get_by_host_from_db
_minimum_version = nova_service.get_minimum_version_all_cells
_cell_by_uuid = nova_cell_mapping.CellMapping._get_by_uuid_from_db


class _Hosts(list[str]):
    """Names of hosts as an aggregate's field holds them: Nova need not look at each again.

    With 10,000 hosts in a zone that took as long as all the rest of a request.
    """


def _take_hosts_as_they_are() -> None:
    """Have the field copy such a list whole; idempotent."""
    field = nova_aggregate.Aggregate.fields["hosts"]
    own = field.coerce
    if hasattr(own, "_nodb"):
        return

    @functools.wraps(own)
    def coerce(obj: Any, attr: str, value: Any) -> Any:
        if type(value) is not _Hosts:
            return own(obj, attr, value)
        taken = own(obj, attr, ())
        list.extend(taken, value)
        return taken

    coerce._nodb = True  # type: ignore[attr-defined]
    field.coerce = coerce


def _row(aggregate: Any, metadata: Mapping[str, str]) -> Row:
    return {
        "id": aggregate.id,
        "uuid": aggregate.uuid,
        "name": aggregate.name,
        "hosts": _Hosts(aggregate.hosts),
        "metadetails": dict(metadata),
        "created_at": aggregate.created_at,
        "updated_at": aggregate.updated_at,
    }


def _matching(
    view: request_views.RequestView, wanted: Callable[[str, str], bool]
) -> list[Row] | None:
    """Return aggregates with a wanted metadata item; None where Nova must look.

    Nova's joins load only the items that matched; a filter that looks at the
    metadata of what it gets must see the same.
    """
    aggregates = _readable(view, view.reads.aggregates)
    if aggregates is None:
        return None
    found = []
    for aggregate in aggregates:
        items = {k: v for k, v in aggregate.metadata.items() if wanted(k, v)}
        if items:
            found.append(_row(aggregate, items))
    return found


def _readable(view: request_views.RequestView, read: Callable[[], list[Any]]) -> list[Any] | None:
    """Read from memory, or send the API database's reads to Nova's own path."""
    try:
        return read()
    except nova_rows.UNUSABLE as error:
        LOG.error("%(error)s", {"error": error})
        view.miss(scopes_module.API, proof_module.UnprovedReason.UNKNOWN_VERSION)
        return None


def _view() -> request_views.RequestView | None:
    view = request_views.current()
    return view if view is not None and view.serves(scopes_module.API) else None


@functools.wraps(_by_metadata)
def get_by_metadata(context: Any, key: str | None = None, value: str | None = None) -> list[Any]:
    """Answer AggregateList.get_by_metadata and get_by_metadata_key."""
    view = _view()
    if view is not None:
        assert key is not None or value is not None  # as Nova's own
        found = _matching(
            view, lambda k, v: (key is None or k == key) and (value is None or v == value)
        )
        if found is not None:
            return found
    return list(_by_metadata(context, key=key, value=value))


@functools.wraps(_non_matching)
def get_non_matching(
    context: Any, ignored_keys: list[str], key_prefix: str, value: str
) -> list[Any]:
    """Answer AggregateList.get_non_matching_by_metadata_keys."""
    view = _view()
    if view is not None and key_prefix:
        found = _matching(
            view, lambda k, v: v == value and k.startswith(key_prefix) and k not in ignored_keys
        )
        if found is not None:
            return found
    return list(_non_matching(context, ignored_keys, key_prefix, value))


@functools.wraps(_by_host)
def get_by_host(context: Any, host: str, key: str | None = None) -> list[Any]:
    """Answer AggregateList.get_by_host."""
    view = _view()
    if view is not None:
        reads = view.reads
        found = _readable(view, lambda: reads.aggregates_of_host(host))
        if found is not None:
            return [_row(agg, agg.metadata) for agg in found if not key or key in agg.metadata]
    return list(_by_host(context, host, key=key))


@functools.wraps(_minimum_version)
def get_minimum_version_all_cells(
    context: Any, binaries: list[str], require_all: bool = False
) -> int:
    """Answer from memory where every cell, cell0 too, is proved."""
    view = request_views.current()
    cells = _all_cells(view) if view is not None else []
    if (
        view is None
        or not all(binary.startswith("nova-") for binary in binaries)
        or not all(view.serves(cell) for cell in cells)
    ):
        return int(_minimum_version(context, binaries, require_all=require_all))
    versions = [
        version
        for cell in cells
        for version in view.reads.minimum_service_versions(cell, binaries).values()
        if version
    ]
    return min(versions, default=0)


def _all_cells(view: request_views.RequestView) -> list[str]:
    return sorted({*view.cells, objects.CellMapping.CELL0_UUID})


@functools.wraps(_cell_by_uuid)
def get_cell_by_uuid(context: Any, uuid: str) -> Row:
    """Answer CellMapping.get_by_uuid, which the weigher by images asks for each host.

    From what the host manager holds: by that Nova reads the cells themselves.
    """
    view = request_views.current()
    held = None if view is None or view.stock else view.cell_mappings.get(uuid)
    if held is None or not all(map(held.obj_attr_is_set, held.fields)):
        row: Row = _cell_by_uuid(context, uuid)
        return row
    return {name: getattr(held, name) for name in held.fields}


#: (module or class, name, Nova's own, ours)
_REPLACED = (
    (nova_aggregate, "_get_by_metadata_from_db", _by_metadata, get_by_metadata),
    (
        nova_aggregate,
        "_get_non_matching_by_metadata_keys_from_db",
        _non_matching,
        get_non_matching,
    ),
    (nova_aggregate, "_get_by_host_from_db", _by_host, get_by_host),
    (
        nova_service,
        "get_minimum_version_all_cells",
        _minimum_version,
        get_minimum_version_all_cells,
    ),
    (
        nova_cell_mapping.CellMapping,
        "_get_by_uuid_from_db",
        _cell_by_uuid,
        get_cell_by_uuid,
    ),
)


def install() -> None:
    """Put the functions in the place of Nova's own; idempotent.

    What somebody else replaced (a test, another plugin) is left alone.
    """
    _take_hosts_as_they_are()
    for module, name, own, ours in _REPLACED:
        if getattr(module, name) is own:
            setattr(module, name, staticmethod(ours) if isinstance(module, type) else ours)
