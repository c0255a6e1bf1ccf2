# SPDX-License-Identifier: Apache-2.0
"""Runs the plugin's commands, and tells what they said, how they ended and when."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

import attrs

_SCRIPT = pathlib.Path(__file__).with_name("command_process.py")


@attrs.frozen(kw_only=True)
class Case:
    """One run of a command.

    :param without_rights: files' modes hold, though the test may be root's
    :param closed_stdout: nobody reads what it prints
    :param interrupted_after: seconds to a SIGINT; 0 for none
    """

    name: str
    program: str = "nova-nodb-manage"
    arguments: Sequence[str]
    directory: str
    environment: Mapping[str, str] = attrs.field(factory=dict)
    without_rights: bool = False
    closed_stdout: bool = False
    interrupted_after: float = 0.0


@attrs.frozen
class Ended:
    """How a command ended.

    :param status: None where it had to be killed
    :param seconds: without the loading of Nova's libraries, and without what it
        waited for a processor
    """

    status: int | None
    seconds: float
    stdout: str
    stderr: str


def run(cases: Sequence[Case]) -> dict[str, Ended]:
    """Run every case in a process of its own, some at a time; results by name."""
    with tempfile.TemporaryDirectory(prefix="nodb-commands-") as name:
        results = pathlib.Path(name) / "results"
        done = subprocess.run(
            [sys.executable, "-P", str(_SCRIPT), str(results)],
            input=json.dumps([attrs.asdict(case) for case in cases]),
            text=True,
            capture_output=True,
            env={**os.environ, "HOME": name},
            cwd=name,
            check=False,
            timeout=1800,
        )
        if not results.exists():
            raise AssertionError(done.stderr)
        found = json.loads(results.read_text())
    return {name: Ended(**each) for name, each in found.items()}
