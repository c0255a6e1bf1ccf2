# SPDX-License-Identifier: Apache-2.0
"""How much memory this process has."""

import os
import pathlib


def resident_mb() -> float:
    """Return this process's resident memory in MiB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
