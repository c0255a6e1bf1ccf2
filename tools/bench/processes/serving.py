# SPDX-License-Identifier: Apache-2.0
"""The loop of a process that the benchmark commands, JSON lines in and out; and its memory."""

import json
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def resident_mb() -> float:
    """Return this process's resident memory in MiB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def own_mb() -> float:
    """Return this process's part of memory in MiB: what n processes share counts for 1/n."""
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not tell memory by parts")


Handler = Callable[..., Any]


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer commands on standard input until it ends; then end the process.

    A command is {"do": name, **arguments}, its answer {"ok": result} or {"error": text}.
    """
    # Whatever Nova or a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"ok": handlers[command.pop("do")](**command)}
        except Exception as error:  # noqa: BLE001 - told to the parent, which ends us
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
    for stop in (handlers["stop"],):
        stop()
    answers.close()
    # Nova's pools of threads would keep the process.
    os._exit(0)
