# SPDX-License-Identifier: Apache-2.0
"""Nova's databases in SQLite files, the plugin, and nothing else of a deployment."""

from __future__ import annotations

import functools
import itertools
import pathlib
import shutil
import sqlite3
import tempfile
import threading
import unittest
import uuid
from collections.abc import Collection, Mapping
from typing import Any

import nova.conf
import sqlalchemy as sa
from nova import config as nova_config
from nova import context as nova_context
from nova import objects
from nova.db.api import models as api_models
from nova.db.main import models as main_models
from sqlalchemy import event

from nova_nodb_scheduler.conf import nodb
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter, scopes
from nova_nodb_scheduler.nova_adapter.reporting import nova_objects as nodb_objects
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from nova_nodb_scheduler.wire import codec
from tests.nova_suite.economy import connections

CONF = nova.conf.CONF
CELL0 = "00000000-0000-0000-0000-000000000000"
CELL1 = "11111111-1111-4111-8111-111111111111"
CELL2 = "22222222-2222-4222-8222-222222222222"
CELLS = (CELL0, CELL1, CELL2)

_hubs = itertools.count(1)


@functools.cache
def databases() -> Mapping[str, str]:
    """Make and configure the databases, once per process: cell1 is the process's own."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="nodb-cloud-"))
    urls = {name: f"sqlite:///{directory / name}" for name in ("api", *CELLS)}
    for name, models in (("api", api_models), (CELL0, main_models)):
        engine = sa.create_engine(urls[name])
        models.BASE.metadata.create_all(engine)
        engine.dispose()
    for cell in (CELL1, CELL2):
        shutil.copyfile(directory / CELL0, directory / cell)
    connections.install(native_threads=True)
    path = directory / "nova.conf"
    path.write_text(
        f"[DEFAULT]\ntransport_url = fake://\nhost = here\nstate_path = {directory}\n"
        f"[database]\nconnection = {urls[CELL1]}\nsqlite_synchronous = false\n"
        f"[api_database]\nconnection = {urls['api']}\nsqlite_synchronous = false\n"
        "[oslo_messaging_notifications]\ndriver = noop\n"
    )
    nova_config.parse_args(["nova-test"], default_config_files=[str(path)])
    objects.register_all()
    nodb.register_opts(CONF)
    loader.load_class("memory").register_opts(CONF)
    nodb_objects.register()
    return urls


def clear(url: str, *tables: str) -> None:
    """Empty some tables of a database, or all."""
    connection, filled = _cleared_by(url)
    # An empty table that is emptied is written all the same, and so are its indexes.
    names = tables or [name for (name,) in connection.execute(filled)]
    deleted = "".join(f"DELETE FROM {name};" for name in names)
    connection.executescript(f"BEGIN; {deleted} COMMIT;")


@functools.cache
def _cleared_by(url: str) -> tuple[sqlite3.Connection, str]:
    """Return a connection that has read the schema, and the query for tables with rows."""
    connection = sqlite3.connect(
        sa.make_url(url).database, timeout=30.0, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous = OFF")
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    return connection, " UNION ALL ".join(
        f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})" for (name,) in names
    )


class Statements:
    """SQL statements of Nova's engines, by table and verb.

    :param urls: of the databases that count; None for all of this process
    """

    def __init__(self, urls: Collection[str] | None = None) -> None:
        self._urls = urls
        self.seen: list[str] = []

    def __enter__(self) -> Statements:
        event.listen(sa.Engine, "before_cursor_execute", self._note)
        return self

    def __exit__(self, *_args: object) -> None:
        event.remove(sa.Engine, "before_cursor_execute", self._note)

    def _note(self, connection: Any, _cursor: Any, statement: str, *_args: Any) -> None:
        if self._urls is None or str(connection.engine.url) in self._urls:
            self.seen.append(" ".join(statement.split()))

    def of(self, table: str) -> list[str]:
        return [s for s in self.seen if f" {table} " in f"{s} " or f" {table}." in s]


def node_values(host: str) -> dict[str, Any]:
    """Return what a compute node reports of itself, whoever makes it."""
    return {
        "uuid": str(uuid.uuid4()),
        "host": host,
        "hypervisor_hostname": f"node-{host}",
        "vcpus": 8,
        "memory_mb": 16384,
        "local_gb": 100,
        "vcpus_used": 1,
        "memory_mb_used": 512,
        "local_gb_used": 5,
        "free_ram_mb": 15872,
        "free_disk_gb": 95,
        "disk_available_least": 90,
        "hypervisor_type": "fake",
        "hypervisor_version": 1000,
        "cpu_info": "{}",
        "running_vms": 0,
        "current_workload": 0,
        "cpu_allocation_ratio": 4.0,
        "ram_allocation_ratio": 1.0,
        "disk_allocation_ratio": 1.0,
    }


class CloudCase(unittest.TestCase):
    """Three cells (cell0 too), two of them with hosts; a hub of the memory driver."""

    #: The synchronizer's driver; of another one, who names it sets the options.
    BACK_END = "memory"

    def setUp(self) -> None:
        super().setUp()
        self.urls = databases()
        for url in self.urls.values():
            clear(url)
        name = f"cloud-{next(_hubs)}"
        self.override("synchronizer", self.BACK_END, nodb.GROUP)
        self.override("scheduler_driver", "nodb_scheduler", None)
        self.override("hub_name", name, "nodb_memory")
        self.override("sweep_pause_seconds", 0.0, nodb.GROUP)
        self.override("flush_interval_seconds", 0.005, nodb.GROUP)
        self.hub = hub.MemoryHub.named(name)
        self.addCleanup(hub.MemoryHub.forget, name)
        self.admin = nova_context.get_admin_context()
        for cell in CELLS:
            objects.CellMapping(
                self.admin,
                uuid=cell,
                name=cell[:4],
                database_connection=self.urls[cell],
                transport_url="fake:///" if cell != CELL0 else "none:///",
                disabled=False,
            ).create()
        self.plugin = assembly.Plugin(CONF)
        assembly.install(self.plugin)
        self.addCleanup(assembly.install, None)
        self.synchronizer = self.plugin.make_synchronizer()
        self.synchronizer.open()

    def override(self, name: str, value: Any, group: str | None) -> None:
        CONF.set_override(name, value, group=group)
        self.addCleanup(CONF.clear_override, name, group=group)

    def statements(self) -> Statements:
        """Return what notes statements on Nova's databases, and on no other's."""
        return Statements(list(self.urls.values()))

    # -- reporters ----------------------------------------------------------------

    def report(
        self, cell: str = change_reporter.EVERY_CELL, *guards: str
    ) -> change_reporter.ChangeReporter:
        """Make a reporter the process's own; flushed by hand unless it is started."""
        made = self.plugin.reporter("conductor", lambda: cell, lambda: guards)
        self.quiet(made)
        change_reporter.install(made, self.plugin.scopes)
        self.addCleanup(change_reporter.install, None, None)
        return made

    def quiet(self, made: change_reporter.ChangeReporter) -> None:
        """Let a reporter run no thread of its own: the test flushes."""
        made.ensure_started = lambda: None  # type: ignore[method-assign]

    def context(self, cell: str) -> Any:
        """Return a context for a cell's database."""
        context = nova_context.get_admin_context()
        nova_context.set_target_cell(context, objects.CellMapping.get_by_uuid(self.admin, cell))
        return context

    # -- what the back end holds ----------------------------------------------------

    def states(self, namespace: Any) -> dict[str, Mapping[str, Any]]:
        found = {}
        for page in self.synchronizer.snapshot([namespace.name]).pages:
            for record in page:
                found[record.key.key] = codec.decode_state(record.payload)
        return found

    def sweep(self, *which: str) -> None:
        sweeper = self.plugin.sweeper(self.synchronizer)
        for scope in which or (*CELLS, scopes.API):
            sweeper.sweep(scope, threading.Event(), by="test")

    def store(self) -> host_state_store.HostStateStore:
        """Return a store with all that the back end holds."""
        made = host_state_store.HostStateStore(self.plugin.declared, codec.decode_state)
        for page in self.synchronizer.snapshot().pages:
            for record in page:
                made.apply(records.Change(record, codec.decode_state(record.payload)))
        return made

    # -- rows -----------------------------------------------------------------------

    def compute_node(self, cell: str, host: str, **more: Any) -> Any:
        """Create a host's compute node through Nova's object."""
        values = {
            **node_values(host),
            "host_ip": "192.0.2.1",
            "supported_hv_specs": [],
            "pci_device_pools": objects.PciDevicePoolList(objects=[]),
            "numa_topology": None,
            "metrics": "[]",
            "stats": {"num_instances": "2", "io_workload": "1"},
            **more,
        }
        node = objects.ComputeNode(self.context(cell), **values)
        node.create()
        return node

    def service(self, cell: str, host: str, binary: str = "nova-compute", **more: Any) -> Any:
        made = objects.Service(
            self.context(cell), host=host, binary=binary, topic="compute", **more
        )
        made.create()
        return made

    def heartbeat(self, service: Any) -> None:
        service.report_count += 1
        service.save()

    def host(self, cell: str, host: str, **more: Any) -> tuple[Any, Any]:
        """Create a compute node, its service and its host mapping."""
        service = self.service(cell, host)
        self.heartbeat(service)
        node = self.compute_node(cell, host, **more)
        objects.HostMapping(
            self.admin,
            host=host,
            cell_mapping=objects.CellMapping.get_by_uuid(self.admin, cell),
        ).create()
        return node, service

    def instance(self, cell: str, host: str | None, **more: Any) -> Any:
        values: dict[str, Any] = {
            "uuid": str(uuid.uuid4()),
            **({"host": host, "node": f"node-{host}", "compute_id": 1} if host else {}),
            "project_id": "p",
            "user_id": "u",
            "vm_state": "building",
            "task_state": None,
            "memory_mb": 512,
            "vcpus": 1,
            "root_gb": 5,
            "ephemeral_gb": 0,
            "instance_type_id": 1,
            "image_ref": "",
            "display_name": "i",
            **more,
        }
        made = objects.Instance(self.context(cell), **values)
        made.create()
        return made
