# SPDX-License-Identifier: Apache-2.0
"""A process serves cells in the mode that it is configured for, and refuses others."""

from __future__ import annotations

import functools
import threading
from typing import Any
from unittest import mock

from nova import objects
from nova.db.main import api as main_db
from nova.objects import compute_node as nova_compute_node
from oslo_db import exception as db_exception

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import assembly, conductor_manager
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes, row_records, row_replica
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import mirror_guard
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter, nova_tables
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.drivers.memory import driver as memory
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes.serving import served_cloud

STORE, MIRROR, RETIRED = (
    cell_modes.NodeMode.STORE,
    cell_modes.NodeMode.MIRROR,
    cell_modes.NodeMode.RETIRED,
)


class StoreTest(served_cloud.ServedCloud):
    """Records count, and the table is behind them."""

    MODE = STORE

    def test_the_table_is_written_behind_each_record(self) -> None:
        node = self.node("h1")
        node.vcpus = 99
        self.call(node, "save")
        self.assertEqual([99], [row["vcpus"] for row in served_cloud.table_rows(self)])
        service = self.service(cloud.CELL1, "h1")
        service.destroy()
        [row] = served_cloud.table_rows(self)
        self.assertEqual((node.id, 0), (row["deleted"], row["mapped"]))

    def test_no_statement_of_nova_s_names_it(self) -> None:
        service = self.service(cloud.CELL1, "h1")
        node = self.node("h1")
        node.save()
        objects.ComputeNodeList.get_all(self.context(cloud.CELL1))
        service.destroy()
        self.assertEqual({}, self.serving.statements())
        self.assertEqual({"compute_nodes": "store"}, self.serving.facts())

    def test_one_that_does_is_counted_and_told(self) -> None:
        main_db._compute_node_fetchall(self.context(cloud.CELL1))
        self.assertEqual({"select": 1.0}, self.serving.statements())
        self.assertEqual({"select": 1}, self.serving.facts()["compute_node_statements"])
        self.serving.close()
        objects.ComputeNodeList.get_all(self.context(cloud.CELL1))
        self.assertEqual({"select": 1.0}, self.serving.statements())

    def test_states_of_records_are_those_of_the_table(self) -> None:
        node = self.node("h1", host_ip="192.0.2.1")
        context = self.context(cloud.CELL1)
        read = functools.partial(
            nova_tables.table_of(known_namespaces.COMPUTE_NODES.name).read,
            context,
            cloud.CELL1,
            [node.uuid],
        )
        ours = read()
        theirs = nova_tables.read_compute_nodes(context, cloud.CELL1, [node.uuid])
        self.assertEqual(theirs, ours)
        self.assertEqual([node.uuid], list(ours))

    def archive(self) -> int:
        """Archive deleted rows of a cell; return how many compute nodes."""
        by_table, *_others = main_db.archive_deleted_rows(self.context(cloud.CELL1), max_rows=100)
        return int(by_table.get("compute_nodes", 0))

    def test_a_node_that_comes_back_out_of_the_archive_can_be_archived_again(self) -> None:
        # As Nova's archive has it.
        self.execute(cloud.CELL1, "CREATE UNIQUE INDEX archived ON shadow_compute_nodes (id)")
        gone = self.node("h1")
        gone.destroy()
        with self.down():
            self.assertEqual(1, self.archive())
        # Its record was not forgotten, so that it has its old id.
        again = self.node("h1", uuid=gone.uuid)
        self.assertEqual(gone.id, again.id)
        self.assertEqual(1, len(served_cloud.table_rows(self)))
        self.assertEqual([], self.archived())
        again.destroy()
        self.assertEqual(1, self.archive())
        self.assertEqual([gone.id], [each["id"] for each in self.archived()])


class _Placement:
    """Nova's report client, of nobody."""


class StartTest(served_cloud.ServedCloud):
    """Who starts beside a cell in another mode does not."""

    MODE = STORE

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(change_reporter.install, None, None)
        # Nova's conductor looks for Placement as it begins.
        client = mock.patch("nova.scheduler.client.report.report_client_singleton", new=_Placement)
        client.start()
        self.addCleanup(client.stop)

    def configured(self, mode: cell_modes.NodeMode) -> assembly.Plugin:
        """Make this process one that is configured so."""
        self.override("compute_nodes", mode.value, "nodb_scheduler")
        made = assembly.Plugin(cloud.CONF)
        assembly.install(made)
        return made

    def conduct(self) -> None:
        manager = conductor_manager.ConductorManager()
        self.addCleanup(manager.nodb_stop)
        manager.init_host(None)

    def test_a_conductor_of_the_recorded_mode_starts(self) -> None:
        self.configured(STORE)
        self.conduct()

    def test_a_conductor_of_another_mode_does_not_and_names_both(self) -> None:
        for mode in (MIRROR, RETIRED):
            with self.subTest(mode):
                self.configured(mode)
                told = f"{cloud.CELL1} are in mode 'store'.*configured for '{mode.value}'"
                with self.assertRaisesRegex(cell_modes.ModeDiffers, told):
                    self.conduct()

    def test_a_cell_that_went_back_to_its_table_is_not_served(self) -> None:
        cell_modes.CellModes(self.synchronizer).record(cloud.CELL1, MIRROR)
        self.configured(STORE)
        with self.assertRaisesRegex(cell_modes.ModeDiffers, "'mirror'.*'store'"):
            self.conduct()
        self.configured(MIRROR)
        self.conduct()

    def test_a_scheduler_asks_for_all_its_cells(self) -> None:
        cell_modes.CellModes(self.synchronizer).record(cloud.CELL2, RETIRED)
        nodes = self.configured(STORE).compute_nodes
        nodes.check_start([cloud.CELL1])
        with self.assertRaisesRegex(cell_modes.ModeDiffers, cloud.CELL2):
            nodes.check_start([cloud.CELL1, cloud.CELL2])

    def test_a_store_that_was_lost_is_said_at_the_start(self) -> None:
        self.synchronizer.reset()
        self.configured(STORE)
        with self.assertRaisesRegex(row_replica.CellNotHeld, cloud.CELL1):
            self.conduct()


class RunningTest(served_cloud.ServedCloud):
    """A cell's mode that changes under a process keeps it from reading and writing."""

    MODE = STORE

    def test_by_its_next_read_and_then_by_its_next_write(self) -> None:
        node = self.node("h1")
        cell_modes.CellModes(self.synchronizer).record(cloud.CELL1, MIRROR)
        context = self.context(cloud.CELL1)
        with self.assertRaisesRegex(db_exception.DBError, "'mirror'"):
            objects.ComputeNodeList.get_all(context)
        with self.assertRaisesRegex(db_exception.DBError, "'mirror'"):
            main_db.compute_node_update(context, node.id, {"vcpus": 1})

    def test_and_a_writer_s_that_reads_nothing_some_seconds_later(self) -> None:
        node = self.node("h1")
        cell_modes.CellModes(self.synchronizer).record(cloud.CELL1, MIRROR)
        self.serving._opened().replica._followed_at -= row_replica._MODE_SECONDS
        with self.assertRaisesRegex(db_exception.DBError, "'mirror'"):
            main_db.compute_node_update(self.context(cloud.CELL1), node.id, {"vcpus": 1})


class MirrorCase(cloud.CloudCase):
    """A process that goes by the table, beside cells of which one does not any more."""

    def setUp(self) -> None:
        super().setUp()
        self.node = self.compute_node(cloud.CELL1, "h1")
        self.other = self.compute_node(cloud.CELL2, "h2")
        found = self.plugin.compute_nodes
        assert isinstance(found, mirror_guard.MirrorGuard)
        self.guard = found
        self.addCleanup(self.guard.close)
        self.moment = 0.0
        self.guard._clock = lambda: self.moment

    def record(self, mode: cell_modes.NodeMode) -> None:
        cell_modes.CellModes(self.synchronizer).record(cloud.CELL1, mode)

    def write(self, node: Any) -> None:
        node.vcpus += 1
        node.save()


class MirrorGuardTest(MirrorCase):
    def test_it_writes_no_cell_in_another_mode_and_says_so_once(self) -> None:
        self.guard.install(looks_itself=False)
        self.guard.look(self.synchronizer)
        self.write(self.node)
        self.record(STORE)
        # A look holds good for a moment.
        self.guard.look(self.synchronizer)
        self.write(self.node)
        service = self.service(cloud.CELL1, "h1")
        with self.assertLogs(mirror_guard.__name__, "ERROR") as logged:
            for _ in range(3):
                self.moment += 100
                self.guard.look(self.synchronizer)
        self.assertEqual(1, len(logged.output))
        told = f"{cloud.CELL1} are in mode 'store'.*'mirror'"
        for call in (
            lambda: self.write(self.node),
            lambda: self.compute_node(cloud.CELL1, "h3"),
            self.node.destroy,
            service.destroy,
        ):
            with self.assertRaisesRegex(db_exception.DBError, told):
                call()
        self.write(self.other)
        self.assertEqual(1, len(objects.ComputeNodeList.get_all(self.context(cloud.CELL1))))
        objects.Service.get_by_id(self.context(cloud.CELL1), service.id)

    def test_a_sweep_of_an_empty_table_that_does_not_count_takes_no_host_from_schedulers(
        self,
    ) -> None:
        self.guard.install(looks_itself=False)
        self.sweep()
        before = self.states(known_namespaces.COMPUTE_NODES)
        self.assertEqual({self.node.uuid, self.other.uuid}, set(before))
        self.moment += 100
        # As 'prepare-upgrade' leaves it; nobody has looked since.
        self.record(RETIRED)
        cloud.clear(self.urls[cloud.CELL1], "compute_nodes")
        sweeper = self.plugin.sweeper(self.synchronizer)
        for sweep in (
            lambda: sweeper.sweep(cloud.CELL1, threading.Event(), by="test"),
            lambda: sweeper.sweep_since(cloud.CELL1, 0.0, threading.Event(), by="test"),
        ):
            with self.assertRaises(cell_modes.ModeDiffers):
                sweep()
        self.assertEqual(before, self.states(known_namespaces.COMPUTE_NODES))
        sweeper.sweep(cloud.CELL2, threading.Event(), by="test")
        reporter = self.report(cloud.CELL1, cloud.CELL1)
        change_reporter.mark_in(cloud.CELL1, known_namespaces.COMPUTE_NODES.name, [self.node.uuid])
        reporter.flush()
        self.assertEqual(before, self.states(known_namespaces.COMPUTE_NODES))

    def test_nor_are_its_nodes_told_absent_or_their_ratios_filled(self) -> None:
        self.guard.install(looks_itself=False)
        self.record(RETIRED)
        self.guard.look(self.synchronizer)
        cloud.clear(self.urls[cloud.CELL1], "compute_nodes")
        context = self.context(cloud.CELL1)
        node_list = objects.ComputeNodeList
        for call in (
            lambda: node_list.get_all(context),
            lambda: node_list.get_all_by_uuids(context, [self.node.uuid]),
            lambda: objects.ComputeNode.get_by_uuid(context, self.node.uuid),
            lambda: nova_compute_node.migrate_empty_ratio(context, 10),
        ):
            with self.assertRaisesRegex(db_exception.DBError, "'retired'"):
                call()
        self.assertEqual(1, len(node_list.get_all(self.context(cloud.CELL2))))
        self.guard.close()
        self.assertEqual(0, len(node_list.get_all(context)))

    def test_a_cell_that_came_back_is_written_again(self) -> None:
        self.guard.install(looks_itself=False)
        self.record(RETIRED)
        self.guard.look(self.synchronizer)
        self.record(MIRROR)
        self.moment += 100
        self.guard.look(self.synchronizer)
        self.write(self.node)

    def test_who_writes_seldom_looks_before_it_does(self) -> None:
        self.guard.install(looks_itself=True)
        self.write(self.node)
        self.record(STORE)
        self.moment += 100
        with self.assertRaises(db_exception.DBError):
            self.write(self.node)

    def test_nobody_waits_for_a_back_end_that_is_down(self) -> None:
        asked = []

        def down() -> memory.MemorySynchronizer:
            made = memory.MemorySynchronizer(shared_hub=self.hub)
            made.faults.go_down()
            asked.append(made)
            return made

        guard = mirror_guard.MirrorGuard(down, self.plugin.scopes, lambda: self.moment)
        guard.install(looks_itself=True)
        self.addCleanup(guard.close)
        self.record(STORE)
        with self.assertLogs(mirror_guard.__name__, "WARNING"):
            guard.check_start([cloud.CELL1])
            for _ in range(5):
                self.write(self.node)
        # At the start, and once for all these writes.
        self.assertEqual(2, len(asked))

    def test_a_mode_that_this_release_does_not_know_is_another(self) -> None:
        payload = codec.encode({"mode": "archived"}, row_records.NODE_CELLS.schema)
        key = row_records.cell_key(cloud.CELL1)
        [result] = self.synchronizer.write([records.Write(key, 0, payload)])
        self.assertTrue(result.won)
        with self.assertRaisesRegex(cell_modes.ModeDiffers, "unknown to this release"):
            self.guard.check_start([cloud.CELL1])

    def test_a_reporter_s_beats_look_and_tell_the_mode(self) -> None:
        self.guard.install(looks_itself=False)
        self.record(STORE)
        reporter = self.report(cloud.CELL1, cloud.CELL1)
        with self.assertLogs(mirror_guard.__name__, "ERROR"):
            reporter._open()
            reporter._send_beat()
        with self.assertRaises(db_exception.DBError):
            self.write(self.node)
        [beat] = self.states(known_namespaces.REPORTERS).values()
        self.assertEqual("mirror", beat["compute_nodes"])

    def test_a_scheduler_s_beats_do(self) -> None:
        self.guard.install(looks_itself=False)
        self.record(STORE)
        runtime = self.plugin.scheduler(lambda: [cloud.CELL1])
        runtime.synchronizer.open()
        self.addCleanup(runtime.synchronizer.close)
        with self.assertLogs(mirror_guard.__name__, "ERROR"):
            told = runtime._beat()
        self.assertEqual("mirror", told["compute_nodes"])
        with self.assertRaises(db_exception.DBError):
            self.write(self.node)


class FitTest(cloud.CloudCase):
    """What may not answer for compute nodes is refused before anything depends on it."""

    def check(self, mode: cell_modes.NodeMode) -> None:
        self.override("compute_nodes", mode.value, "nodb_scheduler")
        assembly.Plugin(cloud.CONF).check()

    def test_a_back_end_that_forgets_is_refused_where_records_count(self) -> None:
        self.check(MIRROR)
        for mode in (STORE, RETIRED):
            told = f"compute_nodes = '{mode.value}'.*restart"
            with self.subTest(mode), self.assertRaisesRegex(errors.ConfigurationError, told):
                self.check(mode)


class CellDatabaseTest(served_cloud.ServedCloud):
    def test_a_back_end_in_the_process_s_own_cell_is_refused_at_once(self) -> None:
        self.override("connection", self.urls[cloud.CELL1], "nodb_sqlalchemy")
        with self.assertRaisesRegex(errors.ConfigurationError, "database of its own"):
            assembly.Plugin(cloud.CONF).check()

    def test_in_another_cell_it_is_when_the_mappings_can_be_read(self) -> None:
        self.node("h1")
        self.override("connection", self.urls[cloud.CELL2], "nodb_sqlalchemy")
        plugin = assembly.Plugin(cloud.CONF)
        plugin.check()
        other = self.served(plugin)
        with self.assertRaisesRegex(errors.ConfigurationError, "database of its own"):
            other.check_start([cloud.CELL1])
