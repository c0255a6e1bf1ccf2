# SPDX-License-Identifier: Apache-2.0
"""Asks Placement for its providers: who there is, and all of one tree.

Placement has no change feed. One listing gives every provider's generation; each
answer about one provider repeats the generation it was read at, so that a tree
whose answers disagree was changed in between and is read again.

A generation tells nearly everything. ``DELETE /allocations`` and the old way of
setting aggregates (below microversion 1.19) do not move it, nor does a consumer
that leaves a provider because its allocations were replaced by some elsewhere.
All of them are looked for apart (see :mod:`.mirror_sweep`).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs
import orjson
from nova.scheduler.client import report

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.placement import repeated_requests
from nova_nodb_scheduler.nova_adapter.placement.mirror import provider_trees

#: Answers give generations, parents and roots; Placement of every supported
#: release knows it.
MICROVERSION = "1.36"

_LISTED = re.compile(r'\s*\{\s*"resource_providers"\s*:\s*\[')
#: What stands before a provider of a list, or the list's end.
_BETWEEN = re.compile(r"[\s,]*(?:(?=\{)|(?P<end>\]\s*\}\s*$))")
_parse = json.JSONDecoder().raw_decode


class Response(Protocol):
    """What this module needs of an HTTP response."""

    status_code: int
    content: bytes


#: path -> response, at :data:`MICROVERSION`; thread-safe; may raise whatever
#: its client raises
Get = Callable[[str], Response]


class PlacementUnanswered(errors.NodbError):
    """Placement did not answer as it should.

    :param path: what was asked
    :param reason: the status, or what the client said
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"Placement did not answer GET {self.path} ({self.reason}); look at its log and "
            "at [placement] in nova.conf. Until it answers, its mirror grows older"
        )


@attrs.frozen
class ProviderAllocations:
    """Which consumers stand on one provider, and its generation.

    :param generation: of the provider, as read before its allocations
    :param by_consumer: consumer uuid -> resource class -> amount
    """

    generation: int
    by_consumer: Mapping[str, Mapping[str, int]]


class ChangedWhileRead(Exception):
    """A provider changed while it was read; read it again."""


class PlacementReader:
    """Reads Placement over one session; any thread may call it.

    :param get: see :data:`Get`
    :param tries: how often a tree that changes under the reader is read
    """

    def __init__(self, get: Get, tries: int = 4) -> None:
        self._get = get
        self._tries = tries
        self._count_lock = threading.Lock()
        #: Requests made, for measurements.
        self.requests = 0

    def listing(self, query: str = "") -> provider_trees.ProviderListing:
        """Return all providers, or those a query of GET /resource_providers selects.

        One request, whatever their number.

        :raises PlacementUnanswered: it did not
        """
        path = f"/resource_providers?{query}" if query else "/resource_providers"
        response = self._answered(path)
        try:
            return provider_trees.ProviderListing.of(_providers(response.content.decode()))
        except ValueError as error:
            raise PlacementUnanswered(path, f"not JSON: {error}") from error

    def tree(self, root: str) -> Sequence[provider_trees.ListedProvider]:
        """Return the providers of one tree, empty where there is none.

        :raises PlacementUnanswered: it did not
        """
        return self.listing(f"in_tree={root}").in_tree(root)

    def record(
        self, root: str, members: Sequence[provider_trees.ListedProvider]
    ) -> Mapping[str, Any] | None:
        """Return a tree as its record, without ``read_at``; None if the root is gone.

        Four requests for the root, three for each other member; more while it
        changes. A tree that cannot be used gets a record that says why.

        :param members: of the tree, as listed
        :raises PlacementUnanswered: it did not
        """
        for attempt in range(self._tries):
            if attempt:
                members = self.tree(root)
            try:
                return self._record(root, members)
            except ChangedWhileRead:
                continue
            except provider_trees.BrokenTree as broken:
                return provider_trees.broken_record(root, members, broken.reason)
        # Of no generation, so that the next sweep reads it again.
        return {**provider_trees.broken_record(root, (), "changed whenever it was read")}

    def allocations(self, provider: str) -> ProviderAllocations | None:
        """Return what stands on a provider; None where there is none. One request.

        :raises PlacementUnanswered: it did not
        """
        answer = self._asked(f"/resource_providers/{provider}/allocations", absent={})
        if not answer:
            return None
        return ProviderAllocations(
            answer["resource_provider_generation"],
            {
                consumer: dict(allocation["resources"])
                for consumer, allocation in answer["allocations"].items()
            },
        )

    def traits(self, provider: str) -> frozenset[str] | None:
        """Return a provider's traits; None where there is none. One request.

        :raises PlacementUnanswered: it did not
        """
        return self._names(provider, "traits")

    def aggregates(self, provider: str) -> frozenset[str] | None:
        """Return the aggregates that a provider is in; None where there is none. One request.

        :raises PlacementUnanswered: it did not
        """
        return self._names(provider, "aggregates")

    def _names(self, provider: str, part: str) -> frozenset[str] | None:
        answer = self._asked(f"/resource_providers/{provider}/{part}", absent={})
        return frozenset(answer[part]) if answer else None

    def consumer(self, uuid: str) -> Mapping[str, Mapping[str, int]]:
        """Return a consumer's allocations by provider; empty for none. One request.

        :raises PlacementUnanswered: it did not
        """
        answer = self._asked(f"/allocations/{uuid}")
        return {
            provider: dict(allocation["resources"])
            for provider, allocation in answer["allocations"].items()
        }

    def _record(
        self, root: str, members: Sequence[provider_trees.ListedProvider]
    ) -> Mapping[str, Any] | None:
        if not any(member.uuid == root for member in members):
            return None
        provider_trees.check_shape(root, members)
        parts = {member.uuid: self._parts(member.uuid) for member in members}
        found = self.allocations(root)
        if found is None or found.generation != parts[root]["generation"]:
            raise ChangedWhileRead
        return provider_trees.record(root, members, parts, found.by_consumer)

    def _parts(self, provider: str) -> dict[str, Any]:
        base = f"/resource_providers/{provider}"
        answers = {
            part: self._asked(f"{base}/{part}", absent={})
            for part in ("inventories", "traits", "aggregates")
        }
        generations = {answer.get("resource_provider_generation") for answer in answers.values()}
        if len(generations) != 1 or None in generations:
            raise ChangedWhileRead
        return {
            "generation": generations.pop(),
            **{part: answer[part] for part, answer in answers.items()},
        }

    def _asked(self, path: str, absent: Mapping[str, Any] | None = None) -> Any:
        """Return an answer's JSON, or ``absent`` for 404."""
        response = self._answered(path, absent is not None)
        if absent is not None and response.status_code == 404:
            return absent
        try:
            return orjson.loads(response.content)
        except ValueError as error:
            raise PlacementUnanswered(path, f"not JSON: {error}") from error

    def _answered(self, path: str, may_be_absent: bool = False) -> Any:
        with self._count_lock:
            self.requests += 1
        try:
            response = self._get(path)
        except Exception as error:
            # keystoneauth's, or what making the client meets: no endpoint, no credentials.
            raise PlacementUnanswered(path, f"{type(error).__name__}: {error}") from error
        if response.status_code != 200 and not (may_be_absent and response.status_code == 404):
            raise PlacementUnanswered(path, f"status {response.status_code}")
        return response


def _providers(text: str) -> Iterator[Mapping[str, Any]]:
    """Parse a list of providers one by one, and leave out their links.

    Of 100,000 the text has 75 MB. Parsed in one go it stops all threads for most
    of a second, takes half a gigabyte, and altogether longer.

    :raises ValueError: it is none
    """
    begin = _LISTED.match(text)
    if begin is None:
        raise ValueError("no list of resource providers")
    at = begin.end()
    while True:
        behind = _BETWEEN.match(text, at)
        if behind is None:
            raise ValueError(f"neither a provider nor the end of the list at character {at}")
        if behind["end"]:
            return
        item, at = _parse(text, behind.end())
        item.pop("links", None)
        yield item


def get_from_placement(path: str) -> Any:
    """GET a path of Placement; see :data:`Get`.

    The client is made with the first call, which may ask keystone.

    :raises ClientException: of keystoneauth1
    """
    return _SENDER.get(path, MICROVERSION)


def _client() -> Any:
    # Looked up with each call: after a reload of the configuration it is another one.
    return report.report_client_singleton()


#: One for a process, as the client is. It does nothing before the first call.
_SENDER = repeated_requests.GetSender(_client)
