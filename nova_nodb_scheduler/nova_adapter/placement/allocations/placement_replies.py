# SPDX-License-Identifier: Apache-2.0
"""What may become of a write of allocations, and what Placement's replies tell of it.

A 409 has four causes, and each wants another step. The code tells a lost race
(``placement.concurrent_update``) from the rest; what else there is to know, which
host is full or that it was the consumer's generation, stands in the text alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
from keystoneauth1 import exceptions as keystone

from nova_nodb_scheduler.nova_adapter.placement.allocations import conditional_writes

#: Amounts by resource class, by provider uuid.
Amounts: TypeAlias = Mapping[str, Mapping[str, int]]


@attrs.frozen(eq=False)
class NewServer:
    """A consumer that has no allocations yet, and what it is to get.

    :param consumer: the instance's uuid
    :param request: as Placement gives and takes it: ``allocations`` with
        ``resources`` by provider uuid; what else it has is not written
    """

    consumer: str
    request: Mapping[str, Any]
    project_id: str
    user_id: str

    @property
    def amounts(self) -> Amounts:
        """Return what is allocated, by provider and resource class."""
        return {
            provider: dict(part["resources"])
            for provider, part in self.request["allocations"].items()
        }

    def touches(self, provider: str) -> bool:
        return provider in self.request["allocations"]


@attrs.frozen
class AllocationWritten:
    """Placement has exactly this allocation.

    :param was_repeated: it was sent more than once, since an answer was lost: should it
        be taken back, one that is on its way still may write it again
    :param was_compared: False where trees that were to be compared as it was written
        were not, for all that is known: they are to be compared now
    """

    was_repeated: bool = attrs.field(default=False, eq=False)
    was_compared: bool = attrs.field(default=True, eq=False)


@attrs.frozen
class ProviderFull:
    """A provider cannot take a server's allocation: try the next host. Nothing is left.

    :param by_capacity: False where the amount breaks a rule of the inventory,
        or where there is no such inventory or provider
    """

    provider: str | None
    resource_class: str | None
    by_capacity: bool
    text: str


@attrs.frozen
class ConsumerExists:
    """The consumer is not new: it takes the way Nova goes for moves."""

    text: str


@attrs.frozen
class GenerationConflict:
    """Others wrote to the same providers until the deadline. Nothing is left."""

    text: str


@attrs.frozen
class TreeChanged:
    """The tree is not what the write was to be for; Placement compared it. Nothing is left."""

    text: str


@attrs.frozen
class WithdrawnWithOthers:
    """It could be written, but another server of the request could not. Nothing is left."""


@attrs.frozen
class AllocationRejected:
    """Placement will not have it, on no host, or cannot be asked. Nothing is left.

    :param status: HTTP status; None where Placement was not reached
    """

    status: int | None
    text: str


@attrs.frozen
class UnknownOutcome:
    """No answer came until the deadline: an allocation may be written, or be written yet.

    :meth:`AllocationWriter.undo` takes it away where it finds it.
    """

    text: str


WriteOutcome = (
    AllocationWritten
    | ProviderFull
    | ConsumerExists
    | GenerationConflict
    | TreeChanged
    | WithdrawnWithOthers
    | AllocationRejected
    | UnknownOutcome
)


_CONCURRENT = "placement.concurrent_update"
_CONSUMER = "consumer generation conflict"
#: What Placements before error codes (microversion 1.23) say of a lost race.
_CHANGED = "changed while attempting to allocate"
_EXPECTED = re.compile(r"consumer generation conflict - expected (\w+) but")
_PROVIDER = re.compile(r"resource provider '([^']+)'")
_CLASS = re.compile(r"(?:allocation for|Inventory for) '([^']+)' on")


@attrs.frozen
class DoneReply:
    """Placement wrote all allocations of a call.

    :param compared: it says that it compared the trees that it was to compare
    """

    compared: bool = attrs.field(default=False, eq=False)


@attrs.frozen
class RefusedReply:
    """Placement wrote nothing of a call: some provider cannot take its part.

    :param provider: uuid; None where the text does not name a single one
    :param by_capacity: it is full; else the amount breaks a rule of the inventory
    """

    provider: str | None
    resource_class: str | None
    by_capacity: bool
    text: str


@attrs.frozen
class NoProvider:
    """Nothing is written: a provider does not exist.

    Placement leaves records of all the new consumers behind, at generation 0.
    """

    provider: str
    text: str


@attrs.frozen
class ConsumerConflict:
    """Nothing is written: a consumer is not at the generation that was sent.

    :param expected: its generation; None where it has no record
    """

    expected: int | None
    text: str


@attrs.frozen
class Contended:
    """Nothing is written: another writer touched the same providers."""

    text: str


@attrs.frozen
class DifferingTrees:
    """Nothing is written: trees are not what the call named them for.

    :param roots: of all that are not
    """

    roots: frozenset[str]
    text: str


@attrs.frozen
class BadReply:
    """Nothing is written: Placement will not have it, or nobody asked it.

    :param status: None where the question did not leave this process
    """

    status: int | None
    text: str


@attrs.frozen
class LostReply:
    """A call's allocations may be written: no answer came.

    :param ended: Placement says itself that it broke off: if it is not written
        by now, it will not be
    :param strange: the call itself failed, as no call should: it may do so again
    """

    text: str
    ended: bool = False
    strange: bool = False


Reply = (
    DoneReply
    | RefusedReply
    | NoProvider
    | ConsumerConflict
    | Contended
    | DifferingTrees
    | BadReply
    | LostReply
)


def read_reply(response: Any) -> Reply:
    """Tell what an answer of ``POST /allocations`` means.

    :param response: with ``status_code``, ``text`` and ``json()``
    """
    status: int = response.status_code
    condition = conditional_writes.read_answer(response)
    if status in (200, 204):
        return DoneReply(condition.is_same)
    code, text = _error(response)
    if status >= 500 or status == 408:
        # Gateways answer in the place of a Placement that still works, and not
        # in its form.
        return LostReply(f"HTTP {status}: {text}", ended=status == 500 and bool(code))
    found = _PROVIDER.search(text)
    if status == 409:
        if condition.differing:
            return DifferingTrees(condition.differing, text)
        return _conflict(code, text, found.group(1) if found else None)
    if status == 400 and found and "does not exist" in text:
        return NoProvider(found.group(1), text)
    return BadReply(status, text)


def read_failure(error: keystone.ClientException) -> Reply:
    """Tell what an error of the HTTP client means for the write."""
    response = getattr(error, "response", None)
    if response is not None:
        return read_reply(response)
    # A connection may break after the request was sent: ConnectFailure is not
    # among these.
    never_sent = (
        keystone.EndpointNotFound,
        keystone.MissingAuthPlugin,
        keystone.Unauthorized,
        keystone.DiscoveryFailure,
    )
    text = f"{type(error).__name__}: {error}"
    return BadReply(None, text) if isinstance(error, never_sent) else LostReply(text)


def _conflict(code: str | None, text: str, provider: str | None) -> Reply:
    if _CONSUMER in text:
        found = _EXPECTED.search(text)
        expected = found.group(1) if found else ""
        return ConsumerConflict(int(expected) if expected.isdigit() else None, text)
    if code == _CONCURRENT or (code is None and _CHANGED in text):
        return Contended(text)
    # Several providers without inventory come in one pair of quotes.
    if provider is not None and "," in provider:
        provider = None
    resource_class = _CLASS.search(text)
    return RefusedReply(
        provider,
        resource_class.group(1) if resource_class else None,
        "exceed the capacity" in text,
        text,
    )


def _error(response: Any) -> tuple[str | None, str]:
    """Return the code and the text of the first error of an answer."""
    try:
        error = response.json()["errors"][0]
    except (ValueError, KeyError, IndexError, TypeError):
        return None, str(response.text)[:500]
    if not isinstance(error, Mapping):
        return None, str(error)[:500]
    return error.get("code"), " ".join(str(error.get("detail", "")).split())[:500]
