# SPDX-License-Identifier: Apache-2.0
"""Tests of Nova's services in a process of their own, for Nova's test packages choose the
threading mode as they are imported.

A test that stands still ends the process, which says where each of its threads stood.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import ClassVar

_ROOT = pathlib.Path(__file__).parents[2]
#: Of a whole module, beside as much else as the processors bear.
_MOST_SECONDS = 1500.0
#: What is told of a failure, of each of the two streams.
_MOST_CHARACTERS = 40_000


class OwnProcessCase(unittest.TestCase):
    """All tests of a module, or a part of them, as one test.

    Each module has a class of its own here, for stestr runs all tests of a class one after the
    other.

    :cvar module: its full name
    :cvar parts: into how many parts the module's tests are dealt out, one by one
    :cvar part: which of them this one runs, from 0 on
    """

    module: ClassVar[str]
    part: ClassVar[int] = 0
    parts: ClassVar[int] = 1

    def test_all_of_the_module(self) -> None:
        if self.parts == 1:
            self._run(self.module)
            return
        listed = self._run("--list", self.module).splitlines()
        tests = [line for line in listed if line.startswith(self.module)]
        names = tests[self.part :: self.parts]
        self.assertTrue(names)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
            chosen.write("".join(f"{name}\n" for name in names))
            chosen.flush()
            self._run("--load-list", chosen.name, self.module)

    def _run(self, *arguments: str) -> str:
        """Return what testtools printed, given these arguments."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            # Not pipes: a process that it leaves behind would hold them open.
            process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.runner", *arguments],
                cwd=_ROOT,
                env={
                    **os.environ,
                    "OS_NOVA_DISABLE_EVENTLET_PATCHING": "true",
                    "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path]),
                },
                stdout=output,
                stderr=errors,
                stdin=subprocess.DEVNULL,
            )
            try:
                status: int | str = process.wait(_MOST_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                status = f"not within {_MOST_SECONDS:g} s"
            told = []
            for stream in (output, errors):
                stream.seek(0)
                told.append(stream.read())
        ends = "\n".join(each[-_MOST_CHARACTERS:] for each in told)
        self.assertEqual(0, status, ends)
        return told[0]
