# SPDX-License-Identifier: Apache-2.0
"""What WaitQueues should do, said plainly: lists that are sorted anew for each question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import backlog, queue_settings

WAITING = pending.PendingState.WAITING

#: A key, the attempt, and the hosts that it may be helped by.
Asked: TypeAlias = tuple[str, int, list[str]]


@attrs.define
class Known:
    """One request, and what was done with it here since its record was written."""

    request: pending.PendingRequest
    attempt: int
    #: granted | left | lost; empty: as the record says
    here: str = ""
    until: float = 0.0
    shown: int = 0
    charge: tuple[int, dict[str, int]] | None = None


class PlainQueue:
    """All that is known, in a dictionary."""

    def __init__(self, settings: queue_settings.QueueSettings) -> None:
        self.settings = settings
        self.known: dict[str, Known] = {}
        self.used: dict[str, Mapping[str, int]] = {}
        self.capacity: Mapping[str, int] = {}
        self.is_strict = settings.discipline is queue_settings.Discipline.STRICT

    def put(self, request: pending.PendingRequest) -> None:
        old = self.known.get(request.key)
        if old is not None and request.grant.attempt < old.attempt:
            old.request = request
            return
        grant = request.grant
        new = Known(request, grant.attempt, shown=old.shown if old else 0)
        if request.state is not WAITING:
            if old is not None and old.charge is not None and old.charge[0] == grant.attempt:
                new.charge = old.charge
            elif grant.host and grant.purpose is pending.Purpose.PLACE:
                if new.shown != grant.attempt:
                    new.charge = grant.attempt, {grant.host: 1}
        self.known[request.key] = new

    def drop(self, key: str) -> None:
        self.known.pop(key, None)

    def show(self, key: str) -> None:
        if key in self.known:
            self.known[key].shown = self.known[key].attempt
            self.known[key].charge = None

    def advance(self, now: float) -> None:
        for each in self.known.values():
            if each.here and each.until <= now:
                each.here, each.charge = "", None
                each.attempt = each.request.grant.attempt
            elif each.request.state is not WAITING and each.request.grant.until_seconds <= now:
                each.charge = None

    def level(self, request: pending.PendingRequest, now: float) -> int:
        classes = self.settings.classes
        own = next((c for c in classes if c.name == request.priority_class), classes[0])
        number = own.number
        if self.settings.aging_seconds:
            number += int((now - request.asked_at) / self.settings.aging_seconds)
        return max(
            index
            for index, each in enumerate(classes)
            if own.number <= each.number <= max(number, own.number)
        )

    def share(self, project: str) -> float:
        has = dict(self.used.get(project, {}))
        for each in self.known.values():
            if each.charge is not None and each.request.project_id == project:
                for name, amount in each.request.needs.items():
                    has[name] = has.get(name, 0) + amount * len(each.request.servers)
        parts = [has.get(name, 0) / whole for name, whole in self.capacity.items()]
        return max(parts, default=0.0) / self.settings.project_weights.get(project, 1.0)

    def order(self, request: pending.PendingRequest, now: float) -> tuple[object, ...]:
        is_fair = self.settings.order is queue_settings.Order.FAIR
        return (
            -request.rank,
            -self.level(request, now),
            self.share(request.project_id) if is_fair else 0,
            request.asked_at,
            request.key,
        )

    def is_ready(self, each: Known, now: float) -> bool:
        request = each.request
        return (
            request.state is WAITING
            and not each.here
            and request.not_before <= now < request.deadline_at
        )

    def is_in_line(self, each: Known, now: float) -> bool:
        request = each.request
        is_waiting = request.state is WAITING and not each.here and now < request.deadline_at
        return is_waiting if self.is_strict else self.is_ready(each, now)

    def behind(self, request: pending.PendingRequest, now: float, *, of_others: bool = True) -> int:
        """Return behind how many a newcomer is: each queue is looked at for itself."""
        key = self.order(request, now)
        if self.is_strict:
            level = self.level(request, now)
            first = min(
                (
                    self.order(each.request, now)
                    for each in self.known.values()
                    if self.is_in_line(each, now) and self.level(each.request, now) == level
                ),
                default=key,
            )
            same = [
                each
                for each in self.known.values()
                if backlog.is_parked(each.request)
                and each.request.priority_class == request.priority_class
            ]
            return max(len(same), 1) if first < key else 0
        queues: dict[tuple[object, ...], list[Known]] = {}
        for each in self.known.values():
            if demand(each.request) == demand(request):
                queues.setdefault(queue(each.request), []).append(each)
        if not of_others:
            queues = {name: each for name, each in queues.items() if name == queue(request)}
        count, is_behind = 0, False
        for members in queues.values():
            ready = [each.request for each in members if self.is_in_line(each, now)]
            elsewhere = [
                each.request
                for each in members
                if backlog.is_parked(each.request) and not self.is_in_line(each, now)
            ]
            count += len(ready) + len(elsewhere)
            is_behind |= any(self.order(each, now) < key for each in ready)
            first_elsewhere = min(elsewhere, key=self._by_class, default=request)
            if first_elsewhere.key != request.key:
                is_behind |= self.order(first_elsewhere, now) < key
        return count if is_behind else 0

    def _by_class(self, request: pending.PendingRequest) -> tuple[object, ...]:
        class_index = self.settings.class_index(request.priority_class)
        return -request.rank, -class_index, request.asked_at, request.key

    def holder(self, host: str, now: float) -> str | None:
        holds = [
            (each.request.hold.until_seconds, key)
            for key, each in self.known.items()
            if each.request.hold is not None
            and each.request.hold.host == host
            and each.request.hold.until_seconds > now
        ]
        return min(holds)[1] if holds else None

    def charged(self, host: str, name: str) -> int:
        return sum(
            each.request.needs.get(name, 0) * each.charge[1].get(host, 0)
            for each in self.known.values()
            if each.charge is not None
        )

    def wake(
        self,
        hosts: Sequence[str],
        after: Mapping[str, Mapping[str, int]],
        before: Mapping[str, Mapping[str, int]] | None,
        now: float,
        answer: Callable[[pending.PendingRequest, list[str]], str],
    ) -> list[Asked]:
        """Return who was asked, for which attempt, with which hosts.

        :param answer: granted | left | refused | lost; the first host is taken for all servers
        """
        walk = PlainWalk(self, hosts, after, before, now)
        asked = []
        while (each := walk.next(now)) is not None:
            asked.append(each)
            walk.answer(answer(self.known[each[0]].request, each[2]), now)
        return asked

    def take(self, known: Known, said: str, hosts: Iterable[str], now: float) -> None:
        known.here, known.until = said, now + 50.0
        known.attempt += said == "granted"
        counted: dict[str, int] = {}
        for host in hosts:
            counted[host] = counted.get(host, 0) + 1
        known.charge = known.attempt, counted


class PlainWalk:
    """One way through all, of which every step begins anew at the front.

    :param after: by host and resource class; ``before`` alike
    """

    def __init__(
        self,
        plain: PlainQueue,
        hosts: Sequence[str],
        after: Mapping[str, Mapping[str, int]],
        before: Mapping[str, Mapping[str, int]] | None,
        now: float,
    ) -> None:
        self._plain = plain
        self._began_at = now
        self._hosts = hosts
        self._free = self._uncharged(after)
        self._was = None if before is None else self._uncharged(before)
        self._holds = {host: plain.holder(host, now) for host in hosts}
        self._first = [key for key in self._holds.values() if key is not None]
        self._first.sort(key=lambda key: plain.order(plain.known[key].request, now))
        self._refused: set[object] = set()
        #: Who was asked, by which record, of which group, and by which hosts it may be helped.
        self._asked: tuple[Known, pending.PendingRequest, object, list[str]] | None = None

    def next(self, now: float) -> Asked | None:
        """Return who is asked next."""
        chosen = None if self._plain.is_strict else self._holder(now)
        chosen = chosen or self._next(now)
        if chosen is None:
            return None
        found = self._helped(chosen.request)
        self._asked = chosen, chosen.request, self._group(chosen.request, now), found
        return chosen.request.key, chosen.attempt + 1, found

    def answer(self, said: str, now: float) -> None:
        """Do what the answer says, unless its record is another one by now."""
        assert self._asked is not None
        chosen, request, group, found = self._asked
        is_same = self._plain.known.get(request.key) is chosen and chosen.request is request
        if said == "refused":
            self._refused.add(group)
        elif said == "lost":
            if is_same:
                chosen.here = "lost"
                chosen.until = self._began_at + self._plain.settings.lease_seconds
        else:
            if is_same:
                self._plain.take(chosen, said, [found[0]] * len(request.servers), now)
            room = self._free[found[0]]
            for name, amount in request.needs.items():
                room[name] = room.get(name, 0) - amount * len(request.servers)

    def _group(self, request: pending.PendingRequest, now: float) -> object:
        return self._plain.level(request, now) if self._plain.is_strict else queue(request)

    def _holder(self, now: float) -> Known | None:
        while self._first:
            known = self._plain.known.get(self._first.pop(0))
            if known is not None and self._plain.is_ready(known, now):
                if self._helped(known.request):
                    return known
                self._refused.add(queue(known.request))
        return None

    def _next(self, now: float) -> Known | None:
        plain = self._plain
        lines = [each for each in plain.known.values() if plain.is_in_line(each, now)]
        for each in sorted(lines, key=lambda each: plain.order(each.request, now)):
            group = self._group(each.request, now)
            if group in self._refused:
                continue
            if plain.is_ready(each, now) and self._helped(each.request):
                return each
            self._refused.add(group)
        return None

    def _helped(self, request: pending.PendingRequest) -> list[str]:
        found = []
        for host in self._hosts:
            if self._holds[host] is not None:
                is_helped = self._holds[host] == request.key and slots(self._free[host], request)
            else:
                old = 0 if self._was is None else slots(self._was[host], request)
                is_helped = slots(self._free[host], request) > old
            if is_helped:
                found.append(host)
        return found

    def _uncharged(self, rooms: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        return {
            host: {
                name: amount - self._plain.charged(host, name)
                for name, amount in rooms[host].items()
            }
            for host in self._hosts
        }


def slots(room: Mapping[str, int], request: pending.PendingRequest) -> int:
    """Return how many servers of a request some room takes, of those that it has."""
    most = [room.get(name, 0) // amount for name, amount in request.needs.items() if amount]
    return max(0, min([len(request.servers), *most]))


def queue(request: pending.PendingRequest) -> tuple[object, ...]:
    """Return what requests with equal chances have in common."""
    return request.queue, len(request.servers), tuple(sorted(request.needs.items()))


def demand(request: pending.PendingRequest) -> tuple[object, ...]:
    """Return what requests that ask for the same have in common, whosever they are."""
    return (pending.demand(request.queue), *queue(request)[1:])
