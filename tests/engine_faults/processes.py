# SPDX-License-Identifier: Apache-2.0
"""The schedulers' processes as the parent holds them, and the clerk who answers them."""

from __future__ import annotations

import itertools
import os
import pathlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.model import records
from tests import forking
from tests.engine_faults import child, truth, witnesses

ANSWER_SECONDS = 5.0
_CONTEXT = forking.context(child.__name__)


class NoAnswer(Exception):
    """A process did not answer a command in time, or is gone."""


class Process:
    """One scheduler's process. Commands from one thread."""

    def __init__(self, options: child.Options, answer: Callable[..., Any]) -> None:
        self.identity = options.identity
        self._numbers = itertools.count()
        self._answer = answer
        self._told: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._answers: dict[int, Any] = {}
        self._arrived = threading.Condition()
        self._commands, commands = _CONTEXT.Pipe()
        self._questions, questions = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=child.run,
            args=(options, commands, questions),
            name=options.identity,
            daemon=True,
        )
        self._process.start()
        # Or the pipes would not break when the process ends.
        commands.close()
        questions.close()
        for target in (self._listen, self._serve):
            threading.Thread(target=target, name=options.identity, daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode

    @property
    def is_stopped(self) -> bool:
        """Whether it stands still."""
        try:
            text = pathlib.Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return False
        return text.rpartition(")")[2].split()[0] == "T"

    def ask(self, name: str, *arguments: Any, timeout_seconds: float = ANSWER_SECONDS) -> Any:
        """Command something; return what came of it.

        :raises NoAnswer: it did not answer in time
        """
        number = next(self._numbers)
        try:
            self._commands.send((number, name, *arguments))
        except OSError as error:
            raise NoAnswer(f"{self.identity} is gone") from error
        with self._arrived:
            if not self._arrived.wait_for(lambda: number in self._answers, timeout_seconds):
                raise NoAnswer(f"{self.identity} does not answer {name}")
            answer = self._answers.pop(number)
        if isinstance(answer, str) and answer.startswith("Traceback"):
            raise NoAnswer(f"{self.identity}: {answer}")
        return answer

    def reached(self, timeout_seconds: float) -> bool:
        """Wait until the armed step was reached; False after the time-out."""
        try:
            self._told.get(timeout=timeout_seconds)
        except queue.Empty:
            return False
        return True

    def pause(self) -> None:
        """Stop it wherever it is."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process.pid is not None
        if self.is_alive:
            os.kill(self._process.pid, signal.SIGCONT)

    def wait_dead(self, timeout_seconds: float) -> bool:
        self._process.join(timeout_seconds)
        return not self._process.is_alive()

    def end(self) -> None:
        """Have it end; kill it if it does not."""
        if self.is_alive:
            self.resume()
            self._process.kill()
        self._process.join(5.0)
        self._commands.close()
        self._questions.close()

    def _listen(self) -> None:
        while True:
            try:
                number, *rest = self._commands.recv()
            except (EOFError, OSError, TypeError):
                return
            if number == "told":
                self._told.put((rest[0], rest[1:]))
                continue
            with self._arrived:
                self._answers[number] = rest[0]
                self._arrived.notify_all()

    def _serve(self) -> None:
        while True:
            try:
                name, *arguments = self._questions.recv()
                self._questions.send(self._answer(self, name, *arguments))
            except (EOFError, OSError, TypeError):
                return


class Clerk:
    """Answers what schedulers ask of the ledger; any thread.

    :ivar at_step: what is done to the engine while a scheduler stands at a step
    """

    def __init__(self, of: truth.Ledger) -> None:
        self._ledger = of
        self.at_step: Callable[[], None] = lambda: None
        self.granted_at: list[float] = []
        self.marks = witnesses.Marks()

    def answer(self, asking: Process, name: str, *arguments: Any) -> Any:
        if name == "rows":
            return self.rows(*arguments)
        if name == "write":
            return self._ledger.write(asking.identity, *arguments)
        if name == "delete":
            for consumer in arguments[0]:
                self._ledger.delete(consumer)
            return None
        if name == "grant":
            self._ledger.grant(*arguments)
            self.granted_at.append(time.monotonic())
            return None
        if name == "marked":
            return self.marks.acknowledge(*arguments)
        if name == "stop at":
            asking._told.put(("reached", arguments))
            self.at_step()
            return None
        return getattr(self._ledger, name)(*arguments)

    def rows(
        self, keys: Sequence[records.RecordKey]
    ) -> Mapping[records.RecordKey, truth.State | None]:
        """Return what records should hold now."""
        of = self._ledger
        return {key: truth.row(key, of.allocations_on, of.host_of, of.servers_on) for key in keys}
