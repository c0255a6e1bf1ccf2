# SPDX-License-Identifier: Apache-2.0
"""Python's collector of cycles, kept at rest while very many objects are made.

What a load makes has no cycles, and reference counts give back what it drops;
to look for cycles again and again took a fifth of the time to ready. The
switch is the whole process's: cycles that others make meanwhile wait until it
is on again, so whoever takes this does a bounded piece of work. Threads may
overlap: who found the collector on puts it on again, which is early for the
other and never late. ``gc.freeze`` is not used: what was frozen is never looked
at again, and a process that loads more than once would keep the cycles of each.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def at_rest() -> Iterator[None]:
    """Keep the collector from running meanwhile, unless it is off anyway."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
