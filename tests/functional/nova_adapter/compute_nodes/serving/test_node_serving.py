# SPDX-License-Identifier: Apache-2.0
"""What answers for compute nodes, put together: two cells, a database as the back end."""

from __future__ import annotations

import os
import pathlib
import tempfile
import uuid
from typing import Any

from nova import exception
from nova import objects as nova_objects
from oslo_db import exception as db_exception

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, text_comparison
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import node_serving
from nova_nodb_scheduler.nova_adapter.reporting import table_tripwire
from nova_nodb_scheduler.synchronizer.drivers import memory, sqlalchemy
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes import nova_table


class ServingTest(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "nodb.sqlite")
        self.serving = node_serving.NodeServing(
            self.make, self.plugin.scopes, lambda: str(uuid.uuid4())
        )
        self.addCleanup(self.serving.close)

    def make(self) -> sqlalchemy.SQLAlchemySynchronizer:
        return sqlalchemy.SQLAlchemySynchronizer(
            sqlalchemy.SQLOptions(f"sqlite:///{self.path}", auto_upgrade=True)
        )

    def bring(self, *cells: str) -> None:
        """Have the back end answer for some cells, or both, and serve."""
        self.serving.open()
        transfer = self.serving.transfer()
        for cell in cells or (cloud.CELL1, cloud.CELL2):
            transfer.to_store(self.context(cell), cell, text_comparison.SQLITE)
        self.serving.functions.install()

    def create(self, cell: str, node: str) -> Any:
        made = nova_objects.ComputeNode(
            self.context(cell), **nova_table.NEEDED, host="h", hypervisor_hostname=node
        )
        for kind in ("cpu", "ram", "disk"):
            setattr(made, f"{kind}_allocation_ratio", 1.0)
        made.create()
        return made

    def test_each_cell_has_names_and_ids_of_its_own(self) -> None:
        self.bring()
        self.assertEqual([1, 1], [self.create(c, "n").id for c in (cloud.CELL1, cloud.CELL2)])
        with self.assertRaises(exception.DuplicateRecord):
            self.create(cloud.CELL2, "n")
        tripwire = table_tripwire.TableTripwire()
        tripwire.set()
        self.addCleanup(tripwire.unset)
        found = nova_objects.ComputeNodeList.get_all_by_host(self.context(cloud.CELL2), "h")
        self.assertEqual(1, len(found))
        self.assertEqual({}, tripwire.counts())

    def test_a_cell_that_was_not_brought_is_an_error_and_not_empty(self) -> None:
        self.bring(cloud.CELL1)
        with self.assertRaisesRegex(db_exception.DBError, cloud.CELL2):
            nova_objects.ComputeNodeList.get_all(self.context(cloud.CELL2))
        with self.assertRaisesRegex(db_exception.DBError, cloud.CELL2):
            self.create(cloud.CELL2, "n")

    def test_cell0_has_no_compute_nodes_and_is_brought_by_nobody(self) -> None:
        self.bring()
        self.assertEqual(0, len(nova_objects.ComputeNodeList.get_all(self.context(cloud.CELL0))))
        with self.assertRaisesRegex(db_exception.DBError, cloud.CELL0):
            self.create(cloud.CELL0, "n")

    def test_nothing_is_opened_before_the_first_call(self) -> None:
        self.serving.functions.install()
        self.assertFalse(self.path.exists())
        with self.assertRaises(db_exception.DBError):
            nova_objects.ComputeNodeList.get_all(self.context(cloud.CELL1))
        self.assertTrue(self.path.exists())

    def test_a_forked_worker_opens_its_own(self) -> None:
        self.bring()
        self.serving.close()
        self.serving.functions.install()
        self.create_in_a_child()
        found = nova_objects.ComputeNodeList.get_all(self.context(cloud.CELL1))
        self.assertEqual(["n"], [node.hypervisor_hostname for node in found])

    def test_one_of_a_process_that_has_read_already_does_not_use_its_connections(self) -> None:
        self.bring()
        self.assertEqual(0, len(nova_objects.ComputeNodeList.get_all(self.context(cloud.CELL1))))
        self.create_in_a_child()
        found = nova_objects.ComputeNodeList.get_all(self.context(cloud.CELL1))
        self.assertEqual(["n"], [node.hypervisor_hostname for node in found])
        self.assertEqual(2, self.create(cloud.CELL1, "m").id)

    def create_in_a_child(self) -> None:
        before = self.serving._opened() if self.serving._parts else None
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.create(cloud.CELL1, "n")
                status = int(self.serving._opened() is before)
            finally:
                os._exit(status)
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


class FitTest(cloud.CloudCase):
    def test_what_forgets_is_refused(self) -> None:
        forgetful = memory.MemorySynchronizer(shared_hub=hub.MemoryHub())
        with self.assertRaisesRegex(errors.ConfigurationError, "restart"):
            node_serving.refuse_unfit(cell_modes.NodeMode.RETIRED, forgetful, ())

    def test_a_cell_s_own_database_is_refused_whoever_connects(self) -> None:
        urls = ["mysql+pymysql://nova:secret@db/nova_cell1"]

        def made(url: str) -> sqlalchemy.SQLAlchemySynchronizer:
            return sqlalchemy.SQLAlchemySynchronizer(sqlalchemy.SQLOptions(url))

        retired = cell_modes.NodeMode.RETIRED
        with self.assertRaisesRegex(errors.ConfigurationError, "'retired'.*database of its own"):
            node_serving.refuse_unfit(
                retired, made("mysql+pymysql://nodb@db:3306/nova_cell1?charset=utf8"), urls
            )
        node_serving.refuse_unfit(retired, made("mysql+pymysql://nodb@db/nodb"), urls)
