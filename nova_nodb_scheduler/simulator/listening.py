# SPDX-License-Identifier: Apache-2.0
"""Listens to the schedulers' processes, and answers what they ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection as mp_connection

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.simulator import feed_lag, grants, messages, processes

#: Longest time in which nothing is listened to but the pipes, real seconds.
LISTEN_SECONDS = 0.05
#: How long is waited in the end for what schedulers noted.
_LAST_WORD_SECONDS = 5.0


class SimulationFailed(errors.NodbError):
    """A scheduler's process ended with a fault: the run says nothing.

    :param detail: its traceback
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"a scheduler of the run failed:\n{self.detail}"


class Listener:
    """The world's end of the pipes. One thread.

    :param lock: held while something is answered
    :param decided: told of each request's end
    """

    def __init__(
        self,
        schedulers: Sequence[processes.SchedulerProcess],
        lock: threading.RLock,
        granted: grants.Grants,
        decided: Callable[[messages.Decided], None],
    ) -> None:
        self._schedulers = schedulers
        self._lock = lock
        self._grants = granted
        self._decided = decided
        self._untold: set[int] = set()
        self.feed_lags = feed_lag.FeedLags()

    def listen(self, timeout_seconds: float) -> None:
        """Answer what schedulers say; wait so long for the first word.

        :raises SimulationFailed: one failed by itself
        """
        pipes = {
            pipe: each
            for each in self._schedulers
            for pipe in (each.pipe, each.questions)
            if pipe is not None
        }
        if not pipes:
            time.sleep(timeout_seconds)
            return
        ready = set(mp_connection.wait(list(pipes), timeout_seconds))
        for pipe, said_by in pipes.items():
            if pipe not in ready:
                continue
            try:
                said = pipe.recv()
            except (EOFError, OSError) as error:
                if pipe is said_by.questions:
                    said_by.questions = None
                    continue
                raise SimulationFailed(
                    f"scheduler {said_by.number} ended without a word"
                ) from error
            with self._lock:
                if isinstance(said, messages.Question):
                    pipe.send(self._grants.allocations(said))
                else:
                    self._answer(said_by, said)

    def hear_last(self) -> None:
        """Have the schedulers tell what they noted since their last answers."""
        silent = [each for each in self._schedulers if not each.is_away]
        deadline = time.monotonic() + _LAST_WORD_SECONDS
        while (silent or self._untold) and time.monotonic() < deadline:
            # Whoever is deciding takes every message for an answer.
            for each in [each for each in silent if each.is_idle]:
                silent.remove(each)
                if each.say(messages.Tell()):
                    self._untold.add(each.number)
            self.listen(LISTEN_SECONDS)

    def _answer(self, said_by: processes.SchedulerProcess, said: object) -> None:
        match said:
            case messages.Write():
                _reply(said_by, self._grants.write(said))
            case messages.Remove():
                _reply(said_by, self._grants.remove(said))
            case messages.Decided():
                said_by.asked = None
                self.feed_lags.add(said_by.number, said_by.starts, said.applied)
                self._decided(said)
            case messages.Told():
                self.feed_lags.add(said_by.number, said_by.starts, said.applied)
                self._untold.discard(said_by.number)
            case messages.Ready():
                said_by.became_ready()
                self.feed_lags.begin(said_by.number, said_by.starts, time.monotonic())
            case messages.Failed():
                raise SimulationFailed(said.text)


def _reply(to: processes.SchedulerProcess, answer: messages.Answer) -> None:
    if to.pipe is not None:
        to.pipe.send(answer)
