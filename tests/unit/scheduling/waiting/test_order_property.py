# SPDX-License-Identifier: Apache-2.0
"""Whatever happens, those are asked, in that order, that a plain sorted list would ask.

Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

from __future__ import annotations

import os
import random
from typing import Any

import attrs
import numpy as np
import testtools
from hypothesis import settings as hypothesis_settings
from hypothesis import stateful
from hypothesis import strategies as st

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.scheduling.waiting import (
    backlog,
    grown_hosts,
    queue_settings,
    wait_queues,
)
from tests.unit.scheduling.waiting import plain_queue, samples

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "60"))
IS_LONG = "NODB_PROPERTY_EXAMPLES" in os.environ

HOSTS = ("h1", "h2", "h3")
RESOURCES = ("MEMORY_MB", "VCPU", "UNUSED")
KEYS = [f"r{number}" for number in range(9)]
PROJECTS = ("p", "q", "r")
SETTINGS = [
    {"order": order, "discipline": discipline, "aging_seconds": aging}
    for order in queue_settings.Order
    for discipline in queue_settings.Discipline
    for aging in (0.0, 2.0)
]

#: What a rule does is drawn from one number: hypothesis finds more with few draws.
seeds = st.integers(0, 2**32)
keys = st.sampled_from(KEYS)
ANSWERS = ("granted", "granted", "refused", "left", "lost")


def a_request(key: str, now: float, attempt: int, chance: random.Random) -> pending.PendingRequest:
    needs = {"VCPU": chance.randint(1, 3), "MEMORY_MB": chance.randint(0, 3)}
    if chance.random() < 0.1:
        needs["CUSTOM_RARE"] = 1
    if chance.random() < 0.4:
        # So that several owners ask for the same.
        needs = {"VCPU": 1, "MEMORY_MB": 1}
    hold = pending.Hold(chance.choice(HOSTS), now + chance.randint(0, 9))
    return samples.request(
        key,
        servers=chance.choice([1, 1, 2]),
        project_id=chance.choice(PROJECTS),
        priority_class=chance.choice(["low", "high", "unknown"]),
        needs=needs,
        queue=chance.choice(["x-1", "x-2", "y-1"]),
        asked_at=now - chance.randint(0, 5),
        deadline_at=now + chance.choice([1000, 1000, 1000, 3]),
        not_before=now + chance.choice([0, 0, 0, 2]),
        rank=chance.choice([0, 0, 0, 1]),
        hold=hold if chance.random() < 0.1 else None,
        grant=pending.Grant(attempt, "conductor", 0.0),
    )


def a_room(chance: random.Random, most: int) -> dict[str, int]:
    return {name: chance.randint(0, most) for name in RESOURCES[:2]}


class Comparison(stateful.RuleBasedStateMachine):
    """Everything done to both; what one is asked, the other is."""

    @stateful.initialize(chosen=st.sampled_from(SETTINGS), seed=seeds)
    def start(self, chosen: dict[str, Any], seed: int) -> None:
        self.settings = queue_settings.QueueSettings(
            classes=(
                queue_settings.PriorityClass("low", 0),
                queue_settings.PriorityClass("high", 3),
            ),
            default_class="low",
            project_weights={"q": 3.0},
            **chosen,
        )
        self.now = 100.0
        # Three shapes are told apart: the rest share rows.
        self.queues = wait_queues.WaitQueues(self.settings, most_exact=3)
        self.plain = plain_queue.PlainQueue(self.settings)
        capacity = {"VCPU": 40, "MEMORY_MB": 30}
        self.queues.set_capacity(capacity, self.now)
        self.plain.capacity = capacity
        self.many_records_wait(seed)

    @stateful.rule(key=keys, seed=seeds)
    def record_waits(self, key: str, seed: int) -> None:
        known = self.plain.known.get(key)
        attempt = known.attempt if known else 1
        self._put(a_request(key, self.now, attempt, random.Random(seed)))

    @stateful.rule(key=keys, rank=st.integers(-1, 1))
    def record_is_promoted(self, key: str, rank: int) -> None:
        """Old news, too, where it is granted here already."""
        known = self.plain.known.get(key)
        if known is not None:
            self._put(attrs.evolve(known.request, rank=rank))

    @stateful.rule(seed=seeds)
    def many_records_wait(self, seed: int) -> None:
        for number, key in enumerate(KEYS):
            self.record_waits(key, seed + number)

    @stateful.rule(
        key=keys,
        state=st.sampled_from(list(pending.PendingState)[2:]),
        host=st.sampled_from(["", *HOSTS]),
        more=st.integers(0, 1),
    )
    def record_is_in_hand(
        self, key: str, state: pending.PendingState, host: str, more: int
    ) -> None:
        known = self.plain.known.get(key)
        if known is not None:
            self._put(
                samples.granted(known.request, self.now + 4, host, state, known.attempt + more)
            )

    @stateful.rule(key=keys)
    def record_goes(self, key: str) -> None:
        self.queues.drop(key, self.now)
        self.plain.drop(key)

    @stateful.rule(key=keys)
    def claim_shows(self, key: str) -> None:
        self.queues.show(key, self.now)
        self.plain.show(key)

    @stateful.rule(project=st.sampled_from(PROJECTS), seed=seeds)
    def usage_changes(self, project: str, seed: int) -> None:
        used = a_room(random.Random(seed), 6)
        self.queues.set_usage(project, used, self.now)
        self.plain.used[project] = used

    @stateful.rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = self.queues.advance(self.now)
        self.plain.advance(self.now)
        late = {
            key
            for key, each in self.plain.known.items()
            if not each.here
            and each.request.state is plain_queue.WAITING
            and each.request.deadline_at <= self.now
        }
        said = {each.request.key for each in due if each.reason.name == "DEADLINE"}
        assert said <= late

    @stateful.rule(seed=seeds)
    def hosts_grow(self, seed: int) -> None:
        chance = random.Random(seed)
        hosts = tuple(chance.sample(HOSTS, chance.randint(1, len(HOSTS))))
        after = {host: a_room(chance, 12) for host in hosts}
        before = {host: a_room(chance, 4) for host in hosts} if chance.random() < 0.4 else None
        said = chance.choices(ANSWERS, k=12)
        expected = self.plain.wake(hosts, after, before, self.now, _in_turn(said))
        asked = []
        answer = _in_turn(said)
        walk = self.queues.wake(
            grown_hosts.Growth(
                hosts, RESOURCES, _array(after), None if before is None else _array(before)
            ),
            self.now,
        )
        while (candidate := walk.next()) is not None:
            found = list(candidate.hosts or ())
            asked.append((candidate.request.key, candidate.attempt, found))
            taken = [found[0]] * len(candidate.request.servers)
            match answer(candidate.request, found):
                case "granted":
                    walk.granted(taken, self.now + 50.0)
                case "left":
                    walk.left(taken, self.now + 50.0)
                case "lost":
                    walk.lost()
                case _:
                    walk.refused()
        assert asked == expected, (asked, expected)

    @stateful.rule(seed=seeds)
    def newcomers_ask(self, seed: int) -> None:
        """Somebody of whom nothing is known, and all that are known, once more."""
        chance = random.Random(seed)
        known = [each.request for each in self.plain.known.values()]
        asked = [a_request("new", self.now, 1, chance), *known]
        asked += [
            attrs.evolve(
                chance.choice(asked),
                key="newer",
                queue=chance.choice(["x-3", "x-1"]),
                project_id=chance.choice(PROJECTS),
                priority_class=chance.choice(["low", "high"]),
            )
            for _ in range(3)
        ]
        for request in asked:
            for of_others in (True, False):
                expected = self.plain.behind(request, self.now, of_others=of_others)
                found = self.queues.behind(request, self.now, of_others=of_others)
                assert found == expected, (request, of_others, found, expected)

    @stateful.rule(seed=seeds)
    def records_change_while_somebody_is_tried(self, seed: int) -> None:
        """Whom that leads to is not compared; but all that goes is forgotten without a trace."""
        chance = random.Random(seed)
        after = {host: a_room(chance, 12) for host in HOSTS}
        walk = chance.choice(
            [
                self.queues.wake(grown_hosts.Growth(HOSTS, RESOURCES, _array(after)), self.now),
                self.queues.wake_fresh(self.now),
                self.queues.sweep(self.now),
            ]
        )
        for _ in range(12):
            if (candidate := walk.next()) is None:
                break
            for key in chance.sample(KEYS, 3):
                self._change(key, chance)
            hosts = [chance.choice(HOSTS)] * len(candidate.request.servers)
            match chance.choice(ANSWERS):
                case "granted":
                    walk.granted(hosts, self.now + 50.0)
                case "left":
                    walk.left(hosts, self.now + 50.0)
                case "lost":
                    walk.lost()
                case _:
                    walk.refused()
        for key in KEYS:
            self.record_goes(key)
        assert not len(self.queues)
        self.many_records_wait(seed)

    def _change(self, key: str, chance: random.Random) -> None:
        """Do something to a record, here alone."""
        known = self.queues.get(key)
        if known is None or chance.random() < 0.4:
            attempt = chance.randint(1, 4)
            self.queues.put(a_request(key, self.now, attempt, chance), self.now)
            return
        match chance.randrange(3):
            case 0:
                self.queues.drop(key, self.now)
            case 1:
                self.queues.show(key, self.now)
            case _:
                self.queues.put(
                    samples.granted(known, self.now + 4, chance.choice(["", *HOSTS])), self.now
                )

    @stateful.rule(seed=seeds)
    def some_come_and_hosts_grow(self, seed: int) -> None:
        """Again, for this is what it is about."""
        self.many_records_wait(seed)
        self.hosts_grow(seed + 1)
        self.hosts_grow(seed + 2)

    @stateful.invariant()
    def sums_and_shares_are_those_of_the_records(self) -> None:
        if not hasattr(self, "plain"):
            return
        parked = [
            each.request for each in self.plain.known.values() if backlog.is_parked(each.request)
        ]
        for found, of in (
            (self.queues.backlog.by_class(), "priority_class"),
            (self.queues.backlog.by_project(), "project_id"),
            (self.queues.backlog.by_flavor(), "flavor"),
        ):
            assert found == _sums(parked, of)
        for project in PROJECTS:
            assert self.queues.share(project) == self.plain.share(project)
        waiting = [
            each.request
            for each in self.plain.known.values()
            if each.request.state is plain_queue.WAITING
        ]
        waiting.sort(key=lambda each: self.plain.order(each, self.now))
        assert list(self.queues.ordered(self.now)) == waiting

    def _put(self, request: pending.PendingRequest) -> None:
        self.queues.put(request, self.now)
        self.plain.put(request)


class OrderTest(testtools.TestCase):
    def test_who_is_asked_is_who_a_sorted_list_would_ask(self) -> None:
        stateful.run_state_machine_as_test(
            Comparison,
            settings=hypothesis_settings(
                max_examples=EXAMPLES,
                stateful_step_count=30,
                deadline=None,
                derandomize=not IS_LONG,
            ),
        )


def _in_turn(said: list[str]) -> Any:
    left = iter(said)
    return lambda request, hosts: next(left, "refused")


def _array(rooms: dict[str, dict[str, int]]) -> Any:
    return np.array(
        [[room.get(name, 0) for name in RESOURCES] for room in rooms.values()], np.int64
    )


def _sums(parked: list[pending.PendingRequest], of: str) -> dict[str, backlog.Waiting]:
    found: dict[str, backlog.Waiting] = {}
    for each in parked:
        name = getattr(each, of)
        old = found.get(name, backlog.NOTHING)
        amounts = dict(old.amounts)
        for resource, amount in each.needs.items():
            amounts[resource] = amounts.get(resource, 0) + amount * len(each.servers)
        found[name] = attrs.evolve(
            old,
            requests=old.requests + 1,
            servers=old.servers + len(each.servers),
            amounts={resource: amount for resource, amount in amounts.items() if amount},
        )
    return found
