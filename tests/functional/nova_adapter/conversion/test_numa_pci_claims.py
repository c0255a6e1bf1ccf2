# SPDX-License-Identifier: Apache-2.0
"""Claims of NUMA cells and PCI devices are consumed, and fitted, as Nova's code would.

Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import types
import unittest
from collections.abc import Iterator
from typing import Any

import hypothesis
from hypothesis import strategies as st
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import claims as nova_claims
from nova.objects import fields
from nova.scheduler import host_manager as nova_host_manager
from nova.scheduler.filters import numa_topology_filter, pci_passthrough_filter

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.nova_adapter.conversion import nova_rows, numa_pci_claims
from nova_nodb_scheduler.nova_adapter.reads import host_manager, request_views
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.reservations import claim_fit
from tests.unit.scheduling import claims, hosts

NODE = "22222222-0000-0000-0000-000000000001"
BOTH = ("NUMATopologyFilter", "PciPassthroughFilter")
#: A cloud is made for each case: what fails is told as it is, not made small.
CASES = hypothesis.settings(
    max_examples=int(os.environ.get("NODB_PROPERTY_EXAMPLES", "50")),
    deadline=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate),
)


def topology(cells: int, memory: int) -> str:
    made = objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=number,
                cpuset={number * 4, number * 4 + 1},
                pcpuset={number * 4 + 2, number * 4 + 3},
                memory=memory,
                cpu_usage=0,
                memory_usage=0,
                mempages=[objects.NUMAPagesTopology(size_kb=4, total=memory * 256, used=0)],
                pinned_cpus=set(),
                siblings=[{number * 4 + n} for n in range(4)],
                socket=0,
            )
            for number in range(cells)
        ]
    )
    return str(made._to_json())


def pools(*counts: int) -> str:
    made = [
        objects.PciDevicePool(
            product_id="1520", vendor_id="8086", numa_node=node, count=count, tags={}
        )
        for node, count in enumerate(counts)
    ]
    return json.dumps(objects.PciDevicePoolList(objects=made).obj_to_primitive())


def spec(cells: int = 0, *, pinned: bool = False, devices: int = 0, memory: int = 256) -> Any:
    """Return a request for a server with so many NUMA cells and devices."""
    policy = fields.CPUAllocationPolicy.DEDICATED if pinned else None
    made = objects.RequestSpec(
        flavor=objects.Flavor(
            vcpus=max(cells, 1),
            memory_mb=memory * max(cells, 1),
            root_gb=1,
            ephemeral_gb=0,
            swap=0,
            extra_specs={},
        ),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        instance_uuid="99999999-0000-0000-0000-000000000001",
        numa_topology=None,
        pci_requests=objects.InstancePCIRequests(
            requests=[
                objects.InstancePCIRequest(
                    request_id="11111111-0000-0000-0000-000000000001",
                    count=devices,
                    alias_name="a",
                    spec=[{"vendor_id": "8086", "product_id": "1520"}],
                    numa_policy=fields.PCINUMAAffinityPolicy.LEGACY,
                )
            ]
            if devices
            else []
        ),
    )
    if cells:
        made.numa_topology = objects.InstanceNUMATopology(
            cells=[
                objects.InstanceNUMACell(
                    id=number,
                    cpuset=set() if pinned else {number},
                    pcpuset={number} if pinned else set(),
                    memory=memory,
                    cpu_policy=policy,
                )
                for number in range(cells)
            ]
        )
    return made


def share(request: Any) -> model.NodeShare:
    flavor = request.flavor
    return model.NodeShare(
        vcpus=flavor.vcpus,
        memory_mb=flavor.memory_mb,
        disk_gb=1,
        instances=1,
        io_operations=1,
        fitted=numa_pci_claims.of_request(request),
    )


SPECS = st.builds(
    spec,
    st.integers(0, 2),
    pinned=st.booleans(),
    devices=st.integers(0, 2),
    memory=st.sampled_from([256, 512]),
)


class FittedTest(unittest.TestCase):
    def setUp(self) -> None:
        objects.register_all()
        self.context: Any = nova_context.get_admin_context()

    def cloud(self, requests: list[Any], **row: Any) -> hosts.Hosts:
        """Return a host with claims of some requests on it."""
        made = hosts.Hosts()
        row = {"mapped": 1, "service_id": None, "disk_allocation_ratio": 1.0, **row}
        made.put(known_namespaces.COMPUTE_NODES, NODE, hosts.node(NODE, **row))
        # Claims come back through JSON. Their servers' names are in another order than the grants.
        held = {
            f"c{9 - number}": model.HeldClaim.from_state(
                json.loads(json.dumps(claims.held(share(each)).to_state()))
            )
            for number, each in enumerate(requests)
        }
        made.put(known_namespaces.CLAIM_RECORDS, NODE, claims.record(NODE, held))
        return made

    @contextlib.contextmanager
    def state(self, cloud: hosts.Hosts) -> Iterator[Any]:
        """Make the host's state as a request does."""
        view = request_views.RequestView(
            request_views.MemoryReads(
                cloud.store.snapshot(), 1, request_views.BuiltObjects(), self.context
            ),
            state_proof.StateProof({}),
            (hosts.CELL,),
            lambda scope, reason: None,
        )
        with request_views.working_on(view):
            (node,) = view.reads.compute_nodes(hosts.CELL, None)
            state = host_manager.HostState("h1", f"node-{NODE}", hosts.CELL)
            state.update(compute=node)
            yield state

    def stock(self, cloud: hosts.Hosts) -> Any:
        """Return Nova's own state of the host, without claims."""
        record = cloud.store.snapshot().namespace(known_namespaces.COMPUTE_NODES.name).get(NODE)
        assert record is not None
        node, text = nova_rows.compute_node(self.context, record)
        node.numa_topology = record.state["row"]["numa_topology"]
        self.assertEqual(text, node.numa_topology)
        state = nova_host_manager.HostState("h1", f"node-{NODE}", hosts.CELL)
        state.update(compute=node)
        state.allocation_candidates = [{"mappings": {}}]
        return state

    def passes(self, state: Any, request: Any) -> bool:
        state.allocation_candidates = [{"mappings": {}}]
        return bool(
            numa_topology_filter.NUMATopologyFilter().host_passes(state, request)
            and pci_passthrough_filter.PciPassthroughFilter().host_passes(state, request)
        )

    def described(self, state: Any) -> tuple[Any, ...]:
        return (
            # Looking whether a server fits fills defaults in: field by field.
            [
                (
                    cell.id,
                    cell.cpu_usage,
                    cell.memory_usage,
                    cell.pinned_cpus,
                    [(pages.size_kb, pages.used) for pages in cell.mempages],
                )
                for cell in (state.numa_topology.cells if state.numa_topology else ())
            ],
            state.pci_stats.pools,
            state.free_ram_mb,
            state.free_disk_mb,
            state.vcpus_used,
            state.num_instances,
            state.num_io_ops,
        )

    @CASES
    @hypothesis.given(
        requests=st.lists(SPECS, max_size=4),
        wanted=SPECS,
        cells=st.integers(0, 2),
        counts=st.lists(st.integers(0, 3), max_size=2),
        devices_first=st.booleans(),
    )
    def test_claims_leave_what_consume_from_request_leaves(
        self, requests: list[Any], wanted: Any, cells: int, counts: list[int], devices_first: bool
    ) -> None:
        row = {
            "numa_topology": topology(cells, 1024) if cells else None,
            "pci_stats": pools(*counts),
        }
        empty = self.cloud([], **row)
        # Nova consumes a host for a request that its filters passed.
        expected, placed = self.stock(empty), []
        for request in requests:
            mine = request.obj_clone()
            if self.passes(expected, mine):
                placed.append(request)
                expected.consume_from_request(mine)
        cloud = self.cloud(placed, **row)
        with self.state(cloud) as found:
            if devices_first:
                self.assertEqual(expected.pci_stats.pools, found.pci_stats.pools)
            self.assertEqual(self.described(expected), self.described(found))
            self.assertEqual(
                self.passes(expected, wanted.obj_clone()), self.passes(found, wanted.obj_clone())
            )
            self.assertEqual(
                (self.devices(expected), *self.described(expected)[2:]), self.columns(cloud)
            )
        fits = self.fits(cloud, wanted, BOTH)
        self.assertEqual(self.passes(expected, wanted.obj_clone()), fits)
        self.assertTrue(self.fits(cloud, wanted, ()))

    def devices(self, state: Any) -> int:
        return sum(int(pool["count"]) for pool in state.pci_stats.pools)

    def columns(self, cloud: hosts.Hosts) -> tuple[int, ...]:
        """Return what filters and weighers over columns see."""
        keeper, feed = cloud.keeper()
        keeper.catch_up(100.0)
        row = feed.frame.row_of(NODE)
        names = ("pci_free", "free_ram_mb", "free_disk_mb", "vcpus_used")
        more = ("num_instances", "num_io_ops")
        return tuple(getattr(feed.frame, name).item(row) for name in (*names, *more))

    def fits(self, cloud: hosts.Hosts, wanted: Any, filters: tuple[str, ...]) -> bool:
        snapshot = cloud.store.snapshot()
        fitting = numa_pci_claims.NumaPciFitting(snapshot, filters, self.context)
        fits = claim_fit.make_fits(snapshot, claim_fit.InstanceLimits(), fitted=fitting.fits)
        claim = model.Claim("me", NODE, {}, node=share(wanted))
        record = snapshot.namespace(known_namespaces.CLAIM_RECORDS.name).digest(NODE)
        return fits(claim, record or model.ClaimRecord(NODE))

    def test_the_last_cell_and_the_last_device_are_claimed_once(self) -> None:
        row = {"numa_topology": topology(1, 1024), "pci_stats": pools(1)}
        pinned = [spec(1, pinned=True) for _ in range(2)]
        self.assertTrue(self.fits(self.cloud(pinned[:1], **row), pinned[1], BOTH))
        self.assertFalse(self.fits(self.cloud(pinned, **row), pinned[1], BOTH))
        device = spec(devices=1)
        self.assertTrue(self.fits(self.cloud(pinned, **row), device, BOTH))
        self.assertFalse(self.fits(self.cloud([device], **row), device, BOTH))

    @CASES
    @hypothesis.given(
        requests=st.lists(SPECS, max_size=4),
        wanted=SPECS,
        cells=st.integers(0, 2),
        counts=st.lists(st.integers(0, 3), max_size=2),
        told=st.booleans(),
    )
    def test_a_conductor_judges_as_nova_compute_will(
        self, requests: list[Any], wanted: Any, cells: int, counts: list[int], told: bool
    ) -> None:
        row = {
            "numa_topology": topology(cells, 1024) if cells else None,
            "pci_stats": pools(*counts),
        }
        state, placed = self.stock(self.cloud([], **row)), []
        for request in requests:
            mine = request.obj_clone()
            if self.passes(state, mine):
                placed.append(request)
                state.consume_from_request(mine)
        limits = objects.NUMATopologyLimits(
            cpu_allocation_ratio=state.cpu_allocation_ratio,
            ram_allocation_ratio=state.ram_allocation_ratio,
        )
        node = objects.ComputeNode(
            numa_topology=state.numa_topology._to_json() if state.numa_topology else None
        )
        tracker = types.SimpleNamespace(pci_tracker=types.SimpleNamespace(stats=state.pci_stats))
        mine = wanted.obj_clone()
        instance = objects.Instance(
            uuid=mine.instance_uuid, numa_topology=mine.numa_topology, system_metadata={}
        )
        taken = True
        try:
            nova_claims.Claim(
                self.context,
                instance,
                "node",
                tracker,
                node,
                mine.pci_requests,
                limits={"numa_topology": limits} if told else None,
            )
        except nova_exception.ComputeResourcesUnavailable:
            taken = False
        snapshot = self.cloud(placed, **row).store.snapshot()
        filters = BOTH if told else ()
        fitting = numa_pci_claims.NumaPciFitting(
            snapshot, filters, self.context, numa_pci_claims.would_be_taken
        )
        fits = claim_fit.make_fits(snapshot, claim_fit.InstanceLimits(), fitted=fitting.fits)
        record = snapshot.namespace(known_namespaces.CLAIM_RECORDS.name).digest(NODE)
        claim = model.Claim("me", NODE, {}, node=share(wanted))
        self.assertEqual(taken, fits(claim, record or model.ClaimRecord(NODE)))

    def test_a_request_for_neither_claims_neither(self) -> None:
        self.assertEqual({}, numa_pci_claims.of_request(spec()))
        self.assertEqual({}, numa_pci_claims.of_request(objects.RequestSpec()))

    def test_a_node_that_nova_cannot_read_takes_nothing(self) -> None:
        cloud = self.cloud([], created_at="once upon a time")
        self.assertFalse(self.fits(cloud, spec(1), BOTH))
        self.assertTrue(self.fits(cloud, spec(), BOTH))

    def test_what_a_claim_holds_is_not_changed_by_consuming_it(self) -> None:
        held = numa_pci_claims.of_request(spec(2, pinned=True, devices=1))
        before = json.dumps(held)
        state = numa_pci_claims.NodeState(
            nova_rows.numa_topology(topology(2, 1024)), None, 1.0, 1.0
        )
        self.assertTrue(numa_pci_claims.consume(state, held))
        self.assertEqual(before, json.dumps(held))
        self.assertFalse(
            numa_pci_claims.consume(state, numa_pci_claims.of_request(spec(2, memory=4096)))
        )
