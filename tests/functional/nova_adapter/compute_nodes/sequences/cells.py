# SPDX-License-Identifier: Apache-2.0
"""A cell of stock Nova, and cells whose compute nodes are records, told the same calls.

Each has a small database of its own, with the archive of what it has. That of Nova's own
is the process's: a creation that brings a node back asks for it without a cell.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import sqlalchemy as sa
from nova import context as nova_context
from nova.db.main import api as main_db
from nova.db.main import models

from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, table_copy
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import served_functions
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import table_retirement
from nova_nodb_scheduler.nova_adapter.reporting import table_tripwire
from nova_nodb_scheduler.synchronizer import contract
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import conductors, nova_table

#: Tables that calls write; of each there is an archive.
_NODES = models.ComputeNode.__table__
_TABLES = (_NODES, models.Service.__table__)

#: Opens the two clients of one back end that is empty.
Clients = Callable[[], Sequence[contract.Synchronizer]]


def made_database(url: str) -> Any:
    """Make a cell's tables and their archive in an empty database; return Nova's manager of it."""
    metadata = sa.MetaData()
    for table in (*_TABLES, models.PciDevice.__table__):
        # No id is given twice, as by the databases of operators.
        table.to_metadata(metadata).dialect_options["sqlite"]["autoincrement"] = True
    for table in _TABLES:
        columns = (sa.Column(each.name, each.type) for each in table.c)
        sa.Table(f"shadow_{table.name}", metadata, *columns)
    engine = sa.create_engine(url)
    metadata.create_all(engine)
    if engine.dialect.name == "sqlite":
        with engine.begin() as connection:
            connection.execute(sa.text("PRAGMA journal_mode = WAL"))
    engine.dispose()
    return main_db.create_context_manager(url)


def schemas_read_once() -> contextlib.AbstractContextManager[Any]:
    """Have archiving read each database's schema once, which takes it longer than all its work."""
    known: dict[str, sa.MetaData] = {}
    reflect = sa.MetaData.reflect

    def read(wanted: sa.MetaData, bind: Any) -> None:
        url = str(bind.url)
        if url not in known:
            known[url] = sa.MetaData()
            reflect(known[url], bind)
        vars(wanted).update(vars(known[url]))

    return mock.patch.object(sa.MetaData, "reflect", read)


class Cell(abc.ABC):
    """What is told calls, and shows what they left.

    :param manager: of its database
    :ivar held: what nova-computes keep of it between calls, by their own names for it
    """

    name: str

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._engine = manager.writer.get_engine()
        self.held: dict[Any, Any] = {}

    def begin(self) -> None:
        """Have nothing."""
        self.held.clear()
        if self._engine.dialect.name == "sqlite":
            cloud.clear(str(self._engine.url))
            return
        with table_tripwire.own_statements(), self._engine.begin() as connection:
            for table in _TABLES:
                connection.execute(sa.delete(table))

    @abc.abstractmethod
    def context(self, read_deleted: str = "no") -> Any:
        """Return an administrator's context for its database."""

    def tell(self, which: int, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a call answers by way of one of two conductors, as plain values."""
        with self.in_place(which):
            return nova_table.answer_of(call, *arguments)

    @abc.abstractmethod
    def in_place(self, which: int) -> contextlib.AbstractContextManager[None]:
        """Have Nova's names stand for what serves in one of two conductors."""

    @abc.abstractmethod
    def nodes(self, which: int) -> list[dict[str, Any]]:
        """Return all rows of compute nodes, live and deleted, as a conductor reads them."""

    def kept(self, *names: str) -> list[list[tuple[Any, ...]]]:
        """Return rows as SQLite has them, of some tables, or of services and archives."""
        names = names or ("services", *(f"shadow_{each.name}" for each in _TABLES))
        queries = (f"SELECT {_columns(name)} FROM {name} ORDER BY id" for name in names)
        return [self._file.execute(query).fetchall() for query in queries]

    @functools.cached_property
    def _file(self) -> sqlite3.Connection:
        return sqlite3.connect(self._engine.url.database, isolation_level=None)

    def table(self) -> list[dict[str, Any]]:
        """Return the rows of Nova's table of compute nodes."""
        query = sa.select(_NODES).order_by(_NODES.c.id)
        with table_tripwire.own_statements(), self._engine.connect() as connection:
            return [nova_table.plain(dict(row)) for row in connection.execute(query).mappings()]


class StockCell(Cell):
    """Nova's own functions on Nova's own table; its database is this process's own."""

    name = "stock"

    def context(self, read_deleted: str = "no") -> Any:
        return nova_context.get_admin_context(read_deleted=read_deleted)

    @contextlib.contextmanager
    def in_place(self, which: int) -> Iterator[None]:
        reset = main_db.context_manager.patch_factory(self._manager)
        try:
            yield
        finally:
            reset()

    def nodes(self, which: int) -> list[dict[str, Any]]:
        return self.table()


class ServedCell(Cell):
    """Two conductors whose records answer.

    :param mode: ``store`` or ``retired``
    :param clients: of the back end, one for each conductor; asked for each sequence
    """

    def __init__(self, manager: Any, mode: cell_modes.NodeMode, clients: Clients) -> None:
        super().__init__(manager)
        self.name, self.mode = mode.value, mode
        self._clients = clients
        if mode is cell_modes.NodeMode.RETIRED:
            table = table_retirement.CellTable(self.context())
            table.drop_key()
            table.take_away()
        self._conductors: list[conductors.Conductor] = []
        self._served = [
            served_functions.ServedFunctions(
                lambda which=which: self._conductors[which].served()  # type: ignore[misc]
            ).replacements()
            for which in range(2)
        ]

    def begin(self) -> None:
        super().begin()
        clients = self._clients()
        is_there = self.mode is cell_modes.NodeMode.STORE
        self._conductors = [
            conductors.conductor(
                client,
                on_written=table_copy.TableCopy(client).bring if is_there else _not_copied,
                mode=self.mode,
            )
            for client in clients
        ]
        conductors.prepare(self._conductors[0], mode=self.mode, context=self.context())

    def context(self, read_deleted: str = "no") -> Any:
        made = nova_context.get_admin_context(read_deleted=read_deleted)
        made.db_connection = self._manager
        return made

    @contextlib.contextmanager
    def in_place(self, which: int) -> Iterator[None]:
        own = {}
        for (holder, name), made in self._served[which].items():
            own[holder, name] = vars(holder)[name]
            setattr(holder, name, made)
        try:
            yield
        finally:
            for (holder, name), kept in own.items():
                setattr(holder, name, kept)

    def nodes(self, which: int) -> list[dict[str, Any]]:
        found = self._conductors[which].queries.compute_node_get_all(self.context("yes"))
        return [nova_table.plain(row) for row in found]


def _not_copied(_context: Any, _key: Any) -> None:
    """Leave it at the record: the table is away."""


def _columns(name: str) -> str:
    [table] = [each for each in _TABLES if name.removeprefix("shadow_") == each.name]
    return ", ".join(each.name for each in table.c)
