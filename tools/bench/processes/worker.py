# SPDX-License-Identifier: Apache-2.0
"""A process under command: started, asked, ended. It ends by itself when its parent is gone."""

import json
import pathlib
import select
import subprocess
import types
from typing import Any

_STOP_SECONDS = 60.0


class WorkerFailedError(RuntimeError):
    """A commanded process answered with an error, died, or did not answer in time."""


class Worker:
    """One process that serves JSON lines; a context manager. Not thread-safe.

    :param module: its main module, run by ``python`` below ``checkout``
    :param log: what it prints goes here
    """

    def __init__(
        self,
        name: str,
        python: str,
        module: str,
        arguments: list[str],
        log: pathlib.Path,
        checkout: pathlib.Path,
    ) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [python, "-W", "ignore", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=checkout,
                # An interrupt at the terminal is the parent's, which has us clean up.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: types.TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, do: str, timeout_seconds: float = 600.0, **arguments: Any) -> Any:
        """Send a command and return its result.

        :raises WorkerFailedError: no result; the text names the log
        """
        self.send(do, **arguments)
        return self.receive(timeout_seconds)

    def send(self, do: str, **arguments: Any) -> None:
        """Send a command whose answer ``receive`` takes later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerFailedError(f"{self.name} has ended; read {self._log}") from error

    def receive(self, timeout_seconds: float = 600.0) -> Any:
        """Return the result of the command that was sent.

        :raises WorkerFailedError: no result
        """
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_seconds)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            reason = "has ended" if ready else f"did not answer within {timeout_seconds:.0f} s"
            raise WorkerFailedError(f"{self.name} {reason}; read {self._log}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailedError(f"{self.name}: {answer['error']}; read {self._log}")
        return answer["ok"]

    def close(self) -> None:
        """Have it end and wait; it is killed if it does not. Idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
