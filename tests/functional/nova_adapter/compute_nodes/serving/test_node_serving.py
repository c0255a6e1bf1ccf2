# SPDX-License-Identifier: Apache-2.0
"""What answers for compute nodes, put together: two cells, a database as the back end."""

from __future__ import annotations

import os
import pathlib
import signal
import tempfile
import threading
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
from nova_nodb_scheduler.testing import patience
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

    def test_one_that_is_forked_while_the_back_end_is_opened_opens_it_itself(self) -> None:
        self.bring()
        self.serving.close()
        opens, go_on = threading.Event(), threading.Event()
        make = self.make

        def held_up() -> sqlalchemy.SQLAlchemySynchronizer:
            self.serving._make_synchronizer = make
            opens.set()
            go_on.wait(60)
            return make()

        self.serving._make_synchronizer = held_up
        self.serving.functions.install()
        # As Nova's host manager reads all nodes in a thread, before its scheduler forks.
        context = self.context(cloud.CELL1)
        reader = threading.Thread(target=nova_objects.ComputeNodeList.get_all, args=(context,))
        reader.start()
        try:
            self.assertTrue(opens.wait(60))
            self.create_in_a_child(within_seconds=30)
        finally:
            go_on.set()
            reader.join()

    def test_callers_of_a_back_end_that_does_not_answer_wait_together(self) -> None:
        opened: list[object] = []
        began, go_on = threading.Event(), threading.Event()

        class Silent(memory.MemorySynchronizer):
            def open(self) -> None:
                opened.append(self)
                began.set()
                go_on.wait(60)
                raise errors.BackendUnavailable("silent", "timed out")

        serving = node_serving.NodeServing(Silent, self.plugin.scopes, lambda: "id")
        failed: list[Exception] = []

        def call() -> None:
            try:
                serving.open()
            except errors.BackendUnavailable as error:
                failed.append(error)

        callers = [threading.Thread(target=call) for _ in range(12)]
        callers[0].start()
        self.assertTrue(began.wait(60))
        for each in callers[1:]:
            each.start()
        barrier = serving._openings[os.getpid()]
        waiters = barrier._changed._waiters  # type: ignore[attr-defined]
        patience.wait_until(lambda: len(waiters) == 11, 10, "all to wait", 0.01)
        go_on.set()
        for each in callers:
            each.join(60)
        self.assertEqual((12, 2), (len(failed), len(opened)))

    def create_in_a_child(self, within_seconds: int = 0) -> None:
        before = self.serving._opened() if self.serving._parts else None
        child = os.fork()
        if child == 0:
            status = 1
            signal.alarm(within_seconds)
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
