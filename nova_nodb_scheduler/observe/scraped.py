# SPDX-License-Identifier: Apache-2.0
"""Metrics whose values are read when somebody scrapes, from what is counted anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from prometheus_client import core, registry

Figures: TypeAlias = Callable[[], Mapping[str, float]]
Family: TypeAlias = type[core.GaugeMetricFamily] | type[core.CounterMetricFamily]


class AtScrape(registry.Collector):
    """A metric by one label, or by none, whose values are asked for by each scrape.

    :param label: None where the metric has none; then there is one value, by any name
    :param family: its kind; of a counter's name the ``_total`` is left out
    """

    def __init__(
        self,
        name: str,
        help_text: str,
        label: str | None,
        read: Figures,
        family: Family = core.GaugeMetricFamily,
    ) -> None:
        self._name, self._help, self._read, self._family = name, help_text, read, family
        self._labels = [] if label is None else [label]

    def describe(self) -> Iterator[core.Metric]:
        """Register without a first reading: its source may not be ready."""
        yield self._family(self._name, self._help, labels=self._labels)

    def collect(self) -> Iterator[core.Metric]:
        family = self._family(self._name, self._help, labels=self._labels)
        for value, number in sorted(self._read().items()):
            family.add_metric([value] if self._labels else [], number)
        yield family


def some(figures: Figures, names: Mapping[str, str]) -> dict[str, float]:
    """Return some of the figures, under the names that a metric has for them."""
    return {names[name]: value for name, value in figures().items() if name in names}
