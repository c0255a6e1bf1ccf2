# SPDX-License-Identifier: Apache-2.0
"""The services of all compute nodes of a list, read at once.

``GET /os-hypervisors`` asks for the service of each node on its own: a host mapping and a row
of ``services``, two statements each, which take ten times as long as the nodes. Here the answer
of nova-api's list brings the services of its hosts along, in one statement on the API database
and one for each cell, and what asks for them within the same request finds them. A host that is
not among them (no mapping, no service, a name in other letters) is asked for as ever, by Nova's
own code, with Nova's own errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import sqlalchemy as sa
from nova import context as nova_context
from nova import objects
from nova.db.main import models

from nova_nodb_scheduler.nova_adapter.reporting import nova_objects, nova_tables

_SERVICE = models.Service.__table__
#: Of a request's context, and nobody else's.
_BROUGHT = "nodb_listed_services"
#: One host is read as fast by Nova's own code.
_LEAST_HOSTS = 2
#: SQLite's bound of variables, far below that of the others' packets.
_HOSTS_AT_A_TIME = 500

_LISTS = ("compute_node_get_all", "compute_node_search_by_hypervisor")
_ASKED = "service_get_by_compute_host"


def _nova_compute() -> Any:
    """Return Nova's module of its API of computes.

    Imported late: it takes a quarter of a second, and who installs nothing does without.
    """
    from nova.compute import api

    return api


class ListedServices:
    """Brings services along with lists of compute nodes in nova-api; any thread may list."""

    def __init__(self) -> None:
        self._replaced: dict[str, Any] = {}

    def install(self) -> None:
        """Replace methods of Nova's HostAPI; idempotent."""
        if self._replaced:
            return
        host_api = _nova_compute().HostAPI
        for name in (*_LISTS, _ASKED):
            own = vars(host_api)[name]
            self._replaced[name] = own
            setattr(host_api, name, (_asking if name == _ASKED else _bringing)(own))

    def uninstall(self) -> None:
        """Put Nova's own back; idempotent."""
        for name, own in self._replaced.items():
            setattr(_nova_compute().HostAPI, name, own)
        self._replaced.clear()


def _bringing(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def listed(self: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        nodes = own(self, context, *args, **kwargs)
        hosts = {node.host for node in nodes if node.host is not None}
        if len(hosts) >= _LEAST_HOSTS:
            setattr(context, _BROUGHT, _services(context, hosts))
        return nodes

    return listed


def _asking(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def asked(self: Any, context: Any, host_name: str, *args: Any, **kwargs: Any) -> Any:
        found = getattr(context, _BROUGHT, {}).get(host_name)
        return own(self, context, host_name, *args, **kwargs) if found is None else found

    return asked


def _services(context: Any, hosts: Collection[str]) -> dict[str, Any]:
    """Return the services of hosts that are mapped to a cell and have one, by host."""
    found: dict[str, Any] = {}
    for cell, mapped in _by_cell(context, hosts).items():
        mapping = next((each for each in _nova_compute().CELLS if each.uuid == cell), None)
        if mapping is not None:
            with nova_context.target_cell(context, mapping) as cell_context:
                found.update((each.host, each) for each in _of_cell(cell_context, mapped))
    return found


def _by_cell(context: Any, hosts: Collection[str]) -> Mapping[str, list[str]]:
    by_cell: dict[str, list[str]] = {}
    for some in _pages(hosts):
        mapped = nova_tables.read_host_mappings(context, "", some)
        for host, state in mapped.items():
            by_cell.setdefault(str(state["cell"]), []).append(host)
    return by_cell


@nova_objects.with_heartbeats_of_all
def _of_cell(context: Any, hosts: Collection[str]) -> list[Any]:
    services = []
    for some in _pages(hosts):
        query = sa.select(_SERVICE).where(
            _SERVICE.c.host.in_(some), _SERVICE.c.binary == "nova-compute", _SERVICE.c.deleted == 0
        )
        services += [
            objects.Service._from_db_object(context, objects.Service(context), row)
            for row in nova_tables.select_main(context, query)
        ]
    return services


def _pages(hosts: Collection[str]) -> list[list[str]]:
    ordered = sorted(hosts)
    return [
        ordered[first : first + _HOSTS_AT_A_TIME]
        for first in range(0, len(ordered), _HOSTS_AT_A_TIME)
    ]
