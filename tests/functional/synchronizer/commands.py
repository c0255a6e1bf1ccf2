# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage as an operator calls it, without the seconds in which a process imports it.

A process of its own has imported the command and done nothing else. For each call it is
forked: the child has its own arguments, directory and streams, and ends as a process does.
That the command starts from nothing is for the tests that start it so.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

#: A call from nothing, to which the arguments are added.
FROM_NOTHING = (
    sys.executable,
    "-c",
    "import sys; from nova_nodb_scheduler.cmd import manage; sys.exit(manage.main())",
)


_IMPORTED = (
    "nova.config",
    "nova_nodb_scheduler.cmd.application",
    "nova_nodb_scheduler.cmd.commands.synchronizer_commands",
    "nova_nodb_scheduler.nova_adapter.assembly",
    "nova_nodb_scheduler.synchronizer.drivers.etcd",
    "nova_nodb_scheduler.synchronizer.drivers.memcached",
    "nova_nodb_scheduler.synchronizer.drivers.redis",
    "nova_nodb_scheduler.synchronizer.drivers.sqlalchemy",
    "nova_nodb_scheduler.synchronizer.migration.migrator",
)


def run(
    arguments: Sequence[str], directory: pathlib.Path, *, stdin: str = os.devnull
) -> subprocess.CompletedProcess[str]:
    """Call the command there, and wait until it ended.

    :param stdin: the path of what it reads, such as a terminal's
    """
    return _imported().run(arguments, directory, stdin)


def run_from_nothing(
    arguments: Sequence[str], directory: pathlib.Path
) -> subprocess.CompletedProcess[str]:
    """Call the command in a process that imports it; its standard input is empty."""
    return subprocess.run(
        [*FROM_NOTHING, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        stdin=subprocess.DEVNULL,
    )


@functools.cache
def _imported() -> _Imported:
    return _Imported()


class _Imported:
    """The process that has imported the command; any thread may call, one at a time."""

    def __init__(self) -> None:
        # Not in front of what is installed: this directory's names are no modules.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        atexit.register(self._end)

    def run(
        self, arguments: Sequence[str], directory: pathlib.Path, stdin: str
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as made, self._lock:
            streams = [pathlib.Path(made, name) for name in ("stdout", "stderr")]
            for path in streams:
                path.touch()
            asked = {
                "arguments": list(arguments),
                "directory": str(directory),
                "streams": [stdin, *map(str, streams)],
            }
            assert self._process.stdin is not None and self._process.stdout is not None
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
            if not answer:
                raise AssertionError("the process that has imported the command ended")
            told, errors = (path.read_text() for path in streams)
        return subprocess.CompletedProcess(list(arguments), int(answer), told, errors)

    def _end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def _serve() -> int:
    """Import the command, then fork a child for each line that asks for one.

    Returns in each child, too, with the status that it shall end with.
    """
    answers = os.fdopen(os.dup(1), "w")
    # Who prints while it is imported says it to people.
    os.dup2(2, 1)
    # As manage.main() does, and what a command imports once it knows what it was asked for:
    # in the children each finds it done.
    importlib.import_module("nova_nodb_scheduler.cmd.patching").for_threads()
    for name in _IMPORTED:
        importlib.import_module(name)
    manage = importlib.import_module("nova_nodb_scheduler.cmd.manage")
    # The children share it as long as their collectors leave it alone.
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asked = json.loads(line)
            answers.close()
            os.chdir(asked["directory"])
            for number, path in enumerate(asked["streams"]):
                flags = os.O_NOCTTY | (os.O_WRONLY if number else os.O_RDONLY)
                os.dup2(os.open(path, flags), number)
            sys.stdin = os.fdopen(0, closefd=False)
            return int(manage.main(asked["arguments"]))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(_serve())
