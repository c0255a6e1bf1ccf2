# SPDX-License-Identifier: Apache-2.0
"""What this process promised of hosts, as far as no record shows it yet."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from typing import Protocol

from nova_nodb_scheduler.store import namespace_view


class Reservations(Protocol):
    """What this process promised of hosts and no record shows yet."""

    def unseen(
        self, host_uuid: str, consumers: Container[str], generation: int
    ) -> Mapping[str, int]:
        """Return what to count as used of a host beside its provider's record."""

    def expire(self) -> Collection[str]:
        """Return hosts whose reservations were given up since the last call."""


class NoReservations:
    """For whoever promises nothing."""

    def unseen(
        self, host_uuid: str, consumers: Container[str], generation: int
    ) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def expire(self) -> Collection[str]:
        """Return nothing."""
        return ()


class Consumers:
    """The consumers of a host's claims and in its provider's record: what records show.

    The record is decoded when somebody asks.
    """

    def __init__(
        self, providers: namespace_view.NamespaceView, uuid: str, claimed: Container[str]
    ) -> None:
        self._providers, self._uuid, self._claimed = providers, uuid, claimed

    def __contains__(self, consumer: object) -> bool:
        if consumer in self._claimed:
            return True
        record = self._providers.get(self._uuid)
        return record is not None and consumer in (record.state.get("allocations") or ())
