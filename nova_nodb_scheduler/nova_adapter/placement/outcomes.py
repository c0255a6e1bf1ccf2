# SPDX-License-Identifier: Apache-2.0
"""What is to be written for a new server, and what may become of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

#: Amounts by resource class, by provider uuid.
Amounts: TypeAlias = Mapping[str, Mapping[str, int]]


@attrs.frozen(eq=False)
class Server:
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
class Written:
    """Placement has exactly this allocation."""


@attrs.frozen
class Full:
    """A provider cannot take it: try the next host. Nothing is left.

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
class Conflict:
    """Others wrote to the same providers until the deadline. Nothing is left."""

    text: str


@attrs.frozen
class Withdrawn:
    """It could be written, but another server of the request could not. Nothing is left."""


@attrs.frozen
class Rejected:
    """Placement will not have it, on no host, or cannot be asked. Nothing is left.

    :param status: HTTP status; None where Placement was not reached
    """

    status: int | None
    text: str


@attrs.frozen
class Unknown:
    """No answer until the deadline: it may be written, or be written yet.

    :meth:`AllocationWriter.undo` takes it away where it finds it.
    """

    text: str


Outcome = Written | Full | ConsumerExists | Conflict | Withdrawn | Rejected | Unknown
