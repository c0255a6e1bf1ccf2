# SPDX-License-Identifier: Apache-2.0
"""The process from which tests fork others: it has imported what those do, and opened nothing.

A process has one at the most, and what it imports is settled when the first is forked from it:
so who forks says when it is imported itself what that is.
"""

from __future__ import annotations

import atexit
import multiprocessing
from multiprocessing import context as mp_context
from multiprocessing import forkserver

_CONTEXT = multiprocessing.get_context("forkserver")
_imported: list[str] = []


def context(*modules: str) -> mp_context.ForkServerContext:
    """Return what makes processes that find these modules imported."""
    _imported.extend(modules)
    _CONTEXT.set_forkserver_preload(_imported)
    return _CONTEXT


# Who waits for it is told what it and those that it forked took of the processors.
atexit.register(forkserver._forkserver._stop)  # type: ignore[attr-defined]
