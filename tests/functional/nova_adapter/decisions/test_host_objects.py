# SPDX-License-Identifier: Apache-2.0
"""Decisions from memory in which Nova's own filters and weighers run, or the operator's."""

from __future__ import annotations

import logging
import uuid
from typing import Any
from unittest import mock

from nova import objects
from nova.scheduler.filters import pci_passthrough_filter

from tests.functional.nova_adapter import cloud, own_plugins
from tests.functional.nova_adapter.decisions import test_memory_decisions

OWN = "tests.functional.nova_adapter.own_plugins"


def _pools(count: int) -> Any:
    pool = objects.PciDevicePool(
        product_id="1520", vendor_id="8086", numa_node=None, count=count, tags={}
    )
    return objects.PciDevicePoolList(objects=[pool])


class HostObjectsCase(test_memory_decisions.MemoryDecisionsCase):
    """Hosts alike but for their memory: h5 has the most left, and h0 is busy besides."""

    FILTERS: tuple[str, ...] = ("ComputeFilter", "ComputeCapabilitiesFilter")
    OWN_FILTERS: tuple[str, ...] = ()
    OWN_WEIGHERS: tuple[str, ...] = ()
    STATS = ({"io_workload": "5"}, {"threads": "many"}, {}, {}, {}, {})
    HOSTS = tuple(
        (cloud.CELL1, f"h{number}", 4, {"free_ram_mb": 8192 + number, "stats": stats})
        for number, stats in enumerate({"threads": "8", **each} for each in STATS)
    )

    def setUp(self) -> None:
        group = "filter_scheduler"
        own = [f"{OWN}.{name}" for name in self.OWN_FILTERS]
        self.override("available_filters", ["nova.scheduler.filters.all_filters", *own], group)
        self.override("enabled_filters", [*self.FILTERS, *self.OWN_FILTERS], group)
        own = [f"{OWN}.{name}" for name in self.OWN_WEIGHERS]
        self.override("weight_classes", ["nova.scheduler.weights.all_weighers", *own], group)
        super().setUp()

    def failure(self, expected: type[Exception], **fields: Any) -> str:
        """Return what is logged of a request that fails; nothing else comes of it."""
        with self.assertLogs("nova_nodb_scheduler.nova_adapter", logging.ERROR) as logged:
            self.assertRaises(expected, self.select, **fields)
        self.assertEqual({}, dict(self.calls))
        self.assertEqual({"memory": 1}, self.runtime.candidates())
        self.assertEqual(0, len(self.runtime.decisions.reservations))
        (line,) = logged.output
        return line


class NovasOwnTest(HostObjectsCase):
    def test_a_filter_of_novas_that_raises_at_a_middling_host_fails_the_request(self):
        line = self.failure(ValueError, extra_specs={"capabilities:threads": ">= 4"})
        self.assertIn("Filter ComputeCapabilitiesFilter failed at host (h1, node-h1)", line)


class StumblingFilterTest(HostObjectsCase):
    OWN_FILTERS = ("StumblingFilter",)

    def test_an_operators_filter_that_raises_fails_the_request_and_is_named(self):
        line = self.failure(own_plugins.Stumbled, scheduler_hints={"stumble_at": ["h2"]})
        self.assertIn("Filter StumblingFilter failed at host (h2, node-h2)", line)


class StumblingWeigherTest(HostObjectsCase):
    OWN_WEIGHERS = ("StumblingWeigher",)

    def test_an_operators_weigher_that_raises_fails_the_request_and_is_named(self):
        line = self.failure(own_plugins.Stumbled, scheduler_hints={"stumble_at": ["h2"]})
        self.assertIn("Weigher StumblingWeigher failed at host (h2, node-h2)", line)

    def test_so_does_one_that_raises_for_its_multiplier(self):
        line = self.failure(own_plugins.Stumbled, scheduler_hints={"stumble_on": ["h3"]})
        self.assertIn("Weigher StumblingWeigher failed at host (h3, node-h3)", line)


class FirstTwoFilterTest(HostObjectsCase):
    OWN_FILTERS = ("FirstTwoFilter",)

    def test_a_filter_that_takes_its_hosts_as_a_list_finds_one(self):
        _uuids, chosen = self.select()
        self.assertEqual(2, len(chosen[0]))
        self.assertEqual({"memory": 1}, self.runtime.candidates())


class ImagesTest(HostObjectsCase):
    """Servers of an image with a property stand on h1 and h4, two on the first."""

    HOSTS = tuple(
        (cloud.CELL2 if number % 2 else cloud.CELL1, f"h{number}", 4, {}) for number in range(6)
    )
    PLACES = ("h1", "h1", "h4")

    def setUp(self) -> None:
        self.override("image_props_weight_multiplier", 1000.0, "filter_scheduler")
        super().setUp()
        for host in self.PLACES:
            cell = next(cell for cell, name, *_ in self.HOSTS if name == host)
            self.instance(cell, host, system_metadata={"image_hw_machine_type": "q35"})
        self.reporter.flush()
        self.assertTrue(self.runtime.replicator.wait_until(self.synchronizer.head().version, 20))

    def chosen(self, **fields: Any) -> list[str]:
        properties = objects.ImageMetaProps(hw_machine_type="q35")
        fields["image"] = objects.ImageMeta(properties=properties)
        with self.statements() as statements:
            _uuids, chosen = self.select(**fields)
        self.assertEqual([], statements.seen)
        self.assertEqual({"memory"}, self.runtime.candidates().keys())
        return [each[0].service_host for each in chosen]

    def test_servers_of_the_image_are_found_without_a_statement(self):
        self.assertEqual(["h1"], self.chosen())
        self.assertEqual(["h4"], self.chosen(ignore_hosts=["h1"]))

    def test_so_they_are_for_several_servers(self):
        # Four times one VCPU: the last two do not fit on h1.
        chosen = self.chosen(servers=6)
        self.assertEqual(["h1"] * 4 + ["h4"] * 2, chosen)


class DevicesTest(HostObjectsCase):
    """All hosts have three PCI devices, and each a little more memory than the one before."""

    FILTERS = ("ComputeFilter", "PciPassthroughFilter")
    HOSTS = tuple(
        (cell, name, vcpus, {**more, "pci_device_pools": _pools(3)})
        for cell, name, vcpus, more in HostObjectsCase.HOSTS
    )

    def setUp(self) -> None:
        self.override("pci_weight_multiplier", 1000.0, "filter_scheduler")
        for name in ("cpu_weight_multiplier", "disk_weight_multiplier"):
            self.override(name, 0.0, "filter_scheduler")
        super().setUp()

    def chosen(self, servers: int) -> list[str]:
        wanted = objects.InstancePCIRequest(
            request_id=str(uuid.uuid4()),
            count=1,
            alias_name="a",
            spec=[{"vendor_id": "8086", "product_id": "1520"}],
            numa_policy="legacy",
        )
        devices = objects.InstancePCIRequests(requests=[wanted])
        _uuids, chosen = self.select(servers, pci_requests=devices)
        self.assertEqual({"memory": 1}, self.runtime.candidates())
        return [each[0].service_host for each in chosen]

    def asked(self) -> set[str]:
        """Place a server; return the hosts that Nova's filter was asked about."""
        asked = set()
        own = pci_passthrough_filter.PciPassthroughFilter.host_passes

        def host_passes(self, state, spec):
            asked.add(state.host)
            return own(self, state, spec)

        with mock.patch.object(
            pci_passthrough_filter.PciPassthroughFilter, "host_passes", host_passes
        ):
            self.assertEqual(["h5"], self.chosen(1))
        return asked

    def test_servers_of_one_request_share_a_host_while_it_has_devices(self):
        """Where one has taken a device, fewer are left, and Nova prefers those hosts."""
        self.assertEqual(["h5"] * 3 + ["h4"], self.chosen(4))

    def test_hosts_that_change_no_weight_are_not_asked_for_devices(self):
        # The best four, and the busiest.
        self.assertEqual({"h0", "h2", "h3", "h4", "h5"}, self.asked())


class LazyDevicesTest(DevicesTest):
    def setUp(self) -> None:
        self.override("host_objects", "lazy", "nodb_scheduler")
        super().setUp()

    def test_hosts_that_change_no_weight_are_not_asked_for_devices(self):
        self.assertEqual({"h2", "h3", "h4", "h5"}, self.asked())
