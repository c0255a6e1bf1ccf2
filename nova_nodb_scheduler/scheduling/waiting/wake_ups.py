# SPDX-License-Identifier: Apache-2.0
"""Who is to be tried because something happened, one after the other.

A :class:`WakeUp` is one walk through the requests that an event may help. The caller asks
for the next candidate, finds out whether it can be placed, and answers. What a grant takes
is gone for those behind. The walk ends when nobody is left who may fit, or when it has
cost enough; who was not reached then is found by the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import grown_hosts, request_book, walks
from nova_nodb_scheduler.scheduling.waiting.order import waiting_lines


@attrs.frozen
class Candidate:
    """A request that is to be tried now.

    :param attempt: to be granted
    :param hosts: node uuids of those that grew and have room for one of its servers at
        least, as in the growth; None: no host in particular grew, any may do, but for those
        that are held for others
    """

    request: pending.PendingRequest
    attempt: int
    hosts: tuple[str, ...] | None


class WakeUp:
    """One walk; made by :class:`~wait_queues.WaitQueues`. Not safe for threads.

    ``next`` gives a candidate, or None at the end. Each must be answered, by one of
    ``granted``, ``left``, ``refused`` and ``lost``, before the next one is asked for.
    Requests may be put and dropped meanwhile.
    """

    def __init__(
        self,
        book: request_book.RequestBook,
        walk: walks.Walk,
        hosts: grown_hosts.GrownHosts | None,
        now: float,
    ) -> None:
        self._book = book
        self._walk = walk
        self._hosts = hosts
        self._now = now
        self._asked: tuple[waiting_lines.Entry, pending.PendingRequest] | None = None

    @property
    def is_cut_short(self) -> bool:
        """Whether it has cost enough before everybody was looked at."""
        walk = self._walk
        return walk.costs.is_spent

    def next(self) -> Candidate | None:
        """Return who is to be tried next; None: nobody any more.

        :raises RuntimeError: the last candidate was not answered
        """
        walk = self._walk
        if self._asked is not None:
            raise RuntimeError("answer the last candidate before asking for the next one")
        while (entry := walk.next()) is not None:
            candidate = self._candidate(entry)
            if candidate is not None:
                self._asked = entry, entry.request
                return candidate
            walk.costs.passed += 1
        return None

    def granted(self, hosts: Iterable[str], until_seconds: float) -> None:
        """Say that the request is granted, by a compare-and-set that won.

        :param hosts: node uuids on which its servers are expected, one for each server;
            fewer, or none, where that is not known
        :param until_seconds: end of the grant's lease
        """
        entry, is_same = self._answer()
        counted = self._take(entry, hosts)
        if is_same:
            self._book.grant(entry, counted, until_seconds, self._now)
        self._walk.again(entry)

    def left(self, hosts: Iterable[str], until_seconds: float) -> None:
        """Say that the request fits, and that another scheduler is to grant it.

        Its room is charged as if it were granted, so that nobody behind it takes that. Once
        the time has passed and its record says nothing else, it is a candidate again.
        """
        entry, is_same = self._answer()
        counted = self._take(entry, hosts)
        if is_same:
            self._book.leave(entry, counted, until_seconds, self._now)
        self._walk.again(entry)

    def refused(self) -> None:
        """Say that it cannot be placed: nor can any with equal chances, in this wake-up."""
        walk = self._walk
        entry, _ = self._answer()
        walk.costs.tried += 1
        walk.refuse(entry)

    def lost(self) -> None:
        """Say that its compare-and-set was lost: it is left alone until its record comes."""
        walk = self._walk
        entry, is_same = self._answer()
        walk.costs.tried += 1
        if is_same:
            self._book.lose(entry, self._now)
        walk.again(entry)

    def _candidate(self, entry: waiting_lines.Entry) -> Candidate | None:
        book = self._book
        request = entry.request
        if request.ends_at <= self._now:
            book.end_time(entry, self._now)
            self._walk.again(entry)
            return None
        hosts: tuple[str, ...] | None = None
        if self._hosts is not None:
            needs = book.axis.vector(request.needs)
            hosts = self._hosts.helped(request.key, needs, entry.queue.servers)
        # In strict order the first of a class may be one that rests.
        if entry.stage is not waiting_lines.Stage.READY:
            self._walk.refuse(entry)
            return None
        if hosts == ():
            self._walk.unhelped(entry)
            return None
        return Candidate(request, entry.attempt + 1, hosts)

    def _answer(self) -> tuple[waiting_lines.Entry, bool]:
        """Return the candidate, and whether its record is still the one that was tried."""
        if self._asked is None:
            raise RuntimeError("there is no candidate to answer")
        (entry, request), self._asked = self._asked, None
        return entry, self._book.entry(request.key) is entry and entry.request is request

    def _take(self, entry: waiting_lines.Entry, hosts: Iterable[str]) -> dict[str, int]:
        book = self._book
        counted: dict[str, int] = {}
        for host in hosts:
            counted[host] = counted.get(host, 0) + 1
        if self._hosts is not None:
            needs = book.axis.vector(entry.request.needs)
            self._hosts.take(counted, needs)
        return counted
