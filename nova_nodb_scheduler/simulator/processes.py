# SPDX-License-Identifier: Apache-2.0
"""The schedulers' processes as the world holds them: started, killed, paused, started again."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import re
import signal
import time
from multiprocessing import connection as mp_connection
from multiprocessing import context as mp_context

import attrs

from nova_nodb_scheduler.simulator import backend_line, messages, run_clock, worker


class SchedulerProcess:
    """One scheduler's place in a run, with the process that fills it now. One thread.

    :param options: but for the identity, which each start makes anew
    :ivar asked: the request it was given and has not answered
    :ivar starts: how often it was started
    :ivar ready_seconds: real seconds from each start until it was ready
    :ivar peak_memory_mb: most that any of its processes had resident when it
        was ended; 0 where the system does not tell
    """

    def __init__(
        self,
        number: int,
        context: mp_context.SpawnContext,
        line: backend_line.Line,
        clock: run_clock.RunClock,
        options: worker.WorkerOptions,
    ) -> None:
        self.number = number
        self._context = context
        self._line = line
        self._clock = clock
        self._options = options
        self.starts = 0
        self._started_at = 0.0
        self._process: multiprocessing.process.BaseProcess | None = None
        self._paused = False
        self.pipe: mp_connection.Connection | None = None
        self.questions: mp_connection.Connection | None = None
        self.is_ready = False
        self.asked: messages.Decide | None = None
        self.ready_seconds: list[float] = []
        self.peak_memory_mb = 0.0
        self.kills = 0

    @property
    def is_idle(self) -> bool:
        return self.is_ready and self.asked is None and not self._paused

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
        options = attrs.evolve(self._options, identity=f"sim-{self.number}-{self.starts}")
        self._process = self._context.Process(
            target=worker.run,
            args=(options, theirs, questions, self._line, self._clock),
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

    def ask(self, asked: messages.Decide) -> bool:
        """Hand a request over; False if the process is gone."""
        if not self.say(asked):
            return False
        self.asked = asked
        return True

    def say(self, message: object) -> bool:
        """Send anything; False if the process is gone."""
        if self.pipe is None:
            return False
        try:
            self.pipe.send(message)
        except OSError:
            return False
        return True

    def kill(self) -> messages.Decide | None:
        """Kill it, as ``kill -9`` does; return the request that is lost with it."""
        self.note_memory()
        lost, self.asked = self.asked, None
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
            self.say(messages.Stop())
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
