# SPDX-License-Identifier: Apache-2.0
"""A cloud whose compute nodes are records: two cells, a database of SQLite as the back end."""

from __future__ import annotations

import contextlib
import pathlib
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from nova import objects
from nova.conductor import manager as nova_conductor
from nova.db.main import models
from nova.objects import base as nova_base
from sqlalchemy import event

from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, text_comparison
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import node_serving
from nova_nodb_scheduler.nova_adapter.reporting import table_tripwire
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy
from nova_nodb_scheduler.synchronizer.migration import migration_fence
from tests.functional.nova_adapter import cloud

_AWAY = "shadow_nodb_compute_nodes"
_NAMED = re.compile(r"\bcompute_nodes\b")


class ServedCloud(cloud.CloudCase):
    """Cells with hosts are in the mode that this process is configured for, and served."""

    BACK_END = "sqlalchemy"
    MODE = cell_modes.NodeMode.RETIRED

    def setUp(self) -> None:
        cloud.databases()
        loader.load_class("sqlalchemy").register_opts(cloud.CONF)
        directory = self.enterContext(tempfile.TemporaryDirectory(prefix="nodb-served-"))
        self.path = pathlib.Path(directory, "nodb.sqlite")
        self.override("connection", f"sqlite:///{self.path}", "nodb_sqlalchemy")
        self.override("compute_nodes", self.MODE.value, "nodb_scheduler")
        super().setUp()
        self.addCleanup(self.synchronizer.close)
        for cell in (cloud.CELL1, cloud.CELL2):
            # Nova has no models of its archive.
            for table in ("compute_nodes", "services"):
                self.execute(cell, f"CREATE TABLE shadow_{table} AS SELECT * FROM {table}")
                self.addCleanup(self.execute, cell, f"DROP TABLE shadow_{table}")
        self.serving = self.served(self.plugin)
        self.bring()
        self.serving.install()
        self.addCleanup(self.serving.close)

    def served(self, plugin: assembly.Plugin) -> node_serving.NodeServing:
        found = plugin.compute_nodes
        assert isinstance(found, node_serving.NodeServing)
        return found

    def another_process(self) -> node_serving.NodeServing:
        """Return what serves in another process of the same configuration."""
        made = self.served(assembly.Plugin(cloud.CONF))
        self.addCleanup(made.close)
        return made

    def bring(self) -> None:
        """Bring the cells' rows to the back end; for ``retired``, take their tables away."""
        transfer = self.serving.transfer()
        modes = cell_modes.CellModes(self.synchronizer)
        for cell in (cloud.CELL1, cloud.CELL2):
            transfer.to_store(self.context(cell), cell, text_comparison.SQLITE)
            if self.MODE is cell_modes.NodeMode.RETIRED:
                self.execute(cell, f"ALTER TABLE compute_nodes RENAME TO {_AWAY}")
                self.addCleanup(self.execute, cell, f"ALTER TABLE {_AWAY} RENAME TO compute_nodes")
                modes.record(cell, cell_modes.NodeMode.RETIRED)

    def execute(self, cell: str, statement: str) -> list[Any]:
        """Send a statement to a cell's database, by a connection of its own."""
        engine = sa.create_engine(self.urls[cell])
        try:
            with table_tripwire.own_statements(), engine.begin() as connection:
                done = connection.execute(sa.text(statement))
                return list(done.mappings()) if done.returns_rows else []
        finally:
            engine.dispose()

    def archived(self, cell: str = cloud.CELL1) -> list[Any]:
        return self.execute(cell, "SELECT * FROM shadow_compute_nodes ORDER BY id")

    @contextlib.contextmanager
    def unnamed(self) -> Iterator[None]:
        """Refuse any statement to any database of Nova's that names the table."""
        with self.statements() as statements:
            yield
        self.assertEqual([], [each for each in statements.seen if _NAMED.search(each)])

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Have the back end answer nobody, and come back with all that it has."""
        opened = self.serving._opened().synchronizer
        assert isinstance(opened, migration_fence.FencedSynchronizer)
        driver = opened.inner
        assert isinstance(driver, sqlalchemy.SQLAlchemySynchronizer)

        def refuse(_dialect: Any, _record: Any, _arguments: Any, _options: Any) -> None:
            raise sqlite3.OperationalError("unable to open database file")

        for engine in driver.engines:
            engine.dispose()
            event.listen(engine, "do_connect", refuse)
        yield
        for engine in driver.engines:
            event.remove(engine, "do_connect", refuse)

    # -- as nova-compute does -----------------------------------------------------------

    def call(self, made: Any, method: str) -> Any:
        """Call a method of an object by way of its cell's conductor."""
        sent = nova_base.NovaObject.obj_from_primitive(
            made.obj_to_primitive(), context=made._context
        )
        updates, _answer = nova_conductor.ConductorManager.object_action(
            self,  # type: ignore[arg-type]
            made._context,
            sent,
            method,
            (),
            {},
        )
        for name, value in updates.items():
            if name != "obj_what_changed":
                setattr(made, name, made.fields[name].from_primitive(made, name, value))
        made.obj_reset_changes()
        return made

    def _object_dispatch(self, target: Any, method: str, args: Any, kwargs: Any) -> Any:
        return getattr(target, method)(*args, **kwargs)

    def node(self, host: str, cell: str = cloud.CELL1, **more: Any) -> Any:
        """Create a host's compute node as its resource tracker does."""
        values = {**cloud.node_values(host), **more}
        made = objects.ComputeNode(self.context(cell), **values)
        return self.call(made, "create")

    def hosts(self, cell: str = cloud.CELL1, read_deleted: str = "no") -> list[str]:
        context = self.context(cell)
        context.read_deleted = read_deleted
        return [str(each.host) for each in objects.ComputeNodeList.get_all(context)]


def table_rows(case: ServedCloud, cell: str = cloud.CELL1) -> list[Any]:
    """Return Nova's table as it stands, where it is there."""
    names = ", ".join(each.name for each in models.ComputeNode.__table__.columns)
    return case.execute(cell, f"SELECT {names} FROM compute_nodes ORDER BY id")
