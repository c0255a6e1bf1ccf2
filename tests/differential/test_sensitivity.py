# SPDX-License-Identifier: Apache-2.0
"""What is broken on purpose is found: the comparison is not blind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import hypothesis
import testtools
from testtools import matchers

from nova_nodb_scheduler.scheduling import filters, weighers
from nova_nodb_scheduler.scheduling.pipeline import candidates, shortlist
from tests.differential import comparing, test_decisions
from tests.differential.drawn import words

#: Cases in which a fault must show.
_CASES = 400


class SensitivityTest(test_decisions.DecisionsCase):
    def assert_found(self, *enabled: str, scarce: bool = False, seed: int | None = None) -> None:
        """Fail unless some case differs while these are the enabled filters.

        :param scarce: NUMA cells and PCI pools are nearly used up
        :param seed: one by which the fault shows early, among cases of which few show it
        """

        @hypothesis.settings(
            # What is scarce is refused by most that is drawn.
            max_examples=_CASES * (6 if scarce else 1),
            derandomize=True,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
            report_multiple_bugs=False,
        )
        @hypothesis.given(test_decisions.scenes(*enabled, scarce=scarce))
        def decide(scene: Any) -> None:
            self.follow(*scene)

        if seed is not None:
            decide = hypothesis.seed(seed)(decide)
        with testtools.ExpectedException(comparing.Divergence):
            decide()

    def break_mask(self, name: str) -> None:
        """Let a filter pass everybody."""
        own = filters.BUILT_IN[name]
        inner = own.mask

        def passes_all(self: Any, request: Any, frame: Any, rows: Any) -> Any:
            return inner(self, request, frame, rows) | True

        self.patch(own, "mask", passes_all)

    def break_raw(self, name: str, change: Callable[[Any], Any]) -> None:
        own = weighers.BUILT_IN[name]
        inner = own.raw
        self.patch(own, "raw", lambda self, *args: change(inner(self, *args)))

    def test_a_filter_that_passes_silent_hosts_is_found(self) -> None:
        self.break_mask("ComputeFilter")
        self.assert_found("ComputeFilter")

    def test_a_filter_that_forgets_aggregates_is_found(self) -> None:
        self.break_mask("AggregateMultiTenancyIsolation")
        self.assert_found("AggregateMultiTenancyIsolation")

    def test_a_filter_that_ignores_a_group_is_found(self) -> None:
        self.break_mask("ServerGroupAntiAffinityFilter")
        self.assert_found("ServerGroupAntiAffinityFilter")

    def test_a_weight_that_is_one_unit_off_is_found(self) -> None:
        self.break_raw("RAMWeigher", lambda raw: raw + (raw > 15_000))
        self.assert_found("AllHostsFilter")

    def test_a_weight_with_the_wrong_sign_is_found(self) -> None:
        self.break_raw("NumInstancesWeigher", lambda raw: -raw)
        self.assert_found("AllHostsFilter", seed=3)

    def refuse_more(self, name: str, column: Callable[[Any], Any]) -> None:
        """Let what spares Nova's own filter a question refuse hosts that this would pass."""
        own = filters.BUILT_IN[name]
        inner = own.mask

        def refuses(self: Any, request: Any, frame: Any, rows: Any) -> Any:
            return inner(self, request, frame, rows) & ~column(frame.topologies)[rows]

        self.patch(own, "mask", refuses)

    def test_hosts_refused_for_cells_that_would_do_are_found(self) -> None:
        self.refuse_more("NUMATopologyFilter", lambda known: known.cells.count == 4)
        self.assert_found("NUMATopologyFilter", scarce=True)

    def test_hosts_refused_for_devices_that_would_do_are_found(self) -> None:
        self.refuse_more("PciPassthroughFilter", lambda known: known.pools.counts.sum(axis=1) == 3)
        self.assert_found("PciPassthroughFilter", scarce=True)

    def test_an_extreme_of_a_host_that_fails_is_found(self) -> None:
        self.patch(shortlist.Shortlist, "_find_extremes", lambda own, asking: bool(asking))
        # Of the first seeds each but this needs dozens of cases, or hundreds.
        self.assert_found("NUMATopologyFilter", "PciPassthroughFilter", scarce=True, seed=11)

    def test_a_candidate_without_a_required_trait_is_found(self) -> None:
        inner = candidates.Candidates._passes

        def without_traits(own: Any, query: Any, frame: Any, rows: Any) -> Any:
            return inner(own, _forgetting_traits(query), frame, rows)

        self.patch(candidates.Candidates, "_passes", without_traits)
        self.assert_found("AllHostsFilter")

    def test_every_filter_and_weigher_of_nova_has_its_columns(self) -> None:
        """Else the test compares Nova with Nova."""
        self.assertThat(set(filters.BUILT_IN), matchers.Equals(set(words.FILTERS)))
        self.assertThat(set(weighers.BUILT_IN), matchers.Equals(set(words.WEIGHERS)))


def _forgetting_traits(query: Any) -> Any:
    return attrs.evolve(query, required_traits=frozenset(), root_required=frozenset())
