# SPDX-License-Identifier: Apache-2.0
"""Who exports a metric: labels that stay the same when a process is restarted.

A process's own name changes with each start and would begin new series. So a
worker is named by its service, its host and a number that the next one in its
place gets again (:mod:`.worker_slots`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
from prometheus_client import core, registry


@attrs.frozen
class MetricIdentity:
    """A service on a host.

    :param role: ``scheduler``, ``conductor`` or ``api``
    :param host: ``[DEFAULT] host``
    :param cell: uuid of the one cell that it serves; None for every cell
    """

    role: str
    host: str
    cell: str | None = None

    def labels(self, worker: int) -> dict[str, str]:
        """Return the labels of one worker's series."""
        found = {"role": self.role, "host": self.host, "worker": str(worker)}
        return found if self.cell is None else {**found, "cell": self.cell}


class LabelledRegistry(registry.Collector):
    """The metrics of a registry with labels that all of them have.

    A label that a metric has of its own stays. The times at which series were
    made are left out: they double the series, and a counter's reset shows them.
    """

    def __init__(self, inner: registry.Collector, labels: Mapping[str, str]) -> None:
        self._inner = inner
        self._labels = dict(labels)

    def collect(self) -> Iterator[core.Metric]:
        for family in self._inner.collect():
            labelled = core.Metric(family.name, family.documentation, family.type, family.unit)
            labelled.samples = [
                sample._replace(labels={**self._labels, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield labelled
