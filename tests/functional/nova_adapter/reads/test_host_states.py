# SPDX-License-Identifier: Apache-2.0
"""What a scheduler sees in memory equals what Nova's own reads show, field by field."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies as st
from nova import exception, objects
from nova.db.main import api as main_db
from nova.objects import service as nova_service
from nova.scheduler import host_manager as nova_host_manager

from nova_nodb_scheduler.nova_adapter.conversion import nova_rows
from nova_nodb_scheduler.nova_adapter.reads import database_reads, host_manager, request_views
from nova_nodb_scheduler.nova_adapter.reporting import scopes, state_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from tests.functional.nova_adapter import cloud

METRICS = json.dumps(
    [{"name": "cpu.user.time", "value": 9, "source": "s", "timestamp": "2026-01-02T03:04:05"}]
)
DAY = datetime.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - naive, as rows are


def _numa(cells: int, pcpus: bool) -> str:
    made = objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=number,
                cpuset=set(range(number * 4, number * 4 + 4)),
                pcpuset={number * 4} if pcpus else set(),
                memory=4096,
                cpu_usage=number,
                memory_usage=512,
                mempages=[objects.NUMAPagesTopology(size_kb=4, total=1024, used=3)],
                pinned_cpus=set(),
                siblings=[{number * 4, number * 4 + 1}],
                socket=0,
            )
            for number in range(cells)
        ]
    )
    return str(made._to_json())


def _pools() -> str:
    pool = objects.PciDevicePool(
        product_id="1520", vendor_id="8086", numa_node=0, count=3, tags={"physical_network": "p"}
    )
    return json.dumps(objects.PciDevicePoolList(objects=[pool]).obj_to_primitive())


#: Rows are few and plain: shrinking them costs minutes and shows little more.
_PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate)

NUMBERS = st.sampled_from([0, 1, 7, 100_000])
COMPUTE_ROWS = st.fixed_dictionaries(
    {
        "vcpus": NUMBERS,
        "vcpus_used": NUMBERS,
        "memory_mb": NUMBERS,
        "memory_mb_used": NUMBERS,
        "local_gb": NUMBERS,
        "local_gb_used": NUMBERS,
        "free_ram_mb": st.sampled_from([-512, 0, 4096]),
        "free_disk_gb": st.sampled_from([None, -3, 0, 95]),
        "disk_available_least": st.sampled_from([None, -1, 90, 1000]),
        "hypervisor_type": st.just("QEMU"),
        "hypervisor_version": st.just(8002000),
        "cpu_info": st.sampled_from(["", "{}", '{"arch": "x86_64"}']),
        "cpu_allocation_ratio": st.sampled_from([None, 0.0, 1.0, 16.0]),
        "ram_allocation_ratio": st.sampled_from([None, 0.0, 1.5]),
        "disk_allocation_ratio": st.sampled_from([None, 0.0, 1.0]),
        "stats": st.sampled_from(
            ["{}", '{"num_instances": "3", "io_workload": "2", "failed_builds": "1"}']
        ),
        "metrics": st.sampled_from(
            [
                "[]",
                METRICS,
            ]
        ),
        "supported_instances": st.sampled_from(["[]", '[["x86_64", "kvm", "hvm"]]']),
        "host_ip": st.sampled_from([None, "192.0.2.7", "2001:db8::1"]),
        "numa_topology": st.sampled_from([None, "none", "one", "two"]),
        "pci_stats": st.sampled_from([None, "pools"]),
        "updated_at": st.sampled_from([None, DAY, DAY.replace(microsecond=7)]),
        "running_vms": NUMBERS,
        "current_workload": NUMBERS,
    }
)
SERVICE_ROWS = st.fixed_dictionaries(
    {
        "disabled": st.booleans(),
        "disabled_reason": st.sampled_from([None, "why"]),
        "forced_down": st.booleans(),
        "version": st.sampled_from([0, 40, 66]),
        "last_seen_up": st.sampled_from([None, DAY, DAY.replace(microsecond=5)]),
        "report_count": NUMBERS,
    }
)
HOSTS = st.lists(
    st.tuples(
        st.sampled_from([cloud.CELL1, cloud.CELL2]),
        COMPUTE_ROWS,
        st.one_of(st.none(), SERVICE_ROWS),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=4,
)


class SchedulerCase(cloud.CloudCase):
    """Stock's and our host manager over the same rows; every cell proved."""

    def setUp(self) -> None:
        super().setUp()
        self.override("track_instance_changes", False, "filter_scheduler")
        self.fallbacks: list[tuple[str, state_proof.UnprovedReason]] = []

    def view(
        self, missing: Mapping[str, state_proof.UnprovedReason] | None = None
    ) -> request_views.RequestView:
        return request_views.RequestView(
            request_views.MemoryReads(
                self.store().snapshot(), 1, request_views.BuiltObjects(), self.admin
            ),
            state_proof.StateProof(missing or {}),
            (cloud.CELL1, cloud.CELL2),
            lambda scope, reason: self.fallbacks.append((scope, reason)),
        )

    def beside(self, view: request_views.RequestView) -> request_views.RequestView:
        """Return the view of another request over the same reads and the objects they keep."""
        return request_views.RequestView(
            view.reads, state_proof.StateProof({}), view.cells, view._fell_back
        )

    def insert(self, cell: str, model: Any, **values: Any) -> None:
        context = self.context(cell)
        with main_db.get_context_manager(context).writer.using(context) as session:
            session.add(model(**values))


def described(state: Any) -> dict[str, Any]:
    """Return all that filters and weighers can see of a host state."""
    names = {"service", *vars(nova_host_manager.HostState("h", "n", "c"))} - {"_lock_name"}
    found: dict[str, Any] = {name: getattr(state, name) for name in names}
    numa = found["numa_topology"]
    found["numa_topology"] = None if numa is None else numa.obj_to_primitive()
    pci = found["pci_stats"]
    found["pci_stats"] = (
        None if pci is None else (pci.pools, pci.numa_topology and len(pci.numa_topology.cells))
    )
    found["aggregates"] = sorted(
        (a.id, a.uuid, a.name, sorted(a.hosts), dict(a.metadata)) for a in found["aggregates"]
    )
    found["instances"] = sorted(found["instances"])
    metrics = found["metrics"]
    found["metrics"] = None if metrics is None else metrics.obj_to_primitive()
    # A heartbeat's time stands in one column in memory, and in two in the row.
    service = {k: v for k, v in dict(found["service"]).items() if k != "updated_at"}
    found["service"] = service
    return found


class DifferentialTest(SchedulerCase):
    @hypothesis.settings(
        max_examples=20,
        phases=_PHASES,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(hosts=HOSTS, aggregated=st.integers(0, 3))
    def test_host_states_equal_novas_own(self, hosts: list[Any], aggregated: int) -> None:
        for cell in (cloud.CELL1, cloud.CELL2):
            cloud.clear(self.urls[cell], "compute_nodes", "services", "instances")
        cloud.clear(self.urls["api"], "host_mappings")
        uuids = []
        # Reading a row without ratios, Nova writes them into it; we do not.
        rewritten = {
            f"h{number}"
            for number, (_cell, row, _service, _instances) in enumerate(hosts)
            if not all(row[f"{name}_allocation_ratio"] for name in ("cpu", "ram", "disk"))
        }
        for number, (cell, row, service, instances) in enumerate(hosts):
            host = f"h{number}"
            uuids.append(str(uuid.uuid4()))
            numa = {"none": "", "one": _numa(1, False), "two": _numa(2, True)}
            values = {
                **row,
                "numa_topology": numa.get(row["numa_topology"]),
                "pci_stats": _pools() if row["pci_stats"] else None,
                "uuid": uuids[-1],
                "host": host,
                "hypervisor_hostname": f"node-{host}",
            }
            self.insert(cell, main_db.models.ComputeNode, **values)
            if service is not None:
                self.insert(
                    cell,
                    main_db.models.Service,
                    uuid=str(uuid.uuid4()),
                    host=host,
                    binary="nova-compute",
                    topic="compute",
                    created_at=DAY,
                    **service,
                )
            objects.HostMapping(
                self.admin,
                host=host,
                cell_mapping=objects.CellMapping.get_by_uuid(self.admin, cell),
            ).create()
            for _ in range(instances):
                self.insert(
                    cell,
                    main_db.models.Instance,
                    uuid=str(uuid.uuid4()),
                    host=host,
                    node=f"node-{host}",
                    hostname="x",
                )
        self.aggregates(aggregated)
        self.sweep()
        stock = nova_host_manager.HostManager()
        ours = host_manager.HostManager()
        asked = [*uuids[1:], str(uuid.uuid4())] if aggregated % 2 else uuids
        for wanted in (asked, None):
            expected = self.states_of(stock, wanted)
            with request_views.working_on(self.view()), self.statements() as statements:
                found = self.states_of(ours, wanted)
            self.assertEqual([], statements.seen)
            self.assertEqual(expected.keys(), found.keys())
            for key, state in expected.items():
                for name, value in state.items():
                    if name == "updated" and key[0] in rewritten:
                        continue
                    self.assertEqual(value, found[key][name], f"{name} of {key}")
        self.assertEqual([], self.fallbacks)

    def states_of(self, manager: Any, uuids: Any) -> dict[tuple[str, str], Any]:
        nodes, services = manager._get_computes_for_cells(self.admin, manager.enabled_cells, uuids)
        states = manager._get_host_states(self.admin, nodes, services)
        return {(state.host, state.nodename): described(state) for state in states}

    def aggregates(self, count: int) -> None:
        known = objects.AggregateList.get_all(self.admin)
        for aggregate in known:
            for host in list(aggregate.hosts):
                aggregate.delete_host(host)
            aggregate.destroy()
        for number in range(count):
            made = objects.Aggregate(self.admin, name=f"a{number}", metadata={"k": str(number)})
            made.create()
            for host in range(number + 1):
                made.add_host(f"h{host}")


class OneRequestTest(SchedulerCase):
    def setUp(self) -> None:
        super().setUp()
        numa = _numa(2, True)
        self.nodes = {
            "h1": self.host(cloud.CELL1, "h1", numa_topology=numa)[0],
            "h2": self.host(cloud.CELL2, "h2", numa_topology=numa)[0],
        }
        self.placed = self.instance(
            cloud.CELL1, "h1", system_metadata={"image_hw_disk_bus": "scsi"}
        )
        self.sweep()
        self.manager = host_manager.HostManager()

    def states_by_host(self, view: request_views.RequestView) -> dict[str, Any]:
        uuids = [node.uuid for node in self.nodes.values()]
        with request_views.working_on(view):
            states = list(self.manager.get_host_states_by_uuids(self.admin, uuids, None))
        return {state.host: state for state in states}

    def test_numa_topologies_are_parsed_for_those_who_look_at_them(self) -> None:
        view = self.view()
        parse = mock.Mock(wraps=nova_rows.numa_topology)
        with mock.patch.object(nova_rows, "numa_topology", parse):
            states = self.states_by_host(view)
            self.assertEqual(0, parse.call_count)
            self.assertEqual(2, len(states["h1"].numa_topology.cells))
            self.assertEqual(2, len(states["h1"].numa_topology.cells))
            self.assertEqual(1, parse.call_count)

    def test_one_request_does_not_change_what_another_sees(self) -> None:
        view = self.view()
        first = self.states_by_host(view)["h1"]
        before = described(self.states_by_host(self.beside(view))["h1"])
        first.consume_from_request(
            objects.RequestSpec(
                self.admin,
                flavor=objects.Flavor(memory_mb=512, vcpus=1, root_gb=1, ephemeral_gb=0, swap=0),
                numa_topology=None,
                pci_requests=None,
            )
        )
        first.numa_topology.cells[0].cpu_usage = 99
        first.stats["num_instances"] = "77"
        first.instances["new"] = object()
        first.aggregates.append(object())
        self.assertEqual(before, described(self.states_by_host(self.beside(view))["h1"]))

    def test_one_cell_falls_back_and_the_other_is_served(self) -> None:
        view = self.view({cloud.CELL2: state_proof.UnprovedReason.BEHIND})
        with self.statements() as statements:
            states = self.states_by_host(view)
        self.assertEqual({"h1", "h2"}, states.keys())
        self.assertEqual([(cloud.CELL2, state_proof.UnprovedReason.BEHIND)], self.fallbacks)
        self.assertEqual(1, len(statements.of("compute_nodes")), statements.seen)
        self.assertEqual({cloud.CELL1, scopes.API}, view.served)

    def test_a_version_of_the_future_sends_its_cell_to_the_database(self) -> None:
        self.change_record(
            known_namespaces.COMPUTE_NODES, self.nodes["h1"].uuid, object_version="2.0"
        )
        self.assertEqual({"h1", "h2"}, self.states_by_host(self.view()).keys())
        self.assertEqual(
            [(cloud.CELL1, state_proof.UnprovedReason.UNKNOWN_VERSION)], self.fallbacks
        )

    def test_a_row_without_a_column_sends_its_cell_to_the_database(self) -> None:
        state = self.states(known_namespaces.COMPUTE_NODES)[self.nodes["h2"].uuid]
        row = {name: value for name, value in state["row"].items() if name != "memory_mb"}
        self.change_record(known_namespaces.COMPUTE_NODES, self.nodes["h2"].uuid, row=row)
        self.assertEqual({"h1", "h2"}, self.states_by_host(self.view()).keys())
        self.assertEqual(
            [(cloud.CELL2, state_proof.UnprovedReason.UNKNOWN_VERSION)], self.fallbacks
        )

    def test_unknown_columns_of_a_newer_minor_version_are_kept_and_do_no_harm(self) -> None:
        key = self.nodes["h1"].uuid
        row = {
            **self.states(known_namespaces.COMPUTE_NODES)[key]["row"],
            "of_nova_40": [1, {"a": None}],
        }
        self.change_record(known_namespaces.COMPUTE_NODES, key, row=row, object_version="1.99")
        self.assertEqual({"h1", "h2"}, self.states_by_host(self.view()).keys())
        self.assertEqual([], self.fallbacks)
        held = self.view().reads._nodes.get(key)
        assert held is not None
        self.assertEqual([1, {"a": None}], held.state["row"]["of_nova_40"])

    def test_an_aggregate_of_the_future_sends_the_api_database_to_nova(self) -> None:
        made = objects.Aggregate(self.admin, name="a", metadata={"k": "v"})
        made.create()
        made.add_host("h1")
        self.sweep(scopes.API)
        self.manager = host_manager.HostManager()
        self.change_record(known_namespaces.AGGREGATES, made.uuid, object_version="2.0")
        states = self.states_by_host(self.view())
        self.assertEqual(["a"], [a.name for a in states["h1"].aggregates])
        with request_views.working_on(self.view()):
            found = database_reads.get_by_metadata(self.admin, key="k")
        self.assertEqual(["a"], [row["name"] for row in found])
        self.assertEqual(
            {(scopes.API, state_proof.UnprovedReason.UNKNOWN_VERSION)}, set(self.fallbacks)
        )

    def change_record(self, namespace: Any, key: str, **changed: Any) -> None:
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.NOVA)
        name = cloud.records.RecordKey(namespace.name, key)
        publisher.publish({name: lambda current: {**(current or {}), **changed}})

    def test_a_requested_host_is_found_without_a_statement(self) -> None:
        view = self.view()
        with request_views.working_on(view), self.statements() as statements:
            by_host = self.manager.get_compute_nodes_by_host_or_node(self.admin, "h2", None)
            by_both = self.manager.get_compute_nodes_by_host_or_node(self.admin, "h1", "node-h1")
            by_node = self.manager.get_compute_nodes_by_host_or_node(self.admin, None, "node-h2")
            cell = self.manager._get_cell_mapping_for_host(self.admin, "h2")
        self.assertEqual([], statements.seen)
        self.assertEqual([self.nodes["h2"].uuid], [node.uuid for node in by_host])
        self.assertEqual([self.nodes["h1"].uuid], [node.uuid for node in by_both])
        self.assertEqual([self.nodes["h2"].uuid], [node.uuid for node in by_node])
        self.assertEqual(cloud.CELL2, cell.uuid)

    def test_no_such_host_is_said_by_nova_alone(self) -> None:
        with request_views.working_on(self.view()), self.statements() as statements:
            wrong = self.manager.get_compute_nodes_by_host_or_node(self.admin, "h1", "node-h2")
        self.assertEqual([], list(wrong))
        self.assertEqual(1, len(statements.of("compute_nodes")), statements.seen)
        self.assertEqual([(cloud.CELL1, state_proof.UnprovedReason.UNKNOWN_HOST)], self.fallbacks)

    def test_an_unknown_host_is_looked_for_in_the_api_database(self) -> None:
        with (
            request_views.working_on(self.view()),
            self.assertRaises(exception.HostMappingNotFound),
        ):
            self.manager._get_cell_mapping_for_host(self.admin, "h9")

    def test_image_properties_of_instances_are_at_hand(self) -> None:
        state = self.states_by_host(self.view())["h1"]
        with self.statements() as statements:
            listed = objects.InstanceList(objects=list(state.instances.values()))
            if hasattr(listed, "fill_metadata"):
                listed.fill_metadata()
            (instance,) = listed
            self.assertEqual("scsi", instance.system_metadata["image_hw_disk_bus"])
            self.assertEqual("p", instance.project_id)
            self.assertEqual("h1", instance.host)
        self.assertEqual([], statements.seen)
        # What is not held is loaded from its own cell, as in Nova.
        self.assertEqual({}, instance.metadata)


class DatabaseReadsTest(SchedulerCase):
    """The functions beneath Nova's request filters."""

    def setUp(self) -> None:
        super().setUp()
        self.specs = [
            ({"availability_zone": "z1", "filter_tenant_id": "t1"}, ["h1", "h2"]),
            ({"filter_tenant_id2": "t1", "filter_tenant_id": "t2"}, ["h2"]),
            ({"trait:HW_X": "required", "trait:HW_Y": "required", "ssd": "true"}, []),
            ({"trait:HW_X": "forbidden"}, ["h3"]),
            ({}, ["h1"]),
        ]
        for number, (metadata, hosts) in enumerate(self.specs):
            made = objects.Aggregate(self.admin, name=f"a{number}", metadata=metadata)
            made.create()
            for host in hosts:
                made.add_host(host)
        self.sweep()

    def both(self, call: Any) -> None:
        def plain(found: Any) -> Any:
            return sorted(
                (a.id, a.name, a.uuid, sorted(a.hosts), sorted(a.metadata.items())) for a in found
            )

        expected = plain(call())
        own = {
            name: getattr(module, name) for module, name, _own, _ours in database_reads._REPLACED
        }
        database_reads.install()
        try:
            with request_views.working_on(self.view()), self.statements() as statements:
                found = plain(call())
        finally:
            for module, name, _own, _ours in database_reads._REPLACED:
                setattr(module, name, own[name])
        self.assertEqual(expected, found)
        self.assertEqual([], statements.seen)

    def test_aggregates_by_metadata(self) -> None:
        aggregates = objects.AggregateList
        for value in ("t1", "t2", "required", "none"):
            self.both(lambda v=value: aggregates.get_by_metadata(self.admin, value=v))
        for key in ("availability_zone", "filter_tenant_id", "none"):
            self.both(lambda k=key: aggregates.get_by_metadata(self.admin, key=k))
            self.both(lambda k=key: aggregates.get_by_metadata(self.admin, key=k, value="t1"))
            self.both(lambda k=key: aggregates.get_by_metadata_key(self.admin, k))
            self.both(lambda k=key: aggregates.get_by_metadata_key(self.admin, k, hosts={"h1"}))

    def test_aggregates_that_do_not_match(self) -> None:
        for ignored in ([], ["trait:HW_X"], ["trait:HW_X", "trait:HW_Y"]):
            self.both(
                lambda i=ignored: objects.AggregateList.get_non_matching_by_metadata_keys(
                    self.admin, i, "trait:", value="required"
                )
            )

    def test_aggregates_of_a_host(self) -> None:
        for host in ("h1", "h2", "h9"):
            self.both(lambda h=host: objects.AggregateList.get_by_host(self.admin, h))
            self.both(
                lambda h=host: objects.AggregateList.get_by_host(
                    self.admin, h, key="filter_tenant_id"
                )
            )

    def test_the_minimum_version_of_all_cells(self) -> None:
        def versions(*found: tuple[str, str, int, bool]) -> None:
            for cell in cloud.CELLS:
                cloud.clear(self.urls[cell], "services")
            for number, (cell, binary, version, disabled) in enumerate(found):
                self.insert(
                    cell,
                    main_db.models.Service,
                    uuid=str(uuid.uuid4()),
                    host=f"h{number}",
                    binary=binary,
                    topic="t",
                    version=version,
                    disabled=disabled,
                    report_count=0,
                )
            self.sweep()
            for binaries in (["nova-compute"], ["nova-compute", "nova-osapi_compute"]):
                expected = nova_service.get_minimum_version_all_cells(self.admin, binaries)
                with request_views.working_on(self.view()), self.statements() as statements:
                    found_version = database_reads.get_minimum_version_all_cells(
                        self.admin, binaries
                    )
                self.assertEqual(expected, found_version)
                self.assertEqual([], statements.seen)

        one, two, zero = cloud.CELL1, cloud.CELL2, cloud.CELL0
        versions()
        versions((one, "nova-compute", 66, False), (two, "nova-compute", 40, True))
        versions((one, "nova-compute", 66, False), (two, "nova-compute", 0, False))
        versions((zero, "nova-osapi_compute", 30, False), (one, "nova-compute", 66, False))

    def test_a_cell_that_is_not_proved_sends_the_minimum_version_to_nova(self) -> None:
        self.service(cloud.CELL1, "h1")
        for missing in (cloud.CELL0, cloud.CELL2):
            view = self.view({missing: state_proof.UnprovedReason.COLD})
            with request_views.working_on(view), self.statements() as statements:
                database_reads.get_minimum_version_all_cells(self.admin, ["nova-compute"])
            self.assertEqual(3, len(statements.of("services")))

    def test_outside_a_request_everything_is_novas(self) -> None:
        with self.statements() as statements:
            database_reads.get_by_host(self.admin, "h1")
            database_reads.get_by_metadata(self.admin, key="ssd")
        self.assertTrue(statements.seen)
