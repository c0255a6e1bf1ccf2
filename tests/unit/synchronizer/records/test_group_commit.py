# SPDX-License-Identifier: Apache-2.0
"""Threads that write at once share a call; each gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from unittest import mock

import attrs
import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import record_editor


def write(key: str, revision: int = 0, payload: bytes = b"x") -> record_editor.Draft:
    """Return a draft that adds its payload to what others leave, and answers with all of it."""

    def proposed(before: bytes, revision: int) -> record_editor.DraftedWrite:
        made = records.Write(records.RecordKey("claims", key), revision, before + payload)
        return record_editor.DraftedWrite(made, made.payload)

    return record_editor.Draft(
        proposed(b"", revision), lambda before: proposed(before.payload, before.revision)
    )


def stubborn(key: str) -> record_editor.Draft:
    """Return a draft that is nothing on what others leave."""
    made = records.Write(records.RecordKey("claims", key), 0)
    return record_editor.Draft(record_editor.DraftedWrite(made))


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
        self.shared = record_editor.GroupCommit(self.send, most=5)

    def send(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        self.calls.append([each.key.key for each in writes])
        if len(self.calls) == 1:
            self.held_up.set()
            self.go_on.wait(60)
            return self.client.write(writes)
        return self.carry_out(writes)

    def together(self, *calls: Sequence[record_editor.Draft]) -> list[object]:
        """Write from a thread each while one call is under way; return what came back."""
        answers: list[object] = [None] * len(calls)

        def run(place: int, writes: Sequence[record_editor.Draft]) -> None:
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
            [[each.result.record.key.key for each in answer] for answer in answers],
        )

    def test_nobody_waits_who_is_alone(self):
        self.go_on.set()
        self.assertTrue(self.shared.write([write("a")])[0].result.won)
        self.assertTrue(self.shared.write([write("b")])[0].result.won)
        self.assertEqual([["a"], ["b"]], self.calls)

    def test_a_record_is_written_once_by_all_in_the_order_of_the_calls(self):
        calls = [write("a", payload=b"1")], [write("a", payload=b"2"), write("b")]
        answers = self.together(*calls, [write("b", payload=b"3"), write("c")])
        self.assertEqual([["first"], ["a", "b", "c"]], self.calls)
        self.assertEqual(
            [[b"12"], [b"12", b"x3"], [b"x3", b"x"]],
            [[each.result.record.payload for each in answer] for answer in answers],
        )
        # Each has its own answer, by what it was made on.
        self.assertEqual(
            [[b"1"], [b"12", b"x"], [b"x3", b"x"]],
            [[each.answer for each in answer] for answer in answers],
        )

    def test_what_queued_up_behind_a_record_goes_on_from_what_was_written(self):
        [[after]] = self.together([write("first", payload=b"2")])
        self.assertTrue(after.result.won)
        self.assertEqual(b"x2", after.result.record.payload)

    def test_writes_that_are_too_large_together_go_each_by_itself(self):
        # With the answer of what was written in the end, not of what was tried first.
        half = b"y" * (self.client.capabilities.max_payload_bytes - 1)
        answers = self.together([write("a", payload=half)], [write("a", payload=b"zz")])
        self.assertTrue(answers[0][0].result.won)
        self.assertEqual(half, answers[0][0].answer)
        self.assertIsInstance(answers[1], errors.PayloadTooLarge)

    def test_a_draft_that_others_leave_nothing_to_write_is_told_what_stands(self):
        answers = self.together([write("a")], [stubborn("a"), write("b")], [stubborn("first")])
        self.assertEqual([["first"], ["a", "b"]], self.calls)
        self.assertEqual(record_editor.DraftUnmade(answers[0][0].result.record), answers[1][0])
        self.assertTrue(answers[1][1].result.won)
        # Nobody wrote it in that call.
        self.assertEqual([record_editor.DraftUnmade()], answers[2])

    def test_a_remembered_record_of_a_former_epoch_costs_one_try(self):
        self.client.write([write("first").first.write])
        self.carry_out = self.client.write
        hub_write, higher = self.client.write, 1000

        def write_higher(writes: Sequence[records.Write]) -> list[records.WriteResult]:
            results = hub_write(writes)
            if len(self.calls) > 1:
                return results
            return [
                attrs.evolve(each, record=attrs.evolve(each.record, revision=higher))
                for each in results
            ]

        self.client.write = write_higher
        [[lost]] = self.together([write("first", 1)])
        self.assertIs(records.Verdict.LOST, lost.result.verdict)
        [again] = self.shared.write([write("first", lost.result.record.revision)])
        self.assertTrue(again.result.won)

    def test_a_call_has_its_limit(self):
        self.together(*([write(f"{n}a"), write(f"{n}b")] for n in range(3)))
        self.assertEqual([["first"], ["0a", "0b", "1a", "1b"], ["2a", "2b"]], self.calls)

    def test_nobody_overtakes_who_waits_for_the_same_record(self):
        calls = [[write(f"{n}{each}") for each in "abc"] for n in range(2)]
        self.together(*calls, [write("1a", payload=b"2")], [write("0a", payload=b"2")])
        self.assertEqual([["first"], ["0a", "0b", "0c"], ["1a", "1b", "1c"]], self.calls)

    def test_all_learn_that_the_back_end_is_away(self):
        def away(writes: Sequence[records.Write]) -> list[records.WriteResult]:
            raise errors.BackendUnavailable("memory", "it is down")

        self.carry_out = away
        answers = self.together([write("a")], [write("b")])
        self.assertEqual([errors.BackendUnavailable] * 2, [type(each) for each in answers])

    def test_one_that_no_driver_takes_harms_no_other(self):
        large = b"x" * (self.client.capabilities.max_payload_bytes + 1)
        answers = self.together([write("a")], [write("b", payload=large)])
        self.assertTrue(answers[0][0].result.won)
        self.assertIsInstance(answers[1], errors.PayloadTooLarge)

    def test_nobody_writes_what_a_thread_wanted_that_died_while_it_waited(self):
        class Died(BaseException):
            pass

        def die() -> None:
            raise Died

        changed = self.shared._changed
        first = threading.Thread(target=self.shared.write, args=([write("first")],))
        first.start()
        self.held_up.wait(60)
        with mock.patch.object(changed, "wait", die):
            self.assertRaises(Died, self.shared.write, [write("a")])
        self.go_on.set()
        first.join(60)
        self.shared.write([write("b")])
        self.assertEqual([["first"], ["b"]], self.calls)

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
        self.assertIs(records.Verdict.UNKNOWN, unknown[0].result.verdict)
