# SPDX-License-Identifier: Apache-2.0
"""Threads that write at once share a call; each gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import shared_writes
from nova_nodb_scheduler.synchronizer.drivers import memory


def write(key: str, revision: int = 0, payload: bytes = b"x") -> records.Write:
    return records.Write(records.RecordKey("claims", key), revision, payload)


class SharedWritesTest(testtools.TestCase):
    """The first call is held up until all others wait behind it."""

    def setUp(self) -> None:
        super().setUp()
        self.client = memory.MemorySynchronizer(None, memory.MemoryHub())
        self.client.open()
        self.calls: list[list[str]] = []
        self.held_up = threading.Event()
        self.go_on = threading.Event()
        self.carry_out: Callable[[Sequence[records.Write]], list[records.WriteResult]]
        self.carry_out = self.client.write
        self.shared = shared_writes.SharedWrites(self.send, most=5)

    def send(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        self.calls.append([each.key.key for each in writes])
        if len(self.calls) == 1:
            self.held_up.set()
            self.go_on.wait(60)
            return self.client.write(writes)
        return self.carry_out(writes)

    def together(self, *calls: Sequence[records.Write]) -> list[object]:
        """Write from a thread each while one call is under way; return what came back."""
        answers: list[object] = [None] * len(calls)

        def run(place: int, writes: Sequence[records.Write]) -> None:
            try:
                answers[place] = self.shared.write(writes)
            except BaseException as error:
                answers[place] = error

        first = threading.Thread(target=self.shared.write, args=([write("first")],))
        first.start()
        self.held_up.wait(60)
        threads = []
        for place, writes in enumerate(calls):
            waiting = len(self.shared._waiting)
            threads.append(threading.Thread(target=run, args=(place, writes)))
            threads[-1].start()
            while len(self.shared._waiting) == waiting:
                threading.Event().wait(0.001)
        self.go_on.set()
        for thread in (first, *threads):
            thread.join(60)
        return answers

    def test_what_queues_up_goes_in_one_call(self):
        answers = self.together([write("a")], [write("b"), write("c")])
        self.assertEqual([["first"], ["a", "b", "c"]], self.calls)
        self.assertEqual(
            [["a"], ["b", "c"]],
            [[each.record.key.key for each in answer] for answer in answers],
        )

    def test_nobody_waits_who_is_alone(self):
        self.go_on.set()
        self.assertTrue(self.shared.write([write("a")])[0].won)
        self.assertTrue(self.shared.write([write("b")])[0].won)
        self.assertEqual([["a"], ["b"]], self.calls)

    def test_the_same_record_is_written_in_the_order_of_the_calls(self):
        answers = self.together([write("a")], [write("a"), write("b")], [write("b"), write("c")])
        self.assertEqual([["first"], ["a"], ["a", "b"], ["b", "c"]], self.calls)
        self.assertEqual(
            [[True], [False, True], [False, True]],
            [[each.won for each in answer] for answer in answers],
        )

    def test_a_call_has_its_limit(self):
        self.together(*([write(f"{n}a"), write(f"{n}b")] for n in range(3)))
        self.assertEqual([["first"], ["0a", "0b", "1a", "1b"], ["2a", "2b"]], self.calls)

    def test_all_learn_that_the_back_end_is_away(self):
        def away(writes: Sequence[records.Write]) -> list[records.WriteResult]:
            raise errors.BackendUnavailable("memory", "it is down")

        self.carry_out = away
        answers = self.together([write("a")], [write("b")])
        self.assertEqual([errors.BackendUnavailable] * 2, [type(each) for each in answers])

    def test_one_that_no_driver_takes_harms_no_other(self):
        large = b"x" * (self.client.capabilities.max_payload_bytes + 1)
        answers = self.together([write("a")], [write("b", payload=large)])
        self.assertTrue(answers[0][0].won)
        self.assertIsInstance(answers[1], errors.PayloadTooLarge)

    def test_who_shared_with_a_thread_that_died_does_not_know(self):
        class Died(BaseException):
            pass

        def die(writes: Sequence[records.Write]) -> list[records.WriteResult]:
            raise Died

        self.carry_out = die
        answers = self.together([write("a")], [write("b")])
        kinds = {type(each) for each in answers}
        self.assertEqual({Died, list}, kinds)
        [unknown] = [each for each in answers if isinstance(each, list)]
        self.assertIs(records.Verdict.UNKNOWN, unknown[0].verdict)
