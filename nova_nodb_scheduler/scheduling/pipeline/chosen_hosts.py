# SPDX-License-Identifier: Apache-2.0
"""A host that a plan proposes for a server, and the claim that is taken on it.

:mod:`nova_nodb_scheduler.synchronizer.claims.ledger_claimer` takes claims in the
ledgers; a strategy without claims uses :class:`NoClaims`.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import attrs

from nova_nodb_scheduler.model import claims, requests
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract


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
    allocation_requests: tuple[plugin_contract.AllocationRequest, ...] = attrs.field(eq=False)


@attrs.frozen
class WeightShare:
    """What one weigher gave to one host: ``multiplier * normalised`` counts."""

    weigher: str
    raw: float
    normalised: float
    multiplier: float


class HostSource(Protocol):
    """Where a plan finds hosts that passed."""

    def best_first(self, count: int, passed_over: Collection[str]) -> list[Choice]:
        """Return up to ``count`` of the best; none whose uuid is passed over."""

    def in_cell(self, cell: str, count: int, passed_over: Collection[str]) -> list[Choice]:
        """The same of one cell."""

    def at_random(self, count: int, passed_over: Collection[str], cell: str | None) -> list[Choice]:
        """Return up to ``count`` others, each drawn from all that are left.

        :param cell: uuid of the cell that they are drawn from; None for all cells
        """

    def share(self, uuid: str) -> tuple[WeightShare, ...]:
        """Return what each weigher gave to a host."""


@attrs.frozen
class WantedClaim:
    """A server and the host chosen for it.

    :param resources: amounts by resource class, of the host's root provider
    :param node: what it takes of the node's own report
    :param moves: it stands, or has allocations, elsewhere already: its claims
        there stay
    """

    consumer: str
    chosen: Choice
    resources: Mapping[str, int]
    node: claims.NodeShare = attrs.field(factory=claims.NodeShare)
    moves: bool = False


@attrs.frozen
class TakenClaim:
    """A pending claim.

    :param grant: the ledger's own; opaque to whoever decides
    """

    wanted: WantedClaim
    grant: Any = None


class ClaimRefusal(enum.Enum):
    """Why there is no claim."""

    #: Not on this host; the next best may do.
    NEXT_HOST = "next host"
    #: The group's policy rules the host out; look at :attr:`RefusedClaim.group_hosts`.
    GROUP = "server group policy"
    #: The view is behind what was settled: catch up and choose again.
    BEHIND = "view behind"
    #: The back end does not answer; nobody can be claimed now.
    UNAVAILABLE = "back end unavailable"


@attrs.frozen
class RefusedClaim:
    """A refusal, or a claim others won.

    :param detail: for a log line
    :param group_hosts: hosts the group's members stand on, or are about to, by
        their names; None where it was not the group
    """

    wanted: WantedClaim
    failure: ClaimRefusal
    detail: str = ""
    group_hosts: frozenset[str] | None = None


class Claimer(Protocol):
    """Claims for one scheduler process; any thread. Calls may block for I/O."""

    def take(
        self, request: requests.Request, wanted: Sequence[WantedClaim], deadline: float
    ) -> list[TakenClaim | RefusedClaim]:
        """Claim for each server by itself; answers in the order of the wanted.

        What is unknown is settled before this returns: no claim of a server
        that is answered with RefusedClaim is left standing but for its lease.

        :param deadline: monotonic seconds; past it nothing new is tried
        """

    def confirm(self, taken: Sequence[TakenClaim]) -> list[bool]:
        """Say that the allocations are written.

        :returns: False where the claim is gone: its lease ended. The caller
            takes that allocation back and goes to the next host
        """

    def release(self, taken: Sequence[TakenClaim]) -> None:
        """Give claims back, pending or confirmed. Never raises for a back end away."""

    def release_places(self, taken: Sequence[TakenClaim]) -> None:
        """Give places in server groups back, and keep the claims' room; else as release.

        For what may be allocated though no server is to be there: it takes room, and
        is nobody's member.
        """


class NoClaims:
    """Grants everything at once: for a lone scheduler that trusts its ledger alone."""

    def take(
        self, request: requests.Request, wanted: Sequence[WantedClaim], deadline: float
    ) -> list[TakenClaim | RefusedClaim]:
        """Grant all."""
        return [TakenClaim(each) for each in wanted]

    def confirm(self, taken: Sequence[TakenClaim]) -> list[bool]:
        """Say yes."""
        return [True for _ in taken]

    def release(self, taken: Sequence[TakenClaim]) -> None:
        """Nothing was held."""

    def release_places(self, taken: Sequence[TakenClaim]) -> None:
        """Nothing was held."""
