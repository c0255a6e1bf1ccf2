# SPDX-License-Identifier: Apache-2.0
"""Reservations against a list that is searched from end to end."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import attrs
import hypothesis
import testtools
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.reservations import host_reservations

PENDING_SECONDS = 20.0
CONFIRMED_SECONDS = 10.0
CONSUMERS = [f"c{number}" for number in range(8)]
HOSTS = ["h1", "h2", "h3"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@attrs.define
class Entry:
    consumer: str
    host: str
    resources: dict[str, int]
    generation: int
    since: float
    order: int
    confirmed: bool = False
    counted_from: int | None = None


class Model:
    """The same rules, by walking over a list."""

    def __init__(self, clock: Clock, bound: int) -> None:
        self.clock, self.bound = clock, bound
        self.entries: list[Entry] = []
        self.lost: set[str] = set()
        self.orders = 0

    def _next(self) -> int:
        self.orders += 1
        return self.orders

    def _of(self, consumer: str) -> Entry | None:
        return next((e for e in self.entries if e.consumer == consumer), None)

    def age(self) -> None:
        for entry in list(self.entries):
            limit = CONFIRMED_SECONDS if entry.confirmed else PENDING_SECONDS
            if self.clock.now - entry.since >= limit:
                self.entries.remove(entry)
                self.lost.add(entry.host)

    def reserve(self, consumer: str, host: str, resources: dict[str, int], generation: int) -> None:
        self.age()
        former = self._of(consumer)
        if former is not None:
            self.entries.remove(former)
            if former.host != host:
                self.lost.add(former.host)
        self.entries.append(
            Entry(consumer, host, resources, generation, self.clock.now, self._next())
        )
        if len(self.entries) > self.bound:
            # Confirmed ones go first, the oldest of them first.
            gone = min(self.entries, key=lambda e: (not e.confirmed, e.order))
            self.entries.remove(gone)
            self.lost.add(gone.host)

    def confirm(self, consumer: str, counted_from: int | None) -> bool:
        entry = self._of(consumer)
        if entry is None:
            return False
        entry.confirmed, entry.since, entry.order = True, self.clock.now, self._next()
        entry.counted_from = counted_from
        return True

    def release(self, consumer: str) -> str | None:
        entry = self._of(consumer)
        if entry is None:
            return None
        self.entries.remove(entry)
        return entry.host

    def unseen(self, host: str, consumers: Collection[str], generation: int) -> dict[str, int]:
        used: dict[str, int] = {}
        for entry in [e for e in self.entries if e.host == host]:
            known = entry.counted_from is not None
            counted = known and generation >= max(entry.counted_from, entry.generation + 1)
            if entry.consumer in consumers or counted:
                self.entries.remove(entry)
                continue
            for name, amount in entry.resources.items():
                used[name] = used.get(name, 0) + amount
        return used

    def expire(self) -> frozenset[str]:
        self.age()
        lost, self.lost = frozenset(self.lost), set()
        return lost


_consumer = st.sampled_from(CONSUMERS)
_host = st.sampled_from(HOSTS)
_generation = st.integers(0, 4)
_resources = st.dictionaries(st.sampled_from(["VCPU", "MEMORY_MB"]), st.integers(1, 9), min_size=1)
_steps = st.one_of(
    st.tuples(st.just("reserve"), _consumer, _host, _resources, _generation),
    st.tuples(st.just("confirm"), _consumer, st.none() | _generation),
    st.tuples(st.just("release"), _consumer),
    st.tuples(st.just("unseen"), _host, st.frozensets(_consumer), _generation),
    st.tuples(st.just("expire")),
    st.tuples(st.just("pass"), st.sampled_from([1.0, 5.0, 11.0])),
)


def _made(clock: Clock, bound: int) -> host_reservations.Reservations:
    return host_reservations.Reservations(
        clock,
        max_reservations=bound,
        pending_seconds=PENDING_SECONDS,
        confirmed_seconds=CONFIRMED_SECONDS,
    )


class ReservationsTest(testtools.TestCase):
    @hypothesis.settings(max_examples=300, deadline=None)
    @hypothesis.given(bound=st.integers(1, 6), steps=st.lists(_steps, max_size=40))
    def test_any_history_answers_as_the_plain_list(
        self, bound: int, steps: list[tuple[Any, ...]]
    ) -> None:
        clock = Clock()
        ours, model = _made(clock, bound), Model(clock, bound)
        for name, *arguments in steps:
            if name == "pass":
                clock.now += arguments[0]
                continue
            answer = getattr(ours, name)(*arguments)
            self.assertEqual(getattr(model, name)(*arguments), answer, (name, arguments))
            self.assertEqual(len(model.entries), len(ours))
            self.assertLessEqual(len(ours), bound)
        for host in HOSTS:
            self.assertEqual(model.unseen(host, (), 0), ours.unseen(host, (), 0))

    def test_a_newer_record_without_the_consumer_does_not_end_its_reservation(self) -> None:
        held = _made(Clock(), 10)
        held.reserve("c1", "h1", {"VCPU": 2}, 5)
        held.confirm("c1")
        self.assertEqual({"VCPU": 2}, held.unseen("h1", (), 6))
        self.assertEqual({}, held.unseen("h1", ("c1",), 7))
        self.assertEqual(0, len(held))

    def test_a_record_that_must_count_the_write_ends_it_though_the_server_is_gone(self) -> None:
        held = _made(Clock(), 10)
        held.reserve("c1", "h1", {"VCPU": 2}, 5)
        held.confirm("c1", counted_from=7)
        self.assertEqual({"VCPU": 2}, held.unseen("h1", (), 6))
        self.assertEqual({}, held.unseen("h1", (), 7))

    def test_threads_lose_and_double_nothing(self) -> None:
        held = _made(Clock(), 10_000)

        def work(number: int) -> None:
            for turn in range(300):
                consumer = f"{number}-{turn}"
                held.reserve(consumer, "h1", {"VCPU": 1}, 1)
                if turn % 3 == 0:
                    held.release(consumer)
                elif turn % 3 == 1:
                    held.confirm(consumer)
                held.unseen("h2", (), 1)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual({"VCPU": 4 * 200}, held.unseen("h1", (), 1))
        self.assertEqual(800, len(held))


class ConfirmTest(testtools.TestCase):
    def test_a_confirmed_reservation_is_the_same_from_then_on(self) -> None:
        names = [each.name for each in attrs.fields(host_reservations.Reservation)]
        held = host_reservations.Reservation(**{name: f"its {name}" for name in names})
        wanted = attrs.evolve(held, since_seconds=7.0, counted_from=3)
        self.assertEqual(wanted, held.confirm(7.0, 3))
