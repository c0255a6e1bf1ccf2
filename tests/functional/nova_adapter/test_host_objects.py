# SPDX-License-Identifier: Apache-2.0
"""Decisions from memory in which Nova's own filters and weighers run, or the operator's."""

from __future__ import annotations

import logging
from typing import Any

from nova import objects

from tests.functional.nova_adapter import cloud, own_plugins, test_memory_decisions

OWN = "tests.functional.nova_adapter.own_plugins"


class HostObjectsCase(test_memory_decisions.MemoryDecisionsCase):
    """Hosts alike but for their memory: h0 has the least left, h5 the most."""

    FILTERS: tuple[str, ...] = ()
    WEIGHERS: tuple[str, ...] = ()
    HOSTS = tuple(
        (
            cloud.CELL1,
            f"h{number}",
            4,
            {"free_ram_mb": 8192 + number, "stats": {"threads": "many" if number == 1 else "8"}},
        )
        for number in range(6)
    )

    def setUp(self) -> None:
        group = "filter_scheduler"
        own = [f"{OWN}.{name}" for name in self.FILTERS]
        self.override("available_filters", ["nova.scheduler.filters.all_filters", *own], group)
        enabled = ["ComputeFilter", "ComputeCapabilitiesFilter", *self.FILTERS]
        self.override("enabled_filters", enabled, group)
        own = [f"{OWN}.{name}" for name in self.WEIGHERS]
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
    FILTERS = ("StumblingFilter",)

    def test_an_operators_filter_that_raises_fails_the_request_and_is_named(self):
        line = self.failure(own_plugins.Stumbled, scheduler_hints={"stumble_at": ["h2"]})
        self.assertIn("Filter StumblingFilter failed at host (h2, node-h2)", line)


class StumblingWeigherTest(HostObjectsCase):
    WEIGHERS = ("StumblingWeigher",)

    def test_an_operators_weigher_that_raises_fails_the_request_and_is_named(self):
        line = self.failure(own_plugins.Stumbled, scheduler_hints={"stumble_at": ["h2"]})
        self.assertIn("Weigher StumblingWeigher failed at host (h2, node-h2)", line)

    def test_so_does_one_that_raises_for_its_multiplier(self):
        line = self.failure(own_plugins.Stumbled, scheduler_hints={"stumble_on": ["h3"]})
        self.assertIn("Weigher StumblingWeigher failed at host (h3, node-h3)", line)


class FirstTwoFilterTest(HostObjectsCase):
    FILTERS = ("FirstTwoFilter",)

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
