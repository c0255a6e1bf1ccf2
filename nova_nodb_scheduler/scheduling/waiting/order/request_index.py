# SPDX-License-Identifier: Apache-2.0
"""All requests that are known, filed by who may be tried; kept in order as shares and ages change.

A share that changes moves its project's standings at once, which are few: see :mod:`standings`.
So the order has no part of its own for each queue or demand, which are as many as there are
flavors: who is the first of one is looked up among its lines where these are few, and otherwise
mostly met early on the way through all. Where it is not (all the others who wait in front ask for
the same in another zone, say), it is looked up among its lines after all.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Collection, Iterable, Mapping

import sortedcontainers

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import backlog, fair_share, queue_settings
from nova_nodb_scheduler.scheduling.waiting.order import (
    demand_index,
    order_reader,
    ordered_items,
    shape_index,
    shared_parts,
    standings,
    waiting_lines,
)

#: Things that one call moves because they count as a greater class.
MOST_MOVED = 256

#: Lines of which the first is looked up among themselves.
_FEW = 16

#: A thing that is met on the way through all costs as much as so many lines of one's own.
_LINES_PER_LOOK = 16

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
        self._demands = demand_index.DemandIndex(shapes)
        self._projects: dict[str, waiting_lines.Project] = {}
        #: Lines that have requests, and the first of each queue that is parked elsewhere.
        self._lines = standings.Standings()
        self._elsewhere = standings.Standings()
        #: (when, number, what): when lines and the like count as a greater class.
        self._rises: sortedcontainers.SortedList = sortedcontainers.SortedList()
        self._numbers = itertools.count()
        self._now = 0.0

    def enter(self, request: pending.PendingRequest) -> waiting_lines.Entry:
        """Return the entry of a request, a new one or the one it has, with this state of it.

        It stands in no line; :meth:`file` puts it into one.
        """
        request = self._parts.share(request)
        entry = self.entries.get(request.key)
        self.shapes.learn(request.needs)
        queue = self._queue(request)
        queue.requests += 1
        self._project(request.project_id).requests += 1
        if entry is not None:
            # Behind that, so that its queue stays the one that a walk may know.
            self.leave(entry)
            entry.request, entry.queue = request, queue
        else:
            entry = waiting_lines.Entry(request, queue)
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
            self._demands.leave(request, queue)
        project = self._projects[request.project_id]
        project.requests -= 1
        if not project.requests:
            del self._projects[request.project_id]

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
            self._place(line, self._lines)
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
        self._place(line, self._lines)
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

    def reader(self, most_looks: int) -> order_reader.OrderReader:
        """Return a way through all lines in order, with so many looks at the most."""
        return order_reader.OrderReader(self._lines, most_looks=most_looks)

    def first(self, level: int, without: Collection[str] = ()) -> waiting_lines.Line | None:
        """Return the first line of a level, of no queue whose digest is named; None: no line."""
        reader = order_reader.OrderReader(self._lines, level=level)
        found = reader.next(self.shapes.all(), lambda line: line.queue.digest not in without)
        return found if isinstance(found, waiting_lines.Line) else None

    def first_of(self, queue: waiting_lines.Queue) -> waiting_lines.Line | None:
        """Return the first line of a queue; None where it has none."""
        lines = queue.lines
        if len(lines) > _FEW:
            reader = self._brief_reader(self._lines, len(lines))
            rows = self.shapes.only(queue.shape)
            found = reader.next(rows, lambda line: line.queue is queue)
            if isinstance(found, waiting_lines.Line):
                return found
        return min(lines.values(), key=waiting_lines.Line.order_key, default=None)

    def is_behind_demand(self, demand: waiting_lines.Demand, key: waiting_lines.OrderKey) -> bool:
        """Say whether somebody of all queues that ask for the same goes before an order key.

        Nobody goes before the place where he stands. A request is not before itself.
        """
        lines = (line for queue in demand.queues for line in queue.lines.values())
        firsts = (
            queue.first_elsewhere for queue in demand.queues if queue.first_elsewhere is not None
        )
        return self._is_any_before(
            key, demand, self._lines, lines, demand.lines
        ) or self._is_any_before(key, demand, self._elsewhere, firsts, demand.elsewhere)

    def is_behind_queue(self, queue: waiting_lines.Queue, key: waiting_lines.OrderKey) -> bool:
        """Say whether somebody of one queue goes before an order key."""
        firsts = self.first_of(queue), queue.first_elsewhere
        return any(each is not None and each.order_key() < key for each in firsts)

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
        """Move what a project has to where its share puts it now."""
        known = self._projects.get(project)
        if known is not None and self._is_fair:
            standings.reshare(known.group, self._shares.share(project))

    def reshare_all(self) -> None:
        """Move what all projects have to where their shares put it; O(projects that wait)."""
        for project in list(self._projects):
            self.reshare(project)

    def move_due(self, now: float) -> None:
        """Put lines and the like where they belong by their ages, some of them."""
        self._now = max(self._now, now)
        for _ in range(MOST_MOVED):
            if not self._rises or self._rises[0][0] > self._now:
                break
            each = self._rises[0][2]
            if not isinstance(each, waiting_lines.Line):
                self._place(each, self._elsewhere)
            elif each.level is None:
                self._place(each, self._lines)
            else:
                entry = self.first_entry(each)
                self.file(entry, entry.stage, self._now)

    def next_rise_at(self) -> float | None:
        """Return when the next line counts as a greater class."""
        return float(self._rises[0][0]) if self._rises else None

    def _is_any_before(
        self,
        key: waiting_lines.OrderKey,
        demand: waiting_lines.Demand,
        order: standings.Standings,
        members: Iterable[waiting_lines.InPlace],
        count: int,
    ) -> bool:
        """Say whether the first of a demand's members of an order goes before a key."""
        if not count:
            return False
        if count > _FEW:
            rows = self.shapes.only(demand.shape)
            found = self._brief_reader(order, count).next(
                rows, lambda each: each.queue.demand is demand
            )
            if found is not None:
                return found.order_key() < key
        return any(each.order_key() < key for each in members)

    @staticmethod
    def _brief_reader(order: standings.Standings, count: int) -> order_reader.OrderReader:
        """Return a way through an order that costs no more than a look at so many lines."""
        return order_reader.OrderReader(order, most_looks=count // _LINES_PER_LOOK)

    def _place(self, each: waiting_lines.InPlace, order: standings.Standings) -> None:
        """Put something where it belongs by its first request and what that counts as."""
        head, old = each.head(), each.item
        if head is None:
            self._unplace(each, order)
            return
        level = each.count_as(self.settings, head[0], self._now)
        self._note_rise(each)
        tier = waiting_lines.tier(each.rank, level)
        if old is not None and each.tier == tier and old[:2] == head:
            return
        shape = each.queue.shape
        each.item = (*head, shape.row, each)
        if old is not None and each.tier == tier:
            order.replace(each.group, tier, old, each.item)
            return
        if old is not None:
            order.remove(each.group, each.tier, old)
        order.add(each.group, tier, each.item)
        each.tier = tier

    def _unplace(self, each: waiting_lines.InPlace, order: standings.Standings) -> None:
        if each.item is not None:
            order.remove(each.group, each.tier, each.item)
            each.item = None
        each.rises_at = math.inf
        self._note_rise(each)

    def _note_rise(self, each: waiting_lines.InPlace) -> None:
        """Note when something counts as a greater class."""
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
            if head is not None and old.head() == head[1:]:
                return
            self._unplace(old, self._elsewhere)
            queue.first_elsewhere = None
            queue.demand.elsewhere -= 1
        if head is not None:
            request = self.entries[head[2]].request
            first = queue.first_elsewhere = waiting_lines.FirstElsewhere(
                queue,
                self._group(queue, request),
                self.settings.class_index(request.priority_class),
                request.rank,
                head[1:],
            )
            queue.demand.elsewhere += 1
            self._place(first, self._elsewhere)

    def _forget(self, line: waiting_lines.Line) -> None:
        queue, demand = line.queue, line.queue.demand
        demand.lines -= 1
        del queue.lines[line.group, line.class_index, line.rank, line.level]

    def _group(
        self, queue: waiting_lines.Queue, request: pending.PendingRequest
    ) -> standings.ShareGroup:
        if self._is_fair:
            return self._projects[request.project_id].group
        return queue.shape.group

    def _share(self, project: str) -> float:
        return self._shares.share(project) if self._is_fair else 0.0

    def _project(self, name: str) -> waiting_lines.Project:
        found = self._projects.get(name)
        if found is None:
            found = self._projects[name] = waiting_lines.Project(self._share(name))
        return found

    def _queue(self, request: pending.PendingRequest) -> waiting_lines.Queue:
        key = _queue_key(request)
        found = self._queues.get(key)
        if found is None:
            demand = self._demands.enter(request)
            found = waiting_lines.Queue(request.queue, len(request.servers), demand)
            demand.queues.add(found)
            self._queues[key] = found
        return found

    def _line(
        self, queue: waiting_lines.Queue, request: pending.PendingRequest, class_index: int
    ) -> waiting_lines.Line:
        group = self._group(queue, request)
        level = None
        if self._is_strict:
            level = self.settings.level(class_index, self._now - request.asked_at)
        key = (group, class_index, request.rank, level)
        found = queue.lines.get(key)
        if found is None:
            found = waiting_lines.Line(queue, *key)
            queue.lines[key] = found
            queue.demand.lines += 1
        return found


def _queue_key(request: pending.PendingRequest) -> _QueueKey:
    return request.queue, len(request.servers), request.needs
