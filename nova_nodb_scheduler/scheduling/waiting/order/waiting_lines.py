# SPDX-License-Identifier: Apache-2.0
"""What requests are filed in: lines within queues, queues within shapes.

======== ======================================== =====================================
what     requests of                              order within
======== ======================================== =====================================
line     one queue, project, class and rank       as asked
queue    an equal digest, number of servers and   lines by their first; apart for each
         needs: with equal chances at any moment  level that its lines count as
shape    equal needs, number of servers and       queues by their first
         level
demand   queues that ask for the same, whosever   queues by their first
         they are
======== ======================================== =====================================

Of a line nobody but the first has to be looked at: all behind it have the same share,
are younger, and count as no greater a class.

What stands in a place has it by a share that its project had: by its present one, or by one
that was less. So it never stands behind its turn, and whoever looks puts it right.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import queue_settings
from nova_nodb_scheduler.scheduling.waiting.order import ordered_items

#: Order among all requests, the first is the least: (tier, share, asked_at, key). A tier is
#: made of rank and level.
OrderKey: TypeAlias = tuple[int, float, float, str]

#: An order key, and of whom it is.
Placed: TypeAlias = tuple[int, float, float, str, Any]

#: More levels than there ever are. A rank beyond the bounds counts as the bound.
_LEVELS = 1 << 16
_MOST_RANK = 1 << 40


def tier(rank: int, level: int) -> int:
    """Return a place by rank and level: lower goes first."""
    return -(max(-_MOST_RANK, min(rank, _MOST_RANK)) * _LEVELS + level)


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
    """A project that has requests waiting or in flight.

    :ivar ahead: by which share what a fall moves is put; no greater than the project's own then
    :ivar places: what of it stands in a place, by the share by which it does: (share, number,
        what it is)
    """

    __slots__ = ("ahead", "lines", "name", "places", "requests", "share")

    def __init__(self, name: str, share: float) -> None:
        self.name = name
        self.share = share
        self.ahead = share
        self.requests = 0
        #: By queue, class and rank.
        self.lines: dict[tuple[Queue, int, int], Line] = {}
        self.places: ordered_items.OrderedItems[tuple[float, int, InPlace]] = (
            ordered_items.OrderedItems()
        )

    def behind_its_turn(self) -> InPlace | None:
        """Return something that stands by a greater share than that of now; None: nothing does."""
        last = self.places.last()
        return None if last is None or last[0] <= self.share else last[2]


class Demand:
    """What queues ask for that ask for the same, whosever they are.

    :ivar queues: how many there are; 0: it may be forgotten
    :ivar parked: how many requests stand in their lines, or are parked elsewhere
    :ivar levels: levels of queues by their first lines
    :ivar elsewhere: of each queue the first that is parked elsewhere
    """

    __slots__ = ("elsewhere", "levels", "parked", "queues")

    def __init__(self) -> None:
        self.queues = 0
        self.parked = 0
        self.levels: ordered_items.OrderedItems[Placed] = ordered_items.OrderedItems()
        self.elsewhere: ordered_items.OrderedItems[Placed] = ordered_items.OrderedItems()

    def first(self) -> Placed | None:
        """Return the place of the line that goes first; None where there is no line."""
        level = self.levels.first()
        return None if level is None else level[4].lines.first()


class Queue:
    """Requests with equal chances.

    :ivar requests: how many there are, in any stage; 0: it may be forgotten
    :ivar ready: how many of them stand in lines
    :ivar elsewhere: those that are parked and stand in none, by (tier, asked_at, key)
    :ivar first_elsewhere: the first of them
    :ivar is_fresh: whether it stands among those that are to be tried for a newcomer
    :ivar is_swept: whether it stands among those that are swept
    """

    __slots__ = (
        "at_level",
        "demand",
        "digest",
        "elsewhere",
        "first_elsewhere",
        "is_fresh",
        "is_swept",
        "needs",
        "ready",
        "requests",
        "servers",
    )

    def __init__(
        self, digest: str, servers: int, needs: Mapping[str, int], levels: int, demand: Demand
    ) -> None:
        self.digest = digest
        self.demand = demand
        self.servers = servers
        self.needs = needs
        self.at_level: list[QueueLevel | None] = [None] * levels
        self.elsewhere: ordered_items.OrderedItems[tuple[int, float, str]] | None = None
        self.first_elsewhere: FirstElsewhere | None = None
        self.requests = 0
        self.ready = 0
        self.is_fresh = False
        self.is_swept = False

    def first(self) -> Placed | None:
        """Return the place of the line that goes first; None where there is no line."""
        firsts = [level.lines.first() for level in self.at_level if level is not None]
        return min((each for each in firsts if each is not None), default=None)

    def place_elsewhere(self) -> Placed | None:
        """Return the place of the first that is parked elsewhere; None where there is none."""
        return None if self.first_elsewhere is None else self.first_elsewhere.placed


class InPlace:
    """What stands in a place by its project's share and by the class that it counts as.

    :ivar number: which nothing else of its project has
    :ivar rises_at: when it counts as a greater class
    :ivar rise: its place among those that will
    """

    __slots__ = ("class_index", "number", "placed", "project", "queue", "rank", "rise", "rises_at")

    def __init__(
        self, queue: Queue, project: Project, class_index: int, rank: int, number: int
    ) -> None:
        self.queue = queue
        self.project = project
        self.class_index = class_index
        self.rank = rank
        self.number = number
        self.placed: Placed | None = None
        self.rises_at = math.inf
        self.rise: tuple[float, int, InPlace] | None = None

    def count_as(self, settings: queue_settings.QueueSettings, asked_at: float, now: float) -> int:
        """Return the level that what was asked for at a time counts as; note when it rises."""
        level = settings.level(self.class_index, now - asked_at)
        self.rises_at = math.inf
        if level + 1 < len(settings.classes):
            self.rises_at = asked_at + settings.seconds_to_level(self.class_index, level + 1)
        return level


class Line(InPlace):
    """Requests of one queue, project, class and rank: first come, first served.

    :ivar level: that its first counts as
    """

    __slots__ = ("level", "requests")

    def __init__(
        self, queue: Queue, project: Project, class_index: int, rank: int, number: int
    ) -> None:
        super().__init__(queue, project, class_index, rank, number)
        self.requests: ordered_items.OrderedItems[tuple[float, str]] = ordered_items.OrderedItems()
        self.level = class_index


class FirstElsewhere(InPlace):
    """The first of a queue that is parked elsewhere, for as long as it is the first.

    :ivar head: (asked_at, key)
    """

    __slots__ = ("head",)

    def __init__(
        self,
        queue: Queue,
        project: Project,
        class_index: int,
        rank: int,
        number: int,
        head: tuple[float, str],
    ) -> None:
        super().__init__(queue, project, class_index, rank, number)
        self.head = head


class QueueLevel:
    """The lines of a queue that count as one class."""

    __slots__ = ("level", "lines", "placed", "queue", "shape")

    def __init__(self, queue: Queue, level: int, shape: Shape) -> None:
        self.queue = queue
        self.level = level
        self.shape = shape
        self.lines: ordered_items.OrderedItems[Placed] = ordered_items.OrderedItems()
        self.placed: Placed | None = None


class Shape:
    """Queues at one level with equal needs and numbers of servers, or with about equal ones.

    :ivar needs: of one server; none needs less of anything
    :ivar servers: how many at least
    :ivar row: of the index
    :ivar is_exact: whether all are equal
    """

    __slots__ = ("is_exact", "level", "needs", "queues", "row", "servers")

    def __init__(
        self, needs: Mapping[str, int], servers: int, level: int, row: int, *, is_exact: bool
    ) -> None:
        self.needs = needs
        self.servers = servers
        self.level = level
        self.row = row
        self.is_exact = is_exact
        self.queues: ordered_items.OrderedItems[Placed] = ordered_items.OrderedItems()
