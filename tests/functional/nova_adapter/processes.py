# SPDX-License-Identifier: Apache-2.0
"""Runs Nova's processes with the plugin installed, and in a Python that lacks it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

SCRIPT = pathlib.Path(__file__).with_name("nova_process.py")
DIST = "nova_nodb_scheduler"

Results = Mapping[str, Mapping[str, Any]]


@attrs.frozen
class Case:
    """One process of Nova.

    :param kind: ``inspect`` (parse nova.conf), ``act`` (and write services and
        aggregates), ``old_nova`` (inspect, under an unsupported release), ``call``
        (a command's main function) or ``wsgi`` (the same, arguments untouched)
    """

    name: str
    conf: str
    kind: str = "inspect"
    argv: tuple[str, ...] = ("nova-api",)
    call: str = ""
    arguments: tuple[str, ...] = ()
    count_plugins: bool = False


def without_the_package(directory: pathlib.Path) -> dict[str, str]:
    """Return the environment of a Python that has all but the plugin."""
    packages = directory / "packages"
    packages.mkdir()
    for entry in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if DIST not in entry.name and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    return {"PYTHONPATH": str(packages)}


#: What loads the plugin imports of it.
PLUGIN = (
    "nova_nodb_scheduler.nova_adapter.activation",
    "nova_nodb_scheduler.nova_adapter.assembly",
    "nova_nodb_scheduler.nova_adapter.reporting.nova_objects",
    "nova_nodb_scheduler.synchronizer.drivers.memory",
)


def run(cases: Sequence[Case], *, installed: bool = True, imported: Sequence[str] = ()) -> Results:
    """Run every case in a process of its own and return what they say, by name.

    :param imported: modules that each finds imported
    """
    with tempfile.TemporaryDirectory(prefix="nodb-processes-") as name:
        directory = pathlib.Path(name)
        options = ["-P"] if installed else ["-P", "-S"]
        own = {} if installed else without_the_package(directory)
        environment = {
            **os.environ,
            **own,
            # stevedore keeps entry points by sys.path, for all processes.
            "XDG_CACHE_HOME": name,
            "OS_NOVA_DISABLE_EVENTLET_PATCHING": "true",
        }
        results = directory / "results"
        done = subprocess.run(
            [sys.executable, *options, str(SCRIPT), str(results), *imported],
            input=json.dumps([attrs.asdict(case) for case in cases]),
            text=True,
            capture_output=True,
            env=environment,
            cwd=name,
            check=False,
            timeout=300,
        )
        if not results.exists():
            raise AssertionError(done.stderr)
        found: Results = json.loads(results.read_text())
        return found
