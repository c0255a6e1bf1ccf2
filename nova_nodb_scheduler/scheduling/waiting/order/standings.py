# SPDX-License-Identifier: Apache-2.0
"""An order of things by tier, share and age, in which a share that changes moves next to nothing.

A *share group* is those whose places one share decides: of one project. What it has in one tier
is a *standing*, in which things are by age alone; standings are in order by share, and by their
first things. So a share that changes moves one standing of each tier in which its group has
anything.

Things have rows, and who wants some rows alone does not look at standings that have none of
them: those of a tier lie in blocks, and a block knows which rows there are in it.
"""

from __future__ import annotations

import bisect
import collections
from typing import Any, TypeAlias

import sortedcontainers

from nova_nodb_scheduler.scheduling.waiting.order import ordered_items

#: A thing within a standing, and what it is: (asked_at, key, row, what). No two have one key.
Item: TypeAlias = tuple[float, str, int, Any]

#: A standing within its tier, by its first item: (share, asked_at, key, standing).
Place: TypeAlias = "tuple[float, float, str, Standing]"

#: The beginning of a place.
_Key: TypeAlias = tuple[Any, ...]

#: Standings of a block when it is split; how few of two are made one.
_LARGE, _SMALL = 64, 16

#: The last things that came, or came forward, that are known.
_MOST_ARRIVALS = 64


class ShareGroup:
    """Those whose places one share decides.

    :ivar share: to be changed by :func:`reshare`
    :ivar standings: by tier
    """

    __slots__ = ("share", "standings")

    def __init__(self, share: float) -> None:
        self.share = share
        self.standings: dict[Tier, Standing] = {}


class Standing:
    """What a share group has in one tier, by age.

    :ivar group: whose it is
    :ivar tier: its number
    :ivar items: all of it
    :ivar mask: a bit for each row of which there are items
    :ivar place: among all of the tier; None: none was given yet
    """

    __slots__ = ("_of_rows", "group", "items", "mask", "place", "tier")

    def __init__(self, group: ShareGroup, tier: int) -> None:
        self.group = group
        self.tier = tier
        self.items: ordered_items.OrderedItems[Item] = ordered_items.OrderedItems()
        self.mask = 0
        self.place: Place | None = None
        #: How many items there are, by row.
        self._of_rows: dict[int, int] = {}

    def add(self, item: Item) -> None:
        """Put an item in its place."""
        row = item[2]
        self.items.add(item)
        self._of_rows[row] = self._of_rows.get(row, 0) + 1
        self.mask |= 1 << row

    def remove(self, item: Item) -> None:
        """Take an item out."""
        row = item[2]
        self.items.remove(item)
        self._of_rows[row] -= 1
        if not self._of_rows[row]:
            del self._of_rows[row]
            self.mask &= ~(1 << row)


class LastArrivals:
    """What came into an order, or came forward in it, so that a way through it can look again.

    :ivar count: how many there were
    :ivar last: the last ones in turn: (standing, what came; None: all of it came forward)
    """

    def __init__(self) -> None:
        self.count = 0
        self.last: collections.deque[tuple[Standing, Item | None]] = collections.deque(
            maxlen=_MOST_ARRIVALS
        )

    def note(self, standing: Standing, item: Item | None) -> None:
        """Remember one."""
        self.count += 1
        self.last.append((standing, item))

    def since(self, count: int) -> list[tuple[Standing, Item | None]] | None:
        """Return those behind so many, in turn; None: they are not known any more."""
        missed = self.count - count
        if missed > len(self.last):
            return None
        return list(self.last)[len(self.last) - missed :]


class _Block:
    """Some standings in a row.

    :ivar mask: a bit for each row that any of them has, or had: whoever looks for one in vain sees
        to it that the rows are those of now
    """

    __slots__ = ("mask", "places")

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self.look()

    def look(self) -> None:
        """See which rows they have."""
        mask = 0
        for place in self.places:
            mask |= place[3].mask
        self.mask = mask


class Tier:
    """Standings of one tier, by share and age.

    :ivar arrivals: of the order that it is of
    """

    def __init__(self, number: int, arrivals: LastArrivals) -> None:
        self.number = number
        self.arrivals = arrivals
        self._blocks: list[_Block] = []
        #: The last place of each block.
        self._lasts: list[Place] = []

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def after(self, key: _Key, rows: int) -> Place | None:
        """Return the first place behind a key of a standing with some of the rows.

        :param rows: a bit for each
        """
        number = bisect.bisect_right(self._lasts, key)
        if number == len(self._blocks):
            return None
        begin = bisect.bisect_right(self._blocks[number].places, key)
        for index in range(number, len(self._blocks)):
            block = self._blocks[index]
            if block.mask & rows:
                for place in block.places[begin:] if begin else block.places:
                    if place[3].mask & rows:
                        return place
                if not begin:
                    block.look()
            begin = 0
        return None

    def put(self, standing: Standing, before: int) -> None:
        """Put a standing where it belongs by its share and first item; forget it without items.

        :param before: its mask when it was put last
        """
        old = standing.place
        first = standing.items.first()
        if first is None:
            del standing.group.standings[self]
        elif old is None or old[2] != first[1] or old[:2] != (standing.group.share, first[0]):
            standing.place = (standing.group.share, first[0], first[1], standing)
        else:
            if standing.mask != before:
                self._blocks[bisect.bisect_left(self._lasts, old)].mask |= standing.mask
            return
        if old is not None:
            self._remove(old)
        if first is not None and standing.place is not None:
            self._add(standing.place)

    def _add(self, place: Place) -> None:
        if not self._blocks:
            self._blocks.append(_Block([place]))
            self._lasts.append(place)
            return
        number = min(bisect.bisect_left(self._lasts, place), len(self._blocks) - 1)
        block = self._blocks[number]
        bisect.insort(block.places, place)
        block.mask |= place[3].mask
        self._lasts[number] = block.places[-1]
        if len(block.places) > _LARGE:
            half = _LARGE // 2
            self._blocks[number : number + 1] = [
                _Block(block.places[:half]),
                _Block(block.places[half:]),
            ]
            self._lasts.insert(number, block.places[half - 1])

    def _remove(self, place: Place) -> None:
        number = bisect.bisect_left(self._lasts, place)
        block = self._blocks[number]
        del block.places[bisect.bisect_left(block.places, place)]
        if block.places:
            self._lasts[number] = block.places[-1]
            if number + 1 < len(self._blocks):
                following = self._blocks[number + 1]
                if len(block.places) + len(following.places) <= _SMALL:
                    following.places[:0] = block.places
                    following.look()
                    block.places = []
        if not block.places:
            del self._blocks[number]
            del self._lasts[number]


class Standings:
    """Standings by tier; O(log n) each. Not safe for threads.

    :ivar arrivals: what came, or came forward
    """

    def __init__(self) -> None:
        self.arrivals = LastArrivals()
        self._tiers: sortedcontainers.SortedDict = sortedcontainers.SortedDict()

    def add(self, group: ShareGroup, number: int, item: Item) -> None:
        """Put an item into a tier."""
        tier = self._tiers.get(number)
        if tier is None:
            tier = self._tiers[number] = Tier(number, self.arrivals)
        standing = group.standings.get(tier)
        if standing is None:
            standing = group.standings[tier] = Standing(group, number)
        before = standing.mask
        standing.add(item)
        tier.put(standing, before)
        self.arrivals.note(standing, item)

    def remove(self, group: ShareGroup, number: int, item: Item) -> None:
        """Take an item out of a tier."""
        tier = self._tiers[number]
        standing = group.standings[tier]
        before = standing.mask
        standing.remove(item)
        tier.put(standing, before)
        if not tier:
            del self._tiers[number]

    def replace(self, group: ShareGroup, number: int, old: Item, new: Item) -> None:
        """Put an item in the place of another one of its tier."""
        tier = self._tiers[number]
        standing = group.standings[tier]
        before = standing.mask
        standing.remove(old)
        standing.add(new)
        tier.put(standing, before)
        self.arrivals.note(standing, new)

    def tier_from(self, number: float) -> Tier | None:
        """Return the first tier of a number or behind it; None: there is none."""
        index = self._tiers.bisect_left(number)
        return None if index == len(self._tiers) else self._tiers.peekitem(index)[1]


def reshare(group: ShareGroup, share: float) -> int:
    """Put what a group has where it belongs by another share.

    :returns: how many standings were moved
    """
    if share == group.share:
        return 0
    is_forward = share < group.share
    group.share = share
    for tier, standing in group.standings.items():
        tier.put(standing, standing.mask)
        if is_forward:
            tier.arrivals.note(standing, None)
    return len(group.standings)
