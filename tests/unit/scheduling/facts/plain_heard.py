# SPDX-License-Identifier: Apache-2.0
"""What one service's heartbeats in journals come to, with sets in the place of bits and arrays."""

from __future__ import annotations

import math

from nova_nodb_scheduler.scheduling.facts import heard_services
from nova_nodb_scheduler.scheduling.namespaces import report_counts


class PlainService:
    """A service by the words of :mod:`.heard_services`, and the truth beside it.

    :ivar truth: every count that is missing, with the version and the time of the slot that
        showed it: what an exact reader without a bound would keep
    :ivar left: the same of former numberings
    :ivar held: counts that a sweep made good, but that are told until a later one, for the
        group that they are of has the version of another count, which came since
    :ivar shown_version: of the latest slot that showed a gap
    """

    def __init__(
        self, count: int, counted_at: float, met: dict[str, int], since: float = -math.inf
    ) -> None:
        self.begun = self.told = False
        self.since = since
        self.highest, self.counted_at, self.heard_at = count, counted_at, math.nan
        self.lower: set[int] = set()
        self.upper: set[int] = set()
        self.fallen = False
        self.lower_version = self.upper_version = 0
        self.lower_since = self.upper_since = 0.0
        self.truth: dict[int, tuple[int, float]] = {}
        self.left: list[tuple[int, float]] = []
        self.held: set[int] = set()
        self.shown_version = 0
        self._met = met

    def meet(self, case: str) -> None:
        self._met[case] = self._met.get(case, 0) + 1

    def take(self, count: int, heard_at: float, version: int, now: float) -> None:
        current: dict[str, float] = {"report_count": self.highest}
        if not math.isnan(self.counted_at):
            current["counted_at"] = self.counted_at
        step = report_counts.judge_count(current, count, 1, heard_at)
        latest = heard_at if math.isnan(self.heard_at) else max(heard_at, self.heard_at)
        if step is report_counts.CountStep.IGNORED:
            self.meet("ignored")
            self.heard_at = latest
        elif not self.begun and heard_at < self.since:
            self.meet("too old to begin with")
            self.heard_at = latest
        elif not self.begun:
            is_fresh = math.isfinite(self.since) and self.counted_at >= self.since
            if is_fresh and not self.told and count > self.highest:
                self.meet("begun from its record")
                self._raise(count, version, now)
            self.begun = self.told = True
            self.highest, self.counted_at, self.heard_at = count, heard_at, heard_at
        elif step is report_counts.CountStep.RENUMBERED:
            self.meet("renumbered")
            self._leave()
            self.highest, self.counted_at, self.heard_at = count, heard_at, latest
        elif count > self.highest:
            self._raise(count, version, now)
            self.counted_at = self.heard_at = heard_at
        else:
            self.heard_at = latest
            if count in self.truth:
                self.meet("filled in")
                del self.truth[count]
            if self.highest - count <= heard_services.WINDOW:
                self.lower.discard(count)
                self.upper.discard(count)

    def _leave(self) -> None:
        self._merge()
        self.fallen |= bool(self.lower)
        self.lower.clear()
        self.held.clear()
        self.left += self.truth.values()
        self.truth.clear()

    def begin_anew(self, since: float) -> None:
        self.since = since
        if self.begun:
            self.meet("begun anew" if not self.truth else "begun anew with a gap")
            self._leave()
            self.begun = False

    def _raise(self, count: int, version: int, now: float) -> None:
        gap = set(range(self.highest + 1, count))
        self.highest = count
        fell = self._beyond(self.lower | self.upper)
        if self.upper and (gap or fell & self.upper):
            self._merge()
        self._drop(fell)
        if gap:
            self.meet("gap")
            self.truth.update(dict.fromkeys(gap, (version, now)))
            self.shown_version = version
            self.upper = gap
            self.upper_version = version
            self.upper_since = now
            wide = self._beyond(gap)
            if wide:
                self.meet("wide gap")
                self._merge()
                self._drop(wide)

    def _beyond(self, counts: set[int]) -> set[int]:
        return {each for each in counts if each < self.highest - heard_services.WINDOW}

    def _drop(self, fell: set[int]) -> None:
        if fell:
            self.meet("fallen")
        self.fallen |= bool(fell)
        self.lower -= fell

    def _merge(self) -> None:
        if self.upper:
            if self.lower or self.fallen:
                self.meet("merged")
            else:
                self.lower_since = self.upper_since
            self.lower_version = max(self.lower_version, self.upper_version)
        self.lower |= self.upper
        self.upper = set()

    def settle(self, version: int) -> None:
        before = len(self.truth) + len(self.left)
        made_good = {count for count, each in self.truth.items() if each[0] <= version}
        self.truth = {count: each for count, each in self.truth.items() if each[0] > version}
        self.left = [each for each in self.left if each[0] > version]
        if len(self.truth) + len(self.left) < before:
            self.meet("settled" if not self.truth else "settled in part")
        if self.lower_version <= version:
            self.lower, self.fallen = set(), False
            if self.upper_version <= version:
                self.upper = set()
        self.held = (self.held | made_good) & (self.lower | self.upper)
        if self.held:
            self.meet("held")
        # No sweep that began behind all that was shown leaves anything.
        is_all = version >= self.shown_version
        assert not (is_all and (self.lower or self.upper or self.fallen)), vars(self)

    def is_unreported(self, now: float, grace: float) -> bool:
        lower = bool(self.lower) or self.fallen
        found = (lower and now - self.lower_since > grace) or (
            bool(self.upper) and now - self.upper_since > grace
        )
        missing = [*self.truth.values(), *self.left]
        # What is missing is told, in time; and nothing that is there or was made good, but for
        # what was filled in behind the window, and what shares a group with a later gap.
        assert found or not any(now - since > grace for _, since in missing), vars(self)
        held = self.held & (self.lower | self.upper)
        assert missing or self.fallen or held or not found, vars(self)
        return found
