# SPDX-License-Identifier: Apache-2.0
"""Who shares a call, and who leads it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from importlib import util

import testtools

from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_calls


class Killed(BaseException):
    """As the one that ends a green thread."""


class BatcherTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.calls: list[list[int]] = []
        self.callers: list[int] = []
        self.under_way = 0
        self.entered = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.raises: BaseException | None = None

    def call(self, work: Sequence[int]) -> list[int]:
        self.under_way += 1
        assert self.under_way == 1
        self.calls.append(list(work))
        self.callers.append(threading.get_ident())
        self.entered.set()
        self.go.wait()
        self.under_way -= 1
        if self.raises is not None:
            raise self.raises
        return [each * 10 for each in work]

    def queue_up(
        self, batcher: placement_calls.CallBatcher[int, int], works: Sequence[tuple[int, int, bool]]
    ) -> list[object]:
        """Submit works in order while a first call is under way; then let it go on."""
        found: list[object] = [None] * (len(works) + 1)

        def submit(number: int, work: int, size: int, alone: bool) -> None:
            try:
                found[number] = batcher.submit(work, size, alone=alone)
            except BaseException as error:
                found[number] = error

        self.go.clear()
        threads = [threading.Thread(target=submit, args=(0, 0, 1, False))]
        threads[0].start()
        self.entered.wait()
        for number, (work, size, alone) in enumerate(works):
            threads.append(threading.Thread(target=submit, args=(number + 1, work, size, alone)))
            threads[-1].start()
            while len(batcher._queue) <= number:
                time.sleep(0.001)
        self.go.set()
        for thread in threads:
            thread.join()
        return found

    def test_a_call_that_hangs_holds_nobody_beyond_his_patience(self) -> None:
        batcher = placement_calls.CallBatcher(self.call)
        self.go.clear()
        leader = threading.Thread(target=batcher.submit, args=(0, 1))
        leader.start()
        self.entered.wait()
        error = self.assertRaises(
            placement_calls.Overdue, batcher.submit, 1, 1, patience_seconds=0.05
        )
        self.assertFalse(error.taken)
        self.go.set()
        leader.join()
        self.assertEqual(20, batcher.submit(2, 1))
        self.assertEqual([[0], [2]], self.calls)

    def test_whose_work_is_in_a_call_that_hangs_does_not_know_its_result(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, window_seconds=60.0, max_size=2)
        self.go.clear()
        leader = threading.Thread(target=batcher.submit, args=(0, 1))
        with batcher.coming():
            leader.start()
            while not batcher._gathering:
                time.sleep(0.001)
            error = self.assertRaises(
                placement_calls.Overdue, batcher.submit, 1, 1, patience_seconds=0.2
            )
        self.assertTrue(error.taken)
        self.go.set()
        leader.join()
        self.assertEqual([[0, 1]], self.calls)

    def test_who_gave_a_call_up_can_wait_for_its_end(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, touches=lambda work: frozenset((work,)))
        self.go.clear()
        leader = threading.Thread(target=batcher.submit, args=(1, 1))
        leader.start()
        self.entered.wait()
        self.assertTrue(batcher.untouched(frozenset((2,)), 0.0))
        self.assertFalse(batcher.untouched(frozenset((1, 2)), -1.0))
        threading.Timer(0.05, self.go.set).start()
        self.assertTrue(batcher.untouched(frozenset((1, 2)), 60.0))
        leader.join()

    def test_nobody_leads_a_call_that_is_not_his(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, max_size=4)
        found = self.queue_up(batcher, [(1, 9, False), (2, 1, False), (3, 9, False)])
        self.assertEqual([0, 10, 20, 30], found)
        self.assertEqual([[0], [1], [2], [3]], self.calls)
        # Each its own thread: whose patience is short is bound by no other's call.
        self.assertEqual(4, len(set(self.callers)))

    def test_who_gives_up_leaves_the_lead_to_the_next(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, max_size=4)
        self.go.clear()
        leader = threading.Thread(target=batcher.submit, args=(0, 1))
        leader.start()
        self.entered.wait()
        first = threading.Thread(
            target=self.assertRaises,
            args=(placement_calls.Overdue, batcher.submit, 1, 9),
            kwargs={"patience_seconds": 0.05},
        )
        first.start()
        while not batcher._queue:
            time.sleep(0.001)
        second = threading.Thread(target=batcher.submit, args=(2, 1))
        second.start()
        first.join(10.0)
        self.go.set()
        leader.join(10.0)
        second.join(10.0)
        self.assertEqual([[0], [2]], self.calls)

    def test_a_call_nothing_can_join_waits_for_nobody(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, window_seconds=60.0)
        with batcher.coming():
            first = threading.Thread(target=batcher.submit, args=(0, 1))
            first.start()
            while not batcher._gathering:
                time.sleep(0.001)
            # It is to be alone, so that the first one's call is complete.
            alone = threading.Thread(target=batcher.submit, args=(1, 1), kwargs={"alone": True})
            alone.start()
            for thread in (first, alone):
                thread.join(10.0)
            self.assertEqual([[0], [1]], self.calls)

    def test_a_caller_waits_for_the_others_that_said_they_come(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, window_seconds=60.0)
        said = threading.Barrier(3)

        def come(number: int, seconds: float) -> None:
            with batcher.coming():
                said.wait()
                time.sleep(seconds)
                batcher.submit(number, 1)

        threads = [threading.Thread(target=come, args=(number, number / 20)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([[0, 1, 2]], [sorted(each) for each in self.calls])

    def test_nobody_waits_for_one_that_will_not_come_after_all(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, window_seconds=60.0)
        leader = threading.Thread(target=batcher.submit, args=(0, 1))
        with batcher.coming():
            leader.start()
            while not batcher._gathering:
                time.sleep(0.001)
            self.assertEqual([], self.calls)
        leader.join(10.0)
        self.assertEqual([[0]], self.calls)

    def test_nobody_waits_for_one_that_says_that_it_does_not_come(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, window_seconds=60.0)
        leader = threading.Thread(target=batcher.submit, args=(0, 1))
        with batcher.coming():
            leader.start()
            while not batcher._gathering:
                time.sleep(0.001)
            batcher.not_coming()
            leader.join(10.0)
            self.assertEqual([[0]], self.calls)

    def test_nobody_waits_beyond_the_window(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, window_seconds=0.05)
        with batcher.coming():
            leader = threading.Thread(target=batcher.submit, args=(0, 1))
            leader.start()
            leader.join(10.0)
        self.assertEqual([[0]], self.calls)

    def test_who_comes_again_is_waited_for_once(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, window_seconds=60.0)
        with batcher.coming():
            batcher.submit(0, 1)
            batcher.submit(1, 1)
            other = threading.Thread(target=batcher.submit, args=(2, 1))
            other.start()
            other.join(10.0)
        self.assertEqual([[0], [1], [2]], self.calls)

    def test_a_lone_caller_calls_at_once_in_its_own_thread(self) -> None:
        batcher = placement_calls.CallBatcher(self.call)
        self.assertEqual(70, batcher.submit(7, 1))
        self.assertEqual([threading.get_ident()], self.callers)

    def test_what_waits_shares_the_next_call_in_order_up_to_the_bound(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, max_size=4)
        works = [(1, 1, False), (2, 2, False), (3, 2, False), (4, 9, False), (5, 1, False)]
        self.assertEqual([0, 10, 20, 30, 40, 50], self.queue_up(batcher, works))
        self.assertEqual([[0], [1, 2], [3], [4], [5]], self.calls)

    def test_work_that_is_to_be_alone_shares_neither_as_first_nor_later(self) -> None:
        batcher = placement_calls.CallBatcher(self.call)
        works = [(1, 1, False), (2, 1, True), (3, 1, False), (4, 1, False)]
        self.queue_up(batcher, works)
        self.assertEqual([[0], [1], [2], [3, 4]], self.calls)

    def test_an_error_reaches_all_that_shared_the_call_and_ends_there(self) -> None:
        batcher = placement_calls.CallBatcher(self.call)
        self.raises = ValueError("broken")
        found = self.queue_up(batcher, [(1, 1, False), (2, 1, False)])
        self.assertEqual([self.raises] * 3, found)
        self.raises = None
        self.assertEqual(30, batcher.submit(3, 1))

    def test_a_killed_leader_leaves_the_others_with_an_unknown_result(self) -> None:
        batcher = placement_calls.CallBatcher(self.call)
        self.raises = Killed()
        found = self.queue_up(batcher, [(1, 1, False), (2, 1, False)])
        kinds = [type(each) for each in found]
        # The one that led is killed itself; it led one of the two calls, or both.
        self.assertEqual(Killed, kinds[0])
        self.assertEqual({Killed, placement_calls.LeaderEnded}, set(kinds[1:]))
        self.raises = None
        self.assertEqual(30, batcher.submit(3, 1))

    def test_many_threads_get_each_their_own_result(self) -> None:
        batcher = placement_calls.CallBatcher(self.call, max_size=5)
        wrong: list[int] = []

        def work(number: int) -> None:
            wrong.extend(
                each
                for each in range(number * 100, number * 100 + 100)
                if batcher.submit(each, 1 + each % 3, alone=each % 7 == 0) != each * 10
            )

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([], wrong)
        self.assertEqual(800, sum(len(call) for call in self.calls))

    def test_work_that_touches_other_things_does_not_wait(self) -> None:
        batcher = placement_calls.CallBatcher(
            self.call, max_calls=2, touches=lambda work: frozenset({work})
        )
        entered = [threading.Event() for _ in range(2)]
        go = threading.Event()

        def call(work: Sequence[int]) -> list[int]:
            self.calls.append(list(work))
            entered[len(self.calls) - 1].set()
            go.wait()
            return [each * 10 for each in work]

        batcher._call = call
        threads = [threading.Thread(target=batcher.submit, args=(work, 1)) for work in (1, 2)]
        for thread, event in zip(threads, entered, strict=True):
            thread.start()
            self.assertTrue(event.wait(10))
        self.assertEqual([[1], [2]], self.calls)
        # There is no third call, and what touches the same shares the next one.
        error = self.assertRaises(
            placement_calls.Overdue, batcher.submit, 3, 1, patience_seconds=0.02
        )
        self.assertFalse(error.taken)
        go.set()
        for thread in threads:
            thread.join()

    def test_work_that_touches_what_a_call_does_waits_and_then_shares(self) -> None:
        batcher = placement_calls.CallBatcher(
            self.call, max_calls=2, touches=lambda work: frozenset({work % 10})
        )
        works = [(10, 1, False), (20, 1, False), (30, 1, True), (40, 1, False)]
        self.assertEqual([0, 100, 200, 300, 400], self.queue_up(batcher, works))
        self.assertEqual([[0], [10, 20], [30], [40]], self.calls)

    def test_no_two_calls_under_way_have_anything_in_common(self) -> None:
        lock = threading.Lock()
        touched: list[int] = []
        shared: list[list[int]] = []
        most: list[int] = []

        def call(work: Sequence[int]) -> list[int]:
            own = {each % 7 for each in work}
            with lock:
                shared.extend([sorted(own)] if own & set(touched) else [])
                touched.extend(own)
                most.append(len(set(touched)) - len(own))
            time.sleep(0.0005)
            with lock:
                for each in own:
                    touched.remove(each)
            return [each * 10 for each in work]

        batcher = placement_calls.CallBatcher(
            call, max_calls=3, max_size=4, touches=lambda work: frozenset({work % 7})
        )
        wrong: list[int] = []

        def work(number: int) -> None:
            wrong.extend(
                each
                for each in range(number * 100, number * 100 + 100)
                if batcher.submit(each, 1 + each % 2, alone=each % 11 == 0) != each * 10
            )

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(([], []), (wrong, shared))
        self.assertGreater(max(most), 0)
        self.assertEqual(([], set(), []), (batcher._under_way, batcher._touched, batcher._queue))

    def test_it_works_with_green_threads(self) -> None:
        if util.find_spec("eventlet") is None:
            self.skipTest("eventlet is not installed")
        script = """
            import eventlet
            eventlet.monkey_patch()
            import time
            from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_calls
            calls = []
            def call(work):
                calls.append(len(work))
                time.sleep(0.01)
                return [each * 10 for each in work]
            batcher = placement_calls.CallBatcher(call)
            pool = eventlet.GreenPool()
            found = list(pool.imap(lambda each: batcher.submit(each, 1), range(33)))
            assert found == [each * 10 for each in range(33)], found
            assert calls == [1, 16, 16], calls
            # One that is killed while it waits is not worked for.
            first, second = (eventlet.spawn(batcher.submit, each, 1) for each in (1, 2))
            eventlet.sleep(0.001)
            second.kill()
            assert first.wait() == 10
            assert batcher.submit(3, 1) == 30 and calls[3:] == [1, 1], calls
            # Those on their way are waited for.
            batcher = placement_calls.CallBatcher(call, window_seconds=5.0)
            def come(number):
                with batcher.coming():
                    eventlet.sleep(number / 100)
                    return batcher.submit(number, 1)
            del calls[:]
            assert list(pool.imap(come, range(4))) == [0, 10, 20, 30]
            assert calls == [4], calls
            # One that is killed while it waits for company leaves the lead to the next.
            with batcher.coming():
                first, second = (eventlet.spawn(batcher.submit, each, 1) for each in (1, 2))
                eventlet.sleep(0.01)
                first.kill()
            assert second.wait() == 20 and calls == [4, 1], calls
            assert (batcher._under_way, batcher._gathering, batcher._coming) == ([], False, 0)
        """
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        self.assertEqual((0, ""), (done.returncode, done.stderr))
