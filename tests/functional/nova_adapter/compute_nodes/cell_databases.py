# SPDX-License-Identifier: Apache-2.0
"""Databases of a cell as Nova's own migrations make them: MariaDB, PostgreSQL and SQLite."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pathlib
import shutil
import sqlite3
import subprocess
import tempfile
import traceback
import unittest
import uuid
import warnings
from typing import Any

import sqlalchemy as sa
from nova import context as nova_context
from nova import objects
from nova.db import migration as nova_migration
from nova.db.main import models

from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows
from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import table_retirement
from nova_nodb_scheduler.testing import servers
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import nova_table

DEVICES = models.PciDevice.__table__
#: Emptied before each test: in this order, for the key's sake.
_USED = ("pci_devices", "compute_nodes", "services", "migrations")


def migrate(url: str) -> None:
    """Carry out Nova's migrations in a database, in a process of its own.

    They have SQLAlchemy name no foreign key any more on PostgreSQL, as long as the process lives.
    """
    cloud.databases()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            mapping = objects.CellMapping(
                uuid=str(uuid.uuid4()), database_connection=url, transport_url="none:///"
            )
            context = nova_context.get_admin_context()
            nova_context.set_target_cell(context, mapping)
            warnings.simplefilter("ignore")
            nova_migration.db_sync(context=context)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        raise AssertionError(f"Nova's migrations failed in {url}")


@functools.cache
def _migrated_file() -> pathlib.Path:
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    path = pathlib.Path(directory.name) / "cell.sqlite"
    migrate(f"sqlite:///{path}")
    return path


class CellDatabaseCase(unittest.TestCase):
    """A cell's database, which a subclass gives, with nobody's rows."""

    url: str

    def setUp(self) -> None:
        super().setUp()
        cloud.databases()
        self.enterContext(nova_table.at(self.url))
        self.context = nova_table.context()
        self.table = table_retirement.CellTable(self.context)
        self.addCleanup(nova_table.engine().dispose)
        self.begin()
        self.addCleanup(self.begin)

    def begin(self) -> None:
        """Have the table there, with its key, and no row."""
        with nova_table.engine().begin() as connection:
            connection.execute(sa.text("DELETE FROM pci_devices"))
        self.table.bring_back()
        self.table.add_key(table_retirement.NOVAS_KEY)
        with nova_table.engine().begin() as connection:
            for name in _USED:
                connection.execute(sa.text(f"DELETE FROM {name}"))
                connection.execute(sa.text(f"DELETE FROM shadow_{name}"))
        # What earlier tests purged is nobody's here.
        self.table.continue_ids(1)

    def device(self, number: int, node_id: int, **others: Any) -> None:
        """Have a device of a compute node."""
        values = {
            "id": number,
            "uuid": str(uuid.uuid4()),
            "compute_node_id": node_id,
            "address": f"0000:00:{number:02x}.0",
            "vendor_id": "8086",
            "product_id": "1",
            "dev_type": "type-PCI",
            "label": "label",
            "status": "available",
            "deleted": 0,
            **others,
        }
        with nova_table.engine().begin() as connection:
            connection.execute(sa.insert(DEVICES).values(**values))

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows wherever the table is, as records would hold them."""
        return [node_rows.to_state(row) for page in self.table.pages() for row in page]

    def dump(self) -> Any:
        """Return all that the database holds, its schema included, as one value."""
        raise NotImplementedError


def row(number: int, **others: Any) -> dict[str, Any]:
    """Return a live row."""
    return {
        **nova_table.NEEDED,
        "id": number,
        "uuid": f"{number:08d}-aaaa-4aaa-8aaa-aaaaaaaaaaaa",
        "host": f"h{number}",
        "hypervisor_hostname": f"n{number}",
        "cpu_allocation_ratio": 16.0,
        "ram_allocation_ratio": 1.5,
        "disk_allocation_ratio": 1.0,
        "deleted": 0,
        **others,
    }


def deleted(number: int, **others: Any) -> dict[str, Any]:
    """Return a soft-deleted row."""
    return row(number, deleted=number, deleted_at=nova_table.MOMENT, **others)


class OnSQLite(CellDatabaseCase):
    def setUp(self) -> None:
        cloud.databases()
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "cell.sqlite"
        shutil.copy(_migrated_file(), path)
        self.url = f"sqlite:///{path}"
        super().setUp()

    def dump(self) -> Any:
        path = sa.make_url(self.url).database
        with contextlib.closing(sqlite3.connect(str(path))) as connection:
            return list(connection.iterdump())


class OnMariaDB(CellDatabaseCase):
    #: Of a server that no other test has, to be hurt.
    IS_PRIVATE = False
    server: Any

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        database = cls.enterClassContext(servers.MariaDB(private=cls.IS_PRIVATE))
        cls.url, cls.server = database.url, database.server
        migrate(cls.url)

    def dump(self) -> Any:
        url = sa.make_url(self.url)
        return _printed(
            *("mariadb-dump", "--protocol=TCP", "-h127.0.0.1", f"-P{url.port}", "-uroot"),
            *("--skip-ssl", "--skip-dump-date", "--order-by-primary", str(url.database)),
        )


class OnPostgreSQL(CellDatabaseCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.url = cls.enterClassContext(servers.PostgreSQL()).url
        migrate(cls.url)

    def dump(self) -> Any:
        url = sa.make_url(self.url)
        text = _printed(
            *("pg_dump", "-h", "127.0.0.1", "-p", str(url.port), "-U", "postgres"),
            str(url.database),
        )
        # A key of each dump's own.
        return [line for line in text.splitlines() if not line.startswith("\\")]


def _printed(*arguments: str) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout
