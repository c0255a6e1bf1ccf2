# SPDX-License-Identifier: Apache-2.0
"""With the table away, Nova's calls do what they did, and nothing names it."""

from __future__ import annotations

import contextlib
import datetime as dt
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

from nova import exception, objects
from nova.compute import api as compute_api
from nova.db.main import api as main_db
from nova.objects import host_mapping
from oslo_db import exception as db_exception
from oslo_utils import timeutils

from nova_nodb_scheduler.nova_adapter.compute_nodes import row_records
from nova_nodb_scheduler.nova_adapter.reporting import scope_transfer, scopes
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.compute_nodes.serving import served_cloud


def name_by_device(context: Any, node: Any) -> None:
    """Have a PCI device name a node."""
    values = {
        "compute_node_id": node.id,
        "address": "a",
        "vendor_id": "v",
        "product_id": "p",
        "dev_type": "t",
        "label": "l",
        "status": "available",
        "request_id": None,
    }
    main_db.pci_device_update(context, node.id, "a", values)


class CallsTest(served_cloud.ServedCloud):
    def test_a_node_is_created_saved_deleted_and_comes_back_as_it_was(self) -> None:
        with self.unnamed():
            node = self.node("h1")
            node.vcpus_used = 7
            self.call(node, "save")
            context = self.context(cloud.CELL1)
            found = objects.ComputeNode.get_by_uuid(context, node.uuid)
            self.assertEqual((node.id, 7), (found.id, found.vcpus_used))
            found.destroy()
            with self.assertRaises(exception.ComputeHostNotFound):
                objects.ComputeNode.get_by_uuid(context, node.uuid)
            # As the resource tracker does for one that it finds deleted.
            context.read_deleted = "yes"
            found = objects.ComputeNode.get_by_uuid(context, node.uuid)
            self.assertTrue(found.deleted)
            found.deleted, found.deleted_at = False, None
            self.call(found, "save")
            again = objects.ComputeNode.get_by_uuid(self.context(cloud.CELL1), node.uuid)
        self.assertEqual((node.id, 7), (again.id, again.vcpus_used))

    def test_all_lists_find_what_is_there(self) -> None:
        with self.unnamed():
            service = self.service(cloud.CELL1, "h1")
            first = self.node("h1", service_id=service.id, mapped=0)
            second = self.node("h2", hypervisor_hostname="other", mapped=1)
            lists, context = objects.ComputeNodeList, self.context(cloud.CELL1)
            found = {
                "all": lists.get_all(context),
                "host": lists.get_all_by_host(context, "h1"),
                "page": lists.get_by_pagination(context, limit=1, marker=None),
                "hypervisor": lists.get_by_hypervisor(context, "node-h"),
                "type": lists.get_by_hypervisor_type(context, "fake"),
                "uuids": lists.get_all_by_uuids(context, [second.uuid]),
                "not mapped": lists.get_all_by_not_mapped(context, 1),
            }
            one = objects.ComputeNode
            for each in (
                one.get_by_id(context, first.id),
                one.get_by_uuid(context, first.uuid),
                one.get_by_host_and_nodename(context, "h1", "node-h1"),
                one.get_by_nodename(context, "node-h1"),
                one.get_first_node_by_host_for_old_compat(context, "h1"),
            ):
                self.assertEqual(first.id, each.id)
            statistics = main_db.compute_node_statistics(context)
            by_type = main_db.service_get_all_computes_by_hv_type(context, "fake")
        self.assertEqual((1, 8), (statistics["count"], statistics["vcpus"]))
        self.assertEqual(["h1"], [each.host for each in by_type])
        self.assertEqual(
            {
                "all": [first.id, second.id],
                "host": [first.id],
                "page": [first.id],
                "hypervisor": [first.id],
                "type": [first.id, second.id],
                "uuids": [second.id],
                "not mapped": [first.id],
            },
            {name: [each.id for each in nodes] for name, nodes in found.items()},
        )

    def test_the_api_s_lists_of_hypervisors_go_over_the_cells(self) -> None:
        with self.unnamed():
            self.node("h1")
            self.node("h2", cloud.CELL2)
            api = compute_api.HostAPI()
            nodes = api.compute_node_get_all(self.admin)
            found = api.compute_node_search_by_hypervisor(self.admin, "node-h2")
        self.assertEqual({"h1", "h2"}, {each.host for each in nodes})
        self.assertEqual(["h2"], [each.host for each in found])

    def test_hosts_are_discovered_and_noted_as_mapped(self) -> None:
        with self.unnamed():
            for cell, host in ((cloud.CELL1, "h1"), (cloud.CELL2, "h2")):
                self.node(host, cell, mapped=0)
            found = host_mapping.discover_hosts(self.admin)
            self.assertEqual([], host_mapping.discover_hosts(self.admin))
            mapped = objects.ComputeNode.get_by_nodename(self.context(cloud.CELL2), "node-h2")
        self.assertEqual({"h1", "h2"}, {each.host for each in found})
        self.assertEqual(1, mapped.mapped)

    def test_a_service_goes_with_its_nodes(self) -> None:
        with self.unnamed():
            service, other = (self.service(cloud.CELL1, host) for host in ("h1", "h2"))
            self.node("h1", service_id=service.id, mapped=1)
            self.node("h2", service_id=other.id)
            service.destroy()
            self.assertEqual(["h2"], self.hosts())
            context = self.context(cloud.CELL1)
            with self.assertRaises(exception.ServiceNotFound):
                objects.Service.get_by_id(context, service.id)
            with self.assertRaises(exception.ServiceNotFound):
                main_db.service_destroy(context, service.id)
            context.read_deleted = "yes"
            found = main_db.compute_node_get_all_by_host(context, "h1")
            [row] = self.execute(
                cloud.CELL1, f"SELECT deleted, deleted_at FROM services WHERE id = {service.id}"
            )
        self.assertEqual((service.id, True), (row["deleted"], row["deleted_at"] is not None))
        self.assertEqual([(found[0]["id"], 0)], [(n["deleted"], n["mapped"]) for n in found])

    def test_a_service_of_another_kind_leaves_its_host_s_nodes(self) -> None:
        service = self.service(cloud.CELL1, "h1", "nova-conductor")
        self.node("h1")
        with self.unnamed():
            service.destroy()
        self.assertEqual(["h1"], self.hosts())

    def test_nova_status_counts_what_lives(self) -> None:
        class Commands:
            _count_compute_nodes: Any

        self.serving.count_in(Commands)
        with self.unnamed():
            self.node("h1")
            self.node("h2").destroy()
            self.assertEqual(1, Commands()._count_compute_nodes())
            self.assertEqual(0, Commands()._count_compute_nodes(self.context(cloud.CELL2)))


class TwoProcessesTest(served_cloud.ServedCloud):
    def test_what_one_conductor_writes_the_other_reads_at_once(self) -> None:
        other = self.another_process()
        node = self.node("h1")
        for vcpus in range(3):
            node.vcpus = vcpus
            self.call(node, "save")
            self.serving.functions.uninstall()
            other.functions.install()
            found = objects.ComputeNode.get_by_uuid(self.context(cloud.CELL1), node.uuid)
            self.assertEqual(vcpus, found.vcpus)
            found.running_vms = vcpus + 1
            self.call(found, "save")
            other.functions.uninstall()
            self.serving.functions.install()
            found = objects.ComputeNode.get_by_uuid(self.context(cloud.CELL1), node.uuid)
            self.assertEqual((vcpus, vcpus + 1), (found.vcpus, found.running_vms))

    def test_ids_are_given_once(self) -> None:
        other = self.another_process()
        first = self.node("h1")
        self.serving.functions.uninstall()
        other.functions.install()
        self.assertEqual(first.id + 1, self.node("h2").id)
        with self.assertRaises(exception.DuplicateRecord):
            self.node("h1")


class RestoredBackEndTest(served_cloud.ServedCloud):
    def test_an_id_that_devices_name_is_given_to_no_other_behind_a_backup_of_before(self) -> None:
        self.node("h1")
        kept = sqlite3.connect(":memory:")
        self.addCleanup(kept.close)
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            connection.backup(kept)
        newer = [self.node(host) for host in ("h2", "h3")]
        for node in newer:
            name_by_device(self.context(cloud.CELL1), node)
        # All services are stopped, and begin again behind the restore.
        self.serving.close()
        self.synchronizer.close()
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            kept.backup(connection)
        other = self.another_process()
        other.install()
        with self.unnamed():
            self.assertEqual(["h1"], self.hosts())
            made = [self.node(host) for host in ("h4", "h5")]
        self.assertEqual([newer[-1].id + number for number in (1, 2)], [each.id for each in made])


class BackEndDownTest(served_cloud.ServedCloud):
    def test_nova_meets_a_database_that_is_down_and_nothing_is_lost(self) -> None:
        existing = self.node("h1")
        service = self.service(cloud.CELL1, "h1")
        context = self.context(cloud.CELL1)
        existing.vcpus = 99
        calls: list[Callable[[], Any]] = [
            lambda: objects.ComputeNodeList.get_all(context),
            lambda: objects.ComputeNode.get_by_uuid(context, existing.uuid),
            lambda: self.call(existing, "save"),
            lambda: main_db.compute_node_delete(context, existing.id),
            lambda: main_db.service_destroy(context, service.id),
            lambda: self.node("h2"),
        ]
        with self.down():
            for call in calls:
                with self.assertRaises(db_exception.DBConnectionError):
                    call()
        self.assertEqual(["h1"], self.hosts())
        found = objects.ComputeNode.get_by_uuid(context, existing.uuid)
        self.assertEqual(8, found.vcpus)
        self.assertEqual(service.id, objects.Service.get_by_id(context, service.id).id)


class ArchiveTest(served_cloud.ServedCloud):
    def archive(self, **given: Any) -> tuple[int, int]:
        """Archive a cell; return how many compute nodes, and how many rows in all."""
        with self.unnamed():
            by_table, _servers, total = main_db.archive_deleted_rows(
                self.context(cloud.CELL1), **{"max_rows": 1000, **given}
            )
        return int(by_table.get("compute_nodes", 0)), int(total)

    def delete(self, *hosts: str) -> list[Any]:
        nodes = [self.node(host) for host in hosts]
        for node in nodes:
            node.destroy()
        return nodes

    def test_deleted_nodes_go_to_nova_s_archive_as_they_were(self) -> None:
        gone, *_others = self.delete("h1")
        self.node("h2")
        context = self.context(cloud.CELL1)
        context.read_deleted = "yes"
        before = dict(main_db.compute_node_get(context, gone.id))
        self.assertEqual((1, 1), self.archive())
        self.assertEqual(["h2"], self.hosts(read_deleted="yes"))
        [kept] = self.archived()
        told = {name: str(value) for name, value in before.items() if value is not None}
        self.assertEqual(told, {name: str(kept[name]) for name in told})
        self.assertEqual((0, 0), self.archive())
        self.assertNotEqual(gone.id, self.node("h1", uuid=gone.uuid).id)

    def test_only_what_was_deleted_before_a_moment_and_no_more_than_is_asked_for(self) -> None:
        late = timeutils.utcnow() + dt.timedelta(minutes=1)
        gone = self.delete("h1", "h2", "h3")
        self.assertEqual((0, 0), self.archive(before=late - dt.timedelta(hours=1)))
        self.assertEqual((2, 2), self.archive(before=late, max_rows=2))
        self.assertEqual([each.id for each in gone[:2]], [each["id"] for each in self.archived()])
        # What Nova's own archives counts first.
        for host in ("c1", "c2"):
            self.service(cloud.CELL1, host, "nova-conductor").destroy()
        self.assertEqual((0, 2), self.archive(max_rows=2))
        self.assertEqual((1, 1), self.archive(max_rows=2))

    def test_a_node_that_devices_name_stays(self) -> None:
        gone, free = self.delete("h1", "h2")
        context = self.context(cloud.CELL1)
        name_by_device(context, gone)
        self.assertEqual((1, 1), self.archive())
        self.assertEqual([free.id], [each["id"] for each in self.archived()])
        main_db.pci_device_destroy(context, gone.id, "a")
        self.assertEqual((0, 0), self.archive())
        self.execute(cloud.CELL1, "DELETE FROM pci_devices")
        self.assertEqual((1, 1), self.archive())

    def test_a_node_that_came_back_meanwhile_is_kept_and_not_in_the_archive(self) -> None:
        [gone] = self.delete("h1")
        archive = self.serving._opened().served.archive
        assert archive is not None
        write = archive._synchronizer.write

        def written(writes: Any) -> Any:
            # Another conductor is asked to undelete it, just now.
            archive._synchronizer.write = write  # type: ignore[method-assign]
            self.node("h1", uuid=gone.uuid)
            return write(writes)

        archive._synchronizer.write = written  # type: ignore[method-assign]
        self.assertEqual((0, 0), self.archive())
        self.assertEqual(["h1"], self.hosts())
        self.assertEqual([], self.archived())

    def test_one_that_was_put_there_before_and_not_dropped_is_put_there_once(self) -> None:
        [gone] = self.delete("h1")
        self.execute(
            cloud.CELL1,
            f"INSERT INTO shadow_compute_nodes (id, host) VALUES ({gone.id}, 'half')",
        )
        self.assertEqual((1, 1), self.archive())
        self.assertEqual(["h1"], [each["host"] for each in self.archived()])

    def test_what_fails_here_leaves_nova_its_answer(self) -> None:
        self.delete("h1")
        self.service(cloud.CELL1, "c1", "nova-conductor").destroy()
        with self.down():
            self.assertEqual((0, 1), self.archive())
        self.assertEqual((1, 1), self.archive())


class HostStatesTest(served_cloud.ServedCloud):
    """What schedulers decide by is made of records."""

    def setUp(self) -> None:
        super().setUp()
        self.reporter = self.report()

    def published(self) -> dict[str, Any]:
        return {
            key: state["row"] for key, state in self.states(known_namespaces.COMPUTE_NODES).items()
        }

    def test_a_save_reaches_them_by_the_reporter(self) -> None:
        with self.unnamed():
            node = self.node("h1")
            self.reporter.flush()
            self.assertEqual(8, self.published()[node.uuid]["vcpus"])
            node.vcpus = 99
            self.call(node, "save")
            self.reporter.flush()
            self.assertEqual(99, self.published()[node.uuid]["vcpus"])
            node.destroy()
            self.reporter.flush()
        self.assertEqual({}, self.published())

    def test_a_sweep_finds_the_rows_and_deletes_none(self) -> None:
        with self.unnamed():
            nodes = [self.node(f"h{number}") for number in range(3)]
            self.sweep()
            before = self.published()
            self.sweep()
        self.assertEqual({each.uuid for each in nodes}, set(before))
        self.assertEqual(before, self.published())

    def test_import_and_comparison_agree(self) -> None:
        self.node("h1")
        with self.unnamed():
            for scope in (*cloud.CELLS, scopes.API):
                scope_transfer.import_scope(
                    self.plugin.sweeper(self.synchronizer),
                    self.plugin.scopes,
                    scope,
                    threading.Event(),
                    lambda _rows: None,
                    lambda _progress: None,
                )
            compared = scope_transfer.compare_scope(
                self.synchronizer, self.plugin.scopes, cloud.CELL1
            )
        found = compared[known_namespaces.COMPUTE_NODES.name]
        self.assertEqual((1, True), (found.compared, found.clean), found)

    def test_what_was_written_since_a_moment_is_found(self) -> None:
        self.sweep()
        since = self.synchronizer.now_seconds() - 60
        node = self.node("h1")
        with self.unnamed():
            self.plugin.sweeper(self.synchronizer).sweep_since(
                cloud.CELL1, since, threading.Event(), by="test"
            )
            self.assertEqual({node.uuid}, set(self.published()))
            node.destroy()
            self.plugin.sweeper(self.synchronizer).sweep_since(
                cloud.CELL1, since, threading.Event(), by="test"
            )
        self.assertEqual({}, self.published())

    def test_schedulers_hold_none_of_the_records_themselves(self) -> None:
        self.node("h1")
        runtime = self.plugin.scheduler(lambda: [cloud.CELL1])
        while not runtime.replicator.status().epoch or runtime.replicator.generation % 2:
            runtime.replicator.step()
        held = runtime.store.snapshot()
        self.assertNotIn(row_records.NODE_ROWS.name, set(held.namespaces()))
        self.assertEqual({}, dict(runtime.replicator.quarantine.count_by_namespace()))
        runtime.synchronizer.close()
