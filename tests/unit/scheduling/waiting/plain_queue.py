# SPDX-License-Identifier: Apache-2.0
"""What WaitQueues should do, said plainly: lists that are sorted anew for each question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import backlog, queue_settings

WAITING = pending.PendingState.WAITING


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
    ) -> list[tuple[str, int, list[str]]]:
        """Return who was asked, for which attempt, with which hosts.

        :param answer: granted | left | refused | lost; the first host is taken for all servers
        """

        def uncharged(
            rooms: Mapping[str, Mapping[str, int]],
        ) -> dict[str, dict[str, int]]:
            return {
                host: {name: rooms[host][name] - self.charged(host, name) for name in rooms[host]}
                for host in hosts
            }

        free = uncharged(after)
        was = None if before is None else uncharged(before)
        holders = {host: self.holder(host, now) for host in hosts}

        def slots(room: Mapping[str, int], request: pending.PendingRequest) -> int:
            most = [room.get(n, 0) // amount for n, amount in request.needs.items() if amount]
            return max(0, min([len(request.servers), *most]))

        def helped(request: pending.PendingRequest) -> list[str]:
            found = []
            for host in hosts:
                if holders[host] is not None:
                    is_helped = holders[host] == request.key and slots(free[host], request) > 0
                else:
                    old = 0 if was is None else slots(was[host], request)
                    is_helped = slots(free[host], request) > old
                if is_helped:
                    found.append(host)
            return found

        asked = []
        refused: set[object] = set()
        first = [key for key in holders.values() if key is not None]
        first.sort(key=lambda key: self.order(self.known[key].request, now))
        while True:
            chosen = None if self.is_strict else self._holder(first, now, helped, refused)
            chosen = chosen or self._next(now, helped, refused)
            if chosen is None:
                return asked
            request = chosen.request
            found = helped(request)
            asked.append((request.key, chosen.attempt + 1, found))
            said = answer(request, found)
            if said == "refused":
                refused.add(self.level(request, now) if self.is_strict else queue(request))
            elif said == "lost":
                chosen.here, chosen.until = "lost", now + self.settings.lease_seconds
            else:
                self.take(chosen, said, [found[0]] * len(request.servers), now)
                for name, amount in request.needs.items():
                    free[found[0]][name] = free[found[0]].get(name, 0) - amount * len(
                        request.servers
                    )

    def take(self, known: Known, said: str, hosts: Iterable[str], now: float) -> None:
        known.here, known.until = said, now + 50.0
        known.attempt += said == "granted"
        counted: dict[str, int] = {}
        for host in hosts:
            counted[host] = counted.get(host, 0) + 1
        known.charge = known.attempt, counted

    def _holder(
        self,
        first: list[str],
        now: float,
        helped: Callable[[pending.PendingRequest], list[str]],
        refused: set[object],
    ) -> Known | None:
        while first:
            known = self.known[first.pop(0)]
            if self.is_ready(known, now):
                if helped(known.request):
                    return known
                refused.add(queue(known.request))
        return None

    def _next(
        self,
        now: float,
        helped: Callable[[pending.PendingRequest], list[str]],
        refused: set[object],
    ) -> Known | None:
        lines = [each for each in self.known.values() if self.is_in_line(each, now)]
        for each in sorted(lines, key=lambda each: self.order(each.request, now)):
            group = self.level(each.request, now) if self.is_strict else queue(each.request)
            if group in refused:
                continue
            if self.is_ready(each, now) and helped(each.request):
                return each
            refused.add(group)
        return None


def queue(request: pending.PendingRequest) -> tuple[object, ...]:
    """Return what requests with equal chances have in common."""
    return request.queue, len(request.servers), tuple(sorted(request.needs.items()))


def demand(request: pending.PendingRequest) -> tuple[object, ...]:
    """Return what requests that ask for the same have in common, whosever they are."""
    return (pending.demand(request.queue), *queue(request)[1:])
