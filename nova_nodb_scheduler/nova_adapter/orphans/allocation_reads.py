# SPDX-License-Identifier: Apache-2.0
"""What consumers have in Placement, asked by host where many are suspected on one.

The naive way, to ask for each consumer, takes hours behind an outage in a burst of requests:
thousands of notes tell of writes of which nearly none was carried out. One listing of what
stands on a provider tells of all who have nothing there. Of who has, it tells neither project
nor user, nor what else he has: he is asked for by himself, as without it.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable

import attrs

from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    placement_calls,
    placement_replies,
)

#: Calls in a row without an answer, before no more are made: each may cost a time-out.
_MOST_UNANSWERED = 3
#: Providers that are listed for one consumer. Whom many suspect might use up each turn's calls,
#: and never come to his own.
_MOST_TO_LIST = 5


@attrs.define
class CallBudget:
    """How many calls are made; none any more once Placement is silent.

    :param most: calls
    :param unanswered: of the latest ones
    """

    most: int
    unanswered: int = 0

    @property
    def silent(self) -> bool:
        """Whether Placement does not answer."""
        return self.unanswered >= _MOST_UNANSWERED

    def allows(self) -> bool:
        """Say whether there may be one more."""
        return self.most > 0 and not self.silent

    def spend(self, answered: bool) -> None:
        """Count one."""
        self.most -= 1
        self.unanswered = 0 if answered else self.unanswered + 1


class AllocationReads:
    """The reads of one turn; each provider is listed once at most.

    :param suspected: hosts of each consumer that is asked for
    :param budget: none where all are made, whether Placement answers or not
    """

    def __init__(
        self,
        posts: placement_calls.AllocationCalls,
        suspected: Iterable[Collection[str]],
        budget: CallBudget | None,
    ) -> None:
        self._posts = posts
        self._budget = budget
        self._suspects = collections.Counter(host for hosts in suspected for host in hosts)
        #: None where a provider's listing was refused, or did not come.
        self._listed: dict[str, placement_replies.Amounts | None] = {}

    def listed(self, consumer: str, hosts: Collection[str]) -> placement_replies.Amounts | None:
        """Return by host what a consumer has on hosts; None where only a call of its own tells."""
        if any(self._suspects[host] < 2 for host in hosts):
            return None
        if len(set(hosts) - self._listed.keys()) > _MOST_TO_LIST:
            return None
        found = {}
        for host in hosts:
            if host not in self._listed:
                if not self._allows():
                    return None
                answer = self._posts.on_provider(host)
                listed = None if isinstance(answer, placement_replies.Reply) else answer
                self._listed[host] = listed
                self._spend(listed is not None)
            consumers = self._listed[host]
            if consumers is None:
                return None
            found[host] = consumers.get(consumer, {})
        return found

    def held(
        self, consumer: str
    ) -> placement_calls.HeldAllocation | placement_replies.Reply | None:
        """Return what a consumer has; None where no call is left for it."""
        if not self._allows():
            return None
        answer = self._posts.held(consumer)
        self._spend(isinstance(answer, placement_calls.HeldAllocation))
        return answer

    def _allows(self) -> bool:
        return self._budget is None or self._budget.allows()

    def _spend(self, answered: bool) -> None:
        if self._budget is not None:
            self._budget.spend(answered)
