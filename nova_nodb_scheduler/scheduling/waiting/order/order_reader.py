# SPDX-License-Identifier: Apache-2.0
"""One way through an order of standings, from the front, of what is wanted alone.

Things may come, go and move between two steps: each gives the first of all that are wanted, as they
stand by then. It were not enough to go on from where the last one stood and to leave out what comes
to stand before that. For a line, or all of a project, has one place, by its first: where somebody
older comes back to it, or its share falls, all who were to come yet pass to the front with it.

So of each standing that was looked at its next one is known, and is put where that stands by now
when its turn comes. What comes, or comes forward, is looked at before each step.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

from nova_nodb_scheduler.scheduling.waiting.order import shape_index, standings, waiting_lines

#: What is wanted of rows that are. What was not is not later, unless it comes anew; nor is what
#: was given and should not be given again.
IsWanted = Callable[[Any], bool]

#: The next item of a standing: (tier, share, asked_at, key, number, standing).
_Next: TypeAlias = tuple[int, float, float, str, int, standings.Standing]

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
        self._arrivals_seen = order.arrivals.count
        self._numbers = itertools.count()
        self._begin()

    def _begin(self) -> None:
        #: Up to which place of which tier standings were looked at.
        self._tier = -math.inf
        self._looked_at: tuple[Any, ...] = _FRONT
        #: The next of each standing that was looked at; None: there is no more.
        self._nexts: dict[standings.Standing, _Next | None] = {}
        #: The same in order, with some that are it no more.
        self._open: list[_Next] = []
        self._given: _Next | None = None

    def next(
        self, rows: shape_index.ShapeRows, is_wanted: IsWanted
    ) -> waiting_lines.InPlace | None:
        """Return the first of some rows; None: there is none, or it was cut short.

        :param rows: no more than the last time, but for what came since
        """
        given, self._given = self._given, None
        if given is not None:
            self._push(given[5], (given[2], given[3] + "\0"), rows, is_wanted)
        self._look_again(rows, is_wanted)
        while rows.mask and not self.is_cut_short:
            nearest = None
            if not (self._open and self._is_looked_at(self._open[0][:4])):
                nearest = self._nearest(rows)
            if self._open and (nearest is None or self._open[0][:4] < (self._tier, *nearest[:3])):
                found = self._pop(rows, is_wanted)
                if found is not None:
                    return found
            elif nearest is not None:
                self._looked_at = (*nearest[:2], nearest[2] + "\0")
                if nearest[3] not in self._nexts:
                    self._push(nearest[3], _FRONT, rows, is_wanted)
            else:
                break
        return None

    def _nearest(self, rows: shape_index.ShapeRows) -> standings.Place | None:
        """Return the next place that was not looked at, and go to its tier."""
        while (tier := self._order.tier_from(self._tier)) is not None:
            if tier.number != self._tier:
                self._enter(tier.number)
            level = self._level
            if level is not None and waiting_lines.level_of(tier.number) != level:
                self._enter(waiting_lines.tier_of_level(tier.number, level))
                continue
            place = tier.after(self._looked_at, rows.mask)
            if place is not None:
                return place
            self._enter(tier.number + 1)
        return None

    def _enter(self, tier: float) -> None:
        self._tier = tier
        self._looked_at = _FRONT

    def _look_again(self, rows: shape_index.ShapeRows, is_wanted: IsWanted) -> None:
        """Look at what came, or came forward, since the last step."""
        arrivals = self._order.arrivals
        if arrivals.count == self._arrivals_seen:
            return
        missed = arrivals.since(self._arrivals_seen)
        self._arrivals_seen = arrivals.count
        if missed is None:
            self._begin()
            return
        level = self._level
        for standing, item in missed:
            if level is not None and waiting_lines.level_of(standing.tier) != level:
                continue
            if standing not in self._nexts:
                place = standing.place
                if place is not None and self._is_looked_at((standing.tier, *place[:3])):
                    self._push(standing, _FRONT, rows, is_wanted)
                continue
            following = self._nexts[standing]
            if item is None:
                if following is not None:
                    self._add(standing, following[2], following[3])
            elif rows.flags[item[2]] and (following is None or item[:2] < following[2:4]):
                self._add(standing, item[0], item[1])

    def _is_looked_at(self, place: tuple[int, float, float, str]) -> bool:
        """Say whether all standings up to a place were looked at."""
        return place <= (self._tier, *self._looked_at)

    def _pop(
        self, rows: shape_index.ShapeRows, is_wanted: IsWanted
    ) -> waiting_lines.InPlace | None:
        """Return the nearest of all that were looked at, if it still is."""
        nearest = heapq.heappop(self._open)
        _, share, asked_at, key, _, standing = nearest
        if self._nexts[standing] is not nearest:
            return None
        if share != standing.group.share:
            self._add(standing, asked_at, key)
            return None
        found = self._first((asked_at, key), standing, rows, is_wanted)
        if found is None:
            self._nexts[standing] = None
            return None
        if found[:2] != (asked_at, key):
            self._add(standing, found[0], found[1])
            return None
        self._given = nearest
        each: waiting_lines.InPlace = found[3]
        return each

    def _push(
        self,
        standing: standings.Standing,
        behind: tuple[Any, ...],
        rows: shape_index.ShapeRows,
        is_wanted: IsWanted,
    ) -> None:
        """Note the first of a standing behind a place in it."""
        found = self._first(behind, standing, rows, is_wanted)
        if found is None:
            self._nexts[standing] = None
        else:
            self._add(standing, found[0], found[1])

    def _add(self, standing: standings.Standing, asked_at: float, key: str) -> None:
        following = (
            standing.tier,
            standing.group.share,
            asked_at,
            key,
            next(self._numbers),
            standing,
        )
        self._nexts[standing] = following
        heapq.heappush(self._open, following)

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
