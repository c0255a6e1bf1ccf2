# SPDX-License-Identifier: Apache-2.0
"""The example of the plugin authors' page does what the page says."""

from __future__ import annotations

import configparser
import pathlib
from typing import Any

import numpy as np
import testtools

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
from tests.unit.scheduling import installed

EXAMPLES = pathlib.Path(__file__).resolve().parents[4] / "doc/source/contributor/examples"
SMALL = requests.Request(flavor=requests.Flavor(memory_mb=2048))
LARGE = requests.Request(flavor=requests.Flavor(memory_mb=65536))


class WorkedExampleTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        config = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        config.optionxform = str  # type: ignore[assignment,method-assign]
        config.read(EXAMPLES / "setup.cfg")
        self.useFixture(
            installed.InstalledPackage(
                "example_site",
                (EXAMPLES / "example_site.py").read_text(),
                config["options.entry_points"],
            )
        )
        self.settings = decision_settings.SchedulingOptions()

        self.watts: dict[str, str] = {"a": "100", "b": "250.5"}
        self.frame = host_frame.HostFrame(
            attribute=lambda uuid, path: (
                self.watts.get(uuid) if path == ("stats", "watts") else None
            )
        )
        self.frame.set_aggregates(
            [
                host_facts.HostAggregate("g1", 1, "green", {"power_weight_multiplier": "3"}),
                host_facts.HostAggregate("g2", 2, "old", {"power_weight_multiplier": "none"}),
            ]
        )
        self.rows = [
            self.put("a", memory_mb=256 * 1024),
            self.put("b", memory_mb=512 * 1024, aggregates=("g1",)),
            self.put("c", memory_mb=1024 * 1024, aggregates=("g1", "g2")),
        ]

    def put(self, uuid: str, **values: Any) -> int:
        return self.frame.put(
            host_facts.HostFacts(uuid=uuid, cell="cell", host=uuid, node=uuid, **values)
        )

    def both_ways(self, function: Any, request: requests.Request) -> list[Any]:
        """Ask for all rows and for each alone; both must say the same."""
        every = function(request, self.frame, slice(None))[self.rows].tolist()
        alone = [function(request, self.frame, np.array([row]))[0] for row in self.rows]
        self.assertEqual(every, alone)
        return list(every)

    def test_small_servers_pass_by_the_biggest_hosts(self) -> None:
        found = plugin_contract.filter_class("BigHostsFilter")
        assert found is not None
        made = found(self.settings)
        self.assertEqual("small", made.key(SMALL, self.frame))
        self.assertEqual([True, False, False], self.both_ways(made.mask, SMALL))

    def test_other_servers_cost_the_filter_nothing(self) -> None:
        found = plugin_contract.filter_class("BigHostsFilter")
        assert found is not None
        self.assertIsNone(found(self.settings).key(LARGE, self.frame))

    def test_hosts_weigh_what_their_stats_and_aggregates_say(self) -> None:
        made = self.weigher()
        self.assertEqual("power", made.key(SMALL, self.frame))
        self.assertEqual([-100.0, -250.5, 0.0], self.both_ways(made.raw, SMALL))
        self.assertEqual([1.0, 3.0, 1.0], self.both_ways(made.multiplier, SMALL))

    def test_a_changed_host_changes_its_row(self) -> None:
        made = self.weigher()
        made.raw(SMALL, self.frame, slice(None))
        self.watts["b"] = "90"
        row = self.put("b", memory_mb=1024)
        self.assertEqual([-90.0], made.raw(SMALL, self.frame, np.array([row])).tolist())
        self.assertEqual([1.0], made.multiplier(SMALL, self.frame, np.array([row])).tolist())

    def weigher(self) -> plugin_contract.Weigher:
        found = plugin_contract.weigher_class("PowerWeigher")
        assert found is not None
        return found(self.settings)
