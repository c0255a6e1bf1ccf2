# SPDX-License-Identifier: Apache-2.0
"""Stands for Placement's client while Nova prepares a request, and asks nobody yet.

What Nova would ask Placement, as a query that is answered from memory.

The query string is read, not Nova's ResourceRequest: it is what Placement would
get, and it is the same in every release.

Stands for Placement's client while Nova prepares a request, and asks nobody yet.

Nova's own select_destinations runs its request filters, makes its resource
request, for pinned CPUs two of them, and asks Placement for candidates. Here the
question is noted instead, to be answered from memory once the choice is made.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any
from urllib import parse

import attrs
from nova.scheduler.client import report

from nova_nodb_scheduler.model import requests


@attrs.frozen
class OutsideMemory:
    """A request that memory does not answer.

    :param reason: a few words, the same for all requests of a kind
    """

    reason: str


#: Parameters of the one group that is understood, without a suffix.
_UNDERSTOOD = frozenset(
    ["limit", "resources", "required", "member_of", "in_tree", "root_required", "group_policy"]
)


def parse_query(text: str) -> requests.CandidateQuery | OutsideMemory:
    """Read the query string of a GET /allocation_candidates.

    ``limit`` is left aside: from memory all candidates are weighed. So is
    ``group_policy``, which means nothing for a single group.
    """
    pairs = parse.parse_qsl(text)
    for name, value in pairs:
        if name not in _UNDERSTOOD:
            return OutsideMemory(
                "same subtree" if name == "same_subtree" else "more than one group"
            )
        if name in ("required", "root_required") and value.startswith("in:"):
            return OutsideMemory("any of several traits")
    values = dict(pairs)
    if "resources" not in values:
        return OutsideMemory("no resources")
    required, forbidden = _signed(value for name, value in pairs if name == "required")
    root_required, root_forbidden = _signed(
        value for name, value in pairs if name == "root_required"
    )
    memberships = [value for name, value in pairs if name == "member_of"]
    return requests.CandidateQuery(
        resources={
            name: int(amount)
            for name, _, amount in (item.partition(":") for item in values["resources"].split(","))
        },
        required_traits=required,
        forbidden_traits=forbidden,
        root_required=root_required,
        root_forbidden=root_forbidden,
        member_of=tuple(
            frozenset(value.removeprefix("in:").split(","))
            for value in memberships
            if not value.startswith("!")
        ),
        forbidden_aggregates=frozenset(
            aggregate
            for value in memberships
            if value.startswith("!")
            for aggregate in value.removeprefix("!").removeprefix("in:").split(",")
        ),
        in_tree=values.get("in_tree"),
    )


def _signed(values: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Split lists of traits into those that must be there and those that must not."""
    traits = [trait for value in values for trait in value.split(",")]
    return (
        frozenset(trait for trait in traits if not trait.startswith("!")),
        frozenset(trait[1:] for trait in traits if trait.startswith("!")),
    )


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
        query = parse_query(resources.to_querystring())
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
