# SPDX-License-Identifier: Apache-2.0
"""Events to projects: what they say, that nobody waits for them, and what becomes of losses."""

from __future__ import annotations

import json
import threading
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hypothesis
from hypothesis import strategies

from nova_nodb_scheduler.nova_adapter.waiting.tenants import tenant_events, zaqar_queues
from nova_nodb_scheduler.synchronizer.waking import waiting_events
from nova_nodb_scheduler.testing import patience
from tests.unit.nova_adapter.waiting.tenants import made_events

_SECONDS = 10.0
_AWAY = zaqar_queues.Unreachable("connection refused")
_NO_ROLE = zaqar_queues.Refused("Keystone: 401")


class _Queues:
    """Zaqar, as far as the posting thread knows it: answers, and what came."""

    def __init__(self, answer: Callable[[str], zaqar_queues.Answer]) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.bodies: list[tuple[str, Mapping[str, Any]]] = []
        self.posts: list[Sequence[Mapping[str, Any]]] = []
        self.open = threading.Event()
        self.open.set()

    def post(self, project_id: str, messages: Sequence[Mapping[str, Any]]) -> zaqar_queues.Answer:
        self.open.wait(_SECONDS)
        self.asked.append(project_id)
        self.posts.append(messages)
        answer = self.answer(project_id)
        if isinstance(answer, zaqar_queues.Posted):
            self.bodies += [(project_id, message["body"]) for message in messages]
        return answer


class _World(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.queues = _Queues(lambda project_id: zaqar_queues.Posted())
        self.ids = iter(range(1_000_000))

    def sink(self, **options: Any) -> tenant_events.TenantEvents:
        def wait(event: threading.Event, seconds: float) -> bool:
            self.pauses.append(seconds)
            self.now += seconds
            return event.is_set()

        made = tenant_events.TenantEvents(
            self.queues,
            tenant_events.TenantEventOptions(**options),
            clock=lambda: self.now,
            make_id=lambda: f"id-{next(self.ids)}",
            wait=wait,
        )
        self.addCleanup(made.stop)
        return made

    def until(self, sink: tenant_events.TenantEvents, count: int) -> Mapping[str, float]:
        """Return the figures once so many events were posted or lost."""

        def over() -> bool:
            told = sink.figures()
            return told["posted"] + sum(told[why] for why in tenant_events.LOSSES) >= count

        patience.wait_until(over, _SECONDS, lambda: f"{count} events: {sink.figures()}")
        return sink.figures()


class BodyTest(unittest.TestCase):
    def test_a_body_says_who_waits_for_what_since_when_and_until_when(self) -> None:
        event = made_events.event()
        self.assertEqual(
            {
                "version": 1,
                "id": "some-id",
                "event": "parked",
                "at": "2026-09-21T14:13:20.000Z",
                "servers": ["a", "b"],
                "flavor": "m1.large",
                "class": "normal",
                "since": "2026-09-21T14:13:10.000Z",
                "deadline": "2026-09-21T14:23:10.000Z",
                "attempt": 1,
                "reason": "no host has room",
            },
            tenant_events.body(event, "some-id"),
        )

    def test_the_reason_of_the_event_goes_before_that_of_the_request(self) -> None:
        told = tenant_events.body(made_events.event(reason="waited 600 s"), "id")
        self.assertEqual("waited 600 s", told["reason"])

    def test_no_host_is_named_to_a_tenant(self) -> None:
        self.assertNotIn("host-secret", json.dumps(tenant_events.body(made_events.event(), "id")))

    @hypothesis.given(strategies.floats())
    def test_no_time_that_a_record_may_hold_is_an_error(self, seconds: float) -> None:
        event = made_events.event()
        damaged = waiting_events.WaitingEvent(event.kind, event.request, seconds)
        json.dumps(tenant_events.body(damaged, "id"), allow_nan=False)


class DeliveryTest(_World):
    def test_events_come_to_their_own_projects_in_their_order(self) -> None:
        sink = self.sink()
        self.queues.open.clear()
        for number in range(40):
            sink.publish(made_events.event(project_id=f"p{number % 3}", key=str(number)))
        self.queues.open.set()
        self.until(sink, 40)
        for project in ("p0", "p1", "p2"):
            told = [body["id"] for owner, body in self.queues.bodies if owner == project]
            self.assertEqual(told, sorted(told, key=lambda name: int(name.removeprefix("id-"))))
        self.assertEqual(14, sum(owner == "p0" for owner, _ in self.queues.bodies))
        self.assertEqual(13, sum(owner == "p1" for owner, _ in self.queues.bodies))

    def test_what_waits_for_zaqar_is_posted_together_by_project(self) -> None:
        sink = self.sink()
        self.queues.open.clear()
        sink.publish(made_events.event())
        patience.wait_until(lambda: not sink.figures()["waiting"], _SECONDS, "the first is taken")
        for _ in range(90):
            sink.publish(made_events.event())
        self.queues.open.set()
        self.until(sink, 91)
        self.assertEqual(["one", "one"], self.queues.asked)

    def test_a_post_is_no_larger_than_zaqar_takes(self) -> None:
        sink = self.sink()
        servers = tuple(f"{number:036d}" for number in range(700))
        self.queues.open.clear()
        for _ in range(8):
            sink.publish(made_events.event(servers=servers))
        self.queues.open.set()
        self.until(sink, 8)
        self.assertEqual(8, sum(len(post) for post in self.queues.posts))
        self.assertLess(max(len(json.dumps(list(post))) for post in self.queues.posts), 2**17)

    def test_the_options_say_how_long_zaqar_keeps_it(self) -> None:
        sink = self.sink(ttl_seconds=77)
        sink.publish(made_events.event())
        self.until(sink, 1)
        self.assertEqual([77], [message["ttl"] for message in self.queues.posts[0]])


class LossTest(_World):
    def test_nobody_waits_for_a_zaqar_that_hangs_and_what_is_too_much_is_counted(self) -> None:
        sink = self.sink(max_backlog=5)
        self.queues.open.clear()
        sink.publish(made_events.event())
        patience.wait_until(lambda: not sink.figures()["waiting"], _SECONDS, "the first is taken")
        with self.assertLogs(tenant_events.__name__, "WARNING") as logged:
            for _ in range(105):
                sink.publish(made_events.event())
        self.assertEqual(1, len(logged.output))
        self.assertIn("zaqar_max_backlog", logged.output[0])
        told = sink.figures()
        self.assertEqual((5.0, 100.0), (told["waiting"], told["overflow"]))
        self.queues.open.set()
        self.assertEqual(6.0, self.until(sink, 106)["posted"])

    def test_a_loss_is_said_again_after_a_while_with_all_that_came_between(self) -> None:
        sink = self.sink(max_backlog=1)
        self.queues.open.clear()
        sink.publish(made_events.event())
        patience.wait_until(lambda: not sink.figures()["waiting"], _SECONDS, "the first is taken")
        sink.publish(made_events.event())
        with self.assertLogs(tenant_events.__name__, "WARNING") as logged:
            for _ in range(8):
                sink.publish(made_events.event())
            self.now += tenant_events.LOG_SECONDS
            sink.publish(made_events.event())
        self.assertEqual(2, len(logged.output))
        self.assertIn("1, for overflow", logged.output[0])
        self.assertIn("8, for overflow", logged.output[1])
        self.queues.open.set()

    def test_a_zaqar_that_is_back_in_time_gets_the_same_events(self) -> None:
        answers = iter([_AWAY, _AWAY, zaqar_queues.Posted()])
        self.queues.answer = lambda project_id: next(answers)
        sink = self.sink()
        sink.publish(made_events.event())
        self.assertEqual(1.0, self.until(sink, 1)["posted"])
        self.assertEqual([1.0, 2.0], self.pauses)
        self.assertEqual({"id-0"}, {post[0]["body"]["id"] for post in self.queues.posts})

    def test_a_zaqar_that_is_away_loses_events_and_gets_those_of_later(self) -> None:
        self.queues.answer = lambda project_id: _AWAY
        sink = self.sink()
        with self.assertLogs(tenant_events.__name__, "WARNING") as logged:
            sink.publish(made_events.event())
            self.assertEqual(1.0, self.until(sink, 1)["unreachable"])
        self.assertIn("connection refused", logged.output[0])
        self.assertIn("Nothing else is affected", logged.output[0])
        self.queues.answer = lambda project_id: zaqar_queues.Posted()
        sink.publish(made_events.event())
        self.assertEqual(1.0, self.until(sink, 2)["posted"])

    def test_a_project_that_refuses_costs_no_other_its_events_and_is_left_alone(self) -> None:
        self.queues.answer = lambda project_id: (
            _NO_ROLE if project_id == "bad" else zaqar_queues.Posted()
        )
        sink = self.sink()
        for count in range(1, 6):
            sink.publish(made_events.event(project_id="bad"))
            sink.publish(made_events.event(project_id="good"))
            self.until(sink, 2 * count)
        told = sink.figures()
        self.assertEqual((5.0, 5.0), (told["posted"], told["refused"]))
        self.assertEqual(1, self.queues.asked.count("bad"))
        self.assertEqual([], self.pauses)
        self.now += tenant_events.REFUSAL_SECONDS
        sink.publish(made_events.event(project_id="bad"))
        self.until(sink, 11)
        self.assertEqual(2, self.queues.asked.count("bad"))

    def test_an_error_that_nobody_foresaw_does_not_end_the_thread(self) -> None:
        def broken(project_id: str) -> zaqar_queues.Answer:
            raise ValueError("no JSON")

        self.queues.answer = broken
        sink = self.sink()
        with self.assertLogs(tenant_events.__name__, "ERROR"):
            sink.publish(made_events.event())
            self.assertEqual(1.0, self.until(sink, 1)["unreachable"])
        self.queues.answer = lambda project_id: zaqar_queues.Posted()
        sink.publish(made_events.event())
        self.assertEqual(1.0, self.until(sink, 2)["posted"])


class EndTest(_World):
    def test_a_process_that_ends_posts_what_waits(self) -> None:
        sink = self.sink(exit_seconds=_SECONDS)
        self.queues.open.clear()
        for _ in range(300):
            sink.publish(made_events.event())
        threading.Timer(0.05, self.queues.open.set).start()
        sink.stop()
        self.assertEqual(300.0, sink.figures()["posted"])

    def test_a_service_that_restarts_in_place_goes_on(self) -> None:
        sink = self.sink()
        for count in (1, 2, 3):
            sink.publish(made_events.event())
            self.until(sink, count)
            sink.stop()
            sink.stop()
        self.assertEqual(3.0, sink.figures()["posted"])

    def test_a_post_that_outlives_the_end_takes_nothing_of_the_next_start(self) -> None:
        sink = self.sink(exit_seconds=0.05)
        self.queues.open.clear()
        sink.publish(made_events.event())
        patience.wait_until(lambda: not sink.figures()["waiting"], _SECONDS, "the first is taken")
        sink.stop()
        self.now += 1.0
        for _ in range(5):
            sink.publish(made_events.event())
        self.queues.open.set()
        told = self.until(sink, 6)
        self.assertEqual((6.0, 0.0), (told["posted"], told["ended"]))

    def test_a_process_ends_in_time_though_zaqar_hangs_and_counts_what_it_leaves(self) -> None:
        sink = self.sink(exit_seconds=0.05)
        self.queues.open.clear()
        sink.publish(made_events.event())
        patience.wait_until(lambda: not sink.figures()["waiting"], _SECONDS, "the first is taken")
        for _ in range(150):
            sink.publish(made_events.event())
        sink.stop()
        self.assertEqual(150.0, sink.figures()["ended"])
        self.queues.open.set()

    def test_one_that_was_never_told_anything_has_no_thread(self) -> None:
        before = threading.active_count()
        self.sink().stop()
        self.assertEqual(before, threading.active_count())


class EveryEventTest(_World):
    """Whatever Zaqar answers, each event is posted once or counted as lost once."""

    @hypothesis.given(
        strategies.lists(strategies.sampled_from("abc"), max_size=30),
        strategies.lists(
            strategies.sampled_from([zaqar_queues.Posted(), _AWAY, _NO_ROLE]), min_size=1
        ),
        strategies.integers(1, 40),
    )
    def test_none_is_counted_twice_or_not_at_all(
        self, projects: Sequence[str], answers: Sequence[zaqar_queues.Answer], backlog: int
    ) -> None:
        self.queues = _Queues(lambda project_id: answers[len(self.queues.asked) % len(answers)])
        sink = self.sink(max_backlog=backlog)
        for project in projects:
            sink.publish(made_events.event(project_id=project))
        told = self.until(sink, len(projects))
        sink.stop()
        self.assertEqual(told, sink.figures())
        self.assertEqual(told["posted"], len(self.queues.bodies))
        ids = [body["id"] for _, body in self.queues.bodies]
        self.assertEqual(len(ids), len(set(ids)))
        lost = sum(told[why] for why in tenant_events.LOSSES)
        self.assertEqual(len(projects), told["posted"] + lost)
