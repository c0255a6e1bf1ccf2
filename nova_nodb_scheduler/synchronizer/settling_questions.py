# SPDX-License-Identifier: Apache-2.0
"""Questions about claims to the authority of allocations, beside the turns that settle.

Asked within a turn, an authority that hangs would keep all other claims waiting
for as long; and Nova sets no bound to that unless an operator does.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import settling_evidence, step_thread

#: A consumer's allocations now; None where their authority cannot be asked. May block.
Ask = Callable[[str], settling_evidence.Allocations | None]


@attrs.frozen
class Question:
    """What is to be asked of an entry of a record.

    :param held: the claim, or the member, as it was read before
    """

    key: records.RecordKey
    entry: Any
    consumer: str
    held: Any


@attrs.frozen
class Answer:
    """What the authority said after the entry was read; None where it did not."""

    question: Question
    allocations: settling_evidence.Allocations | None


class Questions:
    """Asks one after the other, in a thread once that is started; else at once.

    Any thread may call it.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._lock = threading.Lock()
        self._waiting: collections.deque[Question] = collections.deque()
        #: Those whose answer is wanted, waiting or under way.
        self._open: dict[tuple[records.RecordKey, Any], Question] = {}
        self._answers: list[Answer] = []
        self._wake = threading.Event()
        self._stopping = False
        self._thread = step_thread.StepThread(
            "nodb-settling-questions", self._turn, lambda error: None, lambda running: None
        )

    def start(self) -> None:
        """Start the thread; not before the process has forked."""
        self._stopping = False
        self._thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """End the thread; idempotent. One that hangs in a question is left to itself."""
        self._stopping = True
        self._wake.set()
        self._thread.stop(timeout_seconds)

    def put(self, questions: Iterable[Question]) -> None:
        """Have questions asked; blocks only where no thread was started."""
        with self._lock:
            for question in questions:
                self._open[question.key, question.entry] = question
                self._waiting.append(question)
        if not self._thread.alive:
            while self._ask_next():
                pass
        self._wake.set()

    def under_way(self, key: records.RecordKey, entries: Iterable[Any]) -> set[Any]:
        """Return which entries of a record wait for an answer."""
        with self._lock:
            return {entry for entry in entries if (key, entry) in self._open}

    @property
    def count(self) -> int:
        """How many wait for an answer."""
        return len(self._open)

    @property
    def answered(self) -> bool:
        """Whether there are answers to take."""
        return bool(self._answers)

    def take(self) -> Collection[Answer]:
        """Return the answers that came since the last call."""
        with self._lock:
            answers, self._answers = self._answers, []
            return answers

    def clear(self) -> None:
        """Forget all questions, and what is answered to them."""
        with self._lock:
            self._waiting.clear()
            self._open.clear()
            self._answers.clear()

    def _turn(self, _stop: threading.Event) -> None:
        self._wake.clear()
        if not self._ask_next() and not self._stopping:
            self._wake.wait()

    def _ask_next(self) -> bool:
        with self._lock:
            if not self._waiting:
                return False
            question = self._waiting.popleft()
        allocations = None
        try:
            allocations = self.ask(question.consumer)
        finally:
            with self._lock:
                if self._open.get((question.key, question.entry)) is question:
                    del self._open[question.key, question.entry]
                    self._answers.append(Answer(question, allocations))
        return True
