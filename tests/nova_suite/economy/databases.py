# SPDX-License-Identifier: Apache-2.0
"""Nova's databases, and Placement's, are made once a process.

Each test has four or more, whose tables are copied page by page from the first of their kind; Nova
runs a statement for each table.
"""

from __future__ import annotations

import sqlite3
import threading
from typing import Any
from unittest import mock

from nova.tests import fixtures as nova_fixtures
from placement.db.sqlalchemy import migration
from placement.tests import fixtures as placement_fixtures

from tests.nova_suite.economy import connections


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
    """Have the databases of Nova and Placement keep their connections, and copy their tables.

    :param native_threads: see :func:`.connections.install`
    """
    connections.install(native_threads)
    _copy_tables()


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
