# SPDX-License-Identifier: Apache-2.0
"""No interleaving of own writes hides what others change of a chosen host beyond the bound."""

from __future__ import annotations

import random
import threading
import unittest
from collections.abc import Callable

import hypothesis
from hypothesis import strategies as st

from nova_nodb_scheduler.nova_adapter.placement.mirror import own_writes
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers.memory import faults
from tests.unit.nova_adapter.placement import plain_placement

ROOT, OTHER = "root", "other"


class PlainCase(unittest.TestCase):
    """Two schedulers, of which the second also reads as the keeper."""

    def setUp(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.clocks = plain_placement.Clocks()
        self.placement = plain_placement.PlainPlacement(self.clocks, (ROOT, OTHER))
        self.hub = memory.MemoryHub(clock=self.clocks.backend)
        self.one, self.two = (
            plain_placement.Process(self.placement, self.hub, self.clocks) for _ in range(2)
        )
        for process in (self.one, self.two):
            process.follow()
            for root in (ROOT, OTHER):
                process.read(root)
            process.follow()
        self.one.follow()
        self.servers = 0

    def new(self, count: int = 1) -> dict[str, dict[str, int]]:
        """Name servers that never were."""
        self.servers += count
        return {f"server-{self.servers - n}": {"VCPU": 1} for n in range(count)}

    def wrote(self, process: plain_placement.Process, count: int = 1) -> dict[str, dict[str, int]]:
        """Have a process write servers, and be answered; it is to be published."""
        before = process.own.before()
        placed = self.new(count)
        self.placement.allocate({ROOT: placed})
        process.own.wrote({ROOT: placed}, before)
        return placed

    def generations(self) -> tuple[int, int]:
        """Return a record's generation, and Placement's."""
        self.one.follow()
        record = self.one.record(ROOT)
        assert record is not None
        return record["generation"], self.placement.providers[ROOT].generation

    def assert_seen(self) -> None:
        """What an operator sets is seen when the bound is over, by whoever decides."""
        self.placement.describe(ROOT)
        for process in (self.one, self.two):
            self.clocks.true += plain_placement.BOUND_SECONDS + 1
            process.follow()
            age = process.decide(ROOT)
            assert age is not None
            self.assertLessEqual(age, plain_placement.BOUND_SECONDS)


class InterleavingTest(PlainCase):
    """What may come between an own write and its publication, one by one."""

    def test_a_server_that_is_deleted_and_read_before_it_is_published(self) -> None:
        [server] = self.wrote(self.one)
        self.placement.delete(server)
        self.two.read(ROOT)
        self.one.flush()
        self.assertEqual((1, 1), self.generations())
        self.assertEqual({ROOT}, self.one.hinted)
        self.assert_seen()

    def test_two_that_publish_at_once_lose_no_call_between_them(self) -> None:
        self.wrote(self.one)
        own = self.one.own
        second = threading.Thread(target=own.flush)
        publish = own._publisher.publish

        def beside_another(updates: object) -> object:
            own._publisher.publish = publish
            second.start()
            second.join(0.2)
            report = publish(updates)
            # Whoever took the same calls would take this one off the queue in their stead.
            self.wrote(self.one)
            return report

        own._publisher.publish = beside_another
        own.flush()
        second.join()
        self.assertEqual(0, len(own))
        self.one.follow()
        record = self.one.record(ROOT)
        assert record is not None
        self.assertEqual(self.servers, len(record["allocations"]))

    def test_a_server_that_moves_away_before_it_is_published(self) -> None:
        [server] = self.wrote(self.one)
        self.placement.move(server, OTHER)
        self.two.read(ROOT)
        self.one.flush()
        self.assert_seen()

    def test_one_of_several_servers_of_a_call_that_is_deleted(self) -> None:
        gone, _stays = self.wrote(self.one, 2)
        self.placement.delete(gone)
        self.two.read(ROOT)
        self.one.flush()
        self.assertEqual((1, 1), self.generations())
        self.assert_seen()

    def test_a_reading_that_begins_before_the_call_and_sees_it_and_its_end(self) -> None:
        def both() -> None:
            self.placement.meanwhile = lambda: None
            self.placement.delete(next(iter(self.wrote(self.one))))

        self.placement.meanwhile = both
        self.two.read(ROOT)
        self.one.flush()
        self.assert_seen()

    def test_a_publication_that_was_carried_out_though_its_answer_was_lost(self) -> None:
        [server] = self.wrote(self.one)
        own = self.one.synchronizer.write

        def lost(*arguments: object) -> object:
            own(*arguments)  # type: ignore[arg-type]
            self.placement.delete(server)
            self.one.synchronizer.write = own  # type: ignore[method-assign]
            self.clocks.true += 1
            self.two.look(ROOT)
            self.hub.faults.go_down()
            raise plain_placement.errors.BackendUnavailable("hub", "lost")

        self.one.synchronizer.write = lost  # type: ignore[assignment,method-assign]
        self.one.flush()
        self.hub.faults.come_up()
        self.assertEqual(1, len(self.one.own))
        self.one.flush()
        self.assertEqual(0, len(self.one.own))
        self.assertEqual((1, 1), self.generations())
        self.assert_seen()

    def test_two_readings_by_a_clock_that_stands_still_are_two(self) -> None:
        self.hub._clock = lambda: 7000.0
        self.two.read(ROOT)
        self.one.follow()
        [server] = self.wrote(self.one)
        self.placement.delete(server)
        self.two.read(ROOT)
        self.one.flush()
        self.assertEqual((1, 1), self.generations())

    def test_a_call_of_which_nothing_was_known_before_is_not_counted(self) -> None:
        placed = self.new()
        self.placement.allocate({ROOT: placed})
        self.one.own.wrote({ROOT: placed})
        self.one.flush()
        self.assertEqual((0, 1), self.generations())
        record = self.one.record(ROOT)
        assert record is not None
        # Its room is taken all the same.
        self.assertEqual(placed, record["allocations"])
        self.assertEqual({ROOT}, self.one.hinted)
        self.assert_seen()


class OrdinaryTest(PlainCase):
    def test_own_writes_cost_one_comparison_in_the_bound_and_no_reading(self) -> None:
        self.placement.asked.clear()
        for _ in range(20):
            for process in (self.one, self.two):
                process.decide(ROOT)
                self.wrote(process)
                process.flush()
                self.one.follow()
                self.two.follow()
                self.clocks.true += 1
        self.assertEqual((40, 40), self.generations())
        self.assertEqual(set(), self.one.hinted | self.two.hinted)
        # 40 seconds, and a bound of 10: four or five comparisons for each of two.
        self.assertEqual({"list"}, set(self.placement.asked))
        self.assertLessEqual(len(self.placement.asked), 10)

    def test_writes_of_a_moment_are_counted_together(self) -> None:
        for _ in range(5):
            self.wrote(self.one)
        self.wrote(self.two)
        self.one.flush()
        self.two.flush()
        self.assertEqual((6, 6), self.generations())
        self.assertEqual(set(), self.one.hinted | self.two.hinted)

    def test_calls_that_a_reading_shows_cost_nothing(self) -> None:
        self.wrote(self.one)
        self.two.read(ROOT)
        self.one.flush()
        self.assertEqual((1, 1), self.generations())
        self.assertEqual(set(), self.one.hinted)


class ReadingTest(PlainCase):
    """While one thread reads a tree that changed, and Placement takes its time."""

    def test_no_other_thread_waits_for_it(self) -> None:
        self.clocks.true += plain_placement.BOUND_SECONDS
        self.one.decide(OTHER)
        self.placement.describe(ROOT)
        asked, may_answer = threading.Event(), threading.Event()

        def stand_still() -> None:
            if "list" in self.placement.asked:
                asked.set()
                may_answer.wait(60.0)

        self.placement.asked.clear()
        self.placement.meanwhile = stand_still
        reading = threading.Thread(target=self.one.decide, args=(ROOT,), daemon=True)
        reading.start()
        self.addCleanup(reading.join, 60.0)
        self.addCleanup(may_answer.set)
        self.assertTrue(asked.wait(60.0))
        decided = threading.Event()

        def decide() -> None:
            snapshot = self.one.snapshot()
            self.one.chosen.behind([OTHER], snapshot)
            condition = self.one.chosen.condition([ROOT], snapshot)
            assert condition is not None
            condition.held(condition.marks())
            decided.set()

        threading.Thread(target=decide, daemon=True).start()
        self.assertTrue(decided.wait(5.0))


class SetBackTest(PlainCase):
    """The back end's clock is set back, as where another member of a cluster takes over."""

    def test_an_own_comparison_counts_no_longer_than_the_bound(self) -> None:
        self.clocks.true += plain_placement.BOUND_SECONDS + 1
        self.one.decide(ROOT)
        self.assertEqual({ROOT}, set(self.one.chosen._noted))
        self.clocks.ahead -= 3600
        self.assert_seen()

    def test_a_comparison_of_another_counts_no_longer_either(self) -> None:
        for seconds_back in (5, 25, 60, 3600):
            self.begin()
            self.one.decide(OTHER)
            self.two.decide(OTHER)
            self.two.read(ROOT)
            self.one.follow()
            self.clocks.ahead -= seconds_back
            self.placement.describe(ROOT)
            # As the clock passes where it stood, too.
            for _ in range(10):
                self.clocks.true += seconds_back / 9 + plain_placement.BOUND_SECONDS
                age = self.one.decide(ROOT)
                self.assertLessEqual(age or 0.0, plain_placement.BOUND_SECONDS, seconds_back)

    def test_records_are_believed_again_when_the_clock_has_passed_where_it_stood(self) -> None:
        self.one.decide(OTHER)
        self.clocks.ahead -= 60
        self.clocks.true += 1
        self.one.decide(OTHER)
        self.clocks.true += 60 + 2 * plain_placement.BOUND_SECONDS
        self.two.read(ROOT)
        self.one.follow()
        self.placement.asked.clear()
        self.one.decide(ROOT)
        self.assertEqual([], self.placement.asked)

    def test_what_a_write_has_shown_counts_no_longer(self) -> None:
        snapshot = self.one.snapshot()
        self.clocks.true += plain_placement.BOUND_SECONDS + 1
        condition = self.one.chosen.condition([ROOT], snapshot)
        assert condition is not None
        condition.held(condition.marks())
        self.assertEqual({}, condition.marks())
        self.clocks.ahead -= 3600
        self.clocks.true += plain_placement.BOUND_SECONDS + 1
        self.assertEqual({ROOT}, set(condition.marks()))
        self.assertIsNotNone(self.one.chosen.condition([ROOT], snapshot))


class _Call:
    """A call to Placement on its way: sent, carried out, answered."""

    def __init__(
        self,
        process: plain_placement.Process,
        placed: own_writes.Placed,
        before: store_snapshot.Snapshot,
    ) -> None:
        self.process, self.placed, self.before = process, placed, before
        self.is_done = False


class AnyHistoryTest(PlainCase):
    """Writers, operators, deletions, keepers, publishers that lag, answers that are lost."""

    def history(self, dice: random.Random) -> None:
        self.begin()
        self.dice, self.calls = dice, list[_Call]()
        self.placement.meanwhile = self.meanwhile
        self.inside = False
        for process in (self.one, self.two):
            process.decide(ROOT)
        acts = (*self.quick(), *self.quick(), self.read, self.read, self.read)
        acts += (self.sweep, self.decide, self.pass_time)
        for _ in range(12):
            for _ in range(dice.randrange(8)):
                dice.choice(acts)()
            # A calm moment, in which an operator may do something, and no one else.
            self.one.flush()
            self.two.flush()
            self.follow()
            for _ in range(dice.choice((0, 0, 1, 1, 2))):
                self.describe()
            self.clocks.true += dice.choice((0.3, 11.0, 11.0))
            self.decide()

    def quick(self) -> tuple[Callable[[], None], ...]:
        """Return what may happen as somebody reads."""
        return (
            *(self.send, self.carry, self.end) * 3,
            *(self.delete, self.delete, self.move, self.describe),
            *(self.flush, self.follow, self.late),
        )

    def meanwhile(self) -> None:
        if not self.inside and self.dice.random() < 0.25:
            self.inside = True
            self.dice.choice(self.quick())()
            self.inside = False

    def process(self) -> plain_placement.Process:
        return self.dice.choice((self.one, self.two))

    def send(self) -> None:
        process = self.process()
        placed = {ROOT: self.new(self.dice.choice((1, 1, 2)))}
        self.calls.append(_Call(process, placed, process.own.before()))

    def carry(self) -> None:
        for call in self.calls:
            if not call.is_done:
                call.is_done = True
                self.placement.allocate(call.placed)
                return

    def end(self) -> None:
        """Bring an answer, or lose it: then the write is hinted at and not counted."""
        for call in self.calls:
            if call.is_done:
                self.calls.remove(call)
                if self.dice.random() < 0.9:
                    call.process.own.wrote(call.placed, call.before)
                return

    def delete(self) -> None:
        servers = list(self.placement.providers[ROOT].servers)
        if servers:
            self.placement.delete(self.dice.choice(servers))

    def move(self) -> None:
        servers = list(self.placement.providers[ROOT].servers)
        if servers:
            self.placement.move(self.dice.choice(servers), self.dice.choice((ROOT, OTHER)))

    def describe(self) -> None:
        self.placement.describe(ROOT)

    def flush(self) -> None:
        process = self.process()
        if self.dice.random() < 0.5:
            operation = self.dice.choice(("read", "write"))
            fault = faults.Fault.UNAVAILABLE
            if operation == "write":
                fault = self.dice.choice(tuple(faults.Fault))
            process.synchronizer.faults.fail_next(fault, operation=operation)
        process.flush()

    def follow(self) -> None:
        self.process().follow()

    def late(self) -> None:
        self.hub.deliver_late()

    def pass_time(self) -> None:
        self.clocks.true += self.dice.choice((0.3, 6.0, 11.0))
        if self.dice.random() < 0.1:
            self.clocks.ahead -= self.dice.choice((5.0, 40.0))

    def read(self) -> None:
        process = self.process()
        try:
            self.dice.choice((process.read, process.look))(ROOT)
        except plain_placement.errors.BackendUnavailable:
            return

    def sweep(self) -> None:
        try:
            self.two.sweep()
        except plain_placement.errors.BackendUnavailable:
            return

    def decide(self) -> None:
        process = self.process()
        if self.dice.random() < 0.5:
            process.follow()
        age = process.decide(ROOT)
        if age is not None:
            self.assertLessEqual(age, plain_placement.BOUND_SECONDS)

    def test_no_change_of_others_is_hidden_beyond_the_bound(self) -> None:
        @hypothesis.settings(max_examples=300, deadline=None)
        @hypothesis.given(st.randoms(use_true_random=False))
        def holds(dice: random.Random) -> None:
            self.history(dice)

        holds()
