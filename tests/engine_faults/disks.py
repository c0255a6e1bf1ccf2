# SPDX-License-Identifier: Apache-2.0
"""What happens to an engine's disk: it is full, or it is put back to an earlier day.

A disk that is full is a small file system of the server's own; to mount one
needs root, and a trial says so where it is not. Putting back copies the whole
data directory of a stopped server, as a volume's snapshot does: members, names,
tokens and ids are what they were.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from tests.engine_faults import fault, world

#: Room on a full disk before it is filled, beside what stands there already.
_ROOM_BYTES = 48 << 20
_JUNK_BYTES = (1 << 20, 1 << 14, 1 << 12)


def _kept(trial: fault.Trial) -> pathlib.Path:
    return pathlib.Path(trial.engine.server.directory) / "data"


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    # Owners, modes and times included; and whatever the server has beside files.
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


# -- put back to an earlier day ------------------------------------------------------------


def _roll_back(trial: fault.Trial) -> None:
    """Stop the server, and start it with its data of some grants ago."""
    server: Any = trial.engine.server
    data = _kept(trial)
    earlier = data.with_name("earlier")
    server.kill()
    _copy(data, earlier)
    server.start()
    trial.world.recover(world.START_SECONDS)
    if not trial.world.wait_grants(8, 30.0):
        raise world.Broken("nobody was granted anything")
    server.kill()
    shutil.rmtree(data)
    earlier.rename(data)
    server.start()
    # As many writes as were lost come at once: what is there is as new as what was.
    trial.healed()
    trial.recovered()


ROLLED_BACK = fault.Fault(
    "disk put back to an earlier day", fault.ENGINE_SECONDS, _roll_back, private=True, loses=True
)


# -- full ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _small_disk(directory: pathlib.Path) -> Iterator[None]:
    """Have a directory on a small file system of its own; its owner must not run meanwhile."""
    used = sum(each.stat().st_blocks * 512 for each in directory.rglob("*") if each.is_file())
    before = directory.with_name(directory.name + ".before")
    directory.rename(before)
    directory.mkdir()
    size = used + _ROOM_BYTES
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        raise world.Broken(f"no small file system can be had, run it as root: {mounted.stderr}")
    try:
        _copy_into(before, directory)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _copy_into(source: pathlib.Path, target: pathlib.Path) -> None:
    subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)
    shutil.rmtree(source)


def _fill(junk: pathlib.Path, until: float) -> int:
    """Write until nothing more goes, and again whatever becomes free; return the bytes."""
    written = 0
    with junk.open("ab", buffering=0) as file:
        while time.monotonic() < until:
            for size in _JUNK_BYTES:
                try:
                    while time.monotonic() < until:
                        written += file.write(os.urandom(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
            time.sleep(0.02)
    return written


def _full(trial: fault.Trial) -> None:
    """Fill the server's disk to the last block for as long as any time-out, and empty it."""
    server: Any = trial.engine.server
    data = _kept(trial)
    server.kill()
    with _small_disk(data):
        server.start()
        trial.world.recover(world.START_SECONDS)
        junk = data.parent / "data" / "junk"
        trial.notes["junk"] = _fill(junk, time.monotonic() + 2 * fault.OUTAGE_SECONDS)
        trial.note_told()
        junk.unlink()
        if not server.answers():
            # One that crashed of it is started again by whoever watches it.
            server.restart()
        trial.healed()
        trial.recovered()
        time.sleep(0.3)
        # Before the file system goes: afterwards nothing answers for what stood there.
        trial.world.check()
        server.kill()
        after = data.with_name("data.after")
        _copy(data, after)
    data.rmdir()
    after.rename(data)
    server.start()


FULL_DISK = fault.Fault("disk full", fault.ENGINE_SECONDS, _full, private=True)
