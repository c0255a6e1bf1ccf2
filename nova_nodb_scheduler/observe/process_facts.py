# SPDX-License-Identifier: Apache-2.0
"""What a process knows of itself and of its machine, from /proc; nothing where there is none."""

from __future__ import annotations

import os
import pathlib

_PROC = pathlib.Path("/proc")


def resident_bytes(process: int | str = "self") -> int | None:
    """Return the memory that a process has in use."""
    try:
        pages = int((_PROC / str(process) / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def machine_bytes() -> tuple[int, int] | None:
    """Return the machine's memory: all of it, and what can be had without swapping."""
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
    except OSError:
        return None
    found = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    try:
        total, available = (
            int(found[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")
        )
    except (KeyError, ValueError, IndexError):
        return None
    return total, available
