# SPDX-License-Identifier: Apache-2.0
"""When to ask for the allocations of confirmed claims that no record shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.model import records


@attrs.define
class _Watch:
    """:ivar missed_at: when to ask unless the allocation is seen until then; None if it is there"""

    next_at: float
    pause_seconds: float
    missed_at: float | None = None

    def is_due(self, now: float) -> bool:
        return now >= self.next_at or (self.missed_at is not None and now >= self.missed_at)


class Watches:
    """The claims that wait to be shown; one thread.

    :param after_seconds: how long a claim may be unshown before it is asked
        for; doubled each time
    :param most_seconds: between two questions
    :param clock: monotonic seconds
    """

    def __init__(
        self, after_seconds: float, most_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._after_seconds = after_seconds
        self._most_seconds = most_seconds
        self._clock = clock
        #: By record, then by entry and id.
        self._watches: dict[records.RecordKey, dict[tuple[Any, str], _Watch]] = {}

    def clear(self) -> None:
        """Forget all."""
        self._watches.clear()

    def forget(self, key: records.RecordKey) -> None:
        """Forget a record that has no claims any more."""
        self._watches.pop(key, None)

    def is_due(self, key: records.RecordKey) -> bool:
        """Say whether a claim of a record is to be asked for."""
        now = self._clock()
        return any(watch.is_due(now) for watch in self._watches.get(key, {}).values())

    def hasten(self, key: records.RecordKey, entries: Collection[Any], seconds: float) -> None:
        """Ask for some entries of a record in so many seconds at the latest."""
        soon = self._clock() + seconds
        for (entry, _), watch in self._watches.get(key, {}).items():
            if entry in entries:
                watch.next_at = min(watch.next_at, soon)

    def note_allocated(
        self, key: records.RecordKey, allocated: Collection[Any], seconds: float
    ) -> None:
        """Note whose allocations a host's provider shows by now.

        Who is missing is asked for in so many seconds, unless another record shows it
        until then: a provider's record is written by several, each with what it knows,
        and lacks what another is about to add.
        """
        soon = self._clock() + seconds
        for (entry, _), watch in self._watches.get(key, {}).items():
            if entry in allocated:
                watch.missed_at = None
            elif watch.missed_at is None:
                watch.missed_at = soon

    def to_ask(
        self,
        key: records.RecordKey,
        unshown: Mapping[Any, str],
        under_way: Collection[Any],
        at_most: int,
    ) -> frozenset[Any]:
        """Return the entries of a record to ask for now, of those that are unshown.

        :param unshown: ids by entry; what is in it no more is forgotten
        :param under_way: entries that are being asked for
        """
        now = self._clock()
        before = self._watches.pop(key, {})
        watches = {
            each: before.get(each) or _Watch(now + self._after_seconds, self._after_seconds)
            for each in unshown.items()
        }
        if watches:
            self._watches[key] = watches
        asked: set[Any] = set()
        for (entry, _), watch in watches.items():
            if watch.is_due(now) and len(asked) < at_most and entry not in under_way:
                watch.pause_seconds = min(2 * watch.pause_seconds, self._most_seconds)
                watch.next_at = now + watch.pause_seconds
                watch.missed_at = None
                asked.add(entry)
        return frozenset(asked)
