# SPDX-License-Identifier: Apache-2.0
"""Keeps places in server groups for a while once records show them.

A request names the members that its group had when it was made. One that waits
for its turn, behind others or with a scheduler that sleeps, knows of members
that came since by the group's record alone: were a place dropped as soon as an
instance shows it, that request would be given the same host again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import settling_rules


class Lingering:
    """When entries were first seen to be shown; one thread.

    :param seconds: how long an entry stays then
    :param clock: monotonic seconds
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        #: By record, then by entry and what tells its takings apart.
        self._since: dict[records.RecordKey, dict[tuple[Any, str], float]] = {}

    def clear(self) -> None:
        """Forget all: another process may have settled meanwhile."""
        self._since.clear()

    def forget(self, key: records.RecordKey) -> None:
        """Forget a record that has no entries any more."""
        self._since.pop(key, None)

    def is_due(self, key: records.RecordKey) -> bool:
        """Say whether an entry of a record has been shown for long enough."""
        lingered = self._clock() - self._seconds
        return any(since <= lingered for since in self._since.get(key, {}).values())

    def judged(
        self, key: records.RecordKey, verdict: settling_rules.Verdict
    ) -> settling_rules.Verdict:
        """Return a verdict by which entries go once they were shown for long enough.

        One that was shown and is not any more has left: it goes at once.
        """
        now = self._clock()
        before = self._since.pop(key, {})
        shown = {each: before.get(each, now) for each in verdict.settled.items()}
        left = {each: before[each] for each in verdict.unshown.items() if each in before}
        if shown or left:
            self._since[key] = shown | left
        served = {each for each, since in shown.items() if since <= now - self._seconds}
        return attrs.evolve(
            verdict,
            settled=dict(served.union(left)),
            # That it left, a view knows that has come as far as the store.
            shown_at=sys.maxsize if left else verdict.shown_at,
            unshown=dict(verdict.unshown.items() - left.keys()),
        )
