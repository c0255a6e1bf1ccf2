# SPDX-License-Identifier: Apache-2.0
"""Whatever the cluster, the settings and the request: the plugin decides as Nova does."""

from __future__ import annotations

import collections
import logging
import sys
from collections.abc import Sequence
from typing import Any

import hypothesis
from hypothesis import strategies as st
from nova import objects
from oslotest import base

from tests.differential import cases, comparing, coverage, plugin, real_placement, running, stock
from tests.differential.drawn import (
    cluster_strategies,
    dice,
    request_strategies,
    setting_strategies,
)


@st.composite
def scenes(
    draw: st.DrawFn, *always: str, scarce: bool = False
) -> tuple[
    cases.Cluster,
    setting_strategies.Settings,
    list[tuple[dice.Dice, request_strategies.Asked]],
]:
    """Draw a cluster, settings, and requests to one worker, each after something happened.

    :param always: the only filters; none given: any
    :param scarce: requests are for NUMA cells and PCI devices, which are nearly used up
    """
    cluster = draw(cluster_strategies.clusters(scarce=scarce))
    settings = draw(setting_strategies.settings(always))
    enabled = settings.get("filter_scheduler", "enabled_filters")
    one = st.tuples(dice.dice(), request_strategies.requests(enabled, fitted=scarce))
    asked: list[tuple[dice.Dice, request_strategies.Asked]] = []
    for rolled, wanted in draw(st.lists(one, min_size=1, max_size=4)):
        # What is asked again is answered from what was kept, changed hosts apart.
        again = bool(asked) and rolled.once_in(2)
        asked.append((rolled, asked[-1][1] if again else wanted))
    return cluster, settings, asked


#: Requests between two lines that say how far a long run is.
_REPORT_EVERY = 1000


class DecisionsCase(base.BaseTestCase):
    """Runs requests on both sides and counts what became of them."""

    #: Filled anew for each cluster; to start one takes longer than most tests.
    placement: real_placement.Placement

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.placement = real_placement.Placement()
        cls.addClassCleanup(cls.placement.stop)

    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        # Nova tells of every odd value, once a host and case.
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.reached = coverage.Coverage()

    def follow(
        self,
        cluster: cases.Cluster,
        settings: setting_strategies.Settings,
        asked: Sequence[tuple[dice.Dice, request_strategies.Asked]],
    ) -> None:
        """Have one worker decide some requests, and compare each with Nova.

        :raises Divergence: the first that differs
        """
        with stock.configured(settings), stock.databases_of(cluster) as held:
            worker = plugin.Plugin(cluster)
            for rolled, wanted in asked:
                cluster = cluster_strategies.edited(cluster, rolled)
                held.cluster = cluster
                worker.update(cluster)
                manager = stock.HostManager(cluster, self.reached)
                self.outcomes[self._decided(manager, worker, wanted)] += 1
                if self.outcomes.total() % _REPORT_EVERY == 0:
                    sys.stderr.write(f"{self.outcomes.total()} requests are alike so far\n")

    def _decided(
        self,
        manager: stock.HostManager,
        worker: plugin.Plugin,
        wanted: request_strategies.Asked,
    ) -> str:
        prepared = comparing.prepare(manager, wanted)
        if prepared.refused is not None:
            return f"refused: {prepared.refused}"
        return comparing.Case(manager, worker, prepared, wanted.servers, self.placement).run()

    def report(self) -> str:
        """Return the outcomes and the coverage as text."""
        lines = [f"{count:>8}  {what}" for what, count in self.outcomes.most_common()]
        return "\n".join([f"{self.outcomes.total():>8}  requests", *lines, self.reached.table()])


class DecisionsTest(DecisionsCase):
    def test_the_plugin_decides_as_nova_does(self) -> None:
        @running.settings(share=running.CLUSTER_SHARE)
        @hypothesis.given(scenes())
        def decide(scene: Any) -> None:
            self.follow(*scene)

        try:
            decide()
        finally:
            sys.stderr.write(f"{self.report()}\n")
        self.assertGreater(self.outcomes["placed"], self.outcomes.total() // 5)
        if running.LONG:
            self.assertEqual([], self.reached.missed())

    def test_so_it_does_where_cells_and_devices_are_nearly_used_up(self) -> None:
        """Most hosts fail, those with the extremes of weights among them."""

        @running.settings(share=running.CLUSTER_SHARE)
        @hypothesis.given(
            scenes("NUMATopologyFilter", "PciPassthroughFilter", "ComputeFilter", scarce=True)
        )
        def decide(scene: Any) -> None:
            self.follow(*scene)

        try:
            decide()
        finally:
            sys.stderr.write(f"{self.report()}\n")
        self.assertGreater(self.outcomes["placed"], self.outcomes.total() // 10)
