# SPDX-License-Identifier: Apache-2.0
"""A host that a plan proposes, and how it weighed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import attrs

from nova_nodb_scheduler.scheduling import contract


@attrs.frozen
class Choice:
    """One host. Its row is of use only to the frame that it came from.

    :param score: the sum of the weighers' shares; NaN and what is below all
        numbers come as the least number
    :param allocation_requests: what may be claimed there, the first first;
        empty where nothing is claimed
    """

    row: int
    uuid: str
    cell: str
    host: str
    node: str
    score: float
    allocation_requests: tuple[contract.AllocationRequest, ...] = attrs.field(eq=False)


@attrs.frozen
class Share:
    """What one weigher gave to one host: ``multiplier * normalised`` counts."""

    weigher: str
    raw: float
    normalised: float
    multiplier: float


class Source(Protocol):
    """Where a plan finds hosts that passed, best first."""

    def best_first(self, count: int, passed_over: Collection[str]) -> list[Choice]:
        """Return up to ``count`` of the best; none whose uuid is passed over."""

    def in_cell(self, cell: str, count: int, passed_over: Collection[str]) -> list[Choice]:
        """The same of one cell."""

    def share(self, uuid: str) -> tuple[Share, ...]:
        """Return what each weigher gave to a host."""
