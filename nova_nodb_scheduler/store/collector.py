# SPDX-License-Identifier: Apache-2.0
"""Python's collector of cycles, kept from what has none.

The records and columns of all hosts have no cycles, and reference counts give
back what is dropped of them. While very many are made, to look for cycles again
and again took a fifth of the time to ready. And once they are there, each full
look stops all threads for as long as it takes to walk over them: every twenty
seconds or so a scheduler of 10,000 hosts stood still for 60 ms of its own time
and, on a busy machine, up to half a second of everybody's.

Once it has settled, the looks at what is young are fewer, too. A request makes, and
keeps for a moment, more than the number of objects after which Python looks by default,
700; each tenth of these looks goes further, and brings the full one nearer.

All of this is the whole process's.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Iterator

#: Cycles that live at a call of :func:`settle` are kept until the next one: not so
#: often that the looks it takes are felt.
_LEAST_SECONDS = 60.0

#: Objects made, less those dropped, from one look to the next. A request for one server was
#: looked at for 0.3 to 1 ms with Python's own number, and for 0.2 ms with this one.
_LEAST_YOUNG = 10_000

_lock = threading.Lock()
_settled_at: float | None = None
_is_settled = True


@contextlib.contextmanager
def at_rest(*, loading: bool = False) -> Iterator[None]:
    """Keep the collector from running meanwhile, unless it is off anyway.

    Cycles that others make meanwhile wait until it is on again, so whoever takes
    this does a bounded piece of work. Threads may overlap: who found the collector
    on puts it on again, which is early for the other and never late. What is made
    meanwhile is to be settled.

    :param loading: this is one of many pieces that all stay: what lives is taken
        out of the collector's sight until :func:`loaded`, or else each piece would
        have it walk over those before
    """
    global _is_settled
    was_on = gc.isenabled()
    if was_on:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            if loading:
                gc.freeze()
            gc.enable()
        if not loading:
            _is_settled = False


def loaded() -> None:
    """Let the collector see again what was taken out of its sight: a load came to its end."""
    global _is_settled
    with _lock:
        _is_settled = False
        gc.unfreeze()


def is_settled() -> bool:
    """Return whether nothing was loaded, or made at rest, since :func:`settle`."""
    return _is_settled


def settle() -> None:
    """Take all that lives now out of the collector's sight, after a last look at it.

    To be called behind a load. What was taken out by an earlier call comes into
    sight first, so a process that loads again keeps no cycles of its former loads.
    Does nothing within a minute of the last call.
    """
    global _settled_at, _is_settled
    with _lock:
        now = time.monotonic()
        if _settled_at is not None and now - _settled_at < _LEAST_SECONDS:
            return
        _settled_at = now
        # First: what another thread makes meanwhile may come too late for the look.
        _is_settled = True
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        young, *older = gc.get_threshold()
        # Zero: somebody has switched the looks off.
        if 0 < young < _LEAST_YOUNG:
            gc.set_threshold(_LEAST_YOUNG, *older)
