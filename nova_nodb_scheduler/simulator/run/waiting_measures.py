# SPDX-License-Identifier: Apache-2.0
"""What became of each request that might wait, and whom others went before that should not have.

The order is held against the plainest rule there is: of requests for the same type and number of
servers, which have equal chances at any moment, none goes before one of a greater class, nor of
its own project's before an older one of the class. What a scheduler could not have known yet
counts for nothing: who came to wait less than :data:`SLACK_SECONDS` before. It shares no code
with the order of the queue.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from nova_nodb_scheduler.simulator.scenario import workload
from nova_nodb_scheduler.simulator.schedulers import pipe_messages

#: What requests with equal chances have in common: type and number of servers.
_Chances: TypeAlias = tuple[workload.MadeFlavor, int]

#: What a feed and a decision may take, real seconds.
SLACK_SECONDS = 2.0


@attrs.define
class Story:
    """One request's way. Times are simulated seconds; None before they come.

    :ivar waits_since: while it waits: since when
    :ivar granted_at: of the attempt under way: when it was granted
    :ivar ending: ``placed``, ``expired``, ``refused``, ``failed``; empty before
    :ivar attempts: that were answered
    """

    arrival: workload.Arrival
    asked_at: float
    parked_at: float | None = None
    waits_since: float | None = None
    not_before: float = 0.0
    granted_at: float | None = None
    ended_at: float | None = None
    ending: str = ""
    attempts: int = 0

    @property
    def waited_seconds(self) -> float | None:
        """How long it took until its servers were sent; None where they were not."""
        return self.ended_at - self.asked_at if self.ended_at is not None else None


@attrs.define(eq=False)
class WaitingMeasures:
    """All requests of one run. One thread.

    :param numbers: of classes, by name
    :param slack_seconds: simulated
    :ivar ended: requests that came to an end
    :ivar grants: that schedulers made; ``regrants`` those of requests that did not wait
    :ivar unkept: requests that no record could be written of
    :ivar failed_grants: attempts that a scheduler had granted and that found no room
    :ivar overtaken: see the module: one for each request that was placed before one it
        should not have been
    :ivar samples: (simulated seconds, share of the scarcest resource that is used, requests
        that wait)
    """

    _numbers: Mapping[str, int]
    _aging_seconds: float
    _slack_seconds: float
    stories: dict[int, Story] = attrs.field(init=False, factory=dict)
    failed_grants: int = attrs.field(init=False, default=0)
    grants: int = attrs.field(init=False, default=0)
    regrants: int = attrs.field(init=False, default=0)
    overtaken: int = attrs.field(init=False, default=0)
    unkept: int = attrs.field(init=False, default=0)
    most_waiting: int = attrs.field(init=False, default=0)
    samples: list[tuple[float, float, int]] = attrs.field(init=False, factory=list)
    wakes: list[pipe_messages.WakeNotes] = attrs.field(init=False, factory=list)
    ended: int = attrs.field(init=False, default=0)
    _waiting: int = attrs.field(init=False, default=0)
    #: Of equal chances, by class and project: (asked at, number) of those that wait.
    _equals: dict[_Chances, dict[tuple[str, str], list[tuple[float, int]]]] = attrs.field(
        init=False,
        factory=lambda: collections.defaultdict(lambda: collections.defaultdict(list)),
    )

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return self._waiting

    def came(self, arrival: workload.Arrival, now: float) -> None:
        """Note a request."""
        self.stories[arrival.number] = Story(arrival, now)

    def parked(self, number: int, now: float, not_before: float) -> None:
        """Note that a request waits, for the first time or again."""
        story = self.stories[number]
        story.parked_at = now if story.parked_at is None else story.parked_at
        story.waits_since, story.not_before, story.granted_at = now, not_before, None
        bisect.insort(self._line(story.arrival), (story.asked_at, number))
        self._waiting += 1
        self.most_waiting = max(self.most_waiting, self._waiting)

    def granted(self, number: int, now: float) -> None:
        """Note that a scheduler granted a request."""
        story = self.stories[number]
        self.grants += 1
        self.regrants += story.waits_since is None
        self._leave(story)
        story.granted_at = now

    def answered(self, number: int, *, has_room: bool) -> None:
        """Note an attempt's answer."""
        story = self.stories[number]
        story.attempts += 1
        self.failed_grants += story.granted_at is not None and not has_room

    def ended_as(self, number: int, ending: str, now: float) -> None:
        """Note a request's end; a second one changes nothing."""
        story = self.stories[number]
        if story.ending:
            return
        self._leave(story)
        story.ending, story.ended_at = ending, now
        self.ended += 1
        if ending == "placed":
            self.overtaken += self._has_overtaken(story)

    def _leave(self, story: Story) -> None:
        if story.waits_since is None:
            return
        self._line(story.arrival).remove((story.asked_at, story.arrival.number))
        story.waits_since = None
        self._waiting -= 1

    def _line(self, arrival: workload.Arrival) -> list[tuple[float, int]]:
        alike = self._equals[arrival.flavor, arrival.servers]
        return alike[arrival.priority_class, arrival.project_id]

    def _has_overtaken(self, story: Story) -> bool:
        """Say whether one waits that should have gone before, and was known to."""
        arrival = story.arrival
        # Who asked and was placed at once passed the gate when it asked.
        at = story.asked_at if story.granted_at is None else story.granted_at
        level = self._level(story, at)
        for (_, project), line in self._equals[arrival.flavor, arrival.servers].items():
            for asked_at, number in line:
                other = self.stories[number]
                is_known = (
                    other.waits_since is not None
                    and max(other.waits_since, other.not_before) + self._slack_seconds <= at
                )
                if not is_known:
                    continue
                other_level = self._level(other, at - self._slack_seconds)
                is_older = project == arrival.project_id and asked_at < story.asked_at
                if other_level > level or (other_level == level and is_older):
                    return True
                # Those behind are younger, and count as no greater a class.
                break
        return False

    def _level(self, story: Story, at: float) -> int:
        """Return the number of the greatest class that a request counts as."""
        number = float(self._numbers[story.arrival.priority_class])
        if self._aging_seconds:
            number += max(0.0, at - story.asked_at) // self._aging_seconds
        return max(each for each in self._numbers.values() if each <= number)


def by_class(stories: Sequence[Story]) -> dict[str, list[Story]]:
    """Return requests by the name of their class."""
    found: dict[str, list[Story]] = collections.defaultdict(list)
    for each in stories:
        found[each.arrival.priority_class].append(each)
    return dict(found)
