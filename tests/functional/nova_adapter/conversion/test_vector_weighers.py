# SPDX-License-Identifier: Apache-2.0
"""Each weigher over columns weighs like Nova's own code, and so do all together.

Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

from __future__ import annotations

import collections
import logging
import os
import sys
from typing import Any

import fixtures
import hypothesis
import numpy as np
import testtools
from hypothesis import strategies as st
from nova import conf as nova_conf
from nova import exception, objects
from nova.scheduler import utils as nova_utils
from nova.scheduler import weights as nova_weights
from oslo_config import cfg

from nova_nodb_scheduler.scheduling import decision_settings, weighers
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
from tests.functional.nova_adapter.conversion import weigher_cases as cases

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "300"))
NOVAS = {each.__name__: each for each in nova_weights.all_weighers()}
OURS = weighers.BUILT_IN
#: Equal to this relative difference; the sums of equal shares are equal to the bit.
TOLERANCE = 1e-9

CASES = hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate),
)
WORLD = hypothesis.given(
    hosts=st.lists(cases.HOST, min_size=1, max_size=6),
    metadata=cases.AGGREGATES,
    asked=cases.ASKED,
    multipliers=st.fixed_dictionaries(dict.fromkeys(cases.MULTIPLIERS, cases.NUMBERS)),
    setting=st.lists(
        st.tuples(st.sampled_from(cases.METRICS), st.sampled_from([0.0, -1.0, 0.3])), max_size=3
    ),
    required=st.booleans(),
    with_metrics_filter=st.booleans(),
)


class Overrides(fixtures.Fixture):
    """Settings for one test. A reset at its end would forget which files the process has read."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._names: set[tuple[str, str]] = set()

    def _setUp(self) -> None:
        self.addCleanup(self._clear)

    def config(self, group: str, **values: Any) -> None:
        for name, value in values.items():
            self._conf.set_override(name, value, group)
            self._names.add((name, group))

    def _clear(self) -> None:
        for name, group in self._names:
            self._conf.clear_override(name, group)


class World:
    """One drawn case, as Nova and as ours see it."""

    def __init__(
        self,
        conf: Overrides,
        hosts: list[cases.Host],
        metadata: list[dict[str, str]],
        asked: cases.Asked,
        multipliers: dict[str, float],
        setting: list[tuple[str, float]],
        required: bool,
        with_metrics_filter: bool,
    ) -> None:
        multipliers = {
            name: abs(value) if name in cases.NOT_NEGATIVE else value
            for name, value in multipliers.items()
        }
        for name, value in multipliers.items():
            if name == "metrics_weight_multiplier":
                conf.config(group="metrics", weight_multiplier=value)
            else:
                conf.config(group="filter_scheduler", **{name: value})
        conf.config(
            group="metrics",
            weight_setting=[f"{name}={ratio}" for name, ratio in setting],
            required=required,
        )
        self.states = [
            cases.host_state(number, host, cases.nova_aggregates(metadata))
            for number, host in enumerate(hosts)
        ]
        self.spec = cases.request_spec(asked)
        self.frame, self.rows = cases.frame(hosts, self.states, metadata)
        self.request = cases.request(asked)
        self.settings = decision_settings.SchedulingOptions(
            enabled_filters=("MetricsFilter",) if with_metrics_filter else (),
            metrics_weight_setting=tuple(setting),
            metrics_required=required,
            **multipliers,
        )
        # A host that lacks a required metric does not pass that filter.
        if with_metrics_filter and required and not asked.forced:
            wanted = {name for name, _ratio in setting}
            passed = [
                wanted <= {metric.name for metric in state.metrics or ()} for state in self.states
            ]
            self.states = [s for s, ok in zip(self.states, passed, strict=True) if ok]
            self.rows = [r for r, ok in zip(self.rows, passed, strict=True) if ok]

    def weighed_by_nova(self, weigher: Any) -> list[tuple[float, float]]:
        """Return (floored raw weight, multiplier) of each host."""
        weighed = [nova_weights.WeighedHost(state, 0.0) for state in self.states]
        return [
            (raw, weigher.weight_multiplier(state))
            for raw, state in zip(
                weigher.weigh_objects(weighed, self.spec), self.states, strict=True
            )
        ]

    def weighed_by_us(self, weigher: plugin_contract.Weigher) -> list[tuple[float, float]]:
        """Return the same of ours, asked for all rows and checked against asking for some."""
        found = []
        for rows, picked in ((slice(None), self.rows), (np.array(self.rows, np.intp), slice(None))):
            raw = weigher.raw(self.request, self.frame, rows)[picked]
            if weigher.minval is not None:
                raw = np.maximum(raw, weigher.minval)
            multiplier = weigher.multiplier(self.request, self.frame, rows)
            if isinstance(multiplier, np.ndarray):
                multiplier = multiplier[picked]
            each = np.broadcast_to(multiplier, raw.shape)
            found.append(list(zip(raw.tolist(), each.tolist(), strict=True)))
        if found[0] != found[1]:
            raise AssertionError(f"{weigher.name}: all rows {found[0]}, some {found[1]}")
        return found[0]


def shares(weighed: list[tuple[float, float]], weigher: Any) -> list[float]:
    """Return each host's share of the sum, plainly."""
    raw = [each for each, _multiplier in weighed]
    if not raw:
        return []
    low = min(raw) if weigher.minval is None else float(weigher.minval)
    high = max(raw) if weigher.maxval is None else float(weigher.maxval)
    if low == high:
        return [0.0] * len(raw)
    return [multiplier * ((each - low) / (high - low)) for each, multiplier in weighed]


def report(reached: collections.Counter[str]) -> None:
    """Say in the test's output what the drawn cases reached."""
    sys.stdout.write(f"weigher cases: {dict(sorted(reached.items()))}\n")


def differs(one: float, other: float) -> bool:
    return abs(one - other) > TOLERANCE * max(abs(one), abs(other))


class WeigherCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        self.useFixture(fixtures.FakeLogger(level=logging.ERROR))
        self.conf = self.useFixture(Overrides(nova_conf.CONF))

    def difference(self, world: World, ours: plugin_contract.Weigher, theirs: Any) -> str | None:
        """Compare one weigher; return what differs, or None."""
        key = ours.key(world.request, world.frame)
        if key is plugin_contract.OnHostObjects.NEEDED:
            return None
        expected = world.weighed_by_nova(theirs)
        if key is None:
            found = [(0.0, 0.0)] * len(expected)
            if any(shares(expected, theirs)):
                return f"{ours.name} claims to weigh nothing, Nova has {expected}"
            return None
        hash(key)
        found = world.weighed_by_us(ours)
        for one, other in zip(expected, found, strict=True):
            if differs(one[0], other[0]) or differs(one[1], other[1]):
                return f"{ours.name} has {found}, Nova has {expected}"
        return None


class EachWeigherTest(WeigherCase):
    def test_every_weigher_of_nova_has_one_of_ours(self) -> None:
        self.assertEqual(set(NOVAS), set(OURS))
        for name, theirs in NOVAS.items():
            self.assertEqual((theirs.minval, theirs.maxval), (OURS[name].minval, OURS[name].maxval))

    def test_raw_weights_and_multipliers_are_novas(self) -> None:
        reached: collections.Counter[str] = collections.Counter()

        @CASES
        @WORLD
        def check(**drawn: Any) -> None:
            world = World(self.conf, **drawn)
            for name, made in OURS.items():
                ours, theirs = made(world.settings), NOVAS[name]()
                if name == "ImagePropertiesWeigher":
                    self._check_image_properties(world, ours)
                    continue
                try:
                    self.assertIsNone(self.difference(world, ours, theirs))
                except exception.ComputeHostMetricNotFound:
                    self.fail("Nova raises, we weigh")
                key = ours.key(world.request, world.frame)
                if key is plugin_contract.OnHostObjects.NEEDED:
                    reached[f"{name} left to Nova"] += 1
                elif key is None:
                    reached[f"{name} spared"] += 1
                elif len(set(shares(world.weighed_by_us(ours), ours))) > 1:
                    reached[name] += 1

        check()
        report(reached)
        for name in OURS:
            if name != "ImagePropertiesWeigher":
                self.assertGreater(reached[name], 0, name)
                self.assertGreater(reached[f"{name} spared"], 0, name)
        self.assertGreater(reached["MetricsWeigher left to Nova"], 0)
        self.assertEqual(0, reached["PCIWeigher left to Nova"])

    def _check_image_properties(self, world: World, ours: plugin_contract.Weigher) -> None:
        multiplier = world.settings.image_props_weight_multiplier
        if ours.key(world.request, world.frame) is plugin_contract.OnHostObjects.NEEDED:
            self.assertNotEqual(0.0, multiplier)
            self.assertTrue(world.request.image and world.request.image.properties)
        elif multiplier == 0.0:
            expected = world.weighed_by_nova(NOVAS["ImagePropertiesWeigher"]())
            self.assertFalse(any(shares(expected, ours)))

    def test_a_weigher_that_forgets_the_ratio_is_found(self) -> None:
        class Broken(OURS["CPUWeigher"]):  # type: ignore[misc]
            def raw(self, request: Any, frame: Any, rows: Any) -> Any:
                return (frame.vcpus - frame.vcpus_used)[rows].astype(float)

        self._assert_found(Broken, NOVAS["CPUWeigher"])

    def test_a_weigher_that_passes_over_aggregates_is_found(self) -> None:
        class Broken(OURS["RAMWeigher"]):  # type: ignore[misc]
            def multiplier(self, request: Any, frame: Any, rows: Any) -> Any:
                return self._settings.ram_weight_multiplier

        self._assert_found(Broken, NOVAS["RAMWeigher"])

    def _assert_found(self, broken: type[plugin_contract.Weigher], theirs: Any) -> None:
        @CASES
        @WORLD
        def check(**drawn: Any) -> None:
            world = World(self.conf, **drawn)
            self.assertIsNone(self.difference(world, broken(world.settings), theirs()))

        self.assertRaises(AssertionError, check)


class AllWeighersTest(WeigherCase):
    def test_the_sum_of_the_shares_is_novas_weight(self) -> None:
        seen: collections.Counter[str] = collections.Counter()

        @CASES
        @WORLD
        def check(**drawn: Any) -> None:
            world = World(self.conf, **drawn)
            handler = nova_weights.HostWeightHandler()
            chosen = [
                (OURS[each.__name__](world.settings), each())
                for each in handler.get_matching_classes(["nova.scheduler.weights.all_weighers"])
            ]
            pairs = [
                (ours, theirs)
                for ours, theirs in chosen
                if ours.key(world.request, world.frame) is not plugin_contract.OnHostObjects.NEEDED
                and ours.name != "ImagePropertiesWeigher"
            ]
            weighed = handler.get_weighed_objects(
                [theirs for _ours, theirs in pairs], world.states, world.spec
            )
            sums = [0.0] * len(world.rows)
            for ours, _theirs in pairs:
                if len(sums) > 1 and ours.key(world.request, world.frame) is not None:
                    each = shares(world.weighed_by_us(ours), ours)
                    sums = [total + share for total, share in zip(sums, each, strict=True)]
            by_node = {
                state.nodename: total for state, total in zip(world.states, sums, strict=True)
            }
            for host in weighed:
                total = by_node[host.obj.nodename]
                self.assertFalse(differs(host.weight, total), (host.weight, total))
                seen["equal to the bit" if host.weight == total else "close"] += 1
            seen["told apart"] += len(set(sums)) > 1

        check()
        report(seen)
        self.assertGreater(seen["told apart"], EXAMPLES // 10)
        self.assertEqual(0, seen["close"])


class MultiplierTest(WeigherCase):
    def test_infinite_multipliers_are_novas_too(self) -> None:
        aggregates = [{"cross_cell_move_weight_multiplier": "inf"}, {}, {}, {}]
        state = cases.nova_aggregates(aggregates)
        weigher = OURS["CrossCellWeigher"](decision_settings.SchedulingOptions())
        drawn = cases.Host(
            cases.CELLS[0], 0, 0, 0, 0, 1.0, 0, 0, 0, 0, None, None, frozenset(), frozenset({0})
        )
        states = [cases.host_state(0, drawn, state)]
        frame, rows = cases.frame([drawn], states, aggregates)
        request = cases.request(cases.Asked(None, frozenset(), None, False, False, None, False))
        self.assertIsNotNone(weigher.key(request, frame))
        found = weigher.multiplier(request, frame, np.array(rows))
        expected = nova_utils.get_weight_multiplier(
            states[0], "cross_cell_move_weight_multiplier", 1.0
        )
        self.assertEqual([expected], np.asarray(found).tolist())
