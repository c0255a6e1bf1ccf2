# SPDX-License-Identifier: Apache-2.0
"""Metrics whose values are read when somebody scrapes, from what is counted anyway."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from prometheus_client import core, registry

LOG = logging.getLogger(__name__)

Figures: TypeAlias = Callable[[], Mapping[str, float]]
Family: TypeAlias = type[core.GaugeMetricFamily] | type[core.CounterMetricFamily]


class AtScrape(registry.Collector):
    """A metric whose values are asked for by each scrape.

    One that cannot be read is left out, and the log says why: the others are
    wanted all the more.

    :param labels: the name of one label, whose values are the figures' names;
        or names of several, whose values are tuples; or None for a metric
        without, of one figure by any name
    :param family: its kind; of a counter's name the ``_total`` is left out
    """

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: str | Sequence[str] | None,
        read: Callable[[], Mapping[Any, float]],
        family: Family = core.GaugeMetricFamily,
    ) -> None:
        self._name, self._help, self._read, self._family = name, help_text, read, family
        self._is_one = isinstance(labels, str)
        self._labels = [labels] if isinstance(labels, str) else list(labels or ())
        self._complained = False

    def describe(self) -> Iterator[core.Metric]:
        """Register without a first reading: its source may not be ready."""
        yield self._family(self._name, self._help, labels=self._labels)

    def collect(self) -> Iterator[core.Metric]:
        family = self._family(self._name, self._help, labels=self._labels)
        for value, number in self._figures():
            values = ([value] if self._is_one else value) if self._labels else []
            family.add_metric(values, float(number))
        yield family

    def _figures(self) -> Sequence[tuple[Any, float]]:
        try:
            return sorted(self._read().items())
        except Exception:
            if not self._complained:
                self._complained = True
                LOG.exception("The metric %(name)s cannot be read.", {"name": self._name})
            return ()


def some(figures: Figures, names: Mapping[str, str]) -> dict[str, float]:
    """Return some of the figures, under the names that a metric has for them."""
    return {names[name]: value for name, value in figures().items() if name in names}
