# SPDX-License-Identifier: Apache-2.0
"""One way through an order of standings, from the front, of what is wanted alone.

Things may be moved between two steps. While the way goes on they only get worse places: a grant
raises a share, and the next of a line is younger. So what was passed need not be looked at again,
and whoever comes to stand behind is met later. What comes to stand before is left out, but not
what is behind it in its standing, which that moves to the front.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

from nova_nodb_scheduler.scheduling.waiting.order import shape_index, standings, waiting_lines

#: What is wanted of rows that are.
IsWanted = Callable[[Any], bool]

_FRONT = (-math.inf,)


class OrderReader:
    """Gives things in order; O(log n) each, and one look at whoever is equal to it by share.

    :param level: of which tiers; None: of all
    :param most_looks: things of wanted rows that are looked at, in all
    :ivar is_cut_short: whether there may be more than were given
    """

    def __init__(
        self,
        order: standings.Standings,
        *,
        level: int | None = None,
        most_looks: float = math.inf,
    ) -> None:
        self.is_cut_short = False
        self._order = order
        self._level = level
        self._looks_left = most_looks
        self._tier = -math.inf
        #: Of the tier, which were looked at; None: it was only entered.
        self._advances: int | None = None
        #: Behind which standings of the tier were not looked at.
        self._looked_at: tuple[Any, ...] = _FRONT
        #: (share, asked_at, key, number, standing): the next item of each that was looked at.
        self._open: list[tuple[float, float, str, int, standings.Standing]] = []
        self._numbers = itertools.count()
        #: The last one that was given, of the tier: (share, asked_at, key) and its standing.
        self._given: tuple[float, float, str] | None = None
        self._giver: standings.Standing | None = None

    def next(
        self, rows: shape_index.ShapeRows, is_wanted: IsWanted
    ) -> waiting_lines.InPlace | None:
        """Return the next of some rows; None: there is none, or it was cut short.

        :param rows: no more than the last time
        """
        giver, self._giver = self._giver, None
        if giver is not None and giver.place is not None and self._given is not None:
            # One whose share has grown is met where it stands now.
            if giver.place[0] == self._given[0]:
                self._push(giver, rows, is_wanted)
        while rows.mask and not self.is_cut_short and (tier := self._find_tier()) is not None:
            self._look_again(tier, rows, is_wanted)
            nearest = tier.after(self._looked_at, rows.mask)
            if self._open and (nearest is None or self._open[0][:3] < nearest[:3]):
                found = self._pop(rows, is_wanted)
                if found is not None:
                    return found
            elif nearest is not None:
                self._looked_at = (*nearest[:2], nearest[2] + "\0")
                self._push(nearest[3], rows, is_wanted)
            else:
                self._enter(tier.number + 1)
        return None

    def _find_tier(self) -> standings.Tier | None:
        while (tier := self._order.tier_from(self._tier)) is not None:
            if tier.number != self._tier:
                self._enter(tier.number)
            if self._level is None or waiting_lines.level_of(tier.number) == self._level:
                return tier
            self._enter(waiting_lines.tier_of_level(tier.number, self._level))
        return None

    def _enter(self, tier: float) -> None:
        self._tier = tier
        self._advances = None
        self._looked_at = _FRONT
        self._open.clear()
        self._given = self._giver = None

    def _look_again(
        self, tier: standings.Tier, rows: shape_index.ShapeRows, is_wanted: IsWanted
    ) -> None:
        """Look at standings that were moved past the place that was looked at."""
        seen, self._advances = self._advances, tier.advances
        if seen is None or seen == tier.advances:
            return
        for standing in list(tier.advanced)[: -(tier.advances - seen) - 1 : -1]:
            place = standing.place
            if place is None or place > self._looked_at:
                continue
            if self._given is None or place[0] >= self._given[0]:
                self._push(standing, rows, is_wanted)

    def _pop(
        self, rows: shape_index.ShapeRows, is_wanted: IsWanted
    ) -> waiting_lines.InPlace | None:
        """Return the nearest of all that were looked at, if it still is."""
        share, asked_at, name, _, standing = heapq.heappop(self._open)
        place = standing.place
        if place is None or place[0] != share or self._is_passed(share, asked_at, name):
            return None
        found = self._first((asked_at, name), standing, rows, is_wanted)
        if found is None:
            return None
        if found[1] != name:
            self._add(share, found, standing)
            return None
        self._given, self._giver = (share, asked_at, name), standing
        each: waiting_lines.InPlace = found[3]
        return each

    def _is_passed(self, share: float, asked_at: float, key: str) -> bool:
        return self._given is not None and (share, asked_at, key) <= self._given

    def _push(
        self, standing: standings.Standing, rows: shape_index.ShapeRows, is_wanted: IsWanted
    ) -> None:
        """Note the first of a standing that was not passed yet."""
        place = standing.place
        if place is None or not standing.items:
            return
        share, given = place[0], self._given
        behind: tuple[Any, ...] = _FRONT
        if given is not None and given[0] == share:
            behind = given[1], given[2] + "\0"
        found = self._first(behind, standing, rows, is_wanted)
        if found is not None:
            self._add(share, found, standing)

    def _add(self, share: float, item: standings.Item, standing: standings.Standing) -> None:
        heapq.heappush(self._open, (share, item[0], item[1], next(self._numbers), standing))

    def _first(
        self,
        behind: tuple[Any, ...],
        standing: standings.Standing,
        rows: shape_index.ShapeRows,
        is_wanted: IsWanted,
    ) -> standings.Item | None:
        if not standing.mask & rows.mask:
            return None
        flags = rows.flags
        for item in standing.items.after(behind):
            if not flags[item[2]]:
                continue
            if self._looks_left <= 0:
                self.is_cut_short = True
                return None
            self._looks_left -= 1
            if is_wanted(item[3]):
                return item
        return None
