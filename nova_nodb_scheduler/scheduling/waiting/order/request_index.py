# SPDX-License-Identifier: Apache-2.0
"""All requests that are known, filed by who may be tried; kept in order as shares and ages change.

What one call does has a bound. Where a project's share grows, its lines are moved back when
their turn comes: until then they stand too far in front, and whoever looks puts them right.
Where it falls, those that stand too far behind are moved at once, some now and, where there
are very many, the rest with the next calls. They are those that were put by a greater share
than that of now: after a grant that has come to an end, the few that were looked at meanwhile.
They are moved a little too far, so that a share that falls server by server does not move all
of them each time.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Collection, Mapping

import sortedcontainers

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import backlog, fair_share, queue_settings
from nova_nodb_scheduler.scheduling.waiting.order import (
    demand_index,
    ordered_items,
    shape_index,
    shared_parts,
    waiting_lines,
)

#: Lines that one call moves because shares or ages changed.
MOST_MOVED = 256

#: By which part of their share lines are put that a fall moves.
_AHEAD = 0.875

_QueueKey = tuple[str, int, Mapping[str, int]]


class RequestIndex:
    """Entries by key, in lines, queues and shapes; O(log n) a request. Not safe for threads."""

    def __init__(
        self,
        settings: queue_settings.QueueSettings,
        shares: fair_share.FairShare,
        shapes: shape_index.ShapeIndex,
    ) -> None:
        self.settings = settings
        self.shapes = shapes
        self.entries: dict[str, waiting_lines.Entry] = {}
        #: Whether anything was filed elsewhere; who looks resets it.
        self.is_changed = False
        #: Queues that somebody waits in for a first try, and all of them in turn.
        self.fresh: collections.deque[waiting_lines.Queue] = collections.deque()
        self.swept: collections.deque[waiting_lines.Queue] = collections.deque()
        self._shares = shares
        self._is_fair = settings.order is queue_settings.Order.FAIR
        self._is_strict = settings.discipline is queue_settings.Discipline.STRICT
        self._parts = shared_parts.SharedParts()
        self._queues: dict[_QueueKey, waiting_lines.Queue] = {}
        #: What they ask for, whosever they are.
        self._demands = demand_index.DemandIndex(settings)
        self._projects: dict[str, waiting_lines.Project] = {}
        #: (when, number, what): when lines and the like count as a greater class.
        self._rises: sortedcontainers.SortedList = sortedcontainers.SortedList()
        self._numbers = itertools.count()
        #: Projects of which something may stand behind its turn.
        self._to_move: dict[waiting_lines.Project, None] = {}
        self._now = 0.0

    def enter(self, request: pending.PendingRequest) -> waiting_lines.Entry:
        """Return the entry of a request, a new one or the one it has, with this state of it.

        It stands in no line; :meth:`file` puts it into one.
        """
        request = self._parts.share(request)
        entry = self.entries.get(request.key)
        if entry is not None:
            self.leave(entry)
        self.shapes.learn(request.needs)
        queue = self._queue(request)
        queue.requests += 1
        self._project(request.project_id).requests += 1
        if entry is None:
            entry = waiting_lines.Entry(request, queue)
        else:
            entry.request, entry.queue = request, queue
        self.entries[request.key] = entry
        return entry

    def leave(self, entry: waiting_lines.Entry) -> None:
        """Forget a request; what else is known of the entry stays."""
        self.unfile(entry)
        request, queue = entry.request, entry.queue
        del self.entries[request.key]
        queue.requests -= 1
        if not queue.requests:
            del self._queues[_queue_key(request)]
            self._demands.leave(request)
        project = self._projects[request.project_id]
        project.requests -= 1
        if not project.requests:
            del self._projects[request.project_id]
            self._to_move.pop(project, None)

    def file(self, entry: waiting_lines.Entry, stage: waiting_lines.Stage, now: float) -> None:
        """Move a request to a stage, into or out of the lines."""
        self._now = max(self._now, now)
        self.unfile(entry)
        entry.stage = stage
        request, queue = entry.request, entry.queue
        class_index = self.settings.class_index(request.priority_class)
        if stage is waiting_lines.Stage.READY or (
            # Nobody goes before the first one, because that one rests.
            self._is_strict and stage is waiting_lines.Stage.RESTING
        ):
            line = self._line(queue, request, class_index)
            line.requests.add((request.asked_at, request.key))
            entry.line = line
            queue.ready += 1
            queue.demand.parked += 1
            self._place(line)
            if not queue.is_swept:
                queue.is_swept = True
                self.swept.append(queue)
        elif backlog.is_parked(request):
            tier = waiting_lines.tier(request.rank, class_index)
            entry.elsewhere = (tier, request.asked_at, request.key)
            if queue.elsewhere is None:
                queue.elsewhere = ordered_items.OrderedItems()
            queue.elsewhere.add(entry.elsewhere)
            queue.demand.parked += 1
            self._refresh_elsewhere(queue)

    def unfile(self, entry: waiting_lines.Entry) -> None:
        """Take a request out of the lines."""
        self.is_changed = True
        line, queue = entry.line, entry.queue
        if entry.elsewhere is not None and queue.elsewhere is not None:
            queue.elsewhere.remove(entry.elsewhere)
            entry.elsewhere = None
            queue.demand.parked -= 1
            if not queue.elsewhere:
                queue.elsewhere = None
            self._refresh_elsewhere(queue)
        if line is None:
            return
        line.requests.remove((entry.request.asked_at, entry.request.key))
        entry.line = None
        queue.ready -= 1
        queue.demand.parked -= 1
        self._place(line)
        if not line.requests:
            self._forget(line)

    def freshen(self, queue: waiting_lines.Queue) -> None:
        """Have the first of a queue tried, though no host grew."""
        if not queue.is_fresh:
            queue.is_fresh = True
            self.fresh.append(queue)

    def first_entry(self, line: waiting_lines.Line) -> waiting_lines.Entry:
        """Return the first request of a line that has one."""
        head = line.requests.first()
        if head is None:
            raise LookupError("a line without requests stands in the order")
        return self.entries[head[1]]

    def is_in_place(self, each: waiting_lines.InPlace) -> bool:
        """Say whether something stands where its project's share puts it; if not, put it there."""
        if each.placed is None or each.placed[1] == each.project.share:
            return True
        self._place(each)
        return False

    def first(self, level: int, without: Collection[str] = ()) -> waiting_lines.Line | None:
        """Return the first line of a level, of no queue whose digest is named; None: no line."""
        if not without:
            return self._settled(lambda: self.shapes.first(level))
        return self._settled(lambda: self.shapes.first_without(level, without))

    def first_of(self, queue: waiting_lines.Queue) -> waiting_lines.Line | None:
        """Return the first line of a queue; None where it has none."""
        return self._settled(queue.first)

    def is_behind_demand(self, demand: waiting_lines.Demand, key: waiting_lines.OrderKey) -> bool:
        """Say whether somebody of all queues that ask for the same goes before an order key."""
        return any(self._is_before(look, key) for look in (demand.first, demand.elsewhere.first))

    def is_behind_queue(self, queue: waiting_lines.Queue, key: waiting_lines.OrderKey) -> bool:
        """Say whether somebody of one queue goes before an order key."""
        return any(self._is_before(look, key) for look in (queue.first, queue.place_elsewhere))

    def order_key(self, request: pending.PendingRequest, now: float) -> waiting_lines.OrderKey:
        """Return where a request stands among all, or would."""
        settings = self.settings
        class_index = settings.class_index(request.priority_class)
        level = settings.level(class_index, now - request.asked_at)
        return (
            waiting_lines.tier(request.rank, level),
            self._share(request.project_id),
            request.asked_at,
            request.key,
        )

    def queue_of(self, request: pending.PendingRequest) -> waiting_lines.Queue | None:
        """Return the queue in which requests equal to this one are; None where there is none."""
        return self._queues.get(_queue_key(request))

    def demand_of(self, request: pending.PendingRequest) -> waiting_lines.Demand | None:
        """Return what a request asks for; None where nobody who is known asks for the same."""
        return self._demands.find(request)

    def reshare(self, project: str) -> None:
        """Note that a project's share may have changed."""
        known = self._projects.get(project)
        if known is None or not self._is_fair:
            return
        share = known.share = self._shares.share(project)
        if known.behind_its_turn() is None:
            return
        self._to_move[known] = None
        if not _AHEAD * _AHEAD * share <= known.ahead <= share:
            known.ahead = _AHEAD * share

    def reshare_all(self) -> None:
        """Note that every project's share may have changed; O(projects that wait)."""
        for project in list(self._projects):
            self.reshare(project)

    def move_due(self, now: float) -> bool:
        """Put lines where they belong by their shares and ages, some of them.

        :returns: whether there are more
        """
        self._now = max(self._now, now)
        for _ in range(MOST_MOVED):
            if not self._to_move:
                break
            project = next(iter(self._to_move))
            behind = project.behind_its_turn()
            if behind is None:
                del self._to_move[project]
            else:
                self._place(behind, project.ahead)
        for _ in range(MOST_MOVED):
            if not self._rises or self._rises[0][0] > self._now:
                break
            self._place(self._rises[0][2])
        return bool(self._to_move) or bool(self._rises and self._rises[0][0] <= now)

    def next_rise_at(self) -> float | None:
        """Return when the next line counts as a greater class."""
        return float(self._rises[0][0]) if self._rises else None

    def _is_before(
        self, look: Callable[[], waiting_lines.Placed | None], key: waiting_lines.OrderKey
    ) -> bool:
        """Say whether the first that is looked up goes before an order key.

        Nobody goes before the place where he stands. A request is not before itself.
        """
        for _ in range(MOST_MOVED):
            placed = look()
            if placed is None or placed[:4] >= key:
                return False
            if self.is_in_place(placed[4]):
                return True
        # As with so many that stand too far in front: the next who asks finds them put right.
        return True

    def _settled(
        self, look: Callable[[], waiting_lines.Placed | None]
    ) -> waiting_lines.Line | None:
        for _ in range(MOST_MOVED):
            placed = look()
            if placed is None or self.is_in_place(placed[4]):
                break
        return None if placed is None else placed[4]

    def _place(self, each: waiting_lines.InPlace, share: float | None = None) -> None:
        """Put something where it belongs, or where it would by another share."""
        before = each.placed
        if share is None:
            share = each.project.share
        if isinstance(each, waiting_lines.Line):
            self.shapes.place(each, share, self._now)
        elif isinstance(each, waiting_lines.FirstElsewhere):
            self._demands.place(each, share, self._now)
        self._note_place(each, before)

    def _note_place(self, each: waiting_lines.InPlace, before: waiting_lines.Placed | None) -> None:
        """Note by which share something stands now, and when it counts as a greater class."""
        placed, places = each.placed, each.project.places
        if before is None or placed is None or before[1] != placed[1]:
            if before is not None:
                places.remove((before[1], each.number, each))
            if placed is not None:
                places.add((placed[1], each.number, each))
        old = each.rise
        if old is not None:
            if old[0] == each.rises_at:
                return
            self._rises.remove(old)
            each.rise = None
        if each.rises_at < math.inf:
            each.rise = (each.rises_at, next(self._numbers), each)
            self._rises.add(each.rise)

    def _refresh_elsewhere(self, queue: waiting_lines.Queue) -> None:
        """See who is the first of a queue that is parked elsewhere."""
        old = queue.first_elsewhere
        head = None if queue.elsewhere is None else queue.elsewhere.first()
        if old is not None:
            if head is not None and old.head == head[1:]:
                return
            before = old.placed
            self._demands.unplace(old)
            self._note_place(old, before)
            queue.first_elsewhere = None
        if head is not None:
            request = self.entries[head[2]].request
            first = queue.first_elsewhere = waiting_lines.FirstElsewhere(
                queue,
                self._projects[request.project_id],
                self.settings.class_index(request.priority_class),
                request.rank,
                next(self._numbers),
                head[1:],
            )
            self._place(first)

    def _forget(self, line: waiting_lines.Line) -> None:
        del line.project.lines[line.queue, line.class_index, line.rank]

    def _share(self, project: str) -> float:
        return self._shares.share(project) if self._is_fair else 0.0

    def _project(self, name: str) -> waiting_lines.Project:
        found = self._projects.get(name)
        if found is None:
            found = self._projects[name] = waiting_lines.Project(name, self._share(name))
        return found

    def _queue(self, request: pending.PendingRequest) -> waiting_lines.Queue:
        key = _queue_key(request)
        found = self._queues.get(key)
        if found is None:
            levels = len(self.settings.classes)
            demand = self._demands.enter(request)
            found = waiting_lines.Queue(
                request.queue, len(request.servers), request.needs, levels, demand
            )
            self._queues[key] = found
        return found

    def _line(
        self, queue: waiting_lines.Queue, request: pending.PendingRequest, class_index: int
    ) -> waiting_lines.Line:
        project = self._projects[request.project_id]
        key = (queue, class_index, request.rank)
        found = project.lines.get(key)
        if found is None:
            found = waiting_lines.Line(
                queue, project, class_index, request.rank, next(self._numbers)
            )
            project.lines[key] = found
        return found


def _queue_key(request: pending.PendingRequest) -> _QueueKey:
    return request.queue, len(request.servers), request.needs
