# SPDX-License-Identifier: Apache-2.0
"""Whatever comes, goes and moves while somebody is tried, the next one is who goes first by then.

Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

from __future__ import annotations

import os
import random
from typing import Any

import attrs
import numpy as np
import testtools
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import grown_hosts, queue_settings, wait_queues
from tests.unit.scheduling.waiting import plain_queue, samples

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "200"))
IS_LONG = "NODB_PROPERTY_EXAMPLES" in os.environ

BEST_EFFORT = queue_settings.Discipline.BEST_EFFORT
STRICT = queue_settings.Discipline.STRICT

NOW = 1000.0
HOSTS = ("h1", "h2")
PROJECTS = ("p", "q", "r")
QUEUES = [(vcpus, letter) for vcpus in (1, 2) for letter in "abc"]
CLASSES = (queue_settings.PriorityClass("low", 0), queue_settings.PriorityClass("high", 3))
#: What may happen between two steps; each example has some of it.
EVENTS = ("come", "come_back", "again", "in_hand", "drop", "use", "show", "time")
MOST_STEPS = 60


class World:
    """Everything done to both."""

    def __init__(self, chance: random.Random, discipline: queue_settings.Discipline) -> None:
        self.chance = chance
        self.now = NOW
        chosen = queue_settings.QueueSettings(
            classes=CLASSES,
            default_class="low",
            order=chance.choice([*queue_settings.Order]),
            discipline=discipline,
            aging_seconds=chance.choice([0.0, 6.0]),
        )
        self.queues = wait_queues.WaitQueues(chosen)
        self.plain = plain_queue.PlainQueue(chosen)
        self.plain.capacity = {"VCPU": 40, "MEMORY_MB": 40}
        self.queues.set_capacity(self.plain.capacity, NOW)
        self.events = chance.sample(EVENTS, chance.choice([1, 2, len(EVENTS)]))
        self._number = 0
        # A queue is forgotten with the last of it, and with that that it was refused.
        for vcpus, letter in QUEUES:
            keeper = self.a_request(f"keeper-{vcpus}{letter}", vcpus, letter, "keepers")
            self.put(samples.granted(keeper, NOW + 999.0))
        for _ in PROJECTS:
            self.use()
        for _ in range(14):
            self.come()
        for _ in range(4):
            self.in_hand()

    def change(self) -> None:
        getattr(self, self.chance.choice(self.events))()

    def put(self, request: pending.PendingRequest) -> None:
        self.queues.put(request, self.now)
        self.plain.put(request)

    def a_request(self, key: str, vcpus: int, letter: str, project: str) -> pending.PendingRequest:
        return samples.request(
            key,
            vcpus,
            queue=f"{vcpus}-{letter}",
            project_id=project,
            priority_class=self.chance.choice(["low", "low", "high"]),
            asked_at=self.now - self.chance.randint(0, 30),
            not_before=self.now + self.chance.choice([0, 0, 0, 5]),
            rank=self.chance.choice([0] * 9 + [1]),
        )

    def come(self) -> None:
        self._number += 1
        vcpus, letter = self.chance.choice(QUEUES)
        project = self.chance.choice(PROJECTS)
        self.put(self.a_request(f"r{self._number:02}", vcpus, letter, project))

    def come_back(self) -> None:
        """Have a grant come to nothing: what it took is its project's no more."""
        self._wait([key for key in self._keys() if not self._is_waiting(key)])

    def again(self) -> None:
        """Have a record written anew, by whomever, or told once more."""
        self._wait(self._keys())

    def in_hand(self) -> None:
        """Have another one grant somebody."""
        waiting = [key for key in self._keys() if self._is_waiting(key)]
        if waiting:
            known = self.plain.known[self.chance.choice(waiting)]
            host = self.chance.choice(["", *HOSTS])
            attempt = known.attempt + 1
            self.put(samples.granted(known.request, NOW + 999.0, host, attempt=attempt))

    def drop(self) -> None:
        keys = self._keys()
        if keys:
            key = self.chance.choice(keys)
            self.queues.drop(key, self.now)
            self.plain.drop(key)

    def show(self) -> None:
        keys = self._keys()
        if keys:
            key = self.chance.choice(keys)
            self.queues.show(key, self.now)
            self.plain.show(key)

    def use(self) -> None:
        project = self.chance.choice(PROJECTS)
        used = {"VCPU": self.chance.choice([0, 0, 2, 4, 8])}
        self.queues.set_usage(project, used, self.now)
        self.plain.used[project] = used

    def time(self) -> None:
        self.now += self.chance.choice([0.5, 1.0, 6.0])
        self.queues.advance(self.now)
        self.plain.advance(self.now)

    def walk(self) -> tuple[list[Any], list[Any]]:
        """Return who is asked, and who should be, up to the first that differs."""
        rooms = {host: self._room(14) for host in HOSTS}
        before = {host: self._room(3) for host in HOSTS} if self.chance.random() < 0.3 else None
        plain = plain_queue.PlainWalk(self.plain, HOSTS, rooms, before, self.now)
        walk = self.queues.wake(
            grown_hosts.Growth(
                HOSTS, samples.RESOURCES, _array(rooms), None if before is None else _array(before)
            ),
            self.now,
        )
        asked, expected = [], []
        for _ in range(MOST_STEPS):
            candidate = walk.next()
            should = plain.next(self.now)
            found = candidate and (
                candidate.request.key,
                candidate.attempt,
                list(candidate.hosts or ()),
            )
            asked.append(found)
            expected.append(should)
            if candidate is None or found != should:
                break
            for _ in range(self.chance.choice([0, 0, 1, 2])):
                self.change()
            said = self.chance.choice(["granted", "granted", "refused", "left", "lost"])
            if said in ("granted", "left"):
                getattr(walk, said)(found[2][:1], self.now + 50.0)
            else:
                getattr(walk, said)()
            plain.answer(said, self.now)
        return asked, expected

    def _room(self, most: int) -> dict[str, int]:
        return dict.fromkeys(samples.RESOURCES, self.chance.randint(0, most))

    def _keys(self) -> list[str]:
        return [key for key in self.plain.known if not key.startswith("keeper")]

    def _is_waiting(self, key: str) -> bool:
        known = self.plain.known[key]
        return known.request.state is plain_queue.WAITING and not known.here

    def _wait(self, keys: list[str]) -> None:
        if not keys:
            return
        known = self.plain.known[self.chance.choice(keys)]
        self.put(
            attrs.evolve(
                known.request,
                state=plain_queue.WAITING,
                not_before=self.now + self.chance.choice([0, 0, 0, 5]),
                grant=pending.Grant(known.attempt, "conductor", 0.0),
            )
        )


class ChangesDuringWalksTest(testtools.TestCase):
    @settings(deadline=None, max_examples=EXAMPLES, derandomize=not IS_LONG)
    @given(st.integers(0, 2**32), st.sampled_from(queue_settings.Discipline))
    # Left out were who had a place with somebody of their line or project that came back, ...
    @example(354, BEST_EFFORT)
    @example(395, BEST_EFFORT)
    @example(433, BEST_EFFORT)
    # ... or whose share fell, or who grew older, ...
    @example(449, BEST_EFFORT)
    @example(569, BEST_EFFORT)
    @example(838, BEST_EFFORT)
    # ... or who stood in strict order in a line with one that had risen.
    @example(279, STRICT)
    @example(344, STRICT)
    @example(504, STRICT)
    @example(623, STRICT)
    def test_each_step_is_the_first_of_a_list_that_is_sorted_anew(self, seed, discipline):
        asked, expected = World(random.Random(seed), discipline).walk()
        self.assertEqual(expected, asked)


class LeftOutTest(testtools.TestCase):
    """One by one, what was left to the sweep."""

    def began(self, *requests: pending.PendingRequest, first: str, **chosen: Any) -> Any:
        """Return queues and a walk of which the first is asked; it has room for all."""
        queues = samples.queues(*requests, now=NOW, **chosen)
        walk = queues.wake(samples.growth(h=90), NOW)
        self.assertEqual(first, walk.next().request.key)
        return queues, walk

    def a_line(self, first: str, **chosen: Any) -> Any:
        return self.began(
            samples.request("other", queue="other", asked_at=8.0, project_id="p"),
            samples.request("untouched", asked_at=9.0),
            first=first,
            **chosen,
        )

    def test_behind_an_older_one_that_comes_to_its_line(self):
        queues, walk = self.a_line("other")

        queues.put(samples.request("older", asked_at=1.0), NOW)
        walk.refused()
        self.assertEqual(["older", "untouched"], samples.served(walk))

    def test_behind_an_older_one_that_comes_to_its_line_and_counts_as_a_greater_class(self):
        queues, walk = self.a_line("other", classes=CLASSES, default_class="low", aging_seconds=331)

        queues.put(samples.request("older", asked_at=NOW - 993.0, priority_class="low"), NOW)
        walk.refused()
        self.assertEqual(["older", "untouched"], samples.served(walk))

    def test_behind_one_whose_record_came_anew_while_it_was_tried(self):
        asked = samples.request("asked", asked_at=1.0)
        queues, walk = self.began(asked, samples.request("untouched", asked_at=9.0), first="asked")

        queues.put(attrs.evolve(asked, grant=pending.Grant(2, "conductor", 0.0)), NOW)
        walk.lost()
        self.assertEqual(["asked", "untouched"], samples.served(walk))

    def test_with_its_project_of_which_a_grant_came_to_nothing(self):
        granted = samples.request("granted", 40, queue="q1", project_id="p", asked_at=1.0)
        queues = samples.queues(
            granted,
            samples.request("untouched", 10, queue="q2", project_id="p", asked_at=2.0),
            samples.request("other", 10, queue="q3", project_id="q", asked_at=9.0),
            now=NOW,
        )
        queues.set_capacity({"VCPU": 100}, NOW)
        queues.set_usage("q", {"VCPU": 10}, NOW)
        walk = queues.wake(samples.growth(h=90), NOW)
        self.assertEqual("granted", walk.next().request.key)
        walk.granted(["h"], samples.FOREVER)
        self.assertEqual("other", walk.next().request.key)

        back = pending.Grant(2, "conductor", 0.0)
        queues.put(attrs.evolve(granted, grant=back, not_before=NOW + 9.0), NOW)
        walk.refused()
        self.assertEqual(["untouched"], samples.served(walk))

    def test_as_it_counts_as_a_greater_class_by_now(self):
        queues = samples.queues(
            samples.request("high", queue="q1", priority_class="high", asked_at=NOW),
            samples.request("untouched", queue="q2", priority_class="low", asked_at=NOW - 17.0),
            now=NOW,
            classes=CLASSES,
            default_class="low",
            aging_seconds=6.0,
        )
        walk = queues.wake(samples.growth(h=90), NOW)
        self.assertEqual("high", walk.next().request.key)

        queues.advance(NOW + 2.0)
        walk.granted(["h"], samples.FOREVER)
        self.assertEqual(["untouched"], samples.served(walk))

    def test_though_very_many_came_meanwhile(self):
        queues, walk = self.a_line("other", max_pending_per_project=10**6)

        queues.put(samples.request("older", asked_at=1.0), NOW)
        for number in range(100):
            queues.put(samples.request(f"r{number}", 91, asked_at=50.0), NOW)
        walk.refused()
        self.assertEqual(["older", "untouched"], samples.served(walk))

    def test_a_record_that_comes_anew_does_not_undo_that_its_like_was_refused(self):
        refused = samples.request("refused", asked_at=1.0)
        queues, walk = self.began(refused, first="refused")

        walk.refused()
        queues.put(attrs.evolve(refused, rank=1), NOW)
        self.assertEqual([], samples.served(walk))


class StrictTest(testtools.TestCase):
    def strict(self, *requests: pending.PendingRequest) -> wait_queues.WaitQueues:
        """Make queues in which who asked 18 seconds ago counts as of the greater class."""
        return samples.queues(
            *requests,
            now=NOW,
            classes=CLASSES,
            default_class="low",
            discipline=STRICT,
            aging_seconds=6.0,
        )

    def low(self, key: str, waited: float, **fields: Any) -> pending.PendingRequest:
        return samples.request(key, priority_class="low", asked_at=NOW - waited, **fields)

    def test_one_that_rests_and_has_risen_hides_nobody_of_the_class_that_it_was_of(self):
        queues = self.strict(self.low("risen", 18.0, not_before=NOW + 5.0), self.low("young", 9.0))

        self.assertEqual(["young"], samples.tried(queues.wake(samples.growth(h=9), NOW)))

    def test_nobody_of_that_class_goes_before_one_that_stands_behind_it(self):
        queues = self.strict(
            self.low("risen", 18.0),
            self.low("first", 9.0),
            self.low("second", 8.0, queue="other"),
        )

        self.assertEqual(["risen", "first"], samples.tried(queues.wake(samples.growth(h=9), NOW)))

    def test_it_still_keeps_others_back_of_the_class_that_it_counts_as(self):
        queues = self.strict(
            self.low("risen", 18.0, not_before=NOW + 5.0),
            samples.request("high", queue="other", priority_class="high", asked_at=NOW),
        )

        self.assertEqual([], samples.tried(queues.wake(samples.growth(h=9), NOW)))

    def test_who_rises_while_it_waits_leaves_its_class_to_the_next_one(self):
        queues = self.strict(self.low("rises", 17.0, not_before=NOW + 5.0), self.low("young", 9.0))
        self.assertEqual([], samples.tried(queues.wake(samples.growth(h=9), NOW)))

        queues.advance(NOW + 1.0)
        self.assertEqual(["young"], samples.tried(queues.wake_fresh(NOW + 1.0)))


def _array(rooms: dict[str, dict[str, int]]) -> Any:
    return np.array([list(room.values()) for room in rooms.values()], np.int64)
