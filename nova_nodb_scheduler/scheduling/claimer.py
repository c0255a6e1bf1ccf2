# SPDX-License-Identifier: Apache-2.0
"""What deciding needs of claims: take them, confirm them, give them back.

:mod:`nova_nodb_scheduler.synchronizer.claimer` keeps it over the ledgers; a
strategy without claims uses :class:`NoClaims`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from nova_nodb_scheduler.model import claims, requests
from nova_nodb_scheduler.scheduling import choice


@attrs.frozen
class Wanted:
    """A server and the host chosen for it.

    :param resources: amounts by resource class, of the host's root provider
    :param node: what it takes of the node's own report
    :param moves: it stands, or has allocations, elsewhere already: its claims
        there stay
    """

    consumer: str
    chosen: choice.Choice
    resources: Mapping[str, int]
    node: claims.NodeShare = attrs.field(factory=claims.NodeShare)
    moves: bool = False


@attrs.frozen
class Taken:
    """A pending claim.

    :param grant: the ledger's own; opaque to whoever decides
    """

    wanted: Wanted
    grant: Any = None


class Failure(enum.Enum):
    """Why there is no claim."""

    #: Not on this host; the next best may do.
    NEXT_HOST = "next host"
    #: The group's policy rules the host out; look at :attr:`NotTaken.group_hosts`.
    GROUP = "server group policy"
    #: The view is behind what was settled: catch up and choose again.
    BEHIND = "view behind"
    #: The back end does not answer; nobody can be claimed now.
    UNAVAILABLE = "back end unavailable"


@attrs.frozen
class NotTaken:
    """A refusal, or a claim others won.

    :param detail: for a log line
    :param group_hosts: hosts the group's members stand on, or are about to, by
        their names; None where it was not the group
    """

    wanted: Wanted
    failure: Failure
    detail: str = ""
    group_hosts: frozenset[str] | None = None


class Claimer(Protocol):
    """Claims for one scheduler process; any thread. Calls may block for I/O."""

    def take(
        self, request: requests.Request, wanted: Sequence[Wanted], deadline: float
    ) -> list[Taken | NotTaken]:
        """Claim for each server by itself; answers in the order of the wanted.

        What is unknown is settled before this returns: no claim of a server
        that is answered with NotTaken is left standing but for its lease.

        :param deadline: monotonic seconds; past it nothing new is tried
        """

    def confirm(self, taken: Sequence[Taken]) -> list[bool]:
        """Say that the allocations are written.

        :returns: False where the claim is gone: its lease ended. The caller
            takes that allocation back and goes to the next host
        """

    def release(self, taken: Sequence[Taken]) -> None:
        """Give claims back, pending or confirmed. Never raises for a back end away."""


class NoClaims:
    """Grants everything at once: for a lone scheduler that trusts its ledger alone."""

    def take(
        self, request: requests.Request, wanted: Sequence[Wanted], deadline: float
    ) -> list[Taken | NotTaken]:
        """Grant all."""
        return [Taken(each) for each in wanted]

    def confirm(self, taken: Sequence[Taken]) -> list[bool]:
        """Say yes."""
        return [True for _ in taken]

    def release(self, taken: Sequence[Taken]) -> None:
        """Nothing was held."""
