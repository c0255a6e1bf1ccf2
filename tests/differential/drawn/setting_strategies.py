# SPDX-License-Identifier: Apache-2.0
"""Strategies for Nova's configuration of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from hypothesis import strategies as st

from tests.differential.drawn import dice, words

_MULTIPLIERS = (1.0, 0.0, -1.0, 2.5, -3.0, 1e6, -1e6, 0.001)
_POSITIVE = (1.0, 0.0, 2.5, 1e6)

_ALL_FILTERS = "nova.scheduler.filters.all_filters"
_OWN_FILTER = "tests.differential.operators.OperatorsFilter"
_OWN_WEIGHER = "tests.differential.operators.OperatorsWeigher"

_WEIGHT_CLASSES = (
    ["nova.scheduler.weights.ram.RAMWeigher", "nova.scheduler.weights.cpu.CPUWeigher"],
    ["nova.scheduler.weights.all_weighers", _OWN_WEIGHER],
    [_OWN_WEIGHER],
)

_FILTER_SCHEDULER: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("host_subset_size", (1, 2, 3, 100)),
    ("shuffle_best_same_weighed_hosts", (True, False)),
    ("max_io_ops_per_host", (0, 1, 2, 4, 8)),
    ("max_instances_per_host", (1, 3, 50)),
    ("isolated_images", ([], [words.IMAGES[0]], list(words.IMAGES[:2]))),
    ("isolated_hosts", ([], [words.HOSTS[0]], list(words.HOSTS[:3]), ["h1"])),
    ("restrict_isolated_hosts_to_isolated_images", (True, False)),
    ("aggregate_image_properties_isolation_namespace", ("hw", "os")),
    ("aggregate_image_properties_isolation_separator", (".", "_")),
    ("image_properties_default_architecture", ("x86_64", "aarch64")),
    ("image_props_weight_setting", (["os_distro=2.0"], ["os_type=1", "os_distro=-3", "bad"], [])),
)

_METRICS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("weight_multiplier", _MULTIPLIERS),
    ("required", (True, False)),
    ("weight_of_unavailable", (-10000.0, 0.0, 5.0)),
)

_METRIC_SETTINGS = (
    [],
    ["cpu.frequency=1.0"],
    ["cpu.user.percent=-2.0", "cpu.frequency=0.001"],
    ["cpu.frequency=0.0", "numa.membw.max=3"],
    ["nonsense", "cpu.frequency=1.0"],
)

_SCHEDULER: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("limit_tenants_to_placement_aggregate", (True, False)),
    ("placement_aggregate_required_for_tenants", (True, False)),
    ("enable_isolated_aggregate_filtering", (True, False)),
    ("query_placement_for_image_type_support", (True, False)),
    ("image_metadata_prefilter", (True, False)),
)


@attrs.frozen
class Settings:
    """Options that differ from Nova's defaults, by (group, name)."""

    values: Mapping[tuple[str, str], Any] = attrs.field(factory=dict, hash=False)

    def get(self, group: str, name: str, default: Any = None) -> Any:
        return self.values.get((group, name), default)


@st.composite
def settings(draw: st.DrawFn, always: Sequence[str] = ()) -> Settings:
    """Draw a configuration: any filters in any order, and a few options not as shipped.

    :param always: the only filters; none given: any
    """
    values: dict[tuple[str, str], Any] = {}
    few = draw(st.booleans())
    chosen = draw(
        st.lists(st.sampled_from(words.FILTERS), unique=True, min_size=1, max_size=3 if few else 12)
    )
    chosen = list(always) or chosen
    values["filter_scheduler", "enabled_filters"] = chosen
    for name, choices in draw(st.lists(st.sampled_from(_FILTER_SCHEDULER), max_size=4)):
        values["filter_scheduler", name] = draw(st.sampled_from(choices))
    for name in draw(st.lists(st.sampled_from(words.MULTIPLIERS[:-1]), max_size=3)):
        positive = name.startswith(("soft", "pci"))
        values["filter_scheduler", name] = draw(
            st.sampled_from(_POSITIVE if positive else _MULTIPLIERS)
        )
    rolled = draw(dice.dice())
    if rolled.once_in(12) and not always:
        values["filter_scheduler", "available_filters"] = [_ALL_FILTERS, _OWN_FILTER]
        chosen.insert(rolled.one(range(len(chosen) + 1)), "OperatorsFilter")
    if rolled.once_in(12):
        values["filter_scheduler", "weight_classes"] = rolled.one(_WEIGHT_CLASSES)
    if rolled.once_in(3):
        values["filter_scheduler", "image_props_weight_multiplier"] = rolled.one(_MULTIPLIERS)
    if "IsolatedHostsFilter" in chosen:
        values["filter_scheduler", "isolated_hosts"] = list(rolled.some(words.HOSTS[:6], 3))
        values["filter_scheduler", "isolated_images"] = list(rolled.some(words.IMAGES, 2))
    if rolled.once_in(2):
        values["metrics", "weight_setting"] = rolled.one(_METRIC_SETTINGS)
        values["metrics", "required"] = False
        for name, choices in draw(st.lists(st.sampled_from(_METRICS), max_size=2)):
            values["metrics", name] = draw(st.sampled_from(choices))
    for name, choices in draw(st.lists(st.sampled_from(_SCHEDULER), max_size=2)):
        values["scheduler", name] = draw(st.sampled_from(choices))
    if draw(st.integers(0, 9)) == 9:
        values["workarounds", "disable_fallback_pcpu_query"] = True
    return Settings(values)
