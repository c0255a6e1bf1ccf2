# SPDX-License-Identifier: Apache-2.0
"""Columns of NUMA cells and PCI pools refuse nobody whom Nova's own filters pass.

Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

from __future__ import annotations

import collections
import os
import unittest
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st
from nova import context as nova_context
from nova import objects
from nova.scheduler import host_manager as nova_host_manager
from nova.scheduler.filters import numa_topology_filter, pci_passthrough_filter

from nova_nodb_scheduler.nova_adapter.conversion import (
    nova_rows,
    numa_pci_claims,
    request_conversion,
)
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.filters import topology_filters
from nova_nodb_scheduler.scheduling.frame import frame_columns, host_facts, host_frame
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, node_facts, service_facts
from nova_nodb_scheduler.scheduling.pipeline import decision_steps, plugin_contract
from tests.functional.nova_adapter.conversion import topology_cases
from tests.unit.scheduling import hosts

NODE = "22222222-0000-0000-0000-000000000001"
FILTERS = (
    (topology_filters.NUMATopologyFilter, numa_topology_filter.NUMATopologyFilter),
    (topology_filters.PciPassthroughFilter, pci_passthrough_filter.PciPassthroughFilter),
)
RATIOS = st.sampled_from([1.0, 1.5, 4.0])
_MORE = os.environ.get("NODB_PROPERTY_EXAMPLES")
#: What is said of shares needs many cases.
EXAMPLES = int(_MORE or "400")
CASES = hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
FEWER_CASES = hypothesis.settings(CASES, max_examples=int(_MORE or "130"))


class TopologyRoomTest(unittest.TestCase):
    def setUp(self) -> None:
        objects.register_all()
        self.context: Any = nova_context.get_admin_context()
        #: Of each filter, (our screen, Nova) -> how often.
        self.seen: collections.Counter[tuple[str, bool, bool]] = collections.Counter()

    def node(self, row: dict[str, Any]) -> dict[str, Any]:
        whole = {"mapped": 1, "service_id": None, "disk_allocation_ratio": 1.0, **row}
        return hosts.node(NODE, **whole)

    def frame(self, state: dict[str, Any]) -> tuple[host_frame.HostFrame, int]:
        """Return a frame with the host, as the store would fill it."""
        frame = host_frame.HostFrame(
            attribute=lambda uuid, path: node_facts.attribute(uuid, state, path)
        )
        digest = node_facts.digest(NODE, state)
        assert isinstance(digest, bytes), digest
        service = service_facts.ServiceFacts(has_service=True)
        packed = node_facts.host_row(digest, node_facts.DefaultRatios(), service)
        numbers = frame_columns.numbers_of(packed)
        facts = host_facts.HostFacts(NODE, hosts.CELL, "h1", f"node-{NODE}", **numbers)
        return frame, frame.put(facts)

    def novas(self, state: dict[str, Any]) -> Any:
        """Return Nova's own state of the host."""
        cloud = hosts.Hosts()
        cloud.put(known_namespaces.COMPUTE_NODES, NODE, state)
        record = cloud.store.snapshot().namespace(known_namespaces.COMPUTE_NODES.name).get(NODE)
        assert record is not None
        node, text = nova_rows.compute_node(self.context, record)
        node.numa_topology = text
        made = nova_host_manager.HostState("h1", f"node-{NODE}", hosts.CELL)
        made.update(compute=node)
        return made

    def compare(self, state: dict[str, Any], spec: Any, *others: Any) -> list[tuple[bool, bool]]:
        """Return of each filter (whether the screen passes the host, whether Nova does)."""
        frame, row = self.frame(state)
        request = request_conversion.request(spec, None, [hosts.CELL])
        novas = self.novas(state)
        for other in others:
            try:
                numa_pci_claims.consume(novas, other)
            except (AttributeError, IndexError):
                # Nova cannot take anything of a cell without page sizes, nor look for
                # the sockets of a host without cells.
                hypothesis.reject()
        found = []
        for ours, theirs in FILTERS:
            own = ours(decision_settings.SchedulingOptions())
            screen = own.screen(request, frame)
            passes = True
            if screen is not None:
                self.assertIs(plugin_contract.OnHostObjects.NEEDED, own.key(request, frame))
                hash(screen)
                everything = own.mask(request, frame, slice(None))
                self.assertEqual((frame.rows, np.bool_), (*everything.shape, everything.dtype))
                passes = bool(everything[row])
                self.assertEqual([passes], own.mask(request, frame, np.array([row])).tolist())
            novas.allocation_candidates = [{"mappings": {}}]
            expected = bool(theirs().host_passes(novas, spec.obj_clone()))
            self.seen[own.name, passes, expected] += 1
            found.append((passes, expected))
        return found

    def rows(self, draw: Any) -> dict[str, Any]:
        return {
            "numa_topology": draw(topology_cases.topologies()),
            "pci_stats": draw(topology_cases.pools()),
            "cpu_allocation_ratio": draw(RATIOS),
            "ram_allocation_ratio": draw(RATIOS),
        }

    def test_whom_nova_passes_columns_pass(self) -> None:
        @CASES
        @hypothesis.given(st.data())
        def check(data: st.DataObject) -> None:
            state = self.node(self.rows(data.draw))
            for passes, expected in self.compare(state, data.draw(topology_cases.specs())):
                self.assertTrue(passes or not expected)

        check()
        for ours, _theirs in FILTERS:
            # Most of those whom Nova refuses are refused by columns.
            self.assertGreater(
                self.seen[ours.__name__, False, False], 4 * self.seen[ours.__name__, True, False]
            )
            self.assertGreater(self.seen[ours.__name__, True, True], EXAMPLES // 10)

    def test_so_they_do_beside_claims(self) -> None:
        """Claims only take away: what columns refuse without them, Nova refuses with them."""

        @FEWER_CASES
        @hypothesis.given(st.data())
        def check(data: st.DataObject) -> None:
            state = self.node(self.rows(data.draw))
            others = [
                numa_pci_claims.of_request(data.draw(topology_cases.specs()))
                for _ in range(data.draw(st.integers(1, 2)))
            ]
            found = self.compare(state, data.draw(topology_cases.specs()), *others)
            for passes, expected in found:
                self.assertTrue(passes or not expected)

        check()

    def test_one_cell_without_devices_is_told_exactly(self) -> None:
        @FEWER_CASES
        @hypothesis.given(st.data())
        def check(data: st.DataObject) -> None:
            state = self.node(self.rows(data.draw))
            spec = data.draw(topology_cases.specs())
            spec.pci_requests = objects.InstancePCIRequests(requests=[])
            hypothesis.assume(spec.numa_topology is None or len(spec.numa_topology.cells) == 1)
            if spec.numa_topology is not None:
                cell = spec.numa_topology.cells[0]
                # Where a name is asked for, Nova goes on with the size it found first.
                hypothesis.assume((cell.pagesize or 0) >= 0)
                # No API makes one with no pinned CPU, of which Nova finds no place to pin.
                hypothesis.assume(cell.cpu_policy != "mixed" or cell.pcpuset)
                # Where one CPU more is reserved, cores are packed otherwise.
                spec.numa_topology.emulator_threads_policy = None
            ((passes, expected), _devices) = self.compare(state, spec)
            self.assertEqual(expected, passes)

        check()

    def test_whoever_is_refused_first_is_not_asked_again_for_the_second_server(self) -> None:
        state = self.node({"numa_topology": None})
        frame, _row = self.frame(state)
        spec = fitted_spec()
        request = request_conversion.request(spec, None, [hosts.CELL])
        own = [ours(decision_settings.SchedulingOptions()) for ours, _theirs in FILTERS]
        for index, screens in ((0, ["NUMATopologyFilter", "PciPassthroughFilter"]), (1, [])):
            steps = decision_steps.steps(own, (), request, frame, index)
            self.assertEqual(screens, [each.name for each, _key in steps.filters])
            self.assertEqual(
                ("NUMATopologyFilter", "PciPassthroughFilter"), steps.filters_on_objects
            )

    def test_what_another_release_wrote_is_left_to_nova(self) -> None:
        legacy = '{"cells": [{"id": 0, "cpus": "0-1", "mem": {"total": 8}}]}'
        for text in (legacy, "{}", "[]", '{"nova_object.name": "NUMATopology"}'):
            frame, row = self.frame(self.node({"numa_topology": text}))
            request = request_conversion.request(fitted_spec(), None, [hosts.CELL])
            own = topology_filters.NUMATopologyFilter(decision_settings.SchedulingOptions())
            self.assertIsNotNone(own.screen(request, frame))
            self.assertTrue(own.mask(request, frame, np.array([row])).all())


def fitted_spec() -> Any:
    """Return a request for a pinned CPU and a device."""
    return objects.RequestSpec(
        flavor=objects.Flavor(
            vcpus=1, memory_mb=64, root_gb=1, ephemeral_gb=0, swap=0, extra_specs={}
        ),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        instance_uuid="99999999-0000-0000-0000-000000000001",
        numa_topology=objects.InstanceNUMATopology(
            cells=[
                objects.InstanceNUMACell(
                    id=0, cpuset=set(), pcpuset={0}, memory=64, cpu_policy="dedicated"
                )
            ]
        ),
        pci_requests=objects.InstancePCIRequests(
            requests=[
                objects.InstancePCIRequest(
                    request_id=topology_cases.REQUEST_ID.format(0),
                    count=1,
                    alias_name="a",
                    spec=[{"vendor_id": "8086", "product_id": "1520"}],
                    numa_policy="legacy",
                )
            ]
        ),
    )
