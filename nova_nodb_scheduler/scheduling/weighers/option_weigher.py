# SPDX-License-Identifier: Apache-2.0
"""Weighers whose multiplier is an option that host aggregates may override."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import aggregate_values, contract, host_frame, options


class OptionWeigher(contract.Weigher):
    """A weigher that depends on rows alone.

    :cvar option: name of the multiplier, both in the settings and in the
        metadata of aggregates
    """

    option: ClassVar[str]

    def __init__(self, settings: options.SchedulingOptions) -> None:
        super().__init__(settings)
        self._multiplier = aggregate_values.OverriddenNumber(
            self.option, getattr(settings, self.option)
        )

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        """Return a constant, or None where the multiplier is zero for all."""
        return None if self._multiplier.is_always_zero(frame) else self.option

    def multiplier(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> float | contract.FloatArray:
        """Return the option's value, or the least of each row's aggregates'."""
        return self._multiplier.of(frame, rows)

    def _no_share(self, frame: host_frame.HostFrame, instead: contract.Key) -> contract.Key:
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
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.FloatArray:
        """Return the column's numbers."""
        column: npt.NDArray[Any] = getattr(frame, self.column)
        return column[rows].astype(np.float64)
