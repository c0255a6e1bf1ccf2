# SPDX-License-Identifier: Apache-2.0
"""With more owners than are looked at one by one, too, the order is that of a plain sorted list.

Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

from __future__ import annotations

import os
import random

import attrs
import numpy as np
import testtools
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import grown_hosts, queue_settings, wait_queues
from tests.unit.scheduling.waiting import plain_queue, samples

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "20"))
IS_LONG = "NODB_PROPERTY_EXAMPLES" in os.environ

REQUESTS = 150
PROJECTS = [f"p{number}" for number in range(50)]
RESOURCES = ("VCPU", "MEMORY_MB")
NOW = 1000.0


def a_request(key: str, chance: random.Random) -> pending.PendingRequest:
    project = chance.choice(PROJECTS)
    size = chance.choice([1, 1, 1, 2, 3])
    return samples.request(
        key,
        size,
        project_id=project,
        # Most ask for the same; some in a queue of their owner.
        queue=f"d{size}-{project if chance.random() < 0.5 else ''}",
        priority_class=chance.choice(["low", "high"]),
        asked_at=NOW - chance.randint(1, 60),
        not_before=NOW + chance.choice([0, 0, 50]),
        rank=chance.choice([0, 0, 0, 0, 1]),
    )


class Crowd:
    """Both of them, and what is done to both."""

    def __init__(self, settings: queue_settings.QueueSettings, chance: random.Random) -> None:
        self.chance = chance
        self.queues = wait_queues.WaitQueues(settings)
        self.plain = plain_queue.PlainQueue(settings)
        self.plain.capacity = {"VCPU": 100, "MEMORY_MB": 100}
        self.queues.set_capacity(self.plain.capacity, NOW)
        for number in range(REQUESTS):
            request = a_request(f"r{number:03}", chance)
            self.queues.put(request, NOW)
            self.plain.put(request)

    def use(self) -> None:
        """Have some projects use more or less; many of them the same."""
        for project in self.chance.sample(PROJECTS, 15):
            used = {"VCPU": self.chance.choice([0, 0, 1, 2, 7])}
            self.queues.set_usage(project, used, NOW)
            self.plain.used[project] = used

    def ask(self) -> list[tuple[int, int]]:
        """Return what newcomers are told, and what they should be."""
        told = []
        for number in range(6):
            request = attrs.evolve(a_request(f"new{number}", self.chance), rank=0)
            for of_others in (True, False):
                told.append(
                    (
                        self.queues.behind(request, NOW, of_others=of_others),
                        self.plain.behind(request, NOW, of_others=of_others),
                    )
                )
        return told

    def grow(self) -> tuple[list[str], list[str]]:
        """Return who is asked when a host grew, and who should be."""
        rooms = {"h": dict.fromkeys(RESOURCES, self.chance.randint(1, 12))}
        answers = self.chance.choices(["granted", "granted", "refused", "lost"], k=REQUESTS)
        left = iter(answers)
        expected = self.plain.wake(["h"], rooms, None, NOW, lambda request, hosts: next(left))
        free = np.array([list(rooms["h"].values())], np.int64)
        walk = self.queues.wake(grown_hosts.Growth(("h",), RESOURCES, free), NOW)
        left, asked = iter(answers), []
        while (candidate := walk.next()) is not None:
            asked.append(candidate.request.key)
            match next(left):
                case "granted":
                    walk.granted(["h"], NOW + 50.0)
                case "lost":
                    walk.lost()
                case _:
                    walk.refused()
        return asked, [key for key, _, _ in expected]

    def firsts(self) -> tuple[list[str], list[str]]:
        """Return who is asked when queues are swept, all of them refused, and who should be."""
        asked = []
        walk = self.queues.sweep(NOW)
        while (candidate := walk.next()) is not None:
            asked.append(candidate.request)
            walk.refused()
        ready = [each for each in self.plain.known.values() if self.plain.is_ready(each, NOW)]
        ready.sort(key=lambda each: self.plain.order(each.request, NOW))
        expected: dict[object, str] = {}
        for each in ready:
            expected.setdefault(plain_queue.queue(each.request), each.request.key)
        swept = {plain_queue.queue(each) for each in asked}
        return (
            [each.key for each in asked],
            [key for queue, key in expected.items() if queue in swept],
        )


class CrowdTest(testtools.TestCase):
    @hypothesis_settings(deadline=None, max_examples=EXAMPLES, derandomize=not IS_LONG)
    @given(
        st.integers(0, 2**32),
        st.sampled_from(queue_settings.Order),
        st.sampled_from(queue_settings.Discipline),
    )
    def test_who_is_asked_and_what_newcomers_are_told(self, seed, order, discipline):
        settings = queue_settings.QueueSettings(
            classes=(
                queue_settings.PriorityClass("low", 0),
                queue_settings.PriorityClass("high", 9),
            ),
            default_class="low",
            order=order,
            discipline=discipline,
            project_weights={"p1": 3.0},
        )
        crowd = Crowd(settings, random.Random(seed))
        for _ in range(3):
            crowd.use()
            for found, expected in crowd.ask():
                self.assertEqual(expected, found)
            if discipline is queue_settings.Discipline.BEST_EFFORT:
                found, expected = crowd.firsts()
                self.assertEqual(expected, found)
            asked, expected = crowd.grow()
            self.assertEqual(expected, asked)
