# SPDX-License-Identifier: Apache-2.0
"""How long tests take, so that stestr gives each of its processes as much to do.

stestr knows the times of the runs of its own repository. Each of our runs has a
new one, so the times are carried there: those that earlier runs left in the
state directory, and for the rest those of ``timings.json``, which is part of the
tree. There short tests are left out; their times change nothing.
"""

from __future__ import annotations

import contextlib
import dbm.dumb
import json
import os
import pathlib
import subprocess

_SEED = pathlib.Path(__file__).with_name("timings.json")
#: Shorter tests are not kept.
_SECONDS_THAT_COUNT = 0.5


def _history(state: pathlib.Path, stage: str) -> pathlib.Path:
    return state / "timings" / f"{stage}.json"


def known(state: pathlib.Path, stage: str) -> dict[str, float]:
    """Return the seconds of the tests of a stage, as far as they are known."""
    found: dict[str, float] = {}
    for path, part in ((_SEED, stage), (_history(state, stage), "")):
        # A file that is missing or was cut off costs time, nothing else.
        with contextlib.suppress(OSError, ValueError):
            read = json.loads(path.read_text())
            found |= read.get(part, {}) if part else read
    return found


def seed(state: pathlib.Path, stage: str, repository: pathlib.Path) -> None:
    """Make stestr's repository of a run, with the times that are known."""
    repository.mkdir(parents=True, exist_ok=True)
    if not (repository / ".stestr").exists():
        subprocess.run(["stestr", "--repo-url", str(repository), "init"], check=True)
    with dbm.dumb.open(_times(repository), "c") as times:
        for test, seconds in known(state, stage).items():
            times[test] = str(seconds)


def keep(state: pathlib.Path, stage: str, repository: pathlib.Path) -> None:
    """Keep the times of a run for those that come."""
    times = known(state, stage)
    with dbm.dumb.open(_times(repository), "c") as measured:
        for test, seconds in measured.items():
            name = test.decode() if isinstance(test, bytes) else test
            times[name] = round(float(seconds), 2)
    file(_history(state, stage), times)


def file(path: pathlib.Path, times: dict[str, float]) -> None:
    """Write the times of the tests that take any; several runs may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}")
    lasting = {name: seconds for name, seconds in times.items() if seconds >= _SECONDS_THAT_COUNT}
    written.write_text(json.dumps(lasting, indent=1, sort_keys=True))
    written.replace(path)


def _times(repository: pathlib.Path) -> str:
    return str(repository / ".stestr" / "times.dbm")
