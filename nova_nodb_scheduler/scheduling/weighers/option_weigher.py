# SPDX-License-Identifier: Apache-2.0
"""Weighers whose multiplier is an option that host aggregates may override."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

LOG = logging.getLogger(__name__)


@attrs.define
class _AggregateReading:
    """What one state of the aggregates says; the numbers fill as sets are met.

    :param sets: a column's distinct sets of aggregates, by code
    :param numbers: by code, as far as they were asked for
    """

    aggregates: Mapping[str, host_facts.HostAggregate]
    overridden: bool
    finite: bool
    sets: list[tuple[str, ...]] = attrs.field(factory=list)
    numbers: npt.NDArray[np.float64] = attrs.field(factory=lambda: np.zeros(0))


class OverriddenNumber:
    """An option's value, or the least that a host's aggregates set for it.

    As Nova reads weight multipliers: one value that is no number makes all of
    that host's void, and the option counts.

    :param name: the metadata key
    :param default: the option's value
    """

    def __init__(self, name: str, default: float) -> None:
        self.name = name
        self._default = default
        # A frame's mapping of aggregates is replaced, never changed, and a
        # column's list of values only grows: what was read of them stays true
        # as long as they are the frame's. Without this, each patched row would
        # cost all distinct sets of aggregates, fourteen times over.
        self._last: _AggregateReading | None = None

    def is_always_zero(self, frame: host_frame.HostFrame) -> bool:
        """Return whether no host can have another value than zero."""
        return self._default == 0 and not self._reading(frame).overridden

    def is_finite(self, frame: host_frame.HostFrame) -> bool:
        """Return whether zero times any host's value is zero."""
        return math.isfinite(self._default) and self._reading(frame).finite

    def of(
        self, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> float | npt.NDArray[np.float64]:
        """Return one number where no aggregate has a say, else one for each row."""
        reading = self._reading(frame)
        if not reading.overridden:
            return self._default
        column = frame.aggregate_sets
        if reading.sets is not column.values:
            reading.sets, reading.numbers = column.values, np.zeros(0)
        numbers = reading.numbers
        if len(numbers) < len(column.values):
            more = [self._value(frame, uuids) for uuids in column.values[len(numbers) :]]
            numbers = reading.numbers = np.append(numbers, more)
        return numbers[column.codes[rows]]

    def _reading(self, frame: host_frame.HostFrame) -> _AggregateReading:
        last = self._last
        if last is not None and last.aggregates is frame.aggregates:
            return last
        overrides = [
            (aggregate, aggregate.metadata[self.name])
            for aggregate in frame.aggregates.values()
            if self.name in aggregate.metadata
        ]
        finite = True
        for aggregate, text in overrides:
            try:
                finite = finite and math.isfinite(float(text))
            except ValueError:
                LOG.warning(
                    "Aggregate %(aggregate)s has %(name)s = %(text)r, which is no number: its "
                    "hosts get the option's value, %(default)s. Correct it with "
                    "'openstack aggregate set --property'.",
                    {
                        "aggregate": aggregate.name or aggregate.uuid,
                        "name": self.name,
                        "text": text,
                        "default": self._default,
                    },
                )
        self._last = _AggregateReading(frame.aggregates, bool(overrides), finite)
        return self._last

    def _value(self, frame: host_frame.HostFrame, uuids: tuple[str, ...]) -> float:
        aggregates = [frame.aggregates[uuid] for uuid in uuids if uuid in frame.aggregates]
        texts = {each.metadata[self.name] for each in aggregates if self.name in each.metadata}
        try:
            return min(map(float, texts), default=self._default)
        except ValueError:
            return self._default


class OptionWeigher(plugin_contract.Weigher):
    """A weigher that depends on rows alone.

    :cvar option: name of the multiplier, both in the settings and in the
        metadata of aggregates
    """

    option: ClassVar[str]

    def __init__(self, settings: decision_settings.SchedulingOptions) -> None:
        super().__init__(settings)
        self._multiplier = OverriddenNumber(self.option, getattr(settings, self.option))

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        """Return a constant, or None where the multiplier is zero for all."""
        return None if self._multiplier.is_always_zero(frame) else self.option

    def multiplier(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> float | plugin_contract.FloatArray:
        """Return the option's value, or the least of each row's aggregates'."""
        return self._multiplier.of(frame, rows)

    def _no_share(
        self, frame: host_frame.HostFrame, instead: plugin_contract.Key
    ) -> plugin_contract.Key:
        """Return None, for raw weights that are all equal, without floor or ceiling.

        Such weights are scaled to zero, and only an infinite multiplier makes
        something of that; then ``instead`` is returned.
        """
        return None if self._multiplier.is_finite(frame) else instead


class ColumnWeigher(OptionWeigher):
    """A weigher whose raw weight is one column of the hosts.

    :cvar column: of the frame, numbers
    """

    column: ClassVar[str]

    def raw(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.FloatArray:
        """Return the column's numbers."""
        column: npt.NDArray[Any] = getattr(frame, self.column)
        return column[rows].astype(np.float64)
