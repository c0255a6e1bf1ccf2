# SPDX-License-Identifier: Apache-2.0
"""What is told: calls of Nova's objects as its services make them, and of its database API.

A call is its name and its arguments, all of them plain values: a sequence that was found to
differ is kept as it is printed. What a nova-compute holds between two calls it holds here,
too, so that it may save or delete what others have moved or deleted meanwhile.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from nova import objects
from nova.db.main import api as main_db
from nova.objects import compute_node as nova_compute_node

from tests.functional.nova_adapter.compute_nodes import nova_table, test_row_queries
from tests.functional.nova_adapter.compute_nodes.sequences import cells

#: Name and arguments.
Call = tuple[Any, ...]

#: By which conductor, which rows its context gives, and the call.
Step = tuple[int, str, Call]

_HOSTS = ("h1", "H1", "h2")
_NODES = ("n1", "N1", "n2")
_UUIDS = nova_table.UUIDS[:3]
_SERVICES = tuple(each.replace("a", "b") for each in nova_table.UUIDS)
_UNMAPPED = "found by discovery"

# -- by Nova's objects -----------------------------------------------------------------


def create(cell: cells.Cell, context: Any, uuid: str, values: Mapping[str, Any]) -> Any:
    """Create a node as the resource tracker does, and hold it."""
    made = objects.ComputeNode(context, **{**nova_table.NEEDED, "uuid": uuid, **values})
    made.create()
    cell.held[uuid] = made
    return made


def save(cell: cells.Cell, context: Any, uuid: str, values: Mapping[str, Any]) -> Any:
    """Save what is held of a node, however old it is; what fails is saved by the next."""
    found = cell.held.get(uuid)
    if found is None:
        return "not held"
    found._context = context
    for name, value in values.items():
        setattr(found, name, value)
    found.save()
    return found


def look(cell: cells.Cell, context: Any, uuid: str) -> Any:
    """Hold a node as it is now."""
    cell.held[uuid] = found = objects.ComputeNode.get_by_uuid(context, uuid)
    return found


def destroy(cell: cells.Cell, context: Any, uuid: str) -> Any:
    """Delete what is held of a node, on its host as it is held."""
    found = cell.held.get(uuid)
    if found is None:
        return "not held"
    found._context = context
    found.destroy()
    return None


def undelete(cell: cells.Cell, _context: Any, uuid: str) -> Any:
    """Bring a deleted node back as the resource tracker does that finds it."""
    found = objects.ComputeNode.get_by_uuid(cell.context("yes"), uuid)
    if found.deleted:
        found.deleted, found.deleted_at = False, None
        found.save()
    cell.held[uuid] = found
    return found


def move(cell: cells.Cell, context: Any, node: str, host: str) -> Any:
    """Give a node another host, as one of Ironic's changes hands."""
    found = objects.ComputeNode.get_by_nodename(context, node)
    found.host = host
    found.save()
    return found


def discover(cell: cells.Cell, context: Any) -> Any:
    """Look for nodes whose hosts are not mapped yet."""
    cell.held[_UNMAPPED] = list(objects.ComputeNodeList.get_all_by_not_mapped(context, 1))
    return [each.id for each in cell.held[_UNMAPPED]]


def note_mapped(cell: cells.Cell, context: Any) -> Any:
    """Save of the next node that was found so that its host is mapped."""
    unmapped = cell.held.get(_UNMAPPED)
    if not unmapped:
        return "none"
    found = unmapped.pop(0)
    found._context = context
    found.mapped = 1
    found.save()
    return found


def add_service(_cell: cells.Cell, context: Any, number: int, host: str, binary: str) -> Any:
    """Create a service as it does when it starts."""
    made = objects.Service(
        context, uuid=_SERVICES[number], host=host, binary=binary, topic=binary, report_count=0
    )
    made.create()
    return made


def disable_service(_cell: cells.Cell, context: Any, service_id: int) -> Any:
    main_db.service_update(context, service_id, {"disabled": True})


def destroy_service(_cell: cells.Cell, context: Any, service_id: int) -> Any:
    objects.Service.get_by_id(context, service_id).destroy()


def archive(cell: cells.Cell, context: Any, most: int, minutes: int | None) -> Any:
    """Archive until nothing is left, as nova-manage does; what it is told in all.

    :param most: rows of one call
    :param minutes: only what was deleted before, of :data:`.nova_table.MOMENT`
    """
    before = None
    if minutes is not None:
        before = nova_table.MOMENT + datetime.timedelta(minutes=minutes)
    told: dict[str, int] = {}
    while True:
        archived, _instances, total = main_db.archive_deleted_rows(context, most, before=before)
        if not total:
            return told
        for table, count in archived.items():
            told[table] = told.get(table, 0) + count


def fill_ratios(_cell: cells.Cell, context: Any, most: int) -> Any:
    """Migrate nodes without allocation ratios, as nova-manage does."""
    return list(nova_compute_node.migrate_empty_ratio(context, most))


# -- by the database API ----------------------------------------------------------------


def insert(cell: cells.Cell, context: Any, values: Mapping[str, Any]) -> Any:
    made = main_db.compute_node_create(context, {**nova_table.NEEDED, **values})
    # Of what a creation did not name, Nova's model has no value.
    return main_db.compute_node_get(cell.context("yes"), made.id)


def update(cell: cells.Cell, context: Any, node_id: int, values: Mapping[str, Any]) -> Any:
    made = main_db.compute_node_update(context, node_id, dict(values))
    return main_db.compute_node_get(cell.context("yes"), made.id)


def delete(_cell: cells.Cell, context: Any, node_id: int, hosts: tuple[str, ...]) -> Any:
    constraint = main_db.constraint(host=main_db.equal_any(*hosts)) if hosts else None
    main_db.compute_node_delete(context, node_id, constraint)


def read(_cell: cells.Cell, context: Any, name: str, *arguments: Any) -> Any:
    """Answer one of the functions that read."""
    found = nova_table.plain(getattr(main_db, name)(context, *arguments))
    return nova_table.by_id(found) if name in test_row_queries.UNORDERED else found


CALLS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        create,
        save,
        look,
        destroy,
        undelete,
        move,
        discover,
        note_mapped,
        add_service,
        disable_service,
        destroy_service,
        archive,
        fill_ratios,
        insert,
        update,
        delete,
        read,
    )
}

#: Calls of nova-compute's, which reads what is not deleted, but for what says so itself.
_BY_OBJECTS = ("create", "save", "look", "destroy", "move", "discover", "note_mapped")

# -- drawn ------------------------------------------------------------------------------

_uuids = st.sampled_from(_UUIDS)
_hosts = st.sampled_from(_HOSTS)
_nodes = st.sampled_from(_NODES)
_ids = st.integers(1, 4)
_service_ids = st.integers(1, 2)
_binaries = st.sampled_from(["nova-compute", "nova-compute", "nova-conductor"])

_reported = st.fixed_dictionaries(
    {},
    optional={
        "vcpus_used": st.integers(0, 9),
        "running_vms": st.integers(0, 9),
        "free_ram_mb": st.integers(-9, 9),
        "disk_available_least": st.sampled_from([None, 7]),
        "cpu_allocation_ratio": st.sampled_from([0.0, 1.5, 4.0]),
        "host": _hosts,
        "hypervisor_hostname": _nodes,
        "service_id": st.sampled_from([None, 1, 2]),
        "mapped": st.sampled_from([0, 1, 1]),
        "host_ip": st.sampled_from(["10.0.0.1", "2001:0db8:0:0:0:0:0:1"]),
        "stats": st.sampled_from([{}, {"a": "1"}]),
    },
)
_written = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from([*_HOSTS, "h2 ", None]),
        "hypervisor_hostname": st.sampled_from([*_NODES, None]),
        "vcpus": st.one_of(st.integers(1, 99), st.just(None)),
        "mapped": st.sampled_from([0, 1, None]),
        "service_id": st.sampled_from([1, 2, None]),
        "cpu_allocation_ratio": st.sampled_from([2, 1.5, 0.0, None]),
        "host_ip": st.sampled_from(["10.0.0.1", "2001:0db8:0:0:0:0:0:1"]),
        "stats": st.sampled_from(["{}", '{"a": "1"}', None]),
        "deleted": st.just(False),
    },
)


def _named(host: str, node: str, values: Mapping[str, Any]) -> dict[str, Any]:
    ratios = {f"{kind}_allocation_ratio": 1.0 for kind in ("cpu", "ram", "disk")}
    return {"host": host, "hypervisor_hostname": node, **ratios, **values}


def _inserted(uuid: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    # A row of no uuid that is refused for its name costs an id, as on MySQL.
    return {**values, "host": None} if uuid is None else {**values, "uuid": uuid}


def _read(name: str, *given: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *given)


READS: Mapping[str, st.SearchStrategy[tuple[Any, ...]]] = {
    name: _read(name, *given)
    for name, given in {
        "compute_node_get": (_ids,),
        "compute_node_get_model": (_ids,),
        "compute_nodes_get_by_service_id": (_service_ids,),
        "compute_node_get_by_host_and_nodename": (_hosts, _nodes),
        "compute_node_get_by_nodename": (_nodes,),
        "compute_node_get_all": (),
        "compute_node_get_all_by_host": (_hosts,),
        "compute_node_get_all_mapped_less_than": (st.integers(0, 2),),
        "compute_node_get_all_by_pagination": (
            st.sampled_from([None, 0, 1, 2]),
            st.one_of(st.none(), _ids),
        ),
        "compute_node_search_by_hypervisor": (st.sampled_from(["n", "1", "N2", "_"]),),
        "compute_node_statistics": (),
        "service_get_all_computes_by_hv_type": (st.just("QEMU"), st.booleans()),
    }.items()
}

#: Arguments of each call, and how often it is drawn beside the others.
_ARGUMENTS: Mapping[str, tuple[int, st.SearchStrategy[tuple[Any, ...]]]] = {
    "create": (3, st.tuples(_uuids, st.builds(_named, _hosts, _nodes, _reported))),
    "save": (4, st.tuples(_uuids, _reported)),
    "look": (2, st.tuples(_uuids)),
    "destroy": (3, st.tuples(_uuids)),
    "undelete": (3, st.tuples(_uuids)),
    "move": (3, st.tuples(_nodes, _hosts)),
    "discover": (2, st.tuples()),
    "note_mapped": (3, st.tuples()),
    "add_service": (1, st.tuples(st.integers(0, 3), _hosts, _binaries)),
    "disable_service": (1, st.tuples(_service_ids)),
    "destroy_service": (3, st.tuples(_service_ids)),
    "archive": (2, st.tuples(st.sampled_from([1, 2, 99]), st.sampled_from([None, None, 9]))),
    "fill_ratios": (1, st.tuples(st.integers(1, 3))),
    "insert": (2, st.tuples(st.builds(_inserted, st.sampled_from([*_UUIDS, None]), _written))),
    "update": (2, st.tuples(_ids, _written)),
    "delete": (2, st.tuples(_ids, st.sampled_from([(), (), ("h1",), ("h2", "H1")]))),
    "read": (6, st.sampled_from(sorted(READS)).flatmap(lambda name: READS[name])),
}


def _step(name: str) -> st.SearchStrategy[Step]:
    by_objects = name in _BY_OBJECTS or name.endswith("service")
    deleted = st.just("no") if by_objects else st.sampled_from(["no"] * 4 + ["yes", "only"])
    call = _ARGUMENTS[name][1].map(lambda given: (name, *given))
    return st.tuples(st.integers(0, 1), deleted, call)


_any_step = st.sampled_from(
    [name for name, (times, _given) in _ARGUMENTS.items() for _ in range(times)]
).flatmap(_step)

#: Nodes and services are there first: little happens to what is not.
STEPS = st.builds(
    lambda *parts: [step for part in parts for step in part],
    st.lists(_step("add_service"), max_size=2),
    st.lists(_step("create"), min_size=1, max_size=3),
    st.lists(_any_step, min_size=6, max_size=18),
)
