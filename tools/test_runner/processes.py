# SPDX-License-Identifier: Apache-2.0
"""Commands with a time limit, in process groups of their own, that end when the run is ended."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

#: What ``timeout`` answers, and whoever reads an exit status knows.
TIMED_OUT = 124
_SECONDS_TO_END = 30.0

_lock = threading.Lock()
_groups: set[int] = set()
_ending = threading.Event()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it took, of the processors all it waited for included."""

    status: int
    seconds: float
    cpu_seconds: float


def limited(
    command: Sequence[str | os.PathLike[str]],
    limit_seconds: float,
    log: pathlib.Path,
    *,
    directory: str | os.PathLike[str] = ".",
    append: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a command with its output in a log, until it ends or its time is over.

    Its group is told to end then, and killed 30 s later.
    """
    began = time.monotonic()
    with open(log, "ab" if append else "wb") as output:
        with _lock:
            if _ending.is_set():
                return Outcome(-signal.SIGTERM, 0.0, 0.0)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **(environment or {})},
                process_group=0,
            )
            _groups.add(process.pid)
        over = threading.Event()
        timer = threading.Timer(limit_seconds, _time_is_over, (process.pid, over))
        timer.daemon = True
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
            with _lock:
                _groups.discard(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        if over.is_set():
            output.write(f"\nended after {limit_seconds:.0f} s, its limit\n".encode())
    seconds = time.monotonic() - began
    ended = TIMED_OUT if over.is_set() else process.returncode
    return Outcome(ended, seconds, usage.ru_utime + usage.ru_stime)


def _time_is_over(group: int, over: threading.Event) -> None:
    over.set()
    _end_group(group)


def _end_group(group: int) -> None:
    """Tell a group to end; kill it if it has not within 30 s."""
    deadline = time.monotonic() + _SECONDS_TO_END
    number = signal.SIGTERM
    while True:
        with _lock:
            if group not in _groups:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)
        if number == signal.SIGKILL:
            return
        while time.monotonic() < deadline:
            with _lock:
                if group not in _groups:
                    return
            time.sleep(0.1)
        number = signal.SIGKILL


def end_all() -> None:
    """End all that runs, and start nothing more; returns when it has ended."""
    with _lock:
        _ending.set()
        groups = list(_groups)
    threads = [threading.Thread(target=_end_group, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
