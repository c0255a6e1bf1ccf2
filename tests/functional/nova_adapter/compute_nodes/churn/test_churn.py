# SPDX-License-Identifier: Apache-2.0
"""Retire, churn, restore: stock Nova has each row as it was acknowledged, ids and key too.

Commands and conductors are processes as operators run them, and the commands are killed on the
way. Set NODB_CHURN_SECONDS for a longer time than CI churns, NODB_CHURN_SEED for another one.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from typing import Any

import sqlalchemy as sa
from nova import objects
from nova.db.api import models as api_models
from nova.db.main import models
from oslo_db import exception as db_exception

from nova_nodb_scheduler.nova_adapter.compute_nodes.transfer import table_retirement
from nova_nodb_scheduler.testing import servers
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import cell_databases, nova_table
from tests.functional.nova_adapter.compute_nodes.churn import churning
from tests.functional.nova_adapter.compute_nodes.churn import ledger as ledgers
from tests.functional.synchronizer import commands

SECONDS = float(os.environ.get("NODB_CHURN_SECONDS", "4"))
SEED = int(os.environ.get("NODB_CHURN_SEED", "1"))
_MOST_SECONDS = 120.0
#: The command from nothing; its process kills itself at a statement that changes a database.
_KILLED = """
import os, signal, sys
from nova_nodb_scheduler.cmd import patching
patching.for_threads()
import sqlalchemy
from nova_nodb_scheduler.cmd import manage
moment, left = sys.argv.pop(1), int(sys.argv.pop(1))
def count(connection, cursor, text, *others):
    global left
    verb = text.split(None, 1)[0].upper()
    if verb in ("INSERT", "UPDATE", "DELETE", "ALTER", "CREATE", "DROP", "RENAME", "REPLACE"):
        left -= 1
        if not left:
            print(" ".join(text.split())[:70], file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
sqlalchemy.event.listen(sqlalchemy.Engine, f"{moment}_cursor_execute", count)
sys.exit(manage.main())
"""
#: A process that imports it takes CI seconds.
_KILLS = 3 if "NODB_CHURN_SECONDS" in os.environ else 1
#: Fewer than any command needs.
_STATEMENTS = 3
_ACTIVE = "[oslo_messaging_notifications]\ndriver = nodb_scheduler\n"


class Churn(cell_databases.CellDatabaseCase):
    """One cell of some tens of nodes, from stock Nova to stock Nova."""

    keeps_fractions = True
    #: Not to another node, though its row was purged; SQLite goes by the rows that are there.
    gives_no_id_again = True
    #: Whether several may write to it at once.
    has_writers = True

    def setUp(self) -> None:
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        super().setUp()
        self.rng = random.Random(SEED)
        self.ledger = ledgers.Ledger(self.keeps_fractions)
        self.churning = churning.Churning(
            self.rng,
            self.ledger,
            gives_no_id_again=self.gives_no_id_again,
            has_writers=self.has_writers,
        )
        self.kills: list[str] = []
        self.told: dict[str, Any] = {}
        self.api = f"sqlite:///{self.directory}/api.sqlite"
        self.map_cells(f"sqlite:///{self.directory}/cell0.sqlite")
        store = self.store_url()
        plugin = (
            "[nodb_scheduler]\nsynchronizer = sqlalchemy\n"
            f"[nodb_sqlalchemy]\nconnection = {store}\n"
        )
        self.stock = self.conf("stock", "")
        self.mirror = self.conf("mirror", _ACTIVE + plugin)
        quick = "beat_interval_seconds = 1\nreporter_bound_seconds = 3\n"
        retired = f"[nodb_scheduler]\ncompute_nodes = retired\n{quick}"
        self.retired = self.conf("retired", _ACTIVE + plugin + retired)
        arguments = ["--config-file", str(self.mirror), "db", "sync"]
        done = commands.run(arguments, self.directory)
        self.assertEqual(0, done.returncode, (done.stdout, done.stderr))

    def store_url(self) -> str:
        """Return the URL of an empty database for the back end."""
        raise NotImplementedError

    def map_cells(self, cell0: str) -> None:
        for url, base in ((self.api, api_models.BASE), (cell0, models.BASE)):
            engine = sa.create_engine(url)
            base.metadata.create_all(engine)
            engine.dispose()
        engine = sa.create_engine(self.api)
        with engine.begin() as connection:
            for cell, name, url in (
                (objects.CellMapping.CELL0_UUID, "cell0", cell0),
                (cloud.CELL1, "south", self.url),
            ):
                connection.execute(
                    sa.insert(api_models.CellMapping.__table__).values(
                        uuid=cell, name=name, transport_url="none:///", database_connection=url
                    )
                )
        engine.dispose()

    def conf(self, name: str, more: str) -> pathlib.Path:
        path = self.directory / f"{name}.conf"
        path.write_text(
            f"[DEFAULT]\ntransport_url = fake:///\nstate_path = {self.directory}\nhost = c\n"
            f"[api_database]\nconnection = {self.api}\n[database]\nconnection = {self.url}\n"
            f"sqlite_synchronous = false\n{more}"
        )
        return path

    # -- as operators do ---------------------------------------------------------------

    def command(self, conf: pathlib.Path, word: str) -> None:
        """Call a command that is killed on its way, once or more, and let it come to its end."""
        arguments = ["--config-file", str(conf), "compute-nodes", word]
        for number in range(_KILLS):
            moment = self.rng.choice(["before", "after"])
            # What was killed goes on where it was: the next dies farther on.
            program = [_KILLED, moment, str(self.rng.randint(1, _STATEMENTS * (number + 1)))]
            done = subprocess.run(
                [sys.executable, "-c", *program, *arguments],
                cwd=self.directory,
                capture_output=True,
                text=True,
                timeout=_MOST_SECONDS,
                check=False,
            )
            if done.returncode != -signal.SIGKILL:
                self.assertEqual(0, done.returncode, (done.stdout, done.stderr))
                break
            self.churning.counts[f"{word} killed"] += 1
            self.kills.append(f"{word} {moment} {done.stderr.splitlines()[-1]}")
        self.assertGreater(self.churning.counts[f"{word} killed"], 0)
        done = commands.run(arguments, self.directory)
        self.assertEqual(0, done.returncode, (done.stdout, done.stderr))

    def process(self, conf: pathlib.Path) -> churning.Process:
        made = churning.Process(conf)
        self.addCleanup(made.end)
        return made

    def stock_process(self) -> churning.Process:
        """Start stock Nova: no module of the plugin is there."""
        made = self.process(self.stock)
        self.assertEqual({"writes_nodes": "api", "plugin_modules": []}, made.described)
        return made

    def test_it_comes_back_as_it_was_acknowledged(self) -> None:
        self.addCleanup(self.tell)
        stock = self.stock_process()
        self.populate(stock)
        stock.end()
        key = self.table.foreign_key()
        self.assertIsNotNone(key)
        self.command(self.mirror, "retire")
        self.assertIs(table_retirement.TablePlace.AWAY, self.table.place())

        conductors = [self.process(self.retired) for _each in range(2)]
        for each in conductors:
            self.assertNotEqual("api", each.described["writes_nodes"])
        self.churning.compare(conductors)
        before = sum(self.churning.counts.values())
        self.churning.go(conductors, SECONDS)
        self.told["churned"] = sum(self.churning.counts.values()) - before
        self.churning.compare(conductors)
        for each in conductors:
            each.end()
        self.assertIs(table_retirement.TablePlace.AWAY, self.table.place())
        self.wait_until_silent()
        self.command(self.retired, "restore")

        stock = self.stock_process()
        self.told["compared"] = self.compare(stock)
        self.assertEqual(key, self.table.foreign_key())
        self.require_key_enforced()
        self.require_new_ids(stock)
        self.churning.go_alone(stock, 60)
        self.told["compared in the end"] = self.compare(stock)

    def populate(self, stock: churning.Process) -> None:
        """Have what a cell has: live nodes, deleted and purged ones, services and devices."""
        self.churning.go_alone(stock, 200)
        # SQLite would archive those nodes, and leave the devices.
        deleted = {row["id"] for row in self.ledger.deleted()}
        for (node, address), is_deleted in self.ledger.devices.items():
            if node in deleted and not is_deleted:
                stock.call("remove_device", node, address)
                self.ledger.devices[node, address] = True
        # The highest id of all is purged.
        values = self.churning.new_node("h1")
        self.ledger.created(values, stock.call("create", values))
        self.ledger.destroyed(self.ledger.highest, ("", ""))
        stock.call("destroy", values["uuid"])
        gone = self.ledger.archivable()
        self.assertIn(self.ledger.highest, gone)
        self.assertEqual(len(gone), stock.call("archive"))
        stock.call("purge")
        self.ledger.archive(gone)
        self.ledger.archived.clear()
        if not self.gives_no_id_again:
            self.ledger.highest = max(self.ledger.nodes)
        self.churning.go_alone(stock, 100)
        # Deleted ones there are whatever was drawn, one with a device.
        for number, row in enumerate(self.ledger.live()[:8]):
            if not number:
                stock.call("add_device", row["id"], "ffff:fe:00.0")
                self.ledger.devices[row["id"], "ffff:fe:00.0"] = False
            stock.call("destroy", row["uuid"])
        # From here on as it is, whatever was told.
        self.ledger.nodes.clear()
        self.ledger.take_over(stock.call("rows"))
        self.assertGreaterEqual(len(self.ledger.live()), 10)
        self.assertGreaterEqual(len(self.ledger.deleted()), 8)

    def wait_until_silent(self) -> None:
        """Wait until nobody takes the conductors for alive."""
        arguments = ["--config-file", str(self.retired), "compute-nodes", "restore", "--dry-run"]
        deadline = time.monotonic() + _MOST_SECONDS
        while (done := commands.run(arguments, self.directory)).returncode:
            self.assertLess(time.monotonic(), deadline, (done.stdout, done.stderr))
            self.assertIn("process", done.stdout, done.stderr)

    def compare(self, stock: churning.Process) -> int:
        """Compare all that stock Nova reads with what was acknowledged; return how many rows."""
        rows = stock.call("rows")
        self.assertEqual([], self.ledger.differences(rows))
        live = sorted([row["id"], row["uuid"]] for row in self.ledger.live())
        self.assertEqual(live, sorted(stock.call("living")))
        others = stock.call("others")
        archived = {number: uuid for number, uuid, _deleted in others["archived"]}
        self.assertEqual(self.ledger.archived, archived)
        devices = {
            (node, address): bool(deleted) for _id, node, address, deleted in others["devices"]
        }
        self.assertEqual(self.ledger.devices, devices)
        return len(rows) + len(archived) + len(devices)

    def require_key_enforced(self) -> None:
        """Have the database refuse a device without its node, and a node's end below its device."""
        refused = (db_exception.DBError, sa.exc.IntegrityError)
        [(node, _address), *_others] = self.ledger.devices
        with self.assertRaises(refused) as caught:
            self.device(9_000_000, self.ledger.highest + 1000, address="ffff:ff:00.0")
        self.assertIn("foreign key", str(caught.exception).lower())
        with self.assertRaises(refused) as caught, nova_table.engine().begin() as connection:
            connection.execute(sa.text(f"DELETE FROM compute_nodes WHERE id = {node}"))
        self.assertIn("foreign key", str(caught.exception).lower())

    def require_new_ids(self, stock: churning.Process) -> None:
        """Have new nodes get ids above all before, and nodes that come back their own."""
        if not self.gives_no_id_again:
            self.ledger.highest = max(self.ledger.nodes)
        before = self.ledger.highest
        self.ledger.begin_round()
        for _each in range(3):
            values = self.churning.new_node("h1")
            told = stock.call("create", values)
            self.assertGreater(told["id"], before)
            self.ledger.created(values, told)

    def tell(self) -> None:
        """Say what was done, where somebody asked for a length of time."""
        if "NODB_CHURN_SECONDS" not in os.environ:
            return
        told = {
            **self.told,
            "calls": dict(self.churning.counts.most_common()),
            "highest id": self.ledger.highest,
            "kills": self.kills,
        }
        sys.stderr.write(f"{type(self).__name__}: {json.dumps(told, indent=1)}\n")


class OnSQLiteTest(Churn, cell_databases.OnSQLite):
    gives_no_id_again = False
    has_writers = False

    def store_url(self) -> str:
        return f"sqlite:///{self.directory}/nodb.sqlite"

    def require_key_enforced(self) -> None:
        # Nova does not have SQLite look at keys.
        path = str(sa.make_url(self.url).database)
        node = min(node for node, _address in self.ledger.devices)
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            self.assertEqual([], connection.execute("PRAGMA foreign_key_check").fetchall())
            with self.assertRaisesRegex(sqlite3.IntegrityError, "FOREIGN KEY"):
                connection.execute(f"DELETE FROM compute_nodes WHERE id = {node}")
            with self.assertRaisesRegex(sqlite3.IntegrityError, "FOREIGN KEY"):
                connection.execute("UPDATE pci_devices SET compute_node_id = 9000000")
        connection.close()


class OnMariaDBTest(Churn, cell_databases.OnMariaDB):
    keeps_fractions = False

    def store_url(self) -> str:
        return str(self.enterContext(servers.MariaDB()).url)


class OnPostgreSQLTest(Churn, cell_databases.OnPostgreSQL):
    def store_url(self) -> str:
        return str(self.enterContext(servers.PostgreSQL()).url)


# Of no database by itself.
del Churn
