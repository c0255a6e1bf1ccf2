# SPDX-License-Identifier: Apache-2.0
"""Asks what may never answer: in a thread of its own, for a bounded time.

A client library's time-out seldom counts all: oslo.messaging's begins once it
is connected and tries that for ever, a resolver asks each name server in turn,
a driver bounds each exchange and not their sum. What runs out of its time is
left behind in its thread, which must not keep the process: see
:func:`.guard.main`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from nova_nodb_scheduler import errors

Answer = TypeVar("Answer")

#: Longest wait for a connection, and for one answer over it.
CONNECT_SECONDS = 5.0
#: The same of a synchronizer's back end, whose driver (5 s for an exchange, by
#: default) shall have had the time to say by itself what is wrong, or to turn
#: to another of its servers.
BACKEND_SECONDS = 7.0
#: Longest time that a command spends on finding out how things are.
LOOK_SECONDS = 8.0
#: Names every thread that may be left behind, see :func:`left_behind`.
THREAD_NAME = "nodb-ask"
#: However late it is, who answers at all answers within this.
_LEAST_SECONDS = 1.0


class BoundedQuestion(Generic[Answer]):
    """Something asked in a thread of its own, from now on.

    :param ask: what it runs; whatever it raises is raised by :meth:`answer`
    """

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self._ask = ask
        self._answers: list[Answer] = []
        self._error: BaseException | None = None
        # Not of a pool: the interpreter waits for those at its end.
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except BaseException as error:  # noqa: BLE001 - it is the asker's, SystemExit too
            self._error = error

    def answer(self, bound_seconds: float) -> Answer:
        """Wait for the answer and return it, or raise what asking raised.

        :raises NoAnswerInTime: there is none within the bound
        """
        self._thread.join(bound_seconds)
        if self._error is not None:
            raise self._error
        if not self._answers:
            raise errors.NoAnswerInTime(bound_seconds)
        return self._answers[0]


def ask(bound_seconds: float, question: Callable[[], Answer]) -> Answer:
    """Ask one thing and wait for it.

    :raises NoAnswerInTime: there is no answer within the bound
    """
    return BoundedQuestion(question).answer(bound_seconds)


def left_behind() -> set[threading.Thread]:
    """Return the threads in which something still waits for its answer."""
    return {thread for thread in threading.enumerate() if thread.name == THREAD_NAME}


class Deadline:
    """What is left of the time in which a command finds out how things are.

    :param total_seconds: counted from now
    """

    def __init__(self, total_seconds: float = LOOK_SECONDS) -> None:
        self._ends_at = time.monotonic() + total_seconds

    def within(self, bound_seconds: float) -> float:
        """Return a step's bound: its own, or what is left, but never under a second."""
        return min(bound_seconds, max(_LEAST_SECONDS, self._ends_at - time.monotonic()))

    def left_seconds(self) -> float:
        """Return what is left of it."""
        return max(0.0, self._ends_at - time.monotonic())
