# SPDX-License-Identifier: Apache-2.0
"""A scheduler's process: what runs in it, and how the world starts, pauses and kills it.

Requests go in by a pipe, allocations and decisions come out.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pathlib
import re
import signal
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import connection as mp_connection
from multiprocessing import context as mp_context
from typing import Any

import attrs

from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, placing
from nova_nodb_scheduler.simulator.scenario import run_clock, run_options
from nova_nodb_scheduler.simulator.schedulers import (
    backend_line,
    pipe_messages,
    simulated_scheduler,
)

LOG = logging.getLogger(__name__)


def run_worker(
    identity: str,
    options: run_options.RunOptions,
    pipe: mp_connection.Connection,
    questions: mp_connection.Connection,
    line: backend_line.BackendLine,
    clock: run_clock.RunClock,
) -> None:
    """Serve one pipe until told to stop, or until the world is gone.

    :param identity: unique, restarts included
    :param questions: a second pipe, for the thread that settles claims
    """
    # A cut line is told of in the report, not by every thread that meets it.
    logging.getLogger("nova_nodb_scheduler").setLevel(logging.CRITICAL)
    try:
        _serve(identity, options, pipe, questions, line, clock)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception:  # noqa: BLE001 - whatever it is, the world shall hear of it
        with contextlib.suppress(OSError):
            pipe.send(pipe_messages.Failed(traceback.format_exc()))


def _serve(
    identity: str,
    options: run_options.RunOptions,
    told: mp_connection.Connection,
    questions: mp_connection.Connection,
    line: backend_line.BackendLine,
    clock: run_clock.RunClock,
) -> None:
    lined = backend_line.LinedSynchronizer(options.backend.make(), line)

    def ask(server: str) -> Mapping[str, Mapping[str, int]] | None:
        try:
            questions.send(pipe_messages.AskAllocations(server))
            answer: pipe_messages.ServerAllocations = questions.recv()
        except (EOFError, OSError):
            return None  # the world ends
        return answer.by_host

    pipe = SharedPipe(told)
    made = simulated_scheduler.SimulatedScheduler(
        identity, lined, options, clock.now_seconds, ask, PipeConductors(pipe)
    )
    pipe.send(pipe_messages.Ready(made.start(options.start_seconds)))
    try:
        while not isinstance(asked := pipe.recv(), pipe_messages.Stop):
            if isinstance(asked, pipe_messages.SettleClaims):
                made.go_in_step()
                pipe.send(pipe_messages.ClaimsSettled())
                continue
            if isinstance(asked, pipe_messages.TellNotes):
                pipe.send(pipe_messages.NotesTold(made.applied(), made.wakes()))
                continue
            if isinstance(asked, pipe_messages.WakeRequests):
                pipe.send(made.wake())
                continue
            authority = PipeAuthority(pipe, asked.number, options.authority_seconds)
            pipe.send(made.decide(asked, authority))
    finally:
        made.stop()


class SharedPipe:
    """A pipe into which several threads speak, and out of which one hears."""

    def __init__(self, pipe: mp_connection.Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Say something."""
        with self._lock:
            self._pipe.send(message)

    def recv(self) -> Any:
        """Wait for what is said."""
        return self._pipe.recv()


class PipeConductors:
    """Tells the world, which has the conductors, of grants; any thread."""

    def __init__(self, pipe: SharedPipe) -> None:
        self._pipe = pipe

    def dispatch(self, key: str, attempt: int) -> None:
        """See :class:`.queue_grants.Conductors`."""
        # Where the world is gone, so is this process soon.
        with contextlib.suppress(OSError):
            self._pipe.send(pipe_messages.DispatchPending(key, attempt))


class PipeAuthority:
    """Has allocations written by the world, for one request."""

    def __init__(self, pipe: SharedPipe, number: int, pause_seconds: float) -> None:
        self._pipe = pipe
        self._number = number
        self._pause_seconds = pause_seconds

    def write(
        self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float
    ) -> Mapping[str, placing.AllocationOutcome]:
        """See :class:`placing.AllocationAuthority`."""
        self._pause()
        self._pipe.send(pipe_messages.WriteAllocations(self._number, _allocations(wanted)))
        answer = self._pipe.recv()
        self._pause()
        written = placing.AllocationOutcome(placing.AllocationResult.WRITTEN)
        refused = placing.AllocationOutcome(
            placing.AllocationResult.NEXT_HOST, "refused by the host"
        )
        return {
            each.consumer: refused if each.consumer in answer.refused else written
            for each in wanted
        }

    def remove(self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float) -> None:
        """See :class:`placing.AllocationAuthority`."""
        self._pipe.send(pipe_messages.RemoveAllocations(self._number, _allocations(wanted)))
        self._pipe.recv()

    def is_in_doubt(self, wanted: chosen_hosts.WantedClaim) -> bool:
        """See :class:`placing.AllocationAuthority`: what is taken back is gone."""
        return False

    def _pause(self) -> None:
        if self._pause_seconds:
            time.sleep(self._pause_seconds / 2)


def _allocations(
    wanted: Sequence[chosen_hosts.WantedClaim],
) -> tuple[pipe_messages.Allocation, ...]:
    return tuple(
        pipe_messages.Allocation(each.consumer, each.chosen.uuid, each.resources) for each in wanted
    )


@attrs.define(eq=False, slots=False)
class SchedulerProcess:
    """One scheduler's place in a run, with the process that fills it now. One thread.

    :ivar asked: the request it was given and has not answered
    :ivar is_waking: whether it was told to look whom what happened helps, and has not answered
    :ivar starts: how often it was started
    :ivar ready_seconds: real seconds from each start until it was ready
    :ivar peak_memory_mb: most that any of its processes had resident when it
        was ended; 0 where the system does not tell
    """

    number: int
    _context: mp_context.SpawnContext | mp_context.ForkServerContext
    _line: backend_line.BackendLine
    _clock: run_clock.RunClock
    _options: run_options.RunOptions
    starts: int = attrs.field(init=False, default=0)
    _started_at: float = attrs.field(init=False, default=0.0)
    _process: multiprocessing.process.BaseProcess | None = attrs.field(init=False, default=None)
    _paused: bool = attrs.field(init=False, default=False)
    pipe: mp_connection.Connection | None = attrs.field(init=False, default=None)
    questions: mp_connection.Connection | None = attrs.field(init=False, default=None)
    is_ready: bool = attrs.field(init=False, default=False)
    asked: pipe_messages.Decide | None = attrs.field(init=False, default=None)
    is_waking: bool = attrs.field(init=False, default=False)
    ready_seconds: list[float] = attrs.field(init=False, factory=list)
    peak_memory_mb: float = attrs.field(init=False, default=0.0)
    kills: int = attrs.field(init=False, default=0)

    @property
    def is_idle(self) -> bool:
        return self.is_ready and self.asked is None and not self.is_waking and not self._paused

    @property
    def is_away(self) -> bool:
        """Whether only the timeline can bring it back: killed for a while, or paused."""
        return self._paused or self._process is None

    def start(self) -> None:
        """Start a process, unless there is one; the world hears of it by the pipe."""
        if self._process is not None:
            return
        self.starts += 1
        ours, theirs = self._context.Pipe()
        answers, questions = self._context.Pipe()
        for end in (ours, theirs, answers, questions):
            # A socket made where another library has patched sockets does not block.
            os.set_blocking(end.fileno(), True)
        identity = f"sim-{self.number}-{self.starts}"
        self._process = self._context.Process(
            target=run_worker,
            args=(identity, self._options, theirs, questions, self._line, self._clock),
            name=f"scheduler-{self.number}",
            daemon=True,
        )
        self._started_at = time.monotonic()
        self._process.start()
        # Or the pipe would not break when the process ends.
        theirs.close()
        questions.close()
        self.pipe, self.questions = ours, answers

    def became_ready(self) -> None:
        """Note that requests may come."""
        self.is_ready = True
        self.ready_seconds.append(time.monotonic() - self._started_at)

    def ask(self, asked: pipe_messages.Decide) -> bool:
        """Hand a request over; False if the process is gone."""
        if not self.say(asked):
            return False
        self.asked = asked
        return True

    def wake(self) -> None:
        """Have it look whom what happened helps; for runs step by step."""
        self.is_waking = self.say(pipe_messages.WakeRequests())

    def say(self, message: object) -> bool:
        """Send anything; False if the process is gone."""
        if self.pipe is None:
            return False
        try:
            self.pipe.send(message)
        except OSError:
            return False
        return True

    def kill(self) -> pipe_messages.Decide | None:
        """Kill it, as ``kill -9`` does; return the request that is lost with it."""
        self.note_memory()
        lost, self.asked = self.asked, None
        self.is_waking = False
        self.kills += 1
        self._end(signal.SIGKILL)
        return lost

    def pause(self) -> None:
        """Stop it where it stands."""
        if self._process is not None and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGSTOP)
            self._paused = True

    def resume(self) -> None:
        """Let a paused one go on; no-op for others."""
        if self._paused and self._process is not None and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGCONT)
        self._paused = False

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End it in good order; by force if it does not; idempotent."""
        self.resume()
        self.note_memory()
        if self.is_ready:
            self.say(pipe_messages.Stop())
        if self._process is not None and self.is_ready:
            self._process.join(timeout_seconds)
        self._end(signal.SIGKILL)

    def note_memory(self) -> None:
        """Take the peak of the process's resident memory down."""
        if self._process is None or self._process.pid is None:
            return
        try:
            status = pathlib.Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        except OSError:
            return
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        if found is not None:
            self.peak_memory_mb = max(self.peak_memory_mb, int(found.group(1)) / 1024)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            if self._process.is_alive() and self._process.pid is not None:
                os.kill(self._process.pid, how)
            self._process.join(10.0)
            self._process = None
        for pipe in (self.pipe, self.questions):
            if pipe is not None:
                pipe.close()
        self.pipe = self.questions = None
        self.is_ready = False
        self._paused = False
