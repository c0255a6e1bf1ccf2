# SPDX-License-Identifier: Apache-2.0
"""Which of Nova's filters, and of the operator's, may be asked about some hosts only."""

from __future__ import annotations

import types
from collections.abc import Collection
from typing import Any

import testtools
from nova import objects
from nova.scheduler import filters, host_manager
from nova.scheduler.filters import (
    compute_capabilities_filter,
    json_filter,
    numa_topology_filter,
    pci_passthrough_filter,
)

from nova_nodb_scheduler.nova_adapter.decisions import host_objects


class OwnFilter(filters.BaseHostFilter):  # type: ignore[misc]
    def host_passes(self, host_state, filter_properties):
        return True


class LimitFilter(filters.BaseHostFilter):  # type: ignore[misc]
    def filter_all(self, filter_obj_list, spec_obj):
        return list(filter_obj_list)[:2]


class HostObjectsTest(testtools.TestCase):
    def test_who_may_raise_at_a_host_is_asked_about_each_unless_it_is_chosen_otherwise(self):
        enabled = [
            numa_topology_filter.NUMATopologyFilter(),
            pci_passthrough_filter.PciPassthroughFilter(),
            compute_capabilities_filter.ComputeCapabilitiesFilter(),
            json_filter.JsonFilter(),
            OwnFilter(),
            LimitFilter(),
        ]
        manager = types.SimpleNamespace(enabled_filters=enabled, weighers=[])
        own = host_objects.NovaHostObjects(manager, None, dict, list)
        for is_chosen, apart in (
            (False, [True, True, False, False, False, False]),
            (True, [True, True, True, True, True, False]),
        ):
            found = [own.is_apart(type(each).__name__, is_chosen=is_chosen) for each in enabled]
            self.assertEqual(apart, found)


class Watching(filters.BaseHostFilter):  # type: ignore[misc]
    """Remembers what it saw."""

    def __init__(self) -> None:
        self.saw: list[tuple[str, int, int, int]] = []

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        seen = (host_state.free_ram_mb, host_state.num_instances, host_state.num_io_ops)
        self.saw.append((host_state.host, *seen))
        return True


class ConsumingTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        self.made: list[str] = []
        self.watching = Watching()

    def objects_for(self, **fields: Any) -> host_objects.NovaHostObjects:
        spec = objects.RequestSpec(
            flavor=objects.Flavor(vcpus=1, memory_mb=512, root_gb=1, ephemeral_gb=0),
            **{"numa_topology": None, "pci_requests": None, "instance_group": None, **fields},
        )
        manager = types.SimpleNamespace(enabled_filters=[self.watching], weighers=[])
        return host_objects.NovaHostObjects(manager, spec, self.make_states, lambda uuid: [])

    def make_states(self, uuids: Collection[str]) -> dict[str, Any]:
        self.made += uuids
        states = {}
        for uuid in uuids:
            states[uuid] = host_manager.HostState(f"host-{uuid}", "node", "cell")
            states[uuid].free_ram_mb = 4096
            states[uuid].disk_mb_used = states[uuid].free_disk_mb = 0
            states[uuid].instances = {}
        return states

    def test_a_plain_server_makes_no_host_state(self) -> None:
        own = self.objects_for()
        for number in range(50):
            own.consume("a", f"server-{number}")
        self.assertEqual([], self.made)

    def test_whoever_looks_later_sees_all_that_was_taken(self) -> None:
        early, late = self.objects_for(), self.objects_for()
        early.filter("Watching", ["a", "b"], 0)
        self.watching.saw.clear()
        for own in (early, late):
            for number, uuid in enumerate(("a", "b", "a")):
                own.consume(uuid, f"server-{number}")
            own.filter("Watching", ["a", "b"], 3)
        seen = self.watching.saw
        self.assertEqual(seen[:2], seen[2:])
        self.assertEqual([("host-a", 3072, 2, 2), ("host-b", 3584, 1, 1)], seen[2:])

    def test_what_the_next_server_is_to_see_in_the_request_is_taken_at_once(self) -> None:
        group = objects.InstanceGroup(hosts=[])
        own = self.objects_for(instance_group=group)
        own.consume("a", "server-1")
        self.assertEqual((["a"], ["host-a"]), (self.made, group.hosts))
