# SPDX-License-Identifier: Apache-2.0
"""Every way in which Nova's objects write ends in the right record."""

from __future__ import annotations

import uuid
from typing import Any
from unittest import mock

from nova import exception, objects
from nova.db.main import api as main_db
from nova.objects import host_mapping as nova_host_mapping
from oslo_db import exception as db_exception

from nova_nodb_scheduler.nova_adapter.reporting import (
    change_reporter,
    nova_tables,
    scope_transfer,
    scopes,
)
from nova_nodb_scheduler.nova_adapter.reporting import nova_objects as nodb_objects
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.functional.nova_adapter import cloud


class ReportedWritesTest(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        self.reporter = self.report()

    def rows(self, namespace) -> dict:  # type: ignore[no-untyped-def,type-arg]
        self.reporter.flush()
        return {key: state["row"] for key, state in self.states(namespace).items()}

    # -- compute nodes --------------------------------------------------------

    def test_a_compute_node_is_created_saved_and_deleted(self) -> None:
        node = self.compute_node(cloud.CELL2, "h1")
        state = self.rows_of(known_namespaces.COMPUTE_NODES)[node.uuid]
        self.assertEqual((cloud.CELL2, "h1"), (state["cell"], state["row"]["host"]))
        node.vcpus_used = 7
        node.save()
        self.assertEqual(7, self.rows(known_namespaces.COMPUTE_NODES)[node.uuid]["vcpus_used"])
        node.destroy()
        self.assertEqual({}, self.rows(known_namespaces.COMPUTE_NODES))

    def rows_of(self, namespace) -> dict:  # type: ignore[no-untyped-def,type-arg]
        self.reporter.flush()
        return self.states(namespace)

    def test_a_uuid_used_again_brings_its_node_back(self) -> None:
        node = self.compute_node(cloud.CELL1, "h1")
        node.destroy()
        self.assertEqual({}, self.rows(known_namespaces.COMPUTE_NODES))
        # What nova-compute does for an ironic node that comes back: create
        # with a known uuid, which undeletes the row under its old id.
        again = self.compute_node(cloud.CELL1, "h2", uuid=node.uuid)
        self.assertEqual(node.id, again.id)
        found = self.rows(known_namespaces.COMPUTE_NODES)[node.uuid]
        self.assertEqual(("h2", 0), (found["host"], found["deleted"]))

    def test_columns_are_kept_verbatim(self) -> None:
        node = self.compute_node(cloud.CELL1, "h1", stats={"odd": "\N{SNOWMAN}"})
        kept = self.rows(known_namespaces.COMPUTE_NODES)[node.uuid]
        with main_db.get_context_manager(self.context(cloud.CELL1)).reader.using(
            self.context(cloud.CELL1)
        ) as session:
            row = session.query(main_db.models.ComputeNode).one()
            for column in row.__table__.c:
                value = getattr(row, column.name)
                if hasattr(value, "isoformat"):
                    value = value.isoformat()
                self.assertEqual(value, kept[column.name], column.name)

    # -- services ---------------------------------------------------------------

    def test_a_service_is_disabled_forced_down_and_deleted_with_its_nodes(self) -> None:
        service = self.service(cloud.CELL1, "h1")
        nodes = [self.compute_node(cloud.CELL1, "h1", hypervisor_hostname=n) for n in "ab"]
        other = self.compute_node(cloud.CELL1, "h2")
        self.assertFalse(self.rows(known_namespaces.SERVICES)[service.uuid]["disabled"])
        service.disabled, service.disabled_reason = True, "broken"
        service.save()
        found = self.rows(known_namespaces.SERVICES)[service.uuid]
        self.assertEqual((True, "broken"), (found["disabled"], found["disabled_reason"]))
        service.forced_down = True
        service.save()
        self.assertTrue(self.rows(known_namespaces.SERVICES)[service.uuid]["forced_down"])
        self.assertEqual(
            {*[n.uuid for n in nodes], other.uuid}, self.rows(known_namespaces.COMPUTE_NODES).keys()
        )
        service.destroy()
        self.assertEqual({}, self.rows(known_namespaces.SERVICES))
        self.assertEqual({}, self.states(known_namespaces.SERVICE_LIVENESS))
        self.assertEqual({other.uuid}, self.rows(known_namespaces.COMPUTE_NODES).keys())

    def test_an_upgraded_service_that_starts_again_is_reported(self) -> None:
        service = self.service(cloud.CELL1, "h1")
        context = self.context(cloud.CELL1)
        main_db.service_update(context, service.id, {"version": 1})
        self.sweep(cloud.CELL1)
        self.assertEqual(1, self.rows(known_namespaces.SERVICES)[service.uuid]["version"])
        # nova.service._update_service_ref
        found = objects.Service.get_by_host_and_binary(context, "h1", "nova-compute")
        found.version = objects.service.SERVICE_VERSION
        found.save()
        self.assertEqual(
            objects.service.SERVICE_VERSION,
            self.rows(known_namespaces.SERVICES)[service.uuid]["version"],
        )

    def test_a_heartbeat_touches_liveness_alone(self) -> None:
        service = self.service(cloud.CELL1, "h1")
        self.reporter.flush()
        before = self.synchronizer.head().version
        self.heartbeat(service)
        self.heartbeat(service)
        self.reporter.flush()
        self.assertEqual(before + 1, self.synchronizer.head().version)
        state = self.states(known_namespaces.SERVICE_LIVENESS)[service.uuid]
        self.assertEqual((2, 0), (state["report_count"], state["unreported"]))
        seen = service.last_seen_up.replace(tzinfo=None).isoformat()
        self.assertEqual(seen, state["last_seen_up"])

    def test_a_heartbeat_with_a_change_of_the_service_reports_both(self) -> None:
        service = self.service(cloud.CELL1, "h1")
        self.reporter.flush()
        service.report_count += 1
        service.disabled = True
        service.save()
        self.assertTrue(self.rows(known_namespaces.SERVICES)[service.uuid]["disabled"])
        self.assertEqual(
            1, self.states(known_namespaces.SERVICE_LIVENESS)[service.uuid]["report_count"]
        )

    # -- instances and migrations ---------------------------------------------------

    def test_an_instance_is_placed_moved_unplaced_and_deleted(self) -> None:
        instance = self.instance(cloud.CELL2, None)
        self.assertEqual({}, self.rows(known_namespaces.INSTANCES))
        self.place(instance, "h1")
        key = nova_tables.cell_key(instance.uuid, cloud.CELL2)
        self.assertEqual("h1", self.rows(known_namespaces.INSTANCES)[key]["host"])
        self.place(instance, "h2")
        self.assertEqual("h2", self.rows(known_namespaces.INSTANCES)[key]["host"])
        self.place(instance, None)
        self.assertEqual({}, self.rows(known_namespaces.INSTANCES))
        self.place(instance, "h1")
        instance.destroy()
        self.assertEqual({}, self.rows(known_namespaces.INSTANCES))

    def place(self, instance, host) -> None:  # type: ignore[no-untyped-def]
        instance.host, instance.node = host, host and f"node-{host}"
        instance.compute_id = 1 if host else None
        instance.save()

    def test_whatever_the_record_of_an_instance_holds_is_reported(self) -> None:
        instance = self.instance(cloud.CELL1, "h1")
        self.reporter.flush()
        instance.system_metadata = {"image_hw_disk_bus": "scsi", "other": "x"}
        instance.save()
        instance.image_ref = "r"
        instance.save()
        (row,) = self.rows(known_namespaces.INSTANCES).values()
        self.assertEqual({"image_hw_disk_bus": "scsi"}, row["system_metadata"])
        self.assertEqual("r", row["image_ref"])
        held = {name for name in nova_tables.INSTANCE_COLUMNS if name in objects.Instance.fields}
        self.assertEqual(set(), held - nodb_objects.INSTANCE_FIELDS)

    def test_what_no_scheduler_needs_of_an_instance_is_not_reported(self) -> None:
        instance = self.instance(cloud.CELL1, "h1")
        self.reporter.flush()
        instance.display_description = "new"
        instance.save()
        self.assertEqual(0, self.reporter.status().queued)

    def test_one_uuid_in_two_cells_is_two_records(self) -> None:
        same = str(uuid.uuid4())
        self.instance(cloud.CELL1, "h1", uuid=same)
        self.instance(cloud.CELL2, "h2", uuid=same)
        self.assertEqual(
            {nova_tables.cell_key(same, cloud.CELL1), nova_tables.cell_key(same, cloud.CELL2)},
            self.rows(known_namespaces.INSTANCES).keys(),
        )

    def test_a_migration_is_held_while_it_is_in_progress(self) -> None:
        instance = self.instance(cloud.CELL1, "h1")
        for ended in nova_tables.ENDED_MIGRATIONS:
            migration = objects.Migration(
                self.context(cloud.CELL1),
                instance_uuid=instance.uuid,
                source_compute="h1",
                source_node="node-h1",
                dest_compute="h2",
                dest_node="node-h2",
                dest_compute_id=2,
                status="pre-migrating",
                migration_type="migration",
            )
            migration.create()
            (row,) = self.rows(known_namespaces.MIGRATIONS).values()
            self.assertEqual("h2", row["dest_compute"])
            migration.status = ended
            migration.save()
            self.assertEqual({}, self.rows(known_namespaces.MIGRATIONS), ended)

    def test_a_server_takes_its_migrations_along_when_it_is_deleted(self) -> None:
        """Deleted, or hard-deleted as where a move into another cell is rolled back.

        Nova deletes their rows in the same transaction, without their objects.
        """
        for cell, hard in ((cloud.CELL1, False), (cloud.CELL2, True)):
            instance = self.instance(cell, "h1")
            other = self.instance(cell, "h1")
            ours, theirs, over = (
                self.migration(cell, owner, status=status)
                for owner, status in (
                    (instance, "migrating"),
                    (other, "finished"),
                    (instance, "confirmed"),
                )
            )
            held = {nova_tables.cell_key(each.uuid, cell) for each in (ours, theirs)}
            self.assertEqual(held, self.in_progress(cell))
            instance.destroy(hard_delete=hard)
            self.assertEqual(
                {nova_tables.cell_key(theirs.uuid, cell)}, self.in_progress(cell), over
            )

    def migration(self, cell: str, instance: Any, status: str) -> Any:
        made = objects.Migration(
            self.context(cell),
            uuid=str(uuid.uuid4()),
            instance_uuid=instance.uuid,
            source_compute="h1",
            dest_compute="h2",
            status=status,
            migration_type="resize",
        )
        made.create()
        return made

    def in_progress(self, cell: str) -> set[str]:
        return {key for key in self.rows(known_namespaces.MIGRATIONS) if key.endswith(cell)}

    # -- the API database -------------------------------------------------------------

    def test_an_aggregate_with_its_hosts_and_metadata(self) -> None:
        aggregate = objects.Aggregate(self.admin, name="a", metadata={"availability_zone": "z"})
        aggregate.create()
        (row,) = self.rows(known_namespaces.AGGREGATES).values()
        self.assertEqual({"availability_zone": "z"}, row["metadata"])
        aggregate.add_host("h1")
        aggregate.add_host("h2")
        (row,) = self.rows(known_namespaces.AGGREGATES).values()
        self.assertEqual(["h1", "h2"], row["hosts"])
        aggregate.delete_host("h1")
        aggregate.update_metadata({"ssd": "true", "availability_zone": None})
        (row,) = self.rows(known_namespaces.AGGREGATES).values()
        self.assertEqual((["h2"], {"ssd": "true"}), (row["hosts"], row["metadata"]))
        aggregate.name = "b"
        aggregate.save()
        (row,) = self.rows(known_namespaces.AGGREGATES).values()
        self.assertEqual("b", row["name"])
        aggregate.delete_host("h2")
        aggregate.destroy()
        self.assertEqual({}, self.rows(known_namespaces.AGGREGATES))

    def test_a_host_mapping_is_created_moved_and_deleted(self) -> None:
        cells = {cell: objects.CellMapping.get_by_uuid(self.admin, cell) for cell in cloud.CELLS}
        mapping = objects.HostMapping(self.admin, host="h1", cell_mapping=cells[cloud.CELL1])
        mapping.create()
        self.assertEqual(cloud.CELL1, self.rows_of(known_namespaces.HOST_MAPPINGS)["h1"]["cell"])
        mapping.cell_mapping = cells[cloud.CELL2]
        mapping.save()
        self.assertEqual(cloud.CELL2, self.rows_of(known_namespaces.HOST_MAPPINGS)["h1"]["cell"])
        mapping.destroy()
        self.assertEqual({}, self.rows(known_namespaces.HOST_MAPPINGS))

    def test_discovered_hosts_are_reported(self) -> None:
        self.compute_node(cloud.CELL2, "h1")
        self.service(cloud.CELL1, "h2")
        nova_host_mapping.discover_hosts(self.admin)
        nova_host_mapping.discover_hosts(self.admin, by_service=True)
        found = self.rows_of(known_namespaces.HOST_MAPPINGS)
        self.assertEqual(
            {"h1": cloud.CELL2, "h2": cloud.CELL1},
            {host: state["cell"] for host, state in found.items()},
        )

    # -- and all together -----------------------------------------------------------

    def test_what_is_reported_compares_clean_with_the_databases(self) -> None:
        self.host(cloud.CELL1, "h1")
        _node, service = self.host(cloud.CELL2, "h2")
        self.instance(cloud.CELL1, "h1")
        objects.Aggregate(self.admin, name="a", metadata={}).create()
        service.disabled = True
        service.save()
        self.reporter.flush()
        for scope in (*cloud.CELLS, scopes.API):
            found = scope_transfer.compare_scope(self.synchronizer, self.plugin.scopes, scope)
            for namespace, comparison in found.items():
                self.assertTrue(comparison.clean, f"{scope} {namespace} {comparison}")

    def test_a_write_through_a_conductor_is_not_reported_here(self) -> None:
        # As in nova-compute: the object's methods run in the conductor.
        node = self.compute_node(cloud.CELL1, "h1")
        self.reporter.flush()
        sent = []

        class Indirection:
            def object_action(self, context, objinst, objmethod, args, kwargs):  # type: ignore
                sent.append(objmethod)
                return {}, None

        class Node(nodb_objects.ComputeNode):  # type: ignore[misc]
            indirection_api = Indirection()

        remote = Node(node._context, id=node.id, uuid=node.uuid)
        remote.vcpus_used = 3
        remote.save()
        self.assertEqual(["save"], sent)
        self.assertEqual(0, self.reporter.status().queued)

    # -- writes that failed -------------------------------------------------------

    def lost(self, where: Any, name: str) -> Any:
        """Have a function of Nova's commit what it writes, and lose the answer."""
        own = getattr(where, name)

        def write(*args: Any, **kwargs: Any) -> Any:
            own(*args, **kwargs)
            raise db_exception.DBConnectionError

        return mock.patch.object(where, name, write)

    def test_writes_that_are_committed_though_their_answer_was_lost_are_reported(self) -> None:
        node, service = self.host(cloud.CELL1, "h1")
        instance = self.instance(cloud.CELL1, "h1")
        self.reporter.flush()
        node.vcpus_used, instance.host = 7, "h2"
        for save, function in (
            (node.save, "compute_node_update"),
            (instance.save, "instance_update_and_get_original"),
            (service.destroy, "service_destroy"),
        ):
            with (
                self.lost(main_db, function),
                self.assertRaises(db_exception.DBConnectionError),
            ):
                save()
            self.reporter.flush()
            found = scope_transfer.compare_scope(self.synchronizer, self.plugin.scopes, cloud.CELL1)
            self.assertEqual({True}, {each.clean for each in found.values()}, function)

    def test_a_failed_heartbeat_is_not_counted(self) -> None:
        _node, service = self.host(cloud.CELL1, "h1")
        self.reporter.flush()
        service.report_count += 1
        with (
            mock.patch.object(main_db, "service_update", autospec=True, side_effect=RuntimeError),
            self.assertRaises(RuntimeError),
        ):
            service.save()
        self.assertEqual(0, len(self.reporter._dirty))
        self.assertEqual(0, self.reporter._dirty.beats_waiting())

    def test_a_row_that_got_no_name_fails_as_in_nova(self) -> None:
        values = {"name": "same", "metadata": {}}
        objects.Aggregate(self.admin, **values).create()
        with self.assertRaises(exception.AggregateNameExists):
            objects.Aggregate(self.admin, **values).create()

    def test_without_a_reporter_writes_are_novas_own(self) -> None:
        change_reporter.install(None, None)
        node, service = self.host(cloud.CELL1, "h1")
        service.destroy()
        self.reporter.flush()
        self.assertEqual({}, self.states(known_namespaces.COMPUTE_NODES))
        self.assertIsNotNone(node.id)
