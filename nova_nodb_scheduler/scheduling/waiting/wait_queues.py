# SPDX-License-Identifier: Apache-2.0
"""All requests that wait for room: their order, and who is to be tried when.

The caller, a scheduler's worker or the simulator, goes round as follows::

    queues.put(request, now) / queues.drop(key, now)     # as records come
    queues.show(key, now)                                # its claim is seen on its host
    for due in queues.advance(now): ...                  # grant it; queues.regranted(...)
    hosts = queues.take_released()                       # look at these as if they had grown
    walk = queues.wake(growth, now)                      # for hosts that grew
    walk = queues.wake_fresh(now)                        # for requests that came
    walk = queues.sweep(now)                             # every second or so, for all others
    while (candidate := walk.next()) is not None:
        ...                                              # walk.granted(...), refused(), ...

**Threads**: none of this is safe for threads. Either one thread owns it, or all callers,
those of :meth:`behind` and :meth:`full` among them, hold one lock around each call. The
lock need not be held between ``next`` and the answer, while the caller asks the engine and
the back end: requests may be put and dropped in between.

**Cost**: nothing blocks, no call does I/O. A call takes O(log n) in what waits, and wake-ups
have :class:`~walks.Limits`. Only :meth:`ordered`, and sums by project, look at all.

**Time** is the back end's clock, as in the records; a time that is a little behind that of
the call before does no harm.

**Charges**: what a grant takes is charged on its hosts and to its project until its servers
are *shown*, its record waits again, or is gone. So an engine that does not know of grants
in flight must be asked about ``candidate.hosts`` only, or be told of :meth:`charged`.

**Several schedulers** see the same records and so the same order, but for the lag of their
feeds. One that is not to grant a candidate says ``left``, so that whoever is behind gets
other room; a grant is a compare-and-set, so that nobody is granted twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import (
    backlog,
    grown_hosts,
    host_holds,
    queue_settings,
    request_book,
    wake_ups,
    walks,
)
from nova_nodb_scheduler.scheduling.waiting.order import (
    resource_axis,
    shape_index,
    waiting_lines,
)

#: Queues that one call of sweep or wake_fresh looks at.
MOST_QUEUES = 64


class WaitQueues:
    """See the module.

    :param limits: of each wake-up
    :param most_exact: shapes that are told apart in full, see :mod:`shape_index`
    """

    def __init__(
        self,
        settings: queue_settings.QueueSettings,
        *,
        limits: walks.Limits = walks.Limits(),  # noqa: B008 (a frozen value)
        most_exact: int = shape_index.MOST_EXACT,
    ) -> None:
        self._settings = settings
        self._limits = limits
        # All of them can be tried.
        self._most_queues = min(MOST_QUEUES, limits.most_tried)
        self._is_strict = settings.discipline is queue_settings.Discipline.STRICT
        self._book = request_book.RequestBook(settings, most_exact=most_exact)
        self._index = self._book.index

    def __len__(self) -> int:
        """Return how many requests are known, in whatever state."""
        return len(self._index.entries)

    def active(self) -> int:
        """Return how many requests wait or are in somebody's hand; O(1)."""
        book = self._book
        return len(self) - book.let_go

    # -- what the caller knows

    def put(self, request: pending.PendingRequest, now: float) -> None:
        """Take over a record, new or changed. The same one again changes nothing."""
        self._book.put(request, now)

    def drop(self, key: str, now: float) -> None:
        """Forget a request whose record is gone. One that is not known does not matter."""
        self._book.drop(key, now)

    def show(self, key: str, now: float) -> None:
        """Say that a granted request's servers are among what their hosts and project use.

        From then on they count by ``free`` of their hosts and by :meth:`set_usage` alone.
        """
        self._book.show(key, now)

    def set_capacity(self, capacity: Mapping[str, int], now: float) -> None:
        """Say what the whole cloud has, by resource class. O(projects that wait): not often."""
        book = self._book
        book.shares.set_capacity(capacity)
        self._index.reshare_all()
        self._index.move_due(now)

    def set_usage(self, project: str, used: Mapping[str, int], now: float) -> None:
        """Say what a project uses; an empty mapping for one that has nothing."""
        book = self._book
        book.shares.set_usage(project, used)
        book.reshare(project, now)

    # -- what time demands

    def next_due_at(self) -> float | None:
        """Return when :meth:`advance` has something to do next; None: not by itself."""
        return self._book.next_due_at()

    def advance(self, now: float) -> tuple[request_book.Due, ...]:
        """Do what the time demands: pauses that ended, ages, deadlines, leases.

        :returns: requests to be granted without looking for room, at most some. One for
            which nothing happens (it is another scheduler's to grant) comes again after
            ``lease_seconds``
        """
        return self._book.advance(now)

    def regranted(self, due: request_book.Due, until_seconds: float, now: float) -> None:
        """Say that what :meth:`advance` gave is granted, by a compare-and-set that won."""
        self._book.regrant(due.request.key, due.purpose, until_seconds, now)

    def take_released(self) -> tuple[str, ...]:
        """Return hosts that have room again since a grant came to nothing or a hold ended.

        Their free room did not grow by the caller's view: wake with ``before=None``.
        """
        book = self._book
        ended = book.charges.take_ended() + book.holds.take_ended()
        return tuple(dict.fromkeys(ended))

    # -- who is to be tried

    def wake(self, growth: grown_hosts.Growth, now: float) -> wake_ups.WakeUp:
        """Return the walk through those whom hosts that grew may help."""
        self._index.move_due(now)
        hosts, holders = self._grown(growth, now)
        costs = walks.Costs(self._limits)
        walk: walks.Walk
        if self._is_strict:
            walk = walks.FirstsWalk(self._index, costs)
        else:
            walk = walks.FittingWalk(self._index, costs, hosts, holders)
        return wake_ups.WakeUp(self._book, walk, hosts, now)

    def wake_fresh(self, now: float) -> wake_ups.WakeUp:
        """Return the walk through queues that somebody came to since it was last asked for.

        Whoever comes may fit somewhere: what kept the last attempt from a host may have been
        somebody else's claim.
        """
        index = self._index
        queues: list[waiting_lines.Queue] = []
        while index.fresh and len(queues) < self._most_queues:
            queue = index.fresh.popleft()
            queue.is_fresh = False
            queues.append(queue)
        # In strict order it is the firsts that are looked at, and once is enough.
        is_quiet = self._is_strict and not index.is_changed
        index.is_changed = False
        return self._anywhere(queues, now, is_quiet=is_quiet)

    def sweep(self, now: float) -> wake_ups.WakeUp:
        """Return the walk through some queues in turn, whatever happened.

        Whom a wake-up that was cut short did not reach, and whoever an event was lost for,
        is found by it: after as many calls as there are queues by :data:`MOST_QUEUES`.
        """
        index = self._index
        queues = []
        for _ in range(min(self._most_queues, len(index.swept))):
            queue = index.swept.popleft()
            queue.is_swept = bool(queue.ready)
            if queue.is_swept:
                index.swept.append(queue)
                queues.append(queue)
        return self._anywhere(queues, now)

    # -- newcomers

    def behind(self, request: pending.PendingRequest, now: float, *, of_others: bool = True) -> int:
        """Return behind how many requests a newcomer would have to wait; 0: it may be tried.

        In best effort only those that ask for the same count; in strict order those of its
        class. All of them are counted, some of which it may go before; 0 if it goes before all.
        Ages are those of the last :meth:`advance`. Mostly O(log n); at the worst a look at each
        line of those that ask for the same.

        :param of_others: whether those of other owners count, for whom hosts may be set aside
        """
        key = self._index.order_key(request, now)
        if self._is_strict:
            level = self._settings.level(
                self._settings.class_index(request.priority_class), now - request.asked_at
            )
            return self._count_of_class(request) if _is_before(self._index.first(level), key) else 0
        index = self._index
        if of_others:
            demand = index.demand_of(request)
            if demand is None or not index.is_behind_demand(demand, key):
                return 0
            return demand.parked
        queue = index.queue_of(request)
        if queue is None or not index.is_behind_queue(queue, key):
            return 0
        return queue.ready + len(queue.elsewhere or ())

    def full(self, project: str, servers: int) -> backlog.QueueFull | None:
        """Say whether so many more servers of a project would be too many; O(1)."""
        book = self._book
        return book.backlog.full(project, servers)

    # -- holds

    def wanting_hold(
        self, now: float, *, without: Collection[str] = ()
    ) -> tuple[pending.PendingRequest, ...]:
        """Return who ought to have a host held: the first of a class, once it has waited.

        At most one a class, and none for a class of which another one that waits has one.

        :param without: digests for which no host can be held; those behind are looked at
        """
        book = self._book
        holding = {
            self._level(entry.request, now)
            for _, key in book.holds.all(now)
            if (entry := self._index.entries[key]).request.state is pending.PendingState.WAITING
        }
        wanting = []
        for level in range(len(self._settings.classes)):
            first = self._index.first(level, without)
            if first is None or level in holding:
                continue
            request = self._index.first_entry(first).request
            waited = now - (request.parked_at or request.asked_at)
            if waited >= self._settings.hold_after_seconds:
                wanting.append(request)
        return tuple(wanting)

    def choose_hold(
        self,
        request: pending.PendingRequest,
        hosts: Sequence[str],
        resources: Sequence[str],
        free: resource_axis.Vector,
        whole: resource_axis.Vector,
        now: float,
    ) -> str | None:
        """Return the host to be held for a request: the one where the least must be freed.

        O(hosts that are given): for a hold now and then, not for each event.

        :param hosts: node uuids that would take it if they were empty. Those that are held
            for others are left out here
        :param resources: names of the columns
        :param free: shape (n, resources), as in a growth
        :param whole: what the hosts have when empty, alike
        """
        book = self._book
        index = self._index
        held = self.held_hosts(now)
        rows = [row for row, host in enumerate(hosts) if host not in held]
        axis = book.axis
        index.shapes.learn(request.needs)
        chosen = [hosts[row] for row in rows]
        room = axis.take(resources, free[rows])
        self._charge(chosen, room)
        return host_holds.choose_host(
            axis.vector(request.needs),
            chosen,
            room,
            axis.take(resources, whole[rows]),
            avoid=book.holds.last(request.key),
        )

    def held_hosts(self, now: float) -> dict[str, str]:
        """Return for which request each held host is held; O(holds)."""
        book = self._book
        return dict(book.holds.all(now))

    # -- for those who look

    @property
    def backlog(self) -> backlog.Backlog:
        """What waits, by class, project and flavor."""
        return self._book.backlog

    def charged(self) -> Mapping[str, Mapping[str, int]]:
        """Return what grants in flight take, by node uuid; for reading, until the next call."""
        book = self._book
        return book.charges.hosts()

    def share(self, project: str) -> float:
        """Return a project's dominant share by its weight, grants in flight included."""
        book = self._book
        return book.shares.share(project)

    def get(self, key: str) -> pending.PendingRequest | None:
        """Return the record of a request as it is known here."""
        entry = self._index.entries.get(key)
        return None if entry is None else entry.request

    def stage(self, key: str) -> waiting_lines.Stage | None:
        """Return where a request stands for this process."""
        entry = self._index.entries.get(key)
        return None if entry is None else entry.stage

    def waiting(self) -> list[pending.PendingRequest]:
        """Return all that wait, in no order; O(n), and little of each."""
        return [
            entry.request
            for entry in self._index.entries.values()
            if entry.request.state is pending.PendingState.WAITING
        ]

    def ordered(self, now: float) -> Iterator[pending.PendingRequest]:
        """Yield all that wait, in order. O(n log n) of all: for an operator's list."""
        return iter(sorted(self.waiting(), key=lambda each: self._index.order_key(each, now)))

    def _count_of_class(self, request: pending.PendingRequest) -> int:
        book = self._book
        return max(book.backlog.of_class(request.priority_class).requests, 1)

    def _level(self, request: pending.PendingRequest, now: float) -> int:
        class_index = self._settings.class_index(request.priority_class)
        return self._settings.level(class_index, now - request.asked_at)

    def _anywhere(
        self, queues: list[waiting_lines.Queue], now: float, *, is_quiet: bool = False
    ) -> wake_ups.WakeUp:
        self._index.move_due(now)
        costs = walks.Costs(self._limits)
        walk: walks.Walk
        if self._is_strict and not is_quiet:
            walk = walks.FirstsWalk(self._index, costs)
        else:
            walk = walks.QueuesWalk(self._index, costs, [] if is_quiet else queues)
        return wake_ups.WakeUp(self._book, walk, None, now)

    def _grown(
        self, growth: grown_hosts.Growth, now: float
    ) -> tuple[grown_hosts.GrownHosts, list[waiting_lines.Entry]]:
        axis = self._book.axis
        after = axis.take(growth.resources, growth.after)
        self._charge(growth.hosts, after)
        before = None
        if growth.before is not None:
            before = axis.take(growth.resources, growth.before)
            self._charge(growth.hosts, before)
        held = self.held_hosts(now)
        holders = {row: held[host] for row, host in enumerate(growth.hosts) if host in held}
        entries = [self._index.entries[key] for key in holders.values()]
        entries.sort(key=lambda entry: self._index.order_key(entry.request, now))
        return grown_hosts.GrownHosts(growth.hosts, after, before, holders), entries

    def _charge(self, hosts: Sequence[str], room: resource_axis.Vector) -> None:
        book = self._book
        charged = book.charges.hosts()
        if not charged:
            return
        for row, host in enumerate(hosts):
            amounts = charged.get(host)
            if amounts:
                room[row] -= book.axis.vector(amounts)


def _is_before(line: waiting_lines.Line | None, key: waiting_lines.OrderKey) -> bool:
    return line is not None and line.order_key() < key
