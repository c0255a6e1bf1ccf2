# SPDX-License-Identifier: Apache-2.0
"""What triggers of a real MariaDB write down of allocations."""

from __future__ import annotations

import time
from typing import ClassVar

import pymysql
import testtools

from nova_nodb_scheduler.testing import servers
from tests.chaos import usage_history

_SCHEMA = (
    "CREATE DATABASE placement",
    "CREATE TABLE placement.resource_providers (id INT PRIMARY KEY, name VARCHAR(9))",
    "CREATE TABLE placement.resource_classes (id INT PRIMARY KEY, name VARCHAR(9))",
    (
        "CREATE TABLE placement.inventories (resource_provider_id INT, resource_class_id INT,"
        " total INT, reserved INT, allocation_ratio FLOAT)"
    ),
    (
        "CREATE TABLE placement.allocations (id INT AUTO_INCREMENT PRIMARY KEY,"
        " consumer_id VARCHAR(9), resource_provider_id INT, resource_class_id INT, used INT)"
    ),
    "INSERT INTO placement.resource_classes VALUES (1, 'VCPU'), (2, 'MEMORY_MB')",
    "INSERT INTO placement.resource_providers VALUES (1, 'host1'), (2, 'host2')",
    "INSERT INTO placement.inventories VALUES (1, 1, 4, 2, 1.0), (2, 1, 1, 0, 2.0)",
)
_ALLOCATE = (
    "INSERT INTO placement.allocations"
    " (consumer_id, resource_provider_id, resource_class_id, used) VALUES (%s, %s, %s, %s)"
)


class UsageHistoryTest(testtools.TestCase):
    """Two hosts for two VCPU each."""

    port: ClassVar[int]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        # Of its own: these databases have fixed names.
        cls.port = cls.enterClassContext(servers.MariaDB(private=True)).server.port

    def setUp(self) -> None:
        super().setUp()
        self.connection = self._connect()
        for statement in ("DROP DATABASE IF EXISTS placement", "DROP DATABASE IF EXISTS chaos"):
            self.sql(statement)
        for statement in _SCHEMA:
            self.sql(statement)
        usage_history.begin(self.sql)

    def _connect(self) -> pymysql.Connection:
        connection = pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True)
        self.addCleanup(connection.close)
        return connection

    def sql(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def moment(self) -> float:
        """A moment that is after what was done before and before what is done after."""
        time.sleep(0.01)
        now = time.time()
        time.sleep(0.01)
        return now

    def read(self) -> usage_history.UsageHistory:
        return usage_history.read(self.sql)

    def test_room_that_was_taken_for_a_moment_was_not_free_throughout(self) -> None:
        begin = self.moment()
        self.sql(_ALLOCATE, "a", 1, 1, 2)
        taken = self.moment()
        self.sql("DELETE FROM placement.allocations")
        end = self.moment()
        history = self.read()
        self.assertEqual({"host1": 0, "host2": 2}, history.least_free(begin, end))
        self.assertEqual({"host1": 0, "host2": 2}, history.least_free(taken, end))
        self.assertEqual({"host1": 0, "host2": 2}, history.least_free(begin, taken))
        self.assertEqual({"host1": 2, "host2": 2}, history.least_free(begin, begin))
        self.assertEqual({"host1": 2, "host2": 2}, history.least_free(end, end + 9.0))

    def test_what_moves_counts_where_it_was_and_where_it_is(self) -> None:
        self.sql(_ALLOCATE, "a", 1, 1, 1)
        before = self.moment()
        self.sql("UPDATE placement.allocations SET resource_provider_id = 2, used = 2")
        after = self.moment()
        history = self.read()
        self.assertEqual({"host1": 1, "host2": 0}, history.least_free(before, after))
        self.assertEqual({"host1": 2, "host2": 0}, history.least_free(after, after))

    def test_what_was_rolled_back_never_was(self) -> None:
        begin = self.moment()
        self.sql("START TRANSACTION")
        self.sql(_ALLOCATE, "a", 1, 1, 2)
        self.sql("ROLLBACK")
        self.assertEqual({"host1": 2, "host2": 2}, self.read().least_free(begin, self.moment()))

    def test_memory_takes_no_processor(self) -> None:
        self.sql(_ALLOCATE, "a", 1, 2, 512)
        self.assertEqual({"host1": 2, "host2": 2}, self.read().least_free(0.0, self.moment()))

    def test_a_history_that_does_not_lead_to_what_stands_is_refused(self) -> None:
        self.sql(_ALLOCATE, "a", 1, 1, 1)
        self.sql("DROP TRIGGER placement.chaos_INSERT")
        self.sql(_ALLOCATE, "b", 1, 1, 1)
        self.assertRaises(usage_history.IncompleteError, self.read)
