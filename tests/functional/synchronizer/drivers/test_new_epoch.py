# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage synchronizer new-epoch, as an operator calls it, over every shared back end."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import subprocess
import tempfile
import unittest

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import etcd, memcached, redis
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from nova_nodb_scheduler.synchronizer.migration import migration_fence
from nova_nodb_scheduler.testing import etcd_server, redis_server, servers
from tests.functional.synchronizer import commands

KEY = records.RecordKey("suite", "host")


class TestSQLite(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.conf = self.directory / "nova.conf"
        self.client, options = self.back_end()
        self.client.open()
        self.addCleanup(self.client.close)
        lines = [f"{name} = {value}" for name, value in options.items()]
        self.conf.write_text(
            f"[DEFAULT]\nstate_path = {self.directory}\n[nodb_scheduler]\nsynchronizer = "
            f"{self.client.name}\n[nodb_{self.client.name}]\n" + "\n".join(lines) + "\n"
        )

    def back_end(self) -> tuple[contract.Synchronizer, dict[str, str]]:
        """Return a client, and the options by which the command reaches the same."""
        url = f"sqlite:///{self.directory}/nodb.sqlite"
        return sql.SQLAlchemySynchronizer(sql.SQLOptions(url)), {"connection": url}

    def run_command(
        self, *arguments: str, stdin: str = os.devnull
    ) -> subprocess.CompletedProcess[str]:
        return commands.run(self.command(*arguments), self.directory, stdin=stdin)

    def command(self, *arguments: str) -> tuple[str, ...]:
        return ("--config-file", str(self.conf), "synchronizer", "new-epoch", *arguments)

    def put(self, payload: bytes, expected_revision: int = 0) -> records.Record:
        [result] = self.client.write([records.Write(KEY, expected_revision, payload)])
        assert result.record is not None and result.won
        return result.record

    def test_everything_is_dropped_and_what_was_under_way_is_lost(self) -> None:
        former = self.put(b"of a disk that was set back")
        cursor = self.client.head()
        done = self.run_command("--yes", "--json")
        self.assertEqual(0, done.returncode, done.stderr)
        document = json.loads(done.stdout)
        self.assertEqual(("begun", cursor.epoch), (document["outcome"], document["former_epoch"]))
        answer = self.client.fetch(cursor)
        assert isinstance(answer, records.ResyncNeeded)
        self.assertIs(records.ResyncReason.EPOCH_CHANGED, answer.reason)
        self.assertEqual(document["epoch"], self.client.head().epoch)
        self.assertEqual({}, self.client.read([KEY]))
        self.put(b"new")
        [late] = self.client.write([records.Write(KEY, former.revision, b"late")])
        self.assertIs(records.Verdict.LOST, late.verdict)

    def test_compute_nodes_that_stand_nowhere_else_are_not_dropped(self) -> None:
        cell_modes.CellModes(self.client).record("cell1", cell_modes.NodeMode.RETIRED)
        self.put(b"kept")
        done = self.run_command("--yes")
        self.assertNotEqual(0, done.returncode)
        self.assertIn("the compute nodes of cell1", done.stderr)
        self.assertIn("compute-nodes restore", done.stderr)
        self.assertEqual(b"kept", self.client.read([KEY])[KEY].payload)
        cell_modes.CellModes(self.client).record("cell1", cell_modes.NodeMode.MIRROR)
        self.assertEqual(0, self.run_command("--yes").returncode)


class TestMariaDB(TestSQLite):
    def back_end(self) -> tuple[contract.Synchronizer, dict[str, str]]:
        url = self.enterContext(servers.MariaDB()).url
        options = sql.SQLOptions(url, auto_upgrade=True)
        return sql.SQLAlchemySynchronizer(options), {"connection": url}


class TestEtcd(TestSQLite):
    def back_end(self) -> tuple[contract.Synchronizer, dict[str, str]]:
        server = self.enterContext(etcd_server.Etcd())
        options = etcd.EtcdOptions(endpoints=(server.url,), key_prefix=server.key_prefix)
        return etcd.EtcdSynchronizer(options), {
            "endpoints": server.url,
            "key_prefix": server.key_prefix,
        }


class TestRedis(TestSQLite):
    def back_end(self) -> tuple[contract.Synchronizer, dict[str, str]]:
        url = self.enterContext(redis_server.Redis()).url
        return redis.RedisSynchronizer(redis.RedisOptions(url=url)), {"url": url}


class TestMemcached(TestSQLite):
    def back_end(self) -> tuple[contract.Synchronizer, dict[str, str]]:
        address = self.enterContext(servers.Memcached()).address
        options = memcached.MemcachedOptions(servers=(address,))
        return memcached.MemcachedSynchronizer(options), {"servers": address}


class TestAsking(TestSQLite):
    def answer(self, text: bytes) -> subprocess.CompletedProcess[str]:
        """Run the command at a terminal, at which somebody types."""
        operator, terminal = pty.openpty()
        self.addCleanup(os.close, operator)
        self.addCleanup(os.close, terminal)
        os.write(operator, text)
        return self.run_command("--json", stdin=os.ttyname(terminal))

    def test_only_yes_is_yes(self) -> None:
        self.put(b"one")
        epoch = self.client.head().epoch
        refused = self.answer(b"no\n")
        self.assertEqual(0, refused.returncode, refused.stderr)
        self.assertEqual("nothing was changed", json.loads(refused.stdout)["outcome"])
        self.assertIn("1 records", refused.stderr)
        self.assertEqual(epoch, self.client.head().epoch)
        done = self.answer(b"yes\n")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertNotEqual(epoch, self.client.head().epoch)

    def test_without_a_terminal_nothing_is_done_unasked(self) -> None:
        self.put(b"one")
        cursor = self.client.head()
        refused = commands.run_from_nothing(self.command(), self.directory)
        self.assertEqual(3, refused.returncode)
        self.assertIn("--yes", refused.stderr)
        self.assertNotIn("Traceback", refused.stderr)
        self.assertEqual(cursor, self.client.head())

    def test_a_back_end_that_was_left_is_not_opened_again(self) -> None:
        """Its fence is a record, too."""
        migration_fence.set_mark(self.client, migration_fence.FencePlace.MOVED, "move", "redis")
        cursor = self.client.head()
        refused = self.run_command("--yes")
        self.assertEqual(3, refused.returncode)
        self.assertIn("moved to redis", refused.stderr)
        self.assertEqual(cursor, self.client.head())
