# SPDX-License-Identifier: Apache-2.0
"""Nova's databases, and Placement's: made once a process, and with connections that are kept.

Where Nova's tests run on native threads their databases are SQLite files, to which oslo.db
connects anew for every transaction; each connection reads the schema of a hundred tables. That
was a fifth of what a test cost. Each test has four databases or more, whose tables are copied
page by page from the first of their kind; Nova runs a statement for each table.
"""

from __future__ import annotations

import sqlite3
import threading
import types
from collections.abc import Mapping
from typing import Any
from unittest import mock

from nova.tests import fixtures as nova_fixtures
from oslo_db.sqlalchemy import enginefacade, engines
from placement.db.sqlalchemy import migration
from placement.tests import fixtures as placement_fixtures
from sqlalchemy import pool


class KeptConnections(pool.QueuePool):
    """As many connections as there are transactions at a time; a few are kept."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **({"max_overflow": -1} | options))


class _Copies:
    """Databases of one kind: the first is made by Nova's means, the others are copies of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: sqlite3.Connection | None = None

    def copy_into(self, engine: Any) -> bool:
        """Fill the empty database of an engine; tell whether there is one to copy."""
        with self._lock, engine.connect() as connection:
            if self._first is not None:
                self._first.backup(connection.connection.driver_connection)
            return self._first is not None

    def keep(self, engine: Any) -> None:
        """Keep the first database: those that come will be as it is now."""
        with self._lock, engine.connect() as connection:
            if self._first is None:
                self._first = sqlite3.connect(":memory:", check_same_thread=False)
                connection.connection.driver_connection.backup(self._first)


def install(native_threads: bool) -> None:
    """Give the engines of Nova and Placement such a pool, and their databases their tables.

    The plugin's engines are made as ever. Databases in memory have their one
    connection as before. A connection that comes back lets another thread run only
    where threads are green and would not get a turn.
    """
    _keep_connections({"thread_checkin": False} if native_threads else {})
    _copy_tables()


def _keep_connections(overrides: Mapping[str, Any]) -> None:
    lock = threading.Lock()
    pools = types.SimpleNamespace(**vars(pool) | {"NullPool": KeptConnections})
    create = engines.create_engine

    def create_engine(*args: Any, **options: Any) -> Any:
        with lock, mock.patch.object(engines, "pool", pools):
            return create(*args, **(options | overrides))

    enginefacade.engines = types.SimpleNamespace(**vars(engines) | {"create_engine": create_engine})


def _copy_tables() -> None:
    main, api, placement = _Copies(), _Copies(), _Copies()
    apply_schema = nova_fixtures.Database._apply_schema
    cache_schema = nova_fixtures.CellDatabases._cache_schema
    generate_schema = placement_fixtures.Database.generate_schema_create_all
    create_schema = migration.create_schema

    def apply(fixture: Any) -> None:
        kind, engine = (api if fixture.database == "api" else main), fixture.get_engine()
        if not kind.copy_into(engine):
            apply_schema(fixture)
            kind.keep(engine)

    def cache(fixture: Any, connection: str) -> None:
        engine = fixture._ctxt_mgrs[connection].writer.get_engine()
        if not main.copy_into(engine):
            cache_schema(fixture, connection)
            main.keep(engine)

    def create(engine: Any) -> None:
        if not placement.copy_into(engine):
            create_schema(engine)

    def generate(fixture: Any, engine: Any) -> None:
        # With the traits and the classes of resources, which it looks for and need not add.
        with mock.patch.object(migration, "create_schema", create):
            generate_schema(fixture, engine)
        placement.keep(engine)

    nova_fixtures.Database._apply_schema = apply
    nova_fixtures.CellDatabases._cache_schema = cache
    placement_fixtures.Database.generate_schema_create_all = generate
