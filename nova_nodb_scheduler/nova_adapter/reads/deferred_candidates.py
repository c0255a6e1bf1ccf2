# SPDX-License-Identifier: Apache-2.0
"""Stands for Placement's client while Nova prepares a request, and asks nobody yet.

Nova's own select_destinations runs its request filters, makes its resource
request, for pinned CPUs two of them, and asks Placement for candidates. Here the
question is noted instead, to be answered from memory once the choice is made.
"""

from __future__ import annotations

import collections
from typing import Any

import attrs
from nova.scheduler.client import report

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter.conversion import request_conversion


@attrs.frozen
class OutsideMemory:
    """A request that memory does not answer.

    :param reason: a few words, the same for all requests of a kind
    """

    reason: str


def query_of(wanted: Any) -> requests.CandidateQuery | OutsideMemory:
    """Return what Nova's ResourceRequest asks of GET /allocation_candidates.

    Its limit is left aside: from memory all candidates are weighed. So is its group
    policy, which means nothing for a single group.
    """
    groups = dict(wanted._rg_by_id)
    group = groups.pop(None, None)
    if groups:
        return OutsideMemory("more than one group")
    if any(wanted._same_subtree):
        return OutsideMemory("same subtree")
    if group is None or not group.resources:
        return OutsideMemory("no resources")
    if any(name.startswith("in:") for name in (*group.required_traits, *wanted._root_required)):
        return OutsideMemory("any of several traits")
    return request_conversion.candidate_query(wanted, group)


#: Keeps Nova from saying NoValidHost before anybody was asked; names no provider.
_PLACEHOLDER: dict[str, Any] = {"allocations": {}, "mappings": {}}

#: What Nova asks candidates with, and writes allocations with.
CANDIDATES_VERSION = str(getattr(report, "SAME_SUBTREE_VERSION", "1.36"))

Answer = tuple[list[Any] | None, dict[str, Any] | None, str | None]


class DeferredCandidates:
    """One request's questions. All else goes to the real client.

    :param client: Nova's SchedulerReportClient
    :ivar queries: what was asked for, in order
    :ivar outside: why Placement has to answer; None while memory can
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._asked: list[Any] = []
        self.queries: list[requests.CandidateQuery] = []
        self.outside: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def client(self) -> Any:
        """The real client."""
        return self._client

    def get_allocation_candidates(self, context: Any, resources: Any) -> Answer:
        """Note the question; ask Placement only where memory has no answer."""
        self._asked.append(resources)
        if self.outside is not None:
            # The former ones were asked when they came.
            answer: Answer = self._client.get_allocation_candidates(context, resources)
            return answer
        query = query_of(resources)
        if isinstance(query, OutsideMemory):
            self.outside = query.reason
            return self.ask(context)
        self.queries.append(query)
        return [_PLACEHOLDER], {}, CANDIDATES_VERSION

    def ask(self, context: Any) -> Answer:
        """Ask Placement everything that was asked so far, as Nova does."""
        found: list[Any] = []
        summaries: dict[str, Any] = {}
        version = None
        for number, resources in enumerate(self._asked):
            answer = self._client.get_allocation_candidates(context, resources)
            if answer is None or answer[0] is None:
                if number == 0:
                    return None, None, None
                continue
            found.extend(answer[0])
            summaries.update(answer[1])
            version = version or answer[2]
        return found, summaries, version


def by_provider(allocation_requests: list[Any]) -> dict[str, list[Any]]:
    """Return allocation requests by the providers they take from, as Nova keeps them."""
    found: dict[str, list[Any]] = collections.defaultdict(list)
    for each in allocation_requests:
        for uuid in each["allocations"]:
            found[uuid].append(each)
    return found
