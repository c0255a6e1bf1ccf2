# SPDX-License-Identifier: Apache-2.0
"""Nova's own names, served: installed whole or not at all, the table behind each record."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import sqlalchemy as sa
from nova import exception
from nova import objects as nova_objects
from nova.db.main import api as main_db
from nova.objects import compute_node as nova_compute_node
from oslo_db import exception as db_exception

from nova_nodb_scheduler.nova_adapter.compute_nodes import row_records, table_copy
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import replaced_code, served_functions
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from nova_nodb_scheduler.testing import servers
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import conductors, nova_table, test_row_writes


class ServedCase(test_row_writes.WritesCase):
    def setUp(self) -> None:
        super().setUp()
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.context = nova_table.context()
        self.begin()

    def begin(self) -> None:
        """Have an empty cell in an empty back end."""
        nova_table.fill([])
        self.hub = hub.MemoryHub()
        self.clients = [self.client(self.hub) for _ in range(2)]
        self.copies = [table_copy.TableCopy(client) for client in self.clients]
        self.both = [
            conductors.conductor(client, on_written=copy.bring)
            for client, copy in zip(self.clients, self.copies, strict=True)
        ]
        conductors.prepare(self.both[0], above=0)

    def served(self, which: int = 0) -> served_functions.ServedFunctions:
        own = self.both[which]
        return served_functions.ServedFunctions(own.served)

    def install(self, which: int = 0) -> served_functions.ServedFunctions:
        made = self.served(which)
        made.install()
        self.addCleanup(made.uninstall)
        return made

    def held(self) -> Any:
        return self.both[0].queries.compute_node_get_all(nova_table.context("yes"))


def create(context: Any, **values: Any) -> Any:
    """Create a node by whatever stands under Nova's name."""
    return main_db.compute_node_create(context, {**nova_table.NEEDED, **values})


class InstalledTest(ServedCase):
    def test_all_is_put_back(self) -> None:
        before = replaced_code.looked_at()
        made = self.install()
        made.install()
        self.assertIsNot(before["nova.db.main.api.compute_node_get"], main_db.compute_node_get)
        made.uninstall()
        self.assertEqual(before, replaced_code.looked_at())

    def test_what_was_patched_is_named_and_nothing_is_replaced(self) -> None:
        def compute_node_get(context: Any, compute_id: int) -> None:
            return None

        with mock.patch.object(main_db, "compute_node_get", compute_node_get):
            before = dict(replaced_code.looked_at())
            with self.assertRaisesRegex(replaced_code.UnknownCode, "compute_node_get is not"):
                self.served().install()
            self.assertEqual(before, replaced_code.looked_at())

    def test_nova_s_objects_go_through_it(self) -> None:
        self.install()
        node = nova_objects.ComputeNode(
            self.context, **nova_table.NEEDED, host="h", hypervisor_hostname="n"
        )
        for name in ("cpu", "ram", "disk"):
            setattr(node, f"{name}_allocation_ratio", 1.0)
        node.create()
        with cloud.Statements() as statements:
            found = nova_objects.ComputeNode.get_by_uuid(self.context, node.uuid)
            nova_objects.ComputeNodeList.get_all_by_host(self.context, "h", use_slave=True)
            nova_objects.ComputeNodeList.get_by_hypervisor_type(self.context, "QEMU")
        self.assertEqual([], statements.of("compute_nodes"))
        self.assertEqual(node.id, found.id)
        found.vcpus = 99
        found.save()
        self.assertEqual(99, nova_table.rows()[0]["vcpus"])
        found.host = "elsewhere"
        found.save()
        with self.assertRaises(exception.ObjectActionError):
            node.destroy()
        found.destroy()
        with self.assertRaises(exception.ComputeHostNotFound):
            nova_objects.ComputeNode.get_by_host_and_nodename(self.context, "elsewhere", "n")

    def test_empty_ratios_are_migrated_in_records_as_in_the_table(self) -> None:
        ratios = [(None, 1.0, 1.0), (2.0, 0.0, None), (2.0, 1.0, 1.0)]
        columns = [f"{kind}_allocation_ratio" for kind in ("cpu", "ram", "disk")]

        def migrated() -> Any:
            for number, values in enumerate(ratios):
                given = dict(zip(columns, values, strict=True))
                create(self.context, uuid=nova_table.UUIDS[number], **given)
            done = [nova_compute_node.migrate_empty_ratio(self.context, 1) for _ in range(3)]
            found = main_db.compute_node_get_all(self.context)
            return done, [[row[name] for name in columns] for row in found]

        theirs = migrated()
        nova_table.fill([])
        self.install()
        self.assertEqual(theirs, migrated())
        self.assertEqual(nova_table.rows(), self.held())

    def test_a_back_end_that_is_down_is_a_database_that_is_down(self) -> None:
        self.install()
        made = create(self.context, uuid=nova_table.UUIDS[0], host="h", hypervisor_hostname="n")
        self.clients[0].faults.go_down()
        calls: list[Callable[[], Any]] = [
            lambda: main_db.compute_node_get_all(self.context),
            lambda: main_db.compute_node_update(self.context, made.id, {"vcpus": 1}),
            lambda: main_db.compute_node_delete(self.context, made.id),
        ]
        for call in calls:
            with self.assertRaises(db_exception.DBConnectionError):
                call()
        self.clients[0].faults.come_up()
        self.assertEqual(4, nova_table.rows()[0]["vcpus"])

    def test_nova_compute_reads_no_records_either(self) -> None:
        self.install()
        with (
            mock.patch.object(main_db, "DISABLE_DB_ACCESS", True),
            self.assertRaises(exception.DBNotAllowed),
        ):
            main_db.compute_node_get_all(self.context)


class ArchiveTest(ServedCase):
    def setUp(self) -> None:
        super().setUp()
        self.install()
        self.execute("CREATE TABLE shadow_compute_nodes AS SELECT * FROM compute_nodes")
        self.addCleanup(self.execute, "DROP TABLE shadow_compute_nodes")

    def execute(self, statement: str) -> None:
        with nova_table.engine().begin() as connection:
            connection.execute(sa.text(statement))

    def archive(self) -> int:
        archived, *_others = main_db.archive_deleted_rows(self.context, max_rows=1000)
        return int(archived.get("compute_nodes", 0))

    def test_a_node_that_was_archived_is_gone_and_comes_back_under_a_new_id(self) -> None:
        named = {"uuid": nova_table.UUIDS[0], "host": "h", "hypervisor_hostname": "n"}
        made = create(self.context, **named)
        other = create(self.context, uuid=nova_table.UUIDS[1])
        self.assertEqual(0, self.archive())
        self.assertEqual(2, len(self.held()))
        main_db.compute_node_delete(self.context, made.id)
        self.assertEqual(1, self.archive())
        everything = nova_table.context("yes")
        self.assertEqual([other.id], [row["id"] for row in self.held()])
        with self.assertRaises(exception.ComputeHostNotFound):
            main_db.compute_node_get(everything, made.id)
        again = create(self.context, **named)
        self.assertGreater(again.id, other.id)
        self.assertEqual(nova_table.rows(), self.held())

    def test_a_node_that_came_back_meanwhile_is_kept(self) -> None:
        made = create(self.context, uuid=nova_table.UUIDS[0])
        main_db.compute_node_delete(self.context, made.id)
        create(self.context, uuid=nova_table.UUIDS[0])
        self.assertEqual(0, self.archive())
        self.assertEqual([made.id], [row["id"] for row in self.held()])


class TableTest(ServedCase):
    def test_writers_at_once_leave_one_table_on_mariadb(self) -> None:
        with nova_table.at(self.enterContext(servers.MariaDB()).url):
            self.race()

    def test_writers_at_once_leave_one_table_on_postgresql(self) -> None:
        with nova_table.at(self.enterContext(servers.PostgreSQL()).url):
            self.race()

    def race(self) -> None:
        """Have two conductors at once move three nodes between three names."""
        self.begin()
        context = nova_table.context()
        ids = [
            self.both[0].writer.compute_node_create(context, self.values(number, f"n{number}")).id
            for number in range(3)
        ]
        chance = random.Random(7)
        works = [
            [(chance.choice(ids), f"n{chance.randrange(4)}") for _ in range(25)] for _ in range(2)
        ]
        faults: list[BaseException] = []

        def work(which: int) -> None:
            for node_id, node in works[which]:
                try:
                    self.both[which].writer.compute_node_update(
                        nova_table.context(), node_id, {"hypervisor_hostname": node}
                    )
                except db_exception.DBDuplicateEntry as error:
                    # By the records; what the table refuses comes from a driver.
                    if error.inner_exception is not None:
                        faults.append(error)
                except BaseException as error:
                    faults.append(error)

        threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        self.assertEqual([], faults)
        held = self.both[0].queries.compute_node_get_all(nova_table.context("yes"))
        self.assertEqual(nova_table.by_id(nova_table.rows()), held)

    def test_a_name_that_changed_hands_is_freed_in_the_table_first(self) -> None:
        late = conductors.conductor(self.clients[1])
        first = late.writer.compute_node_create(self.context, self.values(0, "n1"))
        second = late.writer.compute_node_create(self.context, self.values(1, "n2"))
        for row in (first, second):
            self.copies[1].bring(self.context, self.key(row))
        # In the records they swap their names by way of a third; the table is told late.
        for row, node in ((first, "n3"), (second, "n1"), (first, "n2")):
            late.writer.compute_node_update(self.context, row.id, {"hypervisor_hostname": node})
        self.copies[0].bring(self.context, self.key(second))
        self.copies[0].bring(self.context, self.key(first))
        self.assertEqual(nova_table.rows(), self.held())

    def test_who_writes_the_table_last_has_read_the_record_last(self) -> None:
        row = self.both[0].writer.compute_node_create(self.context, self.values(0, "n1"))
        late = conductors.conductor(self.clients[1])
        late.writer.compute_node_update(self.context, row.id, {"vcpus": 5})
        late.writer.compute_node_update(self.context, row.id, {"vcpus": 6})
        for copy in self.copies:
            copy.bring(self.context, self.key(row))
            self.assertEqual(6, nova_table.rows()[0]["vcpus"])

    def test_a_row_that_the_table_lost_comes_back_with_its_id(self) -> None:
        row = self.both[0].writer.compute_node_create(self.context, self.values(0, "n1"))
        nova_table.fill([])
        self.both[0].writer.compute_node_update(self.context, row.id, {"vcpus": 5})
        self.assertEqual(nova_table.rows(), self.held())

    def values(self, number: int, node: str) -> dict[str, Any]:
        return {
            **nova_table.NEEDED,
            "uuid": nova_table.UUIDS[number],
            "host": "h",
            "hypervisor_hostname": node,
        }

    def key(self, row: Any) -> Any:
        return row_records.row_key(cloud.CELL1, row.uuid)
