# SPDX-License-Identifier: Apache-2.0
"""What becomes of each request: its record, what was done with it here, and time.

========= ========================================== ==================================
stage     entered by                                 left by
========= ========================================== ==================================
ready     a record that waits, and no pause is left  a grant, its deadline
resting   a record that waits, after a refusal       the end of the pause
in flight a grant of this process, or a record that  a record that waits again; the end
          another has in hand                        of the lease is told to the caller
aside     another process was faster, or is to       its record; or, if that does not
          grant it                                   come, after a while
overdue   its deadline                               its record; told to the caller
========= ========================================== ==================================

A record of an attempt before the one that was granted here is old news: the grant was a
compare-and-set, so that no such record can be written after it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

import attrs
import sortedcontainers

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import (
    backlog,
    fair_share,
    grants_in_flight,
    host_holds,
    queue_settings,
)
from nova_nodb_scheduler.scheduling.waiting.order import (
    request_index,
    resource_axis,
    shape_index,
    waiting_lines,
)

_Stage = waiting_lines.Stage

#: Timers that one call handles.
MOST_DUE = 1000


class DueReason(enum.Enum):
    """Why a request is to be granted although no host grew."""

    DEADLINE = "its deadline has passed"
    LEASE_ENDED = "who had it in hand is silent"
    PLACED = "its servers were sent a while ago, and are looked for on their hosts"


@attrs.frozen
class Due:
    """A request that is to be granted now, whether it can be placed or not.

    :param attempt: to be granted
    :param purpose: of the grant
    """

    request: pending.PendingRequest
    attempt: int
    reason: DueReason
    purpose: pending.Purpose


class RequestBook:
    """Requests by key; O(log n) a call. Not safe for threads."""

    def __init__(
        self, settings: queue_settings.QueueSettings, *, most_exact: int = shape_index.MOST_EXACT
    ) -> None:
        self.shares = fair_share.FairShare(settings.project_weights)
        self.charges = grants_in_flight.GrantsInFlight(self.shares)
        self.holds = host_holds.HostHolds()
        self.backlog = backlog.Backlog(settings.max_pending, settings.max_pending_per_project)
        shapes = shape_index.ShapeIndex(most_exact=most_exact)
        self.index = request_index.RequestIndex(settings, self.shares, shapes)
        self.axis: resource_axis.ResourceAxis = shapes.axis
        self._settings = settings
        #: How many requests were let go, and wait for nobody but their hosts.
        self.let_go = 0
        #: (when, key); a request has one timer at most.
        self._timers: sortedcontainers.SortedList = sortedcontainers.SortedList()

    def entry(self, key: str) -> waiting_lines.Entry | None:
        """Return what is known of a request."""
        return self.index.entries.get(key)

    def put(self, request: pending.PendingRequest, now: float) -> None:
        """Take over a record."""
        old = self.entry(request.key)
        attempt = 0
        if old is not None:
            attempt = old.attempt
            self.let_go -= pending.is_let_go(old.request)
            if backlog.is_parked(old.request):
                self.backlog.remove(old.request)
        entry = self.index.enter(request)
        request = entry.request
        self.let_go += pending.is_let_go(request)
        if backlog.is_parked(request):
            self.backlog.add(request)
        self.holds.put(request.key, request.hold)
        if request.grant.attempt < attempt:
            self.index.file(entry, _Stage.IN_FLIGHT, now)
            return
        entry.attempt = request.grant.attempt
        self._charge_by_record(entry, now)
        self._file_by_record(entry, now)

    def drop(self, key: str, now: float) -> None:
        """Forget a request whose record is gone; one that is not known does not matter."""
        entry = self.entry(key)
        if entry is None:
            return
        if backlog.is_parked(entry.request):
            self.backlog.remove(entry.request)
        self.let_go -= pending.is_let_go(entry.request)
        self._set_due(entry, math.inf)
        self._uncharge(entry, now)
        self.holds.drop(key)
        self.index.leave(entry)

    def show(self, key: str, now: float) -> None:
        """Charge a request no longer: its servers stand among what their hosts use."""
        entry = self.entry(key)
        if entry is not None:
            entry.shown = entry.attempt
            self._uncharge(entry, now, is_shown=True)

    def grant(
        self, entry: waiting_lines.Entry, hosts: Mapping[str, int], until: float, now: float
    ) -> None:
        """Note that this process has granted a request, until a time at the latest."""
        entry.attempt += 1
        self._charge(entry, hosts, now)
        self.index.file(entry, _Stage.IN_FLIGHT, now)
        self._set_due(entry, until)

    def leave(
        self, entry: waiting_lines.Entry, hosts: Mapping[str, int], until: float, now: float
    ) -> None:
        """Note that another process is to grant a request, which has its room until then."""
        self._charge(entry, hosts, now)
        self.index.file(entry, _Stage.ASIDE, now)
        self._set_due(entry, until)

    def lose(self, entry: waiting_lines.Entry, now: float) -> None:
        """Note that another process has changed a request's record, which will come."""
        self.index.file(entry, _Stage.ASIDE, now)
        self._set_due(entry, now + self._settings.lease_seconds)

    def end_time(self, entry: waiting_lines.Entry, now: float) -> None:
        """Note that a request's deadline has passed: it is tried no more."""
        self.index.file(entry, _Stage.OVERDUE, now)
        self._set_due(entry, now)

    def regrant(self, key: str, purpose: pending.Purpose, until: float, now: float) -> None:
        """Note that this process has granted a request that was due."""
        entry = self.entry(key)
        if entry is None:
            return
        self.grant(entry, {}, until, now)
        # What is placed is looked for, and takes no more than it has.
        if purpose is not pending.Purpose.PLACE or entry.request.placed_at:
            self._uncharge(entry, now)

    def next_due_at(self) -> float | None:
        """Return when :meth:`advance` has something to do next; O(1)."""
        times = [self.index.next_rise_at(), self._timers[0][0] if self._timers else None]
        return min((at for at in times if at is not None), default=None)

    def advance(self, now: float) -> tuple[Due, ...]:
        """Do what the time demands, at most :data:`MOST_DUE` requests.

        :returns: those that are to be granted. One for which nothing happens comes again
            after ``lease_seconds``
        """
        self.index.move_due(now)
        self.holds.end_overdue(now)
        found = []
        for _ in range(MOST_DUE):
            if not self._timers or self._timers[0][0] > now:
                break
            entry = self.index.entries[self._timers[0][1]]
            due = self._time(entry, now)
            if due is not None:
                found.append(due)
        return tuple(found)

    def reshare(self, project: str, now: float) -> None:
        """Move a project's requests to where its share puts them now."""
        self.index.reshare(project)
        self.index.move_due(now)

    def _time(self, entry: waiting_lines.Entry, now: float) -> Due | None:
        request = entry.request
        if request.grant.attempt < entry.attempt:
            # The grant of this process never showed: it was not written after all.
            entry.attempt = request.grant.attempt
        elif entry.stage is _Stage.IN_FLIGHT:
            self._uncharge(entry, now)
            self._set_due(entry, now + self._settings.lease_seconds)
            reason = DueReason.PLACED if request.placed_at else DueReason.LEASE_ENDED
            return Due(request, entry.attempt + 1, reason, _purpose(request, now))
        self._uncharge(entry, now)
        if request.ends_at > now or request.placed_at:
            self._file_by_record(entry, now)
            return None
        self.index.file(entry, _Stage.OVERDUE, now)
        self._set_due(entry, now + self._settings.lease_seconds)
        return Due(request, entry.attempt + 1, DueReason.DEADLINE, pending.Purpose.EXPIRE)

    def _file_by_record(self, entry: waiting_lines.Entry, now: float) -> None:
        request = entry.request
        if request.state is not pending.PendingState.WAITING:
            self.index.file(entry, _Stage.IN_FLIGHT, now)
            self._set_due(entry, request.grant.until_seconds)
        elif request.ends_at <= now:
            self.index.file(entry, _Stage.OVERDUE, now)
            self._set_due(entry, request.ends_at)
        elif self._pauses(request, now):
            self.index.file(entry, _Stage.RESTING, now)
            self._set_due(entry, min(request.not_before, request.ends_at))
        else:
            self.index.file(entry, _Stage.READY, now)
            self._set_due(entry, request.ends_at)
            self.index.freshen(entry.queue)

    def _pauses(self, request: pending.PendingRequest, now: float) -> bool:
        # No pause is longer by far: one that seems so is of a clock that was set back.
        most = 2 * self._settings.most_backoff_seconds
        return 0.0 < request.not_before - now <= most

    def _set_due(self, entry: waiting_lines.Entry, at: float) -> None:
        if at == entry.due_at:
            return
        key = entry.request.key
        if entry.due_at < math.inf:
            self._timers.remove((entry.due_at, key))
        entry.due_at = at
        if at < math.inf:
            self._timers.add((at, key))

    def _charge_by_record(self, entry: waiting_lines.Entry, now: float) -> None:
        grant = entry.request.grant
        if entry.request.state is pending.PendingState.WAITING:
            self._uncharge(entry, now)
            return
        charge = self.charges.get(entry.request.key)
        if charge is not None and charge.attempt == grant.attempt:
            return
        is_known = grant.host and grant.purpose is pending.Purpose.PLACE
        if is_known and entry.shown != grant.attempt:
            self._charge(entry, {grant.host: 1}, now)
        else:
            self._uncharge(entry, now)

    def _charge(self, entry: waiting_lines.Entry, hosts: Mapping[str, int], now: float) -> None:
        request = entry.request
        project, servers = request.project_id, len(request.unsent)
        self.charges.put(
            request.key,
            grants_in_flight.Charge(entry.attempt, project, request.needs, servers, hosts),
        )
        self.reshare(project, now)

    def _uncharge(self, entry: waiting_lines.Entry, now: float, *, is_shown: bool = False) -> None:
        charge = self.charges.end(entry.request.key, is_shown=is_shown)
        if charge is not None:
            self.reshare(charge.project, now)


def _purpose(request: pending.PendingRequest, now: float) -> pending.Purpose:
    """Return what a request is granted for whose holder is silent, or that is in nobody's hand.

    What was sent is looked for: it has no deadline.
    """
    if not request.placed_at and request.grant.purpose is pending.Purpose.CANCEL:
        return pending.Purpose.CANCEL
    is_over = bool(request.unsent) and request.ends_at <= now
    return pending.Purpose.EXPIRE if is_over else pending.Purpose.PLACE
