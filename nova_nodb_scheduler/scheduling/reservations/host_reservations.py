# SPDX-License-Identifier: Apache-2.0
"""Reservations: what this process chose of hosts before their records show it.

A choice is counted from the moment it is made. The host's record shows it only
when the allocation was written, published and came back: two decisions within
that time would otherwise take the same room.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Mapping
from typing import Protocol

import attrs

from nova_nodb_scheduler.store import store_snapshot


class ReservedUsage(Protocol):
    """What this process reserved on hosts and no record shows yet."""

    def unseen(
        self, host_uuid: str, consumers: Container[str], generation: int
    ) -> Mapping[str, int]:
        """Return what to count as used of a host beside its provider's record."""

    def expire(self) -> Collection[str]:
        """Return hosts whose reservations were given up since the last call."""


class NoReservations:
    """For whoever reserves nothing."""

    def unseen(
        self, host_uuid: str, consumers: Container[str], generation: int
    ) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def expire(self) -> Collection[str]:
        """Return nothing."""
        return ()


class RecordedConsumers:
    """The consumers of a host's claims and in its provider's record: what records show.

    The record is decoded when somebody asks.
    """

    def __init__(
        self, providers: store_snapshot.NamespaceView, uuid: str, claimed: Container[str]
    ) -> None:
        self._providers, self._uuid, self._claimed = providers, uuid, claimed

    def __contains__(self, consumer: object) -> bool:
        if consumer in self._claimed:
            return True
        record = self._providers.get(self._uuid)
        return record is not None and consumer in (record.state.get("allocations") or ())


@attrs.frozen
class Reservation:
    """What one consumer takes of one host.

    :param resources: amounts by resource class, of the root provider
    :param generation: of the provider's record that the choice was made on
    :param counted_from: generation from which on a record counts the write;
        None while that is not known
    :param since_seconds: when it was reserved or, later, confirmed
    """

    consumer: str
    host_uuid: str
    resources: Mapping[str, int]
    generation: int
    since_seconds: float
    counted_from: int | None = None

    def confirm(self, now_seconds: float, counted_from: int | None) -> Reservation:
        """Return the same once its allocation is written."""
        # Of each request once: attrs.evolve is dear.
        return Reservation(
            self.consumer,
            self.host_uuid,
            self.resources,
            self.generation,
            now_seconds,
            counted_from,
        )


class Reservations:
    """The reservations of one process; any thread may call any method.

    Nothing blocks but a lock held for microseconds. What is forgotten by age
    or beyond the bound is told by :meth:`expire`, so that the hosts' columns
    can be corrected.

    :param clock: monotonic seconds
    :param max_reservations: how many are kept; beyond it the oldest confirmed
        one goes first, then the oldest
    :param pending_seconds: after which one that was neither confirmed nor
        released is forgotten; longer than any request's deadline
    :param confirmed_seconds: after which a confirmed one is forgotten though no
        record showed it (the server may have gone again); longer than a record
        may be old
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        max_reservations: int = 100_000,
        pending_seconds: float = 300.0,
        confirmed_seconds: float = 300.0,
    ) -> None:
        self._clock = clock
        self._max = max_reservations
        self._pending_seconds = pending_seconds
        self._confirmed_seconds = confirmed_seconds
        self._lock = threading.Lock()
        # Both in the order of since_seconds, as a dictionary keeps insertion order.
        self._pending: dict[str, Reservation] = {}
        self._confirmed: dict[str, Reservation] = {}
        self._by_host: dict[str, dict[str, Reservation]] = {}
        self._lost_hosts: set[str] = set()

    def __len__(self) -> int:
        return len(self._pending) + len(self._confirmed)

    def reserve(
        self, consumer: str, host_uuid: str, resources: Mapping[str, int], generation: int
    ) -> None:
        """Count resources as used on a host from now on.

        A consumer has one reservation: a second call replaces the first.

        :param generation: of the record that the choice was made on; a record
            of that generation or an older one cannot show this consumer
        """
        with self._lock:
            self._forget_some()
            former = self._drop(consumer)
            if former is not None and former.host_uuid != host_uuid:
                self._lost_hosts.add(former.host_uuid)
            held = Reservation(consumer, host_uuid, dict(resources), generation, self._clock())
            self._pending[consumer] = held
            self._by_host.setdefault(host_uuid, {})[consumer] = held
            if len(self) > self._max:
                self._lose(next(iter(self._confirmed or self._pending)))

    def confirm(self, consumer: str, counted_from: int | None = None) -> bool:
        """Say that the consumer's allocation is written; False if it is not reserved.

        :param counted_from: the provider's generation after the write, if known
        """
        with self._lock:
            held = self._drop(consumer)
            if held is None:
                return False
            held = held.confirm(self._clock(), counted_from)
            self._confirmed[consumer] = held
            self._by_host.setdefault(held.host_uuid, {})[consumer] = held
            return True

    def release(self, consumer: str) -> str | None:
        """Forget a reservation; return its host's uuid, None if there was none."""
        with self._lock:
            held = self._drop(consumer)
            return None if held is None else held.host_uuid

    def unseen(self, host_uuid: str, consumers: Container[str], generation: int) -> dict[str, int]:
        """Return what to count as used of a host beside its record, by resource class.

        Reservations that the record shows or must have counted are forgotten.

        :param consumers: consumers in the provider's record
        :param generation: of that record
        """
        with self._lock:
            used: dict[str, int] = {}
            for held in list(self._by_host.get(host_uuid, {}).values()):
                if _settled(held, consumers, generation):
                    self._drop(held.consumer)
                    continue
                for name, amount in held.resources.items():
                    used[name] = used.get(name, 0) + amount
            return used

    def expire(self) -> frozenset[str]:
        """Forget what is too old.

        :return: hosts that lost a reservation, since the last call, other than
            by :meth:`release` and :meth:`unseen`
        """
        with self._lock:
            self._forget_some()
            lost = frozenset(self._lost_hosts)
            self._lost_hosts.clear()
            return lost

    def _forget_some(self) -> None:
        now = self._clock()
        for held_by, seconds in (
            (self._pending, self._pending_seconds),
            (self._confirmed, self._confirmed_seconds),
        ):
            while held_by:
                oldest = next(iter(held_by.values()))
                if now - oldest.since_seconds < seconds:
                    break
                self._lose(oldest.consumer)

    def _lose(self, consumer: str) -> None:
        held = self._drop(consumer)
        if held is not None:
            self._lost_hosts.add(held.host_uuid)

    def _drop(self, consumer: str) -> Reservation | None:
        held = self._pending.pop(consumer, None) or self._confirmed.pop(consumer, None)
        if held is not None:
            of_host = self._by_host[held.host_uuid]
            del of_host[consumer]
            if not of_host:
                del self._by_host[held.host_uuid]
        return held


def _settled(held: Reservation, consumers: Container[str], generation: int) -> bool:
    if held.consumer in consumers:
        return True
    # A newer record without the consumer proves nothing by itself: another
    # writer may have raised the generation just before this one's write.
    return (
        held.counted_from is not None
        and generation >= held.counted_from
        and generation > held.generation
    )
