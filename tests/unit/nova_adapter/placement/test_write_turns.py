# SPDX-License-Identifier: Apache-2.0
"""Threads of one process that allocate: whose claim was not judged is alone at its providers."""

from __future__ import annotations

import collections
import contextlib
import math
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent import futures
from importlib import util
from typing import Any
from unittest import mock

import attrs
import hypothesis
import testtools
from hypothesis import strategies
from nova.scheduler.client import report

from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    placement_calls,
    verification,
    write_turns,
)

WAIT_SECONDS = 30.0


@contextlib.contextmanager
def bounds(turn_seconds: float, most_seconds: float) -> Iterator[None]:
    """Have a write keep others back for so long, and wait for so long itself."""
    with (
        mock.patch.object(write_turns, "TURN_SECONDS", turn_seconds),
        mock.patch.object(write_turns, "MOST_SECONDS", most_seconds),
    ):
        yield


def patient() -> contextlib.AbstractContextManager[None]:
    return bounds(WAIT_SECONDS, WAIT_SECONDS)


class SchedulerDied(Exception):
    """Between the write and the look."""


@attrs.define(eq=False)
class Turn:
    touches: frozenset[int]
    alone_at: frozenset[int]
    waits_until: float = 15.0
    began_at: float | None = None
    held_up_from: float = math.inf


@attrs.frozen
class Write:
    """What one thread writes, by memory's calls or by a turn of its own."""

    providers: frozenset[str]
    alone_at: frozenset[str]
    by_call: bool
    seconds: float


class UnderWay:
    """What is at Placement by now, by provider: the plain model of turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes: collections.defaultdict[str, list[Write]] = collections.defaultdict(list)
        self.wrong: list[tuple[Write, Write]] = []
        #: Writes that had another beside them.
        self.beside = 0

    @contextlib.contextmanager
    def writing(self, writes: Sequence[Write]) -> Iterator[None]:
        with self._lock:
            for one in writes:
                for provider in one.providers:
                    for other in self._writes[provider]:
                        self.beside += 1
                        if provider in one.alone_at | other.alone_at:
                            self.wrong.append((one, other))
            for one in writes:
                for provider in one.providers:
                    self._writes[provider].append(one)
        try:
            time.sleep(max(one.seconds for one in writes))
            yield
        finally:
            with self._lock:
                for one in writes:
                    for provider in one.providers:
                        self._writes[provider].remove(one)


class LineTest(testtools.TestCase):
    @hypothesis.given(
        strategies.lists(
            strategies.tuples(
                strategies.frozensets(strategies.integers(0, 4), min_size=1),
                strategies.frozensets(strategies.integers(0, 4)),
                strategies.none() | strategies.sampled_from([1.0, 2.0, 12.0]),
                strategies.sampled_from([4.0, 14.0, 40.0, math.inf]),
            ),
            min_size=1,
            max_size=8,
        )
    )
    def test_each_waits_for_those_before_it_alone_so_that_one_can_always_go(self, drawn):
        turns = write_turns.WriteTurns()
        turns.line = [
            Turn(touches, alone & touches, began_at=began_at, held_up_from=held_up_from)
            for touches, alone, began_at, held_up_from in drawn
        ]
        for place, one in enumerate(turns.line):
            in_the_way = [
                other
                for other in turns.line[:place]
                if (one.alone_at & other.touches) | (other.alone_at & one.touches)
            ]
            # Seconds: 5 from a beginning on, 15 from its own coming (at 0) at the most.
            expected = 0.0
            for other in in_the_way:
                begun, held_up = other.began_at, other.held_up_from
                expected = max(expected, min(15.0, held_up if begun is None else begun + 5.0))
            self.assertEqual(expected, turns.kept_back_until(one))
        self.assertEqual(0.0, turns.kept_back_until(turns.line[0]))


class TurnsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.turns = write_turns.WriteTurns()
        self.order: list[str] = []

    def started(self, call: Callable[[], Any]) -> futures.Future[Any]:
        pool = futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        return pool.submit(call)

    def standing(self, count: int) -> None:
        """Wait until so many stand in the line."""
        until = time.monotonic() + WAIT_SECONDS
        while len(self.turns.line) != count:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.001)

    def write(self, name: str, providers: Collection[str], alone_at: Collection[str] = ()) -> None:
        with self.turns.taken(providers, alone_at):
            self.order.append(name)

    def write_alone(self, under_way: UnderWay, seconds: float) -> None:
        one = Write(frozenset({"h1"}), frozenset({"h1"}), False, seconds)
        with self.turns.taken(one.providers, one.alone_at), under_way.writing([one]):
            pass

    def batcher(
        self, call: Callable[..., Any], max_calls: int = 3
    ) -> placement_calls.CallBatcher[Write, None]:
        return placement_calls.CallBatcher(
            call,
            max_calls=max_calls,
            max_size=4,
            touches=lambda work: work.providers,
            turns=self.turns,
        )

    def submitted(
        self, batcher: placement_calls.CallBatcher[Write, None], host: str
    ) -> futures.Future[Any]:
        return self.started(
            lambda: batcher.submit(Write(frozenset({host}), frozenset(), True, 0.0), 1)
        )

    def test_at_no_time_is_an_unjudged_write_beside_another_to_its_provider(self):
        """Threads of all kinds at few providers; some are ended within their write."""
        for seed in range(8):
            rng, under_way = random.Random(seed), UnderWay()

            def call(works: Sequence[Write], under_way: UnderWay = under_way) -> list[None]:
                with under_way.writing(works):
                    return [None] * len(works)

            batcher = self.batcher(call)

            def run(
                writes: list[Write],
                dies: frozenset[int],
                under_way: UnderWay = under_way,
                batcher: placement_calls.CallBatcher[Write, None] = batcher,
            ) -> None:
                for number, one in enumerate(writes):
                    if one.by_call:
                        batcher.submit(one, 1)
                        continue
                    with (
                        contextlib.suppress(SchedulerDied),
                        self.turns.taken(one.providers, one.alone_at),
                        under_way.writing([one]),
                    ):
                        if number in dies:
                            raise SchedulerDied

            with (
                patient(),
                futures.ThreadPoolExecutor(9) as pool,
            ):
                running = [
                    pool.submit(
                        run,
                        [_drawn(rng) for _ in range(12)],
                        frozenset(rng.sample(range(12), 2)),
                    )
                    for _ in range(9)
                ]
                for done in running:
                    done.result(WAIT_SECONDS)
            self.assertEqual([], under_way.wrong, seed)
            # Those that are judged do go side by side.
            self.assertGreater(under_way.beside, 0, seed)
            self.assertEqual(([], 0), (self.turns.line, self.turns.alone))

    def test_writes_to_several_hosts_do_not_wait_for_one_another(self):
        both = threading.Barrier(2)

        def write(host: str) -> None:
            with self.turns.taken([host], [host]):
                both.wait(WAIT_SECONDS)

        with patient():
            for done in [self.started(lambda host=host: write(host)) for host in ("h1", "h2")]:
                done.result(WAIT_SECONDS)

    def test_who_waits_to_be_alone_is_not_overtaken(self):
        with patient():
            with self.turns.taken(["h1"]):
                alone = self.started(lambda: self.write("alone", ["h1"], ["h1"]))
                self.standing(2)
                late = self.started(lambda: self.write("late", ["h1"]))
                self.standing(3)
            for done in (alone, late):
                done.result(WAIT_SECONDS)
        self.assertEqual(["alone", "late"], self.order)

    def test_memorys_calls_wait_for_who_came_before_and_not_for_who_came_later(self):
        held, go = threading.Event(), threading.Event()
        self.addCleanup(go.set)

        def call(works: Sequence[Write]) -> list[None]:
            self.order.append("call")
            held.set()
            go.wait(WAIT_SECONDS)
            return [None] * len(works)

        batcher, work = self.batcher(call), Write(frozenset({"h1"}), frozenset(), True, 0.0)
        with patient():
            with self.turns.taken(["h1"], ["h1"]):
                first = self.started(lambda: batcher.submit(work, 1))
                self.standing(2)
                alone = self.started(lambda: self.write("alone", ["h1"], ["h1"]))
                self.standing(3)
                self.assertFalse(held.wait(0.05))
            self.assertTrue(held.wait(WAIT_SECONDS))
            second = self.started(lambda: batcher.submit(work, 1))
            self.standing(3)
            self.assertEqual(["call"], self.order)
            go.set()
            for done in (first, alone, second):
                done.result(WAIT_SECONDS)
        self.assertEqual(["call", "alone", "call"], self.order)

    def test_memorys_calls_to_other_hosts_do_not_wait(self):
        batcher = self.batcher(lambda works: [None] * len(works))
        with self.turns.taken(["h1"], ["h1"]):
            batcher.submit(Write(frozenset({"h2"}), frozenset(), True, 0.0), 1, patience_seconds=1)

    def test_a_write_that_hangs_keeps_nobody_beyond_the_bound(self):
        batcher = self.batcher(lambda works: [None] * len(works))
        work = Write(frozenset({"h1", "h2"}), frozenset(), True, 0.0)
        with bounds(0.2, WAIT_SECONDS), self.turns.taken(["h1", "h2"], ["h1", "h2"]):
            began = time.monotonic()
            for call in (
                lambda: self.write("beside", ["h1"]),
                lambda: self.write("alone", ["h1", "h2"], ["h1", "h2"]),
                lambda: batcher.submit(work, 1, patience_seconds=WAIT_SECONDS),
                lambda: batcher.submit(work, 1),
            ):
                self.started(call).result(WAIT_SECONDS)
            waited = time.monotonic() - began
            # It is known to hang by then: nobody waits for it again.
            self.assertGreater(waited, 0.15)
            self.assertLess(waited, WAIT_SECONDS / 2)

    def test_a_long_line_goes_one_by_one_while_none_of_it_hangs(self):
        """Writers that wait for many times what one may take; none is beside another."""
        under_way = UnderWay()

        def call(works: Sequence[Write]) -> list[None]:
            with under_way.writing(works):
                return [None] * len(works)

        batcher = self.batcher(call)

        def run(number: int) -> None:
            if number % 3 == 2:
                batcher.submit(Write(frozenset({"h1"}), frozenset(), True, 0.05), 1)
                return
            self.write_alone(under_way, 0.05)

        began = time.monotonic()
        with bounds(1.5, WAIT_SECONDS), futures.ThreadPoolExecutor(48) as pool:
            for done in [pool.submit(run, number) for number in range(48)]:
                done.result(WAIT_SECONDS)
        self.assertGreater(time.monotonic() - began, 1.5)
        # Memory's share a call; nobody else has company.
        self.assertEqual([], under_way.wrong)

    def test_behind_a_write_that_hangs_the_rest_goes_one_by_one_too(self):
        with bounds(1.0, WAIT_SECONDS), self.turns.taken(["h1"], ["h1"]):
            under_way = UnderWay()
            with futures.ThreadPoolExecutor(8) as pool:
                for done in [pool.submit(self.write_alone, under_way, 0.01) for _ in range(8)]:
                    done.result(WAIT_SECONDS)
        self.assertEqual([], under_way.wrong)

    def test_behind_a_call_of_memorys_that_hangs_the_rest_goes_one_by_one_too(self):
        """Though one of memory's stands before it that cannot begin while that call hangs."""
        for hanging, calls in (("h1", 2), ("other", 1)):
            with self.subTest(hanging=hanging):
                self.go_behind(hanging, calls)

    def go_behind(self, hanging: str, calls: int) -> None:
        under_way, goes = UnderWay(), threading.Event()
        self.addCleanup(goes.set)

        def call(works: Sequence[Write]) -> list[None]:
            goes.wait(WAIT_SECONDS)
            return [None] * len(works)

        batcher = self.batcher(call, max_calls=calls)
        began = time.monotonic()
        with bounds(1.0, WAIT_SECONDS), futures.ThreadPoolExecutor(8) as pool:
            calls_made = [self.submitted(batcher, hanging)]
            self.standing(1)
            calls_made.append(self.submitted(batcher, "h1"))
            self.standing(2)
            for done in [pool.submit(self.write_alone, under_way, 0.02) for _ in range(8)]:
                done.result(WAIT_SECONDS / 2)
            waited = time.monotonic() - began
            self.assertEqual(2, len(self.turns.line))
            goes.set()
            for done in calls_made:
                done.result(WAIT_SECONDS)
        self.assertGreater(waited, 0.9)
        self.assertEqual([], under_way.wrong)
        self.assertEqual([], self.turns.line)

    def test_where_one_after_the_other_hangs_nobody_waits_for_all_of_them(self):
        released = threading.Event()
        self.addCleanup(released.set)

        def hang(name: str) -> None:
            with self.turns.taken(["h1"], ["h1"]):
                self.order.append(name)
                released.wait(WAIT_SECONDS)

        with bounds(1.0, 2.5):
            began = time.monotonic()
            hanging = [self.started(lambda name=name: hang(name)) for name in "abcdefgh"]
            until = time.monotonic() + WAIT_SECONDS
            while len(self.order) < 8:
                self.assertLess(time.monotonic(), until)
                time.sleep(0.001)
            # Five more turns of a second would have come behind the bound.
            self.assertLess(time.monotonic() - began, 7.0)
            self.assertGreater(time.monotonic() - began, 2.4)
            released.set()
            for done in hanging:
                done.result(WAIT_SECONDS)

    def test_who_waits_for_a_place_among_the_calls_waits_for_who_went_on_beside_it(self):
        """An alone write that waited too long for a call's turn is not joined by that call."""
        first_goes, call_order = threading.Event(), self.order
        self.addCleanup(first_goes.set)

        def call(works: Sequence[Write]) -> list[None]:
            call_order.append("call at " + min(works[0].providers))
            if "other" in works[0].providers:
                first_goes.wait(WAIT_SECONDS)
            return [None] * len(works)

        batcher = self.batcher(call, max_calls=1)
        with patient():
            other = self.submitted(batcher, "other")
            self.standing(1)
            kept = self.submitted(batcher, "h1")
            self.standing(2)
        with bounds(WAIT_SECONDS, 0.2), self.turns.taken(["h1"], ["h1"]):
            # It waited for the one before it, which has no place among the calls.
            first_goes.set()
            other.result(WAIT_SECONDS)
            self.assertRaises(futures.TimeoutError, kept.result, 0.1)
            self.assertEqual(["call at other"], self.order)
        kept.result(WAIT_SECONDS)
        self.assertEqual(["call at other", "call at h1"], self.order)

    def test_memorys_call_gives_up_behind_a_write_that_hangs_where_its_request_is_over(self):
        batcher = self.batcher(lambda works: [None] * len(works))
        work = Write(frozenset({"h1"}), frozenset(), True, 0.0)
        with self.turns.taken(["h1"], ["h1"]):
            error = self.assertRaises(
                placement_calls.Overdue, batcher.submit, work, 1, patience_seconds=0.05
            )
        self.assertFalse(error.taken)
        self.assertEqual([], self.turns.line)
        batcher.submit(work, 1)

    def test_green_threads_that_are_killed_give_their_turn_back(self):
        if util.find_spec("eventlet") is None:
            self.skipTest("eventlet is not installed")
        script = """
            import eventlet
            eventlet.monkey_patch()
            import time
            from nova_nodb_scheduler.nova_adapter.placement.allocations import write_turns
            turns = write_turns.WriteTurns()
            def write():
                with turns.taken(["h1"], ["h1"]):
                    time.sleep(3600)
            writing, waiting = eventlet.spawn(write), eventlet.spawn(write)
            eventlet.sleep(0.01)
            assert len(turns.line) == turns.alone == 2
            waiting.kill()
            writing.kill()
            assert turns.line == [] and turns.alone == 0
            with turns.taken(["h1"], ["h1"]):
                pass
        """
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=2 * WAIT_SECONDS
        )


def _drawn(rng: random.Random) -> Write:
    providers = frozenset(rng.sample(("h1", "h2", "h3"), rng.randint(1, 2)))
    kind = rng.choice(("call", "call", "beside", "beside", "alone", "partly"))
    alone_at = {"alone": providers, "partly": frozenset({min(providers)})}.get(kind, frozenset())
    return Write(providers, alone_at, kind == "call", rng.uniform(0.0, 0.004))


class _Adapter:
    """Placement, for what PUTs it gets; each is told of, and answered."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told

    def put(self, url: str, **_: Any) -> Any:
        self._told(url)
        return mock.sentinel.answer


class OwnPathTest(testtools.TestCase):
    """What Nova's report client PUTs by itself."""

    def setUp(self) -> None:
        super().setUp()
        self.turns = write_turns.WriteTurns()
        #: Of each PUT, what it touched alone and beside.
        self.puts: list[tuple[frozenset[str], frozenset[str]]] = []
        self.client = report.SchedulerReportClient(adapter=_Adapter(self.put))  # type: ignore

    def put(self, _url: str) -> None:
        [own] = self.turns.line or [Turn(frozenset(), frozenset())]
        self.puts.append((own.alone_at, own.touches - own.alone_at))

    def allocate(self) -> bool:
        body = {"allocations": {"h1": {"resources": {}}, "disks": {"resources": {}}}}
        self.client.put("/allocations/a", body)
        # Its pauses, and what it reads, are nobody's turn.
        self.assertEqual([], self.turns.line)
        raise SchedulerDied

    def allocated(self, *anew: str) -> None:
        """Allocate on a host and its shared disks; what the server has there already is no news."""
        verifier = verification.AllocationVerifier(lambda: self.client, turns=self.turns)
        amounts = {"h1": {"VCPU": 1}, "disks": {"DISK_GB": 1}}
        wanted = verification.VerifiedAllocation("a", {name: amounts[name] for name in anew})
        self.assertRaises(SchedulerDied, verifier.allocated, wanted, self.allocate)

    def test_what_is_allocated_anew_is_alone_and_the_rest_is_beside_others(self):
        self.allocated("h1", "disks")
        self.allocated("disks")
        self.assertEqual(
            [
                (frozenset({"h1", "disks"}), frozenset()),
                (frozenset({"disks"}), frozenset({"h1"})),
            ],
            self.puts,
        )

    def test_a_client_that_is_wrapped_again_takes_one_turn(self):
        with self.turns.within(["h1"]):
            self.client.put("/allocations/a", {"allocations": {}})
        own = report.SchedulerReportClient.put

        def wrapped(client: Any, *args: Any) -> Any:
            return own(client, *args)

        began = time.monotonic()
        with mock.patch.object(report.SchedulerReportClient, "put", wrapped):
            self.allocated("h1", "disks")
        self.assertLess(time.monotonic() - began, write_turns.TURN_SECONDS)

    def test_all_tries_of_one_claim_wait_no_longer_than_one(self):
        body = {"allocations": {"h1": {"resources": {}}}}
        client = report.SchedulerReportClient(adapter=_Adapter(lambda url: None))  # type: ignore
        with bounds(WAIT_SECONDS, 0.5), self.turns.taken(["h1"], ["h1"]):
            began = time.monotonic()
            with self.turns.within():
                for _ in range(4):
                    client.put("/allocations/a", body)
            waited = time.monotonic() - began
            # The next one's tries are its own.
            with self.turns.within():
                client.put("/allocations/b", body)
        self.assertGreater(waited, 0.4)
        self.assertLess(waited, 1.5)
        self.assertGreater(time.monotonic() - began - waited, 0.4)

    def test_what_gives_no_provider_more_takes_no_turn(self):
        with self.turns.within(["h1"]):
            self.client.put("/allocations/a", {"allocations": {}})
            self.client.put("/resource_providers/h1/inventories", {"inventories": {}})
        # Nor does what is not asked for here.
        self.client.put("/allocations/a", {"allocations": {"h1": {"resources": {}}}})
        self.assertEqual([(frozenset(), frozenset())] * 3, self.puts)
