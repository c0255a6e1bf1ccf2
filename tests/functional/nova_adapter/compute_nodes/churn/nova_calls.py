# SPDX-License-Identifier: Apache-2.0
"""A process of Nova's that carries out calls on compute nodes, one a line, until its input ends.

Run by path, with the nova.conf that is named: that alone says whether the plugin is active. It
imports Nova, and nothing of ours: where the plugin is not active, no module of it is there.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import pathlib
import sys
import warnings
from typing import Any

_FIELDS = ("id", "uuid", "created_at", "updated_at")


def _context(read_deleted: str = "no") -> Any:
    # Of no cell, as in the conductor of one.
    from nova import context

    return context.get_admin_context(read_deleted=read_deleted)


def _told(node: Any) -> dict[str, Any]:
    return {name: getattr(node, name) for name in _FIELDS}


def _found(node_uuid: str, read_deleted: str = "no") -> Any:
    from nova import objects

    return objects.ComputeNode.get_by_uuid(_context(read_deleted), node_uuid)


def create(values: dict[str, Any]) -> Any:
    """Create a node as the resource tracker does."""
    from nova import objects

    made = objects.ComputeNode(_context(), **values)
    made.create()
    return _told(made)


def save(node_uuid: str, values: dict[str, Any]) -> Any:
    """Save what changed of a node, a move to another host too."""
    found = _found(node_uuid)
    for name, value in values.items():
        setattr(found, name, value)
    found.save()
    return _told(found)


def destroy(node_uuid: str) -> Any:
    found = _found(node_uuid)
    found.destroy()
    return _told(found)


def undelete(node_uuid: str) -> Any:
    """Bring a deleted node back as the resource tracker does that finds it."""
    found = _found(node_uuid, "yes")
    found.deleted, found.deleted_at = False, None
    found.save()
    return _told(found)


def add_service(host: str) -> Any:
    from nova import objects

    made = objects.Service(
        _context(), host=host, binary="nova-compute", topic="compute", report_count=0
    )
    made.create()
    return made.id


def destroy_service(service_id: int) -> Any:
    from nova import objects

    objects.Service.get_by_id(_context(), service_id).destroy()


def add_device(node_id: int, address: str) -> Any:
    from nova.db.main import api as main_db

    values = {
        "compute_node_id": node_id,
        "address": address,
        "vendor_id": "8086",
        "product_id": "1",
        "dev_type": "type-PCI",
        "label": "label",
        "status": "available",
    }
    return main_db.pci_device_update(_context(), node_id, address, values).id


def remove_device(node_id: int, address: str) -> Any:
    from nova.db.main import api as main_db

    main_db.pci_device_destroy(_context(), node_id, address)


def archive() -> Any:
    """Archive until nothing is left, as nova-manage does; how many compute nodes that were."""
    from nova.db.main import api as main_db

    nodes = 0
    while True:
        archived, _instances, total = main_db.archive_deleted_rows(_context(), 1000)
        nodes += archived.get("compute_nodes", 0)
        if not total:
            return nodes


def purge() -> Any:
    from nova.db.main import api as main_db

    return main_db.purge_shadow_tables(_context(), None)


def rows() -> Any:
    """Return all compute nodes, live and deleted."""
    from nova.db.main import api as main_db

    return [dict(row) for row in main_db.compute_node_get_all(_context("yes"))]


def living() -> Any:
    """Return ids and uuids of live compute nodes as lists of objects give them."""
    from nova import objects

    return [(node.id, node.uuid) for node in objects.ComputeNodeList.get_all(_context())]


def others() -> Any:
    """Return archived compute nodes, and PCI devices, as the database has them."""
    import sqlalchemy as sa
    from nova.db.main import api as main_db

    with main_db.get_engine(context=_context()).connect() as connection:
        return {
            name: [list(row) for row in connection.execute(sa.text(query))]
            for name, query in (
                ("archived", "SELECT id, uuid, deleted FROM shadow_compute_nodes ORDER BY id"),
                (
                    "devices",
                    "SELECT id, compute_node_id, address, deleted FROM pci_devices ORDER BY id",
                ),
            )
        }


def described() -> Any:
    """Return whose code writes a compute node, and which modules of the plugin are there."""
    from nova.db.main import api as main_db

    return {
        "writes_nodes": pathlib.Path(main_db.compute_node_update.__code__.co_filename).stem,
        "plugin_modules": sorted(n for n in sys.modules if n.startswith("nova_nodb_scheduler")),
    }


_CALLS = {
    each.__name__: each
    for each in (
        *(create, save, destroy, undelete, add_service, destroy_service, add_device),
        *(remove_device, archive, purge, rows, living, others, described),
    )
}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
        return str(value)
    raise TypeError(f"{type(value)} is not for JSON")


def _addresses_as_text() -> None:
    """Have psycopg 3 give addresses as psycopg 2 does: Nova's own objects read no others."""
    import psycopg
    from psycopg.types import string

    for name in ("inet", "cidr"):
        psycopg.adapters.register_loader(name, string.TextLoader)


def main() -> None:
    """Configure Nova, say so, and answer."""
    conf_file = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w")
    # Who prints says it to people.
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    from nova import config, objects

    _addresses_as_text()
    sys.argv = ["nova-conductor"]
    config.parse_args(sys.argv, default_config_files=[conf_file])
    objects.register_all()
    print(json.dumps(described()), file=answers, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer: dict[str, Any] = {"value": None, "error": None}
        try:
            answer["value"] = _CALLS[name](*arguments)
        except Exception as error:
            answer.update(error=type(error).__name__, said=str(error)[:500])
        print(json.dumps(answer, default=_plain), file=answers, flush=True)


if __name__ == "__main__":
    main()
