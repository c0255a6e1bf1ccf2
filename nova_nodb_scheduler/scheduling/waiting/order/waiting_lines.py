# SPDX-License-Identifier: Apache-2.0
"""What requests are filed in: lines within queues, and what orders the lines.

============ ========================================== ==================================
what         requests of                                order within
============ ========================================== ==================================
line         one queue, share group, class and rank;    as asked
             in strict order of one level, too
queue        an equal digest, number of servers and     none
             needs: with equal chances at any moment
demand       queues that ask for the same, whosever     none
             they are
shape        equal needs and number of servers          none
share group  one project; in the order of first in,     none
             first out, one shape
standing     one share group and tier                   lines as their firsts asked
============ ========================================== ==================================

Of a line nobody but the first has to be looked at: all behind it have the same share,
are younger, and count as no greater a class. In strict order somebody is the first of each
class that any count as, though an older one with equal chances has risen to a greater one
and stands there, or rests; so whoever rises goes to another line.

No share orders anything within a standing. So a share that changes moves the few standings of
its group, one for each class that it waits in, however many requests, flavors and queues are
behind them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import TypeAlias

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import queue_settings
from nova_nodb_scheduler.scheduling.waiting.order import ordered_items, standings

#: Order among all requests, the first is the least: (tier, share, asked_at, key). A tier is
#: made of rank and level.
OrderKey: TypeAlias = tuple[int, float, float, str]

#: More levels than there ever are. A rank beyond the bounds counts as the bound.
_LEVELS = 1 << 16
_MOST_RANK = 1 << 40


def tier(rank: int, level: int) -> int:
    """Return a place by rank and level: lower goes first."""
    return -(max(-_MOST_RANK, min(rank, _MOST_RANK)) * _LEVELS + level)


def level_of(tier: int) -> int:
    """Return of which level a tier is."""
    return -tier % _LEVELS


def tier_of_level(tier: int, level: int) -> int:
    """Return the first tier of a level that does not go before a tier."""
    return tier + (-level - tier) % _LEVELS


class Stage(enum.Enum):
    """Where a request stands for this process."""

    #: May be tried.
    READY = "ready"
    #: Its last attempt failed a moment ago.
    RESTING = "resting"
    #: Some process has it in hand, or was told to.
    IN_FLIGHT = "in flight"
    #: What another process did with it has not come through the feed yet.
    ASIDE = "aside"
    #: Its deadline has passed.
    OVERDUE = "overdue"


class Entry:
    """One request.

    :ivar attempt: the newest that is known; ``shown`` the newest whose servers were seen on hosts
    :ivar due_at: when time alone changes its stage
    :ivar line: in which it waits to be tried; None where it does not
    :ivar elsewhere: its place among the parked ones of its queue that stand in no line
    """

    __slots__ = ("attempt", "due_at", "elsewhere", "line", "queue", "request", "shown", "stage")

    def __init__(self, request: pending.PendingRequest, queue: Queue) -> None:
        self.request = request
        self.queue = queue
        self.stage = Stage.IN_FLIGHT
        self.attempt = request.grant.attempt
        self.shown = 0
        self.line: Line | None = None
        self.elsewhere: tuple[int, float, str] | None = None
        self.due_at = math.inf


class Project:
    """A project that has requests waiting or in flight."""

    __slots__ = ("group", "requests")

    def __init__(self, share: float) -> None:
        self.group = standings.ShareGroup(share)
        self.requests = 0


class Demand:
    """What queues ask for that ask for the same, whosever they are.

    :ivar queues: that are known; none: it may be forgotten
    :ivar lines: how many lines they have
    :ivar elsewhere: how many of them have requests that are parked elsewhere
    :ivar parked: how many requests stand in their lines, or are parked elsewhere
    """

    __slots__ = ("elsewhere", "lines", "parked", "queues", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.queues: set[Queue] = set()
        self.lines = 0
        self.elsewhere = 0
        self.parked = 0


class Queue:
    """Requests with equal chances.

    :ivar lines: by share group, class, rank and level, see :class:`Line`
    :ivar requests: how many there are, in any stage; 0: it may be forgotten
    :ivar ready: how many of them stand in lines
    :ivar elsewhere: those that are parked and stand in none, by (tier, asked_at, key)
    :ivar first_elsewhere: the first of them
    :ivar is_fresh: whether it stands among those that are to be tried for a newcomer
    :ivar is_swept: whether it stands among those that are swept
    """

    __slots__ = (
        "demand",
        "digest",
        "elsewhere",
        "first_elsewhere",
        "is_fresh",
        "is_swept",
        "lines",
        "ready",
        "requests",
        "servers",
        "shape",
    )

    def __init__(self, digest: str, servers: int, demand: Demand) -> None:
        self.digest = digest
        self.servers = servers
        self.demand = demand
        self.shape = demand.shape
        self.lines: dict[tuple[standings.ShareGroup, int, int, int | None], Line] = {}
        self.elsewhere: ordered_items.OrderedItems[tuple[int, float, str]] | None = None
        self.first_elsewhere: FirstElsewhere | None = None
        self.requests = 0
        self.ready = 0
        self.is_fresh = False
        self.is_swept = False


class InPlace:
    """What stands in a place by the share of its group and by the class that it counts as.

    :ivar tier: in which it stands
    :ivar item: its place in a standing; None: it stands nowhere
    :ivar rises_at: when it counts as a greater class
    :ivar rise: its place among those that will
    """

    __slots__ = (
        "class_index",
        "group",
        "item",
        "queue",
        "rank",
        "rise",
        "rises_at",
        "tier",
    )

    def __init__(
        self, queue: Queue, group: standings.ShareGroup, class_index: int, rank: int
    ) -> None:
        self.queue = queue
        self.group = group
        self.class_index = class_index
        self.rank = rank
        self.tier = 0
        self.item: standings.Item | None = None
        self.rises_at = math.inf
        self.rise: tuple[float, int, InPlace] | None = None

    def head(self) -> tuple[float, str] | None:
        """Return when its first request was asked for, and its key; None: it has none."""
        raise NotImplementedError

    def order_key(self) -> OrderKey:
        """Return where its first request stands among all.

        :raises LookupError: it stands nowhere
        """
        if self.item is None:
            raise LookupError("what stands nowhere has no place in the order")
        return self.tier, self.group.share, self.item[0], self.item[1]

    def count_as(self, settings: queue_settings.QueueSettings, asked_at: float, now: float) -> int:
        """Return the level that what was asked for at a time counts as; note when it rises."""
        level = settings.level(self.class_index, now - asked_at)
        self._note_rise(settings, asked_at, level)
        return level

    def _note_rise(
        self, settings: queue_settings.QueueSettings, asked_at: float, level: int
    ) -> None:
        self.rises_at = math.inf
        if level + 1 < len(settings.classes):
            self.rises_at = asked_at + settings.seconds_to_level(self.class_index, level + 1)


class Line(InPlace):
    """Requests of one queue, share group, class and rank: first come, first served.

    :ivar level: as which all of them count; None: the first as its age says, others as no more
    """

    __slots__ = ("level", "requests")

    def __init__(
        self,
        queue: Queue,
        group: standings.ShareGroup,
        class_index: int,
        rank: int,
        level: int | None = None,
    ) -> None:
        super().__init__(queue, group, class_index, rank)
        self.level = level
        self.requests: ordered_items.OrderedItems[tuple[float, str]] = ordered_items.OrderedItems()

    def count_as(self, settings: queue_settings.QueueSettings, asked_at: float, now: float) -> int:
        if self.level is None:
            return super().count_as(settings, asked_at, now)
        self._note_rise(settings, asked_at, self.level)
        return self.level

    def head(self) -> tuple[float, str] | None:
        return self.requests.first()


class FirstElsewhere(InPlace):
    """The first of a queue that is parked elsewhere, for as long as it is the first."""

    __slots__ = ("_head",)

    def __init__(
        self,
        queue: Queue,
        group: standings.ShareGroup,
        class_index: int,
        rank: int,
        head: tuple[float, str],
    ) -> None:
        super().__init__(queue, group, class_index, rank)
        self._head = head

    def head(self) -> tuple[float, str]:
        return self._head


class Shape:
    """Queues with equal needs and numbers of servers, or with about equal ones.

    :ivar needs: of one server; none needs less of anything
    :ivar servers: how many at least
    :ivar row: of the index
    :ivar is_exact: whether all are equal
    :ivar queues: how many there are
    :ivar group: that of its lines, where no project's share orders them
    """

    __slots__ = ("group", "is_exact", "needs", "queues", "row", "servers")

    def __init__(self, needs: Mapping[str, int], servers: int, row: int, *, is_exact: bool) -> None:
        self.needs = needs
        self.servers = servers
        self.row = row
        self.is_exact = is_exact
        self.queues = 0
        self.group = standings.ShareGroup(0.0)
