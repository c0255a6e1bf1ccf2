# SPDX-License-Identifier: Apache-2.0
"""Several schedulers grant NUMA cells as one of Nova's would: in turn."""

from __future__ import annotations

import json
import unittest
from collections.abc import Mapping, Sequence
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.scheduler import host_manager as nova_host_manager
from nova.scheduler.filters import numa_topology_filter

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.conversion import nova_rows, numa_pci_claims
from nova_nodb_scheduler.nova_adapter.reads import host_manager, request_views
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.reservations import claim_fit
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from tests.unit.scheduling import claims, hosts

NODE = "22222222-0000-0000-0000-000000000001"
FILTERS = ("NUMATopologyFilter", "PciPassthroughFilter")


def topology(
    *pinnable: int, shared: int = 0, physnets: Sequence[str] = (), pages: bool = True
) -> str:
    """Return a host's cells by how many CPUs may be pinned, and which network each is near.

    :param shared: how many CPUs of each cell are shared
    :param pages: whether it tells sizes of pages
    """
    cells = []
    for number, count in enumerate(pinnable):
        cpus = set(range(number * 16, number * 16 + count))
        floating = set(range(number * 16 + 8, number * 16 + 8 + shared))
        cells.append(
            objects.NUMACell(
                id=number,
                socket=0,
                cpuset=floating,
                pcpuset=cpus,
                memory=4096,
                cpu_usage=0,
                memory_usage=0,
                mempages=[objects.NUMAPagesTopology(size_kb=4, total=4096 * 256, used=0)]
                if pages
                else [],
                pinned_cpus=set(),
                siblings=[{cpu} for cpu in cpus | floating],
                network_metadata=objects.NetworkMetadata(
                    physnets={physnets[number]} if physnets else set(), tunneled=False
                ),
            )
        )
    return str(objects.NUMATopology(cells=cells)._to_json())


def spec(pinned: int, *, physnet: str | None = None) -> Any:
    """Return a request for a server of one cell with so many pinned CPUs."""
    made = objects.RequestSpec(
        flavor=objects.Flavor(
            vcpus=pinned, memory_mb=64, root_gb=1, ephemeral_gb=0, swap=0, extra_specs={}
        ),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        instance_uuid="99999999-0000-0000-0000-000000000001",
        pci_requests=objects.InstancePCIRequests(requests=[]),
        numa_topology=objects.InstanceNUMATopology(
            cells=[
                objects.InstanceNUMACell(
                    id=0,
                    cpuset=set(),
                    pcpuset=set(range(pinned)),
                    memory=64,
                    cpu_policy="dedicated",
                )
            ]
        ),
    )
    if physnet is not None:
        made.network_metadata = objects.NetworkMetadata(physnets={physnet}, tunneled=False)
    return made


def shared_spec(cpus: int) -> Any:
    """Return a request for a server of one cell whose CPUs are shared."""
    made = spec(cpus)
    made.numa_topology.cells[0].cpuset = made.numa_topology.cells[0].pcpuset
    made.numa_topology.cells[0].pcpuset = set()
    made.numa_topology.cells[0].cpu_policy = None
    return made


class ClaimsInTurnTest(unittest.TestCase):
    def setUp(self) -> None:
        objects.register_all()
        self.context: Any = nova_context.get_admin_context()
        #: How often its shared CPUs may be given.
        self.ratio = 16.0

    def cloud(self, text: str, held: Mapping[str, Any]) -> hosts.Hosts:
        """Return a host with claims by consumer, in the order in which they were granted."""
        made = hosts.Hosts()
        row = {
            "mapped": 1,
            "service_id": None,
            "cpu_allocation_ratio": self.ratio,
            "disk_allocation_ratio": 1.0,
        }
        made.put(
            known_namespaces.COMPUTE_NODES,
            NODE,
            hosts.node(NODE, **row, numa_topology=text),
        )
        # Claims come back through JSON.
        known = {
            consumer: model.HeldClaim.from_state(
                json.loads(json.dumps(claims.held(_share(each)).to_state()))
            )
            for consumer, each in held.items()
        }
        made.put(known_namespaces.CLAIM_RECORDS, NODE, claims.record(NODE, known))
        return made

    def is_granted(self, text: str, held: Mapping[str, Any], wanted: Any) -> bool:
        snapshot = self.cloud(text, held).store.snapshot()
        fitting = numa_pci_claims.NumaPciFitting(snapshot, FILTERS, self.context)
        fits = claim_fit.make_fits(snapshot, claim_fit.InstanceLimits(), fitted=fitting.fits)
        record = snapshot.namespace(known_namespaces.CLAIM_RECORDS.name).digest(NODE)
        return fits(
            model.Claim("me", NODE, {}, node=_share(wanted)), record or model.ClaimRecord(NODE)
        )

    def is_passed(self, text: str, held: Mapping[str, Any], wanted: Any) -> bool:
        """Say whether Nova's filter passes the host as a request sees it beside claims."""
        view = request_views.RequestView(
            request_views.MemoryReads(
                self.cloud(text, held).store.snapshot(),
                1,
                request_views.BuiltObjects(),
                self.context,
            ),
            state_proof.StateProof({}),
            (hosts.CELL,),
            lambda scope, reason: None,
        )
        with request_views.working_on(view):
            (node,) = view.reads.compute_nodes(hosts.CELL, None)
            state = host_manager.HostState("h1", f"node-{NODE}", hosts.CELL)
            state.update(compute=node)
            return _passes(state, wanted)

    def is_passed_by_nova(self, text: str, before: Sequence[Any], wanted: Any) -> bool:
        """Say the same of Nova's own host state, which took some servers in turn."""
        state = self.novas(text)
        for each in before:
            mine = each.obj_clone()
            self.assertTrue(_passes(state, mine))
            state.consume_from_request(mine)
        return _passes(state, wanted)

    def novas(self, text: str) -> Any:
        """Return Nova's own host state, without claims."""
        record = self.cloud(text, {}).store.snapshot()
        found = record.namespace(known_namespaces.COMPUTE_NODES.name).get(NODE)
        assert found is not None
        node, node.numa_topology = nova_rows.compute_node(self.context, found)
        state = nova_host_manager.HostState("h1", f"node-{NODE}", hosts.CELL)
        state.update(compute=node)
        return state

    def check(self, text: str, held: Mapping[str, Any], wanted: Any, *, fits: bool) -> None:
        self.assertEqual(fits, self.is_passed_by_nova(text, list(held.values()), wanted))
        self.assertEqual(fits, self.is_passed(text, held, wanted), "the host as a request sees it")
        self.assertEqual(fits, self.is_granted(text, held, wanted), "the claim")

    def test_claims_are_consumed_in_the_order_in_which_they_were_granted(self) -> None:
        """In another order one of them fits nowhere, takes nothing, and others get its CPUs."""
        text = topology(3, 2)
        granted: dict[str, Any] = {}
        # The first takes the whole greater cell. Were the second, whose name comes first, put
        # there before it, three CPUs would be left in no cell.
        for consumer, pinned in (("b", 3), ("a", 1)):
            self.check(text, granted, spec(pinned), fits=True)
            granted[consumer] = spec(pinned)
        # Five CPUs, four of them taken.
        self.check(text, granted, spec(2), fits=False)
        self.check(text, granted, spec(1), fits=True)

    def test_a_claim_keeps_the_cells_near_its_network(self) -> None:
        """Without its network the last CPU near it would be granted twice."""
        text = topology(1, 2, physnets=("near", "far"))
        self.check(text, {}, spec(1, physnet="near"), fits=True)
        held = {"a": spec(1, physnet="near")}
        self.check(text, held, spec(1, physnet="near"), fits=False)
        self.check(text, held, spec(2, physnet="far"), fits=True)
        self.check(text, held, spec(2), fits=True)

    def test_a_forced_server_takes_what_it_takes_beyond_the_ratio(self) -> None:
        """No filter looked at it, and nova-compute takes it."""
        text = topology(2, shared=2)
        self.ratio = 1.0
        state = self.novas(text)
        for each, is_forced in ((shared_spec(1), False), (shared_spec(2), True)):
            self.assertEqual(not is_forced, _passes(state, each))
            state.limits = {} if is_forced else state.limits
            state.consume_from_request(each)
        held = {"a": shared_spec(1), "b": shared_spec(2)}
        # Three of two CPUs are taken, pinned ones apart.
        for wanted, fits in ((shared_spec(1), False), (spec(2), True)):
            self.assertEqual(fits, _passes(state, wanted.obj_clone()))
            self.assertEqual(fits, self.is_passed(text, held, wanted))
            self.assertEqual(fits, self.is_granted(text, held, wanted))

    def test_a_claim_that_nova_cannot_consume_fails_nobody_else(self) -> None:
        """Of a host that tells no page sizes Nova logs that, and leaves the host as it was."""
        text = topology(2, pages=False)
        self.check(text, {}, spec(1), fits=True)
        self.check(text, {"a": spec(1)}, spec(1), fits=True)

    def test_a_claim_of_cells_is_the_same_again_once_it_was_written(self) -> None:
        """Nova writes sets as tuples in any order, which come back as lists."""
        wanted = spec(3, physnet="near")
        wanted.network_metadata.physnets |= {"far", "farther", "elsewhere"}
        again = wanted.obj_clone()
        held = claims.held(_share(wanted), model.ClaimState.CONFIRMED)
        state = json.loads(json.dumps(claims.record(NODE, {"me": held})))
        taking = claim_rules.Taking(
            ids={"me": "another"},
            writer="writer",
            fits=lambda claim, record: True,
            view=records.Cursor("e", 9),
            now_seconds=0.0,
            deadline_seconds=60.0,
        )
        record = model.ClaimRecord.from_state(NODE, state, 5)
        claim = model.Claim("me", NODE, {}, node=_share(again))
        (answer,) = claim_rules.take_each(record, [claim], taking).answer
        self.assertEqual(model.Granted(claim, "id", model.ClaimState.CONFIRMED), answer)


def _share(request: Any) -> model.NodeShare:
    return model.NodeShare(
        vcpus=request.flavor.vcpus,
        memory_mb=request.flavor.memory_mb,
        disk_gb=1,
        instances=1,
        io_operations=1,
        fitted=numa_pci_claims.of_request(request),
    )


def _passes(state: Any, request: Any) -> bool:
    state.allocation_candidates = [{"mappings": {}}]
    return bool(numa_topology_filter.NUMATopologyFilter().host_passes(state, request))
