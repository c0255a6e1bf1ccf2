# SPDX-License-Identifier: Apache-2.0
"""Requests on their way to schedulers, and what the schedulers' processes say and ask.

A request comes, waits, is asked, and is asked again where its scheduler died.
"""

from __future__ import annotations

import collections
import functools
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection as mp_connection

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.simulator.run import grants
from nova_nodb_scheduler.simulator.scenario import run_clock, run_options, workload
from nova_nodb_scheduler.simulator.schedulers import feed_lag, pipe_messages, scheduler_process

#: Pause before a request is asked again that no claim could be taken for.
_AGAIN_SECONDS = 0.5


class RequestQueue:
    """The requests of one run. One thread.

    :param made: returns what a scheduler is asked for a request
    :param come: told of each that comes; None: it is asked
    """

    def __init__(
        self,
        options: run_options.RunOptions,
        arrivals: Sequence[workload.Arrival],
        schedulers: Sequence[scheduler_process.SchedulerProcess],
        clock: run_clock.RunClock,
        happenings: run_clock.Events,
        made: Callable[[workload.Arrival], pipe_messages.Decide],
        come: Callable[[workload.Arrival], None] | None = None,
    ) -> None:
        self.arrivals = arrivals
        self._made = made
        self._come = come or self._append
        self._options = options
        self._clock = clock
        self._events = happenings
        self._next_arrival = 0
        self._queue: collections.deque[int] = collections.deque()
        #: Requests that were tried in vain and come into the queue again.
        self._put_off = 0
        self._turns = collections.deque(schedulers)
        self._asked_at: dict[int, float] = {}

    def begin(self) -> None:
        """Arrange for the requests to come, unless they come when somebody is free."""
        if self._options.pace is run_clock.Pace.SATURATED:
            return
        for arrival in self.arrivals:
            self._events.at(arrival.at_seconds, functools.partial(self._come, arrival))
        self._next_arrival = len(self.arrivals)

    def append(self, number: int) -> None:
        """Have a request asked as soon as somebody is free."""
        self._queue.append(number)

    def _append(self, arrival: workload.Arrival) -> None:
        self.append(arrival.number)

    @property
    def waits(self) -> bool:
        """Whether a request could be asked now."""
        return bool(self._queue)

    @property
    def waits_or_will(self) -> bool:
        """Whether a request was asked for and is not being decided."""
        return bool(self._queue or self._put_off)

    @property
    def is_used_up(self) -> bool:
        """Whether all have come, and none waits."""
        return self._next_arrival == len(self.arrivals) and not self._queue

    def dispatch(self) -> None:
        """Give requests to idle schedulers, in turn."""
        for _ in range(len(self._turns)):
            each = self._turns[0]
            self._turns.rotate(-1)
            if not each.is_idle:
                continue
            if not self._queue and self._options.pace is run_clock.Pace.SATURATED:
                if self._next_arrival < len(self.arrivals):
                    self._queue.append(self._next_arrival)
                    self._next_arrival += 1
            if not self._queue:
                return
            number = self._queue.popleft()
            arrival = self.arrivals[number]
            self._asked_at.setdefault(number, self._clock.now_seconds())
            if not each.ask(self._made(arrival)):
                self._queue.appendleft(number)

    def is_patient(self, number: int, now: float) -> bool:
        """Return whether a request that came to no answer is to be asked again."""
        return now - self._asked_at[number] < self._options.patience_seconds

    def put_off(self, number: int) -> None:
        """Ask a request again, a little later."""
        self._put_off += 1
        self._events.after(_AGAIN_SECONDS, functools.partial(self._ask_again, number))

    def _ask_again(self, number: int) -> None:
        self._put_off -= 1
        self._queue.append(number)


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


@attrs.define(eq=False, slots=False)
class Listener:
    """The world's end of the pipes. One thread.

    :param lock: held while something is answered
    :param decided: told of each request's end
    :param dispatch: told of each request that waits and was granted
    :param woken: told of what waking took, and when it is to be done again
    """

    _schedulers: Sequence[scheduler_process.SchedulerProcess]
    _lock: threading.RLock
    _grants: grants.Grants = attrs.field(alias="granted")
    _decided: Callable[[pipe_messages.Decided], None]
    _dispatch: Callable[[pipe_messages.DispatchPending], None]
    _woken: Callable[[pipe_messages.Woken | pipe_messages.WakeNotes], None]
    _untold: set[int] = attrs.field(init=False, factory=set)
    feed_lags: feed_lag.FeedLags = attrs.field(init=False, factory=feed_lag.FeedLags)

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
                if isinstance(said, pipe_messages.AskAllocations):
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
                if each.say(pipe_messages.TellNotes()):
                    self._untold.add(each.number)
            self.listen(LISTEN_SECONDS)

    def _answer(self, said_by: scheduler_process.SchedulerProcess, said: object) -> None:
        match said:
            case pipe_messages.WriteAllocations():
                _reply(said_by, self._grants.write(said))
            case pipe_messages.RemoveAllocations():
                _reply(said_by, self._grants.remove(said))
            case pipe_messages.Decided():
                said_by.asked = None
                self.feed_lags.add(said_by.number, said_by.starts, said.applied)
                self._woken(said.wakes)
                self._decided(said)
            case pipe_messages.DispatchPending():
                self._dispatch(said)
            case pipe_messages.Woken():
                said_by.is_waking = False
                self._woken(said)
            case pipe_messages.NotesTold():
                self.feed_lags.add(said_by.number, said_by.starts, said.applied)
                self._woken(said.wakes)
                self._untold.discard(said_by.number)
            case pipe_messages.Ready():
                said_by.became_ready()
                self.feed_lags.begin(said_by.number, said_by.starts, time.monotonic())
            case pipe_messages.Failed():
                raise SimulationFailed(said.text)


def _reply(to: scheduler_process.SchedulerProcess, answer: pipe_messages.WriteAnswer) -> None:
    if to.pipe is not None:
        to.pipe.send(answer)
