# SPDX-License-Identifier: Apache-2.0
"""What an event and a newcomer cost does not grow with what waits: counted in calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import attrs
import immutables
import testtools

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import queue_settings, wait_queues
from nova_nodb_scheduler.scheduling.waiting.order import shape_index
from tests.unit.scheduling.waiting import samples

FEW, MANY = 10, 600
#: Searches of sorted sequences, and of one that has become long.
SLACK = 60


def calls(do: Callable[[], Any]) -> int:
    """Return how many Python functions are called."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(None)
    return count


def settled(*requests: pending.PendingRequest, **settings: Any) -> wait_queues.WaitQueues:
    """Return queues of which all were tried as newcomers."""
    queues = samples.queues(**settings)
    queues.set_capacity({"VCPU": 100_000, "MEMORY_MB": 100_000}, 0.0)
    for project in sorted({each.project_id for each in requests}):
        queues.set_usage(project, {"VCPU": 1000}, 0.0)
    for each in requests:
        queues.put(each, 0.0)
    while (walk := queues.wake_fresh(0.0)).next() is not None:
        walk.refused()
        samples.tried(walk)
    return queues


def of_one_project(count: int) -> list[pending.PendingRequest]:
    """Make requests of a project, each in a queue of its own; the first is the smallest."""
    return [
        samples.request(f"r{n:04}", queue=f"q{n}", asked_at=float(n), vcpus=1 + (n > 0))
        for n in range(count)
    ]


class SharesTest(testtools.TestCase):
    def granted_and_shown(self, count: int) -> int:
        queues = settled(*of_one_project(count))

        def event() -> None:
            self.assertEqual(["r0000"], samples.served(queues.wake(samples.growth(h=1), 1.0)))
            queues.set_usage("project", {"VCPU": 1001}, 1.0)
            queues.show("r0000", 1.0)
            queues.drop("r0000", 1.0)
            queues.advance(1.0)

        return calls(event)

    def test_a_grant_that_shows_moves_no_lines_of_its_project_that_nobody_looked_at(self):
        few, many = self.granted_and_shown(FEW), self.granted_and_shown(MANY)
        self.assertLess(many, few + SLACK)

    def falls(self, count: int) -> int:
        queues = settled(*of_one_project(count))
        usages = range(999, 900, -1)

        def event() -> None:
            for vcpus in usages:
                queues.set_usage("project", {"VCPU": vcpus}, 1.0)

        return calls(event) // len(usages)

    def test_a_share_that_falls_moves_no_lines(self):
        few, many = self.falls(FEW), self.falls(MANY)
        self.assertLess(many, few + SLACK)

    def wakes_after_a_rise(self, count: int) -> int:
        of_one = [samples.request(f"r{n:04}", n + 1, asked_at=float(n)) for n in range(count)]
        queues = settled(*of_one, samples.request("other", project_id="other", asked_at=9.0))
        queues.set_usage("other", {"VCPU": 1500}, 1.0)
        # All of its flavors were in front of the other project until now, each by its line.
        queues.set_usage("project", {"VCPU": 2000}, 1.0)

        def event() -> None:
            walk = queues.wake(samples.growth(h=count), 1.0)
            candidate = walk.next()
            assert candidate is not None
            self.assertEqual("other", candidate.request.key)

        return calls(event)

    def test_a_share_that_has_grown_costs_a_wake_up_nothing_for_each_flavor_that_waits(self):
        few, many = self.wakes_after_a_rise(FEW), self.wakes_after_a_rise(MANY)
        self.assertLess(many, few + SLACK)

    def newcomer_after_rises(self, count: int) -> int:
        queues = settled(
            *(samples.request(f"r{n:04}", project_id=f"p{n:04}") for n in range(count)),
            max_pending_per_project=10**6,
        )
        for number in range(count):
            queues.set_usage(f"p{number:04}", {"VCPU": 3000 + number}, 1.0)
        queues.put(samples.request("new", project_id="p0001", asked_at=2.0), 2.0)

        def event() -> None:
            candidate = queues.wake_fresh(2.0).next()
            assert candidate is not None
            self.assertEqual("r0000", candidate.request.key)

        return calls(event)

    def test_shares_that_have_grown_cost_a_newcomer_nothing_for_each_owner_that_waits(self):
        few, many = self.newcomer_after_rises(FEW), self.newcomer_after_rises(MANY)
        self.assertLess(many, few + SLACK)


class FittingTest(testtools.TestCase):
    def granted(self, count: int) -> int:
        shapes = [samples.request(f"r{n:04}", vcpus=n + 1, asked_at=float(n)) for n in range(count)]
        queues = settled(attrs.evolve(shapes[0], key="all", asked_at=-1.0), *shapes)
        whole = count + 1

        def event() -> None:
            walk = queues.wake(samples.growth(h=whole), 1.0)
            candidate = walk.next()
            assert candidate is not None
            # Takes all that there is, in the place of somebody who took more.
            walk.granted(["h"] * whole, samples.FOREVER)
            self.assertEqual([], samples.tried(walk))

        return calls(event)

    def test_shapes_that_fit_no_longer_are_left_out_at_once(self):
        few, many = self.granted(FEW), self.granted(MANY)
        self.assertLess(many, few + SLACK)


class NewcomerTest(testtools.TestCase):
    def asks(self, count: int, **fields: Any) -> int:
        queues = settled(
            *(
                samples.request(f"r{n:04}", queue=f"queue-{n}", project_id=f"p{n}", **fields)
                for n in range(count)
            ),
            max_pending_per_project=10**6,
        )
        for number in range(count):
            # More than the newcomer's: it goes before all of them.
            queues.set_usage(f"p{number}", {"VCPU": 5000}, 0.0)
        newcomer = attrs.evolve(
            samples.request("new", queue="queue-new", asked_at=50.0, parked_at=0.0),
            state=pending.PendingState.SCHEDULING,
        )
        return calls(lambda: self.assertEqual(0, queues.behind(newcomer, 50.0)))

    def test_as_many_owners_as_there_are_that_may_be_tried(self):
        few, many = self.asks(FEW), self.asks(MANY)
        self.assertLess(many, few + SLACK)

    def test_as_many_owners_as_there_are_that_rest(self):
        few, many = self.asks(FEW, not_before=99.0), self.asks(MANY, not_before=99.0)
        self.assertLess(many, few + SLACK)


class ElsewhereInFrontTest(testtools.TestCase):
    """Others go before, who ask for as much in another zone; too many to compare them here."""

    def crowded(self, count: int) -> wait_queues.WaitQueues:
        there = [
            samples.request(f"t{n:04}", queue="there", project_id=f"t{n}", asked_at=float(n))
            for n in range(count)
        ]
        here = [
            samples.request(f"h{n:04}", queue="here", project_id=f"h{n}", asked_at=float(n))
            for n in range(20)
        ]
        queues = settled(*there, *here, max_pending_per_project=10**6)
        for number in range(20):
            queues.set_usage(f"h{number}", {"VCPU": 5000}, 1.0)
        return queues

    def newcomer(self, count: int) -> int:
        queues = self.crowded(count)
        newcomer = samples.request("new", queue="here", project_id="h3", asked_at=50.0)
        return calls(lambda: self.assertEqual(20, queues.behind(newcomer, 50.0)))

    def test_they_cost_a_newcomer_nothing(self):
        few, many = self.newcomer(FEW), self.newcomer(MANY)
        self.assertLess(many, few + SLACK)

    def sweep(self, count: int) -> int:
        queues = self.crowded(count)
        return calls(
            lambda: self.assertEqual(["t0000", "h0000"], samples.tried(queues.sweep(50.0)))
        )

    def test_they_cost_a_sweep_nothing(self):
        few, many = self.sweep(FEW), self.sweep(MANY)
        self.assertLess(many, few + 2 * SLACK)


class ClassesTest(testtools.TestCase):
    def newcomer_of_the_least(self, count: int) -> int:
        names = [f"c{number}" for number in range(count)]
        queues = settled(
            *(samples.request(f"r{name}", priority_class=name) for name in names),
            classes=tuple(
                queue_settings.PriorityClass(name, number) for number, name in enumerate(names)
            ),
            default_class="c0",
            discipline=queue_settings.Discipline.STRICT,
            aging_seconds=0.0,
        )
        newcomer = samples.request("s", priority_class="c0", asked_at=50.0)
        return calls(lambda: self.assertEqual(1, queues.behind(newcomer, 50.0)))

    def test_the_first_of_a_class_is_found_without_a_look_at_each_other_one(self):
        few, many = self.newcomer_of_the_least(FEW), self.newcomer_of_the_least(100)
        self.assertLess(many, few + SLACK)

    def test_rows_of_all_shapes_are_made_once_for_all_classes(self):
        shapes = shape_index.ShapeIndex()
        shapes.enter(immutables.Map({"VCPU": 1}), 1)
        rows = shapes.all()
        self.assertIs(rows, shapes.all())

        shape = shapes.enter(immutables.Map({"VCPU": 2}), 1)
        self.assertEqual(0b11, shapes.all().mask)
        shapes.leave(shape)
        self.assertEqual(0b01, shapes.all().mask)
